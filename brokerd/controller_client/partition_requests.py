# SPDX-License-Identifier: Apache-2.0
"""What a broker asks of the controller for single partitions: in-sync replicas, other leaders, replicas that are offline.

    requests = PartitionRequests(calls, observer, cluster_id=..., node_id=1, broker_epoch=...)
    requests.propose(replica, proposal)      # the replica is told exactly once what became of it
    requests.resign(resignation)             # another replica is to lead
    requests.note_lost(topic_id, partition)  # told, and told again, until the metadata counts on the replica no more
    await requests.close()

One `RequestQueue` for each kind of request gathers what waits, has one call at most under way, and gives a call up after its time.
A `RequestKind` says what waits, how a request is built, and what an answer means for each item. The controller and the cores judge;
nothing here does.

| Kind | What waits | After an answer, or none |
|---|---|---|
| `_IsrProposals` | each proposal, in the order in which it was made | each item has one outcome; the core proposes again |
| `_Resignations` | the newest one of each partition | nothing; the core asks again if this broker still leads |
| `_OfflineReplicas` | what `offline_replicas.OfflineReplicas` finds due | sent again after a pause, until the metadata holds it |

Laws
    The requests of one kind do not overtake each other, for a partition or for the broker.
    A proposal has exactly one outcome. *Refused* is told only where the controller certainly did not carry it out; *unanswered* where
    it may have, or still may.
Source: docs/replication.md sections "Proposals", "Stepping down", "Full disks", "Lost replicas"; KIP-497.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

from google.protobuf.message import DecodeError
from lograft.internal.v1.controller_pb2 import (
    AlterPartitionRequest,
    AlterPartitionResponse,
    AlterPartitionResult,
    IsrMember,
    IsrProposal,
    LedPartition,
    PartitionState,
    ResignLeadershipRequest,
    ResignLeadershipResponse,
)
from lograft.wire.codes import ErrorCode

from brokerd.clock import monotonic_ms
from brokerd.controller_client.controller_calls import ControllerCalls
from brokerd.controller_client.offline_replicas import OfflineReplicas, ReplicaReport
from brokerd.failure import RefusedError
from brokerd.limits import (
    MAX_REQUEST_PARTITIONS,
    OFFLINE_RETRY_MAX_MS,
    OFFLINE_RETRY_MIN_MS,
    PARTITION_REQUEST_GATHER_MS,
    PARTITION_REQUEST_MS,
)
from brokerd.partition.effects import ProposeIsr
from brokerd.partition.events import Event
from brokerd.partition.leader_events import ProposalAccepted, ProposalRefused, ProposalUnanswered
from metaquorum.metadata.changes import MetadataChange
from metaquorum.metadata.loader import MetadataLoader
from metaquorum.metadata.state import PartitionImage
from metaquorum.net.methods import Method

UNKNOWN_OUTCOMES: Final = frozenset((ErrorCode.OUTCOME_UNKNOWN, ErrorCode.INTERNAL))
"""Answers to a whole call after which it may have been carried out, or may still be."""

logger = logging.getLogger(__name__)


class ProposingReplica(Protocol):
    """A replica that leads, as the way to the controller sees it; `str` names the partition."""

    topic_id: bytes
    partition: int

    def take_event(self, event: Event) -> None:
        """Learn what became of a proposal; one that is out of date is passed over."""
        ...


class ResignReason(Enum):
    """Why a leadership is given up; the value stands in logs."""

    CUT_OFF = "cut-off"
    """Too few followers reach the leader, and others live."""
    DAMAGE = "damage"
    """Its copy is damaged below the high watermark."""
    NO_ROOM = "no-room"
    """Its log directory has too little room for appends of clients."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resignation:
    """A leadership that is given up.

    Attributes:
        topic_id: id of the topic, 16 bytes.
        partition: partition, from 0.
        leader_epoch: leader epoch of the leadership.
        reason: why.
        allow_eligible: True: an eligible replica will do, because it has all that was acknowledged.
    """

    topic_id: bytes
    partition: int
    leader_epoch: int
    reason: ResignReason
    allow_eligible: bool


