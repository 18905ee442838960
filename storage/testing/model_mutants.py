# SPDX-License-Identifier: Apache-2.0
"""Mutants of log start, retention, compaction, seals and transactions; the model finds each within a bounded number of seeds.

`mutants` says what a mutant is. Source: docs/storage.md sections 3 to 6.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from lograft.wire.filler import encode_filler
from lograft.wire.header import BatchHeader

import storage.compaction.pass_
import storage.log.log_start
import storage.log.partition_log
import storage.log.swap
import storage.maintenance.scrub
from storage.compaction.owner import LogCompaction
from storage.compaction.pass_ import CompactionPass
from storage.compaction.survivors import find_survivors
from storage.errors import FileMissingError
from storage.files.checkpoints import replace_file
from storage.files.disk import Buffer, Disk
from storage.files.names import CLEANED_SUFFIX
from storage.log.deleted import DeletedFiles
from storage.log.epochs import LeaderEpochs
from storage.log.log_start import LogStartFile
from storage.log.partition_log import PartitionLog
from storage.log.producers import ProducerWindows
from storage.log.retention import count_due
from storage.log.swap import put_in_place
from storage.log.transactions import Transactions
from storage.segment.seal import MalformedSealError, Seal, decode_seal
from storage.segment.segment import Segment
from storage.testing.log_appends import AppendRun
from storage.testing.log_compaction import Compact
from storage.testing.log_faults import CrashInside, CrashNow
from storage.testing.log_mutant import Finder, Mutant
from storage.testing.log_operations import CheckInDepth, FlushAll, TruncateSuffix
from storage.testing.log_prefix import (
    ApplyRetention,
    BeginPrefix,
    EndPrefix,
    ExpireProducers,
    MoveClock,
    RemoveDeleted,
    RollIfDue,
    RunPrefix,
    TruncatePrefix,
)
from storage.testing.log_scrub import EndScrub, RunScrub, StaleSeal
from storage.testing.log_transactions import AppendInTransaction
from storage.testing.log_world import Operation
from storage.testing.sim_disk import SimFile
from storage.types import HeadedBatch, LogSettings, PlacedBatch

FAR_OFFSET = 2**62
_LATER_MS = 10**9


def _nothing(*args: object, **kwargs: object) -> None:
    """Replace a step by nothing."""


def _no(*args: object, **kwargs: object) -> bool:
    return False


def _replace_without_sync(disk: Disk, path: str, content: bytes) -> None:
    replace_file(disk, path, content, durable=False)


_sync = SimFile.sync


def _sync_of_others(suffix: str) -> Any:
    """Return a sync that skips files with a suffix."""

    def sync(file: SimFile) -> None:
        if not file.path.endswith(suffix):
            _sync(file)

    return sync


class _NoDirectorySync:
    """A disk without directory syncs."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk

    def __getattr__(self, name: str) -> Any:
        return _nothing if name == "sync_directory" else getattr(self._disk, name)


def _swap_without_sync(disk: Disk, *args: Any, **arguments: Any) -> None:
    unsynced: Any = _NoDirectorySync(disk)
    put_in_place(unsynced, *args, **arguments)


def _forgetful_filler(header: BatchHeader) -> bytearray:
    return encode_filler(
        base_offset=header.base_offset,
        last_offset_delta=header.last_offset_delta,
        leader_epoch=header.leader_epoch,
        timestamp_ms=header.max_timestamp_ms,
    )


def _find_survivors_early(header: Any, payload: Any, key_map: Any, rule: Any) -> Any:
    return find_survivors(header, payload, key_map, replace(rule, retention_ms=0))


def _find_survivors_late(header: Any, payload: Any, key_map: Any, rule: Any) -> Any:
    return find_survivors(header, payload, key_map, replace(rule, now_ms=rule.now_ms + _LATER_MS))


def _find_survivors_everywhere(header: Any, payload: Any, key_map: Any, rule: Any) -> Any:
    """Treat the newest record of each key as replaced, if it is the only one of its batch."""
    found = find_survivors(header, payload, key_map, rule)
    return found if header.record_count > 1 or payload.keys is None else found._replace(stays=bytearray(1))


_facts = LogCompaction.facts


def _facts_to_the_end(owner: LogCompaction, high_watermark: int) -> Any:
    return replace(_facts(owner, high_watermark), stable_end_offset=FAR_OFFSET)


def _count_due_beyond(segments: Any, newest_ms: Any, view: Any) -> int:
    return count_due(segments, newest_ms, replace(view, high_watermark=FAR_OFFSET))


def _count_all(log: PartitionLog, high_watermark: int, now_ms: int) -> int:
    return log.segment_count


def _newest_never(max_timestamp_ms: int | None, written_ms: int) -> int:
    return 0


_take_due = DeletedFiles.take_due


def _take_all(deleted: DeletedFiles, *, now_ms: int, delay_ms: int) -> Any:
    return _take_due(deleted, now_ms=now_ms, delay_ms=0)


def _read_any_seal(disk: Disk, task: Any) -> Seal | None:
    try:
        return decode_seal(disk.read_file(task.seal_path))
    except (FileMissingError, MalformedSealError):
        return None


_placed_run: Any = PartitionLog._placed_run  # pyright: ignore[reportPrivateUsage]


def _placed_anyhow(run: Sequence[HeadedBatch], base_offset: int, leader_epoch: int) -> Any:
    """Place every batch, whether it continues the one before or not."""
    placed: list[PlacedBatch] = []
    parts: list[Buffer] = []
    position = 0
    for batch in run:
        found, buffers = _placed_run([batch], base_offset, leader_epoch)
        placed.append(found[0]._replace(position=position))
        parts += buffers
        base_offset = found[0].header.next_offset
        position += found[0].header.size_bytes
    return placed, parts


