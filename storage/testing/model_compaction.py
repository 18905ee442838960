# SPDX-License-Identifier: Apache-2.0
"""Judges compaction from outside: what a list of batches may become, by what a reader sees before and after.

Laws
    Every offset is covered as before. No new record appears, and a record that stays keeps its key, value and
    timestamp.
    A record is removed only if a newer record of its key counts, if it belongs to an aborted transaction, or if it is a
    tombstone whose horizon has passed. Every reader ends with the same value of each key: nothing deleted comes back.
    A tombstone gets its horizon only when no older record of its key is left, and not earlier than the topic's setting.
    The end of a transaction stays at least as long as a record of it. Records without a key stay, and so do leader
    epochs. Batches in the producer state stay known.
    The pass touches nothing at or beyond its end, and nothing younger than the lag.

Pure. Source: docs/storage.md section 6.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from lograft.wire.batch import BatchHeader, BatchRecord, iter_batches

from storage.testing.model_batch import CompactionRule, ModelBatch
from storage.testing.model_producers import has_sequence, is_end

Records = dict[int, tuple[ModelBatch, BatchRecord]]
"""Records by offset, each with its batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Before:
    """A log before a swap.

    Attributes:
        batches: its batches.
        start_offset: its log start; records below it are ignored.
    """

    batches: list[ModelBatch]
    start_offset: int


def adopt_compacted(log: Before, found: bytes, rule: CompactionRule) -> list[ModelBatch]:
    """Return the batches of a log after a swap, from its bytes.

    Args:
        log: the log before.
        found: all bytes of the log now.
        rule: what the pass may do.

    Returns:
        The present batches of the pass's part, followed by the unchanged batches beyond it.

    Raises:
        AssertionError: the log breaks a law.
    """
    head = [batch for batch in log.batches if batch.header.next_offset <= rule.end_offset]
    if not head:
        return log.batches
    end_offset = head[-1].header.next_offset
    old = {batch.header.base_offset: batch for batch in head}
    seen: list[ModelBatch] = []
    for position, header in iter_batches(found):
        if header.base_offset >= end_offset:
            break
        data = found[position : position + header.size_bytes]
        same = old.get(header.base_offset)
        if same is not None and same.data == data:
            seen.append(same)
        else:
            seen.append(ModelBatch.standing(data, appended_ms=_appended_ms(head, header)))
    _check_cover(head, seen)
    _check_batches(head, seen)
    _check_ends(log, seen, rule)
    _check_memory(rule.known, head, seen)
    _check_records(replace(log, batches=head), seen, rule)
    return seen + log.batches[len(head) :]


def _appended_ms(before: list[ModelBatch], header: BatchHeader) -> int:
    covered = (
        batch.appended_ms
        for batch in before
        if batch.header.base_offset < header.next_offset and header.base_offset < batch.header.next_offset
    )
    return max(covered, default=0)


def _check_cover(before: list[ModelBatch], found: list[ModelBatch]) -> None:
    """Check that every offset is covered, by the leader epoch that it had."""
    assert found, f"nothing is left of {before[0].header.base_offset} to {before[-1].header.next_offset}"
    assert found[0].header.base_offset <= before[0].header.base_offset, f"the log begins at {found[0].header}"
    assert found[-1].header.next_offset == before[-1].header.next_offset, f"compacted offsets end at {found[-1].header}"
    for one, other in pairwise(found):
        assert one.header.next_offset == other.header.base_offset, f"{one.header} before {other.header}"
    for batch in found:
        for old in before:
            is_inside = batch.header.base_offset <= old.header.base_offset < batch.header.next_offset
            if is_inside:
                assert old.header.leader_epoch == batch.header.leader_epoch, f"{old.header} became {batch.header}"


def _check_batches(before: list[ModelBatch], found: list[ModelBatch]) -> None:
    """Check that a batch with records is the old one with fewer records, and that control batches other than ends are unchanged."""
    old_by_offset = {batch.header.base_offset: batch for batch in before}
    found_by_offset = {batch.header.base_offset: batch for batch in found}
    for batch in found:
        if batch.header.is_filler:
            continue
        old = old_by_offset.get(batch.header.base_offset)
        assert old is not None, f"no batch began at {batch.header.base_offset}"
        assert _identity(batch.header) == _identity(old.header), f"{old.header} became {batch.header}"
    for batch in before:
        if batch.header.is_control and not is_end(batch.header):
            after = found_by_offset.get(batch.header.base_offset)
            assert after is not None, f"a control batch went: {batch.header}"
            assert after.data == batch.data, f"a control batch changed: {batch.header}"


