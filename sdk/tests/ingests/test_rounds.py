# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: PT012 - a whole block is what must raise
"""Rounds of a repeated ingest against a scripted session: opens, lost answers, other programs."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, cast

import pytest
from lograft._groups.offsets import OffsetsForDecision
from lograft._ingests.repeated import RepeatedIngest
from lograft._producer.staging import StagedRange, Staging
from lograft.errors import (
    CoordinatorNotAvailableError,
    IngestConflictError,
    IngestFencedError,
    LograftError,
    OutcomeUnknownError,
    RequestTimeoutError,
    TransactionTopicsError,
    UnknownTopicError,
)
from lograft.settings import parse_bootstrap
from lograft.types import (
    BatchReceipt,
    Durability,
    IngestDescription,
    IngestKind,
    IngestResult,
    IngestState,
    SealedAttempt,
)


class Coordinator:
    """A coordinator of one ingest, with the session of one client in front of it.

    Attributes:
        log: the calls.
        failures: by name of a call, what it fails with; "commit!" fails after the commit has come into effect.
    """

    def __init__(self) -> None:
        self.log: list[str] = []
        self.failures: dict[str, list[LograftError]] = {}
        self.real_epoch = 0
        self.real_round = 1
        self.committed: IngestResult | None = None
        self.sealed = False
        self.next_id = 100
        self.attempts: dict[bytes, int] = {}
        # As the client sees it.
        self.epoch = 0
        self.round = 1
        self.topic_ids: Mapping[str, bytes] = {}
        self.result: IngestResult | None = None

    def _enter(self, name: str) -> None:
        self.log.append(name)
        if self.failures.get(name):
            raise self.failures[name].pop(0)
        if name not in ("open", "describe") and self.epoch != self.real_epoch:
            raise IngestFencedError("fenced")

    def taken_over(self) -> None:
        """Another program opens it."""
        self.real_epoch += 1
        self.attempts.clear()

    async def open(self, topics: Sequence[str]) -> None:
        self._enter("open")
        if "nowhere" in topics:
            raise UnknownTopicError("nowhere")
        self.taken_over()
        self.epoch, self.round, self.result = self.real_epoch, self.real_round, self.committed
        self.topic_ids = {each: bytes(16) for each in topics}

    async def describe(self) -> IngestDescription:
        self._enter("describe")
        return IngestDescription(
            ingest_id="app",
            kind=IngestKind.REPEATED,
            state=IngestState.OPEN,
            epoch=self.real_epoch,
            round=self.real_round,
            topics=tuple(self.topic_ids),
            touched_ms=0,
            ttl_ms=0,
            open_attempts=0,
            sealed_attempts=0,
            sealed_records=0,
            parts=0,
            published_parts=0,
        )

    async def open_attempt(self, task: int, attempt_id: bytes) -> Staging:
        self._enter("attempt")
        if attempt_id not in self.attempts:
            self.next_id += 1
            self.attempts[attempt_id] = self.next_id
        self.sealed = False
        return Staging(self.attempts[attempt_id], self.topic_ids)

    async def seal(self, task: int, attempt_id: bytes, ranges: Mapping[tuple[str, int], StagedRange]) -> SealedAttempt:
        self._enter("seal")
        self.sealed = True
        return SealedAttempt(task, attempt_id, sum(each.records for each in ranges.values()))

    async def commit(
        self, sealed: Sequence[SealedAttempt], *, timeout_ms: int, offsets: OffsetsForDecision | None = None
    ) -> IngestResult:
        self._enter("commit")
        records = sum(each.records for each in sealed)
        self.committed = IngestResult(round=self.real_round, records=records, dropped_attempts=0, partitions=())
        self.real_round += 1
        if self.failures.get("commit!"):
            raise self.failures["commit!"].pop(0)
        self.result, self.round = self.committed, self.real_round
        return self.committed

    async def abort(self) -> None:
        self._enter("abort")
        self.attempts.clear()

    async def close(self) -> None:
        self._enter("close")


def make() -> tuple[RepeatedIngest, Coordinator]:
    coordinator = Coordinator()
    ingest = RepeatedIngest(
        parse_bootstrap("h:1", None),
        "app",
        ttl_ms=0,
        commit_timeout_ms=1_000,
        make_session=lambda *_, **__: cast("Any", coordinator),
    )
    return ingest, coordinator


def staged(staging: Staging, records: int = 1, topic: str = "a") -> Staging:
    """Stage records: as if receipts had come."""
    receipt = BatchReceipt(topic=topic, partition=0, base_offset=0, record_count=records, durability=Durability.FLUSHED)
    staging.note(0, receipt)
    return staging


def test_rounds_go_on_under_one_identity() -> None:
    """One open for all transactions. Each asks for its attempt, and an engine that stages lives on."""

    async def run() -> None:
        ingest, coordinator = make()
        first = staged(await ingest.stage("a"))
        assert (await ingest.commit(None)) == coordinator.committed
        assert staged(await ingest.stage("a"), 2) is first
        result = await ingest.commit(None)
        assert result is not None
        assert (result.round, result.records) == (2, 2)
        assert coordinator.log == ["open", *["attempt", "seal", "commit"] * 2]

    asyncio.run(run())


def test_an_abort_begins_a_new_identity() -> None:
    """Its staged records must not come back with the next transaction."""

    async def run() -> None:
        ingest, coordinator = make()
        first = staged(await ingest.stage("a"), 5)
        await ingest.abort()
        second = staged(await ingest.stage("a"), 1)
        assert second is not first
        assert second.producer_id != first.producer_id
        result = await ingest.commit(None)
        assert result is not None
        assert result.records == 1
        assert coordinator.log == ["open", "attempt", "abort", "describe", "open", "attempt", "seal", "commit"]

    asyncio.run(run())


def test_a_further_topic_is_opened_between_transactions_only() -> None:
    """In a transaction with records it is refused; after the abort the topic is known."""

    async def run() -> None:
        ingest, coordinator = make()
        await ingest.stage("a")
        with pytest.raises(TransactionTopicsError, match="'b'"):
            await ingest.stage("b")
        await ingest.abort()
        staged(await ingest.stage("a"))
        assert await ingest.stage("b") is await ingest.stage("a")
        await ingest.commit(None)
        # Unused topics are added before the first record of a transaction.
        await ingest.stage("c")
        assert sorted(coordinator.topic_ids) == ["a", "b", "c"]

    asyncio.run(run())


def test_a_topic_that_does_not_exist_harms_no_later_transaction() -> None:
    """Its name is forgotten again."""

    async def run() -> None:
        ingest, coordinator = make()
        with pytest.raises(UnknownTopicError):
            await ingest.stage("nowhere")
        await ingest.abort()
        staged(await ingest.stage("a"))
        assert await ingest.commit(None)
        assert list(coordinator.topic_ids) == ["a"]

    asyncio.run(run())


def test_nothing_to_commit_asks_nobody() -> None:
    """A transaction without records and offsets is over at once."""

    async def run() -> None:
        ingest, coordinator = make()
        assert await ingest.commit(None) is None
        assert coordinator.log == []
        await ingest.stage("a")
        assert await ingest.commit(None) is None
        assert coordinator.log == ["open", "attempt"]

    asyncio.run(run())


def test_a_lost_answer_to_a_commit_is_found_out() -> None:
    """The next open says whether the round was committed."""

    async def run() -> None:
        ingest, coordinator = make()
        staged(await ingest.stage("a"), 3)
        coordinator.failures = {"commit!": [RequestTimeoutError("lost")]}
        result = await ingest.commit(None)
        assert result is not None
        assert (result.round, result.records) == (1, 3)
        staged(await ingest.stage("a"), 4)
        result = await ingest.commit(None)
        assert result is not None
        assert (result.round, result.records) == (2, 4)

    asyncio.run(run())


def test_a_commit_that_never_arrived_never_will() -> None:
    """The open fences it, and the caller hears that nothing is published."""

    async def run() -> None:
        ingest, coordinator = make()
        staged(await ingest.stage("a"), 3)
        coordinator.failures = {"commit": [RequestTimeoutError("lost")]}
        with pytest.raises(RequestTimeoutError):
            await ingest.commit(None)
        await ingest.abort()
        assert coordinator.committed is None
        assert (await ingest.stage("a")).take() == {}

    asyncio.run(run())


def test_an_outcome_that_nobody_tells_is_unknown() -> None:
    """Neither the commit nor the open is answered."""

    async def run() -> None:
        ingest, coordinator = make()
        staged(await ingest.stage("a"), 3)
        coordinator.failures = {
            "commit!": [RequestTimeoutError("lost")],
            "describe": [CoordinatorNotAvailableError("away")],
        }
        with pytest.raises(OutcomeUnknownError, match="unknown whether transaction 'app' was committed"):
            await ingest.commit(None)
        await ingest.abort()
        assert coordinator.log[-1] == "describe"

    asyncio.run(run())


@pytest.mark.parametrize("place", ["attempt", "seal", "commit", "between", "after an abort"])
def test_a_program_that_was_replaced_never_opens_again(place: str) -> None:
    """Else two programs with one id would fence each other for ever."""

    async def run() -> None:
        ingest, coordinator = make()
        with pytest.raises(IngestFencedError):
            if place == "attempt":
                await ingest.stage("a")
                await ingest.commit(None)
                staged(await ingest.stage("a"))
                await ingest.commit(None)
                coordinator.taken_over()
                await ingest.stage("a")
            staging = staged(await ingest.stage("a"))
            if place == "after an abort":
                await ingest.abort()
                coordinator.taken_over()
                await ingest.stage("a")
            if place == "between":
                await ingest.commit(None)
            coordinator.taken_over()
            if place == "between":
                await ingest.stage("b")
            assert staging.failed is None
            await ingest.commit(None)
        assert ingest.fenced is not None
        opens = coordinator.log.count("open")
        await ingest.abort()
        for _ in range(2):
            with pytest.raises(IngestFencedError):
                await ingest.stage("a")
        assert coordinator.log.count("open") == opens

    asyncio.run(run())


def test_a_commit_that_was_decided_before_another_program_came() -> None:
    """The same commit again is answered, although the epoch is fenced by now."""

    async def run() -> None:
        ingest, coordinator = make()
        staged(await ingest.stage("a"), 3)
        coordinator.failures = {"commit": [RequestTimeoutError("lost"), IngestConflictError("another one")]}
        original = coordinator.describe

        async def describe() -> IngestDescription:
            coordinator.taken_over()
            return await original()

        coordinator.describe = describe  # type: ignore[method-assign]
        with pytest.raises(IngestConflictError):
            await ingest.commit(None)
        assert coordinator.log[-2:] == ["describe", "commit"]
        assert ingest.fenced is not None

    asyncio.run(run())
