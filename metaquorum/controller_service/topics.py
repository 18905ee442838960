# SPDX-License-Identifier: Apache-2.0
"""Topics: requests of AdminService to commands, images and outcomes to answers.

Owns the pages of a list, and the slices and limits of a request for many topics. Each topic of such a request is a command of its
own: it is created whole or not at all, and a refused one stops no other. The quorum gathers the commands of a slice into few batches.
Queries are answered from the given image: by the controller, or by a broker while no controller answers. Decides nothing itself.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import Counter
from collections.abc import Sequence
from typing import Final

from lograft.v1 import admin_pb2, errors_pb2
from lograft.wire.codes import ErrorCode
from lograft.wire.status import cut_message

from metaquorum.controller.commands import (
    CreatePartitions,
    CreateTopic,
    DeleteTopic,
    PartitionsCreated,
    TopicCreated,
    TopicDeleted,
)
from metaquorum.controller_service import configs
from metaquorum.controller_service.codec import to_topic
from metaquorum.controller_service.commit_waiters import RETRY_AFTER_MS, CommandError, Outcome
from metaquorum.controller_service.controller_host import ControllerHost
from metaquorum.controller_service.operation import Member
from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.state import TopicImage
from metaquorum.metadata.topic_names import is_internal, reserved_problem

DEFAULT_PAGE_SIZE: Final = 1_000
"""Topics on a page unless the request names a size."""

MAX_PAGE_SIZE: Final = 10_000
"""Largest page size."""

MAX_CREATED_TOPICS: Final = 1_000
"""Topics that one request may create."""

SLICE_TOPICS: Final = 50
"""Topics that are decided in one turn of the event loop, and whose commits are awaited together."""

TOPIC_ID_BYTES: Final = 16


def refuse_reserved(topic: str) -> None:
    """Refuse a change of a topic that belongs to the system.

    Raises:
        CommandError: INVALID_TOPIC_NAME.
    """
    problem = reserved_problem(topic)
    if problem is not None:
        raise CommandError(ErrorCode.INVALID_TOPIC_NAME, problem)


def create(request: admin_pb2.CreateTopicRequest, _member: Member) -> CreateTopic:
    """Return the command for a request, with a random topic id and placement seed.

    Brokers make internal topics with it, so that whoever passes on a request of a client calls `refuse_reserved` first.
    """
    return _create(request, validate_only=request.validate_only)


def created(_request: admin_pb2.CreateTopicRequest, result: TopicCreated) -> admin_pb2.CreateTopicResponse:
    """Return the new topic."""
    return admin_pb2.CreateTopicResponse(
        topic=to_topic(result.topic, result.topic_id, result.partitions), configs=result.configs
    )


def grow(request: admin_pb2.CreatePartitionsRequest, _member: Member) -> CreatePartitions:
    """Return the command for a request, with a random placement seed."""
    refuse_reserved(request.topic)
    return CreatePartitions(
        topic=request.topic,
        partition_count=request.partition_count,
        validate_only=request.validate_only,
        placement_seed=secrets.randbits(64),
    )


def grown(_request: admin_pb2.CreatePartitionsRequest, result: PartitionsCreated) -> admin_pb2.CreatePartitionsResponse:
    """Return the topic with its new partitions."""
    return admin_pb2.CreatePartitionsResponse(topic=to_topic(result.topic, result.topic_id, result.partitions))


def delete(request: admin_pb2.DeleteTopicRequest, _member: Member) -> DeleteTopic:
    """Return the command for a request."""
    refuse_reserved(request.topic)
    return DeleteTopic(topic=request.topic)


def deleted(_request: admin_pb2.DeleteTopicRequest, result: TopicDeleted) -> admin_pb2.DeleteTopicResponse:
    """Return the id of the deleted topic."""
    return admin_pb2.DeleteTopicResponse(topic_id=result.topic_id)


async def create_topics(
    request: admin_pb2.CreateTopicsRequest, member: Member, timeout_ms: int
) -> admin_pb2.CreateTopicsResponse:
    """Create the topics of a request, or only validate it.

    Args:
        request: the request.
        member: the active controller.
        timeout_ms: milliseconds for all of them; topics whose turn comes too late are refused with TIMED_OUT.

    Raises:
        CommandError: INVALID_REQUEST, or this node is not the controller at the start.
    """
    host = member.host
    _check(request, most_partitions=host.settings.max_request_partitions)
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_ms / 1000
    outcomes: list[Outcome | CommandError] = []
    for first in range(0, len(request.topics), SLICE_TOPICS):
        some = request.topics[first : first + SLICE_TOPICS]
        left_ms = int((deadline - loop.time()) * 1000)
        if left_ms <= 0:
            late = CommandError(ErrorCode.TIMED_OUT, "the time was up before its turn; nothing was changed")
            outcomes += [late] * len(some)
            continue
        commands = [_create(each, validate_only=request.validate_only) for each in some]
        outcomes += await _submit(host, commands, left_ms)
    created = [outcome.metadata_offset for outcome in outcomes if isinstance(outcome, Outcome)]
    return admin_pb2.CreateTopicsResponse(
        results=[_result(asked.topic, outcome) for asked, outcome in zip(request.topics, outcomes, strict=True)],
        metadata_offset=0 if request.validate_only else max(created, default=0),
    )


def _check(request: admin_pb2.CreateTopicsRequest, *, most_partitions: int) -> None:
    """Check the limits of the whole request.

    Raises:
        CommandError: INVALID_REQUEST.
    """
    if not 1 <= len(request.topics) <= MAX_CREATED_TOPICS:
        problem = f"a request creates 1 to {MAX_CREATED_TOPICS} topics, not {len(request.topics)}; use several"
        raise CommandError(ErrorCode.INVALID_REQUEST, problem)
    name, count = Counter(each.topic for each in request.topics).most_common(1)[0]
    if count > 1:
        raise CommandError(ErrorCode.INVALID_REQUEST, f"topic {name[:250]!r} is named {count} times")
    partitions = sum(max(1, each.partition_count) for each in request.topics)
    if partitions > most_partitions:
        problem = f"one request creates at most {most_partitions} partitions, not {partitions}; use several"
        raise CommandError(ErrorCode.INVALID_REQUEST, problem)


def _create(topic: admin_pb2.CreateTopicRequest | admin_pb2.NewTopic, *, validate_only: bool) -> CreateTopic:
    return CreateTopic(
        topic=topic.topic,
        topic_id=secrets.token_bytes(TOPIC_ID_BYTES),
        partition_count=topic.partition_count,
        replication_factor=topic.replication_factor,
        configs=dict(topic.configs),
        validate_only=validate_only,
        placement_seed=secrets.randbits(64),
    )


async def _submit(
    host: ControllerHost, commands: Sequence[CreateTopic], timeout_ms: int
) -> list[Outcome | CommandError]:
    async def submit(command: CreateTopic) -> Outcome | CommandError:
        try:
            refuse_reserved(command.topic)
            return await host.submit(command, timeout_ms=timeout_ms)
        except CommandError as error:
            return error

    return await asyncio.gather(*map(submit, commands))


def _result(topic: str, outcome: Outcome | CommandError) -> admin_pb2.TopicCreation:
    if isinstance(outcome, CommandError):
        error = errors_pb2.PartitionError(
            code=errors_pb2.ErrorCode.ValueType(int(outcome.code)),
            message=cut_message(outcome.message),
            retry_after_ms=outcome.retry_after_ms or (RETRY_AFTER_MS if outcome.code.retriable else 0),
        )
        return admin_pb2.TopicCreation(topic=topic, error=error)
    response = outcome.response
    assert isinstance(response, TopicCreated), f"unexpected {response}"
    return admin_pb2.TopicCreation(
        topic=topic,
        topic_id=response.topic_id,
        partition_count=len(response.partitions),
        replication_factor=len(response.partitions[0].replicas),
    )


def list_topics(request: admin_pb2.ListTopicsRequest, image: MetadataImage) -> admin_pb2.ListTopicsResponse:
    """Return a page of topics, ascending by name; internal ones if the request asks for them.

    The token of a page is the last name of the previous page.

    Raises:
        CommandError: INVALID_REQUEST: the page size is out of range.
    """
    if not 0 <= request.page_size <= MAX_PAGE_SIZE:
        raise CommandError(
            ErrorCode.INVALID_REQUEST, f"the page size must be from 0 to {MAX_PAGE_SIZE}, not {request.page_size}"
        )
    size = request.page_size or DEFAULT_PAGE_SIZE
    page: list[TopicImage] = []
    more = False
    for topic in image.topics(after=request.page_token or None):
        if is_internal(topic.topic) and not request.include_internal:
            continue
        if len(page) == size:
            more = True
            break
        page.append(topic)
    return admin_pb2.ListTopicsResponse(
        topics=[_summary(topic) for topic in page],
        next_page_token=page[-1].topic if more else "",
        metadata_offset=image.metadata_offset,
    )


def describe_topic(request: admin_pb2.DescribeTopicRequest, image: MetadataImage) -> admin_pb2.DescribeTopicResponse:
    """Return a topic with all its configs.

    Raises:
        CommandError: UNKNOWN_TOPIC.
    """
    topic = image.topic_by_name(request.topic)
    if topic is None:
        raise CommandError(ErrorCode.UNKNOWN_TOPIC, f"there is no topic {request.topic[:250]!r}")
    return admin_pb2.DescribeTopicResponse(
        topic=to_topic(topic.topic, topic.topic_id, topic.partitions),
        configs=configs.of_topic(image, topic),
        metadata_offset=image.metadata_offset,
    )


def _summary(topic: TopicImage) -> admin_pb2.TopicSummary:
    return admin_pb2.TopicSummary(
        topic=topic.topic,
        topic_id=topic.topic_id,
        partition_count=len(topic.partitions),
        replication_factor=topic.replication_factor,
        is_internal=is_internal(topic.topic),
    )