def _check_ends(log: Before, found: list[ModelBatch], rule: CompactionRule) -> None:
    """Check that an end gets its horizon when no record is left, and is removed then; a producer's newest end must stay."""
    left = {batch.header.base_offset: batch.header for batch in found if not batch.header.is_filler}
    newest = {batch.header.producer_id: batch.header for batch in log.batches if is_end(batch.header)}
    begun: dict[int, int] = {}
    for batch in log.batches:
        header = batch.header
        if not is_end(header) or header.next_offset > rule.end_offset:
            continue
        first_offset = begun.get(header.producer_id, 0)
        begun[header.producer_id] = header.next_offset
        records = [
            each.base_offset
            for each in left.values()
            if each.is_transactional and not each.is_control and each.producer_id == header.producer_id
            if first_offset <= each.base_offset < header.base_offset
        ]
        after, horizon_ms = left.get(header.base_offset), header.delete_horizon_ms
        if after is None:
            assert horizon_ms is not None, f"{header} went without a horizon"
            assert horizon_ms <= rule.now_ms, f"{header} went before its time"
            assert not records, f"{header} went, records of its transaction are left at {records}"
            is_memory = header.producer_id in rule.producers and newest[header.producer_id] == header
            assert not is_memory, f"{header} went, the memory of producer {header.producer_id}"
        elif horizon_ms is None and after.delete_horizon_ms is not None:
            assert not records, f"the time of {header} runs, records of its transaction are left at {records}"


def _identity(header: BatchHeader) -> tuple[object, ...]:
    return (
        header.base_offset,
        header.last_offset_delta,
        header.leader_epoch,
        header.is_control,
        header.is_transactional,
        header.producer_id,
        header.producer_epoch,
        header.base_sequence,
    )


def _check_memory(known: Sequence[BatchHeader], before: list[ModelBatch], found: list[ModelBatch]) -> None:
    """Check that the log still shows the batches of the producer state, so that every opening finds them again."""
    standing = {_sequence(batch.header) for batch in before if has_sequence(batch.header)}
    left = {_sequence(batch.header) for batch in found if has_sequence(batch.header)}
    for header in known:
        sequence = _sequence(header)
        assert sequence not in standing or sequence in left, f"the memory of {header} is lost"


def _sequence(header: BatchHeader) -> tuple[int, int, int, int, int]:
    return (
        header.producer_id,
        header.producer_epoch,
        header.base_sequence,
        header.base_offset,
        header.last_offset_delta,
    )


def _check_records(log: Before, found: list[ModelBatch], rule: CompactionRule) -> None:
    """Check that remaining records are unchanged, and that removed ones could be removed."""
    dropped = rule.aborted
    old = _by_offset(log.batches, log.start_offset)
    new = _by_offset(found, log.start_offset)
    strange = [offset for offset, (_, record) in new.items() if offset not in old or old[offset][1] != record]
    assert not strange, f"records were not there before: {strange}"
    newest: dict[bytes, int] = {}
    for offset, (batch, record) in old.items():
        counts = not batch.header.is_control and batch.header.base_offset not in dropped
        if record.key is not None and counts:
            newest[record.key] = offset
    for offset, (batch, record) in old.items():
        if offset in new:
            continue
        assert rule.now_ms - record.timestamp_ms >= rule.min_lag_ms, f"a young record went: {record}"
        if batch.header.base_offset in dropped or is_end(batch.header):
            continue
        assert record.key is not None, f"a record without a key went: {record}"
        assert not batch.header.is_control, f"a control record went: {record}"
        if newest[record.key] > offset:
            continue
        horizon_ms = batch.header.delete_horizon_ms
        is_over = record.value is None and horizon_ms is not None and horizon_ms <= rule.now_ms
        assert is_over, f"the newest record of its key went: {record}, horizon {horizon_ms}, now {rule.now_ms}"
    assert _view(old, dropped) == _view(new, dropped), "a reader ends with other values"
    _check_horizons(log, found, new, rule)


def _by_offset(batches: list[ModelBatch], start_offset: int) -> Records:
    return {
        record.offset: (batch, record) for batch in batches for record in batch.records if record.offset >= start_offset
    }


def _view(records: Records, dropped: frozenset[int]) -> dict[bytes, bytes]:
    """Return the final value of each key for a reader of committed records; a deleted key counts as one that never existed."""
    values: dict[bytes, bytes | None] = {}
    for _, (batch, record) in sorted(records.items()):
        if record.key is not None and not batch.header.is_control and batch.header.base_offset not in dropped:
            values[record.key] = record.value
    return {key: value for key, value in values.items() if value is not None}


def _check_horizons(log: Before, found: list[ModelBatch], new: Records, rule: CompactionRule) -> None:
    """Check that a tombstone's horizon follows the topic's setting, and is set only once no older record of its key is left."""
    old_by_offset = {batch.header.base_offset: batch for batch in log.batches}
    for batch in found:
        horizon_ms = batch.header.delete_horizon_ms
        if horizon_ms is None:
            continue
        known_ms = old_by_offset[batch.header.base_offset].header.delete_horizon_ms
        if known_ms is not None:
            assert horizon_ms == known_ms, f"a delete horizon moved from {known_ms} to {horizon_ms}"
            continue
        assert horizon_ms >= rule.now_ms + rule.retention_ms, f"a horizon of {horizon_ms} at {rule.now_ms}"
        for record in batch.records:
            older = [
                offset
                for offset, (other, each) in new.items()
                if each.key == record.key and offset < record.offset and other.header.base_offset not in rule.aborted
            ]
            is_tombstone = record.key is not None and record.value is None
            assert not (is_tombstone and older), f"the time of {record} runs, older ones are left at {older}"
