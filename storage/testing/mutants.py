# SPDX-License-Identifier: Apache-2.0
"""Engines with one wrong decision each. The proofs must find every one, or they prove nothing.

While `applied` is entered, a mutant replaces attributes of the engine, or of the simulated device for a guarantee of
the device that the engine could break. This module uses two finders, the model and the crash points. The third one, the
corruption run, works on real directories: `integration_tests.crash.corrupt`.
Source: docs/storage.md section 10.
"""

from __future__ import annotations

import weakref
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from lograft.wire.checksum import crc32c

import storage.log.flush
import storage.log.partition_log
import storage.log.producer_snapshots
import storage.log.recovery
import storage.log.recovery_walk
import storage.log.restart
import storage.segment.offset_index
import storage.segment.scan
import storage.segment.time_index
from storage.errors import DiskFailedError
from storage.files.disk import Disk
from storage.log.epochs import LeaderEpochs
from storage.log.flush import FlushWork
from storage.log.partition_log import PartitionLog
from storage.log.producer_snapshots import ProducerSnapshots
from storage.log.producers import ProducerWindows
from storage.log.reader import LogReader
from storage.log.recovery_point import RecoveryPointFile
from storage.log.recovery_walk import UncleanWalk
from storage.testing import crash_points, model_mutants, model_run
from storage.testing.log_faults import CrashNow
from storage.testing.log_mutant import Finder, Mutant
from storage.testing.log_operations import FlushAll, LeadInVain
from storage.testing.sim_disk import SimFile

__all__ = ["MODEL_RUNS", "MODEL_STEPS", "MUTANTS", "Finder", "Mutant", "applied", "find"]

MODEL_RUNS = 200
MODEL_STEPS = 100
FAR_OFFSET = 2**62


class _Matching(int):
    """A checksum that equals every other one."""

    def __eq__(self, other: object) -> bool:
        return True

    def __ne__(self, other: object) -> bool:
        return False

    def __hash__(self) -> int:
        return 0


def _crc_of_anything(data: Any) -> int:
    return _Matching(crc32c(data))


def _nothing(*args: object, **kwargs: object) -> None:
    """Replace a step by nothing."""


def _no(*args: object, **kwargs: object) -> bool:
    return False


def _claim(work: FlushWork) -> None:
    work.is_done = True


_run, _sync = FlushWork.run, SimFile.sync
_failed: weakref.WeakSet[Any] = weakref.WeakSet()


def _run_again(work: FlushWork) -> None:
    try:
        _run(work)
    except DiskFailedError:
        work.error = None
        _run(work)


def _sync_of_a_kernel(file: Any) -> None:
    """Sync like Linux: after a failed sync the pages are clean, and the next sync succeeds without them."""
    if file._inode in _failed:
        return
    try:
        _sync(file)
    except DiskFailedError:
        _failed.add(file._inode)
        file._disk._boot.failure = None
        raise


def _sync_unless_cut(file: Any) -> None:
    versions = [file._inode.durable, *file._inode.versions]
    if len(versions) == 1 or len(versions[-1]) >= len(versions[-2]):
        _sync(file)


_LOG: Any = PartitionLog
_note_truncation, _roll = _LOG._note_truncation, _LOG._roll


def _forget_the_flush(log: Any, *args: Any) -> None:
    _note_truncation(log, *args)
    log._flush_cap = None


def _roll_without_name(log: Any, now_ms: int) -> Any:
    names_saved = log._names_saved
    new = _roll(log, now_ms)
    log._names_saved = names_saved
    return new


def _forget_in_memory_only(log: Any, to_offset: int) -> None:
    if log._epochs.truncate_suffix(to_offset):
        log._take_active()


class _SkipsDirectorySync:
    """A disk that skips one of its directory syncs, counted from 0."""

    def __init__(self, disk: Disk, number: int) -> None:
        self._disk = disk
        self._left = number

    def __getattr__(self, name: str) -> Any:
        return self._sync_directory if name == "sync_directory" else getattr(self._disk, name)

    def _sync_directory(self, path: str) -> None:
        self._left -= 1
        if self._left != -1:
            self._disk.sync_directory(path)


_restart_log = storage.log.restart.restart_log


