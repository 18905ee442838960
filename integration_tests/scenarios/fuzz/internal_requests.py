# SPDX-License-Identifier: Apache-2.0
"""Valid messages between servers: a maker for every carrier method, which starts from the present state of a cluster.

    shape = CALLS[Method.VOTE]
    messages = shape.make(rng, facts, facts.voters[0])

`tame` removes two things from mutated messages: claims that only a real peer may make (that it holds uncommitted data), and most claims
on which a correct cluster has to act (an election, another address, a change by an operator).
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from google.protobuf.message import DecodeError, Message
from lograft.internal.v1 import (
    controller_pb2,
    forward_pb2,
    ingest_calls_pb2,
    pending_offsets_pb2,
    publication_pb2,
    quorum_pb2,
    replication_pb2,
)
from lograft.v1 import admin_pb2, ingest_pb2

from brokerd.ingests.sequences import (
    FIRST_PUBLISHING_PRODUCER_ID,
    FIRST_STAGING_PRODUCER_ID,
    staging_producer_id,
)
from integration_tests.scenarios.fuzz.admin_requests import admin_call, tame_admin
from integration_tests.scenarios.fuzz.cluster_facts import ID_BYTES, Facts, Voter
from integration_tests.scenarios.fuzz.forwarded_requests import forwarded_call, tame_forwarded
from metaquorum.controller_service.admin_operations import REQUEST_TYPES
from metaquorum.net.methods import Method

BELIEVED_LEAP: Final = 2**21
"""A node that is ahead of the known facts may believe an epoch that is up to this much above the known one."""

Maker = Callable[[random.Random, Facts, Voter], list[Message]]
"""Returns what a correct peer may send to a server: successive requests, or the messages of one stream."""


class Shape(NamedTuple):
    """How a method is called.

    Attributes:
        make: makes the messages.
        answer_type: message type of the response, or of each answer on the stream.
        is_stream: True for a stream.
    """

    make: Maker
    answer_type: type[Message]
    is_stream: bool = False


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


def _fetch_quorum(rng: random.Random, facts: Facts, _target: Voter) -> list[Message]:
    return [
        quorum_pb2.FetchQuorumRequest(
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
    ]


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
    return [
        replication_pb2.FetchRangeRequest(
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
    ]


def _peers(rng: random.Random, facts: Facts, target: Voter) -> publication_pb2.PublicationPeers:
    sender = rng.choice([broker for broker in facts.brokers if broker.broker_id != target.node_id])
    return publication_pb2.PublicationPeers(
        cluster_id=facts.cluster_id,
        broker_id=target.node_id,
        sender_id=sender.broker_id,
        broker_epoch=sender.broker_epoch,
        incarnation_id=sender.incarnation_id,
    )


def _staged_slices(rng: random.Random) -> list[publication_pb2.StagedSlice]:
    return [
        publication_pb2.StagedSlice(
            producer_id=FIRST_STAGING_PRODUCER_ID + number, records=1, first_offset=number, end_offset=number + 1
        )
        for number in range(rng.randint(1, 3))
    ]


def _publish_part(rng: random.Random, facts: Facts, target: Voter) -> list[Message]:
    """Ask for records that nobody has staged: nothing is published."""
    chosen, slices = rng.choice(facts.partitions), _staged_slices(rng)
    return [
        publication_pb2.PublishPartRequest(
            peers=_peers(rng, facts, target),
            topic_id=chosen.topic_id,
            partition=chosen.partition,
            producer_id=FIRST_PUBLISHING_PRODUCER_ID + rng.randrange(32),
            base_sequence=rng.randrange(100),
            records=len(slices),
            slices=slices,
            lost_records=rng.choice((0, 0, 3, 2**30)),
        )
    ]


def _check_staged(rng: random.Random, facts: Facts, target: Voter) -> list[Message]:
    chosen = rng.choice(facts.partitions)
    return [
        publication_pb2.CheckStagedRequest(
            peers=_peers(rng, facts, target),
            topic_id=chosen.topic_id,
            partition=chosen.partition,
            slices=_staged_slices(rng),
        )
    ]


def _find_live_attempts(rng: random.Random, facts: Facts, target: Voter) -> list[Message]:
    chosen, coordinator = rng.choice(facts.partitions), rng.randrange(32)
    return [
        ingest_calls_pb2.FindLiveAttemptsRequest(
            peers=_peers(rng, facts, target),
            coordinator_partition=coordinator,
            topic_id=chosen.topic_id,
            partition=chosen.partition,
            producer_ids=[staging_producer_id(coordinator, number) for number in range(rng.randint(0, 5))],
        )
    ]


def _decide_outcome(rng: random.Random, facts: Facts, target: Voter) -> list[Message]:
    return [
        ingest_calls_pb2.DecideOutcomeRequest(
            peers=_peers(rng, facts, target),
            ingest_id=f"fuzz-{rng.randrange(5)}",
            ingest_epoch=1,
            round=rng.randint(1, 3),
            offsets_digest=rng.randbytes(rng.choice((0, 1, 32, 4_096))),
        )
    ]


def _find_published(rng: random.Random, facts: Facts, target: Voter) -> list[Message]:
    wanted = rng.sample(facts.partitions, rng.randint(1, len(facts.partitions)))
    return [
        ingest_calls_pb2.FindPublishedRequest(
            peers=_peers(rng, facts, target),
            coordinator_partition=rng.randrange(32),
            partitions=[
                ingest_calls_pb2.PublishedIn(topic_id=each.topic_id, partition=each.partition) for each in wanted
            ],
        )
    ]


def _prepare_offsets(rng: random.Random, facts: Facts, _target: Voter) -> list[Message]:
    chosen = rng.sample(facts.partitions, rng.randint(1, len(facts.partitions)))
    offsets = [
        ingest_pb2.IngestOffset(topic_id=each.topic_id, partition=each.partition, offset=rng.randrange(100))
        for each in chosen
    ]
    return [
        pending_offsets_pb2.PrepareOffsetsRequest(
            ingest_id=f"fuzz-{rng.randrange(5)}",
            ingest_epoch=1,
            round=rng.randint(1, 3),
            offsets=ingest_pb2.IngestOffsets(group_id=f"fuzz-{rng.randrange(20)}", member_epoch=-1, offsets=offsets),
            offsets_digest=rng.randbytes(rng.choice((0, 1, 32, 4_096))),
        )
    ]


def _resolve_offsets(rng: random.Random, _facts: Facts, _target: Voter) -> list[Message]:
    return [
        pending_offsets_pb2.ResolveOffsetsRequest(
            group_id=f"fuzz-{rng.randrange(20)}",
            ingest_id=f"fuzz-{rng.randrange(5)}",
            ingest_epoch=1,
            round=rng.randint(1, 3),
            is_committed=rng.random() < 0.5,
            offsets_digest=rng.randbytes(rng.choice((0, 1, 32, 4_096))),
        )
    ]


def _admin(rng: random.Random, facts: Facts, _target: Voter) -> list[Message]:
    return [admin_call(rng, facts)]


def _forwarded(rng: random.Random, facts: Facts, _target: Voter) -> list[Message]:
    return [forwarded_call(rng, facts)]


def _export(rng: random.Random, facts: Facts, _target: Voter) -> list[Message]:
    return [admin_pb2.ExportMetadataRequest(cluster_id=rng.choice(["", facts.cluster_id]))]


CALLS: Final[dict[Method, Shape]] = {
    Method.PROBE: Shape(_probe, quorum_pb2.ProbeResponse),
    Method.VOTE: Shape(_vote, quorum_pb2.VoteResponse),
    Method.BEGIN_QUORUM_EPOCH: Shape(_begin, quorum_pb2.BeginQuorumEpochResponse),
    Method.END_QUORUM_EPOCH: Shape(_end, quorum_pb2.EndQuorumEpochResponse),
    Method.FETCH_QUORUM: Shape(_fetch_quorum, quorum_pb2.FetchQuorumResponse),
    Method.UPDATE_VOTER: Shape(_update_voter, quorum_pb2.UpdateVoterResponse),
    Method.FETCH_SNAPSHOT: Shape(_fetch_snapshot, quorum_pb2.FetchSnapshotResponse, is_stream=True),
    Method.REGISTER_BROKER: Shape(_register, controller_pb2.RegisterBrokerResponse),
    Method.HEARTBEAT: Shape(_heartbeat, controller_pb2.HeartbeatResponse),
    Method.ALLOCATE_PRODUCER_IDS: Shape(_allocate, controller_pb2.AllocateProducerIdsResponse),
    Method.ALTER_PARTITION: Shape(_alter_partition, controller_pb2.AlterPartitionResponse),
    Method.RESIGN_LEADERSHIP: Shape(_resign, controller_pb2.ResignLeadershipResponse),
    Method.REPLICATE: Shape(_replicate, replication_pb2.ReplicateResponse, is_stream=True),
    Method.FETCH_RANGE: Shape(_fetch_range, replication_pb2.FetchRangeResponse),
    Method.FORWARDED_CALL: Shape(_forwarded, forward_pb2.ForwardedAnswer),
    Method.PUBLISH_PART: Shape(_publish_part, publication_pb2.PublishPartResponse),
    Method.CHECK_STAGED: Shape(_check_staged, publication_pb2.CheckStagedResponse),
    Method.FIND_LIVE_ATTEMPTS: Shape(_find_live_attempts, ingest_calls_pb2.FindLiveAttemptsResponse),
    Method.DECIDE_OUTCOME: Shape(_decide_outcome, ingest_calls_pb2.DecideOutcomeResponse),
    Method.FIND_PUBLISHED: Shape(_find_published, ingest_calls_pb2.FindPublishedResponse),
    Method.PREPARE_OFFSETS: Shape(_prepare_offsets, pending_offsets_pb2.PrepareOffsetsResponse),
    Method.RESOLVE_OFFSETS: Shape(_resolve_offsets, pending_offsets_pb2.ResolveOffsetsResponse),
    Method.ADMIN: Shape(_admin, controller_pb2.AdminAnswer),
    Method.EXPORT_METADATA: Shape(_export, admin_pb2.ExportMetadataResponse, is_stream=True),
}
"""Shapes by method. The fuzzer fails if the carrier has a method that is missing here."""


# Removal of harmful claims.


def tame(message: Message, facts: Facts, *, may_disturb: bool) -> None:
    """Undo claims that no server can know to be false. With `may_disturb` undo only those that could lose records.

    Args:
        message: a request, which is changed in place.
        facts: the state of the cluster.
        may_disturb: keep elections and other addresses.
    """
    match message:
        case quorum_pb2.FetchQuorumRequest():
            _tame_fetch(message, facts)
        case controller_pb2.AdminCall():
            _tame_call(message, facts, may_disturb=may_disturb)
        case forward_pb2.ForwardedCall():
            tame_forwarded(message, facts)
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
    """Undo a voter's claim to hold uncommitted data, because the claim commits it."""
    is_voter = any(fetch.replica == _key(voter) for voter in facts.voters)
    if is_voter and fetch.fetch_offset > facts.high_watermark:
        fetch.replica.directory_id = bytes(ID_BYTES)


def _tame_call(call: controller_pb2.AdminCall, facts: Facts, *, may_disturb: bool) -> None:
    """Undo an operator's change, because the controller carries it out, whoever sends it."""
    request_type = REQUEST_TYPES.get(call.method)
    if request_type is None:
        return
    try:
        request = request_type.FromString(call.request)
    except DecodeError:
        return
    before = request.SerializeToString()
    tame_admin(request, facts, may_disturb=may_disturb)
    after = request.SerializeToString()
    if after != before:
        call.request = after


def as_follower(messages: list[Message], facts: Facts, target: Voter) -> None:
    """Make the stream one of a follower with a process. It replaces the follower's own stream."""
    opening: Any = messages[0]
    broker = next(broker for broker in facts.brokers if broker.broker_id != target.node_id)
    opening.open.follower_id, opening.open.broker_epoch = broker.broker_id, broker.broker_epoch
    opening.open.incarnation_id = broker.incarnation_id
