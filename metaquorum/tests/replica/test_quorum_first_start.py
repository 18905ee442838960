# SPDX-License-Identifier: Apache-2.0
"""First start: the decision table, and the files that formatting writes."""

from __future__ import annotations

from pathlib import Path

import pytest

from metaquorum.raft.types import NodeId, ReplicaKey
from metaquorum.replica.election_store import ElectionStore
from metaquorum.replica.first_start import (
    PENDING_FILE,
    FirstStart,
    FirstStartRefusedError,
    InitialVoter,
    format_observer,
    format_standalone,
    format_with_voters,
    is_formatted,
    read_initial_voters,
)
from metaquorum.replica.first_start_decision import (
    FormatObserver,
    FormatVoter,
    ProbeAnswer,
    Refuse,
    Wait,
    decide_first_start,
)
from storage.directory.data_directory import DataDirectory
from storage.errors import AlreadyFormattedError, DirectoryNotWritableError
from storage.files.posix import PosixDisk

ADDRESSES = {NodeId(number): f"127.0.0.1:{9640 + number}" for number in (1, 2, 3)}


def key(number: int, disk: str = "a") -> ReplicaKey:
    """Key of a node on one of its disks."""
    return ReplicaKey(node_id=NodeId(number), directory_id=f"{disk:>4}-{number:011}".encode())


def fresh(number: int, **changes: object) -> ProbeAnswer:
    """Answer of an unformatted peer that has this node among its configured voters."""
    fields: dict[str, object] = {
        "key": key(number),
        "cluster_id": "c1",
        "is_formatted": False,
        "has_history": False,
        "voters": (),
        "accepts_initial_voter": True,
    }
    return ProbeAnswer(**{**fields, **changes})  # pyright: ignore


def formatted(number: int, *voters: ReplicaKey, history: bool = False) -> ProbeAnswer:
    """Answer of a formatted peer with these voters."""
    return fresh(number, is_formatted=True, has_history=history, voters=voters, accepts_initial_voter=key(1) in voters)


def decide(*answers: ProbeAnswer, number: int = 1) -> object:
    """Decision of node 1 on its disk a."""
    return decide_first_start(
        key=key(number),
        cluster_id="c1",
        addresses=ADDRESSES,
        answers={answer.key.node_id: answer for answer in answers},
    )


def voters_of(decision: object) -> list[ReplicaKey]:
    """Keys that a decision formats with."""
    assert isinstance(decision, FormatVoter), decision
    return [voter.key for voter in decision.voters.voters]


def test_three_fresh_nodes_format_with_each_other() -> None:
    """Every peer answers that nothing is committed and accepts this node: it is an initial voter."""
    assert voters_of(decide(fresh(2), fresh(3))) == [key(1), key(2), key(3)]


def test_silent_peer_means_wait() -> None:
    """Two fresh nodes do not begin a cluster without the silent third one."""
    assert decide(fresh(2)) == Wait(reason="no answer from nodes [3]")
    assert isinstance(decide(), Wait)


def test_peer_with_history_makes_an_observer_even_when_another_is_silent() -> None:
    """A wiped voter is never the old voter: one peer with history is enough."""
    decision = decide(formatted(2, key(1, "old"), key(2), key(3), history=True))
    assert isinstance(decision, FormatObserver)


def test_formatted_peer_without_history_makes_an_observer_of_a_wiped_disk() -> None:
    """This holds also before the first record: the old disk may have voted elsewhere."""
    decision = decide(formatted(2, key(1, "old"), key(2), key(3)), fresh(3))
    assert isinstance(decision, FormatObserver)


def test_peer_that_was_formatted_with_this_disk_makes_a_voter_whatever_it_knows() -> None:
    """The others were formatted with this disk as a voter; it has not voted, because it was never formatted."""
    members = (key(1), key(2), key(3))
    assert voters_of(decide(formatted(2, *members, history=True))) == list(members)
    assert voters_of(decide(formatted(2, *members), fresh(3))) == list(members)


def test_history_decides_between_peers_that_were_formatted_differently() -> None:
    """A node that was wiped in between leaves two voter sets; the one with history counts."""
    old = (key(1), key(2), key(3, "old"))
    new = (key(1), key(2), key(3))
    assert voters_of(decide(formatted(2, *old), formatted(3, *new, history=True))) == list(new)
    assert isinstance(decide(formatted(2, *old), formatted(3, *new)), Wait)


def test_peer_that_does_not_accept_this_node_means_wait() -> None:
    """Settings that disagree do not make a cluster."""
    assert decide(fresh(2, accepts_initial_voter=False), fresh(3)) == Wait(
        reason="nodes [2] do not have this node among their configured voters"
    )


@pytest.mark.parametrize(
    "answer",
    [fresh(2, cluster_id="c2"), formatted(2, key(1), key(2), key(7), history=True)],
)
def test_peer_of_another_cluster_or_set_is_refused(answer: ProbeAnswer) -> None:
    """A start would mix two clusters."""
    assert isinstance(decide(answer, fresh(3)), Refuse)


