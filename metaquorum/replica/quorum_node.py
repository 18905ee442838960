# SPDX-License-Identifier: Apache-2.0
"""The quorum node: one member (voter or observer) of the metadata quorum, with the interface for its users.

Owns the composition of driver, log, vote file and transport, and their public interface. It decides nothing: `metaquorum.raft`
decides. Everything runs on one event loop thread.
Source: `docs/quorum.md`.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Final

from lograft.internal.v1 import quorum_pb2 as pb
from lograft.wire.errors import BatchTooLargeError
from lograft.wire.limits import MAX_RECORDS_PER_BATCH

from metaquorum.metadata.listener import CommittedBatch, MetadataListener, QuorumLeader
from metaquorum.metadata.metadata_files import MetadataFiles
from metaquorum.net.peers import Peers
from metaquorum.raft.effects import Rejection
from metaquorum.raft.messages import Request
from metaquorum.raft.node import RaftNode
from metaquorum.raft.state import Identity
from metaquorum.raft.types import NodeId, Offset, QuorumEpoch, ReplicaKey, SnapshotId
from metaquorum.raft.voter_changes import ChangeOutcome, TransferOutcome, TransferResigned, VoterChange
from metaquorum.raft.voters import VoterHistory
from metaquorum.replica.delivery import ListenerFeed
from metaquorum.replica.driver import Answer, Driver, StoppedError
from metaquorum.replica.election_store import ElectionStore
from metaquorum.replica.first_start import probe_response, read_initial_voters
from metaquorum.replica.gathered import gathered_size
from metaquorum.replica.log_store import LogBase, LogOptions, LogStore, encode_records
from metaquorum.replica.operator_requests import OperatorRequests
from metaquorum.replica.quorum_metrics import LoopClock, QuorumSample, take_sample
from metaquorum.replica.quorum_settings import QuorumSettings, QuorumTimers, SnapshotSettings, raft_config
from metaquorum.replica.quorum_status import QuorumStatus, ReplicaStatus, describe
from metaquorum.replica.quorum_transport import QuorumTransport
from metaquorum.replica.snapshot_server import SnapshotServer
from metaquorum.replica.snapshot_shell import SnapshotShell
from storage.directory.data_directory import DataDirectory

__all__ = [
    "BusyError",
    "CommittedBatch",
    "MetadataListener",
    "NotLeaderError",
    "QuorumError",
    "QuorumLeader",
    "QuorumNode",
    "QuorumSettings",
    "QuorumStatus",
    "QuorumTimers",
    "ReplicaStatus",
    "SnapshotSettings",
]

REDIRECT_MS: Final = 500
"""Milliseconds for which a stopping leader still answers who leads now: several times what a broker needs to learn it."""


class QuorumError(Exception):
    """A quorum node could not do what the caller asked; subclasses say why."""


class NotLeaderError(QuorumError):
    """This node does not lead the quorum in the named epoch. Ask the leader in `leader`."""

    def __init__(self, leader: QuorumLeader) -> None:
        super().__init__(f"this node does not lead the quorum; known leader: {leader}")
        self.leader = leader


class BusyError(QuorumError):
    """Too many bytes are appended but uncommitted, or too many reads wait; try again."""


class QuorumNode:
    """One voter or observer of the metadata quorum.

    It is a voter if (node id, directory id) is among the voters of the log (before the first record: of the format). Otherwise it is
    an observer, which follows the log and never votes.

    Args:
        settings: addresses, times, limits.
        data_directory: the formatted, locked directory of this node; the node uses `<data>/metadata/` in it.
        peers: connections of this process to other servers; they outlive the node.
        listener: user of the committed log, which writes the image of `metadata`; None: no user.
        metadata: image and snapshots; None: this node has no image, so it makes no snapshots and cannot install one.
    """

    def __init__(
        self,
        settings: QuorumSettings,
        data_directory: DataDirectory,
        peers: Peers,
        *,
        listener: MetadataListener | None = None,
        metadata: MetadataFiles | None = None,
    ) -> None:
        if data_directory.node_id != settings.node_id or data_directory.cluster_id != settings.cluster_id:
            raise QuorumError(
                f"{data_directory.path} belongs to node {data_directory.node_id} of cluster"
                f" {data_directory.cluster_id!r}, not to node {settings.node_id} of {settings.cluster_id!r}"
            )
        self._settings = settings
        self._data_directory = data_directory
        self._peers = peers
        self._listener = listener
        self._metadata = metadata
        self._snapshot_server: SnapshotServer | None = None
        self._key = ReplicaKey(node_id=NodeId(settings.node_id), directory_id=data_directory.directory_id)
        self._raft: RaftNode | None = None
        self._driver: Driver | None = None
        self._feeds: list[ListenerFeed] = []
        self._log: LogStore | None = None
        self._loop_clock = LoopClock()

    @property
    def node_id(self) -> int:
        """Id of this node."""
        return self._key.node_id

    @property
    def cluster_id(self) -> str:
        """Id of the cluster."""
        return self._settings.cluster_id

    @property
    def directory_id(self) -> bytes:
        """Id of the data directory, 16 bytes."""
        return self._key.directory_id

    async def start(self) -> None:
        """Open the log and the vote file, and take part in the quorum. Returns before a leader is known.

        Raises:
            VoteFileLostError: this node may have forgotten a vote; wipe the directory, and it joins as a new replica.
            FirstStartRefusedError: the file of initial voters is missing or damaged.
            DamagedLogError: flushed records of the log are damaged or missing.
            storage.errors.StorageError: the log cannot be opened.
        """
        assert self._driver is None, "a node starts once"
        settings, disk = self._settings, self._data_directory.disk
        metadata = self._data_directory.metadata_path
        make_room = self._data_directory.release_ballast
        elections = ElectionStore(disk, metadata, self._key, make_room=make_room)
        election = elections.load()
        initial_voters = read_initial_voters(disk, metadata)
        log = LogStore.open(
            disk,
            self._data_directory.metadata_log_path,
            _log_base(self._metadata),
            options=LogOptions(make_room=make_room),
        )
        self._log = log
        self._raft = RaftNode(
            identity=Identity(
                key=self._key,
                cluster_id=settings.cluster_id,
                address=settings.advertised_address or settings.voters.get(settings.node_id),
                addresses={NodeId(number): address for number, address in settings.voters.items()},
                bootstrap_addresses=settings.bootstrap_addresses,
                levels=settings.levels,
            ),
            config=raft_config(settings),
            rng=random.Random(),
            election=election,
            voters=VoterHistory(initial_voters, log.voters),
            log=log.view(),
            kept_snapshots=log.kept_snapshots,
            committed_offset=log.committed_offset,
        )
        transport = QuorumTransport(self._peers)
        snapshots = None if self._metadata is None else self._snapshot_shell(self._metadata, log, transport)
        self._driver = Driver(
            node=self._raft,
            log=log,
            elections=elections,
            transport=transport,
            snapshots=snapshots,
        )
        driver = self._driver
        if self._metadata is not None:
            self._snapshot_server = SnapshotServer(self._raft.state, self._metadata.snapshots, driver.submit)
        listeners = (self._listener, None if snapshots is None else snapshots.maker)
        self._feeds = [ListenerFeed(listener, log, driver.fail) for listener in listeners if listener is not None]
        driver.start(self._feeds)

    def _snapshot_shell(self, metadata: MetadataFiles, log: LogStore, transport: QuorumTransport) -> SnapshotShell:
        return SnapshotShell(
            files=metadata,
            log=log,
            transport=transport,
            key=self._key,
            cluster_id=self._settings.cluster_id,
            settings=self._settings.snapshots,
            piece_timeout_ms=self._settings.timers.snapshot_piece_timeout_ms,
        )

    async def stop(self) -> None:
        """Stop in an orderly way: a leader hands over first (bounded by `shutdown_grace_ms`). Idempotent."""
        if self._driver is not None:
            await self._hand_over(self._driver)
        driver, self._driver = self._driver, None
        if driver is None:
            return
        await driver.shut_down(grace_ms=self._settings.timers.shutdown_grace_ms)
        has_failed = driver.failure.done()
        if not has_failed:
            driver.failure.set_result(None)
        if self._log is not None:
            self._log.close(is_clean=not has_failed)

    async def _hand_over(self, driver: Driver) -> None:
        """As leader, commit what was appended, so that callers get their answers, and hand over to a successor with everything.

        Bounded by `shutdown_grace_ms`. If it fails (no other voter, no majority), the shutdown continues without it. After it, this
        node still answers for `REDIRECT_MS`: a caller that met a closed port could not know whether its call was carried out.
        """
        if driver.leader.leader_id != self._key.node_id or driver.failure.done():
            return
        try:
            async with asyncio.timeout(self._settings.timers.shutdown_grace_ms / 1_000):
                outcome = await driver.operators.transfer_leadership(None)
                if not isinstance(outcome, TransferResigned):
                    return
                await driver.operators.next_leader(driver.leader, above_epoch=outcome.quorum_epoch)
        except TimeoutError:
            return
        await asyncio.wait((driver.failure,), timeout=REDIRECT_MS / 1_000)

    async def abandon(self) -> None:
        """Stop like a crash: hand nothing over, flush nothing, leave no mark of a clean shutdown. For tests of failures."""
        driver, self._driver = self._driver, None
        if driver is not None:
            await driver.abandon()
        if self._log is not None:
            self._log.close(is_clean=False)

    async def wait_stopped(self) -> None:
        """Wait until the node has stopped. Raise the failure that stopped it, if any (disk, listener)."""
        assert self._driver is not None, "the node runs"
        await asyncio.shield(self._driver.failure)

    def leader(self) -> QuorumLeader:
        """Return the quorum leader as far as this node knows."""
        if self._driver is None:
            return QuorumLeader(leader_id=None, quorum_epoch=0, address=None)
        return self._driver.leader

    @property
    def high_watermark(self) -> int | None:
        """End (exclusive) of the committed log that this node has on stable storage; None if unknown."""
        if self._raft is None or self._raft.state.high_watermark is None:
            return None
        return self._raft.state.commit_offset

    @property
    def log_end_offset(self) -> int:
        """End of this node's log (exclusive), committed or not; 0 before the start."""
        return 0 if self._raft is None else self._raft.state.log.log_end_offset

    def append(self, records: Sequence[bytes], *, quorum_epoch: int) -> int:
        """Append serialized records as leader of `quorum_epoch`. Listeners get them in one batch once they are committed.

        Small appends may share a batch with others that wait for their commit. During the append the node may find that its
        leadership is over, for example after a pause of the process. It then deactivates the listeners, before this method returns
        unless they must receive commits first; it is unknown whether the records will be committed.

        Returns:
            The offset of the first record.

        Raises:
            NotLeaderError: this node does not lead in that epoch. Nothing was appended.
            BusyError: too many uncommitted bytes. Nothing was appended.
            ValueError: no record, or more than fit into one batch. Nothing was appended.
        """
        if not 0 < len(records) <= MAX_RECORDS_PER_BATCH:
            raise ValueError(f"a batch has 1 to {MAX_RECORDS_PER_BATCH} records, not {len(records)}")
        if self._driver is None:
            raise NotLeaderError(self.leader())
        size_bytes = gathered_size(records)
        proposal: bytearray | Sequence[bytes] = records
        if size_bytes is None:
            try:
                proposal = encode_records(records)
            except BatchTooLargeError as error:
                raise ValueError(f"the records do not fit one batch: {error}") from error
            size_bytes = len(proposal)
        match self._driver.propose(proposal, len(records), size_bytes, quorum_epoch=QuorumEpoch(quorum_epoch)):
            case int(base_offset):
                return base_offset
            case Rejection.NOT_LEADER:
                raise NotLeaderError(self.leader())
            case Rejection.BUSY:
                raise BusyError(
                    f"more than {self._settings.max_uncommitted_bytes} bytes are appended and not committed: try again"
                )
            case Rejection.TOO_LARGE:
                raise ValueError(f"{len(records)} records do not fit one batch: append fewer at once")

    def hurry(self) -> None:
        """Deliver committed batches at once to listeners that may lag: a caller waits for them."""
        for feed in self._feeds:
            feed.hurry()

    async def read_offset(self) -> int:
        """Return the end (exclusive) of what is committed now. A read of an image that has everything below it is linearizable.

        Costs one exchange with a majority of the voters; simultaneous reads share it.

        Raises:
            NotLeaderError: this node does not lead, or lost the leadership during the read.
            BusyError: too many reads wait, or this leader has committed nothing yet.
        """
        if self._driver is None:
            raise NotLeaderError(self.leader())
        match await self._driver.read_offset():
            case int(read_offset):
                return read_offset
            case Rejection.BUSY:
                raise BusyError("too many reads wait for this leader, or it has committed nothing yet: try again")
            case Rejection():
                raise NotLeaderError(self.leader())

    def take_request(self, request: Request, on_answer: Callable[[Answer | StoppedError], None]) -> None:
        """Pass a peer's request to the core. `on_answer` runs once, perhaps at once. For `quorum_service`.

        Raises:
            StoppedError: the node is starting or stopping; `on_answer` will not run.
        """
        if self._driver is None:
            raise StoppedError(f"node {self._key.node_id} is starting or stopping")
        self._driver.take(request, on_answer)

    async def change_voters(self, change: VoterChange) -> ChangeOutcome:
        """Change the voters as leader, and return the outcome. The caller bounds the wait.

        Raises:
            StoppedError: the node is starting or stopping; nothing was changed.
        """
        return await self._operators().change_voters(change)

    async def transfer_leadership(self, to: int | None) -> TransferOutcome:
        """Hand the leadership over to a voter (None: any). Bounded by `transfer_timeout_ms` of the core.

        Raises:
            StoppedError: the node is starting or stopping; nothing was changed.
        """
        return await self._operators().transfer_leadership(None if to is None else NodeId(to))

    async def next_leader(self, *, above_epoch: int) -> QuorumLeader:
        """Wait until a leader of an epoch above `above_epoch` is known. The caller bounds the wait.

        Raises:
            StoppedError: the node is starting or stopping.
        """
        return await self._operators().next_leader(self.leader(), above_epoch=above_epoch)

    def _operators(self) -> OperatorRequests:
        if self._driver is None or self._driver.failure.done():
            raise StoppedError(f"node {self._key.node_id} is starting or stopping")
        return self._driver.operators

    def handle_snapshot(self, request: pb.FetchSnapshotRequest) -> AsyncGenerator[pb.FetchSnapshotResponse]:
        """Serve a snapshot. For `quorum_service`.

        Raises:
            StoppedError: the node is starting or stopping, or has no snapshots.
        """
        if self._driver is None or self._snapshot_server is None:
            raise StoppedError(f"node {self._key.node_id} serves no snapshots")
        return self._snapshot_server.serve(request)

    @property
    def log_read_bytes(self) -> int:
        """Bytes read from the metadata log since the start, for all purposes."""
        return 0 if self._log is None else self._log.read_bytes

    @property
    def kept_snapshots(self) -> tuple[SnapshotId, ...]:
        """Ids of the snapshots that this node can serve, ascending, without one that is being made."""
        return () if self._raft is None else self._raft.state.snapshots.ids

    @property
    def log_start_offset(self) -> int:
        """First offset of the metadata log of this node (inclusive)."""
        return 0 if self._log is None else self._log.log_start_offset

    def handle_probe(self, request: pb.ProbeRequest) -> pb.ProbeResponse:
        """Answer a node that asks whether it may format. For `quorum_service`.

        Raises:
            StoppedError: the node is starting or stopping.
        """
        if self._raft is None:
            raise StoppedError(f"node {self._key.node_id} is starting")
        state = self._raft.state
        voters = state.voter_set
        asking = ReplicaKey(node_id=NodeId(request.node_id), directory_id=request.directory_id)
        return probe_response(
            key=self._key,
            cluster_id=self._settings.cluster_id,
            is_formatted=True,
            has_history=state.quorum_epoch > 0 or state.log.log_end_offset > 0,
            voters=voters,
            accepts=voters.contains(asking),
        )

    def status(self) -> QuorumStatus:
        """Return the state of the quorum as this node sees it.

        Raises:
            QuorumError: the node has not started, or has stopped.
        """
        if self._raft is None or self._driver is None:
            raise QuorumError(f"node {self._key.node_id} does not run")
        return describe(self._raft.state, self.leader(), now_ms=self._driver.now_ms())

    def sample(self) -> QuorumSample | None:
        """Return a sample for metrics; None while the node does not run. Must run on its event loop."""
        if self._raft is None or self._driver is None:
            return None
        return take_sample(self._raft.state, self._driver.meter.read(), self._loop_clock)


def _log_base(metadata: MetadataFiles | None) -> LogBase | None:
    if metadata is None:
        return None
    loaded = metadata.loaded
    return LogBase(
        image_offset=Offset(loaded.image.metadata_offset),
        voters=loaded.voters,
        snapshots=metadata.snapshots.ids,
        damaged=metadata.snapshots.damaged,
    )
