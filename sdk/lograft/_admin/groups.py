# SPDX-License-Identifier: Apache-2.0
"""The admin calls about consumer groups: list, describe, delete. `committed_offsets` has those about their offsets.

Each call goes to the coordinator of each group, which is looked for again within the time of the call. This module owns the pages, how
many groups are asked at once, and the conversion of values. A failure of one group is in its result and hides no other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from typing import Final, TypeVar

from lograft._admin.calls import AdminCalls
from lograft._client.clock import monotonic_ms
from lograft._client.stubs import group_service
from lograft.errors import GroupNotFoundError, LograftError, RetriableError, UsageError
from lograft.settings import LAST_TRY_MS
from lograft.types import (
    DeletedGroup,
    GroupDescription,
    GroupList,
    GroupMember,
    GroupState,
    ListedGroup,
    MemberProgress,
    TopicPartition,
)
from lograft.v1 import group_pb2 as pb

MAX_GROUP_ID_BYTES: Final = 255
"""UTF-8 bytes of a group id."""

PAGE_GROUPS: Final = 1_000
"""Groups in one page of a list."""

PARALLEL_GROUPS: Final = 16
"""Groups that one call asks about at the same time."""

_STATES: Final = {
    pb.GROUP_STATE_EMPTY: GroupState.EMPTY,
    pb.GROUP_STATE_ASSIGNING: GroupState.ASSIGNING,
    pb.GROUP_STATE_RECONCILING: GroupState.RECONCILING,
    pb.GROUP_STATE_STABLE: GroupState.STABLE,
}
_WANTED_STATES: Final = {state: number for number, state in _STATES.items()}
_PROGRESS: Final = {
    pb.GROUP_MEMBER_PROGRESS_STABLE: MemberProgress.STABLE,
    pb.GROUP_MEMBER_PROGRESS_UNREVOKED: MemberProgress.UNREVOKED,
    pb.GROUP_MEMBER_PROGRESS_UNRELEASED: MemberProgress.UNRELEASED,
}

T = TypeVar("T")


async def list_groups(calls: AdminCalls, states: Iterable[GroupState] | None = None) -> GroupList:
    """List the consumer groups of the cluster, by id. Coordinators that load or move are asked again until the time is up.

    Args:
        states: list only groups in one of these states; None lists all.

    Returns:
        The groups, and the coordinators that did not answer in time: their groups are missing.

    Raises:
        UsageError: a state is not one that a group can have.
        LograftError: no broker answered.
    """
    wanted = [] if states is None else [_wanted_state(each) for each in states]
    if states is not None and not wanted:
        return GroupList(groups=())
    deadline_ms = monotonic_ms() + calls.timeout_ms
    backoff = calls.cluster.backoff()
    found: list[ListedGroup] = []
    missing: set[int] = set()
    incomplete: pb.ListGroupsResponse | None = None
    after = ""
    while True:
        request = pb.ListGroupsRequest(
            cluster_id=calls.cluster.cluster_id, after_group_id=after, limit=PAGE_GROUPS, states=wanted
        )
        try:
            response = await calls.cluster.ask(
                lambda channel: group_service(channel).ListGroups,
                request,
                timeout_ms=max(1, deadline_ms - monotonic_ms()),
            )
        except RetriableError:
            # No time is left for another attempt: what an earlier one has found is better than nothing.
            if incomplete is None:
                raise
            response = incomplete
        delay_ms = backoff.next_delay_ms()
        if response.missing_coordinator_ids and deadline_ms - monotonic_ms() - delay_ms >= LAST_TRY_MS:
            incomplete = response
            await asyncio.sleep(delay_ms / 1000)
            continue
        incomplete = None
        missing.update(response.missing_coordinator_ids)
        found += map(_listed, response.groups)
        if not response.has_more or not response.groups:
            return GroupList(groups=tuple(found), missing_coordinator_ids=tuple(sorted(missing)))
        after = response.groups[-1].group_id


async def describe_groups(calls: AdminCalls, groups: Sequence[str]) -> list[GroupDescription]:
    """Describe consumer groups: state, epochs, assignor, members with their subscriptions and assignments.

    Args:
        groups: group ids.

    Returns:
        One description for each group, in order, with an `error` if it failed: `GroupNotFoundError` if there is no such group.

    Raises:
        UsageError: an id is not 1 to 255 bytes of text.
        LograftError: no broker answered.
    """

    async def describe(group: str, timeout_ms: int) -> GroupDescription:
        request = pb.DescribeGroupRequest(cluster_id=calls.cluster.cluster_id, group_id=group)
        response = await calls.coordinators.call(
            group, lambda channel: group_service(channel).DescribeGroup, request, timeout_ms=timeout_ms
        )
        return _description(response)

    return await for_each_group(
        calls, groups, describe, lambda group, error: GroupDescription(group=group, error=error)
    )


async def delete_groups(calls: AdminCalls, groups: Sequence[str]) -> list[DeletedGroup]:
    """Delete consumer groups without members, and their offsets. Configs of a group stay until they are removed.

    Args:
        groups: group ids.

    Returns:
        One result for each group, in order, with an `error` if it was not deleted: `GroupNotEmptyError` while it has members,
        `GroupNotFoundError` if there is no such group.

    Raises:
        UsageError: an id is not 1 to 255 bytes of text.
        LograftError: no broker answered.
    """

    async def delete(group: str, timeout_ms: int) -> DeletedGroup:
        deadline_ms = monotonic_ms() + timeout_ms
        seen = pb.DescribeGroupRequest(cluster_id=calls.cluster.cluster_id, group_id=group)
        await calls.coordinators.call(
            group, lambda channel: group_service(channel).DescribeGroup, seen, timeout_ms=timeout_ms
        )
        request = pb.DeleteGroupRequest(cluster_id=calls.cluster.cluster_id, group_id=group)
        # It is there. If it is not found now, an attempt whose answer was lost has deleted it.
        with suppress(GroupNotFoundError):
            await calls.coordinators.call(
                group,
                lambda channel: group_service(channel).DeleteGroup,
                request,
                timeout_ms=max(1, deadline_ms - monotonic_ms()),
            )
        return DeletedGroup(group=group)

    return await for_each_group(calls, groups, delete, lambda group, error: DeletedGroup(group=group, error=error))


async def for_each_group(
    calls: AdminCalls,
    groups: Sequence[str],
    ask: Callable[[str, int], Awaitable[T]],
    failed: Callable[[str, LograftError], T],
) -> list[T]:
    """Ask about groups, `PARALLEL_GROUPS` at a time, and return one result for each, in order.

    Args:
        calls: the client.
        groups: group ids.
        ask: asks about a group; gets the milliseconds that are left.
        failed: makes the result of a group that failed.

    Raises:
        UsageError: an id is not 1 to 255 bytes of text.
        LograftError: no broker answered.
    """
    if isinstance(groups, str):
        raise UsageError(f"name a list of groups, such as [{groups!r}], not {groups!r}")
    named = [checked_group(each) for each in groups]
    deadline_ms = monotonic_ms() + calls.timeout_ms
    await calls.coordinators.find_all(list(dict.fromkeys(named)), timeout_ms=calls.timeout_ms)
    turns = asyncio.Semaphore(PARALLEL_GROUPS)

    async def ask_one(group: str) -> T:
        async with turns:
            try:
                return await ask(group, max(1, deadline_ms - monotonic_ms()))
            except LograftError as error:
                return failed(group, error)

    return list(await asyncio.gather(*map(ask_one, named)))


def checked_group(group: object) -> str:
    """Return a group id that can be sent.

    Raises:
        UsageError: it is not 1 to 255 bytes of text.
    """
    if not isinstance(group, str) or not 1 <= len(group.encode(errors="replace")) <= MAX_GROUP_ID_BYTES:
        raise UsageError(f"a group id is a text of 1 to {MAX_GROUP_ID_BYTES} bytes, not {group!r:.100}")
    return group


def _wanted_state(state: GroupState) -> pb.GroupState.ValueType:
    number = _WANTED_STATES.get(state)
    if number is None:
        raise UsageError(f"groups are {', '.join(each.value for each in _WANTED_STATES)}, not {state!r}")
    return number


def _listed(message: pb.ListedGroup) -> ListedGroup:
    return ListedGroup(
        group=message.group_id,
        state=_STATES.get(message.state, GroupState.UNKNOWN),
        member_count=message.member_count,
        coordinator_id=message.coordinator_id,
    )


def _description(message: pb.DescribeGroupResponse) -> GroupDescription:
    return GroupDescription(
        group=message.group_id,
        state=_STATES.get(message.state, GroupState.UNKNOWN),
        epoch=message.group_epoch,
        target_epoch=message.target_epoch,
        assignor=message.assignor,
        members=tuple(map(_member, message.members)),
        offset_count=message.offset_count,
        coordinator_id=message.coordinator_id,
        empty_since_ms=message.empty_since_ms if message.HasField("empty_since_ms") else None,
    )


def _member(message: pb.DescribedMember) -> GroupMember:
    return GroupMember(
        member_id=message.member_id,
        instance_id=message.instance_id or None,
        client_id=message.client_id,
        host=message.client_host,
        rack=message.rack or None,
        topics=tuple(message.subscription.topics),
        pattern=message.subscription.pattern,
        assignor=message.assignor or None,
        epoch=message.member_epoch,
        progress=_PROGRESS.get(message.progress, MemberProgress.UNKNOWN),
        assigned=_partitions(message.assigned),
        revoking=_partitions(message.revoking),
        target=_partitions(message.target),
        processing_limit_ms=message.processing_limit_ms,
        is_streaming=message.is_streaming,
    )


def _partitions(assignment: pb.GroupAssignment) -> tuple[TopicPartition, ...]:
    """Return partitions by name. A topic that was deleted meanwhile appears under its id."""
    return tuple(
        sorted(
            TopicPartition(each.topic or each.topic_id.hex(), number)
            for each in assignment.topics
            for number in each.partitions
        )
    )
