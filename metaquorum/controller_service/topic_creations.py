# SPDX-License-Identifier: Apache-2.0
"""Many topics in one request: one command for each, a slice of them at a time.

Owns the slices and the limits of a request. Each topic is a command of its own, so that it is whole or not there, and one that is
refused stops no other; the quorum gathers the commands of a slice into few batches. Must not decide.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final

from lograft.v1 import admin_pb2, errors_pb2
from lograft.wire.codes import ErrorCode
from lograft.wire.status import cut_message

from metaquorum.controller.commands import CreateTopic, TopicCreated
from metaquorum.controller.limits import MAX_CREATED_TOPICS
from metaquorum.controller_service.commit_waiters import RETRY_AFTER_MS, CommandError, Outcome
from metaquorum.controller_service.controller_host import ControllerHost

SLICE_TOPICS: Final = 50
"""Topics that are decided in one turn of the event loop, and whose commits are waited for together."""


async def create_topics(
    host: ControllerHost, request: admin_pb2.CreateTopicsRequest, *, new_id: Callable[[], bytes], timeout_ms: int
) -> admin_pb2.CreateTopicsResponse:
    """Create the topics of a request, or check whether they could be.

    Args:
        host: controller of this node.
        request: the request.
        new_id: source of topic ids.
        timeout_ms: milliseconds for all of them; those that did not get their turn are refused with TIMED_OUT.

    Raises:
        CommandError: INVALID_REQUEST, or this node is not the controller when it begins.
    """
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
        commands = [_command(each, new_id(), validate_only=request.validate_only) for each in some]
        outcomes += await _submit(host, commands, left_ms)
    created = [outcome.metadata_offset for outcome in outcomes if isinstance(outcome, Outcome)]
    return admin_pb2.CreateTopicsResponse(
        results=[_result(asked.topic, outcome) for asked, outcome in zip(request.topics, outcomes, strict=True)],
        metadata_offset=0 if request.validate_only else max(created, default=0),
    )


def _check(request: admin_pb2.CreateTopicsRequest, *, most_partitions: int) -> None:
    """Refuse a request as a whole.

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


def _command(topic: admin_pb2.NewTopic, topic_id: bytes, *, validate_only: bool) -> CreateTopic:
    return CreateTopic(
        topic=topic.topic,
        topic_id=topic_id,
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
