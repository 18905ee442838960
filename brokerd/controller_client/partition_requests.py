# SPDX-License-Identifier: Apache-2.0
"""Requests of a broker to the controller about single partitions: ISR proposals, resignations, offline replicas.

    requests = PartitionRequests(calls, observer, cluster_id=..., node_id=1, broker_epoch=...)
    requests.propose(replica, proposal)      # the replica hears its outcome exactly once
    requests.resign(resignation)             # asks that another replica leads
    requests.note_lost(topic_id, partition)  # reported until the metadata no longer counts on the replica
    await requests.close()

Each kind of request has one `RequestQueue`. It collects items into one call, has at most one call under way, and ends a call after its
time limit. A `RequestKind` holds the items, builds the request, and knows what an answer means for each item. The controller and the
cores decide; this module does not.

| Kind | Items that wait | After an answer, or none |
|---|---|---|
| `_IsrProposals` | every proposal, in the order in which it was made | each item has one outcome; the core proposes again |
| `_Resignations` | the newest one of each partition | nothing; the core asks again if this broker still leads |
| `_OfflineReplicas` | what `offline_replicas.OfflineReplicas` finds due | sent again after a pause, until the metadata has it |

Laws
    Requests of one kind do not overtake each other, for a partition or for the broker.
    A proposal has exactly one outcome. It is *refused* only if the controller certainly did not carry it out. It is *unanswered* if the
    controller may have carried it out, or still may.
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
"""Answers to a whole call that leave open whether it was carried out or still will be."""

logger = logging.getLogger(__name__)


class ProposingReplica(Protocol):
    """A leading replica that proposes in-sync replicas; `str` names the partition."""

    topic_id: bytes
    partition: int

    def take_event(self, event: Event) -> None:
        """Handle the outcome of a proposal. A replica ignores an outcome that is out of date."""
        ...


class ResignReason(Enum):
    """Why a leader resigns; logs show the value."""

    CUT_OFF = "cut-off"
    """The leader is isolated: too few followers reach it, and others live."""
    DAMAGE = "damage"
    """Its log is damaged below the high watermark."""
    NO_ROOM = "no-room"
    """Its log directory has too little space for appends of clients."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resignation:
    """A leadership that this broker wants to end.

    Attributes:
        topic_id: id of the topic, 16 bytes.
        partition: partition, from 0.
        leader_epoch: leader epoch of the leadership.
        reason: why.
        allow_eligible: True if an eligible replica may lead, because it has everything that was acknowledged.
    """

    topic_id: bytes
    partition: int
    leader_epoch: int
    reason: ResignReason
    allow_eligible: bool


class Sender(NamedTuple):
    """The registered broker process that sends the requests."""

    cluster_id: str
    broker_id: int
    broker_epoch: int


ItemT = TypeVar("ItemT")


class RequestKind(Protocol[ItemT]):
    """One kind of request. It holds the waiting items, which only its queue takes."""

    @property
    def name(self) -> str:
        """Name of the items, for log lines."""
        ...

    @property
    def method(self) -> Method:
        """The method of the controller."""
        ...

    @property
    def gather_ms(self) -> int:
        """Milliseconds for which items are collected before a call."""
        ...

    def due_ms(self) -> int | None:
        """Return when to send if nothing happens until then, in monotonic milliseconds; None: never."""
        ...

    def take(self, now_ms: int) -> list[ItemT]:
        """Take the items to send now, at most `MAX_REQUEST_PARTITIONS`."""
        ...

    def encode(self, sender: Sender, items: Sequence[ItemT]) -> bytes:
        """Return the serialized request."""
        ...

    def answered(self, items: Sequence[ItemT], answer: bytes) -> None:
        """Handle the response.

        Raises:
            DecodeError: the bytes are no response; no item has got an outcome.
        """
        ...

    def failed(self, items: Sequence[ItemT], code: ErrorCode | None) -> None:
        """Handle a call without a response. `code` None: the bytes were no response."""
        ...


