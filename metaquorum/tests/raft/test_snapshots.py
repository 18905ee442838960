# SPDX-License-Identifier: Apache-2.0
"""Snapshots in the core: which replica is offered one, how it is installed, when the log is trimmed, and what does no harm."""

from __future__ import annotations

import pytest

from metaquorum.raft.effects import (
    AdvanceCommit,
    DiscardSnapshot,
    DownloadSnapshot,
    InstallSnapshot,
    ReportViolation,
    TrimLog,
    TruncateLog,
)
from metaquorum.raft.events import (
    Failure,
    ResponseReceived,
    SnapshotCreated,
    SnapshotDownloaded,
    SnapshotFailed,
    SnapshotProgressed,
    SnapshotServed,
)
from metaquorum.raft.messages import FetchRequest, FetchResponse, Refusal
from metaquorum.raft.roles import Follower, Leader
from metaquorum.raft.snapshots import check_download
from metaquorum.raft.types import EpochEnd, NodeId, Offset, QuorumEpoch
from metaquorum.raft.voters import Voter, voter_set
from metaquorum.testing.scripted_node import (
    CLUSTER_ID,
    ScriptedNode,
    batches,
    election_state,
    key,
    snapshot_id,
)

MEMBERS = voter_set([Voter(key=key(number), address=f"n{number}") for number in (1, 2, 3)])


def trimmed_leader() -> ScriptedNode:
    """A leader of epoch 6; its log has epochs 3 and 5 from 10 (after epoch 2) to 30, with a second snapshot at 20."""
    return (
        ScriptedNode(
            election=election_state(5),
            start=(10, 2),
            epochs=[(3, 10), (5, 25)],
            log_end_offset=30,
            snapshots=[(10, 2), (20, 3)],
        )
        .start()
        .elect()
    )


def answer_to(node: ScriptedNode, offset: int, last_epoch: int) -> FetchResponse:
    """Return the leader's immediate answer to a fetch of node 2."""
    response = node.receive(node.fetch_request(2, offset=offset, last_epoch=last_epoch, max_wait_ms=0))
    assert isinstance(response, FetchResponse), f"no answer: {response}"
    return response


# The answers of a leader.


@pytest.mark.parametrize(
    ("offset", "last_epoch", "reason"),
    [
        (0, 0, "an empty log"),
        (5, 1, "below the log start"),
        (9, 2, "below the log start, epoch of the snapshot"),
        (10, 1, "at the log start after another epoch"),
        (10, 4, "at the log start after a later epoch than the snapshot's"),
        (15, 1, "beyond the log start, of an epoch older than the one before it"),
    ],
)
def test_a_log_that_the_leader_cannot_continue_is_offered_the_newest_snapshot(
    offset: int, last_epoch: int, reason: str
) -> None:
    """Every branch of KIP-630's rule names the newest snapshot, and nothing else."""
    response = answer_to(trimmed_leader(), offset, last_epoch)
    assert response.snapshot == snapshot_id(20, 3), reason
    assert response.diverging is None, reason
    assert response.refusal is None, reason
    assert response.log_start_offset == 10


@pytest.mark.parametrize(("offset", "last_epoch"), [(10, 2), (12, 3), (30, 5)])
def test_a_log_that_the_leader_can_continue_gets_batches(offset: int, last_epoch: int) -> None:
    """With the right epoch at the log start, and anywhere beyond it, the replica gets the log."""
    response = answer_to(trimmed_leader(), offset, last_epoch)
    assert response.snapshot is None
    assert response.diverging is None


@pytest.mark.parametrize(
    ("offset", "last_epoch", "end"),
    [
        # Epoch 2 ended at the log start; 3 at 25; 4 is unknown here, the one before it is 3.
        (12, 2, (2, 10)),
        (28, 3, (3, 25)),
        (28, 4, (3, 25)),
    ],
)
def test_logs_that_part_inside_the_leaders_log_diverge(offset: int, last_epoch: int, end: tuple[int, int]) -> None:
    """No snapshot is offered if the leader can name a diverging epoch, even that of the record before the log start."""
    response = answer_to(trimmed_leader(), offset, last_epoch)
    assert response.snapshot is None
    assert response.diverging == EpochEnd(epoch=QuorumEpoch(end[0]), end_offset=Offset(end[1]))


