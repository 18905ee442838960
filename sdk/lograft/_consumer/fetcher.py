# SPDX-License-Identifier: Apache-2.0
"""A consumer's part on the event loop: the fetch engine and lookups of offsets.

The blocking and the asyncio consumer share it. It must not touch the collector.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from lograft._client.clock import monotonic_ms
from lograft._client.cluster import Cluster
from lograft._consumer.arguments import check_offset
from lograft._consumer.engine import FetchEngine
from lograft._consumer.fetch_buffer import Arrival, Cursor
from lograft._consumer.offsets import find_offsets
from lograft.errors import UnknownPartitionError, UnreachableError
from lograft.settings import ClientSettings, ConsumerSettings
from lograft.types import ConsumerHealth, OffsetQuery, PartitionHealth, Position, TopicPartition


class Fetcher:
    """Owns the fetch engine and the cluster connection of one consumer, and looks up offsets. Belongs to one event loop."""

    def __init__(
        self,
        client: ClientSettings,
        settings: ConsumerSettings,
        deliver: Callable[[Arrival], None],
        report: Callable[[UnreachableError | None], None],
    ) -> None:
        self.cluster = Cluster(client)
        self.engine = FetchEngine(self.cluster, settings, deliver, report)
        self._timeout_ms = client.request_timeout_ms

    async def check(self, tps: Sequence[TopicPartition]) -> None:
        """Check that partitions exist.

        Raises:
            UnknownTopicError: a topic or partition does not exist.
        """
        deadline_ms = monotonic_ms() + self._timeout_ms
        for topic in dict.fromkeys(tp.topic for tp in tps):
            state = await self.cluster.topic(topic, timeout_ms=max(1, deadline_ms - monotonic_ms()))
            for tp in tps:
                if tp.topic == topic and tp.partition >= len(state.partitions):
                    raise UnknownPartitionError(
                        f"topic {topic!r} has partitions 0 to {len(state.partitions) - 1}, not {tp.partition}"
                    )

    async def resolve(
        self, tps: Sequence[TopicPartition], offsets: Mapping[TopicPartition, int], start: Position
    ) -> dict[TopicPartition, int]:
        """Return the first offset to read of each partition: the given offset, else the one at `start`."""
        await self.check(tps)
        for tp, offset in offsets.items():
            check_offset(offset, f"the offset of {tp}")
        missing = [tp for tp in tps if tp not in offsets]
        found = await self.find_position(missing, start)
        return {tp: found[tp] if tp in found else offsets[tp] for tp in tps}

    async def find_position(self, tps: Sequence[TopicPartition], position: Position) -> dict[TopicPartition, int]:
        """Look up the earliest or latest offset of each partition."""
        queries = [OffsetQuery(topic=tp.topic, partition=tp.partition, position=position) for tp in tps]
        if not queries:
            return {}
        found = await find_offsets(self.cluster, queries, timeout_ms=self._timeout_ms)
        return {tp: offset or 0 for tp, offset in zip(tps, found, strict=True)}

    async def find_times(self, times_ms: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | None]:
        """Look up the first offset with a timestamp (milliseconds since 1970-01-01 UTC) or a later one; None if none exists."""
        queries = [
            OffsetQuery(topic=tp.topic, partition=tp.partition, timestamp_ms=time_ms)
            for tp, time_ms in times_ms.items()
        ]
        if not queries:
            return {}
        found = await find_offsets(self.cluster, queries, timeout_ms=self._timeout_ms)
        return dict(zip(times_ms, found, strict=True))

    async def find_times_or_ends(self, times_ms: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Look up the first offsets with a timestamp or a later one, else the ends of the readable offsets."""
        found = await self.find_times(times_ms)
        ends = await self.find_position([tp for tp, offset in found.items() if offset is None], Position.LATEST)
        return {tp: ends[tp] if offset is None else offset for tp, offset in found.items()}

    async def topic_ids(self, tps: Sequence[TopicPartition]) -> dict[TopicPartition, bytes]:
        """Return the ids of the topics of partitions: that of the topic that is read, else that of the present one.

        Raises:
            UnknownTopicError: a topic or partition does not exist.
        """
        read = {tp: topic_id for tp in tps if (topic_id := self.engine.topic_id_of(tp)) is not None}
        others = [tp for tp in tps if tp not in read]
        await self.check(others)
        for tp in others:
            state = await self.cluster.topic(tp.topic, timeout_ms=self._timeout_ms)
            read[tp] = state.topic_id
        return read

    def health(self, cursors: Sequence[Cursor], held_ms: Mapping[TopicPartition, int]) -> ConsumerHealth:
        """Return the state of the partitions of a consumer.

        Args:
            cursors: their cursors.
            held_ms: for how many milliseconds those that are held have been.
        """
        partitions: dict[TopicPartition, PartitionHealth] = {}
        for cursor in cursors:
            leader_id, address = self.engine.place_of(cursor.tp)
            partitions[cursor.tp] = PartitionHealth(
                position=cursor.position,
                high_watermark=cursor.high_watermark,
                leader_id=leader_id,
                address=address,
                trouble=self.engine.trouble_of(cursor.tp),
                error=cursor.error,
                held_ms=held_ms.get(cursor.tp),
            )
        return ConsumerHealth(partitions=partitions, unreachable_ms=self.engine.unreachable_ms)

    async def close(self) -> None:
        """Stop fetching and close the connections."""
        await self.engine.close()
        await self.cluster.close()