class RequestQueue(Generic[ItemT]):
    """Sends the items of one kind, with at most one call under way and at most `PARTITION_REQUEST_MS` for a call.

    Args:
        kind: the items, and what an answer means.
        calls: calls to the controller.
        sender: returns the registered process; None while the broker is not registered.
    """

    def __init__(self, kind: RequestKind[ItemT], calls: ControllerCalls, sender: Callable[[], Sender | None]) -> None:
        self._kind = kind
        self._calls = calls
        self._sender = sender
        self._woken = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def wake(self) -> None:
        """Note that an item waits, or that the waiting items may have changed."""
        self._woken.set()
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name=self._kind.name)

    async def close(self) -> None:
        """Send nothing more and give up a call under way. `wake` must not be called after this. Idempotent."""
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
            pass  # an item is due: a reason to check just as good as a change

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
            # Bytes that are no response do not tell whether the request was carried out.
            logger.warning("%s not answered: count=%d: %s", kind.name, len(items), error)
            kind.failed(items, None)


class PartitionRequests:
    """Sends all requests of a broker about single partitions. Belongs to one event loop.

    Args:
        calls: calls to the controller.
        observer: the metadata.
        cluster_id: id of the cluster.
        node_id: id of this broker.
        broker_epoch: returns the epoch of the broker's registration; None before the first.
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
        """Send a proposal. The replica hears its outcome later, exactly once."""
        if not self._is_closed:
            self._proposals.add(replica, proposal)
            self._proposal_queue.wake()

    def resign(self, resignation: Resignation) -> None:
        """Ask that another replica leads a partition. There is no outcome: the metadata says who leads."""
        if not self._is_closed:
            self._resignations.add(resignation)
            self._resignation_queue.wake()

    def note_lost(self, topic_id: bytes, partition: int) -> None:
        """Note that a replica is offline: its log no longer works in this process."""
        if not self._is_closed:
            self._offline.replicas.add(topic_id, partition)
            self._look_at_offline()

    def note_found(self, topic_id: bytes, partition: int, directory_id: bytes) -> None:
        """Note that the log of a replica is in a directory that its partition awaits."""
        if not self._is_closed:
            self._offline.replicas.add_found(topic_id, partition, directory_id)
            self._look_at_offline()

    def note_removed(self, topic_id: bytes, partition: int) -> None:
        """Forget a replica that this broker no longer has."""
        self._offline.replicas.discard(topic_id, partition)

    async def close(self) -> None:
        """Send nothing more and report no outcome any more. Idempotent."""
        self._is_closed = True
        if self._stop_watching is not None:
            self._stop_watching()
            self._stop_watching = None
        for queue in (self._proposal_queue, self._resignation_queue, self._offline_queue):
            await queue.close()

    def _look_at_offline(self) -> None:
        if self._stop_watching is None:
            # Most brokers never have an offline replica. Without one there is nothing to check at a change.
            self._stop_watching = self._observer.on_change(self._on_change)
        self._offline_queue.wake()

    def _on_change(self, change: MetadataChange) -> None:
        self._offline.replicas.note_change(change.topic_ids)
        self._offline_queue.wake()


class _Proposal(NamedTuple):
    """A proposal of in-sync replicas without an outcome yet."""

    replica: ProposingReplica
    proposal: ProposeIsr


class _IsrProposals:
    """Proposals of in-sync replicas; each gets exactly one outcome."""

    name = "proposals of in-sync replicas"
    method = Method.ALTER_PARTITION
    gather_ms = PARTITION_REQUEST_GATHER_MS

    def __init__(self) -> None:
        # At most one entry for each partition that this broker leads, because a core has one proposal under way.
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
    """Resignations. None is repeated by itself."""

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
        pass  # the core asks again if it still has a reason


class _OfflineReplicas:
    """Offline and found replicas. They are reported until the metadata shows it.

    Attributes:
        replicas: what to report, and when again. Its writers are this class and `PartitionRequests`.
    """

    name = "offline and found replicas"
    method = Method.ALTER_PARTITION
    gather_ms = 0
    """0: offline replicas are noted together, and other brokers wait for each report."""

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
        pass  # reported again after the pause

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
        # A fault of one replica must not keep the other replicas of the call from their outcomes.
        logger.exception("in-sync replicas of %s: the outcome of a proposal could not be taken", replica)


def _code(number: int) -> ErrorCode:
    try:
        return ErrorCode(number)
    except ValueError:
        return ErrorCode.UNSPECIFIED  # a code of a newer controller; it is a refusal all the same


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
