# SPDX-License-Identifier: Apache-2.0
"""Reads staged batches: from this broker's own replica of the staging partition, else from the partition's leader.

The own replica serves what is below the high watermark that it knows, whoever leads. Staging partitions are placed on the replicas of
the partitions that they belong to, so this is the usual way. The leader is asked with `FetchRange`, a piece at a time. Owns the choice.
Every read gives the event loop its turn.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence

from lograft.wire.codes import ErrorCode
from lograft.wire.errors import BatchError
from lograft.wire.header import BatchHeader, iter_batches

from brokerd.failure import RefusedError, refused
from brokerd.publishing.limits import LOOK_BYTES, READ_BYTES, RETRY_MS
from brokerd.publishing.plan import StagedBatch
from brokerd.replica.replica import Replica
from brokerd.replication.peer_errors import PeerError
from brokerd.replication.repair import RepairCalls
from metaquorum.metadata.image import TopicImage
from metaquorum.metadata.loader import MetadataLoader
from metaquorum.metadata.topic_names import staging_topic
from storage.log.reader import ReadWork

Piece = list[tuple[StagedBatch, memoryview]]
"""Whole batches that follow each other, with their bytes."""

Looked = list[tuple[StagedBatch, memoryview | None]]
"""Whole batches that follow each other, with their bytes or without."""


def staged_batch(header: BatchHeader) -> StagedBatch:
    """Return what a plan needs of a header."""
    return StagedBatch(
        base_offset=header.base_offset,
        next_offset=header.next_offset,
        size_bytes=header.size_bytes,
        producer_id=header.producer_id if header.producer_epoch == 0 and not header.is_control else -1,
        base_sequence=header.base_sequence,
        records=header.record_count,
    )


def split(data: bytes | memoryview) -> Piece:
    """Return the batches of a region.

    Raises:
        RefusedError: DATA_LOSS, these are no whole batches.
    """
    view = memoryview(data)
    try:
        return [(staged_batch(header), view[at : at + header.size_bytes]) for at, header in iter_batches(view)]
    except BatchError as error:
        raise refused(
            ErrorCode.DATA_LOSS, f"staged batches cannot be read: {error}", retry_after_ms=RETRY_MS
        ) from error


class StagedReads:
    """Reads the staging partitions of this cluster.

    Args:
        node_id: node id of this broker.
        observer: the metadata.
        find: returns the open replica of a topic id and partition.
        calls: asks other brokers for ranges.
    """

    def __init__(
        self,
        *,
        node_id: int,
        observer: MetadataLoader,
        find: Callable[[bytes, int], Replica | None],
        calls: RepairCalls,
    ) -> None:
        self._node_id = node_id
        self._observer = observer
        self._find = find
        self._calls = calls

    def topic(self, topic_id: bytes) -> TopicImage:
        """Return the staging topic of a topic.

        Raises:
            RefusedError: METADATA_NOT_REACHED, it is not known here.
        """
        found = self._observer.image.topic_by_name(staging_topic(topic_id))
        if found is None:
            message = f"the staging topic of topic {topic_id.hex()} is not known here"
            raise refused(ErrorCode.METADATA_NOT_REACHED, message, retry_after_ms=RETRY_MS)
        return found

    async def look(
        self, topic_id: bytes, partition: int, ranges: Sequence[tuple[int, int]]
    ) -> AsyncGenerator[Looked, None]:
        """Yield all batches of ranges of offsets, as far as batches begin and end there: the first piece with its bytes.

        So whoever looks at little has read it, and of what is large only the headers are read, where this broker has them.

        Args:
            topic_id: id of the topic that the staging topic belongs to.
            partition: partition.
            ranges: begin and end (exclusive) of each range.

        Raises:
            RefusedError: as `read`.
        """
        is_first = True
        for offset, end_offset in ranges:
            while offset < end_offset:
                piece: Looked | None = None
                if not is_first:
                    piece = await self._headers(topic_id, partition, offset, end_offset)
                if piece is None:
                    piece = [*split(await self.read(topic_id, partition, offset, end_offset))]
                if not piece:
                    break
                is_first = False
                yield piece
                offset = piece[-1][0].next_offset

    async def _headers(self, topic_id: bytes, partition: int, offset: int, end_offset: int) -> Looked | None:
        """Return the headers of whole batches as `read` would return these; None if this broker's replica does not serve them."""
        await asyncio.sleep(0)
        replica = self._find(self.topic(topic_id).topic_id, partition)
        if replica is None or not _serves(replica, end_offset):
            return None
        try:
            found = replica.read_headers(offset, LOOK_BYTES, end_offset=end_offset)
        except RefusedError:
            # `read` knows what becomes of it.
            return None
        return [(staged_batch(header), None) for header in found.headers]

    async def read(self, topic_id: bytes, partition: int, offset: int, end_offset: int) -> bytes:
        """Return whole batches from the one that holds `offset` on, none beyond `end_offset` (exclusive): `READ_BYTES`, or one batch.

        Returns:
            The batches; empty if none ends there, or (asked of the leader) if none begins at `offset`.

        Raises:
            RefusedError: INGEST_INCOMPLETE, the records were deleted, or never were; OFFSET_NOT_AVAILABLE, not known yet to be
                committed; LEADER_NOT_AVAILABLE, nobody can be asked; DATA_LOSS, STORAGE_FAILED, as for any read.
        """
        await asyncio.sleep(0)
        topic = self.topic(topic_id)
        if not 0 <= partition < len(topic.partitions):
            message = f"partition {partition} of {topic.topic!r} is not known here"
            raise refused(ErrorCode.METADATA_NOT_REACHED, message, retry_after_ms=RETRY_MS)
        leader_id = topic.partitions[partition].leader_id
        replica = self._find(topic.topic_id, partition)
        if replica is not None and _serves(replica, end_offset):
            try:
                return replica.read(offset, READ_BYTES, end_offset=end_offset).data
            except RefusedError as error:
                # A damaged range, for example: perhaps the leader has it.
                if leader_id is None or leader_id == self._node_id:
                    raise _incomplete(error) from error
        if leader_id is None:
            message = f"{topic.topic}-{partition} has no leader at the moment"
            raise refused(ErrorCode.LEADER_NOT_AVAILABLE, message, retry_after_ms=RETRY_MS)
        if leader_id == self._node_id:
            raise self._not_readable(replica, f"{topic.topic}-{partition}", end_offset)
        return await self._ask(leader_id, topic, partition, range(offset, end_offset))

    def begin(self, topic_id: bytes, partition: int, offset: int, end_offset: int) -> ReadWork | None:
        """Begin a read of whole batches from `offset` to `end_offset` (exclusive) for a thread; None if only `read` can do it."""
        topic = self._observer.image.topic_by_name(staging_topic(topic_id))
        replica = None if topic is None else self._find(topic.topic_id, partition)
        if replica is None or not _serves(replica, end_offset):
            return None
        return replica.begin_read(offset, end_offset=end_offset)

    def _not_readable(self, replica: Replica | None, partition: str, end_offset: int) -> RefusedError:
        """Return why this leader's own replica does not serve up to `end_offset`."""
        if replica is None or not replica.is_leader or not replica.is_end_known:
            message = f"this broker is about to lead {partition}"
            return refused(ErrorCode.LEADER_NOT_AVAILABLE, message, retry_after_ms=RETRY_MS)
        if end_offset > replica.log_end_offset:
            message = (
                f"{partition} ends at {replica.log_end_offset}, before the staged records that end at {end_offset}"
            )
            return refused(ErrorCode.INGEST_INCOMPLETE, message)
        message = f"{partition} is committed up to {replica.high_watermark}, not yet up to {end_offset}"
        return refused(ErrorCode.OFFSET_NOT_AVAILABLE, message, retry_after_ms=RETRY_MS)

    async def _ask(self, leader_id: int, topic: TopicImage, partition: int, wanted: range) -> bytes:
        try:
            return await self._calls.ask(leader_id, topic.topic_id, partition, wanted)
        except PeerError as error:
            text = f"broker {leader_id}, which leads {topic.topic}-{partition}: {error}"
            match error.code:
                case ErrorCode.INVALID_REQUEST:
                    return b""
                case ErrorCode.OFFSET_OUT_OF_RANGE:
                    raise refused(ErrorCode.INGEST_INCOMPLETE, text) from error
                case ErrorCode.OFFSET_NOT_AVAILABLE | ErrorCode.DATA_LOSS | ErrorCode.STORAGE_FAILED:
                    raise refused(error.code, text, retry_after_ms=RETRY_MS) from error
                case _:
                    raise refused(ErrorCode.LEADER_NOT_AVAILABLE, text, retry_after_ms=RETRY_MS) from error


def _serves(replica: Replica, end_offset: int) -> bool:
    """Return True if a replica of this broker has everything below an offset (exclusive), and knows that it is committed."""
    return replica.is_writable and end_offset <= replica.high_watermark


def _incomplete(error: RefusedError) -> RefusedError:
    """Return the refusal of a read as one of a publication."""
    if error.failure.code is ErrorCode.OFFSET_OUT_OF_RANGE:
        return refused(ErrorCode.INGEST_INCOMPLETE, f"staged records are gone: {error.failure.message}")
    return error
