# SPDX-License-Identifier: Apache-2.0
"""The feed of topics: all of them to a new core, then what changes for groups, and nothing else."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from brokerd.coordinator.internal_topics import GROUPS
from brokerd.coordinator.unserved import UnservedError, loading, overloaded
from brokerd.groups import topic_feed
from brokerd.groups.commands import ConfigChanged, DefaultsChanged, TopicsChanged
from brokerd.groups.core import GroupCore
from brokerd.groups.records import GroupRecord, GroupValue, OffsetRecord, OffsetValue
from brokerd.groups.topic_feed import TopicFeed
from brokerd.tests.committed_records import broker, commit, topic
from brokerd.tests.groups.coordinator_host import compiler
from brokerd.tests.support import WAIT_S
from metaquorum.metadata.loader import MetadataLoader
from metaquorum.metadata.records import (
    ConfigRecord,
    ConfigResource,
    LeaderChange,
    PartitionChangeRecord,
    RemoveTopicRecord,
)

FIRST, SECOND = b"1" * 16, b"2" * 16


class Coordinators:
    """Takes what the feed hands in. The cores are real; a test says how a submission fails.

    Attributes:
        taken: partition and command of each submission that succeeded.
        configs: the same of configs.
        failures: failures of the next submissions.
        is_open: True once a test changes configs while topics are there.
    """

    def __init__(self) -> None:
        self.observer = MetadataLoader()
        self.taken: list[tuple[int, TopicsChanged]] = []
        self.configs: list[tuple[int, ConfigChanged | DefaultsChanged]] = []
        self.failures: list[UnservedError] = []
        self.attempts = 0
        self.is_open = False
        self.cores: dict[int, GroupCore] = {}
        self.feed = TopicFeed(self.observer, submit=self.submit, core=self.cores.get)
        self.feed.start()

    def begin(self, partition: int = 0) -> GroupCore:
        """Begin with an empty core."""
        core = self.cores[partition] = GroupCore(compiler)
        core.tick(0)
        self.feed.begin(partition)
        return core

    async def submit(self, partition: int, command: TopicsChanged | ConfigChanged | DefaultsChanged) -> None:
        self.attempts += 1
        if self.failures:
            raise self.failures.pop(0)
        self.cores[partition].decide(command, 1)
        if isinstance(command, TopicsChanged):
            self.taken.append((partition, command))
        else:
            assert not self.cores[partition].state.topics.is_loaded or self.is_open, "topics before configs"
            self.configs.append((partition, command))

    async def took(self, count: int) -> list[TopicsChanged]:
        """Wait for a number of commands, let the feed run on for a moment, and return them all."""
        async with asyncio.timeout(WAIT_S):
            while len(self.taken) < count:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
        for _ in range(10):
            await asyncio.sleep(0)
        assert len(self.taken) == count
        return [command for _, command in self.taken]


async def test_new_core_gets_all_topics_and_then_changes() -> None:
    """Creation and deletion come one by one, with the offset of the metadata that says so."""
    here = Coordinators()
    commit(here.observer, *topic("a", FIRST), *topic("__b", SECOND, 3))
    core = here.begin()
    (first,) = await here.took(1)
    assert first.is_complete
    assert first.metadata_offset == here.observer.metadata_offset
    assert [(each.name, each.partition_count, each.is_internal, each.racks) for each in first.topics] == [
        ("__b", 3, True, ()),
        ("a", 1, False, ()),
    ]
    commit(here.observer, *topic("c", b"3" * 16))
    *_, second = await here.took(2)
    assert ([each.name for each in second.topics], second.is_complete) == (["c"], False)
    commit(here.observer, RemoveTopicRecord(topic_id=FIRST))
    *_, third = await here.took(3)
    assert (third.topics, third.deleted) == ((), (FIRST,))
    assert core.state.topics.get(FIRST) is None
    assert core.state.topics.metadata_offset == here.observer.metadata_offset
    await here.feed.stop()


async def test_elections_are_not_handed_in_and_racks_are() -> None:
    """A change of a leader says nothing to a group; the rack of a replica's broker does."""
    here = Coordinators()
    commit(here.observer, broker(1), *topic("a", FIRST))
    here.begin()
    await here.took(1)
    commit(
        here.observer, PartitionChangeRecord(topic_id=FIRST, partition=0, leader=LeaderChange(leader_id=None), isr=(1,))
    )
    await here.took(1)
    commit(here.observer, replace(broker(1), rack="r1"))
    *_, second = await here.took(2)
    assert [each.racks for each in second.topics] == [(frozenset({"r1"}),)]
    commit(here.observer, replace(broker(1), rack="r1", broker_epoch=2))
    await here.took(2)
    await here.feed.stop()


async def test_offsets_of_a_topic_that_was_deleted_before_the_load_are_named() -> None:
    """Deleted is what the metadata knows as deleted. A topic that it has never heard of may come yet."""
    here = Coordinators()
    commit(here.observer, *topic("a", FIRST))
    commit(here.observer, RemoveTopicRecord(topic_id=FIRST))
    core = GroupCore(compiler)
    for topic_id in (FIRST, b"?" * 16):
        core.replay(OffsetRecord("g", topic_id, 0, OffsetValue(offset=1, commit_ms=1)))
    here.cores[0] = core
    core.tick(0)
    here.feed.begin(0)
    (first,) = await here.took(1)
    assert first.deleted == (FIRST,)
    await here.feed.stop()


