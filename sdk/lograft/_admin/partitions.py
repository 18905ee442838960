# SPDX-License-Identifier: Apache-2.0
"""The calls about leaders and replicas of partitions, for the admin clients.

Owns turning what the user names into requests of a size that servers take, and answers into the user's values. Must not
hold state.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Final

from lograft._client.cluster import Cluster
from lograft._client.codec import decode_error
from lograft.errors import UsageError
from lograft.types import ElectedLeader, ElectionType, PartitionReassignment, TopicDescription, TopicPartition
from lograft.v1 import admin_pb2
from lograft.v1.admin_pb2_grpc import AdminServiceStub

MAX_ELECTIONS: Final = 500
"""Partitions of one request for elections."""

MAX_REASSIGNMENTS: Final = 500
"""Reassignments of one request."""

MAX_NAMED_TOPICS: Final = 1_000
"""Topics that one request for a list of reassignments names."""

_ELECTIONS: Final = {
    ElectionType.PREFERRED: admin_pb2.ELECTION_TYPE_PREFERRED,
    ElectionType.UNCLEAN: admin_pb2.ELECTION_TYPE_UNCLEAN,
}


async def all_named(
    named: Sequence[TopicPartition | str], describe: Callable[[str], Awaitable[TopicDescription]]
) -> list[TopicPartition]:
    """Return the partitions that are named, each once; a name alone stands for all partitions of its topic.

    Raises:
        UsageError: something is neither a partition nor a name.
        UnknownTopicError: there is no such topic.
    """
    if isinstance(named, str):
        raise UsageError(f"name a list of topics and partitions, not the text {named!r}")
    found: dict[TopicPartition, None] = {}
    for each in named:
        if isinstance(each, str):
            topic = await describe(each)
            found.update((TopicPartition(each, part.partition), None) for part in topic.partitions)
        else:
            found[checked_partition(each)] = None
    return list(found)


def checked_partition(where: object) -> TopicPartition:
    """Return a partition that can be sent.

    Raises:
        UsageError: it is none.
    """
    if isinstance(where, TopicPartition) and type(where.partition) is int and 0 <= where.partition < 2**31:
        return where
    raise UsageError(f"name a partition as TopicPartition('orders', 0), not {where!r}")


async def elect_leaders(
    cluster: Cluster,
    partitions: Sequence[TopicPartition],
    *,
    election: ElectionType,
    validate_only: bool,
    timeout_ms: int,
) -> list[ElectedLeader]:
    """Elect leaders; one result for each partition, in order.

    Raises:
        UsageError: `election` is none.
        LograftError: a request as a whole failed; those before it were carried out.
    """
    if not isinstance(election, ElectionType):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise UsageError(f"an election is an ElectionType, not {election!r}")
    results: list[ElectedLeader] = []
    for some in _slices(partitions, MAX_ELECTIONS):
        request = admin_pb2.ElectLeadersRequest(
            cluster_id=cluster.cluster_id,
            type=_ELECTIONS[election],
            topics=[admin_pb2.TopicPartitions(topic=each.topic, partitions=[each.partition]) for each in some],
            validate_only=validate_only,
        )
        # Asked twice, a leader is elected once; only what the second answer says of `elected` differs.
        response = await cluster.ask(
            lambda channel: AdminServiceStub(channel).ElectLeaders, request, timeout_ms=timeout_ms
        )
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


async def alter_reassignments(
    cluster: Cluster,
    changes: Mapping[TopicPartition, Sequence[int] | None],
    *,
    validate_only: bool,
    timeout_ms: int,
) -> list[PartitionReassignment]:
    """Begin, change or cancel (None) reassignments; one result for each partition, in order.

    Raises:
        UsageError: a key is no partition, or a value no list of node ids.
        LograftError: a request as a whole failed; those before it were carried out.
    """
    wanted = {checked_partition(where): _checked_replicas(replicas) for where, replicas in changes.items()}
    results: list[PartitionReassignment] = []
    for some in _slices(list(wanted), MAX_REASSIGNMENTS):
        request = admin_pb2.AlterPartitionReassignmentsRequest(
            cluster_id=cluster.cluster_id,
            reassignments=[
                admin_pb2.PartitionReassignment(
                    topic=where.topic, partition=where.partition, replicas=wanted[where], cancel=wanted[where] is None
                )
                for where in some
            ],
            validate_only=validate_only,
        )
        # What is cancelled cannot be cancelled again; the same target twice is one.
        may_repeat = validate_only or all(wanted[where] is not None for where in some)
        response = await cluster.ask(
            lambda channel: AdminServiceStub(channel).AlterPartitionReassignments,
            request,
            timeout_ms=timeout_ms,
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


async def list_reassignments(
    cluster: Cluster, topics: Sequence[str] | None, *, timeout_ms: int
) -> list[PartitionReassignment]:
    """List the reassignments that are under way, of all topics (None) or of some.

    Raises:
        UsageError: too many topics are named, or something is no name.
        LograftError: no answer came.
    """
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
        request = admin_pb2.ListPartitionReassignmentsRequest(
            cluster_id=cluster.cluster_id, topics=names, page_token=token
        )
        response = await cluster.ask(
            lambda channel: AdminServiceStub(channel).ListPartitionReassignments, request, timeout_ms=timeout_ms
        )
        for each in response.reassignments:
            settled = tuple(node_id for node_id in each.state.replicas if node_id not in each.state.adding)
            found.append(_reassignment(each.topic, each.partition, settled, each.state))
        token = response.next_page_token
        if not token:
            return found


def _slices(partitions: Sequence[TopicPartition], size: int) -> Iterator[Sequence[TopicPartition]]:
    for start in range(0, len(partitions), size):
        yield partitions[start : start + size]
