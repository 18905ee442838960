# SPDX-License-Identifier: Apache-2.0
"""Helpers for tests of a controller's periodic work: its configs, its deadlines and its slices."""

from __future__ import annotations

from metaquorum.controller.commands import (
    AlterConfigs,
    Command,
    ResourceChanges,
)
from metaquorum.metadata.records import ConfigResource, LeaderChange, PartitionChangeRecord
from metaquorum.tests.controller_world import World, topic_id

REBALANCE = "auto.leader.rebalance.enable"


DEFAULT_INTERVAL_MS = 300_000


def of_cluster(name: str, value: str | None) -> AlterConfigs:
    """Return the change of a config of the cluster."""
    return AlterConfigs(
        resources=(ResourceChanges(resource=ConfigResource.CLUSTER, name="", changes=((name, value),)),)
    )


def lead(world: World, topic: str, leader_id: int | None, *, partition_count: int = 1) -> None:
    """Make a broker the leader of the first partitions of a topic, or take their leader away."""
    world.write(
        *(
            PartitionChangeRecord(topic_id=topic_id(topic), partition=each, leader=LeaderChange(leader_id=leader_id))
            for each in range(partition_count)
        )
    )


def slices(world: World, command: Command) -> list[int]:
    """Run a command to its end; return how many records each slice had."""
    decision = world.append(command)
    sizes = [len(decision.records)]
    while decision.then is not None:
        decision = world.append(decision.then)
        sizes.append(len(decision.records))
    world.commit()
    return sizes
