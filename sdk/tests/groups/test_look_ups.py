# SPDX-License-Identifier: Apache-2.0
"""Look-ups of committed offsets: what waits for a decision is asked for again, and an error is never "no offset"."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from typing import Any

import pytest
from lograft._groups.look_ups import MAX_PARTITIONS, LookUp, look_up, look_up_backoff
from lograft.errors import ProtocolError, RequestTimeoutError, ServerUnavailableError, UnknownTopicError
from lograft.v1 import errors_pb2, group_pb2
from lograft.wire.codes import ErrorCode

T = b"t" * 16
Answers = Mapping[int, int | ErrorCode | None]
"""By partition: an offset, None for "no offset", or an error."""


class ScriptedCoordinator:
    """A coordinator that gives the answers of a script, one for each call; the last one again and again.

    Attributes:
        asked: partitions of each call; None: all.
    """

    def __init__(self, *script: Answers) -> None:
        self.asked: list[list[int] | None] = []
        self._script = list(script)

    async def call(self, group_id: str, method: object, request: Any, *, timeout_ms: int) -> Any:
        """Answer a look-up."""
        del method
        assert (group_id, request.group_id, request.cluster_id) == ("g", "g", "c")
        assert timeout_ms > 0
        asked = [number for each in request.topics for number in each.partitions]
        self.asked.append(asked or None)
        answers = self._script.pop(0) if len(self._script) > 1 else self._script[0]
        response = group_pb2.FetchOffsetsResponse()
        if not asked:
            response.topics.add(topic_id=T, topic="t")
        for number in asked or sorted(answers):
            if number not in answers:
                continue
            answer = answers[number]
            found = response.offsets.add(topic_id=T, partition=number)
            if isinstance(answer, ErrorCode):
                found.error.code = errors_pb2.ErrorCode.ValueType(int(answer))
            elif answer is not None:
                found.offset = answer
        return response


async def find(coordinator: ScriptedCoordinator, *numbers: int, timeout_ms: int = 5_000, again: bool = True) -> LookUp:
    """Look up partitions of a topic, or all."""
    return await look_up(
        coordinator,
        "g",
        [(T, number) for number in numbers] or None,
        cluster_id="c",
        timeout_ms=timeout_ms,
        backoff=look_up_backoff(random.Random(1)) if again else None,
    )


async def test_only_what_waits_is_asked_for_again() -> None:
    """The answers come together; a positive "no offset" is one."""
    coordinator = ScriptedCoordinator(
        {0: 5, 1: ErrorCode.OFFSETS_PENDING, 2: None, 3: ErrorCode.OFFSETS_PENDING},
        {1: 7, 3: ErrorCode.OFFSETS_PENDING},
        {3: None},
    )
    found = await find(coordinator, 0, 1, 2, 3)
    offsets = {key[1]: None if each is None else each.offset for key, each in found.offsets.items()}
    assert offsets == {0: 5, 1: 7, 2: None, 3: None}
    assert not found.errors
    assert coordinator.asked == [[0, 1, 2, 3], [1, 3], [3]]


async def test_all_offsets_with_one_that_waits() -> None:
    """The second question names what waits; the names of the topics are those of the first."""
    coordinator = ScriptedCoordinator({0: 5, 1: ErrorCode.OFFSETS_PENDING}, {1: 7})
    found = await find(coordinator)
    assert {key[1]: each.offset for key, each in found.offsets.items() if each is not None} == {0: 5, 1: 7}
    assert found.names == {T: "t"}
    assert coordinator.asked == [None, [1]]


async def test_no_decision_in_time_is_an_error_of_the_partition() -> None:
    """It can be retried, and the other partitions have their offsets."""
    coordinator = ScriptedCoordinator({0: 5, 1: ErrorCode.OFFSETS_PENDING})
    async with asyncio.timeout(20):
        found = await find(coordinator, 0, 1, timeout_ms=700)
    assert [key[1] for key in found.offsets] == [0]
    error = found.errors[T, 1]
    assert isinstance(error, ServerUnavailableError)
    assert error.code is ErrorCode.OFFSETS_PENDING
    assert 2 <= len(coordinator.asked) <= 8, "with pauses"


async def test_once_means_once() -> None:
    """A member looks again by itself, for as long as it has the partition."""
    coordinator = ScriptedCoordinator({0: 5, 1: ErrorCode.OFFSETS_PENDING})
    found = await find(coordinator, 0, 1, again=False)
    assert (len(found.offsets), len(found.errors), len(coordinator.asked)) == (1, 1, 1)


async def test_error_for_good_is_not_repeated() -> None:
    """It comes with the rest."""
    coordinator = ScriptedCoordinator({0: ErrorCode.UNKNOWN_TOPIC, 1: ErrorCode.OFFSETS_PENDING}, {1: 7})
    found = await find(coordinator, 0, 1)
    assert [type(each) for each in found.errors.values()] == [UnknownTopicError]
    assert coordinator.asked == [[0, 1], [1]]


async def test_silence_about_a_partition_is_no_offset_and_no_error() -> None:
    """It breaks the protocol."""
    with pytest.raises(ProtocolError):
        await find(ScriptedCoordinator({0: 5}), 0, 1)


async def test_many_partitions_go_in_pages() -> None:
    """No request has more than the coordinator takes, the first time and again."""
    numbers = range(MAX_PARTITIONS + 10)
    coordinator = ScriptedCoordinator(dict.fromkeys(numbers, ErrorCode.OFFSETS_PENDING), dict.fromkeys(numbers, 1))
    found = await find(coordinator, *numbers)
    assert len(found.offsets) == len(numbers)
    assert max(len(each or ()) for each in coordinator.asked) == MAX_PARTITIONS
    assert not found.errors


async def test_call_that_fails_as_a_whole_ends_the_look_up() -> None:
    """The coordinator's calls repeat themselves; what they give up is given up here."""

    class Silent(ScriptedCoordinator):
        async def call(self, group_id: str, method: object, request: Any, *, timeout_ms: int) -> Any:
            raise RequestTimeoutError("no answer")

    with pytest.raises(RequestTimeoutError):
        await find(Silent({}), 0)
