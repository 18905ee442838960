# SPDX-License-Identifier: Apache-2.0
"""What an open and a commit take: several commands, and questions to others in between.

Owns the order. An open makes staging topics before the decision, so that whoever hears of its epoch can stage. A commit asks in this
order: the core (`PlanCommit`), the leaders of the staging partitions, the group of its offsets, the core again (`DecideCommit`), which
verifies the same once more. Then it waits until everything is published.

Law: whatever ends a call early, a repeated one gets an answer that agrees with the decision.
Source: `docs/ingest.md` section "Shell".
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import TypeVar

from lograft.wire.codes import ErrorCode

from brokerd.clock import monotonic_ms
from brokerd.failure import RefusedError, refused
from brokerd.ingests.answers import (
    Committed,
    Decided,
    IngestDescription,
    Opened,
    Outcome,
    Planned,
    StagedCheck,
)
from brokerd.ingests.commands import Command, DecideCommit, DescribeIngest, OpenIngest, PlanCommit
from brokerd.ingests.coordinators import REPEAT_MS, IngestCoordinators, OffsetsToPrepare
from brokerd.ingests.effects import IngestResult
from brokerd.ingests.limits import (
    ASK_AGAIN_MS,
    CALL_MS,
    CHECKS_MAX,
    CHECKS_MS,
    COMMIT_RETRY_MAX_MS,
    COMMIT_RETRY_MS,
)
from brokerd.ingests.records import IngestKind, IngestState, IngestTopic
from brokerd.ingests.staging_topics import StagingTopics
from brokerd.publishing.calls import PublicationCalls
from brokerd.publishing.limits import CHECK_CALL_MS
from brokerd.publishing.parts import Slice
from metaquorum.metadata.loader import MetadataLoader

AnswerT = TypeVar("AnswerT")


class _Deadline:
    """The time that a call has."""

    def __init__(self, timeout_ms: int) -> None:
        self._end_ms = monotonic_ms() + timeout_ms

    @property
    def left_ms(self) -> int:
        """Milliseconds that are left."""
        return max(0, self._end_ms - monotonic_ms())


class IngestSteps:
    """The opens and commits of one broker.

    Args:
        coordinators: the coordinators of this broker.
        publications: asks the leaders of partitions.
        staging: makes staging topics.
        observer: the metadata of this broker.
    """

    def __init__(
        self,
        coordinators: IngestCoordinators,
        publications: PublicationCalls,
        staging: StagingTopics,
        observer: MetadataLoader,
    ) -> None:
        self._coordinators = coordinators
        self._publications = publications
        self._staging = staging
        self._observer = observer

    async def open(
        self,
        ingest_id: str,
        kind: IngestKind,
        topics: Sequence[str],
        *,
        ttl_ms: int,
        owner: bytes = b"",
        timeout_ms: int,
    ) -> Outcome:
        """Open an ingest, or join it as its owner. One that is decided is waited for.

        Returns:
            `Opened`, OPEN or COMMITTED; or `Refused`.

        Raises:
            RefusedError: as `IngestCoordinators.submit`; INVALID_TOPIC_NAME, UNKNOWN_TOPIC; the controller's refusal of a staging
                topic; TIMED_OUT, it is decided and not published yet.
        """
        deadline = _Deadline(timeout_ms)
        known = await self._submit(ingest_id, DescribeIngest(ingest_id=ingest_id), deadline)
        if isinstance(known, IngestDescription) and _is_decided(known, kind):
            # Its topics may be gone, and nothing is staged any more.
            found = known.listing.topics
        else:
            images = await self._staging.find(topics, timeout_ms=deadline.left_ms)
            found = tuple(IngestTopic(each.topic_id, each.topic) for each in images)
            await self._staging.ensure(images, timeout_ms=deadline.left_ms)
        command = OpenIngest(ingest_id=ingest_id, kind=kind, topics=found, ttl_ms=ttl_ms, owner=owner)
        while True:
            with self._coordinators.completion(ingest_id) as completed:
                outcome = await self._submit(ingest_id, command, deadline)
                if not isinstance(outcome, Opened) or outcome.state is not IngestState.DECIDED:
                    return outcome
                result = await _heard(completed, deadline)
            if result is not None and result.round == outcome.round:
                return replace(outcome, state=IngestState.COMMITTED, result=result)
            _check_time(deadline)

    async def commit(
        self, command: PlanCommit, prepare: OffsetsToPrepare | None, *, size_bytes: int, timeout_ms: int
    ) -> Outcome:
        """Commit a round, and wait until it is published.

        Args:
            command: the commit.
            prepare: offsets of a group that it carries.
            size_bytes: bytes of the request, about.
            timeout_ms: longest wait in milliseconds.

        Returns:
            `Committed`, or `Refused`.

        Raises:
            RefusedError: as `IngestCoordinators.submit`; INGEST_INCOMPLETE, something staged is missing; UNKNOWN_TOPIC, a topic was
                deleted before the decision; the refusal of the group; TIMED_OUT: nobody answered a check, or it is decided and not
                published yet.
        """
        deadline, ingest_id, is_new = _Deadline(timeout_ms), command.ingest_id, False
        decide = DecideCommit(
            ingest_id=ingest_id,
            ingest_epoch=command.ingest_epoch,
            round=command.round,
            manifest=command.manifest,
            offsets=command.offsets,
        )
        while True:
            with self._coordinators.completion(ingest_id) as completed:
                outcome = await self._submit(ingest_id, command, deadline, size_bytes)
                if isinstance(outcome, Planned):
                    outcome = await self._decide(outcome.checks, command, decide, prepare, deadline, size_bytes)
                is_new = is_new or (isinstance(outcome, Decided | Committed) and not outcome.was_committed)
                if isinstance(outcome, Committed):
                    return replace(outcome, was_committed=not is_new)
                if not isinstance(outcome, Decided):
                    return outcome
                result = await _heard(completed, deadline)
            if result is not None and result.round == command.round:
                return Committed(result=result, was_committed=not is_new)
            _check_time(deadline)

    async def _decide(
        self,
        checks: Sequence[StagedCheck],
        command: PlanCommit,
        decide: DecideCommit,
        prepare: OffsetsToPrepare | None,
        deadline: _Deadline,
        size_bytes: int,
    ) -> Outcome:
        """Ask the others, and decide. What they refuse counts only if the round is still undecided then.

        The same commit may have been decided, published and swept by another call meanwhile.
        """
        try:
            await self._check_all(checks, deadline)
            if prepare is not None:
                await self._prepare(prepare, deadline)
        except RefusedError:
            outcome = await self._submit(command.ingest_id, command, deadline, size_bytes)
            if isinstance(outcome, Decided | Committed):
                return outcome
            raise
        return await self._submit(command.ingest_id, decide, deadline, size_bytes)

    async def _submit(self, ingest_id: str, command: Command, deadline: _Deadline, size_bytes: int = 0) -> Outcome:
        return await self._coordinators.submit(
            ingest_id, command, size_bytes=size_bytes, timeout_ms=min(CALL_MS, deadline.left_ms)
        )

    # Between plan and decision.

    async def _check_all(self, checks: Sequence[StagedCheck], deadline: _Deadline) -> None:
        """Have all staging partitions checked, some at a time. The first one that fails ends the others."""
        limited = _Deadline(min(CHECKS_MS, deadline.left_ms))
        waiting = iter(checks)

        async def work() -> None:
            for each in waiting:
                await self._check(each, limited)

        tasks = [asyncio.create_task(work(), name="staged-checks") for _ in range(min(CHECKS_MAX, len(checks)))]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _check(self, wanted: StagedCheck, deadline: _Deadline) -> None:
        topic_id, partition = wanted.topic_partition
        slices = [
            Slice(each.producer_id, each.first_sequence, each.records, each.first_offset, each.end_offset)
            for each in wanted.slices
        ]

        async def ask() -> None:
            image = self._observer.image
            if image.topic_by_id(topic_id) is None and topic_id in image.deleted_topics.ids():
                message = f"topic {topic_id.hex()} was deleted: nothing was decided; stage again for another topic"
                raise refused(ErrorCode.UNKNOWN_TOPIC, message)
            missing = await self._publications.check(
                topic_id, partition, slices, timeout_ms=min(CHECK_CALL_MS, deadline.left_ms)
            )
            if missing:
                first = missing[0]
                raise refused(
                    ErrorCode.INGEST_INCOMPLETE,
                    f"{len(missing)} slices for partition {partition} of topic {topic_id.hex()} cannot be published, "
                    f"such as that of task {wanted.slices[first.index].task}: {first.reason}",
                )

        await _repeat(ask, deadline)

    async def _prepare(self, offsets: OffsetsToPrepare, deadline: _Deadline) -> None:
        async def ask() -> None:
            await self._coordinators.group_offsets.prepare(offsets)

        await _repeat(ask, _Deadline(min(CHECKS_MS, deadline.left_ms)))


async def _repeat(ask: Callable[[], Awaitable[AnswerT]], deadline: _Deadline) -> AnswerT:
    """Ask until there is an answer that a repetition would not change.

    Raises:
        RefusedError: the refusal; TIMED_OUT, only passing ones came in time.
    """
    pause_ms = COMMIT_RETRY_MS
    while True:
        try:
            return await ask()
        except RefusedError as error:
            failure = error.failure
            if not failure.code.retriable:
                raise
            wait_ms = max(pause_ms, min(failure.retry_after_ms, COMMIT_RETRY_MAX_MS))
            if wait_ms >= deadline.left_ms:
                message = f"nothing was decided in time, and the commit may be repeated: {failure.code.name}: {failure.message}"
                raise refused(ErrorCode.TIMED_OUT, message, retry_after_ms=REPEAT_MS) from error
        await asyncio.sleep(wait_ms / 1000)
        pause_ms = min(2 * pause_ms, COMMIT_RETRY_MAX_MS)


async def _heard(completed: asyncio.Future[IngestResult | None], deadline: _Deadline) -> IngestResult | None:
    """Wait a while for the word that a decision is published; None: ask again."""
    await asyncio.wait((completed,), timeout=min(ASK_AGAIN_MS, deadline.left_ms) / 1000)
    return completed.result() if completed.done() else None


def _check_time(deadline: _Deadline) -> None:
    if not deadline.left_ms:
        message = "the ingest is decided, and being published: repeat the call to hear when that is done"
        raise refused(ErrorCode.TIMED_OUT, message, retry_after_ms=REPEAT_MS)


def _is_decided(known: IngestDescription, kind: IngestKind) -> bool:
    listing = known.listing
    is_single = kind is IngestKind.SINGLE and listing.kind is IngestKind.SINGLE
    return is_single and listing.state in (IngestState.DECIDED, IngestState.COMMITTED)
