# SPDX-License-Identifier: Apache-2.0
"""Requests between servers, valid and mutated: every method of `lograft.internal.v1`, made from what a cluster is at the moment.

    facts = gather(admin, topic="fuzz-quiet", stranger=stranger)
    messages = MAKERS["lograft.internal.v1.QuorumService.Vote"](rng, facts, facts.voters[0])
    mutate(rng, messages[0])

A mutation is a pure function of the generator and the message. `tame` keeps two things out: claims that only a real peer may make (that
it holds what is not committed yet), and, but for a few, claims that a correct cluster has to act on: an election, another address.
"""

from __future__ import annotations

import json
import pkgutil
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any, Final

import lograft.internal.v1
from google.protobuf.descriptor import FieldDescriptor, MethodDescriptor
from google.protobuf.message import Message
from lograft import Admin
from lograft.internal.v1 import controller_pb2, quorum_pb2, replication_pb2
from lograft.types import BrokerStatus

from integration_tests.faults.mutations import odd_name

ID_BYTES: Final = 16
HUGE: Final = 100_000
"""Characters or bytes of what is too long."""
MANY: Final = 3_000
"""Members of a list that has too many."""
BELIEVED_LEAP: Final = 2**21
"""An epoch up to this much above the known one may be believed by a node that is ahead of what is known here."""

