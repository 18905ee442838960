# SPDX-License-Identifier: Apache-2.0
"""The vote file: two copies, and no start without a good one."""

from __future__ import annotations

from pathlib import Path

import pytest

from metaquorum.raft.types import ElectionState
from metaquorum.replica.checked_json import decode_checked, encode_checked
from metaquorum.replica.election_store import COPY_NAME, FILE_NAME, ElectionStore, VoteFileLostError
from metaquorum.testing.scripted_node import election_state, key
from storage.files.posix import PosixDisk

STATES = [
    election_state(0),
    election_state(3, voted=2),
    election_state(4, leader=1, voted=1),
    election_state(5, leader=2),
]


def store(path: Path, number: int = 1) -> ElectionStore:
    """A store as of a new process."""
    return ElectionStore(PosixDisk(), str(path), key(number))


@pytest.mark.parametrize("state", STATES)
def test_what_was_saved_is_loaded(tmp_path: Path, state: ElectionState) -> None:
    """Round trip through both copies."""
    store(tmp_path).create()
    saving = store(tmp_path)
    saving.load()
    saving.save(state)
    assert store(tmp_path).load() == state
    assert (tmp_path / FILE_NAME).read_bytes() == (tmp_path / COPY_NAME).read_bytes()


@pytest.mark.parametrize("lost", [FILE_NAME, COPY_NAME])
@pytest.mark.parametrize("how", ["missing", "empty", "flipped bit", "not json", "an array"])
def test_one_bad_copy_is_mended_from_the_other(tmp_path: Path, lost: str, how: str) -> None:
    """CTRL: one good copy is enough, because both had the state before the node sent it."""
    store(tmp_path).create()
    saving = store(tmp_path)
    saving.load()
    saving.save(election_state(7, voted=3))
    damage(tmp_path / lost, how)
    assert store(tmp_path).load() == election_state(7, voted=3)
    assert (tmp_path / FILE_NAME).read_bytes() == (tmp_path / COPY_NAME).read_bytes()


def damage(path: Path, how: str) -> None:
    """Spoil a file."""
    content = path.read_bytes()
    match how:
        case "missing":
            path.unlink()
        case "empty":
            path.write_bytes(b"")
        case "flipped bit":
            path.write_bytes(content.replace(b'"quorum_epoch":7', b'"quorum_epoch":5'))
        case "not json":
            path.write_bytes(content[:-9])
        case _:
            path.write_bytes(b"[1]")


def test_newer_copy_wins_after_a_crash_between_the_two_writes(tmp_path: Path) -> None:
    """The first copy may be one write ahead; the node has not sent that state, so either is correct."""
    store(tmp_path).create()
    saving = store(tmp_path)
    saving.load()
    saving.save(election_state(3, voted=2))
    old = (tmp_path / COPY_NAME).read_bytes()
    saving.save(election_state(4, voted=1))
    (tmp_path / COPY_NAME).write_bytes(old)
    again = store(tmp_path)
    assert again.load() == election_state(4, voted=1)
    again.save(election_state(5))
    assert store(tmp_path).load() == election_state(5)


def test_voter_without_a_good_copy_refuses_to_start(tmp_path: Path) -> None:
    """A voter that may have forgotten its vote must not vote; the error says what to do."""
    store(tmp_path).create()
    damage(tmp_path / FILE_NAME, "not json")
    damage(tmp_path / COPY_NAME, "missing")
    with pytest.raises(VoteFileLostError, match="Wipe its data directory"):
        store(tmp_path).load()


def test_vote_file_of_another_replica_is_no_vote_file(tmp_path: Path) -> None:
    """A copied disk does not bring its votes along."""
    store(tmp_path).create()
    with pytest.raises(VoteFileLostError):
        store(tmp_path, number=2).load()


def test_checked_json_accepts_only_what_it_wrote() -> None:
    """Any change of a byte that matters is found."""
    content = encode_checked({"a": 1, "b": None})
    assert decode_checked(content) == {"a": 1, "b": None}
    assert decode_checked(content.replace(b"1", b"2", 1)) is None
    assert decode_checked(b'{"a":1}') is None
    assert decode_checked(b"\xff") is None
