# SPDX-License-Identifier: Apache-2.0
"""The plan of a rebalance storm: who joins, leaves, crashes or stalls, and when. The same seed gives the same plan.

Pure: randomness comes from the seed alone, by a generator of its own (splitmix64), so that a seed means the same plan with
every version of Python.
Source: Steele, Lea, Flood, "Fast splittable pseudorandom number generators", 2014.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

MEMBERS_MAX: Final = 1_000
STEPS_MAX: Final = 100_000
_MASK: Final = 2**64 - 1


class Act(Enum):
    """What a member does in a step."""

    JOIN = "join"
    """A new member starts."""

    LEAVE = "leave"
    """The member is asked to end (SIGTERM)."""

    CRASH = "crash"
    """The member is killed (SIGKILL)."""

    STALL = "stall"
    """The member is paused (SIGSTOP) for the time of the step, and goes on then."""


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a storm.

    Attributes:
        pause_ms: milliseconds to wait before the step.
        act: what happens.
        member: number of the member, from 0; every member that joins gets the next one.
        stall_ms: milliseconds of a stall; 0 for every other act.
    """

    pause_ms: int
    act: Act
    member: int
    stall_ms: int = 0


def storm_plan(
    seed: int,
    *,
    step_count: int,
    member_count_min: int = 1,
    member_count_max: int = 5,
    pause_ms_max: int = 2_000,
    stall_ms_max: int = 3_000,
) -> Sequence[Step]:
    """Return the steps of a storm. First the least number of members join at once.

    Args:
        seed: any integer.
        step_count: number of steps after the first members have joined.
        member_count_min: never fewer members, at least 1.
        member_count_max: never more members.
        pause_ms_max: maximum milliseconds before a step.
        stall_ms_max: maximum milliseconds of a stall; 0: no member stalls.

    Raises:
        ValueError: a number is out of range.
    """
    if not 1 <= member_count_min <= member_count_max <= MEMBERS_MAX:
        raise ValueError(f"member counts {member_count_min} to {member_count_max} are not within 1 to {MEMBERS_MAX}")
    if not 0 <= step_count <= STEPS_MAX:
        raise ValueError(f"step_count {step_count} is not within 0 to {STEPS_MAX}")
    if pause_ms_max < 0 or stall_ms_max < 0:
        raise ValueError("pause_ms_max and stall_ms_max are at least 0 milliseconds")
    numbers = _Numbers(seed)
    members = list(range(member_count_min))
    steps = [Step(0, Act.JOIN, member) for member in members]
    joined = len(members)
    for _ in range(step_count):
        acts = [Act.STALL] if stall_ms_max > 0 else []
        if len(members) < member_count_max:
            acts += [Act.JOIN, Act.JOIN]
        if len(members) > member_count_min:
            acts += [Act.LEAVE, Act.CRASH]
        pause_ms = numbers.below(pause_ms_max + 1)
        if not acts:
            # The number of members may not change and no one may stall: a crash, and a join at once.
            member = members.pop(numbers.below(len(members)))
            steps.append(Step(pause_ms, Act.CRASH, member))
            act, pause_ms = Act.JOIN, 0
        else:
            act = acts[numbers.below(len(acts))]
        if act is Act.JOIN:
            member, joined = joined, joined + 1
            members.append(member)
        elif act is Act.STALL:
            member = members[numbers.below(len(members))]
        else:
            member = members.pop(numbers.below(len(members)))
        stall_ms = 1 + numbers.below(stall_ms_max) if act is Act.STALL else 0
        steps.append(Step(pause_ms, act, member, stall_ms))
    return steps


class _Numbers:
    """A sequence of numbers from a seed."""

    def __init__(self, seed: int) -> None:
        self._state = seed & _MASK

    def below(self, end: int) -> int:
        """Return the next number, from 0 to `end` (exclusive)."""
        self._state = (self._state + 0x9E3779B97F4A7C15) & _MASK
        mixed = self._state
        mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _MASK
        return (mixed ^ (mixed >> 31)) % end
