# SPDX-License-Identifier: Apache-2.0
"""A rebalance storm by seed: after each change all laws hold, and no more partitions move than the bound says."""

from __future__ import annotations

from collections import Counter

import pytest

from brokerd.groups.assignment.assignors import ASSIGNORS
from brokerd.tests.groups.assignment import assignment_laws as laws
from brokerd.tests.groups.assignment.seeded_groups import Storm, larger_share_must_change_racks

SEEDS = 25
STEPS = 80


@pytest.mark.parametrize("racks", [False, True], ids=["without racks", "racks"])
@pytest.mark.parametrize("equal", [False, True], ids=["differing", "equal"])
@pytest.mark.parametrize("name", sorted(ASSIGNORS))
def test_laws_and_bounds_hold_in_a_storm(name: str, equal: bool, racks: bool) -> None:
    """Joins, leaves, restarts, new subscriptions, growth, new and deleted topics, moved replicas: the laws hold after each."""
    counts = Counter[str]()
    for seed in range(SEEDS):
        storm = Storm(seed, name, equal, racks)
        storm.run(STEPS)
        counts.update(storm.counts)
    # The storm reaches what it is for.
    for change in ("_join", "_leave", "_restart", "_subscribe", "_grow", "_create_topic", "_delete_topic"):
        assert counts[change] >= SEEDS * STEPS // 40, counts
    assert counts["moved"] >= SEEDS * STEPS // 4, counts
    if name == "uniform" and equal and not racks:
        assert counts["moved"] == counts["fewest"], counts


def test_a_larger_share_changes_racks() -> None:
    """A rack gives up its larger share where that makes one more partition near."""
    members, topics = larger_share_must_change_racks()
    assignment = ASSIGNORS["uniform"].assign(members, topics)
    laws.check_uniform(members, topics, assignment)
    assert laws.near_count(members, topics, laws.owners_of(assignment)) == 4


def test_differing_subscriptions_move_little_more_than_the_fewest() -> None:
    """Over many changes, members with differing subscriptions move at most 5 % more than the fewest that balance allows."""
    moved = fewest = 0
    for seed in range(150):
        storm = Storm(seed, "uniform", equal=False, racks=False)
        for _ in range(12):
            storm.change()
            assignment = ASSIGNORS["uniform"].assign(storm.members, storm.topics)
            least = laws.fewest_moves_of_differing(storm.members, storm.topics)
            most = laws.moves(laws.valid_owners(storm.members, storm.topics), assignment)
            assert most >= least
            moved, fewest = moved + most, fewest + least
            storm.members = laws.owning(storm.members, assignment)
    assert fewest >= 100, fewest
    assert moved <= 1.05 * fewest, (moved, fewest)
