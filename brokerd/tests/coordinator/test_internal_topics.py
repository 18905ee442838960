# SPDX-License-Identifier: Apache-2.0
"""Internal topics: the partition of a key, and how a topic is made."""

from __future__ import annotations

import pytest

from brokerd.coordinator.internal_topics import GROUPS, INGESTS, InternalTopic, creation_plan
from metaquorum.metadata.topic_configs import CleanupPolicy, effective, problem
from metaquorum.metadata.topic_names import problem as name_problem


def test_partition_of_a_key_never_changes() -> None:
    """The values are part of the format: another result would send a group to a coordinator that does not know it."""
    topic = InternalTopic(name="__g", partition_count=50)
    assert [topic.partition_of(key) for key in ("", "orders", "gr\u00fcppe")] == [0, 46, 34]
    assert {GROUPS.partition_of(f"g{at}") for at in range(1_000)} == set(range(32))
    assert {INGESTS.partition_of(f"i{at}") for at in range(1_000)} == set(range(32))


@pytest.mark.parametrize(("broker_count", "factor", "min_isr"), [(0, 1, 1), (1, 1, 1), (2, 2, 1), (3, 3, 2), (9, 3, 2)])
def test_topic_has_up_to_three_replicas(broker_count: int, factor: int, min_isr: int) -> None:
    """And tolerates the loss of one of three."""
    plan = creation_plan(GROUPS, broker_count=broker_count)
    assert (plan.topic, plan.partition_count, plan.replication_factor) == ("__groups", 32, factor)
    assert plan.configs["min.insync.replicas"] == str(min_isr)


@pytest.mark.parametrize("topic", [GROUPS, INGESTS], ids=lambda topic: topic.name)
def test_controller_accepts_name_and_configs(topic: InternalTopic) -> None:
    """Every config exists, and its value is allowed; the topic is compacted and never loses records by age."""
    plan = creation_plan(topic, broker_count=3)
    assert name_problem(plan.topic) is None
    assert problem(dict(plan.configs)) is None
    settings = effective(dict(plan.configs))
    assert settings.cleanup_policy is CleanupPolicy.COMPACT
    assert settings.segment_bytes == topic.segment_bytes
