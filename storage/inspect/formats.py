# SPDX-License-Identifier: Apache-2.0
"""Parsers of the binary files beside a segment: indexes, producer snapshots, and two-slot files. Pure.

Each parser returns a value or raises `MalformedError` with the reason. The parsers follow the tables of
docs/storage_format.md, sections 2.2 to 2.7, and do not use the engine's decoders. Those only decide between using and
rebuilding a file. A judge that used them would also miss a mistake that a decoder shares with its encoder. Two formats
have no second reader: seals (`storage.segment.seal`), and the lines of text checkpoints (`texts`), which are too simple
to misread.
"""

from __future__ import annotations

import struct
from array import array
from dataclasses import dataclass
from typing import NamedTuple

from lograft.wire.checksum import crc32c
from lograft.wire.limits import DEDUP_WINDOW_BATCHES

from storage.files.disk import SECTOR_BYTES
from storage.segment.offset_index import to_big_endian

SLOT_COUNT = 2
"""Number of slots in `recovery-point` and `log-start`."""

CLEAN_FLAG = 1
"""Flag bit of a recovery point: the log was closed cleanly."""

_CRC_BYTES = 4
_INDEX_FOOTER = struct.Struct(">4sHHIQqI")
_INDEX_ENTRY_BYTES = 8
_TIME_FOOTER = struct.Struct(">4sHHIQqqI")
_TIME_ENTRY_BYTES = 12
_TIMESTAMP_BYTES = 8
_SNAPSHOT_HEAD = struct.Struct(">hIi")
_SNAPSHOT_CRC_START = 6
_PRODUCER = struct.Struct(">qhhq")
_PRODUCED = struct.Struct(">iqi")
_OPEN = struct.Struct(">qq")
_ABORTED = struct.Struct(">qqq")
_TRANSACTIONS = struct.Struct(">qii")
_COORDINATOR_COUNT = struct.Struct(">i")
_COORDINATOR = struct.Struct(">qi")
_VERSION = 1
_SNAPSHOT_VERSION = 2


class MalformedError(Exception):
    """The bytes do not follow the format; the message says why."""


class OffsetIndexFile(NamedTuple):
    """An offset index: relative offsets and positions of its entries, and the log size and end that it covers."""

    offsets: array[int]
    positions: array[int]
    log_bytes: int
    end_offset: int


class TimeIndexFile(NamedTuple):
    """A time index: timestamps in milliseconds and relative offsets of its entries, and the log size that it covers."""

    timestamps_ms: array[int]
    offsets: array[int]
    log_bytes: int
    first_timestamp_ms: int
    max_timestamp_ms: int


class WindowBatch(NamedTuple):
    """One remembered batch of a producer."""

    base_sequence: int
    base_offset: int
    last_offset_delta: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowEntry:
    """One producer of a snapshot; `newest_ms` is the fourth field of the format, as it is in the file."""

    producer_id: int
    producer_epoch: int
    newest_ms: int
    batches: tuple[WindowBatch, ...]


class OpenTransaction(NamedTuple):
    """A transaction that has not ended: its producer, and the offset of its first record."""

    producer_id: int
    first_offset: int


class AbortedTransaction(NamedTuple):
    """An aborted transaction, from its first record to its end marker (both inclusive)."""

    producer_id: int
    first_offset: int
    last_offset: int


class CoordinatorEpoch(NamedTuple):
    """A producer, and the largest epoch of a coordinator that ended one of its transactions."""

    producer_id: int
    coordinator_epoch: int


class TransactionsView(NamedTuple):
    """The transactions of a snapshot; `next_offset` is the offset after the newest transactional batch."""

    next_offset: int
    still_open: tuple[OpenTransaction, ...]
    aborted: tuple[AbortedTransaction, ...]
    coordinators: tuple[CoordinatorEpoch, ...] = ()


NO_TRANSACTIONS = TransactionsView(0, (), ())
"""The value for a snapshot without transactions."""


class SnapshotFile(NamedTuple):
    """The content of a producer snapshot."""

    producers: tuple[WindowEntry, ...]
    transactions: TransactionsView


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotView:
    """One slot of a two-slot file: its content, or what is wrong with it."""

    sequence: int
    flags: int
    values: tuple[int, ...]
    fault: str | None


