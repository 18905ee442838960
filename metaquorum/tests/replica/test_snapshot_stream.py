# SPDX-License-Identifier: Apache-2.0
"""FetchSnapshot over real connections: its messages, its refusals, and downloads that fail on the way."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from crc32c import crc32c
from lograft.internal.v1 import quorum_pb2 as pb

from metaquorum.controller.settings import ControllerSettings
from metaquorum.metadata.snapshot_rows import SnapshotDigest, split_rows
from metaquorum.raft.types import SnapshotId
from metaquorum.raft_codec.quorum_codec import decode_snapshot_id
from metaquorum.replica import snapshot_server, snapshot_shell
from metaquorum.replica.quorum_node import SnapshotSettings
from metaquorum.tests.quorum_cluster import CLUSTER, BrokerStub, QuorumCluster, until
from metaquorum.tests.snapshot_clusters import equal, trimmed

PATIENT = ControllerSettings(session_timeout_ms=600_000)
OFTEN = SnapshotSettings(log_bytes=1_000)


async def running(directory: Path, count: int) -> QuorumCluster:
    """Voters with trimmed logs and forty topics."""
    cluster = QuorumCluster(directory, count, controller=PATIENT, snapshots=OFTEN)
    for node_id in cluster.voters:
        await cluster.start(node_id)
    await BrokerStub(cluster, 100).join(await cluster.active())
    offset = await cluster.create_topics(0, 40)
    await equal(cluster, offset)
    await trimmed(cluster, 0)
    return cluster


@pytest.fixture
async def voter(tmp_path: Path) -> AsyncIterator[QuorumCluster]:
    """A quorum of one."""
    cluster = await running(tmp_path, 1)
    yield cluster
    await cluster.close()


def newest_snapshot(cluster: QuorumCluster, node_id: int) -> SnapshotId:
    """Return the newest snapshot that a voter serves; if it makes another one, this one stays, because two are kept."""
    return cluster.servers[node_id].node.kept_snapshots[-1]


def request_for(cluster: QuorumCluster, **changes: object) -> pb.FetchSnapshotRequest:
    """Return a valid request of an observer, with changes that may make it invalid."""
    snapshot = newest_snapshot(cluster, 1)
    fields: dict[str, object] = {
        "cluster_id": CLUSTER,
        "quorum_epoch": cluster.servers[1].node.leader().quorum_epoch,
        "replica": pb.ReplicaKey(node_id=9, directory_id=bytes(16)),
        "snapshot": pb.SnapshotId(end_offset=snapshot.end_offset, epoch=snapshot.epoch),
        "max_bytes": 500,
        **changes,
    }
    return pb.FetchSnapshotRequest(**fields)  # pyright: ignore[reportArgumentType]


async def fetched(cluster: QuorumCluster, request: pb.FetchSnapshotRequest) -> list[pb.FetchSnapshotResponse]:
    """All messages of a stream."""
    return await cluster.client.fetch_snapshot(cluster.voters[1], request)


async def test_a_stream_is_header_rows_and_end(voter: QuorumCluster) -> None:
    """Pieces are bounded, each has its CRC, and the digest at the end covers all of it."""
    request = request_for(voter)
    header, *middle, end = await fetched(voter, request)
    assert header.header.snapshot == request.snapshot
    snapshot = decode_snapshot_id(request.snapshot)
    digest = SnapshotDigest(snapshot, header.header.voters_record)
    assert len(middle) > 5
    for message in middle:
        rows = message.rows
        assert crc32c(rows.keys_and_values) == rows.crc
        count = len(list(split_rows(rows.keys_and_values)))
        assert len(rows.keys_and_values) <= 500 or count == 1
        digest.add(rows.keys_and_values, count)
    assert end.end.row_count == digest.row_count
    assert end.end.digest == digest.value()


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"cluster_id": "other"}, pb.QUORUM_ERROR_WRONG_CLUSTER),
        ({"quorum_epoch": 0}, pb.QUORUM_ERROR_FENCED_EPOCH),
        ({"quorum_epoch": 1_000}, pb.QUORUM_ERROR_UNKNOWN_EPOCH),
        ({"quorum_epoch": -1}, pb.QUORUM_ERROR_INVALID_REQUEST),
        ({"replica": pb.ReplicaKey(node_id=9, directory_id=b"short")}, pb.QUORUM_ERROR_INVALID_REQUEST),
        ({"snapshot": pb.SnapshotId(end_offset=1, epoch=1)}, pb.QUORUM_ERROR_SNAPSHOT_NOT_FOUND),
        ({"snapshot": pb.SnapshotId(end_offset=-1, epoch=1)}, pb.QUORUM_ERROR_INVALID_REQUEST),
    ],
)
async def test_what_cannot_be_served_is_refused_in_band(
    voter: QuorumCluster, changes: dict[str, object], error: pb.QuorumError.ValueType
) -> None:
    """One message with the reason, and the end of the stream."""
    (message,) = await fetched(voter, request_for(voter, **changes))
    assert message.error == error


async def test_streams_have_a_limit(voter: QuorumCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """One more is refused with advice to retry."""
    monkeypatch.setattr(snapshot_server, "MAX_STREAMS", 0)
    (message,) = await fetched(voter, request_for(voter))
    assert message.error == pb.QUORUM_ERROR_UNAVAILABLE


async def test_a_reader_that_goes_away_gives_its_place_back(
    voter: QuorumCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broken stream frees its slot and the snapshot's files."""
    monkeypatch.setattr(snapshot_server, "MAX_STREAMS", 1)
    stream = await voter.client.open_snapshot(voter.voters[1], request_for(voter, max_bytes=1))
    assert await stream.read() is not None
    stream.give_up()

    async def served() -> bool:
        return (await fetched(voter, request_for(voter)))[0].WhichOneof("part") == "header"

    async with asyncio.timeout(10):
        while not await served():
            pass


