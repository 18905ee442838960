# SPDX-License-Identifier: Apache-2.0
"""What the driver asks the brokers while it plans a read: topics, offsets, and samples of records.

It owns one client. It must not decide what is read (`ranges`, `stream_offsets` and `record_sizes` do).
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Final, TypeVar

from lograft.admin import Admin
from lograft.errors import LograftError, OffsetOutOfRangeError, UnknownTopicError
from lograft.settings import parse_bootstrap
from lograft.spark.ranges import Readable
from lograft.spark.record_sizes import RECORD_BYTES, WINDOW_BYTES, WINDOW_RECORDS, Window
from lograft.spark.settings import Assign, Connection, Selection, Subscribe, SubscribePattern
from lograft.spark.values import OptionError
from lograft.types import OffsetQuery, Position, TopicPartition
from lograft.wire.codes import ErrorCode
from lograft.wire.limits import MAX_GRPC_MESSAGE_BYTES

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from lograft._client.background_loop import Runtime
    from lograft._client.cluster import Cluster

T = TypeVar("T")

MAX_DESCRIBED_TOPICS: Final = 16
"""Named topics that are asked for one by one. For more of them, one list of all topics is faster."""
MAX_SAMPLING_CALLS: Final = 16
"""Calls for samples that are under way at the same time."""
WINDOW_CALLS: Final = 4
"""Most calls for one window. A call may end before the window does, for example before a large record."""
SAMPLE_TIMEOUT_MS: Final = 30_000
"""Milliseconds for one call for samples."""


@dataclass(frozen=True, slots=True, order=True)
class Topic:
    """A topic that exists.

    Attributes:
        topic_id: its id, 16 bytes. A topic that is deleted and created again has another one.
        partition_count: number of partitions.
    """

    topic_id: bytes
    partition_count: int


class Lookups:
    """Answers of the brokers of one cluster. Close it, or use it in a `with` block."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._admin = Admin(connection.bootstrap, cluster_id=connection.cluster_id)
        self._runtime: Runtime | None = None
        self._cluster: Cluster | None = None

    def __enter__(self) -> Lookups:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        cluster, self._cluster = self._cluster, None
        runtime, self._runtime = self._runtime, None
        try:
            if cluster is not None and runtime is not None:
                runtime.run(cluster.close())
        finally:
            if runtime is not None:
                from lograft._client.runtime import release_runtime

                release_runtime(runtime)
            self._admin.close()

    # -- topics

    def topics(self, selection: Selection, *, may_lack: bool = False) -> dict[str, Topic]:
        """Return the selected topics by name, ascending.

        Args:
            selection: the selection. Of an assignment, its topics.
            may_lack: leave out a named topic that does not exist.

        Raises:
            UnknownTopicError: a named topic does not exist.
        """
        if isinstance(selection, SubscribePattern):
            pattern = re.compile(selection.pattern)
            return {name: topic for name, topic in self._all(include_internal=False) if pattern.fullmatch(name)}
        if isinstance(selection, Subscribe):
            names: Sequence[str] = selection.topics
        else:
            names = sorted({each.topic for each in selection.partitions})
        topics: dict[str, Topic] = {}
        if len(names) > MAX_DESCRIBED_TOPICS:
            there = dict(self._all(include_internal=True))
            topics = {name: there[name] for name in names if name in there}
        # What is missing in the list may have been created since.
        for name in names:
            if name in topics:
                continue
            try:
                described = self._admin.describe_topic(name)
            except UnknownTopicError:
                if not may_lack:
                    raise
                continue
            topics[name] = Topic(described.topic_id, described.partition_count)
        return topics

    def _all(self, *, include_internal: bool) -> list[tuple[str, Topic]]:
        found = self._admin.list_topics(include_internal=include_internal)
        return sorted((each.topic, Topic(each.topic_id, each.partition_count)) for each in found)

    # -- offsets

    def readable(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, Readable]:
        """Return the readable offsets of partitions.

        Raises:
            UnknownTopicError: a topic or partition does not exist.
        """
        # Look up the end first. Records that arrive between the two lookups are beyond it and are not read.
        ends = self._offsets([_at(each, Position.LATEST) for each in partitions])
        starts = self._offsets([_at(each, Position.EARLIEST) for each in partitions])
        return {
            each: Readable(log_start_offset=start or 0, high_watermark=max(end or 0, start or 0))
            for each, start, end in zip(partitions, starts, ends, strict=True)
        }

    def first_at(self, times_ms: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | None]:
        """Return the first offset of each partition with a create time (milliseconds) or a later one; None if there is none."""
        queries = [
            OffsetQuery(topic=each.topic, partition=each.partition, timestamp_ms=time_ms)
            for each, time_ms in times_ms.items()
        ]
        return dict(zip(times_ms, self._offsets(queries), strict=True))

    def _offsets(self, queries: Sequence[OffsetQuery]) -> list[int | None]:
        found: list[int | None] = []
        for answer in self._admin.list_offsets(queries) if queries else []:
            if answer.error is not None:
                raise answer.error
            found.append(answer.offset)
        return found

    # -- samples

    def windows(self, places: Sequence[tuple[TopicPartition, int]], *, include_headers: bool) -> list[Window]:
        """Return the window of records at each place, a partition and an offset of it.

        A place whose records were deleted meanwhile has an empty window there.

        Raises:
            LograftError: a partition could not be read.
        """

        async def read_all() -> list[Window]:
            slots = asyncio.Semaphore(MAX_SAMPLING_CALLS)

            async def read(place: tuple[TopicPartition, int]) -> Window:
                async with slots:
                    return await self._window(*place, include_headers=include_headers)

            return await asyncio.gather(*map(read, places))

        return self._run(read_all()) if places else []

    async def _window(self, partition: TopicPartition, offset: int, *, include_headers: bool) -> Window:
        window = Window(offset, (), (), offset)
        for _ in range(WINDOW_CALLS):
            record_count = WINDOW_RECORDS - len(window.ends)
            left_bytes = WINDOW_BYTES - window.size_bytes
            if record_count <= 0 or left_bytes <= 0:
                break
            found = await self._read(partition, window.end_offset, record_count, left_bytes, include_headers)
            if found is None or found.end_offset <= window.end_offset:
                break
            window = window.joined(found)
        return window

    async def _read(
        self, partition: TopicPartition, offset: int, record_count: int, size_bytes: int, include_headers: bool
    ) -> Window | None:
        from lograft._client.stubs import log_service
        from lograft.v1 import log_pb2

        cluster = self._opened()
        request = log_pb2.ReadRequest(
            cluster_id=cluster.cluster_id,
            topic=partition.topic,
            partition=partition.partition,
            offset=offset,
            max_records=record_count,
            max_bytes=size_bytes,
            allow_follower=True,
        )
        try:
            response = await cluster.ask(
                lambda channel: log_service(channel).Read, request, timeout_ms=SAMPLE_TIMEOUT_MS
            )
        except OffsetOutOfRangeError:
            return None
        except LograftError as error:
            if error.code != ErrorCode.MESSAGE_TOO_LARGE:
                raise
            return Window(offset, (offset + 1,), (MAX_GRPC_MESSAGE_BYTES,), offset + 1)
        sizes = tuple(
            RECORD_BYTES
            + len(record.key)
            + len(record.value)
            + (sum(len(each.key) + len(each.value) for each in record.headers) if include_headers else 0)
            for record in response.records
        )
        return Window(offset, tuple(record.offset + 1 for record in response.records), sizes, response.next_offset)

    def _opened(self) -> Cluster:
        assert self._cluster is not None
        return self._cluster

    def _run(self, work: Coroutine[object, object, T]) -> T:
        if self._runtime is None:
            from lograft._client.cluster import Cluster
            from lograft._client.runtime import open_on_runtime

            settings = parse_bootstrap(self._connection.bootstrap, self._connection.cluster_id)
            self._cluster, self._runtime = open_on_runtime(lambda: Cluster(settings))
        return self._runtime.run(work)


def selected_partitions(selection: Selection, topics: Mapping[str, Topic]) -> tuple[TopicPartition, ...]:
    """Return the selected partitions of topics, ascending.

    Raises:
        OptionError: an assignment names a partition that its topic does not have.
    """
    if not isinstance(selection, Assign):
        return tuple(sorted(_partitions(topics)))
    for each in selection.partitions:
        topic = topics.get(each.topic)
        if topic is not None and each.partition >= topic.partition_count:
            raise OptionError(
                "assign", f"topic {each.topic} has no partition {each.partition}, only 0 to {topic.partition_count - 1}"
            )
    return tuple(each for each in selection.partitions if each.topic in topics)


def _partitions(topics: Mapping[str, Topic]) -> Iterable[TopicPartition]:
    for name, topic in topics.items():
        for partition in range(topic.partition_count):
            yield TopicPartition(name, partition)


def _at(partition: TopicPartition, position: Position) -> OffsetQuery:
    return OffsetQuery(topic=partition.topic, partition=partition.partition, position=position)
