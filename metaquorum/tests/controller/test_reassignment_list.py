# SPDX-License-Identifier: Apache-2.0
"""The list of reassignments under way: pages, names, topics that are deleted between two pages."""

from __future__ import annotations

from itertools import pairwise

import pytest

from metaquorum.controller.commands import DeleteTopic, Reassignment, ReassignPartitions
from metaquorum.controller.reassignment import ListCursor, list_reassignments
from metaquorum.tests.controller_world import World

MOVING = [("a", 1), ("b", 0), ("b", 2), ("d", 1)]


@pytest.fixture
def world() -> World:
    """Brokers 0 and 1; topics a to d with three partitions on 0, four of which move to 1."""
    made = World()
    for broker_id in (0, 1):
        made.start_broker(broker_id)
    for topic in "abcd":
        made.write_topic(topic, (0,), partition_count=3)
    moves = tuple(Reassignment(topic=topic, partition=number, replicas=(1,)) for topic, number in MOVING)
    made.run(ReassignPartitions(reassignments=moves))
    return made


def pages(world: World, topics: tuple[str, ...] | None = None) -> list[list[tuple[str, int]]]:
    """Return all pages."""
    found: list[list[tuple[str, int]]] = []
    cursor: ListCursor | None = None
    while True:
        page = list_reassignments(world.image, world.settings, cursor, topics)
        found.append([(topic, partition.partition) for topic, partition in page.found])
        assert all(partition.adding == (1,) for _, partition in page.found)
        cursor = page.then
        if cursor is None:
            return found


def test_one_page_has_all_of_a_small_cluster(world: World) -> None:
    """Ordered by topic and partition; partitions that do not move are not listed."""
    assert pages(world) == [MOVING]
    assert pages(world, ("b", "none", "c", "b")) == [[("b", 0), ("b", 2)]]
    assert pages(world, ("none",)) == [[]]


@pytest.mark.parametrize("limit", ["max_sweep_partitions", "max_listed_reassignments"])
@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("topics", [None, ("d", "b", "a")])
def test_pages_together_are_the_list_whatever_their_size(
    world: World, limit: str, size: int, topics: tuple[str, ...] | None
) -> None:
    """A page ends at either limit, even inside a topic, and the next one continues there."""
    world.limit(**{limit: size})
    found = pages(world, topics)
    assert len(found) > 1
    assert all(len(page) <= size for page in found)
    flat = [each for page in found for each in page]
    assert flat == MOVING
    assert all(first < second for first, second in pairwise(flat))


def test_list_goes_on_behind_a_topic_that_is_gone(world: World) -> None:
    """A topic may be deleted between two pages."""
    world.limit(max_sweep_partitions=4)
    page = list_reassignments(world.image, world.settings, None)
    assert page.then == ListCursor(topic="b", next_partition=1)
    world.run(DeleteTopic(topic="b"))
    rest = list_reassignments(world.image, world.settings, page.then)
    assert (rest.found, rest.then) == ((), ListCursor(topic="d", next_partition=1))
    assert [topic for topic, _ in list_reassignments(world.image, world.settings, rest.then).found] == ["d"]
