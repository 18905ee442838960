# SPDX-License-Identifier: Apache-2.0
"""Damage of a batch's leader epoch in the metadata log: no CRC covers it, so the log's own epoch list decides."""

from __future__ import annotations

import pytest

from metaquorum.raft.effects import AppendAsLeader, Proposal
from metaquorum.raft.types import Offset, QuorumEpoch
from metaquorum.raft.voters import VoterSet
from metaquorum.replica.log_store import DamagedLogError, LogBase, LogStore, encode_records
from storage.testing.sim_disk import SimDisk

LOG = "/data/log"
FILE = f"{LOG}/{'0' * 20}.log"
EPOCH_END = 16
"""The leader epoch of a batch ends before this byte of it (docs/storage_format.md, the header)."""


def log_of_two_epochs() -> tuple[SimDisk, LogStore]:
    """Three batches of epoch 3 and three of epoch 5, one record each, on stable storage."""
    disk = SimDisk()
    disk.make_directory("/data")
    disk.sync_directory("/")
    store = LogStore.open(disk, LOG)
    for offset in range(6):
        effect = AppendAsLeader(
            base_offset=Offset(offset),
            next_offset=Offset(offset + 1),
            quorum_epoch=QuorumEpoch(3 if offset < 3 else 5),
            content=Proposal(proposal_id=1),
        )
        store.append_as_leader(effect, encode_records([b"record-%d" % offset]))
    work = store.begin_flush()
    assert work is not None, "something was appended"
    work.run()
    store.end_flush(work)
    return disk, store


def damage_epoch(disk: SimDisk, store: LogStore, offset: int) -> None:
    """Write epoch 4 into the header of the batch with one record, of which the memory keeps nothing any more."""
    store._recent.clear()
    batch_bytes = store.size_bytes() // 6
    disk.corrupt(FILE, offset * batch_bytes + EPOCH_END - 1, b"\x04")


@pytest.mark.parametrize("offset", [1, 4])
def test_batch_with_another_epoch_than_the_log_has_there_is_never_served(offset: int) -> None:
    """A follower would append it, and two logs would have different records at one offset and epoch (a seed of the simulation)."""
    disk, store = log_of_two_epochs()
    damage_epoch(disk, store, offset)
    with pytest.raises(DamagedLogError, match=f"offset {offset} .*epoch 4.*Wipe"):
        store.read(0, 1_000_000)
    with pytest.raises(DamagedLogError, match=f"offset {offset} "):
        store.read_committed(offset, 1_000_000, commit_offset=6)
    assert store.read_committed(offset + 1, 1, commit_offset=6)[0].base_offset == offset + 1


@pytest.mark.parametrize("offset", [0, 4])
def test_start_that_reads_such_a_batch_is_refused(offset: int) -> None:
    """Without an image the whole log is read for its voters; the epochs in it must match the epoch list."""
    disk, store = log_of_two_epochs()
    store.close(is_clean=True)
    damage_epoch(disk, store, offset)
    with pytest.raises(DamagedLogError, match=f"offset {offset} .*epoch 4"):
        LogStore.open(disk, LOG)


def test_damage_that_is_found_on_the_way_to_what_is_read_keeps_the_node_from_starting() -> None:
    """Below the image's offset a start reads only headers; damage that it finds there counts as well (seed 1802)."""
    disk, store = log_of_two_epochs()
    batch_bytes = store.size_bytes() // 6
    store.close(is_clean=True)
    disk.corrupt(FILE, 1 * batch_bytes + EPOCH_END, b"\x02")
    found = LogBase(image_offset=Offset(4), voters=VoterSet(()))
    with pytest.raises(DamagedLogError, match=r"is damaged at .*Wipe"):
        LogStore.open(disk, LOG, found)


def test_reads_across_epochs_are_whole() -> None:
    """Undamaged batches are read as before."""
    _, store = log_of_two_epochs()
    read = store.read_committed(0, 1_000_000, commit_offset=6)
    assert [(batch.base_offset, batch.quorum_epoch) for batch in read] == [(n, 3 if n < 3 else 5) for n in range(6)]
