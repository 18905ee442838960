# SPDX-License-Identifier: Apache-2.0
"""The admin calls about the offsets of consumer groups: look up with lag, set, reset, delete.

Coordinators store offsets by topic id. This module owns the way between names and ids, the splitting into requests, and the look-ups at
the leaders of the partitions. All these calls may be repeated, so a lost answer is asked for again.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from lograft._admin.by_partition import Key, NamedPartitions
from lograft._admin.calls import AdminCalls
from lograft._admin.groups import checked_group, for_each_group
from lograft._admin.resets import lag_of, reset_offset
from lograft._client.clock import monotonic_ms
from lograft._client.codec import decode_error
from lograft._client.stubs import group_service
from lograft._consumer.offsets import list_offsets
from lograft._groups.look_ups import LookUp, look_up, look_up_backoff
from lograft._groups.messages import encode_offsets, encode_partitions
from lograft.errors import LograftError, ProtocolError, UsageError
from lograft.types import (
    GroupOffset,
    GroupOffsets,
    OffsetAndMetadata,
    OffsetAnswer,
    OffsetChange,
    OffsetQuery,
    Position,
    ResetTo,
    TopicPartition,
)
from lograft.v1 import group_pb2 as pb

PAGE_PARTITIONS: Final = 4_000
"""Partitions in one request that changes offsets."""

PAGE_BYTES: Final = 512 * 1024
"""Bytes of the offsets in one request that sets them. The coordinator takes more: the records that it writes of them are larger."""

OFFSET_BYTES: Final = 64
"""Bytes that one offset counts without its metadata."""

END_TIMEOUT_MS: Final = 5_000
"""Milliseconds for the ends of partitions, which only the lag needs: a partition without a leader must not hold up the offsets."""

MAX_OFFSET: Final = 2**63 - 1
"""Highest offset."""


async def group_offsets(
    calls: AdminCalls,
    groups: Sequence[str],
    partitions: Sequence[TopicPartition | str] | None = None,
    *,
    with_lag: bool = True,
) -> list[GroupOffsets]:
    """Look up the committed offsets of consumer groups, and how far each is behind.

    Args:
        groups: group ids.
        partitions: partitions to look up; a name alone stands for all partitions of the topic. None: all that have an offset.
        with_lag: also ask for the readable range of each partition, for at most 5 s.

    Returns:
        One entry for each group, in order, with an `error` if it failed. A group that does not exist has no offsets.

    Raises:
        UsageError: a group id or a partition is not valid.
        LograftError: no broker answered.
    """
    deadline_ms = monotonic_ms() + calls.timeout_ms
    topics = None if partitions is None else await NamedPartitions.of(calls, partitions)

    async def fetch(group: str, timeout_ms: int) -> GroupOffsets:
        found = await _fetch(calls, group, topics, timeout_ms=timeout_ms)
        return GroupOffsets(group=group, offsets=tuple(found))

    results = await for_each_group(
        calls.until(deadline_ms), groups, fetch, lambda group, error: GroupOffsets(group=group, error=error)
    )
    if not with_lag:
        return results
    named = {
        TopicPartition(each.topic, each.partition) for result in results for each in result.offsets if not each.error
    }
    left_ms = max(1, min(END_TIMEOUT_MS, deadline_ms - monotonic_ms()))
    ranges = await _ranges(calls, sorted(named), timeout_ms=left_ms)
    return [
        GroupOffsets(
            group=result.group,
            offsets=tuple(_with_lag(each, ranges) for each in result.offsets),
            error=result.error,
        )
        for result in results
    ]


async def alter_group_offsets(
    calls: AdminCalls, group: str, offsets: Mapping[TopicPartition, int | OffsetAndMetadata]
) -> list[OffsetChange]:
    """Set committed offsets of a consumer group without members, also back. Creates the group if there is none.

    `reset_group_offsets` finds the offsets for you. More than 4,000 offsets take several requests, each of which is carried out or not.

    Args:
        group: group id.
        offsets: for each partition, the offset to read next, with metadata if you like.

    Returns:
        One result for each partition, in order, with an `error` if it was refused.

    Raises:
        GroupNotEmptyError: the group has members. Stop them first; they would overwrite what you set.
        UsageError: a group id, partition or offset is not valid.
        LograftError: the call as a whole failed; it may be repeated.
    """
    checked_group(group)
    wanted = {TopicPartition(*where): _checked_offset(where, offset) for where, offset in offsets.items()}
    deadline_ms = monotonic_ms() + calls.timeout_ms
    topics = await NamedPartitions.of(calls, list(wanted))
    outcomes: dict[Key, LograftError | None] = {}
    for page in _pages(topics, wanted):
        request = pb.AlterOffsetsRequest(
            cluster_id=calls.cluster.cluster_id, group_id=group, offsets=encode_offsets(page)
        )
        response = await calls.coordinators.call(
            group,
            lambda channel: group_service(channel).AlterOffsets,
            request,
            timeout_ms=max(1, deadline_ms - monotonic_ms()),
        )
        outcomes |= _outcomes(response.outcomes, page)
    return [_changed(where, topics, outcomes, after=offset.offset) for where, offset in wanted.items()]


async def reset_group_offsets(
    calls: AdminCalls,
    group: str,
    to: ResetTo | Mapping[TopicPartition, int],
    partitions: Sequence[TopicPartition | str] | None = None,
    *,
    validate_only: bool = False,
) -> list[OffsetChange]:
    """Move the committed offsets of a consumer group without members to a place, or to an offset for each partition.

    Offsets outside of the readable records are moved to their beginning or end. A moved offset loses its metadata; one that is
    where it should be keeps it.

    Args:
        group: group id.
        to: a place, such as `ResetTo.earliest()`, `ResetTo.ago(timedelta(hours=1))`, `ResetTo.shift(-10)`; or an offset for each
            partition.
        partitions: partitions to move; a name alone stands for all partitions of the topic. None: all that have an offset, or those
            for which `to` has one.
        validate_only: only find out what would change. This is allowed while the group has members.

    Returns:
        One result for each partition, by topic and partition, with its offset before and after, and an `error` if it was refused.

    Raises:
        GroupNotEmptyError: the group has members. Stop them first; they would overwrite what you set.
        UsageError: a group id, partition or offset is not valid, or `partitions` is None and the group has no offsets.
        LograftError: the call as a whole failed; it may be repeated.
    """
    checked_group(group)
    place = to if isinstance(to, ResetTo) else None
    given: dict[TopicPartition, int] = {}
    if not isinstance(to, ResetTo):
        given = {TopicPartition(*where): _checked_offset(where, offset).offset for where, offset in to.items()}
        partitions = list(given) if partitions is None else partitions
    deadline_ms = monotonic_ms() + calls.timeout_ms
    topics = None if partitions is None else await NamedPartitions.of(calls, partitions)
    stored = await _fetch(calls, group, topics, timeout_ms=max(1, deadline_ms - monotonic_ms()))
    if partitions is None and not stored:
        raise UsageError(f"group {group!r} has no offsets; name the topics")
    known = [TopicPartition(each.topic, each.partition) for each in stored if each.error is None]
    ranges = await _ranges(calls, known, timeout_ms=max(1, deadline_ms - monotonic_ms()))
    times: dict[TopicPartition, OffsetAnswer] = {}
    if place is not None and place.kind in ("time", "ago"):
        time_ms = place.value if place.kind == "time" else max(0, time.time_ns() // 1_000_000 - place.value)
        queries = [OffsetQuery(topic=each.topic, partition=each.partition, timestamp_ms=time_ms) for each in known]
        answers = await list_offsets(calls.cluster, queries, timeout_ms=max(1, deadline_ms - monotonic_ms()))
        times = dict(zip(known, answers, strict=True))
    plan = [_planned(each, place or _given(each, given), ranges, times) for each in stored]
    moves = {
        TopicPartition(each.topic, each.partition): each.after
        for each in plan
        if each.error is None and each.after is not None and each.after != each.before
    }
    if validate_only or not moves:
        return plan
    done = await alter_group_offsets(calls.until(deadline_ms), group, moves)
    errors = {TopicPartition(each.topic, each.partition): each.error for each in done}
    return [
        each
        if (error := errors.get(TopicPartition(each.topic, each.partition))) is None
        else OffsetChange(topic=each.topic, partition=each.partition, before=each.before, error=error)
        for each in plan
    ]


async def delete_group_offsets(
    calls: AdminCalls, group: str, partitions: Sequence[TopicPartition | str]
) -> list[OffsetChange]:
    """Delete committed offsets of a consumer group, in topics to which none of its members subscribes.

    Args:
        group: group id.
        partitions: partitions; a name alone stands for all partitions of the topic.

    Returns:
        One result for each partition, with an `error` if it was refused: `GroupNotEmptyError` if members subscribe to the topic.

    Raises:
        GroupNotFoundError: no group has this id.
        UsageError: a group id or a partition is not valid.
        LograftError: the call as a whole failed; it may be repeated.
    """
    checked_group(group)
    deadline_ms = monotonic_ms() + calls.timeout_ms
    topics = await NamedPartitions.of(calls, partitions)
    outcomes: dict[Key, LograftError | None] = {}
    keys = list(topics.keys())
    for start in range(0, len(keys), PAGE_PARTITIONS):
        page = keys[start : start + PAGE_PARTITIONS]
        request = pb.DeleteOffsetsRequest(
            cluster_id=calls.cluster.cluster_id, group_id=group, topics=encode_partitions(page)
        )
        response = await calls.coordinators.call(
            group,
            lambda channel: group_service(channel).DeleteOffsets,
            request,
            timeout_ms=max(1, deadline_ms - monotonic_ms()),
        )
        outcomes |= _outcomes(response.outcomes, page)
    return [_changed(where, topics, outcomes, after=None) for where in topics.partitions]


async def _fetch(
    calls: AdminCalls, group: str, topics: NamedPartitions | None, *, timeout_ms: int
) -> list[GroupOffset]:
    """Return the offsets of a group, by topic and partition. Those of topics that were deleted a moment ago are left out.

    An offset that waits for the decision of an ingest is asked for again; without a decision in time it has an error.
    """
    found = await look_up(
        calls.coordinators,
        group,
        None if topics is None else list(topics.keys()),
        cluster_id=calls.cluster.cluster_id,
        timeout_ms=timeout_ms,
        backoff=look_up_backoff(calls.cluster.rng),
    )
    if topics is None:
        named = [
            _group_offset(TopicPartition(found.names[topic_id], number), found, (topic_id, number))
            for topic_id, number in (*found.offsets, *found.errors)
            if topic_id in found.names
        ]
        return sorted(named, key=lambda each: (each.topic, each.partition))
    return [
        GroupOffset(topic=each.topic, partition=each.partition, error=error)
        if (error := topics.errors.get(each)) is not None
        else _group_offset(each, found, topics.key(each))
        for each in topics.partitions
    ]


def _group_offset(where: TopicPartition, found: LookUp, key: Key) -> GroupOffset:
    error = found.errors.get(key)
    committed = None if error is not None else found.offsets[key]
    return GroupOffset(topic=where.topic, partition=where.partition, committed=committed, error=error)


_Ranges = Mapping[TopicPartition, tuple[OffsetAnswer, OffsetAnswer]]


async def _ranges(calls: AdminCalls, partitions: Sequence[TopicPartition], *, timeout_ms: int) -> _Ranges:
    """Return beginning and end of the readable records of each partition."""
    queries = [
        OffsetQuery(topic=each.topic, partition=each.partition, position=position)
        for position in (Position.EARLIEST, Position.LATEST)
        for each in partitions
    ]
    answers = await list_offsets(calls.cluster, queries, timeout_ms=timeout_ms)
    half = len(partitions)
    return dict(zip(partitions, zip(answers[:half], answers[half:], strict=True), strict=True))


def _with_lag(found: GroupOffset, ranges: _Ranges) -> GroupOffset:
    if found.error is not None:
        return found
    start, end = ranges[TopicPartition(found.topic, found.partition)]
    committed = None if found.committed is None else found.committed.offset
    return GroupOffset(
        topic=found.topic,
        partition=found.partition,
        committed=found.committed,
        log_start_offset=start.offset,
        end_offset=end.offset,
        lag=lag_of(committed, start=start.offset, end=end.offset),
    )


def _given(stored: GroupOffset, given: Mapping[TopicPartition, int]) -> ResetTo | None:
    offset = given.get(TopicPartition(stored.topic, stored.partition))
    return None if offset is None else ResetTo.offset(offset)


def _planned(
    stored: GroupOffset,
    to: ResetTo | None,
    ranges: _Ranges,
    times: Mapping[TopicPartition, OffsetAnswer],
) -> OffsetChange:
    """Return what a reset does to a partition."""
    where = TopicPartition(stored.topic, stored.partition)
    before = None if stored.committed is None else stored.committed.offset
    error = stored.error
    if error is None:
        answers = (*ranges[where], *([times[where]] if where in times else []))
        error = next((each.error for each in answers if each.error is not None), None)
    if error is not None:
        return OffsetChange(topic=where.topic, partition=where.partition, before=before, error=error)
    start, end = (each.offset or 0 for each in ranges[where])
    found = times[where].offset if where in times else None
    after = before if to is None else reset_offset(to, committed=before, start=start, end=end, found=found)
    return OffsetChange(topic=where.topic, partition=where.partition, before=before, after=after)


def _pages(
    topics: NamedPartitions, wanted: Mapping[TopicPartition, OffsetAndMetadata]
) -> Iterator[dict[Key, OffsetAndMetadata]]:
    """Yield the offsets of partitions that exist, in pages that one request holds."""
    page: dict[Key, OffsetAndMetadata] = {}
    size_bytes = 0
    for where, offset in wanted.items():
        if where in topics.errors:
            continue
        own_bytes = OFFSET_BYTES + len(offset.metadata.encode(errors="replace"))
        if page and (len(page) == PAGE_PARTITIONS or size_bytes + own_bytes > PAGE_BYTES):
            yield page
            page, size_bytes = {}, 0
        page[topics.key(where)] = offset
        size_bytes += own_bytes
    if page:
        yield page


def _outcomes(outcomes: Iterable[pb.OffsetOutcome], asked: Iterable[Key]) -> dict[Key, LograftError | None]:
    found = {
        (each.topic_id, each.partition): decode_error(each.error) if each.HasField("error") else None
        for each in outcomes
    }
    if not all(key in found for key in asked):
        raise ProtocolError("a coordinator left out partitions of a change of offsets")
    return found


def _changed(
    where: TopicPartition, topics: NamedPartitions, outcomes: Mapping[Key, LograftError | None], *, after: int | None
) -> OffsetChange:
    error = topics.errors.get(where)
    if error is None:
        error = outcomes[topics.key(where)]
    return OffsetChange(
        topic=where.topic, partition=where.partition, after=None if error is not None else after, error=error
    )


def _checked_offset(where: object, offset: object) -> OffsetAndMetadata:
    found = offset if isinstance(offset, OffsetAndMetadata) else OffsetAndMetadata(offset)  # pyright: ignore[reportArgumentType]
    if type(found.offset) is not int or not 0 <= found.offset <= MAX_OFFSET:
        raise UsageError(f"the offset of {where} is a whole number from 0, not {offset!r}")
    return found
