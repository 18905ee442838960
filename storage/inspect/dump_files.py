# SPDX-License-Identifier: Apache-2.0
"""Shows the content of one cache or checkpoint of a log."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from storage.files.names import (
    CLEANER_FILE,
    DAMAGE_FILE,
    EPOCH_FILE,
    HIGH_WATERMARK_FILE,
    INDEX_SUFFIX,
    LOG_START_FILE,
    PARTITION_FILE,
    RECOVERY_POINT_FILE,
    SEAL_SUFFIX,
    SNAPSHOT_SUFFIX,
    TIME_INDEX_SUFFIX,
    parse_offset_file_name,
)
from storage.inspect.files import read_small
from storage.inspect.formats import (
    CLEAN_FLAG,
    MalformedError,
    SlotView,
    newest_slot,
    parse_log_start,
    parse_offset_index,
    parse_recovery_point,
    parse_snapshot,
    parse_time_index,
)
from storage.inspect.sections import Row, Section
from storage.inspect.targets import file_kind
from storage.inspect.texts import (
    parse_cleaner_checkpoint,
    parse_damaged_ranges,
    parse_epochs,
    parse_high_watermarks,
    parse_partition_metadata,
)
from storage.segment.seal import SEAL_CHUNK_BYTES, MalformedSealError, decode_seal


def dump_small_file(path: str) -> Iterator[Section]:
    """Show any file of a log except a segment.

    Raises:
        MalformedError: it is damaged; the message says how.
        DiskAccessError, DiskReadError: it cannot be read.
    """
    name, kind = Path(path).name, file_kind(path)
    parsed = parse_offset_file_name(name)
    base_offset = parsed.base_offset if parsed is not None else 0
    content = read_small(path) or b""
    if kind == INDEX_SUFFIX:
        yield from _offset_index(name, content, base_offset)
    elif kind == TIME_INDEX_SUFFIX:
        yield from _time_index(name, content, base_offset)
    elif kind == SNAPSHOT_SUFFIX:
        yield from _snapshot(name, content)
    elif kind == SEAL_SUFFIX:
        yield from _seal(name, content)
    elif kind == RECOVERY_POINT_FILE:
        columns = (
            "slot",
            "counts",
            "sequence",
            "clean",
            "flushed_offset",
            "segment_base_offset",
            "segment_bytes",
            "problem",
        )
        yield _slots(name, parse_recovery_point(content), columns, has_flags=True)
    elif kind == LOG_START_FILE:
        columns = ("slot", "counts", "sequence", "log_start_offset", "problem")
        yield _slots(name, parse_log_start(content), columns, has_flags=False)
    elif kind == CLEANER_FILE:
        yield from _cleaner(name, content)
    else:
        yield _text(name, kind, content)


def _facts(name: str, facts: Mapping[str, object]) -> Section:
    return Section(kind="fact", title=name, columns=("name", "value"), rows=list(facts.items()))


def _offset_index(name: str, content: bytes, base_offset: int) -> Iterator[Section]:
    index = parse_offset_index(content)
    facts = {"entries": len(index.offsets), "log bytes covered": index.log_bytes, "end offset": index.end_offset}
    yield _facts(name, facts)
    rows = ((base_offset + offset, position) for offset, position in zip(index.offsets, index.positions, strict=True))
    yield Section(kind="entry", title="entries", columns=("base_offset", "position"), rows=rows)


def _time_index(name: str, content: bytes, base_offset: int) -> Iterator[Section]:
    index = parse_time_index(content)
    yield _facts(
        name,
        {
            "entries": len(index.offsets),
            "log bytes covered": index.log_bytes,
            "largest timestamp of the first batch, ms": index.first_timestamp_ms,
            "largest timestamp of the segment, ms": index.max_timestamp_ms,
        },
    )
    rows = ((stamp, base_offset + offset) for stamp, offset in zip(index.timestamps_ms, index.offsets, strict=True))
    yield Section(kind="entry", title="entries", columns=("timestamp_ms", "base_offset"), rows=rows)


def _snapshot(name: str, content: bytes) -> Iterator[Section]:
    snapshot = parse_snapshot(content)
    rows: list[Row] = [
        (entry.producer_id, entry.producer_epoch, entry.newest_ms, *(batch or (None, None, None)))
        for entry in snapshot.producers
        for batch in entry.batches or (None,)
    ]
    columns = ("producer_id", "producer_epoch", "newest_ms", "base_sequence", "base_offset", "last_offset_delta")
    yield Section(kind="window_batch", title=name, columns=columns, rows=rows)
    transactions = snapshot.transactions
    if transactions.next_offset:
        rows = [(*still_open, None, "open") for still_open in transactions.still_open]
        rows += [(*aborted, "aborted") for aborted in transactions.aborted]
        columns = ("producer_id", "first_offset", "last_offset", "state")
        yield Section(kind="transaction", title="transactions", columns=columns, rows=rows)
    if transactions.coordinators:
        columns = ("producer_id", "coordinator_epoch")
        yield Section(kind="coordinator", title="coordinators", columns=columns, rows=list(transactions.coordinators))


def _seal(name: str, content: bytes) -> Iterator[Section]:
    try:
        seal = decode_seal(content)
    except MalformedSealError as error:
        raise MalformedError(str(error)) from error
    yield _facts(
        name,
        {
            "log bytes": seal.log_bytes,
            "end offset": seal.end_offset,
            "largest timestamp, ms": seal.max_timestamp_ms,
        },
    )
    rows = ((number, number * SEAL_CHUNK_BYTES, f"{crc:08x}") for number, crc in enumerate(seal.chunk_crcs))
    yield Section(kind="chunk", title="chunks", columns=("chunk", "position", "crc32c"), rows=rows)


def _slots(name: str, slots: list[SlotView], columns: tuple[str, ...], *, has_flags: bool) -> Section:
    newest = newest_slot(slots)
    rows: list[Row] = []
    for number, slot in enumerate(slots):
        if slot.fault is not None:
            rows.append((number, False, *(None,) * (len(columns) - 3), slot.fault))
            continue
        flags: Row = (bool(slot.flags & CLEAN_FLAG),) if has_flags else ()
        rows.append((number, slot is newest, slot.sequence, *flags, *slot.values, None))
    return Section(kind="slot", title=name, columns=columns, rows=rows)


def _cleaner(name: str, content: bytes) -> Iterator[Section]:
    state = parse_cleaner_checkpoint(content)
    yield _facts(
        name,
        {
            "dirty offset": state.dirty_offset,
            "map offset": state.map_offset,
            # As in the file, -1 means none.
            "leader epoch": -1 if state.leader_epoch is None else state.leader_epoch,
            "next horizon, ms": -1 if state.next_horizon_ms is None else state.next_horizon_ms,
        },
    )
    yield Section(kind="segment", title="segments", columns=("base_offset", "size_bytes"), rows=state.segments)


def _text(name: str, kind: str | None, content: bytes) -> Section:
    """Show a text checkpoint."""
    if kind == EPOCH_FILE:
        rows = [tuple(entry) for entry in parse_epochs(content)]
        return Section(kind="epoch", title=name, columns=("leader_epoch", "start_offset"), rows=rows)
    if kind == DAMAGE_FILE:
        columns = ("segment_base_offset", "base_offset", "end_offset", "position", "end_position")
        rows = [tuple(getattr(each, column) for column in columns) for each in parse_damaged_ranges(content)]
        return Section(kind="damaged_range", title=name, columns=columns, rows=rows)
    if kind == HIGH_WATERMARK_FILE:
        entries = parse_high_watermarks(content)
        return Section(kind="high_watermark", title=name, columns=("partition", "high_watermark"), rows=entries)
    assert kind == PARTITION_FILE, f"{name}: no kind of file of a log"
    identity = parse_partition_metadata(content)
    columns = ("topic_id", "partition")
    return Section(kind="partition", title=name, columns=columns, rows=[(identity.topic_id.hex(), identity.partition)])
