# SPDX-License-Identifier: Apache-2.0
"""Forged messages with epochs that no election has reached, as a foreign process or a broken member may send them.

Owns these messages, and the check that no server believes them. *Requests* come from a process of their own, in the name of voters and
brokers: votes, fetches and other quorum messages, heartbeats, ISR proposals, streams of followers, ranges. *Answers* are those of real
voters to other servers, changed on their way out.

Laws
    Every request is refused, and the epochs in the answer are those that elections have reached.
    A subscription with a forged leader epoch is never accepted. One with a forged session may be, and never locks the real follower
    out.
Source: docs/quorum.md, "Which epochs are believed".
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from copy import deepcopy
from typing import TYPE_CHECKING, Any, Final, TypeVar

from lograft.aio import Admin
from lograft.errors import LograftError
from lograft.internal.v1 import controller_pb2, quorum_pb2
from lograft.internal.v1 import replication_pb2 as pb
from lograft.types import BrokerStatus

from brokerd.replication.peer_errors import PeerError
from brokerd.replication.repair import fetch_range
from integration_tests.simulation.clients import until_topic
from integration_tests.simulation.process import SimProcess
from integration_tests.simulation.servers import (
    CLUSTER_ID,
    REPLICATION_PORT,
    VOTER_PORT,
    BrokerMachine,
    VoterMachine,
)
from metaquorum.net.link import CallError
from metaquorum.net.methods import Method
from metaquorum.net.service import RefusalError
from metaquorum.process.settings import Address
from metaquorum.raft.messages import Response
from metaquorum.raft.types import MAX_EPOCH_LEAP, MAX_QUORUM_EPOCH, NO_EPOCH
from metaquorum.replica.quorum_transport import PeerFailureError, QuorumTransport
from metaquorum.testing.forgeries import absurd_epoch, forge
from metaquorum.testing.invariants import require
from metaquorum.testing.peer_client import ControllerCalls, PeerClient

if TYPE_CHECKING:
    from integration_tests.simulation.world import World

AnswerT = TypeVar("AnswerT")

LARGE_EPOCHS: Final = (2**31 - 1, 2**31, 2**32, 2**62, 2**63 - 2, 2**63 - 1)
"""Broker epochs that no registration has."""
ANSWER_S: Final = 2.0
"""Maximum seconds to wait for an answer. A server may be down, paused or isolated."""
WINDOW_BYTES: Final = 1024 * 1024
ANSWER_MS: Final = int(ANSWER_S * 1000)
AT_ONCE: Final = 4
"""Requests that are under way together, because some wait long."""
REACHED_EPOCH_MAX: Final = MAX_QUORUM_EPOCH - MAX_EPOCH_LEAP
"""An epoch above that of any run: no run has so many elections."""

ANSWERS: Final = (
    quorum_pb2.VoteResponse,
    quorum_pb2.BeginQuorumEpochResponse,
    quorum_pb2.EndQuorumEpochResponse,
    quorum_pb2.FetchQuorumResponse,
    quorum_pb2.UpdateVoterResponse,
)
"""Answers that name a quorum epoch."""


class AnswerForger:
    """Changes an answer of a voter to another server now and then, until the world is healed.

    Args:
        world: the world.
        every_ms: mean milliseconds between two changes.
    """

    def __init__(self, world: World, *, every_ms: int) -> None:
        self._world = world
        self._rng: random.Random = world.scheduler.rng("forged answers")
        self._every_ms = every_ms
        self._due_ms = self._next_ms()

    def _next_ms(self) -> int:
        return self._world.scheduler.now_ms + self._rng.randint(1, 2 * self._every_ms)

    def change(self, answer: Any, receiver: str) -> Any:
        """Return the answer that goes to a machine, changed or not."""
        world = self._world
        is_due = isinstance(answer, ANSWERS) and world.scheduler.now_ms >= self._due_ms
        if not is_due or receiver == "client" or world.is_healed:
            return answer
        self._due_ms = self._next_ms()
        changed: Any = deepcopy(answer)
        part = changed
        part.quorum_epoch = absurd_epoch(self._rng, NO_EPOCH)
        if self._rng.random() < 0.5:
            part.leader_id = self._rng.choice(world.voters).key.node_id
        if isinstance(part, quorum_pb2.VoteResponse):
            part.granted = self._rng.random() < 0.5
        world.counts["absurd epoch forged in an answer"] += 1
        return changed


class Forger:
    """Sends forged requests until the world is healed.

    Args:
        world: the world.
        process: process that sends them.
        every_ms: mean milliseconds between two requests.
    """

    def __init__(self, world: World, process: SimProcess, *, every_ms: int) -> None:
        self._world = world
        self._rng: random.Random = world.scheduler.rng(f"client/{process.name}")
        self._every_ms = every_ms

    async def run(self) -> None:
        """Send requests until the world is healed, a few at once."""
        await until_topic(self._world)
        await asyncio.gather(*(self._forge() for _ in range(AT_ONCE)))

    async def _forge(self) -> None:
        world, rng = self._world, self._rng
        kinds: list[Callable[[], Awaitable[None]]] = [
            self._ask_voter,
            self._ask_voter,
            self._ask_voter,
            self._beat,
            self._claim,
            self._propose,
        ]
        if len(world.brokers) > 1:
            kinds += (self._open, self._subscribe, self._take_place, self._fetch_range)
        while not world.is_healed:
            await asyncio.sleep(rng.uniform(0, 2 * AT_ONCE * self._every_ms) / 1000)
            await rng.choice(kinds)()

    def _count(self, what: str) -> None:
        self._world.counts[f"absurd epoch forged in {what}"] += 1

    # At voters.

    async def _ask_voter(self) -> None:
        rng = self._rng
        target = rng.choice(self._world.voters)
        others = [voter.key for voter in self._world.voters if voter is not target] or [target.key]
        request = forge(rng, target.key, others, cluster_id=CLUSTER_ID, epoch=absurd_epoch(rng, NO_EPOCH))
        self._count("a request of the quorum")
        outcome: asyncio.Future[Response | PeerFailureError] = asyncio.get_running_loop().create_future()
        async with PeerClient(CLUSTER_ID) as client:
            QuorumTransport(client.peers).send(
                self._voter_address(target), request, timeout_ms=ANSWER_MS, on_answer=outcome.set_result
            )
            answer = await outcome
        if isinstance(answer, PeerFailureError):
            return
        require(answer.refusal is not None, "a request of an absurd epoch is refused", (request, answer))
        require(answer.quorum_epoch <= REACHED_EPOCH_MAX, "no node learns an absurd epoch", (request, answer))

    async def _beat(self) -> None:
        broker = self._rng.choice(self._world.brokers)
        request = controller_pb2.HeartbeatRequest(
            cluster_id=CLUSTER_ID,
            broker_id=broker.key.node_id,
            broker_epoch=self._rng.choice(LARGE_EPOCHS),
            want_fence=self._rng.random() < 0.5,
            want_shutdown=self._rng.random() < 0.5,
        )
        self._count("a heartbeat")
        await self._beat_once(request)

    async def _beat_once(self, request: controller_pb2.HeartbeatRequest) -> None:
        answer = await self._asked(lambda controller: controller.heartbeat(request, timeout_ms=ANSWER_MS))
        require(answer is None, "a heartbeat of an absurd epoch or offset is refused", (request, answer))

    async def _claim(self) -> None:
        """Send a heartbeat for a right registration, with a metadata offset that no record has reached."""
        broker = await self._registered()
        if broker is None:
            return
        request = controller_pb2.HeartbeatRequest(
            cluster_id=CLUSTER_ID,
            broker_id=broker.broker_id,
            broker_epoch=broker.broker_epoch,
            metadata_offset=self._rng.choice(LARGE_EPOCHS),
        )
        self._world.counts["metadata offset forged in a heartbeat"] += 1
        await self._beat_once(request)

    async def _propose(self) -> None:
        """Send an ISR proposal for a right registration, with everything else wrong."""
        rng = self._rng
        broker = await self._registered()
        partitions = list(self._world.replicas())
        if broker is None or not partitions:
            return
        topic_id, partition = rng.choice(partitions)
        proposal = controller_pb2.IsrProposal(
            topic_id=topic_id,
            partition=partition,
            leader_epoch=absurd_epoch(rng, NO_EPOCH),
            partition_epoch=absurd_epoch(rng, NO_EPOCH),
            isr=[controller_pb2.IsrMember(node_id=broker.broker_id, broker_epoch=rng.choice(LARGE_EPOCHS))],
        )
        request = controller_pb2.AlterPartitionRequest(
            cluster_id=CLUSTER_ID,
            broker_id=broker.broker_id,
            broker_epoch=rng.choice((broker.broker_epoch, *LARGE_EPOCHS)),
            proposals=[proposal],
        )
        self._count("a proposal")
        answer = await self._asked(lambda controller: controller.alter_partition(request, timeout_ms=ANSWER_MS))
        is_taken = answer is not None and any(result.HasField("state") for result in answer.results)
        require(not is_taken, "a proposal of an absurd epoch is refused", (request, answer))

    async def _asked(self, ask: Callable[[ControllerCalls], Awaitable[AnswerT]]) -> AnswerT | None:
        """Send a request to any voter as the controller; None: refused, or no answer."""
        async with PeerClient(CLUSTER_ID) as client:
            try:
                return await ask(ControllerCalls(client, self._voter_address(self._rng.choice(self._world.voters))))
            except (CallError, RefusalError):
                return None

    @staticmethod
    def _voter_address(voter: VoterMachine) -> str:
        return f"{voter.name}:{VOTER_PORT}"

    # At brokers.

    async def _open(self) -> None:
        leader, follower = self._rng.sample(self._world.brokers, 2)
        opening = self._opening(leader, follower.key.node_id, self._rng.choice(LARGE_EPOCHS), self._rng.randbytes(16))
        self._count("an opening of a follower")
        said = [answer async for answer in self._stream(leader, opening, ())]
        require(not said, "a follower of an absurd broker epoch is refused", (opening, said))

    async def _subscribe(self) -> None:
        """Subscribe with a right registration, which anyone may read, to things that no metadata has."""
        rng, opening = self._rng, await self._true_opening()
        if opening is None:
            return
        wanted = [
            pb.ReplicaSubscription(
                route=route,
                topic_id=topic_id,
                partition=partition,
                session=rng.choice((1, 2**63 - 1)),
                leader_epoch=absurd_epoch(rng, NO_EPOCH),
                last_epoch=absurd_epoch(rng, NO_EPOCH),
            )
            for route, (topic_id, partition) in enumerate(self._world.replicas())
        ]
        self._count("subscriptions of a follower")
        async for answer in self._stream(*opening, [_subscriptions(wanted)]):
            is_ended = answer.WhichOneof("part") not in ("accepted", "batches")
            require(is_ended, "a subscription in an absurd epoch is refused", answer)

    async def _take_place(self) -> None:
        """Subscribe as a follower without data, in the present leader epochs and with the highest possible session."""
        opening = await self._true_opening()
        if opening is None:
            return
        wanted = [
            pb.ReplicaSubscription(
                route=route,
                topic_id=topic_id,
                partition=partition,
                session=2**63 - 1,
                leader_epoch=max((replica.leader_epoch for _, replica in replicas), default=0),
            )
            for route, ((topic_id, partition), replicas) in enumerate(self._world.replicas().items())
        ]
        async for answer in self._stream(*opening, [_subscriptions(wanted)]):
            if answer.HasField("accepted"):
                self._world.counts["session forged and accepted"] += 1

    async def _true_opening(self) -> tuple[BrokerMachine, bytes] | None:
        """Return a leader and a valid opening message of one of its followers; None if no broker answers."""
        follower = await self._registered()
        if follower is None:
            return None
        leader = self._rng.choice(
            [broker for broker in self._world.brokers if broker.key.node_id != follower.broker_id]
        )
        return leader, self._opening(leader, follower.broker_id, follower.broker_epoch, follower.incarnation_id)

    async def _fetch_range(self) -> None:
        partitions = list(self._world.replicas())
        source, replica = self._rng.sample(self._world.brokers, 2)
        if not partitions:
            return
        topic_id, partition = self._rng.choice(partitions)
        request = pb.FetchRangeRequest(
            cluster_id=CLUSTER_ID,
            broker_id=source.key.node_id,
            topic_id=topic_id,
            partition=partition,
            end_offset=2**63 - 1,
            replica_id=replica.key.node_id,
            broker_epoch=self._rng.choice(LARGE_EPOCHS),
            incarnation_id=self._rng.randbytes(16),
        )
        self._count("a request for a range")
        async with PeerClient(CLUSTER_ID) as client:
            try:
                answer = await fetch_range(client.peers, Address(host=source.name, port=REPLICATION_PORT), request)
            except PeerError:
                return
        require(False, "a replica of an absurd broker epoch gets no range", (request, answer))

    async def _registered(self) -> BrokerStatus | None:
        """Return a broker as the metadata has it; None if no broker answers."""
        try:
            async with Admin(self._world.bootstrap, request_timeout_ms=int(ANSWER_S * 1000)) as admin:
                return self._rng.choice(await admin.describe_brokers())
        except (LograftError, IndexError):
            return None

    @staticmethod
    def _opening(leader: BrokerMachine, follower_id: int, broker_epoch: int, incarnation_id: bytes) -> bytes:
        opening = pb.ReplicateOpen(
            cluster_id=CLUSTER_ID,
            follower_id=follower_id,
            broker_epoch=broker_epoch,
            incarnation_id=incarnation_id,
            leader_id=leader.key.node_id,
            credit=pb.ReplicaCredit(in_sync_bytes=100_000, catch_up_bytes=100_000),
        )
        return pb.ReplicateRequest(open=opening).SerializeToString()

    async def _stream(
        self, leader: BrokerMachine, opening: bytes, rest: Iterable[pb.ReplicateRequest]
    ) -> AsyncIterator[pb.ReplicateResponse]:
        """Open a stream, send the rest, and yield the answers within `ANSWER_S`; none if the stream was not opened."""
        address = f"{leader.name}:{REPLICATION_PORT}"
        async with PeerClient(CLUSTER_ID) as client:
            try:
                stream = await client.peers.open(
                    address, Method.REPLICATE, opening, window_bytes=WINDOW_BYTES, timeout_ms=ANSWER_MS
                )
                async with asyncio.timeout(ANSWER_S):
                    for message in rest:
                        await stream.write(message.SerializeToString())
                    stream.end()
                    while (data := await stream.read()) is not None:
                        answer = pb.ReplicateResponse.FromString(data)
                        if rest and answer.HasField("opened"):
                            continue
                        yield answer
            except (CallError, TimeoutError):
                return


def _subscriptions(wanted: list[pb.ReplicaSubscription]) -> pb.ReplicateRequest:
    return pb.ReplicateRequest(subscriptions=pb.ReplicaSubscriptions(subscriptions=wanted))