EXTREMES: Final = (0, 1, -1, 2, 2**15, 2**20, 2**20 + 1, 2**31 - 2, 2**31 - 1, -(2**31), 2**31, 2**32 - 1, 2**32)
EXTREMES_64: Final = (*EXTREMES, 2**62, 2**62 + 1, 2**63 - 1, -(2**63), 2**64 - 1)
RANGES: Final = {
    FieldDescriptor.TYPE_INT32: range(-(2**31), 2**31),
    FieldDescriptor.TYPE_UINT32: range(2**32),
    FieldDescriptor.TYPE_FIXED32: range(2**32),
    FieldDescriptor.TYPE_INT64: range(-(2**63), 2**63),
    FieldDescriptor.TYPE_UINT64: range(2**64),
    FieldDescriptor.TYPE_ENUM: range(-(2**31), 2**31),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Voter:
    """A voter of the quorum."""

    node_id: int
    directory_id: bytes
    address: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """A partition of the topic that requests are about; nobody writes to it."""

    topic_id: bytes
    partition: int
    leader_id: int
    leader_epoch: int
    partition_epoch: int
    replicas: tuple[int, ...]
    end_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Stranger:
    """A broker that is registered and has no process: what it says harms nobody."""

    broker_id: int
    incarnation_id: bytes
    directory_id: bytes
    broker_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What the cluster is, as of a moment ago.

    Attributes:
        high_watermark: of the metadata log, exclusive.
        brokers: those with a process.
        snapshot: end offset and epoch of the newest snapshot of the metadata.
    """

    cluster_id: str
    quorum_epoch: int
    leader_id: int
    high_watermark: int
    voters: tuple[Voter, ...]
    brokers: tuple[BrokerStatus, ...]
    partitions: tuple[Partition, ...]
    stranger: Stranger
    snapshot: tuple[int, int]

    def voter(self, node_id: int) -> Voter:
        """The voter with this id."""
        return next(voter for voter in self.voters if voter.node_id == node_id)

    def broker(self, node_id: int) -> BrokerStatus:
        """The broker with this id."""
        return next(broker for broker in self.brokers if broker.broker_id == node_id)


def gather(admin: Admin, *, topic: str, ends: Sequence[int], stranger: Stranger) -> Facts:
    """Ask a cluster what it is.

    Args:
        admin: client.
        topic: name of the topic that requests are about.
        ends: end of each of its partitions, exclusive.
        stranger: broker without a process.

    Raises:
        LograftError: it has no leader at the moment.
    """
    quorum = admin.describe_quorum()
    rows: list[dict[str, Any]] = [json.loads(line) for line in admin.export_metadata()]
    topic_id = next(row["topic_id"] for row in rows if row.get("type") == "topic" and row["topic"] == topic)
    found = [row for row in rows if row.get("type") == "partition" and row["topic"] == topic]
    leader_id = quorum.leader_id
    brokers = admin.describe_brokers()
    voter_ids = {voter.node_id for voter in quorum.voters}
    for broker in brokers:
        # Some of the requests register it anew.
        if broker.broker_id == stranger.broker_id:
            stranger = replace(stranger, broker_epoch=broker.broker_epoch, incarnation_id=broker.incarnation_id)
    return Facts(
        cluster_id=quorum.cluster_id,
        quorum_epoch=quorum.quorum_epoch,
        leader_id=quorum.voters[0].node_id if leader_id is None else leader_id,
        high_watermark=quorum.high_watermark or 0,
        voters=tuple(
            Voter(node_id=each.node_id, directory_id=each.directory_id or bytes(ID_BYTES), address=each.address or "")
            for each in quorum.voters
        ),
        brokers=tuple(broker for broker in brokers if broker.broker_id in voter_ids),
        partitions=tuple(
            Partition(
                topic_id=bytes.fromhex(topic_id),
                partition=row["partition"],
                leader_id=row["replicas"][0] if row["leader_id"] is None else row["leader_id"],
                leader_epoch=row["leader_epoch"],
                partition_epoch=row["partition_epoch"],
                replicas=tuple(row["replicas"]),
                end_offset=ends[row["partition"]],
            )
            for row in found
        ),
        stranger=stranger,
        snapshot=(1, 1)
        if quorum.latest_snapshot is None
        else (quorum.latest_snapshot.end_offset, quorum.latest_snapshot.quorum_epoch),
    )


def internal_methods() -> dict[str, MethodDescriptor]:
    """Every method of every service in the package of the internal protocol, by full name."""
    found: dict[str, MethodDescriptor] = {}
    for module in pkgutil.iter_modules(lograft.internal.v1.__path__):
        if module.name.endswith("_pb2"):
            file: Any = import_module(f"lograft.internal.v1.{module.name}").DESCRIPTOR
            for service in file.services_by_name.values():
                found |= {method.full_name: method for method in service.methods}
    return found


# Valid requests.

Maker = Callable[[random.Random, Facts, Voter], list[Message]]
"""Makes what a correct peer may send to a server: one message, or those of a stream."""


def _key(voter: Voter) -> quorum_pb2.ReplicaKey:
    return quorum_pb2.ReplicaKey(node_id=voter.node_id, directory_id=voter.directory_id)


def _observer(rng: random.Random) -> quorum_pb2.ReplicaKey:
    return quorum_pb2.ReplicaKey(node_id=rng.randrange(900, 910), directory_id=rng.randbytes(ID_BYTES))


def _other(rng: random.Random, facts: Facts, target: Voter) -> Voter:
    return rng.choice([voter for voter in facts.voters if voter.node_id != target.node_id])


def _probe(rng: random.Random, facts: Facts, _target: Voter) -> list[Message]:
    return [
        quorum_pb2.ProbeRequest(
            node_id=rng.randrange(10), directory_id=rng.randbytes(ID_BYTES), cluster_id=facts.cluster_id
        )
    ]


def _vote(rng: random.Random, facts: Facts, target: Voter) -> list[Message]:
    return [
        quorum_pb2.VoteRequest(
            cluster_id=facts.cluster_id,
            quorum_epoch=facts.quorum_epoch,
            candidate=_key(_other(rng, facts, target)),
            voter=_key(target),
            last_epoch=max(0, facts.quorum_epoch - 1),
            log_end_offset=facts.high_watermark,
            pre_vote=rng.random() < 0.5,
        )
    ]


def _begin(_rng: random.Random, facts: Facts, target: Voter) -> list[Message]:
    leader = facts.voter(facts.leader_id)
    return [
        quorum_pb2.BeginQuorumEpochRequest(
            cluster_id=facts.cluster_id,
            quorum_epoch=facts.quorum_epoch,
            leader_id=leader.node_id,
            voter=_key(target),
            leader_address=leader.address,
        )
    ]


def _end(rng: random.Random, facts: Facts, target: Voter) -> list[Message]:
    return [
        quorum_pb2.EndQuorumEpochRequest(
            cluster_id=facts.cluster_id,
            quorum_epoch=facts.quorum_epoch,
            leader_id=_other(rng, facts, target).node_id,
            preferred_successors=[_key(voter) for voter in facts.voters],
        )
    ]


def _fetch(rng: random.Random, facts: Facts) -> quorum_pb2.FetchQuorumRequest:
    return quorum_pb2.FetchQuorumRequest(
        cluster_id=facts.cluster_id,
        quorum_epoch=facts.quorum_epoch,
        replica=_key(rng.choice(facts.voters)) if rng.random() < 0.3 else _observer(rng),
        fetch_offset=0,
        last_fetched_epoch=0,
        high_watermark=0,
        max_bytes=100_000,
        max_wait_ms=0,
        min_feature_level=1,
        max_feature_level=1,
    )


def _fetch_quorum(rng: random.Random, facts: Facts, _target: Voter) -> list[Message]:
    return [_fetch(rng, facts)]


def _follow_quorum(rng: random.Random, facts: Facts, _target: Voter) -> list[Message]:
    return [quorum_pb2.FollowQuorumRequest(fetch=_fetch(rng, facts)) for _ in range(rng.randint(1, 3))]


def _update_voter(rng: random.Random, facts: Facts, _target: Voter) -> list[Message]:
    voter = rng.choice(facts.voters)
    return [
        quorum_pb2.UpdateVoterRequest(
            cluster_id=facts.cluster_id, quorum_epoch=facts.quorum_epoch, voter=_key(voter), address=voter.address
        )
    ]


def _fetch_snapshot(rng: random.Random, facts: Facts, _target: Voter) -> list[Message]:
    end_offset, epoch = facts.snapshot
    return [
        quorum_pb2.FetchSnapshotRequest(
            cluster_id=facts.cluster_id,
            quorum_epoch=facts.quorum_epoch,
            replica=_observer(rng),
            snapshot=quorum_pb2.SnapshotId(end_offset=end_offset, epoch=epoch),
            max_bytes=100_000,
        )
    ]


def _register(_rng: random.Random, facts: Facts, _target: Voter) -> list[Message]:
    stranger = facts.stranger
    return [
        controller_pb2.RegisterBrokerRequest(
            cluster_id=facts.cluster_id,
            broker_id=stranger.broker_id,
            incarnation_id=stranger.incarnation_id,
            host="127.0.0.1",
            port=1,
            log_directory_ids=[stranger.directory_id],
            feature_level=controller_pb2.FeatureRange(min_level=1, max_level=100),
            clean_stop_epoch=stranger.broker_epoch,
        )
    ]


def _heartbeat(rng: random.Random, facts: Facts, _target: Voter) -> list[Message]:
    stranger = facts.stranger
    return [
        controller_pb2.HeartbeatRequest(
            cluster_id=facts.cluster_id,
            broker_id=stranger.broker_id,
            broker_epoch=stranger.broker_epoch,
            metadata_offset=facts.high_watermark,
            want_fence=rng.random() < 0.8,
        )
        for _ in range(rng.randint(1, 3))
    ]


def _allocate(rng: random.Random, facts: Facts, _target: Voter) -> list[Message]:
    broker = rng.choice(facts.brokers)
    return [
        controller_pb2.AllocateProducerIdsRequest(
            cluster_id=facts.cluster_id, broker_id=broker.broker_id, broker_epoch=broker.broker_epoch
        )
    ]


def _alter_partition(rng: random.Random, facts: Facts, _target: Voter) -> list[Message]:
    chosen = rng.choice(facts.partitions)
    leader = facts.broker(chosen.leader_id)
    proposals = [
        controller_pb2.IsrProposal(
            topic_id=each.topic_id,
            partition=each.partition,
            leader_epoch=each.leader_epoch,
            partition_epoch=each.partition_epoch,
            isr=[
                controller_pb2.IsrMember(node_id=broker.broker_id, broker_epoch=broker.broker_epoch)
                for broker in facts.brokers
            ],
        )
        for each in facts.partitions
        if each.leader_id == leader.broker_id
    ]
    return [
        controller_pb2.AlterPartitionRequest(
            cluster_id=facts.cluster_id,
            broker_id=leader.broker_id,
            broker_epoch=leader.broker_epoch,
            proposals=proposals,
        )
    ]


def _resign(rng: random.Random, facts: Facts, _target: Voter) -> list[Message]:
    chosen = rng.choice(facts.partitions)
    leader = facts.broker(chosen.leader_id)
    led = controller_pb2.LedPartition(
        topic_id=chosen.topic_id,
        partition=chosen.partition,
        leader_epoch=chosen.leader_epoch,
        allow_eligible=rng.random() < 0.5,
        needs_room=rng.random() < 0.5,
    )
    return [
        controller_pb2.ResignLeadershipRequest(
            cluster_id=facts.cluster_id,
            broker_id=leader.broker_id,
            broker_epoch=leader.broker_epoch,
            partitions=[led],
        )
    ]


def _replicate(rng: random.Random, facts: Facts, target: Voter) -> list[Message]:
    pb = replication_pb2
    stranger = facts.stranger
    opening = pb.ReplicateOpen(
        cluster_id=facts.cluster_id,
        follower_id=stranger.broker_id,
        broker_epoch=stranger.broker_epoch,
        incarnation_id=stranger.incarnation_id,
        leader_id=target.node_id,
        credit=pb.ReplicaCredit(in_sync_bytes=100_000, catch_up_bytes=100_000),
    )
    wanted = [
        pb.ReplicaSubscription(
            route=route,
            topic_id=each.topic_id,
            partition=each.partition,
            session=rng.randint(1, 5),
            leader_epoch=each.leader_epoch,
            log_end_offset=each.end_offset,
            flushed_offset=each.end_offset,
            last_epoch=max(0, each.leader_epoch),
        )
        for route, each in enumerate(facts.partitions)
    ]
    acks = [
        pb.ReplicaAck(route=route, appended_offset=each.end_offset, flushed_offset=each.end_offset)
        for route, each in enumerate(facts.partitions)
    ]
    rest = [
        pb.ReplicateRequest(acks=pb.ReplicaAcks(acks=acks)),
        pb.ReplicateRequest(credit=pb.ReplicaCredit(in_sync_bytes=1_000, catch_up_bytes=1_000)),
        pb.ReplicateRequest(heartbeat=pb.ReplicaHeartbeat()),
        pb.ReplicateRequest(unsubscriptions=pb.ReplicaUnsubscriptions(routes=list(range(len(wanted))))),
    ]
    subscriptions = pb.ReplicateRequest(subscriptions=pb.ReplicaSubscriptions(subscriptions=wanted))
    return [pb.ReplicateRequest(open=opening), subscriptions, *rng.sample(rest, rng.randint(0, 4))]


def _fetch_range(rng: random.Random, facts: Facts, target: Voter) -> list[Message]:
    chosen = rng.choice(facts.partitions)
    replica = rng.choice([broker for broker in facts.brokers if broker.broker_id != target.node_id])
    wanted = replication_pb2.FetchRangeRequest(
        cluster_id=facts.cluster_id,
        broker_id=target.node_id,
        topic_id=chosen.topic_id,
        partition=chosen.partition,
        base_offset=0,
        end_offset=chosen.end_offset,
        replica_id=replica.broker_id,
        broker_epoch=replica.broker_epoch,
        incarnation_id=replica.incarnation_id,
    )
    return [replication_pb2.ReplicateRequest(fetch_range=wanted)]


MAKERS: Final[dict[str, Maker]] = {
    "lograft.internal.v1.QuorumService.Probe": _probe,
    "lograft.internal.v1.QuorumService.Vote": _vote,
    "lograft.internal.v1.QuorumService.BeginQuorumEpoch": _begin,
    "lograft.internal.v1.QuorumService.EndQuorumEpoch": _end,
    "lograft.internal.v1.QuorumService.FetchQuorum": _fetch_quorum,
    "lograft.internal.v1.QuorumService.FollowQuorum": _follow_quorum,
    "lograft.internal.v1.QuorumService.UpdateVoter": _update_voter,
    "lograft.internal.v1.QuorumService.FetchSnapshot": _fetch_snapshot,
    "lograft.internal.v1.ControllerService.RegisterBroker": _register,
    "lograft.internal.v1.ControllerService.Heartbeat": _heartbeat,
    "lograft.internal.v1.ControllerService.AllocateProducerIds": _allocate,
    "lograft.internal.v1.ControllerService.AlterPartition": _alter_partition,
    "lograft.internal.v1.ControllerService.ResignLeadership": _resign,
    "lograft.internal.v1.ReplicationService.Replicate": _replicate,
    "lograft.internal.v1.ReplicationService.FetchRange": _fetch_range,
}
"""A maker for each method; the fuzzer fails when the protocol has one that is not here."""


# Mutations.


def mutate(rng: random.Random, message: Message) -> None:
    """Change one to three fields, however deep, to what no correct peer sends or what is just beside it."""
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        owner, field = rng.choice(_fields(message))
        _set(rng, owner, field)


def _fields(message: Message) -> list[tuple[Any, FieldDescriptor]]:
    found: list[tuple[Any, FieldDescriptor]] = []
    descriptor: Any = message.DESCRIPTOR
    for field in descriptor.fields:
        found.append((message, field))
        if field.type == FieldDescriptor.TYPE_MESSAGE:
            value: Any = getattr(message, field.name)
            parts: list[Message] = list(value) if field.is_repeated else [value] if message.HasField(field.name) else []
            for part in parts[:5]:
                found += _fields(part)
    return found


def _set(rng: random.Random, owner: Any, field: FieldDescriptor) -> None:
    name = field.name
    if field.is_repeated:
        _set_list(rng, getattr(owner, name), field)
    elif field.type == FieldDescriptor.TYPE_MESSAGE:
        if owner.HasField(name) and rng.random() < 0.7:
            owner.ClearField(name)
        else:
            getattr(owner, name).SetInParent()
    else:
        setattr(owner, name, _odd(rng, field, getattr(owner, name)))


def _set_list(rng: random.Random, values: Any, field: FieldDescriptor) -> None:
    kind = rng.randrange(4)
    if kind == 0:
        del values[:]
    elif kind == 1:
        values.extend(list(values))
    elif field.type == FieldDescriptor.TYPE_MESSAGE:
        first = values[0] if values else None
        for _ in range(MANY if kind == 2 else 1):
            part = values.add()
            if first is not None:
                part.CopyFrom(first)
    else:
        present = values[0] if values else None
        values.extend([_odd(rng, field, present) for _ in range(MANY if kind == 2 and _is_number(field) else 1)])


def _is_number(field: FieldDescriptor) -> bool:
    return field.type in RANGES or field.type == FieldDescriptor.TYPE_BOOL


def _odd(rng: random.Random, field: FieldDescriptor, present: Any) -> Any:
    if field.type == FieldDescriptor.TYPE_BOOL:
        return not present
    if field.type == FieldDescriptor.TYPE_STRING:
        here = present or ""
        return rng.choice(["", "x" * HUGE, odd_name(rng), here + "\0", here[:-1], "127.0.0.1:0", "[::1", ":" * 9])
    if field.type == FieldDescriptor.TYPE_BYTES:
        here = present or b""
        return rng.choice([b"", here[:-1], here + b"x", rng.randbytes(ID_BYTES), bytes(ID_BYTES), bytes(HUGE)])
    numbers = RANGES[field.type]
    near = [(present or 0) + step for step in (-1, 1)]
    chosen = rng.choice(near) if rng.random() < 0.3 else rng.choice(EXTREMES_64)
    return chosen if chosen in numbers else rng.choice([numbers[0], numbers[-1]])


def out_of_range(rng: random.Random, data: bytes) -> bytes:
    """Add a number of 64 bits, all ones, as a field that may be narrower, or of another kind: the last one counts."""
    number = rng.randrange(1, 16)
    return data + bytes([number << 3]) + b"\xff" * 9 + b"\x01"


# What is kept out.


def tame(message: Message, facts: Facts, *, may_disturb: bool) -> None:
    """Take back what no server can know to be false; with `may_disturb` only what could lose records.

    Args:
        message: a request, changed in place.
        facts: what the cluster is.
        may_disturb: let elections and other addresses be.
    """
    match message:
        case quorum_pb2.FetchQuorumRequest():
            _tame_fetch(message, facts)
        case quorum_pb2.FollowQuorumRequest():
            _tame_fetch(message.fetch, facts)
        case _ if may_disturb:
            pass
        case quorum_pb2.VoteRequest():
            if _is_believed(message.quorum_epoch, facts):
                message.quorum_epoch = facts.quorum_epoch
        case quorum_pb2.BeginQuorumEpochRequest():
            if _is_believed(message.quorum_epoch, facts):
                message.quorum_epoch = facts.quorum_epoch
            if message.quorum_epoch == facts.quorum_epoch and message.leader_id == facts.leader_id:
                message.leader_address = facts.voter(facts.leader_id).address
        case quorum_pb2.EndQuorumEpochRequest():
            if _is_believed(message.quorum_epoch, facts):
                message.quorum_epoch = facts.quorum_epoch
            if message.leader_id == facts.leader_id:
                message.quorum_epoch = min(message.quorum_epoch, facts.quorum_epoch - 1)
        case quorum_pb2.UpdateVoterRequest():
            for voter in facts.voters:
                if message.voter == _key(voter):
                    message.address = voter.address
        case controller_pb2.RegisterBrokerRequest() | controller_pb2.HeartbeatRequest():
            if any(message.broker_id == broker.broker_id for broker in facts.brokers):
                message.broker_id = facts.stranger.broker_id
        case replication_pb2.ReplicateRequest():
            opens = message.HasField("open")
            if opens and any(message.open.follower_id == broker.broker_id for broker in facts.brokers):
                message.open.follower_id = facts.stranger.broker_id
        case _:
            pass


def _is_believed(epoch: int, facts: Facts) -> bool:
    return facts.quorum_epoch < epoch <= facts.quorum_epoch + BELIEVED_LEAP


def _tame_fetch(fetch: quorum_pb2.FetchQuorumRequest, facts: Facts) -> None:
    """A voter's word that it holds something makes it committed."""
    is_voter = any(fetch.replica == _key(voter) for voter in facts.voters)
    if is_voter and fetch.fetch_offset > facts.high_watermark:
        fetch.replica.directory_id = bytes(ID_BYTES)


def as_follower(messages: list[Message], facts: Facts, target: Voter) -> None:
    """Let the stream be one of a follower that has a process: it takes the place of the follower's own."""
    opening: Any = messages[0]
    broker = next(broker for broker in facts.brokers if broker.broker_id != target.node_id)
    opening.open.follower_id, opening.open.broker_epoch = broker.broker_id, broker.broker_epoch
    opening.open.incarnation_id = broker.incarnation_id
