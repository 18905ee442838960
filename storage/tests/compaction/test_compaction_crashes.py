# SPDX-License-Identifier: Apache-2.0
"""Crashes before every recorded disk call of compaction, in several ways; then the log is reopened and checked.

Laws after each reopening:
1. Every flushed record exists, or was replaced by a newer record of its key, or was a tombstone. Every existing record
   was appended at its offset.
2. A reader of the whole log ends with the same value for each key as a reader of everything that was ever appended.
3. Exactly one batch covers every offset, no damage is reported, and nothing of the pass is left behind.
4. Epochs and producer state match what was appended.
5. The log continues: after another pass, appends and a clean restart, all of this still holds.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import cast

import pytest
from lograft.wire.batch import encode_batch, read_header
from lograft.wire.errors import BatchError
from lograft.wire.filler import encode_filler
from lograft.wire.header import BatchHeader
from lograft.wire.limits import DEDUP_WINDOW_BATCHES

import storage.compaction.pass_
import storage.log.partition_log
import storage.log.recovery
import storage.log.swap
from storage.compaction.group_writer import GroupWriter
from storage.compaction.survivors import find_survivors
from storage.errors import StorageError
from storage.files.disk import Disk
from storage.log.partition_log import PartitionLog
from storage.testing.builders import ProducerStamp, open_log
from storage.testing.sim_disk import Crash, SimCall, SimDisk, SimFile
from storage.tests.compaction.support import COMPACT, LOG, Pair, compact, pairs, put, roll
from storage.types import Appended

SETTINGS = replace(COMPACT, segment_bytes=500, delete_retention_ms=150)
SEEDS = 2
MANY_SEEDS = 10


@dataclass
class Sent:
    """One batch of producer 1."""

    batch: bytes
    appended: Appended


@dataclass
class Ledger:
    """The expected facts: every record, the leader epoch of each offset, and the flushed offset."""

    records: dict[int, Pair]
    epochs: dict[int, int]
    sent: list[Sent]
    flushed_offset: int = 0

    def copy(self) -> Ledger:
        return Ledger(dict(self.records), dict(self.epochs), list(self.sent), self.flushed_offset)


@dataclass
class Point:
    """The disk and the ledger right before one call."""

    call: SimCall
    disk: SimDisk
    ledger: Ledger


class Run:
    """One scenario on a recorded disk; only the calls of compaction are crash points."""

    def __init__(self) -> None:
        self.disk = SimDisk()
        self.disk.make_directory("/data")
        self.disk.sync_directory("/")
        self.ledger = Ledger({}, {}, [])
        self.points: list[Point] = []
        self.now_ms = 0
        self.log = open_log(self.disk, LOG, SETTINGS).log

    def put(self, some: list[Pair], *, epoch: int = 0, producer: bool = False) -> None:
        sequence = sum(2 for _ in self.ledger.sent)
        stamp = ProducerStamp(producer_id=1, base_sequence=sequence) if producer else None
        appended = put(self.log, some, leader_epoch=epoch, producer=stamp)
        for at, pair in enumerate(some):
            self.ledger.records[appended.base_offset + at] = pair
            self.ledger.epochs[appended.base_offset + at] = epoch
        if producer:
            assert len(some) == 2
            batch = encode_batch([b"", b""], producer_id=1, producer_epoch=0, base_sequence=sequence)
            self.ledger.sent.append(Sent(bytes(batch), appended))

    def seal(self) -> None:
        roll(self.log)
        self.ledger.flushed_offset = self.log.flushed_offset

    def compact(self) -> None:
        self.now_ms += 100
        self.disk.on_call = self._on_call
        assert compact(self.log, now_ms=self.now_ms) is not None
        self.disk.on_call = None

    def _on_call(self, call: SimCall) -> None:
        self.points.append(Point(call, self.disk.fork(), self.ledger.copy()))


def overwritten_keys(run: Run) -> None:
    """Several segments, each with replaced records; an unflushed tail."""
    for number in range(18):
        run.put([(b"k%d" % (number % 4), b"%d" % number), (b"u%d" % number, b"x")], epoch=number // 6)
    run.seal()
    run.put([(b"k1", b"not flushed")], epoch=3)
    run.compact()


def passes_that_merge(run: Run) -> None:
    """A second pass merges segments that the first one made small."""
    for number in range(30):
        run.put([(b"k%d" % (number % 3), b"%d" % number)], epoch=number // 12)
    run.seal()
    run.compact()
    for number in range(6):
        run.put([(b"k%d" % (number % 3), b"again %d" % number)], epoch=3)
    run.seal()
    run.compact()


def producers_and_tombstones(run: Run) -> None:
    """Deleted keys, passes before and after the horizon, batches of an idempotent producer."""
    for number in range(12):
        value = None if number % 5 == 4 else b"%d" % number
        run.put([(b"k%d" % (number % 4), value), (b"d%d" % (number % 2), b"y")], producer=True)
    run.seal()
    run.compact()
    run.put([(b"k0", None), (b"d1", None)], producer=True)
    run.seal()
    run.compact()
    run.put([(b"last", b"z"), (b"d1", b"back")], producer=True)
    run.seal()
    run.now_ms += 200
    run.compact()


SCENARIOS = (overwritten_keys, passes_that_merge, producers_and_tombstones)


def newest_values(found: dict[int, Pair]) -> dict[bytes | None, bytes | None]:
    newest = {key: value for _, (key, value) in sorted(found.items())}
    return {key: value for key, value in newest.items() if value is not None}


def check(log: PartitionLog, ledger: Ledger) -> None:
    """Check laws 1 to 4."""
    assert log.damaged == ()
    assert log.log_end_offset >= ledger.flushed_offset
    appended = {offset: pair for offset, pair in ledger.records.items() if offset < log.log_end_offset}
    left = pairs(log)
    assert left.items() <= appended.items()
    newest = {key: offset for offset, (key, _) in appended.items()}
    for key, offset in newest.items():
        assert offset in left or appended[offset] == (key, None), f"the newest record of {key!r} at {offset} is gone"
    assert newest_values(left) == newest_values(appended)
    for offset in appended:
        assert log.epoch_at(offset) == ledger.epochs[offset]
    for sent in ledger.sent[-DEDUP_WINDOW_BATCHES:]:
        if sent.appended.next_offset <= log.log_end_offset:
            again = log.append_as_leader(sent.batch, read_header(sent.batch), leader_epoch=9, now_ms=0)
            assert again == sent.appended._replace(duplicate=True)


def check_crashed(point: Point, how: Crash, seed: str) -> None:
    """Crash, reopen, and check all laws."""
    disk, ledger = point.disk.fork(), point.ledger.copy()
    disk.crash(how, random.Random(seed))
    log = open_log(disk, LOG, SETTINGS).log
    assert not [name for name in disk.list_directory(LOG) if name.endswith((".cleaned", ".swap", ".deleted"))]
    check(log, ledger)
    ledger.records = {offset: pair for offset, pair in ledger.records.items() if offset < log.log_end_offset}
    ledger.sent = [sent for sent in ledger.sent if sent.appended.next_offset <= log.log_end_offset]
    base_offset = put(log, [(b"k1", b"second life"), (b"new", b"x")], leader_epoch=9).base_offset
    ledger.records |= {base_offset: (b"k1", b"second life"), base_offset + 1: (b"new", b"x")}
    ledger.epochs |= {base_offset: 9, base_offset + 1: 9}
    roll(log)
    assert compact(log, now_ms=10**6) is not None
    check(log, ledger)
    log.close()
    opened = open_log(disk, LOG, SETTINGS)
    assert opened.report.clean
    check(opened.log, ledger)


def crash_everywhere(scenario: Callable[[Run], None], how: Crash, *, seeds: int = SEEDS) -> int:
    """Run a scenario and crash it before each disk call of its compaction; return the number of crashes.

    Most is pending before a sync of the directory, so only these calls get all seeds.
    """
    run = Run()
    scenario(run)
    run.points.append(Point(SimCall(operation="end", path=""), run.disk.fork(), run.ledger.copy()))
    crashes = 0
    for number, point in enumerate(run.points):
        is_wide = point.call.operation == "sync_directory" and how in (Crash.TEAR, Crash.PREFIX)
        for seed in range(seeds if is_wide else 1):
            crashes += 1
            try:
                check_crashed(point, how, f"{number}/{how.name}/{seed}")
            except BaseException as error:
                error.add_note(f"crash before call {number} {point.call}, {how.name}, seed {seed}")
                raise
    return crashes


@pytest.mark.parametrize("how", list(Crash))
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_every_crash_point_of_a_pass_reopens_to_a_legal_log(scenario: Callable[[Run], None], how: Crash) -> None:
    """All lost, all kept, torn, a prefix: before every call that a pass and its swaps make."""
    assert crash_everywhere(scenario, how) > 60


def test_a_crash_while_a_swap_is_completed_is_completed_too() -> None:
    """The opening that finishes a swap is crashed before each of its calls."""
    run = Run()
    passes_that_merge(run)
    done = 0
    for point in run.points:
        if point.call.operation != "rename" or point.call.path.endswith((".cleaned", ".tmp")):
            continue
        crashed = point.disk.fork()
        crashed.crash(Crash.KEEP_ALL, random.Random(0))
        inner: list[Point] = []

        def note(call: SimCall, disk: SimDisk = crashed, into: list[Point] = inner, at: Point = point) -> None:
            into.append(Point(call, disk.fork(), at.ledger.copy()))

        crashed.on_call = note
        open_log(crashed, LOG, SETTINGS)
        for number, each in enumerate(inner[:12]):
            check_crashed(each, Crash.TEAR, f"{done}/{number}")
            done += 1
        if done > 150:
            return
    assert done > 100


def _skip(*args: object, **kwargs: object) -> None:
    """Replace a step by nothing."""


def _finish_unsynced(self: GroupWriter) -> object:
    sync, SimFile.sync = SimFile.sync, _skip  # type: ignore[method-assign]
    try:
        return _FINISH(self)
    finally:
        SimFile.sync = sync  # type: ignore[method-assign]


class _SkipsOneSync:
    """A disk that skips the n-th directory sync, counted from 0."""

    def __init__(self, disk: Disk, number: int) -> None:
        self._disk = disk
        self._left = number

    def __getattr__(self, name: str) -> object:
        return getattr(self._disk, name)

    def sync_directory(self, path: str) -> None:
        self._left -= 1
        if self._left != -1:
            self._disk.sync_directory(path)


def _swap_without(number: int) -> Callable[..., None]:
    def swap(disk: Disk, *args: object, **kwargs: object) -> None:
        _SWAP(cast("Disk", _SkipsOneSync(disk, number)), *args, **kwargs)  # type: ignore[arg-type]

    return swap


def _forgetful_filler(header: BatchHeader) -> bytearray:
    return encode_filler(
        base_offset=header.base_offset, last_offset_delta=header.last_offset_delta, leader_epoch=header.leader_epoch
    )


_FINISH = GroupWriter.finish
_SWAP = storage.log.swap.put_in_place

Mutant = tuple[object, str, object, Callable[[Run], None], Crash]

MUTANTS: dict[str, Mutant] = {
    "the compacted file is not synced": (
        GroupWriter,
        "finish",
        _finish_unsynced,
        overwritten_keys,
        Crash.LOSE_ALL,
    ),
    "swap: the commit is not synced": (
        storage.log.partition_log,
        "put_in_place",
        _swap_without(0),
        passes_that_merge,
        Crash.TEAR,
    ),
    "swap: the originals' names are not synced": (
        storage.log.partition_log,
        "put_in_place",
        _swap_without(1),
        passes_that_merge,
        Crash.TEAR,
    ),
    "recovery: swaps are not completed": (
        storage.log.recovery,
        "finish_swaps",
        lambda disk, directory, names: names,
        overwritten_keys,
        Crash.KEEP_ALL,
    ),
    "recovery: originals stay": (
        storage.log.swap,
        "remove_if_exists",
        lambda *_: False,
        passes_that_merge,
        Crash.KEEP_ALL,
    ),
    "pass: a filler forgets its producer": (
        storage.compaction.pass_,
        "memory_filler",
        _forgetful_filler,
        producers_and_tombstones,
        Crash.LOSE_ALL,
    ),
    "pass: tombstones go at once": (
        storage.compaction.pass_,
        "find_survivors",
        lambda header, payload, key_map, rule: find_survivors(
            header, payload, key_map, replace(rule, now_ms=10**9)
        )._replace(stays=bytearray(value is not None for value in payload.values.to_list())),
        producers_and_tombstones,
        Crash.LOSE_ALL,
    ),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_forgotten_steps_are_found(mutant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The harness can fail: each of these faults breaks a law at some crash point."""
    owner, name, replacement, scenario, how = MUTANTS[mutant]
    monkeypatch.setattr(owner, name, replacement)
    with pytest.raises((AssertionError, StorageError, BatchError)):
        crash_everywhere(scenario, how, seeds=MANY_SEEDS)
