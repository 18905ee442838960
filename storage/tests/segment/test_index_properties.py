# SPDX-License-Identifier: Apache-2.0
"""Indexes compared with simple scans."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from storage.log.epochs import EpochStart, LeaderEpochs
from storage.segment.offset_index import OffsetIndex
from storage.segment.time_index import TimeIndex
from storage.types import Boundary

CI = settings(derandomize=True, deadline=None)

STEPS = st.lists(st.tuples(st.integers(1, 50), st.integers(1, 500)), max_size=30)


@CI
@given(base_offset=st.integers(0, 2**62), steps=STEPS, query=st.integers(0, 2_000), cut=st.integers(0, 20_000))
def test_offset_index_floors_as_a_scan_does(
    base_offset: int, steps: list[tuple[int, int]], query: int, cut: int
) -> None:
    """Both floors are those of a scan over all entries, before and after a truncation and a round trip."""
    index = OffsetIndex(base_offset)
    entries = [Boundary(base_offset, 0)]
    for offset_step, position_step in steps:
        entries.append(Boundary(entries[-1].offset + offset_step, entries[-1].position + position_step))
        index.add(*entries[-1])
    index.truncate(cut)
    entries = [entries[0], *(entry for entry in entries[1:] if entry.position < cut)]
    decoded = OffsetIndex.decode(
        index.encode(log_bytes=9, end_offset=8), base_offset=base_offset, log_bytes=9, end_offset=8
    )
    assert decoded is not None
    for either in (index, decoded):
        assert either.floor_offset(base_offset + query) == max(e for e in entries if e.offset <= base_offset + query)
        assert either.floor_position(query) == max(e for e in entries if e.position <= query)


@CI
@given(
    batches=st.lists(st.tuples(st.integers(1, 9), st.integers(0, 40), st.booleans()), max_size=40),
    query=st.integers(0, 45),
)
def test_time_index_never_skips_a_late_record(batches: list[tuple[int, int, bool]], query: int) -> None:
    """For any order of timestamps and any entries, no batch that is late enough is skipped."""
    index = TimeIndex(0)
    offset, highest = 0, 0
    times: list[tuple[int, int]] = []
    for count, timestamp_ms, is_noted in batches:
        times.append((offset, timestamp_ms))
        highest = max(highest, timestamp_ms)
        if is_noted:
            index.note(highest, offset)
        offset += count
    skipped = index.skip_to(query)
    assert all(timestamp_ms < query for base, timestamp_ms in times if skipped is not None and base <= skipped)


@CI
@given(steps=st.lists(st.tuples(st.integers(1, 3), st.integers(0, 4)), max_size=12), to_offset=st.integers(0, 40))
def test_epochs_answer_as_a_list_of_records_does(steps: list[tuple[int, int]], to_offset: int) -> None:
    """End offsets and epochs match the records themselves, after any truncation."""
    epochs = LeaderEpochs()
    records: list[int] = []
    epoch = 0
    for epoch_step, count in steps:
        epoch += epoch_step
        epochs.assign(epoch, len(records))
        records += [epoch] * count
    epochs.truncate_suffix(to_offset)
    del records[to_offset:]
    for offset, expected in enumerate(records):
        assert epochs.epoch_at(offset) == expected
    for asked in sorted(set(records)):
        end = epochs.end_offset_for(asked, len(records))
        assert end == (asked, len(records) - records[::-1].index(asked))
    decoded = LeaderEpochs.decode_entries(epochs.encode_entries())
    assert decoded is not None
    assert decoded.entries() == epochs.entries()
    assert all(isinstance(entry, EpochStart) for entry in decoded.entries())
