# SPDX-License-Identifier: Apache-2.0
"""What compaction may make of a list of batches, judged from outside: by what a reader sees before and after.

Laws
    Every offset is covered as before. No record appears that was not there, and what stays is the same: key, value, timestamp.
    A record goes only if a newer one of its key is there that counts, if it belongs to an aborted transaction, or if it is a
    tombstone whose time is over. Whoever reads the log ends with the same value of each key: nothing deleted comes back.
    A tombstone gets its time only when nothing older of its key is left, and no earlier one than the topic asks for.
    The end of a transaction stays as long as a record of it does, and longer. Records without a key stay; leader epochs stay;
    what is in an idempotence window stays known.
    Nothing at or beyond the end of the pass is touched, and nothing younger than the lag.

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
        start_offset: its log start: records below are not looked at.
    """

    batches: list[ModelBatch]
    start_offset: int


def adopt_compacted(log: Before, found: bytes, rule: CompactionRule) -> list[ModelBatch]:
    """Return the batches that bytes of a log show, in the place of those that stood there before a swap.

    Args:
        log: the log before.
        found: all bytes of the log now.
        rule: what the pass may do.

    Returns:
        What stands in the pass's part now, followed by the batches beyond it as they were before.

    Raises:
        AssertionError: a law is broken.
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
    """Every offset is covered, and by the leader epoch that it had."""
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
    """A batch with records is the one that stood there, with fewer records; control batches are as they were, but for ends."""
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
    """The end of a transaction gets its time when no record of it is left, and goes then; the newest one of a producer stays."""
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
    """What is in a window is still told by the log, so that every opening finds it again."""
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
    """What stays is what was, and what went may go."""
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
    """Return the value of each key that a reader of committed records ends with; a deleted key is as one that never was."""
    values: dict[bytes, bytes | None] = {}
    for _, (batch, record) in sorted(records.items()):
        if record.key is not None and not batch.header.is_control and batch.header.base_offset not in dropped:
            values[record.key] = record.value
    return {key: value for key, value in values.items() if value is not None}


def _check_horizons(log: Before, found: list[ModelBatch], new: Records, rule: CompactionRule) -> None:
    """A tombstone's time is what the topic asks for, and runs only once nothing older of its key is left."""
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