class Sender(NamedTuple):
    """Who asks: the registered process of a broker."""

    cluster_id: str
    broker_id: int
    broker_epoch: int


ItemT = TypeVar("ItemT")


class RequestKind(Protocol[ItemT]):
    """One kind of request. It holds what waits to be sent; its queue alone takes it."""

    @property
    def name(self) -> str:
        """What the items are, for the log."""
        ...

    @property
    def method(self) -> Method:
        """What is called."""
        ...

    @property
    def gather_ms(self) -> int:
        """Milliseconds that items are gathered before a call."""
        ...

    def due_ms(self) -> int | None:
        """Return when something is to be sent if nothing happens until then, in monotonic milliseconds; None: never."""
        ...

    def take(self, now_ms: int) -> list[ItemT]:
        """Take what is to be sent now, at most `MAX_REQUEST_PARTITIONS`."""
        ...

    def encode(self, sender: Sender, items: Sequence[ItemT]) -> bytes:
        """Make the request."""
        ...

    def answered(self, items: Sequence[ItemT], answer: bytes) -> None:
        """Take the response.

        Raises:
            DecodeError: it is none; nothing was told of any item.
        """
        ...

    def failed(self, items: Sequence[ItemT], code: ErrorCode | None) -> None:
        """Learn that there was no response; `code` None: what came was none."""
        ...