def test_an_empty_replica_is_offered_a_snapshot_though_the_log_has_everything() -> None:
    """The snapshot is quicker; without a snapshot the replica gets the log from 0 on."""
    whole = ScriptedNode(election=election_state(1), epochs=[(1, 0)], log_end_offset=8, snapshots=[(5, 1)]).start()
    assert answer_to(whole.elect(), 0, 0).snapshot == snapshot_id(5, 1)
    assert answer_to(whole, 3, 1).snapshot is None
    none = ScriptedNode(election=election_state(1), epochs=[(1, 0)], log_end_offset=8).start().elect()
    assert answer_to(none, 0, 0).snapshot is None


def test_the_offer_does_not_count_as_progress() -> None:
    """A replica that needs a snapshot has none of this log: the high watermark does not move."""
    node = trimmed_leader()
    before = node.state.high_watermark
    answer_to(node, 15, 1)
    role = node.state.role
    assert isinstance(role, Leader)
    assert role.voters[NodeId(2)].end_offset is None
    assert role.voters[NodeId(2)].last_fetch_ms == node.now_ms
    assert node.state.high_watermark == before == 20


@pytest.mark.parametrize(
    ("changes", "refusal"),
    [
        ({}, None),
        ({"cluster_id": "other"}, Refusal.WRONG_CLUSTER),
        ({"quorum_epoch": 5}, Refusal.FENCED_EPOCH),
        ({"quorum_epoch": 7}, Refusal.UNKNOWN_EPOCH),
        ({"replica": key(1)}, Refusal.INVALID_REQUEST),
        ({"snapshot": snapshot_id(20, 2)}, Refusal.SNAPSHOT_NOT_FOUND),
        ({"snapshot": snapshot_id(10, 2)}, None),
    ],
)
def test_who_may_download(changes: dict[str, object], refusal: Refusal | None) -> None:
    """Only the leader of the request's epoch serves, only kept snapshots, and not to itself."""
    node = trimmed_leader()
    request = {"cluster_id": CLUSTER_ID, "quorum_epoch": 6, "replica": key(2), "snapshot": snapshot_id(20, 3)}
    assert check_download(node.state, **{**request, **changes}) is refusal  # pyright: ignore[reportArgumentType]


def test_a_follower_serves_no_snapshot() -> None:
    """A follower may have the same snapshot, and does not know the leader's present log."""
    node, _ = following()
    refusal = check_download(
        node.state,
        cluster_id=CLUSTER_ID,
        quorum_epoch=node.state.quorum_epoch,
        replica=key(3),
        snapshot=snapshot_id(20, 3),
    )
    assert refusal is Refusal.NOT_LEADER


def test_a_voter_that_downloads_counts_for_the_majority() -> None:
    """A voter does not fetch during its download; the leader resigns only when none downloads either."""
    node = trimmed_leader()
    for _ in range(4):
        node.advance(1_000)
        node.step(SnapshotServed(replica=key(2)))
        # An observer and a wiped voter change nothing.
        for stranger in (key(9), key(2).__class__(node_id=NodeId(3), directory_id=b"another-disk-016")):
            node.step(SnapshotServed(replica=stranger))
        assert node.role == "Leader"
    node.advance(1_500)
    assert node.role == "Resigned"
    node.step(SnapshotServed(replica=key(2)))
    assert node.role == "Resigned"


# The actions of a follower.


def following(
    *, number: int = 1, epochs: tuple[tuple[int, int], ...] = ((1, 0),), end: int = 4
) -> tuple[ScriptedNode, DownloadSnapshot]:
    """A follower of node 2 in epoch 6 that has been offered the snapshot (20, 3)."""
    node = ScriptedNode(number=number, election=election_state(5), epochs=epochs, log_end_offset=end).start()
    if number == 1:
        fetch = node.follow(2, 6)
    else:
        fetch = node.sent(FetchRequest)[-1][0]
        node.answer(fetch, FetchResponse(quorum_epoch=QuorumEpoch(6), leader_id=NodeId(2), leader_address="n2"))
        fetch = node.sent(FetchRequest)[-1][0]
    node.forget()
    node.answer(fetch, node.leader_answer(2, snapshot=(20, 3), high_watermark=28))
    (download,) = node.of(DownloadSnapshot)
    return node, download


def test_an_offer_begins_a_download_and_no_fetch() -> None:
    """The follower downloads from the leader of the epoch; it ignores the high watermark of the offer."""
    node, download = following()
    assert (download.address, download.quorum_epoch, download.snapshot) == ("n2", 6, snapshot_id(20, 3))
    assert node.sent(FetchRequest) == []
    assert node.state.high_watermark is None
    node.advance(900)
    assert node.sent(FetchRequest) == []


