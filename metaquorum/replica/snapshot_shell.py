# SPDX-License-Identifier: Apache-2.0
"""Carries out the core's effects on snapshots: download, install, trim.

Owns the downloads of one node, and the order of the steps of an install. Decides nothing. Blocking work runs in one thread, so that
the event loop continues. Install and trim themselves are short; they run on the event loop, like a truncation, because nothing else
may happen to the log in between.
Source: `docs/quorum.md` section "Snapshots", the table of crashes.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path

from lograft.internal.v1 import quorum_pb2 as pb

from metaquorum.metadata.image_format import LoadedImage
from metaquorum.metadata.metadata_files import MetadataFiles
from metaquorum.metadata.snapshot_files import link_tree, sync_tree
from metaquorum.metadata.snapshot_rows import PIECE_BYTES, InvalidSnapshotError, SnapshotWriter
from metaquorum.raft.effects import DiscardSnapshot, DownloadSnapshot, InstallSnapshot, TrimLog
from metaquorum.raft.events import Failure, SnapshotCreated, SnapshotDownloaded, SnapshotFailed, SnapshotProgressed
from metaquorum.raft.types import ReplicaKey, SnapshotId
from metaquorum.raft.voters import VoterSet
from metaquorum.raft_codec import quorum_codec as codec
from metaquorum.raft_codec.wire_fields import InvalidMessageError, from_replica_key
from metaquorum.replica.delivery import ListenerFeed
from metaquorum.replica.log_store import LogStore
from metaquorum.replica.quorum_settings import SnapshotSettings
from metaquorum.replica.quorum_transport import PeerFailureError, QuorumTransport
from metaquorum.replica.snapshot_maker import SnapshotMaker

logger = logging.getLogger(__name__)

SnapshotEvent = SnapshotCreated | SnapshotProgressed | SnapshotDownloaded | SnapshotFailed


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ready:
    """A complete, checked and synced download: its directory and its image."""

    part: Path
    image: LoadedImage


class SnapshotShell:
    """Snapshots of one running node.

    Args:
        files: image and snapshots.
        log: the log.
        transport: sends requests to the leader.
        key: this replica.
        cluster_id: cluster.
        settings: when snapshots are made.
        piece_timeout_ms: longest wait for a piece, in milliseconds.
    """

    def __init__(
        self,
        *,
        files: MetadataFiles,
        log: LogStore,
        transport: QuorumTransport,
        key: ReplicaKey,
        cluster_id: str,
        settings: SnapshotSettings,
        piece_timeout_ms: int,
    ) -> None:
        self._files = files
        self._log = log
        self._transport = transport
        self._key = key
        self._cluster_id = cluster_id
        self._piece_timeout_ms = piece_timeout_ms
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="quorum-snapshots")
        self._submit: Callable[[SnapshotEvent], None] = _nowhere
        self._settle_flush: Callable[[], None] = _nothing
        self._feeds: Sequence[ListenerFeed] = ()
        self._ready: dict[int, _Ready] = {}
        self._download: tuple[int, asyncio.Task[None]] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.maker = SnapshotMaker(
            files,
            settings,
            self._thread,
            log_bytes=_unsnapshotted_bytes(files, log),
            positions=lambda: min(feed.next_offset for feed in self._feeds),
            may_make=lambda: self._download is None and not self._ready,
            on_made=lambda made: self._submit(SnapshotCreated(snapshot=made)),
        )

    def start(
        self,
        submit: Callable[[SnapshotEvent], None],
        feeds: Sequence[ListenerFeed],
        *,
        settle_flush: Callable[[], None],
    ) -> None:
        """Start.

        Args:
            submit: passes an event to the core.
            feeds: feeds of all listeners.
            settle_flush: returns when no flush of the log runs in the disk thread.
        """
        self._submit, self._feeds, self._settle_flush = submit, feeds, settle_flush
        # Remains of a crash between the new log start and the removal of obsolete snapshots.
        self._remove(self._files.snapshots.remove_below(self._log.log_start_offset))

    async def close(self) -> None:
        """Stop downloads, and wait for the work in the thread."""
        if self._download is not None:
            self._download[1].cancel()
        await self.maker.close()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.get_running_loop().run_in_executor(None, self._thread.shutdown)

    def execute(self, effect: DownloadSnapshot | DiscardSnapshot | InstallSnapshot | TrimLog) -> None:
        """Carry out an effect."""
        match effect:
            case DownloadSnapshot():
                self._cancel()
                self._download = (effect.download_id, self._spawn(self._fetch(effect)))
            case DiscardSnapshot(download_id=download_id):
                if self._download is not None and self._download[0] == download_id:
                    self._cancel()
                ready = self._ready.pop(download_id, None)
                if ready is not None:
                    self._remove([ready.part])
            case InstallSnapshot(download_id=download_id, snapshot=snapshot):
                self._install(self._ready.pop(download_id), snapshot)
            case TrimLog(snapshot=oldest):
                self._log.truncate_prefix(oldest)
                logger.info("event=log_trimmed log_start_offset=%d", oldest.end_offset)
                self._remove(self._files.snapshots.remove_below(oldest.end_offset))

    def _install(self, ready: _Ready, snapshot: SnapshotId) -> None:
        """Install a snapshot. The next start repairs a crash after any step: see the table in `docs/quorum.md`."""
        logger.warning("event=snapshot_installed end_offset=%d epoch=%d", snapshot.end_offset, snapshot.epoch)
        self._settle_flush()
        self._files.snapshots.publish(ready.part, snapshot)
        self._log.truncate_fully(snapshot)
        self._files.store.replace(self._files.image_part)
        self._remove(self._files.snapshots.remove_below(snapshot.end_offset))
        for feed in self._feeds:
            feed.install(ready.image)

    async def _fetch(self, effect: DownloadSnapshot) -> None:
        download_id = effect.download_id
        part = self._files.snapshots.part()
        failure = Failure.TIMED_OUT
        try:
            ready = await self._receive(effect, part)
        except PeerFailureError as error:
            failure = error.failure
            logger.warning("event=snapshot_download_failed error=%s", error)
        except (InvalidSnapshotError, InvalidMessageError) as error:
            logger.error("event=snapshot_download_invalid peer=%s error=%s", effect.address, error)
        except Exception:
            logger.exception("event=snapshot_download_failed")
        else:
            self._forget(download_id)
            self._ready[download_id] = ready
            self._submit(SnapshotDownloaded(download_id=download_id, voters=_voters(ready)))
            return
        finally:
            if download_id not in self._ready:
                # In the thread, so after the work of a cancelled download that still runs there.
                self._remove([part])
        self._forget(download_id)
        self._submit(SnapshotFailed(download_id=download_id, failure=failure))

    async def _receive(self, effect: DownloadSnapshot, part: Path) -> _Ready:
        """Receive a snapshot from the leader and write it.

        Raises:
            PeerFailureError: no answer, or a refusal.
            InvalidSnapshotError, InvalidMessageError: an answer that no correct leader sends.
        """
        loop = asyncio.get_running_loop()
        writer: SnapshotWriter | None = None
        request = pb.FetchSnapshotRequest(
            cluster_id=self._cluster_id,
            quorum_epoch=effect.quorum_epoch,
            replica=from_replica_key(self._key),
            snapshot=codec.encode_snapshot_id(effect.snapshot),
            max_bytes=PIECE_BYTES,
        )
        try:
            messages = self._transport.fetch_snapshot(effect.address, request, timeout_ms=self._piece_timeout_ms)
            # Close the stream here in any case: until it is collected, it would count against the leader's limit of streams.
            async with aclosing(messages):
                async for message in messages:
                    kind = message.WhichOneof("part")
                    if kind == "error":
                        raise PeerFailureError(Failure.TIMED_OUT, f"{effect.address} refuses: {message.error}")
                    if kind == "header" and writer is None:
                        writer = await loop.run_in_executor(
                            self._thread, self._new_writer, part, effect, message.header
                        )
                    elif kind == "rows" and writer is not None:
                        rows = message.rows
                        await loop.run_in_executor(self._thread, writer.add, rows.keys_and_values, rows.crc)
                    elif kind == "end" and writer is not None:
                        image = await loop.run_in_executor(self._thread, self._finish, part, writer, message.end)
                        return _Ready(part=part, image=image)
                    else:
                        raise InvalidSnapshotError(f"{kind} out of turn")
                    self._submit(SnapshotProgressed(download_id=effect.download_id))
            raise InvalidSnapshotError("the stream ended before the snapshot did")
        finally:
            if writer is not None:
                # In the thread, after its current work, which the cancellation of the task does not stop.
                self._thread.submit(writer.close)

    def _new_writer(self, part: Path, effect: DownloadSnapshot, header: pb.SnapshotHeader) -> SnapshotWriter:
        if codec.decode_snapshot_id(header.snapshot) != effect.snapshot:
            raise InvalidSnapshotError(f"{header.snapshot} came, {effect.snapshot} was asked for")
        return SnapshotWriter(part, effect.snapshot, header.voters_record)

    def _finish(self, part: Path, writer: SnapshotWriter, end: pb.SnapshotEnd) -> LoadedImage:
        image = writer.finish(row_count=end.row_count, digest=end.digest)
        sync_tree(part)
        link_tree(part, self._files.image_part)
        return image

    def _forget(self, download_id: int) -> None:
        if self._download is not None and self._download[0] == download_id:
            self._download = None

    def _cancel(self) -> None:
        if self._download is not None:
            self._download[1].cancel()
            self._download = None

    def _remove(self, paths: Sequence[Path]) -> None:
        for path in paths:
            self._thread.submit(shutil.rmtree, path, ignore_errors=True)

    def _spawn(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def _voters(ready: _Ready) -> VoterSet:
    voters = ready.image.voters
    assert voters is not None, "the writer takes no snapshot without voters"
    return voters


def _unsnapshotted_bytes(files: MetadataFiles, log: LogStore) -> int:
    """Estimate the bytes of log above the newest snapshot from its share of the offsets."""
    newest = files.snapshots.newest
    start_offset, end_offset = log.log_start_offset, files.loaded.image.metadata_offset
    above = end_offset - (start_offset if newest is None else newest.end_offset)
    return log.size_bytes() * above // (log.end_offset - start_offset) if above > 0 else 0


def _nowhere(event: SnapshotEvent) -> None:
    raise AssertionError(f"{event} before the start")


def _nothing() -> None:
    """No flush runs before the start."""