def _restart_without_sync(number: int) -> Any:
    """Return a restart that skips one of its directory syncs."""

    def restart(disk: Disk, *arguments: Any) -> Any:
        forgetful: Any = _SkipsDirectorySync(disk, number)
        return _restart_log(forgetful, *arguments)

    return restart


_settle = UncleanWalk.settle


def _settle_without_sync(walk: Any, **arguments: Any) -> None:
    walk._verify_from = FAR_OFFSET
    _settle(walk, **arguments)


_replace_file = storage.log.flush.replace_file


def _replace_without_sync(disk: Any, path: str, content: bytes) -> None:
    _replace_file(disk, path, content, durable=False)


_decode_offsets: Any = storage.segment.offset_index.OffsetIndex.decode.__func__  # pyright: ignore[reportFunctionMemberAccess]
_decode_times: Any = storage.segment.time_index.TimeIndex.decode.__func__  # pyright: ignore[reportFunctionMemberAccess]
_COVERED = slice(-24, -4)
"""What an offset index covers, in its footer; a time index has this elsewhere."""


def _decode_stale_offsets(cls: Any, data: bytes, *, base_offset: int, log_bytes: int, end_offset: int) -> Any:
    covered = data[_COVERED]
    return _decode_offsets(
        cls,
        data,
        base_offset=base_offset,
        log_bytes=int.from_bytes(covered[:8], "big"),
        end_offset=int.from_bytes(covered[8:16], "big"),
    )


def _trust_read(reader: object, segment: Any, start: Any, data: bytes) -> Any:
    """Report all of a chunk as good."""
    position, offset = 0, start.offset
    while position < len(data):
        header = storage.segment.scan.read_header(data, position)
        position += header.size_bytes
        offset = header.next_offset
    return type(start)(offset, start.position + len(data))


MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        name="flush: acknowledged before anything is synced",
        finder=Finder.MODEL,
        patches=((FlushWork, "run", _claim),),
    ),
    Mutant(
        name="flush: a failed fsync is tried again",
        finder=Finder.MODEL,
        patches=((FlushWork, "run", _run_again), (SimFile, "sync", _sync_of_a_kernel)),
    ),
    Mutant(
        name="flush: a truncation meanwhile is forgotten",
        finder=Finder.MODEL,
        patches=((PartitionLog, "_note_truncation", _forget_the_flush),),
    ),
    Mutant(
        name="flush: data files are not synced",
        finder=Finder.CRASH_POINTS,
        patches=((SimFile, "sync", _nothing),),
        scenario=crash_points.appends_and_flushes,
    ),
    Mutant(
        name="flush: the epoch checkpoint is replaced without a sync",
        finder=Finder.CRASH_POINTS,
        patches=((storage.log.flush, "replace_file", _replace_without_sync),),
        scenario=crash_points.rolls_without_flush,
    ),
    Mutant(
        name="roll: the directory is not synced",
        finder=Finder.CRASH_POINTS,
        patches=((PartitionLog, "_roll", _roll_without_name),),
        scenario=crash_points.appends_and_flushes,
    ),
    Mutant(
        name="append: a sequence is taken twice",
        finder=Finder.MODEL,
        patches=((ProducerWindows, "check", _nothing),),
    ),
    Mutant(
        name="truncate: the recovery point is not lowered before",
        finder=Finder.CRASH_POINTS,
        patches=((RecoveryPointFile, "write_synced", RecoveryPointFile.write),),
        scenario=crash_points.truncations,
    ),
    Mutant(
        name="truncate: later segments are not removed",
        finder=Finder.CRASH_POINTS,
        patches=((storage.log.partition_log, "remove_if_exists", _no),),
        scenario=crash_points.truncations,
    ),
    Mutant(
        name="truncate: the cut is not synced",
        finder=Finder.MODEL,
        patches=((SimFile, "sync", _sync_unless_cut),),
    ),
    Mutant(
        name="truncate: epochs of the tail are kept",
        finder=Finder.MODEL,
        patches=((LeaderEpochs, "truncate_suffix", _no),),
    ),
    Mutant(
        name="truncate: an epoch without a record stays in the checkpoint",
        finder=Finder.MODEL,
        patches=((PartitionLog, "_forget_empty_epoch", _forget_in_memory_only),),
        focus=(LeadInVain, FlushAll, CrashNow),
    ),
    Mutant(
        name="truncate: idempotence windows of the tail are kept",
        finder=Finder.MODEL,
        patches=((ProducerWindows, "has_batch_from", _no),),
    ),
    Mutant(
        name="restart: records go before the mark is on stable storage",
        finder=Finder.CRASH_POINTS,
        patches=((storage.log.partition_log, "restart_log", _restart_without_sync(0)),),
        scenario=crash_points.restarts_anew,
    ),
    Mutant(
        name="restart: the mark goes before the records are gone for good",
        finder=Finder.CRASH_POINTS,
        patches=((storage.log.partition_log, "restart_log", _restart_without_sync(1)),),
        scenario=crash_points.restarts_anew,
    ),
    Mutant(
        name="restart: an opening does not finish it",
        finder=Finder.CRASH_POINTS,
        patches=((storage.log.recovery, "finish_restart", _nothing),),
        scenario=crash_points.restarts_anew,
    ),
    Mutant(
        name="recovery: an epoch is dropped",
        finder=Finder.MODEL,
        patches=((storage.log.recovery, "note_epoch", _nothing),),
    ),
    Mutant(
        name="recovery: what was read is not synced",
        finder=Finder.CRASH_POINTS,
        patches=((UncleanWalk, "settle", _settle_without_sync),),
        scenario=crash_points.appends_and_flushes,
    ),
    Mutant(
        name="recovery: a torn middle is called damage",
        finder=Finder.CRASH_POINTS,
        patches=((storage.log.recovery_walk, "shows_unwritten_sector", _no),),
        scenario=crash_points.large_batches,
    ),
    Mutant(
        name="recovery: a torn batch is taken, its CRC is not checked",
        finder=Finder.CRASH_POINTS,
        patches=((storage.segment.scan, "crc32c", _crc_of_anything),),
        scenario=crash_points.large_batches,
    ),
    Mutant(
        name="recovery: snapshots beyond the end are kept",
        finder=Finder.CRASH_POINTS,
        patches=((ProducerSnapshots, "remove_above", _no),),
        scenario=crash_points.rolls_without_flush,
    ),
    Mutant(
        name="recovery: the log is cut at a bad CRC in its middle",
        finder=Finder.CORRUPTION,
        patches=((UncleanWalk, "_judge", _no),),
    ),
    Mutant(
        name="index: a stale one is trusted",
        finder=Finder.CORRUPTION,
        patches=((storage.segment.offset_index.OffsetIndex, "decode", classmethod(_decode_stale_offsets)),),
    ),
    Mutant(
        name="index: its CRC is not checked",
        finder=Finder.CORRUPTION,
        patches=(
            (storage.segment.offset_index, "crc32c", _crc_of_anything),
            (storage.segment.time_index, "crc32c", _crc_of_anything),
        ),
    ),
    Mutant(
        name="snapshot: its CRC is not checked",
        finder=Finder.CORRUPTION,
        patches=((storage.log.producer_snapshots, "crc32c", _crc_of_anything),),
    ),
    Mutant(
        name="read: the first one is not checked",
        finder=Finder.CORRUPTION,
        patches=((LogReader, "_verify", _trust_read),),
    ),
    *model_mutants.MUTANTS,
)
"""All mutants; every new decision of the engine needs one."""


@contextmanager
def applied(mutant: Mutant) -> Generator[None]:
    """Apply the mutant, and restore the engine afterwards."""
    before = [(owner, name, vars(owner)[name]) for owner, name, _ in mutant.patches]
    try:
        for owner, name, replacement in mutant.patches:
            setattr(owner, name, replacement)
        yield
    finally:
        for owner, name, original in before:
            setattr(owner, name, original)


def find(mutant: Mutant) -> str | None:
    """Run the mutant's finder (model or crash points); return its message, or None if it finds nothing."""
    with applied(mutant):
        if mutant.finder is Finder.MODEL:
            failure = model_run.run_many(
                first_seed=0, runs=MODEL_RUNS, steps=MODEL_STEPS, focus=mutant.focus, compact=mutant.compact
            )
            return None if failure is None else str(failure)
        assert mutant.scenario is not None, f"{mutant.name} is found by another run"
        try:
            crash_points.crash_everywhere(mutant.scenario, crash_points.SCENARIOS[mutant.scenario])
        except crash_points.IllegalLogError as error:
            return str(error)
        return None
