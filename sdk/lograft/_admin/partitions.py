# SPDX-License-Identifier: Apache-2.0
"""The admin calls about leaders and replicas of partitions.

This module converts the caller's values to requests of a size that servers accept, and answers back. It must not hold state.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from lograft._admin.calls import AdminCalls
from lograft._admin.topics import describe_topic
from lograft._client.codec import decode_error
from lograft.errors import UsageError
from lograft.types import ElectedLeader, ElectionType, PartitionReassignment, TopicPartition
from lograft.v1 import admin_pb2

MAX_ELECTIONS: Final = 500
"""Partitions in one request for elections."""

MAX_REASSIGNMENTS: Final = 500
"""Reassignments in one request."""

MAX_NAMED_TOPICS: Final = 1_000
"""Topics that one request for reassignments may name."""

_ELECTIONS: Final = {
    ElectionType.PREFERRED: admin_pb2.ELECTION_TYPE_PREFERRED,
    ElectionType.UNCLEAN: admin_pb2.ELECTION_TYPE_UNCLEAN,
}


async def _all_named(calls: AdminCalls, named: Sequence[TopicPartition | str]) -> list[TopicPartition]:
    """Return the named partitions without duplicates. A topic name stands for all partitions of the topic.

    Raises:
        UsageError: an element is neither a partition nor a name.
        UnknownTopicError: a topic does not exist.
    """
    if isinstance(named, str):
        raise UsageError(f"name a list of topics and partitions, not the text {named!r}")
    found: dict[TopicPartition, None] = {}
    for each in named:
        if isinstance(each, str):
            topic = await describe_topic(calls, each)
            found.update((TopicPartition(each, part.partition), None) for part in topic.partitions)
        else:
            found[checked_partition(each)] = None
    return list(found)


def checked_partition(where: object) -> TopicPartition:
    """Return a partition that can be sent.

    Raises:
        UsageError: the value is not a partition.
    """
    if isinstance(where, TopicPartition) and type(where.partition) is int and 0 <= where.partition < 2**31:
        return where
    raise UsageError(f"name a partition as TopicPartition('orders', 0), not {where!r}")


async def elect_leaders(
    calls: AdminCalls,
    partitions: Sequence[TopicPartition | str],
    *,
    election: ElectionType = ElectionType.PREFERRED,
    validate_only: bool = False,
) -> list[ElectedLeader]:
    """Elect leaders of partitions. Each partition has one result, in order, with an `error` if its election was refused.

    Args:
        partitions: partitions; a topic name stands for all partitions of the topic.
        election: `PREFERRED`, or `UNCLEAN`, which loses records that only unavailable replicas have.
        validate_only: check the request without changing anything.

    Raises:
        UnknownTopicError: a topic that the caller gave by name alone does not exist.
        LograftError: a call as a whole failed; it may be repeated.
    """
    if not isinstance(election, ElectionType):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise UsageError(f"an election is an ElectionType, not {election!r}")
    named = await _all_named(calls, partitions)
    results: list[ElectedLeader] = []
    for some in _slices(named, MAX_ELECTIONS):
        request = admin_pb2.ElectLeadersRequest(
            type=_ELECTIONS[election],
            topics=[admin_pb2.TopicPartitions(topic=each.topic, partitions=[each.partition]) for each in some],
            validate_only=validate_only,
        )
        # A repeated request elects a leader once. Only `elected` differs in the second answer.
        response = await calls.ask(lambda stub: stub.ElectLeaders, request)
        results += map(_elected, response.results)
    return results


def _elected(result: admin_pb2.ElectionResult) -> ElectedLeader:
    if result.HasField("error"):
        return ElectedLeader(topic=result.topic, partition=result.partition, error=decode_error(result.error))
    state = result.state
    return ElectedLeader(
        topic=result.topic,
        partition=result.partition,
        leader_id=state.leader_id if state.HasField("leader_id") else None,
        leader_epoch=state.leader_epoch,
        elected=result.elected,
    )


async def alter_partition_reassignments(
    calls: AdminCalls,
    changes: Mapping[TopicPartition, Sequence[int] | None],
    *,
    validate_only: bool = False,
) -> list[PartitionReassignment]:
    """Give partitions other replicas, or cancel that. Each partition has one result, in order, with an `error` if it was refused.

    Args:
        changes: node ids of the replicas of each partition, the preferred leader first; None cancels a reassignment under way.
        validate_only: check the request without changing anything. The results show the requested change.

    Raises:
        UsageError: a key is not a partition, or a value is not a list of node ids.
        OutcomeUnknownError: the answer to a cancellation was lost. List the reassignments to find out.
    """
    wanted = {checked_partition(where): _checked_replicas(replicas) for where, replicas in changes.items()}
    results: list[PartitionReassignment] = []
    for some in _slices(list(wanted), MAX_REASSIGNMENTS):
        request = admin_pb2.AlterPartitionReassignmentsRequest(
            reassignments=[
                admin_pb2.PartitionReassignment(
                    topic=where.topic, partition=where.partition, replicas=wanted[where], cancel=wanted[where] is None
                )
                for where in some
            ],
            validate_only=validate_only,
        )
        # A second cancellation would be refused, but a repeated target has the effect of one.
        may_repeat = validate_only or all(wanted[where] is not None for where in some)
        response = await calls.ask(
            lambda stub: stub.AlterPartitionReassignments,
            request,
            may_repeat=may_repeat,
        )
        results += map(_reassigned, response.results)
    return results


def _checked_replicas(replicas: object) -> list[int] | None:
    if replicas is None:
        return None
    if isinstance(replicas, (list, tuple)):
        node_ids: list[object] = list(replicas)  # pyright: ignore[reportUnknownArgumentType]
        numbers = [each for each in node_ids if type(each) is int and 0 <= each < 2**31]
        if numbers and len(numbers) == len(node_ids):
            return numbers
    raise UsageError(f"replicas are a list of node ids, or None to cancel, not {replicas!r}")


def _reassigned(result: admin_pb2.ReassignmentResult) -> PartitionReassignment:
    before = tuple(result.replicas_before)
    if result.HasField("error"):
        error = decode_error(result.error)
        return PartitionReassignment(
            topic=result.topic, partition=result.partition, replicas_before=before, error=error
        )
    return _reassignment(result.topic, result.partition, before, result.state)


def _reassignment(
    topic: str, partition: int, before: tuple[int, ...], state: admin_pb2.ReassignmentState
) -> PartitionReassignment:
    return PartitionReassignment(
        topic=topic,
        partition=partition,
        replicas_before=before,
        replicas=tuple(node_id for node_id in state.replicas if node_id not in state.removing),
        adding=tuple(state.adding),
        removing=tuple(state.removing),
        isr=tuple(state.isr),
        leader_id=state.leader_id if state.HasField("leader_id") else None,
    )


async def list_partition_reassignments(
    calls: AdminCalls, topics: Sequence[str] | None = None
) -> list[PartitionReassignment]:
    """List the reassignments under way, by topic and partition: of all topics (None), or of at most 1,000 named ones."""
    names = None if topics is None else list(topics)
    if isinstance(topics, str) or (names is not None and not all(isinstance(name, str) for name in names)):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise UsageError(f"name a list of topics, not {topics!r}")
    if names is not None and len(names) > MAX_NAMED_TOPICS:
        raise UsageError(f"name at most {MAX_NAMED_TOPICS} topics, or none for all, not {len(names)}")
    if names == []:
        return []
    found: list[PartitionReassignment] = []
    token = ""
    while True:
        request = admin_pb2.ListPartitionReassignmentsRequest(topics=names, page_token=token)
        response = await calls.ask(lambda stub: stub.ListPartitionReassignments, request)
        for each in response.reassignments:
            settled = tuple(node_id for node_id in each.state.replicas if node_id not in each.state.adding)
            found.append(_reassignment(each.topic, each.partition, settled, each.state))
        token = response.next_page_token
        if not token:
            return found


def _slices(partitions: Sequence[TopicPartition], size: int) -> Iterator[Sequence[TopicPartition]]:
    for start in range(0, len(partitions), size):
        yield partitions[start : start + size]
