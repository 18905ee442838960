# SPDX-License-Identifier: Apache-2.0
"""Problems of partitions and the advice: the texts that `lograft doctor` and `topics describe` print."""

from __future__ import annotations

import pytest
from lograft.diagnosis import PartitionProblem, ProblemKind, partition_problems
from lograft.types import AwaitedReplica, PartitionDescription, TopicDescription

GONE = bytes(15) + b"\x2a"


def problems(partition: PartitionDescription, *active: int, min_isr: str = "2") -> list[PartitionProblem]:
    """Return the problems of the only partition of a topic."""
    configs = {"min.insync.replicas": min_isr}
    return partition_problems(
        TopicDescription(topic="t", topic_id=b"", partitions=(partition,), configs=configs), active
    )


def partition(leader_id: int | None, isr: tuple[int, ...], **others: object) -> PartitionDescription:
    """Return a partition with replicas 1, 2 and 3."""
    fields = {"replicas": (1, 2, 3), **others}
    return PartitionDescription(partition=0, leader_id=leader_id, leader_epoch=4, isr=isr, **fields)  # type: ignore[arg-type]


def test_a_partition_that_serves_has_no_problem() -> None:
    """Enough replicas are in sync. A partition with one replica needs one, regardless of the config."""
    assert problems(partition(1, (1, 2)), 1, 2) == []
    assert problems(partition(1, (1,), replicas=(1,)), 1) == []


def test_too_few_in_sync_names_who_is_missing() -> None:
    """The advice is to start brokers that are down; otherwise the others catch up by themselves."""
    (found,) = problems(partition(1, (1,)), 1, 3)
    assert found.kind is ProblemKind.UNDER_MIN_ISR
    assert found.reason == "in sync: broker 1; 2 needed for acks=all"
    assert found.advice == "start broker 2"
    assert "caught up" in problems(partition(1, (1,)), 1, 2, 3)[0].advice


@pytest.mark.parametrize("others", [(), (2, 3)])
def test_lost_directory_names_it_and_the_command_that_gives_up(others: tuple[int, ...]) -> None:
    """The text names what each broker holds, the missing directory, and the unclean election with its loss."""
    awaited = (AwaitedReplica(broker_id=1, log_directory_ids=(GONE,)),)
    (found,) = problems(partition(None, (1,), replicas=(1, *others), awaited_replicas=awaited), 1, 2)
    assert found.kind is ProblemKind.OFFLINE
    assert f"broker 1 had everything acknowledged, and lacks log directory {GONE.hex()}" in found.reason
    assert ("broker 2 may lack records (active); broker 3 may lack records (down)" in found.reason) is bool(others)
    assert found.advice.endswith("lograft partitions elect --unclean t:0")
    assert ("what the other replicas lack" if others else "everything that was in it") in found.advice


def test_nothing_is_given_up_while_a_complete_replica_is_active() -> None:
    """The controller elects it in a moment; an unclean election could only lose records."""
    (found,) = problems(partition(None, (1,), eligible_leader_replicas=(2,)), 2, 3)
    assert found.kind is ProblemKind.OFFLINE
    assert found.advice == "wait: the controller elects broker 2"


def test_brokers_that_are_down_are_to_be_started() -> None:
    """An in-sync or eligible replica on a broker that is down has everything."""
    (found,) = problems(partition(None, (1,), eligible_leader_replicas=(2,)), 3)
    assert found.reason.startswith("broker 1 has everything acknowledged (down); broker 2 has everything")
    assert found.advice.startswith("start brokers 1, 2; or lose")
