# SPDX-License-Identifier: Apache-2.0
"""The cleaner checkpoint: what a log remembers of compaction, and how far it trusts that."""

from __future__ import annotations

from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage.files.checkpoints import MalformedTextError, encode_lines
from storage.log.cleaner_checkpoint import CleanState, SegmentSize, decode_state

SIZES = (SegmentSize(0, 100), SegmentSize(10, 50), SegmentSize(20, 70))
STATE = CleanState(dirty_offset=25, map_offset=15, leader_epoch=3, next_horizon_ms=9, segments=SIZES)

numbers = st.integers(0, 2**62)


@settings(max_examples=50, deadline=None, derandomize=True, database=None)
@given(
    st.builds(
        CleanState,
        dirty_offset=numbers,
        map_offset=numbers,
        leader_epoch=st.one_of(st.none(), numbers),
        next_horizon_ms=st.one_of(st.none(), numbers),
        segments=st.lists(st.builds(SegmentSize, numbers, numbers), max_size=3).map(tuple),
    )
)
def test_the_checkpoint_reads_back(state: CleanState) -> None:
    """The decoded state is the encoded one."""
    assert decode_state(state.encode()) == state


@pytest.mark.parametrize(
    "change",
    [
        lambda lines: lines[:3],
        lambda lines: [],
        lambda lines: [lines[1], lines[0], *lines[2:]],
        lambda lines: ["dirty_offset x", *lines[1:]],
        lambda lines: [*lines, "1 2 3"],
        lambda lines: [*lines, "1 x"],
    ],
)
def test_other_lines_are_no_checkpoint(change: object) -> None:
    """No part of them is used."""
    assert callable(change)
    with pytest.raises(MalformedTextError):
        decode_state(change(STATE.encode()))
    assert encode_lines(STATE.encode()).startswith(b"0\n7\ndirty_offset 25\n")


def test_a_log_that_is_the_same_is_believed() -> None:
    """It is trusted as far as it was compacted."""
    assert STATE.offsets_of(leader_epoch=3, sealed=SIZES, sealed_end=30) == (15, 25)
    assert STATE.offsets_of(leader_epoch=3, sealed=[*SIZES, SegmentSize(30, 5)], sealed_end=40) == (15, 25)
    # Retention took the first segment.
    assert STATE.offsets_of(leader_epoch=3, sealed=SIZES[1:], sealed_end=30) == (15, 25)


def test_a_log_that_changed_is_dirty_from_there() -> None:
    """A segment of another size, a shorter log, another history."""
    changed = [SIZES[0], SegmentSize(10, 51), SIZES[2]]
    assert STATE.offsets_of(leader_epoch=3, sealed=changed, sealed_end=30) == (10, 10)
    assert STATE.offsets_of(leader_epoch=3, sealed=SIZES[:2], sealed_end=20) == (15, 20)
    assert STATE.offsets_of(leader_epoch=3, sealed=SIZES[:1], sealed_end=10) == (10, 10)
    assert STATE.offsets_of(leader_epoch=4, sealed=SIZES, sealed_end=30) == (0, 0)
    assert STATE.offsets_of(leader_epoch=None, sealed=SIZES, sealed_end=30) == (0, 0)


def test_a_pass_is_remembered_with_the_segments_below_its_end() -> None:
    """The state keeps the sizes of the segments that begin below the dirty offset."""
    outcome = partial(CleanState.after, map_offset=15, next_horizon_ms=9, leader_epoch=3)
    assert outcome(dirty_offset=25, segments=[*SIZES, SegmentSize(25, 1)]) == STATE
    assert outcome(dirty_offset=20, segments=SIZES).segments == SIZES[:2]
