# SPDX-License-Identifier: Apache-2.0
"""Configs of groups in the core: where they come from, and what a member keeps when they change."""

from __future__ import annotations

import pytest

from brokerd.groups.answers import GroupDescription
from brokerd.groups.commands import ConfigChanged, DefaultsChanged, DescribeGroup
from brokerd.groups.core import DEFAULT_ASSIGNORS
from brokerd.groups.effects import ComputeAssignment
from brokerd.groups.limits import OFFSETS_SWEEP_MS
from brokerd.groups.settings import GroupConfig, config_of
from brokerd.tests.groups.coordinator_host import CoordinatorHost, topic
from metaquorum.metadata.topic_configs import GROUP_CONFIGS, TOPIC_CONFIGS

T = topic("t", 4)
LONG = GroupConfig(session_timeout_ms=60_000, heartbeat_interval_ms=20_000)
SHORT = GroupConfig(session_timeout_ms=6_000, heartbeat_interval_ms=1_000)


def assignor_of(host: CoordinatorHost) -> str:
    outcome = host.do(DescribeGroup(group_id="g"))
    assert isinstance(outcome, GroupDescription)
    return outcome.assignor


def test_table_of_configs_and_core_agree() -> None:
    """The defaults and the assignors of the metadata are those of the core, and every value is one that the core takes."""
    assert config_of({}) == GroupConfig(assignor=DEFAULT_ASSIGNORS[0])
    assert TOPIC_CONFIGS["group.assignor"].choices == DEFAULT_ASSIGNORS
    for name in GROUP_CONFIGS:
        definition = TOPIC_CONFIGS[name]
        for value in definition.choices or (str(definition.minimum), str(definition.maximum)):
            config_of({name: value})


def test_values_of_the_metadata_become_a_config() -> None:
    """-1 is no retention at all, and a session that the cluster has shortened shortens the interval of beats."""
    assert config_of({"group.offsets.retention.ms": "-1", "segment.ms": "5"}).offsets_retention_ms is None
    found = config_of({"group.session.timeout.ms": "6000", "group.heartbeat.interval.ms": "5000"})
    assert (found.session_timeout_ms, found.heartbeat_interval_ms) == (6_000, 2_000)


@pytest.mark.parametrize(("before", "after"), [(LONG, SHORT), (SHORT, LONG)])
def test_member_keeps_the_session_that_it_was_told(before: GroupConfig, after: GroupConfig) -> None:
    """It stops in time only if its session is never shorter than it knows, also after a failover and if an answer is lost."""
    host = CoordinatorHost(T, config=before)
    host.join("a", "t", stream=1)
    host.do(ConfigChanged(group_id="g", config=after))
    told = host.beat("a", stream=1)
    assert told.session_timeout_ms == before.session_timeout_ms
    assert told.heartbeat_interval_ms == min(after.heartbeat_interval_ms, before.session_timeout_ms // 3)
    host.fail_over()
    host.do(ConfigChanged(group_id="g", config=after))
    host.run(before.session_timeout_ms - 1)
    assert host.group().members
    host.run(1)
    assert not host.group().members
    assert host.join("a", "t").session_timeout_ms == after.session_timeout_ms


def test_repeated_join_keeps_the_session() -> None:
    """It may be a late copy, whose sender knows the answer to the first one."""
    host = CoordinatorHost(T, config=LONG)
    host.join("a", "t")
    host.do(ConfigChanged(group_id="g", config=SHORT))
    assert host.join("a", "t").session_timeout_ms == 60_000
    host.run(59_999)
    assert host.group().members


def test_defaults_hold_for_groups_without_configs() -> None:
    """A change of the defaults reaches them at once, and no other group."""
    host = CoordinatorHost(T)
    host.do(ConfigChanged(group_id="own", config=LONG))
    host.do(DefaultsChanged(config=SHORT))
    assert host.join("a", "t").session_timeout_ms == 6_000
    assert host.join("a", "t", group_id="own").session_timeout_ms == 60_000
    host.do(ConfigChanged(group_id="own", config=None))
    assert host.join("b", "t", group_id="own").session_timeout_ms == 6_000


def test_assignor_of_the_group_is_for_members_that_prefer_none() -> None:
    """From the next target on; a preference of members counts more."""
    host = CoordinatorHost(T)
    host.do(ConfigChanged(group_id="g", config=GroupConfig(assignor="range")))
    host.computing = False
    host.join("a", "t")
    host.run(1_000)
    asked = [each for each in host.effects if isinstance(each, ComputeAssignment)]
    assert [each.assignor for each in asked] == ["range"]
    assert assignor_of(host) == "range"
    host.join("b", "t", assignor="uniform")
    host.join("c", "t", assignor="uniform")
    assert assignor_of(host) == "uniform"


def test_nothing_expires_before_the_topics_are_here() -> None:
    """Configs come before topics: a coordinator without topics may not know yet that offsets are kept for ever."""
    host = CoordinatorHost(T)
    host.commit(T.topic_id, 0, 7)
    host.fail_over(with_topics=False)
    host.run(30 * 24 * 3_600_000)
    assert host.committed(T.topic_id, 0) == 7
    host.do(ConfigChanged(group_id="g", config=GroupConfig(offsets_retention_ms=None)))
    host.tell_topics()
    host.run(2 * OFFSETS_SWEEP_MS)
    assert host.committed(T.topic_id, 0) == 7
    host.do(ConfigChanged(group_id="g", config=None))
    host.run(OFFSETS_SWEEP_MS)
    assert host.committed(T.topic_id, 0) is None
