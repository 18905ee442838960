# SPDX-License-Identifier: Apache-2.0
"""Rebalance storms over real processes."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import psutil
import pytest
from lograft.testing import Act, MemberFailedError, RebalanceStorm, Step, storm_plan

pytestmark = pytest.mark.process

LAZY = "import signal\nwhile True: signal.pause()"


def command(number: int) -> Sequence[str]:
    """Return a member that runs until it is asked to end."""
    return [sys.executable, "-c", LAZY, str(number)]


def test_storm_carries_out_its_plan_and_leaves_nothing(tmp_path: Path) -> None:
    """Every step happens; those that remain run; after the end no member does."""
    plan = storm_plan(3, step_count=12, member_count_max=3, pause_ms_max=20, stall_ms_max=20)
    with RebalanceStorm(command, plan, directory=tmp_path) as storm:
        storm.run()
        assert storm.done == list(plan)
        joined = {step.member for step in plan if step.act is Act.JOIN}
        gone = {step.member for step in plan if step.act in (Act.LEAVE, Act.CRASH)}
        assert storm.members == sorted(joined - gone)
        processes = [psutil.Process(each.pid) for each in storm._members.values()]
        assert all(each.status() != psutil.STATUS_STOPPED for each in processes)
    assert not [each for each in processes if each.is_running()]


def test_member_that_ends_by_itself_fails_the_storm(tmp_path: Path) -> None:
    """The error names the member, its status and what it printed."""
    plan = [Step(0, Act.JOIN, 0), Step(3_000, Act.LEAVE, 0)]
    bad = [sys.executable, "-c", "print('no broker', flush=True); raise SystemExit(3)"]
    with RebalanceStorm(lambda _: bad, plan, directory=tmp_path) as storm:
        with pytest.raises(MemberFailedError, match=r"member 0 ended by itself with status 3\nno broker"):
            storm.run()
        assert storm.done == plan[:1]


def test_members_leave_when_they_are_asked(tmp_path: Path) -> None:
    """`leave` ends the members that remain."""
    plan = storm_plan(1, step_count=0, member_count_min=2)
    with RebalanceStorm(command, plan, directory=tmp_path) as storm:
        storm.run()
        assert storm.members == [0, 1]
        storm.leave()
        assert storm.members == []
