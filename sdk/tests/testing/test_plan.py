# SPDX-License-Identifier: Apache-2.0
"""Plans of rebalance storms: the same for the same seed, within their bounds, with every act."""

from __future__ import annotations

from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lograft.testing import Act, Step, storm_plan

PLAN_OF_7: Final = [
    Step(0, Act.JOIN, 0),
    Step(1_542, Act.STALL, 0, 1_204),
    Step(76, Act.STALL, 0, 1_183),
    Step(71, Act.JOIN, 1),
    Step(544, Act.JOIN, 2),
]


@given(
    seed=st.integers(),
    least=st.integers(1, 4),
    more=st.integers(0, 4),
    step_count=st.integers(0, 60),
    stall_ms_max=st.sampled_from([0, 100]),
)
def test_plan_keeps_its_bounds(seed: int, least: int, more: int, step_count: int, stall_ms_max: int) -> None:
    """Only members that run leave, crash or stall; their number stays within its bounds; waits stay within theirs."""
    plan = storm_plan(
        seed,
        step_count=step_count,
        member_count_min=least,
        member_count_max=least + more,
        pause_ms_max=50,
        stall_ms_max=stall_ms_max,
    )
    running: set[int] = set()
    for number, step in enumerate(plan):
        assert 0 <= step.pause_ms <= 50
        assert (1 <= step.stall_ms <= stall_ms_max) if step.act is Act.STALL else step.stall_ms == 0
        if step.act is Act.JOIN:
            assert step.member not in running
            running.add(step.member)
        else:
            assert step.member in running
            if step.act is not Act.STALL:
                running.remove(step.member)
        if number >= least - 1:
            # A member that must not be missed is followed at once by another one.
            assert least <= len(running) + (step.act is Act.CRASH)
            assert len(running) <= least + more
    assert len(running) >= least


def test_seed_chooses_the_plan() -> None:
    """A seed means the same plan for ever; another seed means another one."""
    plan = storm_plan(7, step_count=4)
    assert plan == storm_plan(7, step_count=4) != storm_plan(8, step_count=4)
    assert list(plan) == PLAN_OF_7


def test_long_plan_has_every_act() -> None:
    """No act is forgotten."""
    assert {step.act for step in storm_plan(1, step_count=100)} == set(Act)


@pytest.mark.parametrize(
    "arguments",
    [
        {"member_count_min": 0},
        {"member_count_min": 3, "member_count_max": 2},
        {"pause_ms_max": -1},
        {"stall_ms_max": -1},
        {"step_count": -1},
    ],
)
def test_numbers_out_of_range_are_refused(arguments: dict[str, int]) -> None:
    """A plan that makes no sense is an error."""
    with pytest.raises(ValueError, match=r"within|at least"):
        storm_plan(1, **{"step_count": 1, **arguments})