class RequestQueue(Generic[ItemT]):
    """Sends the items of one kind: gathered, at most one call under way, at most `PARTITION_REQUEST_MS` for a call.

    Args:
        kind: what waits, and what an answer means.
        calls: the way to the controller.
        sender: gives who asks; None while the broker is not registered.
    """

    def __init__(self, kind: RequestKind[ItemT], calls: ControllerCalls, sender: Callable[[], Sender | None]) -> None:
        self._kind = kind
        self._calls = calls
        self._sender = sender
        self._woken = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def wake(self) -> None:
        """Learn that something waits, or that what waits may have changed."""
        self._woken.set()
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name=self._kind.name)

    async def close(self) -> None:
        """Send nothing more; a call under way is given up. Nothing may wake the queue from here on. Idempotent."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        kind = self._kind
        try:
            while (due_ms := kind.due_ms()) is not None or self._woken.is_set():
                if due_ms is not None and not self._woken.is_set():
                    await self._wait_until(due_ms)
                if kind.gather_ms:
                    await asyncio.sleep(kind.gather_ms / 1000)
                self._woken.clear()
                items = kind.take(monotonic_ms())
                if items:
                    await self._send(items)
        finally:
            self._task = None

    async def _wait_until(self, due_ms: int) -> None:
        left_ms = due_ms - monotonic_ms()
        if left_ms <= 0:
            return
        try:
            async with asyncio.timeout(left_ms / 1000):
                await self._woken.wait()
        except TimeoutError:
            pass  # what waits is due, which is a reason to look as good as a change

    async def _send(self, items: list[ItemT]) -> None:
        kind, sender = self._kind, self._sender()
        if sender is None:
            kind.failed(items, ErrorCode.STALE_BROKER_EPOCH)
            return
        request = kind.encode(sender, items)
        try:
            answer = await self._calls.call(kind.method, request, timeout_ms=PARTITION_REQUEST_MS)
        except RefusedError as error:
            code, message = error.failure.code, error.failure.message
            logger.warning("%s not answered: count=%d code=%s: %s", kind.name, len(items), code.name, message)
            kind.failed(items, code)
            return
        try:
            kind.answered(items, answer)
        except DecodeError as error:
            # Carried out or not: nothing can be told from bytes that are no answer.
            logger.warning("%s not answered: count=%d: %s", kind.name, len(items), error)
            kind.failed(items, None)


class PartitionRequests:
    """See the module docstring. One event loop.

    Args:
        calls: the way to the controller.
        observer: the metadata.
        cluster_id: the cluster.
        node_id: this broker.
        broker_epoch: gives the epoch of its registration; None while there is none.
    """

    def __init__(
        self,
        calls: ControllerCalls,
        observer: MetadataLoader,
        *,
        cluster_id: str,
        node_id: int,
        broker_epoch: Callable[[], int | None],
    ) -> None:
        def sender() -> Sender | None:
            epoch = broker_epoch()
            return None if epoch is None else Sender(cluster_id, node_id, epoch)

        self._observer = observer
        self._stop_watching: Callable[[], None] | None = None
        self._is_closed = False
        self._proposals = _IsrProposals()
        self._proposal_queue = RequestQueue(self._proposals, calls, sender)
        self._resignations = _Resignations()
        self._resignation_queue = RequestQueue(self._resignations, calls, sender)
        self._offline = _OfflineReplicas(node_id, observer)
        self._offline_queue = RequestQueue(self._offline, calls, sender)

    def propose(self, replica: ProposingReplica, proposal: ProposeIsr) -> None:
        """Send a proposal; the replica is told exactly once what became of it, later."""
        if not self._is_closed:
            self._proposals.add(replica, proposal)
            self._proposal_queue.wake()

    def resign(self, resignation: Resignation) -> None:
        """Ask that another replica leads a partition. Whatever becomes of it, the metadata says who leads."""
        if not self._is_closed:
            self._resignations.add(resignation)
            self._resignation_queue.wake()

    def note_lost(self, topic_id: bytes, partition: int) -> None:
        """Learn that a replica is offline: its log does not work in this process any more."""
        if not self._is_closed:
            self._offline.replicas.add(topic_id, partition)
            self._look_at_offline()

    def note_found(self, topic_id: bytes, partition: int, directory_id: bytes) -> None:
        """Learn that the log of a replica lies in a directory that its partition awaits."""
        if not self._is_closed:
            self._offline.replicas.add_found(topic_id, partition, directory_id)
            self._look_at_offline()

    def note_removed(self, topic_id: bytes, partition: int) -> None:
        """Learn that a replica does not belong here any more."""
        self._offline.replicas.discard(topic_id, partition)

    async def close(self) -> None:
        """Send nothing more, and tell no outcome any more. Idempotent."""
        self._is_closed = True
        if self._stop_watching is not None:
            self._stop_watching()
            self._stop_watching = None
        for queue in (self._proposal_queue, self._resignation_queue, self._offline_queue):
            await queue.close()

    def _look_at_offline(self) -> None:
        if self._stop_watching is None:
            # Most brokers never have an offline replica, and need not look at each change.
            self._stop_watching = self._observer.on_change(self._on_change)
        self._offline_queue.wake()

    def _on_change(self, change: MetadataChange) -> None:
        self._offline.replicas.note_change(change.topic_ids)
        self._offline_queue.wake()


class _Proposal(NamedTuple):
    """A proposal of in-sync replicas that has no outcome yet."""

    replica: ProposingReplica
    proposal: ProposeIsr


class _IsrProposals:
    """Proposals of in-sync replicas; each has one outcome."""

    name = "proposals of in-sync replicas"
    method = Method.ALTER_PARTITION
    gather_ms = PARTITION_REQUEST_GATHER_MS

    def __init__(self) -> None:
        # One entry at most for each partition that this broker leads: a core has one proposal under way.
        self._waiting: deque[_Proposal] = deque()

    def add(self, replica: ProposingReplica, proposal: ProposeIsr) -> None:
        self._waiting.append(_Proposal(replica, proposal))

    def due_ms(self) -> int | None:
        return 0 if self._waiting else None

    def take(self, now_ms: int) -> list[_Proposal]:
        del now_ms
        return [self._waiting.popleft() for _ in range(min(len(self._waiting), MAX_REQUEST_PARTITIONS))]

    def encode(self, sender: Sender, items: Sequence[_Proposal]) -> bytes:
        proposals = (
            IsrProposal(
                topic_id=replica.topic_id,
                partition=replica.partition,
                leader_epoch=proposal.leader_epoch,
                partition_epoch=proposal.partition_epoch,
                isr=[IsrMember(node_id=each.node_id, broker_epoch=each.broker_epoch) for each in proposal.members],
            )
            for replica, proposal in items
        )
        return _alter_partition(sender, proposals)

    def answered(self, items: Sequence[_Proposal], answer: bytes) -> None:
        results = _by_partition(AlterPartitionResponse.FromString(answer).results)
        for replica, proposal in items:
            result = results.get((replica.topic_id, replica.partition))
            if result is not None and result.HasField("state"):
                state = _decode(result.partition, result.state)
                logger.info(
                    "in-sync replicas: partition=%s isr=%s partition_epoch=%d",
                    replica,
                    state.isr,
                    state.partition_epoch,
                )
                _tell(replica, ProposalAccepted(proposal=proposal.proposal, partition=state))
            elif result is not None and result.HasField("error"):
                code = _code(result.error.code)
                logger.info("in-sync replicas refused: partition=%s code=%s %s", replica, code, result.error.message)
                _tell(replica, ProposalRefused(proposal=proposal.proposal, code=code))
            else:
                logger.error("the controller left out the in-sync replicas of %s in its answer", replica)
                _tell(replica, ProposalUnanswered(proposal=proposal.proposal))

    def failed(self, items: Sequence[_Proposal], code: ErrorCode | None) -> None:
        for replica, proposal in items:
            if code is None or code in UNKNOWN_OUTCOMES:
                _tell(replica, ProposalUnanswered(proposal=proposal.proposal))
            else:
                _tell(replica, ProposalRefused(proposal=proposal.proposal, code=code))


class _Resignations:
    """Leaderships that are given up; nothing is repeated."""

    name = "resignations"
    method = Method.RESIGN_LEADERSHIP
    gather_ms = PARTITION_REQUEST_GATHER_MS

    def __init__(self) -> None:
        self._waiting: dict[tuple[bytes, int], Resignation] = {}

    def add(self, resignation: Resignation) -> None:
        self._waiting[resignation.topic_id, resignation.partition] = resignation

    def due_ms(self) -> int | None:
        return 0 if self._waiting else None

    def take(self, now_ms: int) -> list[Resignation]:
        del now_ms
        return [self._waiting.pop(key) for key in list(self._waiting)[:MAX_REQUEST_PARTITIONS]]

    def encode(self, sender: Sender, items: Sequence[Resignation]) -> bytes:
        return ResignLeadershipRequest(
            cluster_id=sender.cluster_id,
            broker_id=sender.broker_id,
            broker_epoch=sender.broker_epoch,
            partitions=[
                LedPartition(
                    topic_id=each.topic_id,
                    partition=each.partition,
                    leader_epoch=each.leader_epoch,
                    allow_eligible=each.allow_eligible,
                    needs_room=each.reason is ResignReason.NO_ROOM,
                )
                for each in items
            ],
        ).SerializeToString()

    def answered(self, items: Sequence[Resignation], answer: bytes) -> None:
        response = ResignLeadershipResponse.FromString(answer)
        reasons = {(each.topic_id, each.partition): each.reason.value for each in items}
        for result in response.results:
            name = f"{result.topic_id.hex()}-{result.partition}"
            reason = reasons.get((result.topic_id, result.partition))
            if result.HasField("state"):
                leader_id = _leader_id(result.state)
                logger.warning("leadership given up: partition=%s reason=%s leader_id=%s", name, reason, leader_id)
            else:
                logger.info("leadership kept: partition=%s reason=%s: %s", name, reason, result.error.message)

    def failed(self, items: Sequence[Resignation], code: ErrorCode | None) -> None:
        pass  # whoever still has a reason asks again


class _OfflineReplicas:
    """Replicas that are offline, or found; told again until the metadata holds it.

    Attributes:
        replicas: what is to be told, and when again. Its writers are this kind and `PartitionRequests`.
    """

    name = "offline and found replicas"
    method = Method.ALTER_PARTITION
    gather_ms = 0
    """They are noted together, and others wait for each of them."""

    def __init__(self, node_id: int, observer: MetadataLoader) -> None:
        self._observer = observer
        self.replicas = OfflineReplicas(
            node_id,
            most=MAX_REQUEST_PARTITIONS,
            retry_min_ms=OFFLINE_RETRY_MIN_MS,
            retry_max_ms=OFFLINE_RETRY_MAX_MS,
        )

    def due_ms(self) -> int | None:
        return self.replicas.deadline_ms()

    def take(self, now_ms: int) -> list[ReplicaReport]:
        return self.replicas.due(self._state, now_ms)

    def encode(self, sender: Sender, items: Sequence[ReplicaReport]) -> bytes:
        proposals = (
            IsrProposal(
                topic_id=each.topic_id,
                partition=each.partition,
                leader_epoch=each.leader_epoch,
                partition_epoch=each.partition_epoch,
                is_lost=each.found_directory_id is None,
                found_directory_id=each.found_directory_id,
            )
            for each in items
        )
        return _alter_partition(sender, proposals)

    def answered(self, items: Sequence[ReplicaReport], answer: bytes) -> None:
        results = _by_partition(AlterPartitionResponse.FromString(answer).results)
        for each in items:
            result = results.get((each.topic_id, each.partition))
            is_offline = each.found_directory_id is None
            if result is not None and result.HasField("state"):
                self.replicas.note_accepted(each, result.state.partition_epoch)
                logger.warning(
                    "%s: topic_id=%s partition=%d leader_id=%s isr=%s",
                    "offline replica taken out" if is_offline else "awaited replica found",
                    each.topic_id.hex(),
                    each.partition,
                    _leader_id(result.state),
                    list(result.state.isr),
                )
            elif result is not None:
                logger.info(
                    "%s: topic_id=%s partition=%d: %s",
                    "offline replica not taken out" if is_offline else "awaited replica not taken",
                    each.topic_id.hex(),
                    each.partition,
                    result.error.message,
                )

    def failed(self, items: Sequence[ReplicaReport], code: ErrorCode | None) -> None:
        pass  # again after the pause

    def _state(self, topic_id: bytes, partition: int) -> PartitionImage | None:
        topic = self._observer.image.topic_by_id(topic_id)
        return None if topic is None or partition >= len(topic.partitions) else topic.partitions[partition]


def _alter_partition(sender: Sender, proposals: Iterable[IsrProposal]) -> bytes:
    return AlterPartitionRequest(
        cluster_id=sender.cluster_id,
        broker_id=sender.broker_id,
        broker_epoch=sender.broker_epoch,
        proposals=proposals,
    ).SerializeToString()


def _by_partition(results: Iterable[AlterPartitionResult]) -> dict[tuple[bytes, int], AlterPartitionResult]:
    return {(result.topic_id, result.partition): result for result in results}


def _tell(replica: ProposingReplica, outcome: ProposalAccepted | ProposalRefused | ProposalUnanswered) -> None:
    try:
        replica.take_event(outcome)
    except Exception:
        # The fault of one replica: the others of the call are told theirs all the same.
        logger.exception("in-sync replicas of %s: the outcome of a proposal could not be taken", replica)


def _code(number: int) -> ErrorCode:
    try:
        return ErrorCode(number)
    except ValueError:
        return ErrorCode.UNSPECIFIED  # of a newer controller; a refusal all the same


def _leader_id(state: PartitionState) -> int | None:
    return state.leader_id if state.HasField("leader_id") else None


def _decode(partition: int, state: PartitionState) -> PartitionImage:
    return PartitionImage(
        partition=partition,
        replicas=tuple(state.replicas),
        isr=tuple(state.isr),
        leader_id=_leader_id(state),
        leader_epoch=state.leader_epoch,
        partition_epoch=state.partition_epoch,
        elr=tuple(state.elr),
        adding=tuple(state.adding),
        removing=tuple(state.removing),
    )
