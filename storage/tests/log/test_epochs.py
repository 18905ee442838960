# SPDX-License-Identifier: Apache-2.0
"""The leader-epoch cache."""

from __future__ import annotations

import pytest

from storage.files.checkpoints import MalformedTextError
from storage.log.epochs import EpochStart, LeaderEpochs
from storage.types import EpochEnd


def filled() -> LeaderEpochs:
    return LeaderEpochs([EpochStart(2, 10), EpochStart(5, 20), EpochStart(6, 30)])


@pytest.mark.parametrize(
    ("epoch", "expected"),
    [(0, (0, 10)), (1, (1, 10)), (2, (2, 20)), (3, (2, 20)), (4, (2, 20)), (5, (5, 30)), (6, (6, 42)), (7, None)],
)
def test_end_offset_for_epoch(epoch: int, expected: tuple[int, int] | None) -> None:
    """The largest epoch at or below the requested one ends where the next begins; the last one at the log end (KIP-279)."""
    assert filled().end_offset_for(epoch, 42) == (None if expected is None else EpochEnd(*expected))


def test_empty_cache_knows_nothing() -> None:
    """A log that never had a record has no epoch."""
    assert LeaderEpochs().last_epoch is None
    assert LeaderEpochs().end_offset_for(0, 0) is None
    assert LeaderEpochs().epoch_at(0) is None


def test_assign_last_epoch_again_changes_nothing() -> None:
    """Only the first record of an epoch makes an entry."""
    epochs = filled()
    epochs.assign(6, 35)
    assert epochs.entries() == filled().entries()


def test_assign_forgets_epochs_without_records() -> None:
    """An epoch that began at the same offset has no record."""
    epochs = filled()
    epochs.assign(8, 30)
    assert epochs.entries() == [EpochStart(2, 10), EpochStart(5, 20), EpochStart(8, 30)]
    assert epochs.last_epoch == 8


def test_assign_lower_epoch_is_a_programmer_error() -> None:
    """Epochs never go back."""
    with pytest.raises(AssertionError):
        filled().assign(4, 40)


@pytest.mark.parametrize(("offset", "epoch"), [(9, None), (10, 2), (19, 2), (20, 5), (29, 5), (30, 6), (1_000, 6)])
def test_epoch_at(offset: int, epoch: int | None) -> None:
    """Each record belongs to the last epoch that began at or before it."""
    assert filled().epoch_at(offset) == epoch


@pytest.mark.parametrize(("to_offset", "left"), [(0, 0), (10, 0), (11, 1), (30, 2), (31, 3)])
def test_truncate_suffix(to_offset: int, left: int) -> None:
    """Epochs that begin at the new end or beyond are forgotten."""
    epochs = filled()
    assert epochs.truncate_suffix(to_offset) == (left < 3)
    assert len(epochs.entries()) == left


def test_divergence_of_an_unknown_epoch_is_a_programmer_error() -> None:
    """The caller must first reject an epoch above all known ones."""
    with pytest.raises(AssertionError):
        filled().divergence(last_epoch=7, fetch_offset=0, log_end_offset=42)


def test_lines_round_trip() -> None:
    """The decoded checkpoint gives the same cache."""
    decoded = LeaderEpochs.decode_entries(filled().encode_entries())
    assert decoded is not None
    assert decoded.entries() == filled().entries()


@pytest.mark.parametrize(
    "lines", [["1"], ["a 1"], ["1 a"], ["1 -1"], ["1 2 3"], ["2 10", "2 20"], ["2 10", "1 20"], ["2 10", "3 10"], [""]]
)
def test_impossible_lines_are_not_used(lines: list[str]) -> None:
    """Lines that are not a strictly increasing list of pairs are refused."""
    with pytest.raises(MalformedTextError):
        LeaderEpochs.decode_entries(lines)


@pytest.mark.parametrize(
    ("offset", "end"), [(0, 10), (9, 10), (10, 20), (19, 20), (20, 30), (30, 42), (41, 42), (42, 42)]
)
def test_end_of_the_run_at_an_offset(offset: int, end: int) -> None:
    """The records of an epoch end where the next one begins, those of the last epoch at the log end."""
    assert filled().end_at(offset, 42) == end
    assert LeaderEpochs().end_at(offset, 42) == 42


@pytest.mark.parametrize(
    ("epoch", "start", "expected"),
    [
        (5, 15, [(2, 10), (5, 15), (6, 30)]),
        (3, 15, [(2, 10), (3, 15), (5, 20), (6, 30)]),
        (6, 29, [(2, 10), (5, 20), (6, 29)]),
        (1, 5, [(1, 5), (2, 10), (5, 20), (6, 30)]),
        (2, 5, [(2, 5), (5, 20), (6, 30)]),
    ],
)
def test_epoch_that_begins_earlier_than_was_known(epoch: int, start: int, expected: list[tuple[int, int]]) -> None:
    """It moves back, or is inserted between two others."""
    epochs = filled()
    epochs.begin_earlier(epoch, start)
    assert epochs.entries() == expected
