# SPDX-License-Identifier: Apache-2.0
"""Calls about partitions that the caller has named: what the names mean, and the retry of single partitions within the deadline."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Protocol, TypeVar

from lograft._admin.calls import AdminCalls
from lograft._client.clock import monotonic_ms
from lograft.errors import LograftError, RetriableError, UnknownPartitionError, UnknownTopicError, UsageError
from lograft.settings import MAX_TOPICS_PER_CALL
from lograft.types import TopicPartition

Key = tuple[bytes, int]
"""Topic id and partition."""

Q = TypeVar("Q")


class MayFail(Protocol):
    """The answer for one partition."""

    @property
    def error(self) -> LograftError | None:
        """Why the partition failed; None on success."""
        ...


AnswerT = TypeVar("AnswerT", bound=MayFail)


async def ask_by_partition(
    calls: AdminCalls,
    wanted: Sequence[Q],
    ask: Callable[[Sequence[Q], int], Awaitable[Sequence[AnswerT]]],
    *,
    page_size: int,
) -> list[AnswerT]:
    """Ask about partitions in pages, and about those that failed for a while again, until the time is up.

    Args:
        calls: the client.
        wanted: one question for each partition. They may be asked twice.
        ask: sends a page; gets the milliseconds that are left, and returns one answer for each question, in order.
        page_size: questions in one page.

    Returns:
        One answer for each question, in order.

    Raises:
        LograftError: the call as a whole failed.
    """
    deadline_ms = monotonic_ms() + calls.timeout_ms
    backoff = calls.cluster.backoff()
    answers: dict[int, AnswerT] = {}
    left: list[int] = list(range(len(wanted)))
    while left:
        for start in range(0, len(left), page_size):
            indexes = left[start : start + page_size]
            page = [wanted[index] for index in indexes]
            answers.update(zip(indexes, await ask(page, max(1, deadline_ms - monotonic_ms())), strict=True))
        left = [index for index in left if isinstance(answers[index].error, RetriableError)]
        left_ms = deadline_ms - monotonic_ms()
        if left and left_ms <= 0:
            break
        if left:
            await asyncio.sleep(min(backoff.next_delay_ms(), left_ms) / 1000)
    return [answers[index] for index in range(len(wanted))]


class NamedPartitions:
    """Partitions that a caller has named, and the ids of their topics as a broker has just told them.

    Attributes:
        partitions: all partitions that are meant, by topic and partition.
        errors: why some of them do not exist.
    """

    def __init__(self, partitions: Sequence[TopicPartition], ids: Mapping[str, bytes]) -> None:
        self.partitions = partitions
        self.errors: dict[TopicPartition, LograftError] = {}
        self._ids = ids
        self._names = {topic_id: name for name, topic_id in ids.items()}

    @classmethod
    async def of(cls, calls: AdminCalls, named: Sequence[TopicPartition | str]) -> NamedPartitions:
        """Ask a broker for the topics.

        Raises:
            UsageError: something is neither a topic name nor a partition of a topic.
            UnknownTopicError: a topic that is named without a partition does not exist.
            LograftError: no broker answered.
        """
        if isinstance(named, str):
            raise UsageError(f"name a list of topics or partitions, such as [{named!r}], not {named!r}")
        wanted = [each if isinstance(each, str) else _checked_partition(each) for each in named]
        names = sorted({each if isinstance(each, str) else each.topic for each in wanted})
        deadline_ms = monotonic_ms() + calls.timeout_ms
        for start in range(0, len(names), MAX_TOPICS_PER_CALL):
            page = frozenset(names[start : start + MAX_TOPICS_PER_CALL])
            await calls.cluster.fetch(page, timeout_ms=max(1, deadline_ms - monotonic_ms()))
        ids: dict[str, bytes] = {}
        counts: dict[str, int] = {}
        for name in names:
            state = calls.cluster.view.topic(name)
            if state is not None:
                ids[name] = state.topic_id
                counts[name] = len(state.partitions)
        meant: dict[TopicPartition, None] = {}
        for each in wanted:
            if not isinstance(each, str):
                meant[each] = None
            elif each not in ids:
                raise UnknownTopicError(f"topic {each!r} does not exist")
            else:
                meant.update((TopicPartition(each, number), None) for number in range(counts[each]))
        found = cls(sorted(meant), ids)
        for where in found.partitions:
            if where.topic not in ids:
                found.errors[where] = UnknownTopicError(f"topic {where.topic!r} does not exist")
            elif where.partition >= counts[where.topic]:
                message = f"topic {where.topic!r} has {counts[where.topic]} partitions, from 0"
                found.errors[where] = UnknownPartitionError(message)
        return found

    def key(self, where: TopicPartition) -> Key:
        """Return topic id and partition of a partition that exists."""
        return (self._ids[where.topic], where.partition)

    def keys(self) -> Iterator[Key]:
        """Yield topic id and partition of each partition that exists."""
        return (self.key(each) for each in self.partitions if each not in self.errors)


def _checked_partition(where: object) -> TopicPartition:
    if isinstance(where, tuple) and len(where) == 2:  # pyright: ignore[reportUnknownArgumentType]
        topic, partition = where  # pyright: ignore[reportUnknownVariableType]
        if isinstance(topic, str) and type(partition) is int and 0 <= partition < 2**31:  # pyright: ignore[reportUnknownArgumentType]
            return TopicPartition(topic, partition)
    raise UsageError(f"name a topic or a TopicPartition, not {where!r}")
