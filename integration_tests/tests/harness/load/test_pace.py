# SPDX-License-Identifier: Apache-2.0
"""The pace of a load: due operations and process pauses."""

from __future__ import annotations

from integration_tests.harness.load.pace import STANDSTILL_S_MIN, TICK_S, Pace, touches


def look(pace: Pace, now_s: float) -> int:
    """Take the due operations and rest, as a load does."""
    due = pace.due(now_s)
    pace.rest(now_s)
    return due


def test_what_is_due_follows_the_rate() -> None:
    """Whenever one looks, all that became due since is given, once."""
    pace = Pace(10.0)
    pace.start(100.0)
    assert [look(pace, now_s) for now_s in (100.0, 100.25, 100.375, 101.0)] == [0, 2, 1, 7]
    assert pace.next_s == 101.0 + TICK_S
    assert pace.standstills == []


def test_standstill_is_noted_and_nothing_of_it_is_due() -> None:
    """A check that comes far too late shows a pause. The pace continues from there."""
    pace = Pace(10.0)
    pace.start(100.0)
    look(pace, 100.0)
    expected_s = pace.next_s
    late_s = expected_s + STANDSTILL_S_MIN + 5.0
    assert look(pace, late_s) == 0
    assert pace.standstills == [(expected_s, late_s)]
    assert look(pace, late_s + 0.5) == 5
    assert len(pace.standstills) == 1


def test_spans_touch_when_they_have_a_moment_in_common() -> None:
    """The end of one is not the beginning of another."""
    assert touches([(6.0, 8.0)], 7.0, 7.5)
    assert touches([(1.0, 2.0), (6.0, 8.0)], 5.0, 6.5)
    assert not touches([(6.0, 8.0)], 8.0, 9.0)
    assert not touches([], 8.0, 9.0)
