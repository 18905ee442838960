# SPDX-License-Identifier: Apache-2.0
"""What brokers ask the coordinators of ingests, wherever these are: both ends of the hop.

    calls = IngestCalls(local, peer_calls)        # at the broker that asks
    await calls.live_attempts(topic_id, 3, producer_ids)

    service = IngestCallService(table)            # at every broker; refuses until it is attached
    service.attach(local)

`LocalIngests` is this broker as a coordinator: for the service, and for questions in the same process. Producer ids name coordinators.
Source: `docs/ingest.md` section "Shell".
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from lograft.internal.v1 import ingest_calls_pb2 as pb
from lograft.internal.v1 import publication_pb2
from lograft.wire.codes import ErrorCode

from brokerd.coordinator.internal_topics import INGESTS
from brokerd.failure import Failure, RefusedError, refused
from brokerd.ingests.answers import LiveSequences, Outcome, OutcomeKnown, Refused, Watermark
from brokerd.ingests.commands import DecideOutcome, LiveAttempts, PublishedUpTo
from brokerd.ingests.coordinators import REPEAT_MS, IngestCoordinators
from brokerd.ingests.limits import LIVE_PRODUCERS_MAX, QUESTION_MS, QUESTIONS_MAX
from brokerd.ingests.records import TopicPartition
from brokerd.ingests.sequences import FIRST_PUBLISHING_PRODUCER_ID, staging_partition
from brokerd.publishing.peer_calls import PeerCalls, check_peers, refusal_of
from metaquorum.metadata.loader import MetadataLoader
from metaquorum.net.link import ServedCall
from metaquorum.net.methods import Method
from metaquorum.net.service import ServiceTable

NOTHING = -1
"""In answers: nothing is needed; every decision is complete."""

OutcomeT = TypeVar("OutcomeT")
ItemT = TypeVar("ItemT")


class PublishedPlace(NamedTuple):
    """A partition with published records, and the producer id of their batches."""

    producer_id: int
    topic_id: bytes
    partition: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalIngests:
    """This broker as the coordinator of ingests.

    Attributes:
        cluster_id: cluster id.
        node_id: node id.
        observer: the metadata.
        coordinators: its coordinators.
    """

    cluster_id: str
    node_id: int
    observer: MetadataLoader
    coordinators: IngestCoordinators

    async def live_attempts(
        self, coordinator: int, where: TopicPartition, producer_ids: Sequence[int], *, timeout_ms: int
    ) -> tuple[int | None, ...]:
        """Return from which sequence on staged records may be needed; None: nothing is.

        A coordinator that was deposed may answer: what it knows not to count never will.

        Raises:
            RefusedError: as `IngestCoordinators.submit_to`; what the core refuses.
        """
        command = LiveAttempts(topic_partition=where, producer_ids=tuple(producer_ids))
        return (await self._ask(coordinator, command, LiveSequences, timeout_ms)).sequences

    async def decide_outcome(self, command: DecideOutcome, *, timeout_ms: int) -> bool:
        """Return True if the offsets of a group count; what is undecided is aborted by that. Raises as `live_attempts`."""
        outcome = await self.coordinators.submit(command.ingest_id, command, timeout_ms=timeout_ms)
        return _expect(outcome, OutcomeKnown).is_committed

    async def published_up_to(self, coordinator: int, where: TopicPartition, *, timeout_ms: int) -> Watermark:
        """Return the publishing sequence below which every decision is complete. Raises as `live_attempts`.

        A coordinator that was deposed may answer: it does not know of later decisions, and `end_sequence` says so.
        """
        return await self._ask(coordinator, PublishedUpTo(topic_partition=where), Watermark, timeout_ms)

    async def _ask(
        self, coordinator: int, command: LiveAttempts | PublishedUpTo, kind: type[OutcomeT], timeout_ms: int
    ) -> OutcomeT:
        if not 0 <= coordinator < INGESTS.partition_count:
            raise refused(ErrorCode.INVALID_REQUEST, f"{coordinator} is no partition of {INGESTS.name}")
        return _expect(await self.coordinators.submit_to(coordinator, command, timeout_ms=timeout_ms), kind)


def _expect(outcome: Outcome, kind: type[OutcomeT]) -> OutcomeT:
    """Return the outcome of a kind, or raise what the core has refused."""
    if isinstance(outcome, Refused):
        code = ErrorCode.from_reason(outcome.code.value)
        raise refused(code, outcome.message, retry_after_ms=outcome.retry_after_ms)
    assert isinstance(outcome, kind), f"unexpected outcome {type(outcome).__name__}"
    return outcome


# The broker that asks.


class IngestCalls:
    """Asks coordinators; this broker is asked directly where it coordinates.

    Args:
        local: this broker.
        calls: calls to other brokers.
    """

    def __init__(self, local: LocalIngests, calls: PeerCalls) -> None:
        self._local = local
        self._calls = calls

    async def live_attempts(
        self, topic_id: bytes, partition: int, producer_ids: Sequence[int]
    ) -> Mapping[int, int | None]:
        """Answer the sweep of a staging partition: see `brokerd.publishing.sweep.LiveAttempts`."""
        found: dict[int, int | None] = {}
        by_coordinator: dict[int, list[int]] = {}
        for producer_id in producer_ids:
            coordinator = staging_partition(producer_id)
            if coordinator < INGESTS.partition_count:
                by_coordinator.setdefault(coordinator, []).append(producer_id)
            else:
                # Nobody gave it, and nobody will.
                found[producer_id] = None
        questions = [
            (coordinator, ids[at : at + LIVE_PRODUCERS_MAX])
            for coordinator, ids in sorted(by_coordinator.items())
            for at in range(0, len(ids), LIVE_PRODUCERS_MAX)
        ]
        where = TopicPartition(topic_id, partition)

        async def ask(question: tuple[int, list[int]]) -> None:
            coordinator, ids = question
            try:
                found.update(zip(ids, await self._live_at(coordinator, where, ids), strict=True))
            except RefusedError:
                # Nobody answers for them, so they may be needed. The next sweep asks again.
                return

        await _some_at_a_time(questions, ask)
        return found

    async def _live_at(
        self, coordinator: int, where: TopicPartition, producer_ids: Sequence[int]
    ) -> Sequence[int | None]:
        node_id = self._leader(coordinator)
        if node_id == self._local.node_id:
            return await self._local.live_attempts(coordinator, where, producer_ids, timeout_ms=QUESTION_MS)
        request = pb.FindLiveAttemptsRequest(
            peers=self._calls.names(node_id),
            coordinator_partition=coordinator,
            topic_id=where.topic_id,
            partition=where.partition,
            producer_ids=producer_ids,
        )
        answer = await self._calls.ask(
            node_id, Method.FIND_LIVE_ATTEMPTS, request, pb.FindLiveAttemptsResponse, timeout_ms=QUESTION_MS
        )
        return _sequences(answer.needed_from, len(producer_ids), node_id)

    async def decide_outcome(
        self,
        ingest_id: str,
        *,
        ingest_epoch: int,
        round_number: int,
        offsets_digest: bytes,
        timeout_ms: int = QUESTION_MS,
    ) -> bool:
        """Ask what becomes of offsets that a group has prepared; True: they count. An undecided round is aborted by that.

        Raises:
            RefusedError: as `IngestCoordinators.submit`; LEADER_NOT_AVAILABLE, TIMED_OUT. The question may be repeated.
        """
        command = DecideOutcome(
            ingest_id=ingest_id, ingest_epoch=ingest_epoch, round=round_number, offsets_digest=offsets_digest
        )
        place = self._local.coordinators.leader_place(INGESTS.partition_of(ingest_id))
        if place is None or place.leader_id == self._local.node_id:
            return await self._local.decide_outcome(command, timeout_ms=timeout_ms)
        request = pb.DecideOutcomeRequest(
            peers=self._calls.names(place.leader_id),
            ingest_id=ingest_id,
            ingest_epoch=ingest_epoch,
            round=round_number,
            offsets_digest=offsets_digest,
        )
        answer = await self._calls.ask(
            place.leader_id, Method.DECIDE_OUTCOME, request, pb.DecideOutcomeResponse, timeout_ms=timeout_ms
        )
        return answer.is_committed

    async def published_up_to(
        self, places: Sequence[PublishedPlace], *, timeout_ms: int = QUESTION_MS
    ) -> list[Watermark | Failure]:
        """Return for each partition the publishing sequence below which every decision is complete, or a failure."""
        found: dict[int, Watermark | Failure] = {}
        by_coordinator: dict[int, list[int]] = {}
        image = self._local.observer.image
        for index, place in enumerate(places):
            coordinator = place.producer_id - FIRST_PUBLISHING_PRODUCER_ID
            if not 0 <= coordinator < INGESTS.partition_count:
                message = f"{place.producer_id} is no publishing producer id"
                found[index] = Failure(code=ErrorCode.INVALID_REQUEST, message=message)
            elif image.topic_by_id(place.topic_id) is None and place.topic_id in image.deleted_topics.ids():
                # Its coordinator may have forgotten what it has decided for it.
                message = f"topic {place.topic_id.hex()} was deleted"
                found[index] = Failure(code=ErrorCode.UNKNOWN_TOPIC, message=message)
            else:
                by_coordinator.setdefault(coordinator, []).append(index)

        async def ask(question: tuple[int, list[int]]) -> None:
            coordinator, indexes = question
            wanted = [TopicPartition(places[each].topic_id, places[each].partition) for each in indexes]
            try:
                answers: Sequence[Watermark | Failure] = await self._published_at(coordinator, wanted, timeout_ms)
            except RefusedError as error:
                answers = [error.failure] * len(indexes)
            found.update(zip(indexes, answers, strict=True))

        await _some_at_a_time(sorted(by_coordinator.items()), ask)
        return [found[index] for index in range(len(places))]

    async def _published_at(
        self, coordinator: int, wanted: Sequence[TopicPartition], timeout_ms: int
    ) -> Sequence[Watermark]:
        node_id = self._leader(coordinator)
        if node_id == self._local.node_id:
            return await _published_here(self._local, coordinator, wanted, timeout_ms)
        request = pb.FindPublishedRequest(
            peers=self._calls.names(node_id),
            coordinator_partition=coordinator,
            partitions=[pb.PublishedIn(topic_id=each.topic_id, partition=each.partition) for each in wanted],
        )
        answer = await self._calls.ask(
            node_id, Method.FIND_PUBLISHED, request, pb.FindPublishedResponse, timeout_ms=timeout_ms
        )
        sequences = _sequences(answer.sequences, len(wanted), node_id)
        ends = answer.end_sequences
        if len(ends) != len(wanted):
            raise refused(ErrorCode.INTERNAL, f"broker {node_id} gave {len(ends)} answers to {len(wanted)} questions")
        return [Watermark(sequence=sequence, end_sequence=end) for sequence, end in zip(sequences, ends, strict=True)]

    def _leader(self, coordinator: int) -> int:
        place = self._local.coordinators.leader_place(coordinator)
        if place is None:
            message = f"partition {coordinator} of {INGESTS.name} has no leader at the moment"
            raise refused(ErrorCode.COORDINATOR_LOADING, message, retry_after_ms=REPEAT_MS)
        return place.leader_id


def _sequences(numbers: Sequence[int], count: int, node_id: int) -> list[int | None]:
    if len(numbers) != count:
        raise refused(ErrorCode.INTERNAL, f"broker {node_id} gave {len(numbers)} answers to {count} questions")
    return [None if each == NOTHING else each for each in numbers]


async def _some_at_a_time(items: Iterable[ItemT], work: Callable[[ItemT], Awaitable[None]]) -> None:
    """Work on items, at most `QUESTIONS_MAX` at a time. The work raises nothing."""
    waiting = iter(items)

    async def work_on() -> None:
        for each in waiting:
            await work(each)

    async with asyncio.TaskGroup() as group:
        for _ in range(QUESTIONS_MAX):
            group.create_task(work_on())


async def _published_here(
    local: LocalIngests, coordinator: int, wanted: Sequence[TopicPartition], timeout_ms: int
) -> list[Watermark]:
    """Ask one after another: a coordinator answers without a wait, unless something is being written."""
    return [await local.published_up_to(coordinator, each, timeout_ms=timeout_ms) for each in wanted]


# The coordinator.


class IngestCallService:
    """Answers other brokers. Refuses before `attach` and after `close`.

    Args:
        table: the table of carrier methods to which it adds itself.
    """

    def __init__(self, table: ServiceTable) -> None:
        self._local: LocalIngests | None = None
        table.add_waiting(Method.FIND_LIVE_ATTEMPTS, pb.FindLiveAttemptsRequest, self._live_attempts)
        table.add_waiting(Method.DECIDE_OUTCOME, pb.DecideOutcomeRequest, self._decide_outcome)
        table.add_waiting(Method.FIND_PUBLISHED, pb.FindPublishedRequest, self._published)

    def attach(self, local: LocalIngests) -> None:
        """Answer requests from now on."""
        self._local = local

    def close(self) -> None:
        """Refuse every request from now on. Idempotent."""
        self._local = None

    async def _live_attempts(
        self, request: pb.FindLiveAttemptsRequest, call: ServedCall
    ) -> pb.FindLiveAttemptsResponse:
        try:
            found = await self._checked(request.peers).live_attempts(
                request.coordinator_partition,
                TopicPartition(request.topic_id, request.partition),
                request.producer_ids,
                timeout_ms=call.timeout_ms,
            )
        except RefusedError as error:
            raise refusal_of(error) from error
        return pb.FindLiveAttemptsResponse(needed_from=[NOTHING if each is None else each for each in found])

    async def _decide_outcome(self, request: pb.DecideOutcomeRequest, call: ServedCall) -> pb.DecideOutcomeResponse:
        command = DecideOutcome(
            ingest_id=request.ingest_id,
            ingest_epoch=request.ingest_epoch,
            round=request.round,
            offsets_digest=request.offsets_digest,
        )
        try:
            is_committed = await self._checked(request.peers).decide_outcome(command, timeout_ms=call.timeout_ms)
        except RefusedError as error:
            raise refusal_of(error) from error
        return pb.DecideOutcomeResponse(is_committed=is_committed)

    async def _published(self, request: pb.FindPublishedRequest, call: ServedCall) -> pb.FindPublishedResponse:
        wanted = [TopicPartition(each.topic_id, each.partition) for each in request.partitions]
        try:
            local = self._checked(request.peers)
            found = await _published_here(local, request.coordinator_partition, wanted, call.timeout_ms)
        except RefusedError as error:
            raise refusal_of(error) from error
        return pb.FindPublishedResponse(
            sequences=[NOTHING if each.sequence is None else each.sequence for each in found],
            end_sequences=[each.end_sequence for each in found],
        )

    def _checked(self, peers: publication_pb2.PublicationPeers) -> LocalIngests:
        """Return this broker, if the request is for it and from a broker of the cluster.

        Raises:
            RefusedError: OVERLOADED, it is starting or stopping; as `check_peers`.
        """
        local = self._local
        if local is None:
            message = "this broker is starting or stopping"
            raise refused(ErrorCode.OVERLOADED, message, retry_after_ms=REPEAT_MS)
        check_peers(peers, local.observer, cluster_id=local.cluster_id, node_id=local.node_id)
        return local
