# SPDX-License-Identifier: Apache-2.0
"""Splits a call about many partitions by the brokers that lead them, and joins the answers in the order of the request.

Owns which broker answers for which partition: this one, or another with one forwarded call each. A partition without a leader gets its
own failed answer. Does not know the kind of question.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from lograft.wire.codes import ErrorCode

from brokerd.failure import Failure, LeaderPlace, RefusedError, refused
from brokerd.replica.locator import Locator

YIELD_ANSWERS = 64
"""Partitions answered in one turn of the event loop. Each answer may search an index on disk."""

ResultT = TypeVar("ResultT")


async def answer_by_leader(
    wanted: Sequence[tuple[str, int]],
    *,
    locator: Locator,
    was_forwarded: bool,
    answer: Callable[[int], Awaitable[ResultT]],
    forward: Callable[[LeaderPlace, list[int]], Awaitable[Sequence[ResultT]]],
    failed: Callable[[int, Failure], ResultT],
) -> list[ResultT]:
    """Return one answer for each partition.

    Args:
        wanted: topic name and partition of each question.
        locator: knows the leaders.
        was_forwarded: True if another broker forwarded the call; then it is not forwarded again.
        answer: answers the question with this index here. May raise `RefusedError`.
        forward: sends the questions with these indexes to a broker and returns its answers in order. May raise `RefusedError`.
        failed: makes the answer for a failure.
    """
    answers: dict[int, ResultT] = {}
    local: list[int] = []
    remote: dict[LeaderPlace, list[int]] = {}
    for index, (topic, partition) in enumerate(wanted):
        try:
            place = locator.leader(locator.topic(topic), partition)
        except RefusedError as error:
            answers[index] = failed(index, error.failure)
            continue
        if locator.is_local(place):
            local.append(index)
        elif was_forwarded:
            message = f"broker {place.leader_id} leads {topic}-{partition}"
            answers[index] = failed(index, Failure(code=ErrorCode.NOT_LEADER, message=message, leader=place))
        else:
            # The places of one broker differ only in leader epoch. Without the epoch, one call goes to each broker.
            remote.setdefault(_broker_only(place), []).append(index)

    async def answer_local() -> dict[int, ResultT]:
        found: dict[int, ResultT] = {}
        for position, index in enumerate(local, start=1):
            try:
                found[index] = await answer(index)
            except RefusedError as error:
                found[index] = failed(index, error.failure)
            if position % YIELD_ANSWERS == 0:
                await asyncio.sleep(0)
        return found

    async def answer_remote(place: LeaderPlace, indexes: list[int]) -> dict[int, ResultT]:
        try:
            results = await forward(place, indexes)
            if len(results) != len(indexes):
                message = f"broker {place.leader_id} answered {len(results)} of {len(indexes)} questions"
                raise refused(ErrorCode.INTERNAL, message)
        except RefusedError as error:
            return {index: failed(index, error.failure) for index in indexes}
        return dict(zip(indexes, results, strict=True))

    forwards = [answer_remote(place, indexes) for place, indexes in remote.items()]
    for part in await asyncio.gather(answer_local(), *forwards):
        answers |= part
    return [answers[index] for index in range(len(wanted))]


def _broker_only(place: LeaderPlace) -> LeaderPlace:
    return LeaderPlace(leader_id=place.leader_id, leader_epoch=0, host=place.host, port=place.port)