def test_address_that_answers_as_another_node_is_refused() -> None:
    """Two voters behind one address would count twice."""
    decision = decide_first_start(
        key=key(1), cluster_id="c1", addresses=ADDRESSES, answers={NodeId(2): fresh(3), NodeId(3): fresh(3)}
    )
    assert isinstance(decision, Refuse)


def test_node_outside_the_configured_voters_is_an_observer() -> None:
    """It has no vote to lose."""
    assert isinstance(decide(number=9), FormatObserver)


def test_standalone_format_makes_the_only_voter(tmp_path: Path) -> None:
    """Identity, voters and an empty vote are on disk; a second format is refused."""
    root = tmp_path / "deep" / "data"
    assert not is_formatted(root)
    format_standalone(root, node_id=4, cluster_id="c1", address="127.0.0.1:9641")
    assert is_formatted(root)
    disk = PosixDisk()
    opened = DataDirectory.open(disk, str(root), cluster_id="c1", node_id=4)
    voters = read_initial_voters(disk, opened.metadata_path)
    own = ReplicaKey(node_id=NodeId(4), directory_id=opened.directory_id)
    assert [(voter.key, voter.address) for voter in voters.voters] == [(own, "127.0.0.1:9641")]
    assert ElectionStore(disk, opened.metadata_path, own).load().quorum_epoch == 0
    opened.close()
    with pytest.raises(AlreadyFormattedError):
        format_standalone(root, node_id=4, cluster_id="c1", address="127.0.0.1:9641")


def initial(number: int) -> InitialVoter:
    """One of the initial voters."""
    return InitialVoter(node_id=number, address=ADDRESSES[NodeId(number)], directory_id=key(number).directory_id)


def test_explicit_format_takes_the_directory_id_of_the_voters(tmp_path: Path) -> None:
    """Every initial voter is formatted with the same list, which has its own id."""
    format_with_voters(tmp_path, node_id=2, cluster_id="c1", voters=[initial(3), initial(1), initial(2)])
    disk = PosixDisk()
    opened = DataDirectory.open(disk, str(tmp_path))
    assert opened.directory_id == key(2).directory_id
    voters = read_initial_voters(disk, opened.metadata_path)
    assert [voter.key for voter in voters.voters] == [key(1), key(2), key(3)]
    opened.close()


@pytest.mark.parametrize(
    ("node_id", "voters", "directory_id", "text"),
    [
        (9, [initial(1)], None, "not among the initial voters"),
        (1, [initial(1), initial(1)], None, "twice"),
        (1, [InitialVoter(node_id=1, address="a:1", directory_id=b"short")], None, "16 bytes"),
        (1, [initial(1)], key(2).directory_id, "differs"),
    ],
)
def test_explicit_format_refuses_voters_that_do_not_fit(
    tmp_path: Path, node_id: int, voters: list[InitialVoter], directory_id: bytes | None, text: str
) -> None:
    """A wrong list is found before anything is written."""
    with pytest.raises(FirstStartRefusedError, match=text):
        format_with_voters(tmp_path, node_id=node_id, cluster_id="c1", voters=voters, directory_id=directory_id)
    assert not is_formatted(tmp_path)


@pytest.mark.parametrize("cluster_id", ["", "a/b", "-x", "x" * 65])
def test_bad_cluster_id_is_refused(tmp_path: Path, cluster_id: str) -> None:
    """A cluster id is part of file formats and requests."""
    with pytest.raises(FirstStartRefusedError, match="cluster id"):
        format_observer(tmp_path, node_id=1, cluster_id=cluster_id)


def test_path_that_cannot_be_a_directory_is_a_clear_error(tmp_path: Path) -> None:
    """A file at the path of the directory gives a clear error."""
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(DirectoryNotWritableError, match=f"^{tmp_path}/file: it is a file, not a directory"):
        format_observer(tmp_path / "file" / "data", node_id=1, cluster_id="c1")


def test_damaged_voters_file_is_a_clear_error(tmp_path: Path) -> None:
    """A node that does not know the voters must not guess them."""
    format_standalone(tmp_path, node_id=1, cluster_id="c1", address="a:1")
    path = tmp_path / "metadata" / "initial-voters.json"
    path.write_bytes(path.read_bytes().replace(b"a:1", b"b:1"))
    with pytest.raises(FirstStartRefusedError, match="damaged"):
        read_initial_voters(PosixDisk(), str(tmp_path / "metadata"))
    path.unlink()
    with pytest.raises(FirstStartRefusedError, match="missing"):
        read_initial_voters(PosixDisk(), str(tmp_path / "metadata"))


def test_directory_id_survives_a_crash_before_the_format(tmp_path: Path) -> None:
    """The node formats with the id that it has told its peers."""

    def drawn(node_id: int = 1, cluster_id: str = "c1") -> bytes:
        from lograft.internal.v1 import quorum_pb2 as pb

        start = FirstStart(tmp_path, node_id=node_id, cluster_id=cluster_id, voters={1: "a:1"})
        return start.handle_probe(pb.ProbeRequest(node_id=1, cluster_id="c1")).directory_id

    first = drawn()
    assert drawn() == first
    assert drawn(cluster_id="c2") != first
    (tmp_path / PENDING_FILE).write_bytes(b"{}")
    assert drawn() != first
