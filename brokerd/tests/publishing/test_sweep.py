# SPDX-License-Identifier: Apache-2.0
"""The sweep of staging partitions on one broker, and the quota."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence

import pytest
from lograft.wire.codes import ErrorCode

from brokerd.failure import RefusedError
from brokerd.publishing.commits import wait_committed
from brokerd.publishing.limits import STAGING_SWEEP_MS, SWEEP_SOON_MS
from brokerd.publishing.quota import StagingQuota, default_limit_bytes, log_bytes
from brokerd.publishing.sweep import StagingSweep
from brokerd.replica.replica import Replica
from brokerd.tests.publishing.publishing_broker import STAGING, STAGING_TOPIC_ID, PublishingBroker, append_foreign
from brokerd.tests.replica.lone_broker import ROOT, TOPIC_ID
from storage.files.names import DELETED_SUFFIX
from storage.testing.sim_disk import Refusal


def _removed(broker: PublishingBroker) -> list[str]:
    """Return the files of removed segments that are still there."""
    names = broker.disk.list_directory(f"{ROOT}/{STAGING_TOPIC_ID.hex()}-0")
    return [name for name in names if name.endswith(DELETED_SUFFIX)]


class Answers:
    """Answers for attempts as a coordinator does.

    Attributes:
        live: the answers; a producer id that is missing is not answered.
        asked: the questions.
    """

    def __init__(self) -> None:
        self.live: dict[int, int | None] = {}
        self.asked: list[list[int]] = []

    async def __call__(self, topic_id: bytes, partition: int, producer_ids: Sequence[int]) -> Mapping[int, int | None]:
        assert (topic_id, partition) == (TOPIC_ID, 0)
        self.asked.append(list(producer_ids))
        return {each: self.live[each] for each in producer_ids if each in self.live}


@pytest.fixture
async def broker() -> AsyncIterator[PublishingBroker]:
    made = PublishingBroker()
    await made.start(segment_bytes="2048", file_delete_delay_ms="0")
    yield made
    await made.manager.stop()


async def test_space_returns_to_zero(broker: PublishingBroker) -> None:
    """Garbage goes up to the first batch that may be needed; once nothing is needed, no byte of a batch is left."""
    answers, staging = Answers(), await broker.staging()
    sweep = StagingSweep(broker.manager.replicas, answers, now_ms=lambda: broker.now_ms)
    first, second, third = [await broker.attempt(number) for number in range(3)]
    for number in range(30):
        first.stage(b"x" * 100)
        if number >= 10:
            second.stage(b"y" * 100)
        if number >= 20:
            third.stage(b"z" * 100)
    for attempt in (first, second, third):
        await attempt.seal()
    full = log_bytes(staging)

    assert await sweep.sweep() == 0, "nobody answers, nothing moves"
    answers.live = {STAGING: None}
    assert await sweep.sweep() == 1
    assert staging.log_start_offset == 11, "the second attempt begins behind eleven batches of the first"
    assert await sweep.sweep() == 0
    answers.live = {STAGING: None, STAGING + 1: 5, STAGING + 2: 0}
    assert await sweep.sweep() == 1
    assert staging.log_start_offset == 10 + 2 * 5 + 1
    answers.live = {STAGING: None, STAGING + 1: 20, STAGING + 2: 10}
    assert await sweep.sweep() == 1
    assert staging.log_start_offset == staging.log_end_offset == 60
    await staging.apply_retention(broker.now_ms + 1)
    assert 0 == log_bytes(staging) < full
    assert not any(name.endswith(".deleted") for name in broker.disk.list_directory(staging.log.directory))
    asked = len(answers.asked)
    assert await sweep.sweep() == 0
    assert len(answers.asked) == asked, "an empty partition asks nothing"
    await broker.manager.stop()
    again = PublishingBroker(broker.disk)
    await again.start()
    assert (await again.staging()).log_start_offset == 60
    assert log_bytes(await again.staging()) == 0
    await again.manager.stop()


async def test_sweep_reads_a_bounded_piece_and_goes_on(broker: PublishingBroker) -> None:
    """Each sweep frees what it has read; each question has every attempt once."""
    answers, staging = Answers(), await broker.staging()
    attempts = [await broker.attempt(number) for number in range(40)]
    for attempt in attempts:
        attempt.stage(b"x" * 100)
        answers.live[attempt.producer_id] = None
    await wait_committed(staging, 40, leader_epoch=0, timeout_ms=30_000)
    sweep = StagingSweep(broker.manager.replicas, answers, read_bytes=1)
    starts: list[int] = []
    while await sweep.sweep():
        starts.append(staging.log_start_offset)
    assert starts[-1] == 40
    assert len(starts) > 2
    assert sorted(each for question in answers.asked for each in question) == sorted(answers.live)


async def test_what_was_published_is_freed_soon(broker: PublishingBroker) -> None:
    """The sweep does not wait for its turn, and the files of removed segments go at once."""
    answers, staging = Answers(), await broker.staging()
    attempt = await broker.attempt(0)
    for _ in range(30):
        attempt.stage(b"x" * 100)
    await attempt.seal()
    answers.live[STAGING] = None
    sweep = StagingSweep(broker.manager.replicas, answers, now_ms=lambda: broker.now_ms)
    running = asyncio.create_task(sweep.run())
    try:
        async with asyncio.timeout(STAGING_SWEEP_MS / 1000 - 1):
            sweep.soon(TOPIC_ID, 1, False)
            await asyncio.sleep(2 * SWEEP_SOON_MS / 1000)
            assert (staging.log_start_offset, answers.asked) == (0, []), "another partition"
            sweep.soon(TOPIC_ID, 0, False)
            while staging.log_start_offset < 30 or _removed(broker):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
    finally:
        running.cancel()
        await asyncio.wait((running,))
    assert log_bytes(staging) == 0


async def test_large_part_is_freed_at_once_and_tried_twice(
    broker: PublishingBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does not wait for `SWEEP_SOON_MS`. Its coordinator may know of it only at the second try."""
    staging = await broker.staging()
    attempt = await broker.attempt(0)
    for _ in range(30):
        attempt.stage(b"x" * 100)
    await attempt.seal()
    asked, freed, ask_count = asyncio.Event(), asyncio.Event(), 0
    delete_before = Replica.delete_before

    async def live(_topic_id: bytes, _partition: int, _producer_ids: Sequence[int]) -> Mapping[int, int | None]:
        nonlocal ask_count
        ask_count += 1
        asked.set()
        return {STAGING: None if ask_count == 3 else 0}

    async def delete_and_tell(replica: Replica, before_offset: int, now_ms: int) -> None:
        await delete_before(replica, before_offset, now_ms)
        freed.set()

    monkeypatch.setattr(Replica, "delete_before", delete_and_tell)
    sweep = StagingSweep(broker.manager.replicas, live, now_ms=lambda: broker.now_ms)
    running = asyncio.create_task(sweep.run())
    try:
        # Before the sweep of everything, which would free it too.
        async with asyncio.timeout(STAGING_SWEEP_MS / 1000 - 1):
            monkeypatch.setattr("brokerd.publishing.sweep.SWEEP_SOON_MS", 3_600_000)
            sweep.soon(TOPIC_ID, 0, True)
            await asked.wait()
            monkeypatch.setattr("brokerd.publishing.sweep.SWEEP_SOON_MS", SWEEP_SOON_MS)
            sweep.soon(TOPIC_ID, 0, True)
            await freed.wait()
    finally:
        running.cancel()
        await asyncio.wait((running,))
    assert (ask_count, staging.log_start_offset) == (3, 30)