def parse_offset_index(content: bytes) -> OffsetIndexFile:
    """Parse an offset index.

    Raises:
        MalformedError: the content is not an offset index.
    """
    entries_end = _entries_end(content, _INDEX_FOOTER)
    magic, version, _, count, log_bytes, end_offset, crc = _INDEX_FOOTER.unpack_from(content, entries_end)
    _check_footer(content, magic, b"LGIX", version, crc)
    _check_size(entries_end, count, _INDEX_ENTRY_BYTES)
    flat = _numbers("I", content[:entries_end])
    return OffsetIndexFile(flat[0::2], flat[1::2], log_bytes, end_offset)


def parse_time_index(content: bytes) -> TimeIndexFile:
    """Parse a time index.

    Raises:
        MalformedError: the content is not a time index.
    """
    entries_end = _entries_end(content, _TIME_FOOTER)
    magic, version, _, count, log_bytes, first_ms, max_ms, crc = _TIME_FOOTER.unpack_from(content, entries_end)
    _check_footer(content, magic, b"LGTX", version, crc)
    _check_size(entries_end, count, _TIME_ENTRY_BYTES)
    split = count * _TIMESTAMP_BYTES
    timestamps_ms, offsets = _numbers("q", content[:split]), _numbers("I", content[split:entries_end])
    return TimeIndexFile(timestamps_ms, offsets, log_bytes, first_ms, max_ms)


def _entries_end(content: bytes, footer: struct.Struct) -> int:
    if len(content) < footer.size:
        raise MalformedError(f"{len(content)} bytes, the footer alone has {footer.size}")
    return len(content) - footer.size


def _check_footer(content: bytes, magic: bytes, expected: bytes, version: int, crc: int) -> None:
    if magic != expected:
        raise MalformedError(f"the footer begins with {magic!r}, not with {expected!r}")
    if version != _VERSION:
        raise MalformedError(f"version {version}, this reader knows {_VERSION}")
    if crc32c(memoryview(content)[:-_CRC_BYTES]) != crc:
        raise MalformedError("its CRC does not match")


def _check_size(entries_end: int, count: int, entry_bytes: int) -> None:
    if entries_end != count * entry_bytes:
        raise MalformedError(f"{entries_end} bytes of entries, {count} entries take {count * entry_bytes}")


def _numbers(code: str, content: bytes) -> array[int]:
    numbers: array[int] = array(code, content)
    to_big_endian(numbers)
    return numbers


def parse_snapshot(content: bytes) -> SnapshotFile:
    """Parse a producer snapshot.

    Raises:
        MalformedError: the content is not a producer snapshot.
    """
    if len(content) < _SNAPSHOT_HEAD.size:
        raise MalformedError(f"{len(content)} bytes, the head alone has {_SNAPSHOT_HEAD.size}")
    version, crc, count = _SNAPSHOT_HEAD.unpack_from(content)
    if version != _SNAPSHOT_VERSION:
        raise MalformedError(f"version {version}, this reader knows {_SNAPSHOT_VERSION}")
    if crc32c(memoryview(content)[_SNAPSHOT_CRC_START:]) != crc:
        raise MalformedError("its CRC does not match")
    position = _SNAPSHOT_HEAD.size
    entries: list[WindowEntry] = []
    transactions = NO_TRANSACTIONS
    try:
        for _ in range(count):
            entry, position = _parse_producer(content, position)
            entries.append(entry)
        if position < len(content):
            transactions, position = _parse_transactions(content, position)
    except struct.error:
        raise MalformedError(f"it ends inside an entry, behind {len(entries)} of {count} producers") from None
    if position != len(content):
        raise MalformedError(f"{len(content) - position} bytes follow the last entry")
    ids = [entry.producer_id for entry in entries]
    if ids != sorted(set(ids)):
        raise MalformedError("the producers do not ascend")
    return SnapshotFile(tuple(entries), transactions)