@pytest.mark.parametrize("number", [1, 9])
def test_an_installed_snapshot_takes_the_place_of_the_log(number: int) -> None:
    """Log, the epoch before it, voters and high watermark are those of the snapshot; the next fetch begins at its end."""
    node, download = following(number=number)
    effects = node.step(SnapshotDownloaded(download_id=download.download_id, voters=MEMBERS))
    install = InstallSnapshot(download_id=download.download_id, snapshot=snapshot_id(20, 3))
    assert effects[0] == install
    state = node.state
    assert (state.log.log_start_offset, state.log.log_end_offset, state.log.flushed_offset) == (20, 20, 20)
    assert (state.log.start_epoch, state.log.last_epoch, state.log.epochs) == (3, 3, ())
    assert (state.high_watermark, state.commit_offset) == (20, 20)
    assert node.of(AdvanceCommit) == [], "what is in the snapshot is not delivered from the log"
    assert state.voter_set == MEMBERS
    assert state.voters.is_in_log
    assert state.snapshots.ids == (snapshot_id(20, 3),)
    send, request = node.sent(FetchRequest)[-1]
    assert (request.fetch_offset, request.last_fetched_epoch, request.high_watermark) == (20, 3, 20)
    node.answer(send, node.leader_answer(2, batches=batches((20, 22, 3), (22, 23, 6)), high_watermark=23))
    assert state.log.epochs == ((3, 20), (6, 22))
    assert node.of(AdvanceCommit)[-1] == AdvanceCommit(commit_offset=Offset(23))


def test_a_longer_log_of_another_history_gives_way() -> None:
    """A log beyond the snapshot's end, but of an older epoch, was never committed."""
    node, download = following(epochs=((1, 0),), end=40)
    node.step(SnapshotDownloaded(download_id=download.download_id, voters=MEMBERS))
    assert node.state.log.log_end_offset == 20


def test_pieces_keep_the_leader_alive_and_silence_does_not() -> None:
    """Only the pieces of this download reset the fetch timer."""
    node, download = following()
    role = node.state.role
    assert isinstance(role, Follower)
    for _ in range(5):
        node.advance(900)
        role.is_leader_gone = True
        node.step(SnapshotProgressed(download_id=download.download_id))
        assert node.role == "Follower"
        assert role.has_fetched
        assert not role.is_leader_gone
    node.advance(600)
    node.step(SnapshotProgressed(download_id=download.download_id + 1))
    node.advance(399)
    assert node.role == "Follower"
    node.advance(1)
    assert node.role == "Prospective"
    assert node.of(DiscardSnapshot) == [DiscardSnapshot(download_id=download.download_id)]


def test_news_of_a_download_that_is_over_changes_nothing() -> None:
    """Late pieces, ends and failures after a change of role; a useless download is removed."""
    node, download = following()
    node.follow(3, 7)
    assert node.of(DiscardSnapshot) == [DiscardSnapshot(download_id=download.download_id)]
    role = node.state.role
    assert isinstance(role, Follower)
    before = (role.fetch_deadline_ms, role.has_fetched)
    node.now_ms += 10
    for event in (
        SnapshotProgressed(download_id=download.download_id),
        SnapshotFailed(download_id=download.download_id, failure=Failure.REFUSED),
        SnapshotDownloaded(download_id=download.download_id, voters=MEMBERS),
    ):
        node.step(event)
    assert (role.fetch_deadline_ms, role.has_fetched) == before
    assert node.of(InstallSnapshot) == []
    assert node.state.log.log_end_offset == 4
    assert len(node.of(DiscardSnapshot)) == 2


def test_a_second_end_of_the_same_download_changes_nothing() -> None:
    """A repeated completion finds no download."""
    node, download = following()
    done = SnapshotDownloaded(download_id=download.download_id, voters=MEMBERS)
    node.step(done)
    node.step(done)
    assert len(node.of(InstallSnapshot)) == 1


def test_a_repeated_fetch_answer_begins_no_second_download() -> None:
    """The first answer has completed the request; the second one is dropped."""
    node, download = following()
    send = node.state.next_request_id()
    for request_id in range(1, send):
        node.step(ResponseReceived(request_id=request_id, response=node.leader_answer(2, snapshot=(25, 5))))
    assert node.of(DownloadSnapshot) == [download]