async def catch_up(cluster: QuorumCluster) -> None:
    """Empty a follower's directory, start it again, and wait until it has caught up."""
    empty = next(node_id for node_id in cluster.voters if not cluster.servers[node_id].host.is_active)
    await cluster.stop(empty)
    cluster.format_again(empty)
    await cluster.start(empty)
    active = await cluster.active()
    offset = cluster.servers[active].image.metadata_offset
    await equal(cluster, offset)
    assert cluster.servers[empty].node.log_start_offset > 0


async def test_a_damaged_piece_is_noticed_and_the_snapshot_fetched_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The first download has a wrong CRC, the second a wrong digest, the third is whole."""
    cluster = await running(tmp_path, 3)
    lies = iter(["crc", "digest"])
    lie = next(lies)

    def wrong_crc(piece: bytes) -> int:
        nonlocal lie
        if lie != "crc":
            return crc32c(piece)
        lie = next(lies)
        return crc32c(piece) ^ 1

    true_finish = snapshot_shell.SnapshotWriter.finish

    def finish(self: snapshot_shell.SnapshotWriter, *, row_count: int, digest: bytes) -> object:
        nonlocal lie
        if lie == "digest":
            lie = ""
            digest = bytes(32)
        return true_finish(self, row_count=row_count, digest=digest)

    monkeypatch.setattr(snapshot_server, "crc32c", wrong_crc)
    monkeypatch.setattr(snapshot_shell.SnapshotWriter, "finish", finish)
    await catch_up(cluster)
    assert "wrong CRC" in caplog.text
    assert "digest differs" in caplog.text
    assert lie == ""
    await cluster.close()


async def test_a_leader_that_dies_in_a_download_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The follower drops the download, another voter becomes leader, and the follower installs its snapshot."""
    cluster = await running(tmp_path, 3)
    started = asyncio.Event()
    hold = asyncio.Event()
    true_stream = snapshot_server.SnapshotServer._stream

    async def stalled(
        self: snapshot_server.SnapshotServer, request: pb.FetchSnapshotRequest
    ) -> AsyncIterator[pb.FetchSnapshotResponse]:
        async for message in true_stream(self, request):
            yield message
            if not started.is_set():
                started.set()
                await hold.wait()

    monkeypatch.setattr(snapshot_server.SnapshotServer, "_stream", stalled)
    leader = await cluster.active()
    empty = next(node_id for node_id in cluster.voters if node_id != leader)
    await cluster.stop(empty)
    cluster.format_again(empty)
    server = await cluster.start(empty)
    await started.wait()
    await cluster.stop(leader)
    hold.set()
    await until(lambda: server.node.log_start_offset > 0 or None, what="the snapshot of the next leader")
    await equal(cluster, server.node.log_start_offset)
    await cluster.close()
