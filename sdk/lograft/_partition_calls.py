# SPDX-License-Identifier: Apache-2.0
"""The calls about leaders and replicas of partitions, for the admin clients.

Owns turning what the user names into requests of a size that servers take, and answers into the user's values. Must not
hold state.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Final

from lograft._cluster import Attempt, Cluster
from lograft._codec import decode_error
from lograft.errors import UsageError
from lograft.types import ElectedLeader, ElectionType, TopicDescription, TopicPartition
from lograft.v1 import admin_pb2
from lograft.v1.admin_pb2_grpc import AdminServiceStub

MAX_ELECTIONS: Final = 500
"""Partitions of one request for elections."""

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
        response = await cluster.call(_elections(request), timeout_ms=timeout_ms)
        results += map(_elected, response.results)
    return results


def _elections(
    request: admin_pb2.ElectLeadersRequest,
) -> Callable[[Attempt], Awaitable[admin_pb2.ElectLeadersResponse]]:
    async def work(attempt: Attempt) -> admin_pb2.ElectLeadersResponse:
        return await AdminServiceStub(attempt.channel).ElectLeaders(request, timeout=attempt.timeout_s)

    return work


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


def _slices(partitions: Sequence[TopicPartition], size: int) -> Iterator[Sequence[TopicPartition]]:
    for start in range(0, len(partitions), size):
        yield partitions[start : start + size]