@pytest.mark.parametrize(("failure", "gone"), [(Failure.REFUSED, True), (Failure.TIMED_OUT, False)])
def test_a_failed_download_is_forgotten_and_the_leader_asked_again(failure: Failure, gone: bool) -> None:
    """It fetches after a pause; a leader that refuses connections counts as gone."""
    node, download = following()
    node.step(SnapshotFailed(download_id=download.download_id, failure=failure))
    role = node.state.role
    assert isinstance(role, Follower)
    assert role.is_leader_gone is gone
    assert node.sent(FetchRequest) == []
    node.advance(20)
    assert len(node.sent(FetchRequest)) == 1


@pytest.mark.parametrize("offer", [(4, 6), (3, 1), (20, 7), (20, 0)])
def test_an_offer_that_no_correct_leader_makes_is_reported(offer: tuple[int, int]) -> None:
    """A snapshot at or below the high watermark, or of a future epoch: the follower downloads nothing and keeps its log."""
    node = ScriptedNode(
        election=election_state(5), epochs=[(1, 0)], log_end_offset=6, committed_offset=4, snapshots=[(3, 1)]
    ).start()
    fetch = node.follow(2, 6)
    node.answer(fetch, node.leader_answer(2, snapshot=offer))
    assert node.of(DownloadSnapshot) == []
    assert len(node.of(ReportViolation)) == 1
    assert node.state.log.log_end_offset == 6


def test_a_truncation_below_an_installed_snapshot_is_refused() -> None:
    """The records of the snapshot are committed."""
    node, download = following()
    node.step(SnapshotDownloaded(download_id=download.download_id, voters=MEMBERS))
    send = node.sent(FetchRequest)[-1][0]
    node.answer(send, node.leader_answer(2, diverging=(2, 15)))
    assert node.of(TruncateLog) == []
    assert len(node.of(ReportViolation)) == 1


# Own snapshots.


def committed_leader(kept_snapshots: int) -> ScriptedNode:
    """The only voter, with 12 records of epoch 1 committed."""
    node = ScriptedNode(voters=(1,))
    node.state.config = type(node.state.config)(kept_snapshots=kept_snapshots)
    node.start()
    for _ in range(10):
        node.propose()
    assert node.state.commit_offset == 12
    node.forget()
    return node


def test_the_log_begins_at_the_oldest_of_the_kept_snapshots() -> None:
    """The log is trimmed once the wanted number of snapshots is kept; then always to the oldest of them, which stays."""
    node = committed_leader(2)
    node.step(SnapshotCreated(snapshot=snapshot_id(4, 1)))
    assert node.of(TrimLog) == []
    assert node.state.log.log_start_offset == 0
    node.step(SnapshotCreated(snapshot=snapshot_id(8, 1)))
    assert node.of(TrimLog) == [TrimLog(snapshot=snapshot_id(4, 1))]
    node.step(SnapshotCreated(snapshot=snapshot_id(12, 1)))
    assert node.of(TrimLog)[1:] == [TrimLog(snapshot=snapshot_id(8, 1))]
    assert node.state.snapshots.ids == (snapshot_id(8, 1), snapshot_id(12, 1))
    assert (node.state.log.log_start_offset, node.state.log.start_epoch) == (8, 1)
    assert node.state.log.epochs == ((1, 8),)


def test_a_log_may_be_trimmed_to_its_end_and_goes_on() -> None:
    """With one kept snapshot the log becomes empty; the next record is of the same epoch."""
    node = committed_leader(1)
    node.step(SnapshotCreated(snapshot=snapshot_id(12, 1)))
    assert node.of(TrimLog) == [TrimLog(snapshot=snapshot_id(12, 1))]
    assert node.state.log.last_epoch == 1
    assert node.state.log.epochs == ()
    node.propose()
    assert node.state.log.epochs == ((1, 12),)
    assert node.state.commit_offset == 13


def test_a_snapshot_that_was_overtaken_is_ignored() -> None:
    """A snapshot of the leader was installed while this node was making an older one."""
    node, download = following()
    node.step(SnapshotDownloaded(download_id=download.download_id, voters=MEMBERS))
    node.forget()
    node.step(SnapshotCreated(snapshot=snapshot_id(4, 1)))
    assert node.effects == []
    assert node.state.snapshots.ids == (snapshot_id(20, 3),)


@pytest.mark.parametrize(("snapshot", "text"), [((13, 1), "beyond what is committed"), ((5, 2), "not of the log")])
def test_a_snapshot_of_what_is_not_committed_is_a_bug(snapshot: tuple[int, int], text: str) -> None:
    """The process stops before it could serve such a snapshot."""
    with pytest.raises(AssertionError, match=text):
        committed_leader(2).step(SnapshotCreated(snapshot=snapshot_id(*snapshot)))
