# SPDX-License-Identifier: Apache-2.0
"""The background cleaner: its order, rate and backoff, and that no error ends it."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TypeVar

import pytest

from storage.compaction.cleaner import (
    FIRST_BACK_OFF_MS,
    MAX_BACK_OFF_MS,
    MIN_KEY_MAP_BYTES,
    Cleaner,
    CleanerSettings,
    LogReport,
    back_off_of,
)
from storage.compaction.owner import LogCompaction
from storage.files.rate_limit import WorkStopped
from storage.log.partition_log import PartitionLog
from storage.testing.builders import open_log
from storage.testing.sim_disk import Crash, Refusal, SimDisk
from storage.tests.compaction.support import COMPACT, pairs, put, roll

Result = TypeVar("Result")


@dataclass
class Target:
    """A log whose owner is the calling thread."""

    name: str
    log: PartitionLog
    on_call: Callable[[], None] = lambda: None
    calls: int = 0

    def call(self, step: Callable[[PartitionLog, int], Result]) -> Result:
        self.calls += 1
        self.on_call()
        return step(self.log, self.log.log_end_offset)


@dataclass
class World:
    """Logs on one disk, a clock that moves only by waiting, and a cleaner."""

    disk: SimDisk = field(default_factory=SimDisk)
    targets: list[Target] = field(default_factory=list)
    clock_ms: int = 1_000
    waits_ms: list[int] = field(default_factory=list)
    stop_at_ms: int = 10**12
    on_wait: Callable[[], None] = lambda: None

    def __post_init__(self) -> None:
        self.disk.make_directory("/data")

    def wait(self, duration_ms: int) -> bool:
        assert duration_ms >= 0
        self.waits_ms.append(duration_ms)
        self.clock_ms += duration_ms
        self.on_wait()
        return self.clock_ms >= self.stop_at_ms

    def cleaner(self, **changes: int) -> Cleaner:
        settings = CleanerSettings(**{"bytes_per_s": 10**9, "key_map_bytes": MIN_KEY_MAP_BYTES, **changes})
        return Cleaner(
            lambda: self.targets,
            settings=settings,
            wall_ms=lambda: self.clock_ms,
            monotonic_ms=lambda: self.clock_ms,
            wait_ms=self.wait,
        )

    def add(self, name: str, count: int = 30, *, keys: int = 3, **changes: object) -> Target:
        """Make a log of `count` records, all sealed and flushed."""
        log = open_log(self.disk, f"/data/{name}", replace(COMPACT, **changes)).log
        for number in range(count):
            put(log, [(b"k%d" % (number % keys), b"%s-%d" % (name.encode(), number))])
        roll(log)
        self.targets.append(Target(name, log))
        return self.targets[-1]


def test_all_due_logs_are_compacted_the_most_urgent_first() -> None:
    """The cleaner makes one pass over each, by urgency; then no log is due. It ignores logs that are not compacted."""
    world = World()
    world.add("dirty")
    world.add("overdue", max_compaction_lag_ms=100)
    plain = world.add("plain", compact=False)
    before = pairs(plain.log)
    cleaner = world.cleaner()
    assert cleaner.run_once()
    assert [name for name, report in cleaner.report().items() if report.pass_count] == ["overdue"]
    assert cleaner.run_once()
    assert not cleaner.run_once()
    assert cleaner.report() == {
        name: LogReport(pass_count=1, read_count=30, kept_count=3) for name in ("overdue", "dirty")
    }
    for target in world.targets[:2]:
        assert len(pairs(target.log)) == 3
    assert pairs(plain.log) == before


def test_it_reads_and_writes_no_faster_than_it_may() -> None:
    """Every byte read and written takes its share of a second."""
    world = World()
    target = world.add("log", 100, segment_bytes=10_000)
    segment_bytes = sum(segment.size_bytes for segment in LogCompaction(target.log).facts(100).sealed)
    cleaner = world.cleaner(bytes_per_s=1_000)
    start_ms = world.clock_ms
    assert cleaner.run_once()
    left_bytes = sum(segment.size_bytes for segment in LogCompaction(target.log).facts(100).sealed)
    # Built, rewritten, written; the next step waits for the share of the last one.
    assert world.clock_ms - start_ms >= 2 * segment_bytes - segment_bytes // 5
    assert world.clock_ms - start_ms <= 2 * segment_bytes + 2 * left_bytes + 100


@pytest.mark.parametrize("operation", ["create_file", "append", "sync", "rename", "sync_directory"])
@pytest.mark.parametrize("refusal", list(Refusal))
def test_a_log_that_fails_backs_off_and_the_others_go_on(operation: str, refusal: Refusal) -> None:
    """A disk that refuses costs one log its turn. The cleaner reports and retries the log, and no record is lost."""
    world, other = World(), World()
    bad = world.add("bad")
    world.targets.append(other.add("good"))
    before = pairs(bad.log)
    world.disk.refuse(operation, "/data/bad", refusal)
    cleaner = world.cleaner()
    for _ in range(2):
        cleaner.run_once()
    report = cleaner.report()
    assert report["good"].pass_count == 1
    assert report["bad"].failure_count == 1
    assert report["bad"].error is not None
    assert report["bad"].error.startswith(("DiskFullError: /data/bad", "DiskFailedError: /data/bad"))
    assert report["bad"].retry_at_ms == world.clock_ms + FIRST_BACK_OFF_MS
    calls = bad.calls
    assert not cleaner.run_once()
    assert bad.calls == calls
    world.clock_ms += FIRST_BACK_OFF_MS
    cleaner.run_once()
    if world.disk.failure is None and bad.log.failure is None:
        assert cleaner.report()["bad"] == LogReport(pass_count=1, read_count=30, kept_count=3)
    else:
        assert cleaner.report()["bad"].failure_count == 2
        world.disk.crash(Crash.KEEP_ALL, random.Random(0))
        bad.log = open_log(world.disk, "/data/bad", COMPACT).log
        assert pairs(bad.log).items() <= before.items()
        world.clock_ms += MAX_BACK_OFF_MS
        cleaner.run_once()
        assert cleaner.report()["bad"].failure_count == 0
    assert list(pairs(bad.log)) == [27, 28, 29]


def test_back_off_doubles_up_to_its_limit() -> None:
    """1 s, 2 s, 4 s, ... up to 5 min."""
    assert [back_off_of(count) for count in (1, 2, 3, 8, 9, 10, 10_000)] == [
        1_000,
        2_000,
        4_000,
        128_000,
        256_000,
        300_000,
        300_000,
    ]


def test_it_never_dies() -> None:
    """Whatever an owner or the list of logs raises, the cleaner continues, at full speed once the error ends."""
    world = World()
    target = world.add("log")

    def fail() -> None:
        raise RuntimeError("a bug in the owner")

    target.on_call = fail
    cleaner = world.cleaner(idle_ms=1_000)
    world.stop_at_ms = world.clock_ms + 40 * 60 * 1_000
    cleaner.run()
    report = cleaner.report()["log"]
    assert report.error == "RuntimeError: a bug in the owner"
    assert 15 <= report.failure_count <= 17

    broken = Cleaner(
        lambda: iter(fail() or ()),
        settings=CleanerSettings(),
        wall_ms=lambda: world.clock_ms,
        monotonic_ms=lambda: world.clock_ms,
        wait_ms=world.wait,
    )
    world.stop_at_ms = world.clock_ms + 100_000
    broken.run()
    assert world.clock_ms >= world.stop_at_ms

    target.on_call = lambda: None
    world.stop_at_ms = world.clock_ms + MAX_BACK_OFF_MS + 10_000
    cleaner.run()
    assert cleaner.report()["log"].failure_count == 0
    assert cleaner.report()["log"].pass_count == 1


def test_it_waits_when_nothing_is_due_and_not_between_passes() -> None:
    """Passes follow each other at once; an idle cleaner looks again after its pause."""
    world = World()
    for name in ("a", "b"):
        world.add(name)
    world.stop_at_ms = world.clock_ms + 5_000
    cleaner = world.cleaner(idle_ms=5_000)
    cleaner.run()
    assert world.waits_ms[-1] == 5_000
    assert sum(world.waits_ms[:-1]) < 100
    assert [report.pass_count for report in cleaner.report().values()] == [1, 1]


def test_a_failure_holds_up_nobody() -> None:
    """The next log follows at once, and the retry comes when the backoff ends, not at the next regular look."""
    world = World()
    bad = world.add("bad", max_compaction_lag_ms=100)
    world.add("good")
    world.disk.refuse("create_file", "/data/bad", Refusal.FULL)
    start_ms = world.clock_ms
    world.stop_at_ms = start_ms + FIRST_BACK_OFF_MS + 20_000
    cleaner = world.cleaner(idle_ms=10_000)
    passed_ms: dict[str, int] = {}

    def note() -> None:
        for name, report in cleaner.report().items():
            if report.pass_count:
                passed_ms.setdefault(name, world.clock_ms - start_ms)

    world.on_wait = note
    cleaner.run()
    assert passed_ms["good"] < 100
    assert FIRST_BACK_OFF_MS <= passed_ms["bad"] < FIRST_BACK_OFF_MS + 100
    assert len(pairs(bad.log)) == 3


def test_it_ends_in_the_middle_of_a_pass() -> None:
    """The cleaner stops at the next step. It leaves no file behind and reports no failure."""
    for stop_at in range(1, 12):
        world = World()
        target = world.add("log")
        before = pairs(target.log)
        seen = 0

        def stop(world: World = world, at: int = stop_at) -> None:
            nonlocal seen
            seen += 1
            if seen == at:
                world.stop_at_ms = world.clock_ms

        world.on_wait = stop
        cleaner = world.cleaner()
        cleaner.run()
        assert seen == stop_at
        assert cleaner.report().get("log", LogReport()).failure_count == 0
        assert pairs(target.log).items() <= before.items()
        assert not [name for name in world.disk.list_directory("/data/log") if name.endswith(".cleaned")]
        world.stop_at_ms = world.clock_ms
        with pytest.raises(WorkStopped):
            cleaner.run_once()


def test_a_log_that_changes_under_a_pass_is_tried_again() -> None:
    """The pass ends early without a failure, and the next look sees the changed log."""
    world = World()
    target = world.add("log")
    calls = 0

    def change() -> None:
        nonlocal calls
        calls += 1
        if calls == 3:
            target.log.truncate_suffix(2)

    target.on_call = change
    cleaner = world.cleaner()
    assert not cleaner.run_once()
    assert cleaner.report()["log"] == LogReport(stale_count=1)
    assert target.log.log_end_offset == 2


@pytest.mark.parametrize("before_call", range(3, 7))
def test_a_segment_that_goes_before_a_pass_opens_its_file_is_no_failure(before_call: int) -> None:
    """If DeleteRecords removes segments of a pass at any time, the pass ends early, without a backoff."""
    world = World()
    target = world.add("log", 60, segment_bytes=1_000)
    world.add("other", 60, segment_bytes=1_000)
    assert target.log.segment_count > 4
    calls = 0

    def delete_once() -> None:
        nonlocal calls
        calls += 1
        if calls == before_call:
            target.log.truncate_prefix(40, world.clock_ms)

    target.on_call = world.on_wait = delete_once
    cleaner = world.cleaner()
    cleaner.run_once()
    report = cleaner.report().get("log", LogReport())
    assert (report.failure_count, report.error, report.retry_at_ms) == (0, None, None)
    while cleaner.run_once():
        pass
    assert cleaner.report()["log"].pass_count >= 1
    assert set(pairs(target.log)) == {57, 58, 59}


def test_a_segment_whose_file_is_lost_is_a_failure() -> None:
    """A file that was removed from outside still belongs to the log: the pass fails, and the log backs off."""
    world = World()
    world.add("log")
    world.disk.remove(f"/data/log/{0:020d}.log")
    cleaner = world.cleaner()
    assert not cleaner.run_once()
    report = cleaner.report()["log"]
    assert report.failure_count == 1
    assert report.error is not None
    assert "FileMissingError" in report.error
    assert report.stale_count == 0


def test_a_log_that_went_is_forgotten() -> None:
    """The cleaner keeps reports only for the logs of the server."""
    world = World()
    world.add("log")
    cleaner = world.cleaner()
    cleaner.run_once()
    world.targets.clear()
    assert not cleaner.run_once()
    assert cleaner.report() == {}


def test_settings_are_checked() -> None:
    """A limit that cannot work is refused at once."""
    for changes in ({"bytes_per_s": 0}, {"key_map_bytes": MIN_KEY_MAP_BYTES - 1}, {"idle_ms": 0}):
        with pytest.raises(AssertionError):
            World().cleaner(**changes)