def _all_of_them(segment: Segment, placed: Sequence[PlacedBatch], settings: LogSettings) -> int:
    return len(placed)


def _none(*args: object) -> list[int]:
    return []


_PREFIX = (TruncatePrefix, ApplyRetention, BeginPrefix, RunPrefix, EndPrefix, CrashNow)
_PASSES = (Compact, FlushAll, RollIfDue, MoveClock)
_CRASHED_PASSES = (Compact, FlushAll, RollIfDue, MoveClock, CrashInside)


def _mutant(
    name: str,
    *patches: tuple[object, str, object],
    focus: tuple[type[Operation], ...] = _PREFIX,
    compact: bool | None = None,
) -> Mutant:
    return Mutant(name=name, finder=Finder.MODEL, patches=patches, focus=focus, compact=compact)


_PREFIX_MUTANTS = (
    _mutant(
        "log start: not on stable storage before segments go",
        (storage.log.log_start, "replace_file", _replace_without_sync),
        (SimFile, "sync", _sync_of_others("log-start")),
    ),
    _mutant(
        "log start: a removal in flight does not hold back a cut",
        (PartitionLog, "_floor_offset", property(lambda log: log.log_start_offset)),
        focus=(BeginPrefix, TruncateSuffix),
    ),
    _mutant("log start: leader epochs below stay", (LeaderEpochs, "truncate_prefix", _no)),
    _mutant(
        "log start: not synced at the opening that removes because of it",
        (LogStartFile, "sync", _nothing),
        focus=(CrashInside,),
        compact=False,
    ),
    _mutant(
        "retention: beyond the high watermark",
        (storage.log.partition_log, "count_due", _count_due_beyond),
        compact=False,
    ),
    _mutant("retention: the active segment goes", (PartitionLog, "_count_due", _count_all)),
    _mutant(
        "retention: everything counts as old",
        (storage.log.partition_log, "newest_record_ms", _newest_never),
        compact=False,
    ),
    _mutant(
        "retention: files are removed at once",
        (DeletedFiles, "take_due", _take_all),
        focus=(TruncatePrefix, RemoveDeleted),
    ),
    _mutant(
        "seal: trusted without a check",
        (storage.maintenance.scrub, "_read_seal", _read_any_seal),
        (storage.maintenance.scrub, "differing_chunks", _none),
        focus=(FlushAll, RunScrub, EndScrub, StaleSeal, MoveClock),
    ),
    _mutant(
        "transactions: an aborted one counts",
        (Transactions, "restore_aborted", _nothing),
        focus=(AppendInTransaction, CheckInDepth),
    ),
    _mutant(
        "transactions: a producer is forgotten in one",
        (ProducerWindows, "_is_in_transaction", _no),
        focus=(AppendInTransaction, ExpireProducers, MoveClock),
    ),
)

_RUN_MUTANTS = (
    _mutant(
        "run: a batch that does not continue the one before goes through",
        (PartitionLog, "_placed_run", staticmethod(_placed_anyhow)),
        focus=(AppendRun,),
    ),
    _mutant(
        "run: a segment grows beyond its size",
        (Segment, "count_fitting", _all_of_them),
        focus=(AppendRun, CheckInDepth),
    ),
)

_COMPACTION_MUTANTS = (
    _mutant(
        "compaction: a swap syncs no directory",
        (storage.log.partition_log, "put_in_place", _swap_without_sync),
        focus=(*_CRASHED_PASSES, CrashNow),
        compact=True,
    ),
    _mutant(
        "compaction: the new segment is not synced",
        (SimFile, "sync", _sync_of_others(CLEANED_SUFFIX)),
        focus=(*_CRASHED_PASSES, CrashNow),
        compact=True,
    ),
    _mutant(
        "compaction: an unfinished swap is left",
        (storage.log.swap, "parse_swap_file_name", _nothing),
        focus=_CRASHED_PASSES,
        compact=True,
    ),
    _mutant(
        "compaction: originals stay beside a finished swap",
        (storage.log.swap, "remove_if_exists", _no),
        focus=_CRASHED_PASSES,
        compact=True,
    ),
    _mutant(
        "compaction: a filler forgets its sequences",
        (storage.compaction.pass_, "memory_filler", _forgetful_filler),
        focus=_PASSES,
        compact=True,
    ),
    _mutant(
        "compaction: the horizon of a tombstone is too early",
        (storage.compaction.pass_, "find_survivors", _find_survivors_early),
        focus=_PASSES,
        compact=True,
    ),
    _mutant(
        "compaction: a tombstone goes before its horizon",
        (storage.compaction.pass_, "find_survivors", _find_survivors_late),
        focus=_PASSES,
        compact=True,
    ),
    _mutant(
        "compaction: a newest record goes",
        (storage.compaction.pass_, "find_survivors", _find_survivors_everywhere),
        focus=_PASSES,
        compact=True,
    ),
    _mutant(
        "compaction: an aborted record counts",
        (CompactionPass, "_is_aborted", _no),
        focus=(Compact, FlushAll, AppendInTransaction),
        compact=True,
    ),
    _mutant(
        "compaction: what is not flushed is touched",
        (LogCompaction, "facts", _facts_to_the_end),
        focus=_PASSES,
        compact=True,
    ),
)

MUTANTS: tuple[Mutant, ...] = (*_PREFIX_MUTANTS, *_RUN_MUTANTS, *_COMPACTION_MUTANTS)
"""All mutants of this module."""