async def test_what_is_no_attempt_is_garbage_and_other_topics_are_left_alone(broker: PublishingBroker) -> None:
    """A batch that nobody can publish does not hold the log up."""
    staging, target = await broker.staging(), await broker.target()
    append_foreign(staging, b"stray")
    append_foreign(target, b"kept")
    for replica in (staging, target):
        await wait_committed(replica, 1, leader_epoch=0, timeout_ms=30_000)
    assert await StagingSweep(broker.manager.replicas, Answers()).sweep() == 1
    assert (staging.log_start_offset, target.log_start_offset) == (1, 0)


async def test_what_is_not_committed_is_not_freed(broker: PublishingBroker) -> None:
    """The log start never passes the high watermark."""
    answers, staging = Answers(), await broker.staging()
    attempt = await broker.attempt(0)
    attempt.stage(b"x")
    answers.live[STAGING] = None
    assert staging.high_watermark == 0
    assert await StagingSweep(broker.manager.replicas, answers).sweep() == 0
    assert staging.log_start_offset == 0


async def test_full_disk_is_logged_and_tried_again(broker: PublishingBroker, caplog: pytest.LogCaptureFixture) -> None:
    """A sweep that fails at one partition ends nothing."""
    answers, staging = Answers(), await broker.staging()
    attempt = await broker.attempt(0)
    attempt.stage(b"x")
    await attempt.seal()
    answers.live[STAGING] = None
    sweep = StagingSweep(broker.manager.replicas, answers)
    broker.disk.refuse("create_file", f"{STAGING_TOPIC_ID.hex()}-0/log-start", Refusal.FULL)
    assert await sweep.sweep() == 0
    assert "staging partition not swept" in caplog.text
    broker.disk.forgive()
    assert await sweep.sweep() == 1
    assert staging.log_start_offset == 1


async def test_quota_counts_what_is_staged_and_what_was_admitted_since(broker: PublishingBroker) -> None:
    """Beyond it nothing is admitted, until space is free again."""
    quota = StagingQuota(10_000, broker.manager.replicas)
    await quota.measure()
    assert quota.used_bytes == 0
    quota.admit(9_000)
    with pytest.raises(RefusedError) as caught:
        quota.admit(1_001)
    assert caught.value.failure.code is ErrorCode.LIMIT_EXCEEDED
    quota.admit(1_000)
    attempt = await broker.attempt(0)
    attempt.stage(b"x" * 1_000)
    append_foreign(await broker.target(), b"y" * 5_000)
    await quota.measure()
    assert 1_000 < quota.used_bytes < 1_200, "other topics do not count, nor does what was admitted and did not come"


def test_default_quota_counts_a_disk_once(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Two directories of one disk are one disk."""
    one, two = tmp_path_factory.mktemp("one"), tmp_path_factory.mktemp("two")
    assert default_limit_bytes([one]) == default_limit_bytes([one, two]) > 0