async def test_group_that_has_seen_newer_metadata_gets_the_topics_when_it_is_here() -> None:
    """The metadata may get there by records that change no topic, so that no change would tell."""
    here = Coordinators()
    commit(here.observer, *topic("a", FIRST))
    core = GroupCore(compiler)
    newest = here.observer.metadata_offset + 2
    core.replay(GroupRecord("g", GroupValue(metadata_offset=newest, empty_since_ms=0)))
    here.cores[0] = core
    core.tick(0)
    here.feed.begin(0)
    await here.took(1)
    group = core.state.group("g")
    assert group is not None
    assert not core.state.knows_topics_of(group)
    commit(here.observer, is_control=True)
    await here.took(1)
    commit(here.observer, is_control=True)
    first, second = await here.took(2)
    assert (first.is_complete, second.is_complete) == (True, True)
    assert core.state.knows_topics_of(group)
    await here.feed.stop()


async def test_overloaded_coordinator_gets_the_topics_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """What changes meanwhile comes with the next command, in its latest state."""
    monkeypatch.setattr(topic_feed, "FEED_RETRY_MS", 1)
    here = Coordinators()
    here.failures = [UnservedError(overloaded("p", "many commands"))] * 3
    here.begin()
    commit(here.observer, *topic("a", FIRST))
    commands = await here.took(1 if here.attempts == 0 else 2)
    assert here.attempts >= 4
    assert {each.name for command in commands for each in command.topics} == {"a"}
    await here.feed.stop()


async def test_line_ends_with_its_leadership() -> None:
    """A coordinator that is loading again gets everything with its next core; others are not disturbed."""
    here = Coordinators()
    here.failures = [UnservedError(loading("p"))]
    here.begin(0)
    here.begin(1)
    await here.took(1)
    commit(here.observer, *topic("a", FIRST))
    await here.took(2)
    assert [partition for partition, _ in here.taken] == [1, 1]
    here.begin(0)
    *_, third = await here.took(3)
    assert (third.is_complete, len(third.topics)) == (True, 1)
    here.feed.end(1)
    commit(here.observer, *topic("b", SECOND))
    await here.took(4)
    assert here.taken[-1][0] == 0
    await here.feed.stop()


RETENTION = "group.offsets.retention.ms"
MINE = GROUPS.partition_of("g")


def config(group: str | None, value: str | None, name: str = RETENTION) -> ConfigRecord:
    """Return a change of a config of a group, or of the cluster."""
    resource = ConfigResource.CLUSTER if group is None else ConfigResource.GROUP
    return ConfigRecord(resource=resource, resource_name=group or "", name=name, value=value)


def retentions(core: GroupCore, *groups: str) -> list[int | None]:
    return [core.state.config(each).offsets_retention_ms for each in groups]


async def test_configs_come_before_topics_and_to_their_coordinator_alone() -> None:
    """A new core has the defaults of the cluster and the configs of its own groups before it has topics."""
    here = Coordinators()
    other = next(name for name in map(str, range(100)) if GROUPS.partition_of(name) != MINE)
    commit(here.observer, *topic("a", FIRST), config(None, "70000"), config("g", "-1"), config(other, "80000"))
    core = here.begin(MINE)
    await here.took(1)
    assert [type(command) for _, command in here.configs] == [DefaultsChanged, ConfigChanged]
    assert retentions(core, "g", other) == [None, 70_000]
    await here.feed.stop()


async def test_changes_of_configs_are_handed_in() -> None:
    """Of a group, of the cluster with what groups have themselves, and their removal. Topics are not handed in again."""
    here = Coordinators()
    commit(here.observer, *topic("a", FIRST))
    core = here.begin(MINE)
    await here.took(1)
    assert here.configs == []
    here.is_open = True
    commit(here.observer, config("g", "range", "group.assignor"))
    await here.took(1)
    assert core.state.config("g").assignor == "range"
    commit(here.observer, config(None, "70000"))
    await here.took(1)
    assert retentions(core, "g", "h") == [70_000, 70_000]
    assert core.state.config("g").assignor == "range"
    commit(here.observer, config("g", None, "group.assignor"), config(None, None))
    await here.took(1)
    assert retentions(core, "g", "h") == [7 * 24 * 3_600_000] * 2
    assert "g" not in core.state.configs
    before = len(here.configs)
    commit(here.observer, config(None, "5", "segment.ms"))
    await here.took(1)
    assert len(here.configs) == before
    await here.feed.stop()


async def test_configs_reach_an_overloaded_coordinator_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """A command that it did not take is repeated, and what changed meanwhile follows it."""
    monkeypatch.setattr(topic_feed, "FEED_RETRY_MS", 1)
    here = Coordinators()
    here.is_open = True
    here.failures = [UnservedError(overloaded("p", "many commands"))] * 3
    commit(here.observer, *topic("a", FIRST), config("g", "70000"))
    core = here.begin(MINE)
    await asyncio.sleep(0)
    commit(here.observer, config("g", "80000"))
    await here.took(1)
    assert retentions(core, "g") == [80_000]
    assert here.attempts >= 5
    await here.feed.stop()
