# SPDX-License-Identifier: Apache-2.0
"""Crashes before every recorded disk call of a scenario, in several ways; then the log is reopened and checked.

The points come from the calls that the simulated disk recorded, not from a list. Laws after each reopening:
1. Records acknowledged as flushed are there, at their offsets.
2. Every existing record was appended at its offset, in this history or (until a truncation returned) the one before.
3. Offsets join without a gap, CRCs match, and no damage is reported, because a crash is not damage.
4. Epochs, look-ups by time and producer state match the batches.
5. The log continues: after other batches at the lost offsets, a process crash and a clean restart, all of this still
   holds.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest
from lograft.wire.batch import RecordBatch, check_batch
from lograft.wire.errors import BatchError
from lograft.wire.limits import DEDUP_WINDOW_BATCHES, MAX_BATCH_BYTES

import storage.log.partition_log
import storage.log.recovery_walk
import storage.segment.scan
from storage.errors import StorageError
from storage.files.disk import SECTOR_BYTES
from storage.log.partition_log import PartitionLog
from storage.log.producer_snapshots import ProducerSnapshots
from storage.log.recovery_point import RecoveryPointFile
from storage.testing.builders import SMALL, ProducerStamp, append, make_batch, open_log, read_all, read_values
from storage.testing.sim_disk import Crash, SimCall, SimDisk, SimFile
from storage.types import Appended, LogSettings, TimestampAndOffset

DIRECTORY = "/data/log"
SEEDS_PER_POINT = 2
SECOND_LIFE_BATCHES = 3
POINT_EVERY = 7
"""A test crashes every n-th point; the whole enumeration is `storage.testing.crash_points`."""


@dataclass
class Ledger:
    """The expected facts: every value ever appended at an offset, the current history, and what was acknowledged."""

    ever: dict[int, set[bytes]] = field(default_factory=dict)
    current: list[bytes] = field(default_factory=list)
    flushed: list[bytes] = field(default_factory=list)
    truncating_to: int | None = None
    start: int = 0
    starting: int = 0

    def copy(self) -> Ledger:
        return Ledger(
            ever={offset: set(values) for offset, values in self.ever.items()},
            current=list(self.current),
            flushed=list(self.flushed),
            truncating_to=self.truncating_to,
            start=self.start,
            starting=self.starting,
        )


@dataclass
class Point:
    """The disk and the ledger right before one call."""

    call: SimCall
    disk: SimDisk
    ledger: Ledger


class Run:
    """One scenario on a recorded disk."""

    def __init__(self, settings: LogSettings) -> None:
        self.disk = SimDisk()
        self.disk.make_directory("/data")
        self.disk.sync_directory("/")
        self.ledger = Ledger()
        self.points: list[Point] = []
        self.settings = settings
        self.sequence = 0
        self.disk.on_call = self._on_call
        self.log = open_log(self.disk, DIRECTORY, settings).log

    def _on_call(self, call: SimCall) -> None:
        self.points.append(Point(call, self.disk.fork(), self.ledger.copy()))

    def append(self, count: int, *, size_bytes: int = 10, epoch: int = 0) -> None:
        values = [f"{len(self.ledger.current) + n}-{epoch}-".encode().ljust(size_bytes, b"v") for n in range(count)]
        self._note(values)
        append(
            self.log,
            values,
            leader_epoch=epoch,
            producer=ProducerStamp(producer_id=1, base_sequence=self.sequence),
        )
        self.sequence += count

    def append_plain(self, count: int, *, epoch: int = 0) -> None:
        values = [f"{len(self.ledger.current) + n}-{epoch}-plain".encode() for n in range(count)]
        self._note(values)
        append(self.log, values, leader_epoch=epoch)

    def _note(self, values: list[bytes]) -> None:
        for value in values:
            self.ledger.ever.setdefault(len(self.ledger.current), set()).add(value)
            self.ledger.current.append(value)

    def flush(self) -> None:
        flushed_offset = self.log.flush()
        self.ledger.flushed = self.ledger.current[:flushed_offset]

    def truncate(self, to_offset: int) -> None:
        self.ledger.truncating_to = to_offset
        self.ledger.flushed = self.ledger.flushed[:to_offset]
        assert self.log.truncate_suffix(to_offset) == to_offset
        self.ledger.truncating_to = None
        del self.ledger.current[to_offset:]
        self.ledger.ever = {offset: values for offset, values in self.ledger.ever.items() if offset < to_offset}

    def remove(self, to_offset: int) -> None:
        """Move the log start; from the call on it may have moved, from its return on it must have."""
        self.ledger.starting = to_offset
        assert self.log.truncate_prefix(to_offset, 0) == to_offset
        self.ledger.start = to_offset

    def reopen(self, *, clean: bool) -> None:
        self.log.close(clean=clean)
        if clean:
            self.ledger.flushed = list(self.ledger.current)
        self.log = open_log(self.disk, DIRECTORY, self.settings).log


def appends_and_flushes(run: Run) -> None:
    """Small batches, several in one sector, in groups of different sizes."""
    for group in range(1, 5):
        for _ in range(group):
            run.append(2)
        run.flush()
    run.append(3)


def large_batches(run: Run) -> None:
    """Batches over several sectors, five in a group."""
    for _ in range(3):
        for _ in range(5):
            run.append(1, size_bytes=450)
        run.flush()
    for _ in range(5):
        run.append(1, size_bytes=450)


def rolls_without_flush(run: Run) -> None:
    """Several segments are dirty at once at the flush, or at the crash."""
    for number in range(14):
        run.append(2, epoch=number // 6)
    run.flush()
    for number in range(14):
        run.append(2, epoch=2 + number // 6)


def truncations(run: Run) -> None:
    """Truncate inside a segment, across segments and below the flushed offset; then append other records at these offsets."""
    for _ in range(18):
        run.append_plain(2)
    run.flush()
    run.append_plain(2, epoch=1)
    run.truncate(36)
    run.append_plain(2, epoch=2)
    run.flush()
    run.truncate(6)
    for _ in range(9):
        run.append_plain(2, epoch=3)
    run.flush()
    run.truncate(0)
    run.append_plain(1, epoch=4)
    run.flush()


def restarts(run: Run) -> None:
    """Clean and unclean restarts between appends."""
    run.append(2)
    run.flush()
    run.append(2)
    run.reopen(clean=True)
    run.append(2, epoch=1)
    run.reopen(clean=False)
    run.append(2, epoch=2)
    run.flush()
    run.reopen(clean=False)
    for _ in range(8):
        run.append(2, epoch=3)
    run.reopen(clean=True)


def follower(run: Run) -> None:
    """A follower appends regions of several batches with one write each."""
    source = open_log(_ready_disk(), DIRECTORY, replace(SMALL, segment_bytes=10**6)).log
    for number in range(12):
        values = [f"{number * 2 + n}-follower".encode() for n in range(2)]
        append(source, values, leader_epoch=number // 4)
    offset = 0
    while offset < source.log_end_offset:
        read = source.read(offset, 500)
        run._note([f"{n}-follower".encode() for n in range(offset, read.next_offset)])
        run.log.append_as_follower(read.data, now_ms=0)
        if offset % 3 == 0:
            run.flush()
        offset = read.next_offset


def _ready_disk() -> SimDisk:
    disk = SimDisk()
    disk.make_directory("/data")
    return disk


LARGE = replace(SMALL, segment_bytes=10_000)

SCENARIOS: dict[Callable[[Run], None], LogSettings] = {
    appends_and_flushes: SMALL,
    large_batches: LARGE,
    rolls_without_flush: SMALL,
    truncations: SMALL,
    restarts: SMALL,
    follower: SMALL,
}


def check_reopened(point: Point, settings: LogSettings) -> None:
    """Open the crashed disk and check the laws of the module."""
    opened = open_log(point.disk, DIRECTORY, settings)
    log, ledger = opened.log, point.ledger
    assert opened.report.damaged == ()
    assert log.flushed_offset == log.log_end_offset
    start = log.log_start_offset
    assert ledger.start <= start <= ledger.starting
    values = readable_values(log)
    assert len(values) == log.log_end_offset - start
    assert values[: max(0, len(ledger.flushed) - start)] == ledger.flushed[start:]
    for offset, value in enumerate(values, start):
        assert value in ledger.ever.get(offset, set()), f"offset {offset}: {value!r}"
    check_caches(log)
    # A second life on what the first one left: other batches at the lost offsets, then a process crash.
    for number in range(SECOND_LIFE_BATCHES):
        added = [f"second-{number}-{n}".encode() for n in range(3)]
        append(log, added, leader_epoch=99, producer=next_stamp(log))
        values += added
    log.flush()
    log.close(clean=False)
    log = open_log(point.disk, DIRECTORY, settings).log
    assert log.log_start_offset == start
    assert readable_values(log) == values
    check_caches(log)
    log.close()
    again = open_log(point.disk, DIRECTORY, settings)
    assert again.report.clean
    assert again.log.log_start_offset == start
    assert readable_values(again.log) == values
    check_caches(again.log)


def readable_values(log: PartitionLog) -> list[bytes | None]:
    """Return the values from the log start on; its batch may begin below."""
    batches = read_all(log)
    below = log.log_start_offset - batches[0].base_offset if batches else 0
    return [value for batch in batches for value in batch.values()][below:]


def own_batches(log: PartitionLog) -> list[RecordBatch]:
    """Return the batches of producer 1 that the log must remember."""
    return [batch for batch in read_all(log) if batch.header.producer_id == 1][-DEDUP_WINDOW_BATCHES:]


def next_stamp(log: PartitionLog) -> ProducerStamp | None:
    """Continue producer 1 from the log's state, like a client that resends."""
    batches = own_batches(log)
    if not batches and log.log_start_offset > 0:
        # Its batches were removed; only the client knows its sequence.
        return None
    return ProducerStamp(producer_id=1, base_sequence=batches[-1].header.last_sequence + 1 if batches else 0)


