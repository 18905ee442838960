# SPDX-License-Identifier: Apache-2.0
"""Serves snapshots to replicas: one stream for each, rows in key order.

Owns the reading of a snapshot for a stream, and the limit of streams. Decides nothing: before every piece it asks the core whether
this node may serve, so a leader that lost its leadership ends its streams.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from typing import Final

from crc32c import crc32c
from lograft.internal.v1 import quorum_pb2 as pb

from metaquorum.metadata.snapshot_files import SnapshotFiles
from metaquorum.metadata.snapshot_rows import PIECE_BYTES, SnapshotReader
from metaquorum.raft.events import SnapshotServed
from metaquorum.raft.snapshots import check_download
from metaquorum.raft.state import RaftState
from metaquorum.raft_codec import quorum_codec as codec
from metaquorum.raft_codec.wire_fields import to_epoch, to_replica_key

logger = logging.getLogger(__name__)

MAX_STREAMS: Final = 16
"""Snapshots that are sent at the same time. Further requests are refused with UNAVAILABLE."""


class SnapshotServer:
    """Sends the snapshots of one node.

    Args:
        state: state of the core; only read.
        files: the snapshots.
        submit: passes an event to the core.
    """

    def __init__(self, state: RaftState, files: SnapshotFiles, submit: Callable[[SnapshotServed], None]) -> None:
        self._state = state
        self._files = files
        self._submit = submit
        self._stream_count = 0

    async def serve(self, request: pb.FetchSnapshotRequest) -> AsyncGenerator[pb.FetchSnapshotResponse]:
        """Yield all messages of one stream.

        Raises:
            InvalidMessageError: a field of the request is out of range.
        """
        error = self._check(request)
        if error is None and self._stream_count >= MAX_STREAMS:
            error = pb.QUORUM_ERROR_UNAVAILABLE
        if error is not None:
            yield pb.FetchSnapshotResponse(error=error)
            return
        self._stream_count += 1
        try:
            # Close an abandoned stream here, not at its garbage collection.
            async with aclosing(self._stream(request)) as messages:
                async for message in messages:
                    yield message
        finally:
            self._stream_count -= 1

    def _check(self, request: pb.FetchSnapshotRequest) -> pb.QuorumError.ValueType | None:
        refusal = check_download(
            self._state,
            cluster_id=request.cluster_id,
            quorum_epoch=to_epoch(request.quorum_epoch, "quorum_epoch"),
            replica=to_replica_key(request.replica, "replica"),
            snapshot=codec.decode_snapshot_id(request.snapshot),
        )
        return None if refusal is None else codec.refusal_error(refusal)

    async def _stream(self, request: pb.FetchSnapshotRequest) -> AsyncGenerator[pb.FetchSnapshotResponse]:
        loop = asyncio.get_running_loop()
        replica = to_replica_key(request.replica, "replica")
        snapshot = codec.decode_snapshot_id(request.snapshot)
        max_bytes = min(max(request.max_bytes, 1), PIECE_BYTES)
        logger.info("event=snapshot_sent replica=%s snapshot=%d", replica, snapshot.end_offset)
        # One thread for each stream: a slow reader delays no other stream.
        with self._files.pinned(snapshot) as path, ThreadPoolExecutor(1, thread_name_prefix="snapshot") as thread:
            reader = await loop.run_in_executor(thread, SnapshotReader, path, snapshot)
            try:
                header = pb.SnapshotHeader(snapshot=request.snapshot, voters_record=reader.voters_record)
                yield pb.FetchSnapshotResponse(header=header)
                pieces = reader.pieces(max_bytes)
                while (piece := await loop.run_in_executor(thread, next, pieces, None)) is not None:
                    error = self._check(request)
                    if error is not None:
                        yield pb.FetchSnapshotResponse(error=error)
                        return
                    self._submit(SnapshotServed(replica=replica))
                    yield pb.FetchSnapshotResponse(rows=pb.SnapshotRows(crc=crc32c(piece), keys_and_values=piece))
                digest = reader.digest
                yield pb.FetchSnapshotResponse(end=pb.SnapshotEnd(row_count=digest.row_count, digest=digest.value()))
            finally:
                # In the same thread: an abandoned stream does not stop a read of a piece that is under way.
                thread.submit(reader.close)
