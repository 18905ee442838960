# SPDX-License-Identifier: Apache-2.0
"""Recovery of a quorum that has used up its epochs: each stopped voter returns to an epoch that its log has reached.

Owns the checks. Every election opens an epoch, and the last one that can be stored is `MAX_QUORUM_EPOCH`: a voter in it cannot elect
any leader. It takes two thousand million elections, or a message of a process that is no voter, which earlier versions believed.

Law: the new epoch of a voter is not below that of any record in its log, so an epoch that had a leader never has another one. The
operator ensures the rest: all voters are stopped, and all go back to the same epoch.
Source: docs/quorum.md section "An epoch that ran out".
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from metaquorum.process.settings import SettingsError
from metaquorum.raft.types import MAX_EPOCH_LEAP, MAX_QUORUM_EPOCH, NodeId, QuorumEpoch, ReplicaKey
from metaquorum.replica.election_store import ElectionStore
from storage.directory.data_directory import DataDirectory
from storage.files.posix import PosixDisk
from storage.log.partition_log import PartitionLog
from storage.types import LogSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class VoterEpochs:
    """Epochs of one stopped voter.

    Attributes:
        node_id: node id.
        quorum_epoch: epoch in its vote file.
        log_epoch: largest epoch in its log; 0 if the log is empty.
    """

    node_id: int
    quorum_epoch: int
    log_epoch: int


def read_epochs(path: Path) -> VoterEpochs:
    """Return the epochs of a stopped voter. Blocks for file access.

    Raises:
        StorageError: the directory cannot be used, or a process uses it.
        VoteFileLostError: the vote file is lost.
    """
    directory, store = _open(path)
    try:
        return _read(directory, store)
    finally:
        directory.close()


def reset_epoch(path: Path, epoch: int) -> VoterEpochs:
    """Set a stopped voter back to an epoch, with its vote given to itself. Return its epochs before. Blocks for file access.

    Raises:
        SettingsError: the epoch is below one in the log, not below the current one, or leaves no room for elections.
        StorageError: the directory cannot be used, or a process uses it.
        VoteFileLostError: the vote file is lost.
    """
    directory, store = _open(path)
    try:
        found = _read(directory, store)
        if not found.log_epoch <= epoch <= MAX_QUORUM_EPOCH - MAX_EPOCH_LEAP:
            raise SettingsError(
                f"the epoch must be from {found.log_epoch}, the largest in the log of {path}, to "
                f"{MAX_QUORUM_EPOCH - MAX_EPOCH_LEAP}, not {epoch}"
            )
        if epoch >= found.quorum_epoch:
            raise SettingsError(f"{path} is in epoch {found.quorum_epoch}: {epoch} is no way back")
        store.reset(QuorumEpoch(epoch))
        return found
    finally:
        directory.close()


def _open(path: Path) -> tuple[DataDirectory, ElectionStore]:
    disk = PosixDisk()
    directory = DataDirectory.open(disk, str(path.absolute()))
    key = ReplicaKey(node_id=NodeId(directory.node_id), directory_id=directory.directory_id)
    return directory, ElectionStore(disk, directory.metadata_path, key)


def _read(directory: DataDirectory, store: ElectionStore) -> VoterEpochs:
    log = PartitionLog.open(directory.disk, directory.metadata_log_path, settings=LogSettings(), now_ms=0).log
    try:
        log_epoch = log.last_epoch or 0
    finally:
        log.close(clean=False)
    return VoterEpochs(node_id=directory.node_id, quorum_epoch=store.load().quorum_epoch, log_epoch=log_epoch)