def check_caches(log: PartitionLog) -> None:
    """Check that epochs, timestamps and producer state match the batches."""
    start = log.log_start_offset
    for batch in read_all(log):
        assert log.epoch_at(max(start, batch.base_offset)) == batch.header.leader_epoch
    for batch in own_batches(log):
        data = log.read(max(start, batch.base_offset), 1).data
        appended = log.append_as_leader(data, batch.header, leader_epoch=99, now_ms=0)
        assert appended == Appended(batch.base_offset, batch.next_offset, True)
    if log.log_end_offset > start:
        assert log.find_timestamp(0, end_offset=log.log_end_offset) == TimestampAndOffset(1_000, start)


def crash_everywhere(scenario: Callable[[Run], None], settings: LogSettings, *, point_every: int = 1) -> int:
    """Run a scenario, crash it before every n-th call and after its end, check each; return the number of crashes."""
    run = Run(settings)
    scenario(run)
    run.points.append(Point(SimCall(operation="end", path=""), run.disk.fork(), run.ledger.copy()))
    crashes = 0
    for number, point in enumerate(run.points):
        if number % point_every and number != len(run.points) - 1:
            continue
        for how in Crash:
            seeds = range(SEEDS_PER_POINT) if how in (Crash.TEAR, Crash.PREFIX) else range(1)
            for seed in seeds:
                crashed = replace_disk(point, how, random.Random(f"{number}/{how.name}/{seed}"))
                crashes += 1
                try:
                    check_reopened(crashed, settings)
                except BaseException as error:
                    error.add_note(f"crash before call {number} {point.call}, {how.name}, seed {seed}")
                    raise
    return crashes


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_every_crash_point_reopens_to_a_legal_log(scenario: Callable[[Run], None]) -> None:
    """All lost, all kept, torn at sectors, a prefix: before some calls and after the end; `make crash` runs all of them."""
    assert crash_everywhere(scenario, SCENARIOS[scenario], point_every=POINT_EVERY) > 20


