# SPDX-License-Identifier: Apache-2.0
"""Names the problems of partitions and says what an operator can do. Pure.

The facts come from `Admin.describe_topic` and `Admin.describe_cluster`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from enum import StrEnum

from lograft.types import PartitionDescription, TopicDescription

MIN_ISR_CONFIG = "min.insync.replicas"


class ProblemKind(StrEnum):
    """What clients notice of a problem."""

    OFFLINE = "offline"
    """The partition has no leader. Clients can neither read nor write it."""
    UNDER_MIN_ISR = "under min ISR"
    """Too few replicas are in sync. The broker refuses writes with acks=all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionProblem:
    """A partition that has a problem.

    Attributes:
        topic: topic name.
        partition: partition, from 0.
        kind: what clients notice.
        reason: which broker holds what.
        advice: what an operator can do, with the command.
    """

    topic: str
    partition: int
    kind: ProblemKind
    reason: str
    advice: str


def partition_problems(topic: TopicDescription, active: Collection[int]) -> list[PartitionProblem]:
    """Return the problems of the partitions of a topic, in partition order.

    Args:
        topic: the topic.
        active: node ids of the brokers that are registered and not fenced.
    """
    min_isr = int(topic.configs.get(MIN_ISR_CONFIG, "1"))
    found = (_problem(topic.topic, partition, active, min_isr) for partition in topic.partitions)
    return [problem for problem in found if problem is not None]


def _problem(
    topic: str, partition: PartitionDescription, active: Collection[int], min_isr: int
) -> PartitionProblem | None:
    if partition.leader_id is None:
        return _offline(topic, partition, active)
    needed = min(min_isr, len(partition.replicas))
    if len(partition.isr) >= needed:
        return None
    away = [node_id for node_id in partition.replicas if node_id not in active]
    return PartitionProblem(
        topic=topic,
        partition=partition.partition,
        kind=ProblemKind.UNDER_MIN_ISR,
        reason=f"in sync: {_brokers(partition.isr)}; {needed} needed for acks=all",
        advice=f"start {_brokers(away)}" if away else "wait until the other replicas have caught up",
    )


def _offline(topic: str, partition: PartitionDescription, active: Collection[int]) -> PartitionProblem:
    gone = {each.broker_id: each.log_directory_ids for each in partition.awaited_replicas}
    complete = [*partition.isr, *partition.eligible_leader_replicas]
    others = [node_id for node_id in partition.replicas if node_id not in complete]
    facts = [_holder(node_id, gone.get(node_id), node_id in active) for node_id in complete]
    facts += [f"broker {node_id} may lack records ({'active' if node_id in active else 'down'})" for node_id in others]
    ready = [node_id for node_id in complete if node_id in active and node_id not in gone]
    if ready:
        return PartitionProblem(
            topic=topic,
            partition=partition.partition,
            kind=ProblemKind.OFFLINE,
            reason="; ".join(facts),
            advice=f"wait: the controller elects {_brokers(ready[:1])}",
        )
    elect = f"lograft partitions elect --unclean {topic}:{partition.partition}"
    if gone:
        way = "bring the log directory back and restart its broker"
        loss = "what the other replicas lack" if others else "everything that was in it"
    else:
        way, loss = (
            f"start {_brokers(node_id for node_id in complete if node_id not in active)}",
            "what the next one lacks",
        )
    return PartitionProblem(
        topic=topic,
        partition=partition.partition,
        kind=ProblemKind.OFFLINE,
        reason="; ".join(facts),
        advice=f"{way}; or lose {loss}: {elect}",
    )


def _holder(node_id: int, gone: tuple[bytes, ...] | None, is_active: bool) -> str:
    if gone is None:
        return f"broker {node_id} has everything acknowledged ({'active' if is_active else 'down'})"
    directories = " or ".join(each.hex() for each in gone)
    return f"broker {node_id} had everything acknowledged, and lacks log directory {directories}"


def _brokers(node_ids: Iterable[int]) -> str:
    ids = sorted(node_ids)
    return f"broker{'s' if len(ids) != 1 else ''} {', '.join(map(str, ids))}" if ids else "no broker"
