# SPDX-License-Identifier: Apache-2.0
"""Metadata logs on simulated disks."""

from __future__ import annotations

from metaquorum.raft.effects import AppendAsLeader, Proposal
from metaquorum.raft.types import Offset, QuorumEpoch
from metaquorum.replica.log_store import LogStore, encode_records
from storage.testing.sim_disk import SimDisk

LOG = "/data/log"


def append(store: LogStore, count: int, *, epoch: int = 1) -> None:
    """Append batches of one record each, and flush."""
    for _ in range(count):
        offset = store.end_offset
        effect = AppendAsLeader(
            base_offset=Offset(offset),
            next_offset=Offset(offset + 1),
            quorum_epoch=QuorumEpoch(epoch),
            content=Proposal(proposal_id=1),
        )
        store.append_as_leader(effect, encode_records([b"record-%d" % offset]))
    flush(store)


def flush(store: LogStore) -> None:
    """Put everything on stable storage."""
    work = store.begin_flush()
    if work is not None:
        work.run()
        store.end_flush(work)


def new_disk() -> SimDisk:
    """A disk with an empty data directory."""
    disk = SimDisk()
    disk.make_directory("/data")
    disk.sync_directory("/")
    return disk


def log_of(count: int) -> tuple[SimDisk, LogStore]:
    """A log with so many records of epoch 1."""
    disk = new_disk()
    store = LogStore.open(disk, LOG)
    append(store, count)
    return disk, store