def _parse_producer(content: bytes, position: int) -> tuple[WindowEntry, int]:
    producer_id, producer_epoch, batch_count, newest_ms = _PRODUCER.unpack_from(content, position)
    position += _PRODUCER.size
    if not 0 <= batch_count <= DEDUP_WINDOW_BATCHES:
        raise MalformedError(
            f"producer {producer_id} has {batch_count} batches, 0 to {DEDUP_WINDOW_BATCHES} are allowed"
        )
    batches: list[WindowBatch] = []
    for _ in range(batch_count):
        batches.append(WindowBatch._make(_PRODUCED.unpack_from(content, position)))
        position += _PRODUCED.size
    entry = WindowEntry(
        producer_id=producer_id, producer_epoch=producer_epoch, newest_ms=newest_ms, batches=tuple(batches)
    )
    return entry, position


def _parse_transactions(content: bytes, position: int) -> tuple[TransactionsView, int]:
    next_offset, open_count, aborted_count = _TRANSACTIONS.unpack_from(content, position)
    position += _TRANSACTIONS.size
    still_open: list[OpenTransaction] = []
    for _ in range(open_count):
        still_open.append(OpenTransaction._make(_OPEN.unpack_from(content, position)))
        position += _OPEN.size
    aborted: list[AbortedTransaction] = []
    for _ in range(aborted_count):
        aborted.append(AbortedTransaction._make(_ABORTED.unpack_from(content, position)))
        position += _ABORTED.size
    coordinators: list[CoordinatorEpoch] = []
    if position < len(content):
        (coordinator_count,) = _COORDINATOR_COUNT.unpack_from(content, position)
        position += _COORDINATOR_COUNT.size
        for _ in range(coordinator_count):
            coordinators.append(CoordinatorEpoch._make(_COORDINATOR.unpack_from(content, position)))
            position += _COORDINATOR.size
    return TransactionsView(next_offset, tuple(still_open), tuple(aborted), tuple(coordinators)), position


def parse_recovery_point(content: bytes) -> list[SlotView]:
    """Parse both slots of `recovery-point`: flushed offset; base offset and size of the last segment (0 unless clean)."""
    return _parse_slots(content, b"LGRP", 3)


def parse_log_start(content: bytes) -> list[SlotView]:
    """Parse both slots of `log-start`: the log start offset."""
    return _parse_slots(content, b"LGLS", 1)


def newest_slot(slots: list[SlotView]) -> SlotView | None:
    """Return the valid slot with the larger sequence; None if no slot is valid."""
    return max((slot for slot in slots if slot.fault is None), key=lambda slot: slot.sequence, default=None)


def _parse_slots(content: bytes, magic: bytes, field_count: int) -> list[SlotView]:
    return [
        _parse_slot(content[number * SECTOR_BYTES : (number + 1) * SECTOR_BYTES], number, magic, field_count)
        for number in range(SLOT_COUNT)
    ]


def _parse_slot(slot: bytes, number: int, expected: bytes, field_count: int) -> SlotView:
    body = struct.Struct(f">4sHHQ{field_count}q")
    if len(slot) < SECTOR_BYTES:
        return _bad_slot(f"the file has {len(slot)} of its {SECTOR_BYTES} bytes")
    if not any(slot):
        return _bad_slot("it was never written")
    magic, version, flags, sequence, *values = body.unpack_from(slot)
    if crc32c(slot[: body.size]) != int.from_bytes(slot[body.size : body.size + _CRC_BYTES], "big"):
        return _bad_slot("its CRC does not match")
    if (magic, version) != (expected, _VERSION):
        return _bad_slot(f"it begins with {magic!r}, version {version}")
    if sequence % SLOT_COUNT != number:
        return _bad_slot(f"it has sequence {sequence}, which belongs to the other slot")
    return SlotView(sequence=sequence, flags=flags, values=tuple(values), fault=None)


def _bad_slot(fault: str) -> SlotView:
    return SlotView(sequence=0, flags=0, values=(), fault=fault)


def was_never_written(content: bytes) -> bool:
    """Tell whether a file has sectors that no device received: it is empty, or one of its sectors is all zero.

    Caches are written without a sync, so a power failure may leave this. Damage looks different.
    """
    sectors = range(0, len(content), SECTOR_BYTES)
    return any(not any(content[position : position + SECTOR_BYTES]) for position in sectors) or not content
