# SPDX-License-Identifier: Apache-2.0
"""Prefixes of the log: gaps, folds, usable and due snapshots; and the law that every compaction of a log gives the same state."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokerd.coordinator.core import Record
from brokerd.coordinator.limits import SNAPSHOT_LOG_BYTES
from brokerd.coordinator.prefix import LogPiece, PrefixFold, SnapshotId, is_snapshot_due, why_unusable
from brokerd.tests.coordinator.register_core import RegisterCodec, RegisterCore

CODEC = RegisterCodec()


def a_record(name: str, number: int) -> Record:
    return Record(name.encode(), b"%d 0  " % number if number else None)


def state_of(records: list[Record]) -> dict[str, tuple[int, str]]:
    core = RegisterCore()
    for each in records:
        core.replay(CODEC.decode(each))
    return core.registers


logs = st.lists(st.tuples(st.sampled_from("abcd"), st.integers(0, 5)).map(lambda pair: a_record(*pair)), max_size=30)


@st.composite
def compacted(draw: st.DrawFn) -> tuple[list[Record], list[int]]:
    """A log, and the offsets of one of its legal compactions."""
    log = draw(logs)
    last = {each.key: offset for offset, each in enumerate(log)}
    kept: list[int] = []
    for offset, each in enumerate(log):
        stays = draw(st.booleans()) if offset < last[each.key] else True
        if stays:
            kept.append(offset)
    # A tombstone may go once nothing older of its key is left.
    seen: set[bytes] = set()
    final: list[int] = []
    for offset in kept:
        each = log[offset]
        is_lone = each.value is None and offset == last[each.key] and each.key not in seen
        seen.add(each.key)
        if not (is_lone and draw(st.booleans())):
            final.append(offset)
    return log, final


@given(compacted())
def test_replay_of_every_compaction_gives_the_same_state(case: tuple[list[Record], list[int]]) -> None:
    """Any record but the last of its key may be missing, and lone tombstones too."""
    log, kept = case
    assert state_of([log[offset] for offset in kept]) == state_of(log)


@given(compacted(), st.integers(0, 30), st.integers(0, 30), st.integers(1, 7))
def test_snapshot_and_log_give_the_same_state_or_a_gap(
    case: tuple[list[Record], list[int]], first: int, second: int, width: int
) -> None:
    """Snapshots of a prefix, one made from the other, and the compacted log above them: equal to the log, or refused for a gap."""
    log, kept = case
    first, second = sorted((min(first, len(log)), min(second, len(log))))
    whole = pieces_of(log, list(range(len(log))), width)
    older = PrefixFold(0, may_have_gaps=True)
    for piece in clipped(whole, first):
        assert older.add(piece)
    snapshot = list(older.over(()))
    newer = PrefixFold(first, may_have_gaps=False)
    if all(newer.add(piece) for piece in clipped(pieces_of(log, kept, width), second)):
        snapshot, first = list(newer.over(snapshot)), max(first, second)
    assert all(each.value is not None for each in snapshot)
    assert len({each.key for each in snapshot}) == len(snapshot)
    assert state_of(snapshot) == state_of(log[:first])
    above = PrefixFold(first, may_have_gaps=False)
    if all(above.add(piece) for piece in pieces_of(log, kept, width)):
        assert state_of(list(above.over(snapshot))) == state_of(log)


def pieces_of(log: list[Record], kept: list[int], width: int) -> list[LogPiece]:
    """Cut a compacted log into pieces that cover `width` offsets each."""
    pieces: list[LogPiece] = []
    for base in range(0, len(log), width):
        end = min(base + width, len(log))
        offsets = [offset for offset in kept if base <= offset < end]
        pieces.append(LogPiece(base, end, offsets, [log[offset] for offset in offsets]))
    return pieces


def clipped(pieces: list[LogPiece], end: int) -> list[LogPiece]:
    """Cut pieces off at an end (exclusive)."""
    cut: list[LogPiece] = []
    for piece in pieces:
        if piece.base_offset < end:
            count = piece.count_below(end)
            cut.append(
                LogPiece(piece.base_offset, min(end, piece.next_offset), piece.offsets[:count], piece.records[:count])
            )
    return cut


def test_missing_tombstone_above_a_snapshot_would_bring_a_key_back() -> None:
    """The case for which gaps count: the snapshot has the key, and the log has lost its tombstone."""
    log = [a_record("a", 1), a_record("a", 0), a_record("b", 1)]
    piece = LogPiece(1, 3, [2], [log[2]])
    assert state_of([log[0], log[2]]) != state_of(log)
    assert not PrefixFold(1, may_have_gaps=False).add(piece)
    bare = PrefixFold(0, may_have_gaps=True)
    assert bare.add(LogPiece(0, 1, [], []))
    assert bare.add(piece)
    assert state_of(list(bare.over(()))) == state_of(log)


def test_fold_keeps_the_order_and_the_size_of_what_it_holds() -> None:
    """A record that replaces another goes to the end; what was replaced no longer counts."""
    fold = PrefixFold(0, may_have_gaps=False)
    records = [a_record("a", 1), a_record("b", 1), a_record("a", 2)]
    assert fold.add(LogPiece(0, 3, range(3), records))
    assert list(fold.over([a_record("c", 1), a_record("b", 9)])) == [a_record("c", 1), records[1], records[2]]
    once = PrefixFold(0, may_have_gaps=False)
    assert once.add(LogPiece(0, 2, range(2), [records[1], records[2]]))
    assert fold.size_bytes == once.size_bytes


def test_records_below_the_start_are_left_out() -> None:
    """A batch may begin below the end of the snapshot."""
    fold = PrefixFold(2, may_have_gaps=False)
    assert fold.add(LogPiece(0, 2, [0], [a_record("x", 1)]))
    assert fold.add(LogPiece(1, 4, [2, 3], [a_record("a", 1), a_record("b", 1)]))
    assert fold.next_offset == 4
    assert list(fold.over(())) == [a_record("a", 1), a_record("b", 1)]


@pytest.mark.parametrize(
    ("snapshot", "epoch", "text"),
    [
        (SnapshotId(10, 3), 3, None),
        (SnapshotId(20, 3), 3, None),
        (SnapshotId(5, 3), 3, None),
        (SnapshotId(21, 3), None, "above the log"),
        (SnapshotId(4, 3), 3, "below the log"),
        (SnapshotId(10, 3), 2, "has leader epoch 3, the log has 2"),
        (SnapshotId(10, 3), None, "the log has None"),
    ],
)
def test_snapshot_is_used_only_where_the_log_has_its_end(
    snapshot: SnapshotId, epoch: int | None, text: str | None
) -> None:
    """It ends inside the log, and the offset before its end has the same leader epoch."""
    why = why_unusable(snapshot, log_start_offset=5, log_end_offset=20, epoch_before_end=epoch)
    assert (why is None) == (text is None)
    assert text is None or text in (why or "")


@pytest.mark.parametrize(
    ("log_bytes", "snapshot_bytes", "high_watermark", "active_base", "is_due"),
    [
        (SNAPSHOT_LOG_BYTES, 0, 200, 0, True),
        (SNAPSHOT_LOG_BYTES - 1, 0, 200, 0, False),
        (SNAPSHOT_LOG_BYTES, 4 * SNAPSHOT_LOG_BYTES, 200, 0, False),
        (2 * SNAPSHOT_LOG_BYTES, 4 * SNAPSHOT_LOG_BYTES, 200, 0, True),
        (SNAPSHOT_LOG_BYTES, 0, 100, 0, False),
        (1, 0, 200, 150, True),
        (1, 0, 200, 100, False),
        (1, 0, 140, 150, False),
    ],
)
def test_snapshot_is_due_by_bytes_of_log_or_a_sealed_segment(
    log_bytes: int, snapshot_bytes: int, high_watermark: int, active_base: int, is_due: bool
) -> None:
    """By bytes, so that loading is bounded; by a sealed segment, so that the cleaner makes no gap above it; never without news."""
    assert is_due == is_snapshot_due(
        snapshot_end_offset=100,
        snapshot_bytes=snapshot_bytes,
        high_watermark=high_watermark,
        log_bytes_above=log_bytes,
        active_base_offset=active_base,
    )