def _skip(*args: object, **kwargs: object) -> None:
    """Replace a step by nothing."""


class _Matching:
    """A checksum that equals every other one."""

    def __eq__(self, other: object) -> bool:
        return True

    def __ne__(self, other: object) -> bool:
        return False

    def __hash__(self) -> int:
        return 0


MUTANTS: dict[str, tuple[object, str, object, Callable[[Run], None]]] = {
    "flush: data files not synced": (SimFile, "sync", _skip, appends_and_flushes),
    "roll: directory not synced": (SimDisk, "sync_directory", _skip, rolls_without_flush),
    "truncate: recovery point not lowered": (RecoveryPointFile, "write_synced", RecoveryPointFile.write, truncations),
    "truncate: later segments not removed": (
        storage.log.partition_log,
        "remove_if_exists",
        lambda *_: False,
        truncations,
    ),
    "recovery: a torn middle is called damage": (
        storage.log.recovery_walk,
        "shows_unwritten_sector",
        lambda *_, **__: False,
        large_batches,
    ),
    "recovery: CRC not checked": (storage.segment.scan, "crc32c", lambda data: _Matching(), large_batches),
    "recovery: snapshots beyond the end kept": (
        ProducerSnapshots,
        "remove_above",
        lambda *_: False,
        rolls_without_flush,
    ),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_forgotten_steps_are_found(mutant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The harness can fail: each of these faults breaks a law at some crash point."""
    owner, name, replacement, scenario = MUTANTS[mutant]
    monkeypatch.setattr(owner, name, replacement)
    with pytest.raises((AssertionError, StorageError, BatchError)):
        crash_everywhere(scenario, SCENARIOS[scenario])


def replace_disk(point: Point, how: Crash, rng: random.Random) -> Point:
    disk = point.disk.fork()
    disk.crash(how, rng)
    return Point(point.call, disk, point.ledger)


def test_crash_during_recovery_is_recovered_too() -> None:
    """Recovery itself is crashed before each of its calls, and the log still reopens to a legal state."""
    run = Run(SMALL)
    rolls_without_flush(run)
    torn = run.disk.fork()
    torn.crash(Crash.TEAR, random.Random(3))
    points: list[Point] = []
    torn.on_call = lambda call: points.append(Point(call, torn.fork(), run.ledger.copy()))
    open_log(torn, DIRECTORY, SMALL)
    assert len(points) > 5
    for number, point in enumerate(points):
        for how in Crash:
            check_reopened(replace_disk(point, how, random.Random(number)), SMALL)


def test_power_failure_loses_at_most_what_was_not_flushed() -> None:
    """If everything unsynced is lost, exactly the flushed records are left."""
    run = Run(SMALL)
    appends_and_flushes(run)
    run.disk.crash(Crash.LOSE_ALL, random.Random(0))
    log = open_log(run.disk, DIRECTORY, SMALL).log
    assert read_values(log) == run.ledger.flushed


def test_process_crash_loses_nothing() -> None:
    """After `kill -9` the page cache still has everything, flushed or not."""
    run = Run(SMALL)
    rolls_without_flush(run)
    run.disk.crash(Crash.KEEP_ALL, random.Random(0))
    opened = open_log(run.disk, DIRECTORY, SMALL)
    assert read_values(opened.log) == run.ledger.current
    assert opened.report.cut_offset is None


def test_torn_flush_group_with_whole_batches_behind_is_cut_and_counted_apart() -> None:
    """A lost sector in the middle of the unflushed group is torn, not damaged: truncated from there, reported as undecidable."""
    run = Run(replace(SMALL, segment_bytes=10**6))
    run.append(2)
    run.flush()
    for _ in range(3):
        run.append(1, size_bytes=3 * SECTOR_BYTES)
    log_path = f"{DIRECTORY}/{0:020d}.log"
    run.disk.crash(Crash.KEEP_ALL, random.Random(0))
    run.disk.corrupt(log_path, 2 * SECTOR_BYTES, bytes(SECTOR_BYTES))
    opened = open_log(run.disk, DIRECTORY, run.settings)
    assert opened.report.cut_offset == opened.log.log_end_offset == 2
    assert opened.report.undecidable_bytes == opened.report.cut_bytes > 6 * SECTOR_BYTES
    assert opened.report.damaged == ()


def test_batch_helper_is_what_a_client_sends() -> None:
    """The builder's batches pass the broker's check."""
    assert check_batch(make_batch([b"x"]), max_bytes=MAX_BATCH_BYTES).record_count == 1
