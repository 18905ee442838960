# SPDX-License-Identifier: Apache-2.0
"""When flush groups share one sync of the file system."""

from __future__ import annotations

import pytest

from storage.files.sync_choice import EXCESS_HALF_LIFE_S, FREE_EXCESS_S, SyncChoice


def test_groups_share_a_sync_as_long_as_it_costs_what_theirs_would() -> None:
    """14 ms for 1,000 groups is not an excess."""
    choice = SyncChoice(4)
    assert choice.is_shared(1, now_s=0.0)
    choice.note_apart(0.001)
    choice.note_shared(0.014, 1_000, now_s=1.0)
    assert choice.excess_s(1.0) == 0.0
    assert choice.is_shared(2, now_s=1.0)


def test_after_a_sync_that_wrote_the_data_of_others_files_are_synced_apart_for_a_while() -> None:
    """The estimate halves in `EXCESS_HALF_LIFE_S`."""
    choice = SyncChoice(4)
    choice.note_shared(0.4, 10, now_s=0.0)
    excess_s = choice.excess_s(0.0)
    assert excess_s == pytest.approx((0.4 - 10 * 0.001) / 4)
    assert not choice.is_shared(10, now_s=0.0)
    assert choice.excess_s(EXCESS_HALF_LIFE_S) == pytest.approx(excess_s / 2)
    faded_s = next(now for now in range(1_000) if choice.excess_s(now) <= FREE_EXCESS_S)
    assert choice.is_shared(1, now_s=faded_s)


def test_very_many_groups_share_even_a_dear_sync() -> None:
    """Four threads with 1,000 files need 250 turns each, which takes longer than the data of others."""
    choice = SyncChoice(4)
    choice.note_shared(0.4, 10, now_s=0.0)
    assert choice.is_shared(1_000, now_s=0.0)


def test_what_one_file_takes_is_measured() -> None:
    """On a slow disk a shared sync may take longer before it counts as expensive."""
    slow, fast = SyncChoice(4), SyncChoice(4)
    for _ in range(20):
        slow.note_apart(0.03)
        fast.note_apart(0.0001)
    for choice in (slow, fast):
        choice.note_shared(0.1, 2, now_s=0.0)
    assert slow.is_shared(2, now_s=0.0)
    assert not fast.is_shared(2, now_s=0.0)


def test_where_the_system_cannot_files_are_always_synced_apart() -> None:
    """The call is never tried again."""
    choice = SyncChoice(4)
    choice.note_impossible()
    assert not choice.is_shared(1, now_s=0.0)
    assert not choice.is_shared(1_000, now_s=1e9)
