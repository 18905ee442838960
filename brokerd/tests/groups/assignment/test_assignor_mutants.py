# SPDX-License-Identifier: Apache-2.0
"""Deliberate mistakes in the assignors, each of which the laws must find. Otherwise they prove nothing."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from brokerd.groups.assignment import numbered, range_assignor, sharing
from brokerd.groups.assignment.assignors import ASSIGNORS
from brokerd.groups.assignment.differing import _Shares  # pyright: ignore[reportPrivateUsage]
from brokerd.groups.assignment.numbered import Numbered
from brokerd.groups.assignment.racks import _Choice  # pyright: ignore[reportPrivateUsage]
from brokerd.tests.groups.assignment import assignment_laws as laws
from brokerd.tests.groups.assignment.seeded_groups import Storm, larger_share_must_change_racks
from metaquorum.testing.mutants import Mutant, apply

SEEDS = 30
STEPS = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class AssignorMutant(Mutant):
    """A mistake, and the storm that hunts it."""

    assignor: str = "uniform"
    equal: bool = True
    racks: bool = False


MUTANTS = (
    AssignorMutant(
        name="a member keeps what it no longer subscribes to",
        owner=Numbered,
        function="owners",
        old="if topic is None or topic_id not in spec.topics:",
        new="if topic is None:",
        equal=False,
    ),
    AssignorMutant(
        name="a partition beyond the end of a topic belongs to the next one",
        owner=Numbered,
        function="owners",
        old="if topic is None or topic_id not in spec.topics:",
        new="partitions = tuple(partition + 1 for partition in partitions)\n            if topic is None:",
    ),
    AssignorMutant(
        name="members stand in the order of their arrival",
        owner=numbered,
        function="_in_order",
        old="return sorted(members, key=_order)",
        new="return list(members)",
        assignor="range",
    ),
    AssignorMutant(
        name="static members stand by member id",
        owner=numbered,
        function="_order",
        old="member.member_id if member.instance_id is None else member.instance_id",
        new="member.member_id",
        assignor="range",
    ),
    AssignorMutant(
        name="everybody may have a larger share",
        owner=sharing,
        function="_share_evenly",
        old="if len(held[member]) > base][:larger]",
        new="if len(held[member]) > base]",
    ),
    AssignorMutant(
        name="larger shares go to the first members, not to those that have more",
        owner=sharing,
        function="_share_evenly",
        old="is_larger = dict.fromkeys(above, True)",
        new="is_larger = {}",
    ),
    AssignorMutant(
        name="a giver gives one more than it must",
        owner=sharing,
        function="_share_evenly",
        old="loose += share_of_member[:-missing]\n            released -= missing",
        new="loose += share_of_member[: 1 - missing]\n            released -= missing\n            room.append((member, 1))",
    ),
    AssignorMutant(
        name="ranges give the remainder to the last members",
        owner=range_assignor,
        function="_ranges",
        old="(position < larger)",
        new="(position >= len(members) - larger)",
        assignor="range",
    ),
    AssignorMutant(
        name="topics are alike by their number of partitions alone",
        owner=range_assignor,
        function="_alike",
        old="tuple(subscriptions)), [])",
        new="tuple(range(len(group.subscriptions)))), [])",
        assignor="range",
        equal=False,
    ),
    AssignorMutant(
        name="each topic is alike to itself only",
        owner=range_assignor,
        function="_alike",
        old="(group.topics[topic].partition_count, tuple(subscriptions))",
        new="((group.topics[topic].partition_count, topic), tuple(subscriptions))",
        assignor="range",
        racks=True,
    ),
    AssignorMutant(
        name="near to one of the topics that are alike is near",
        owner=range_assignor,
        function="_common_homes",
        old="tuple(rack for rack in common if rack in home)",
        new="common",
        assignor="range",
        racks=True,
    ),
    AssignorMutant(
        name="the racks of clients do not matter",
        owner=numbered,
        function="_homes",
        old="if len(rack_numbers) < 2:",
        new="if True:",
        racks=True,
    ),
    AssignorMutant(
        name="no augmenting path is searched",
        owner=_Choice,
        function="push_on",
        old="if home and self._lookups_left > 0 else None",
        new="if not home else None",
        racks=True,
    ),
    AssignorMutant(
        name="no rack gives up a larger share",
        owner=_Choice,
        function="_search",
        old="if not is_any_larger_reached and self._may_be_larger(rack):",
        new="if False:",
        racks=True,
    ),
    AssignorMutant(
        name="a near partition is not kept where it is",
        owner=_Choice,
        function="keep_near",
        old="if home and self._rack_of.get(owner) in home:",
        new="if False:",
        racks=True,
    ),
    AssignorMutant(
        name="a far partition is not kept where it is",
        owner=_Choice,
        function="fill",
        old="if rack is not None and room[rack] > 0 and kept.get(owner, 0) < most:",
        new="if False:",
        racks=True,
    ),
    AssignorMutant(
        name="chains have one step",
        owner=_Shares,
        function="_chain",
        old="frontier = [member for _, givers in came_by[round_start:] for member in _bits(givers)]",
        new="frontier = []",
        equal=False,
    ),
    AssignorMutant(
        name="a chain may end at a member with one more",
        owner=_Shares,
        function="even_out",
        old="larger = todo & ~smallest & ~self._sizes.members_with.get(size + 1, 0)",
        new="larger = todo & ~smallest & ~self._sizes.members_with.get(size + 1, 0) & ~self._sizes.members_with.get(size + 2, 0)",
        equal=False,
    ),
    AssignorMutant(
        name="a loose partition goes to anybody",
        owner=_Shares,
        function="give_loose",
        old="self._smallest(self._subscribers[topic])[1]",
        new="self._smallest(-1)[1]",
        equal=False,
    ),
    AssignorMutant(
        name="an exchange for racks must make two partitions near",
        owner=_Shares,
        function="_return_for",
        old="if from_rack not in home or to_rack in home:",
        new="if from_rack not in home and to_rack in home:",
        equal=False,
        racks=True,
    ),
    AssignorMutant(
        name="no member moves a partition to one that has one fewer and is near",
        owner=_Shares,
        function="bring_near",
        old="if shorter:",
        new="if False:",
        equal=False,
        racks=True,
    ),
)


def hunt(mutant: AssignorMutant) -> None:
    """Judge a scripted group, and storms by seed."""
    members, topics = larger_share_must_change_racks()
    laws.LAWS[mutant.assignor](members, topics, ASSIGNORS[mutant.assignor].assign(members, topics))
    for seed in range(SEEDS):
        Storm(seed, mutant.assignor, mutant.equal, mutant.racks).run(STEPS)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_the_laws_find_the_mutant(mutant: AssignorMutant) -> None:
    """A scripted group or a storm over the mutant breaks a law, or the assignor itself."""
    with apply(mutant), pytest.raises((AssertionError, LookupError)):
        hunt(mutant)
