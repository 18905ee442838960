# SPDX-License-Identifier: Apache-2.0
"""The metadata log and the vote file on a full disk: the ballast makes room, at once."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from lograft.wire.batch import RecordBatch, stamp

from metaquorum.raft.effects import AppendAsFollower, AppendAsLeader, Proposal
from metaquorum.raft.messages import BatchSpan, FetchedBatches
from metaquorum.raft.types import Offset, QuorumEpoch
from metaquorum.replica.election_store import ElectionStore
from metaquorum.replica.log_store import LogOptions, LogStore, encode_records
from metaquorum.testing.scripted_node import election_state, key
from storage.directory.data_directory import DataDirectory
from storage.errors import DiskFullError
from storage.files.names import BALLAST_FILE
from storage.testing.sim_disk import SimDisk

CAPACITY_BYTES = 100_000
BALLAST_BYTES = 20_000
SEGMENT_BYTES = 30_000


class FullDirectory:
    """A formatted directory with a ballast. `fill` takes every byte that is left."""

    def __init__(self) -> None:
        self.disk = SimDisk(capacity_bytes=CAPACITY_BYTES)
        self.data = DataDirectory.create(self.disk, "/data", cluster_id="c", node_id=1, directory_id=bytes(16))
        self._write(f"/data/{BALLAST_FILE}", BALLAST_BYTES)

    def fill(self, *, but_for_bytes: int = 0) -> None:
        """Write a file of all but so many free bytes."""
        self._write("/data/other", self.disk.free_bytes("/data") - but_for_bytes)

    def has_ballast(self) -> bool:
        """Tell whether the ballast exists."""
        return self.disk.exists(f"/data/{BALLAST_FILE}")

    def log(self, make_room: Callable[[], bool] | None = None) -> LogStore:
        """Return the metadata log."""
        room = self.data.release_ballast if make_room is None else make_room
        options = LogOptions(segment_bytes=SEGMENT_BYTES, make_room=room)
        return LogStore.open(self.disk, self.data.metadata_log_path, options=options)

    def _write(self, path: str, size_bytes: int) -> None:
        file = self.disk.create_file(path)
        file.append([bytes(size_bytes)])
        file.close()


def append(store: LogStore, value: bytes) -> None:
    """Append one record as leader."""
    offset = store.end_offset
    effect = AppendAsLeader(
        base_offset=Offset(offset),
        next_offset=Offset(offset + 1),
        quorum_epoch=QuorumEpoch(1),
        content=Proposal(proposal_id=offset),
    )
    store.append_as_leader(effect, encode_records([value]))


def fetched(*values: bytes) -> AppendAsFollower:
    """Batches of one record each, as a leader sends them."""
    batches = [bytes(stamped(value, offset)) for offset, value in enumerate(values)]
    spans = tuple(
        BatchSpan(base_offset=Offset(offset), next_offset=Offset(offset + 1), epoch=QuorumEpoch(1))
        for offset in range(len(values))
    )
    return AppendAsFollower(batches=FetchedBatches(data=b"".join(batches), spans=spans))


def stamped(value: bytes, offset: int) -> bytearray:
    """A batch of one record at an offset."""
    batch = bytearray(encode_records([value]))
    stamp(batch, base_offset=offset, leader_epoch=1)
    return batch


def test_leader_appends_into_the_room_of_the_ballast() -> None:
    """The watch over free space comes by once a second; the log cannot wait for it, and the process would end."""
    directory = FullDirectory()
    store = directory.log()
    append(store, b"first")
    directory.fill()
    append(store, b"second")
    assert store.end_offset == 2
    assert not directory.has_ballast()


def test_follower_appends_the_batches_that_found_no_room_once() -> None:
    """The first of two fetched batches may be stored when the second finds the disk full."""
    directory = FullDirectory()
    ends: list[int] = []

    def make_room() -> bool:
        ends.append(store.end_offset)
        return directory.data.release_ballast()

    store = directory.log(make_room)
    directory.fill(but_for_bytes=26_000)
    store.append_as_follower(fetched(b"a" * 18_000, b"b" * 18_000))
    assert ends == [1], "the second batch begins a segment, and found no room"
    assert store.end_offset == 2
    read = store.read(0, 1 << 20)
    assert [RecordBatch(read).values()] == [[b"a" * 18_000]]
    store.close(is_clean=True)
    assert directory.log().end_offset == 2


def test_full_disk_without_a_ballast_stops_the_node() -> None:
    """The node cannot go on without its log. The error says what to do."""
    directory = FullDirectory()
    store = directory.log()
    append(store, b"first")
    directory.data.release_ballast()
    directory.fill()
    with pytest.raises(DiskFullError, match="free space"):
        append(store, b"second")
    assert store.end_offset == 1


def test_vote_is_written_into_the_room_of_the_ballast() -> None:
    """A node that cannot write its vote must stop, and a full disk of one node would cost the quorum a voter."""
    directory = FullDirectory()
    elections = ElectionStore(
        directory.disk, directory.data.metadata_path, key(1), make_room=directory.data.release_ballast
    )
    elections.create()
    directory.fill()
    elections.save(election_state(4, voted=2))
    assert not directory.has_ballast()
    assert ElectionStore(directory.disk, directory.data.metadata_path, key(1)).load() == election_state(4, voted=2)
