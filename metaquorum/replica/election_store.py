# SPDX-License-Identifier: Apache-2.0
"""The vote file: the state that a quorum node must not forget, in two copies.

Files in `<data>/metadata/`: `quorum-state.json` and `quorum-state-copy.json`. Each is replaced as a whole (temporary file, fsync,
rename, directory sync), the second after the first; a write counts when both are done. Each has a checksum and a sequence number that
grows by one with each write.
Law: every write that was reported as done is in each copy with a correct checksum, because a copy is replaced only after the other
one holds at least as much. So one good copy is enough. Without any, the node must not take part: it may have given a vote that it has
forgotten.

| member | type | meaning |
|---|---|---|
| version | int | 1 |
| sequence | int | number of the write, from 0 at the format |
| node_id, directory_id | int, hex | whose file it is |
| quorum_epoch | int | highest epoch seen |
| leader_id | int or null | leader of that epoch |
| voted_node_id, voted_directory_id | int, hex, or both null | who got the vote in that epoch |
| crc32c | hex | of the rest |

Source: KIP-595 "Quorum state"; CTRL (FAST'18) for the two copies; ALICE for the replacement.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial

from metaquorum.raft.election import EPOCHS_USED_UP
from metaquorum.raft.types import (
    INITIAL_ELECTION_STATE,
    MAX_QUORUM_EPOCH,
    ElectionState,
    NodeId,
    QuorumEpoch,
    ReplicaKey,
)
from metaquorum.replica.checked_json import decode_checked, encode_checked
from metaquorum.replica.room import no_room, write_with_room
from storage.errors import FileMissingError
from storage.files.checkpoints import replace_file
from storage.files.disk import Disk
from storage.files.names import QUORUM_STATE_FILE

logger = logging.getLogger(__name__)

FILE_NAME = QUORUM_STATE_FILE
COPY_NAME = "quorum-state-copy.json"
_VERSION = 1


class VoteFileLostError(Exception):
    """No copy of the vote file is valid. This node may have voted and forgotten it, so it must not start.

    To repair it, wipe the data directory and start the node again; it then joins as a new replica.
    """


class ElectionStore:
    """Reads and writes the vote file. Calls block, and only one thread may call at a time.

    Args:
        disk: the disk.
        directory: the metadata directory.
        key: whose file it is.
        make_room: makes room on a full disk for the file (`metaquorum.replica.room`).
    """

    def __init__(self, disk: Disk, directory: str, key: ReplicaKey, *, make_room: Callable[[], bool] = no_room) -> None:
        self._disk = disk
        self._paths = (f"{directory}/{FILE_NAME}", f"{directory}/{COPY_NAME}")
        self._key = key
        self._make_room = make_room
        self._sequence = 0

    def create(self) -> None:
        """Write the first vote file: epoch 0, no vote. Part of formatting."""
        self._write(INITIAL_ELECTION_STATE)

    def load(self) -> ElectionState:
        """Return the stored state. Repair a bad copy from the good one.

        Raises:
            VoteFileLostError: no copy is valid.
        """
        found = [self._read(path) for path in self._paths]
        good = [entry for entry in found if entry is not None]
        if not good:
            raise VoteFileLostError(
                f"{self._paths[0]} and its copy are missing or damaged: this node may have voted and must not vote"
                " again. Wipe its data directory and start it again; it then joins as a new replica"
            )
        self._sequence, state = max(good, key=lambda entry: entry[0])
        if any(entry != (self._sequence, state) for entry in found):
            logger.warning("event=vote_file_mended path=%s sequence=%d", self._paths[0], self._sequence)
            self._write(state)
        if state.quorum_epoch > MAX_QUORUM_EPOCH:
            # A version that believed every epoch wrote it. No message can carry it, so no leader was elected in it. The vote goes to
            # this node itself, because it may have voted in the last epoch and must not vote again.
            logger.error("event=vote_file_epoch_too_large epoch=%d: %s", state.quorum_epoch, EPOCHS_USED_UP)
            state = ElectionState(quorum_epoch=MAX_QUORUM_EPOCH, leader_id=None, voted_key=self._key)
        return state

    def reset(self, epoch: QuorumEpoch) -> None:
        """Go back to an earlier epoch: part of the recovery of a quorum that has used up its epochs, with all voters stopped.

        The vote of that epoch is given to this node itself.

        Args:
            epoch: epoch of the last record in the log, or above.
        """
        self.load()
        self.save(ElectionState(quorum_epoch=epoch, leader_id=None, voted_key=self._key))

    def save(self, state: ElectionState) -> None:
        """Put the state on stable storage.

        Raises:
            storage.errors.DiskError: the state may not be on disk; the node must stop.
        """
        self._sequence += 1
        self._write(state)

    def _write(self, state: ElectionState) -> None:
        voted = state.voted_key
        content = encode_checked(
            {
                "version": _VERSION,
                "sequence": self._sequence,
                "node_id": self._key.node_id,
                "directory_id": self._key.directory_id.hex(),
                "quorum_epoch": state.quorum_epoch,
                "leader_id": state.leader_id,
                "voted_node_id": None if voted is None else voted.node_id,
                "voted_directory_id": None if voted is None else voted.directory_id.hex(),
            }
        )
        for path in self._paths:
            write_with_room(partial(replace_file, self._disk, path, content), self._make_room)

    def _read(self, path: str) -> tuple[int, ElectionState] | None:
        try:
            members = decode_checked(self._disk.read_file(path))
        except FileMissingError:
            return None
        match members:
            case {
                "version": 1,
                "sequence": int(sequence),
                "node_id": self._key.node_id,
                "directory_id": str(directory_id),
                "quorum_epoch": int(epoch),
                "leader_id": leader_id,
                "voted_node_id": voted_id,
                "voted_directory_id": voted_directory,
            } if directory_id == self._key.directory_id.hex():
                voted = None
                if isinstance(voted_id, int) and isinstance(voted_directory, str):
                    voted = ReplicaKey(node_id=NodeId(voted_id), directory_id=bytes.fromhex(voted_directory))
                leader = NodeId(leader_id) if isinstance(leader_id, int) else None
                return sequence, ElectionState(quorum_epoch=QuorumEpoch(epoch), leader_id=leader, voted_key=voted)
            case _:
                return None
