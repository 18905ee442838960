# SPDX-License-Identifier: Apache-2.0
"""Epochs that no peer can have reached: nodes refuse them, and even the last epoch stops no process and no start."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from lograft.internal.v1 import quorum_pb2
from lograft.v1 import admin_pb2
from typer.testing import CliRunner

from metaquorum.__main__ import app
from metaquorum.net import sparse_log
from metaquorum.process.epoch_reset import read_epochs, reset_epoch
from metaquorum.process.settings import SettingsError
from metaquorum.raft.effects import ReportViolation
from metaquorum.raft.messages import Refusal, Request, UpdateVoterRequest, VoteResponse
from metaquorum.raft.types import MAX_EPOCH_LEAP, MAX_QUORUM_EPOCH, NodeId, QuorumEpoch, ReplicaKey
from metaquorum.replica.election_store import ElectionStore
from metaquorum.testing.scripted_node import CLUSTER_ID, ScriptedNode, election_state, key
from metaquorum.tests.quorum_cluster import CLUSTER, QuorumCluster, quorum_cluster, until
from storage.errors import DirectoryLockedError
from storage.files.posix import PosixDisk

EPOCH = 5
BEYOND = EPOCH + MAX_EPOCH_LEAP + 1


def node(epoch: int = EPOCH) -> ScriptedNode:
    """A voter of three that knows an epoch."""
    return ScriptedNode(election=election_state(epoch)).start()


def update_request(made: ScriptedNode, epoch: int) -> Request:
    """A voter reports its address."""
    del made
    return UpdateVoterRequest(cluster_id=CLUSTER_ID, quorum_epoch=QuorumEpoch(epoch), voter=key(2), address="a:1")


REQUESTS = {
    "vote": lambda made, epoch: made.vote_request(2, epoch),
    "pre-vote": lambda made, epoch: made.pre_vote_request(2, epoch),
    "begin": lambda made, epoch: made.begin_request(2, epoch),
    "end": lambda made, epoch: made.end_request(2, epoch),
    "fetch": lambda made, epoch: made.fetch_request(2, offset=0, last_epoch=0, epoch=epoch),
    "update": update_request,
}


@pytest.mark.parametrize("kind", list(REQUESTS))
@pytest.mark.parametrize("epoch", [BEYOND, MAX_QUORUM_EPOCH])
def test_request_of_an_absurd_epoch_is_refused_and_teaches_nothing(kind: str, epoch: int) -> None:
    """Any kind of request is refused; the operator sees it in the log, and the node keeps its own epoch."""
    made = node()
    before = made.state.election
    response = made.receive(REQUESTS[kind](made, epoch))
    assert response is not None
    assert response.refusal is Refusal.INVALID_REQUEST
    assert response.quorum_epoch == EPOCH
    assert made.state.election == before
    assert "not believed" in made.of(ReportViolation)[-1].text


@pytest.mark.parametrize("kind", ["vote", "pre-vote", "begin"])
def test_epoch_that_is_just_plausible_is_believed(kind: str) -> None:
    """A node that was away for a million elections learns the epoch from the request."""
    made = node()
    made.receive(REQUESTS[kind](made, BEYOND - 1))
    assert made.state.quorum_epoch == BEYOND - 1


def test_replica_without_an_epoch_joins_an_old_quorum() -> None:
    """A wiped or new replica knows epoch 0: it accepts any epoch that leaves room for elections, and no other one."""
    made = node(0)
    made.receive(made.begin_request(2, MAX_QUORUM_EPOCH - MAX_EPOCH_LEAP + 1))
    assert made.state.quorum_epoch == 0
    made.receive(made.begin_request(2, 7 * MAX_EPOCH_LEAP))
    assert made.state.quorum_epoch == 7 * MAX_EPOCH_LEAP


def test_answer_of_an_absurd_epoch_counts_as_none() -> None:
    """The request is repeated later, as after a lost answer."""
    made = node()
    made.advance(10_000)
    epoch = made.state.quorum_epoch
    (send, _), *_ = [*made.sent(type(made.pre_vote_request(2, 1))), *made.sent(type(made.vote_request(2, 1)))]
    answer = VoteResponse(quorum_epoch=QuorumEpoch(MAX_QUORUM_EPOCH), leader_id=NodeId(3), granted=True)
    made.answer(send, answer)
    assert made.state.quorum_epoch == epoch
    assert "dropped" in made.of(ReportViolation)[-1].text


@pytest.mark.parametrize("voters", [1, 3])
def test_node_in_the_last_epoch_elects_nobody_and_says_what_to_do(voters: int) -> None:
    """It asks for pre-votes, and opens no epoch that cannot be stored; an only voter does not loop."""
    made = ScriptedNode(election=election_state(MAX_QUORUM_EPOCH), voters=list(range(1, voters + 1))).start()
    for _ in range(50):
        made.advance(100)
        for send, _ in made.sent(type(made.pre_vote_request(2, 1))):
            answer = VoteResponse(quorum_epoch=QuorumEpoch(MAX_QUORUM_EPOCH), leader_id=None, granted=True)
            made.answer(send, answer)
    assert made.state.quorum_epoch == MAX_QUORUM_EPOCH
    assert any("reset-epoch" in report.text for report in made.of(ReportViolation))


async def forge(cluster: QuorumCluster, node_id: int, *, pre_vote: bool) -> quorum_pb2.VoteResponse:
    """Ask a voter for its vote in the last epoch, as another voter would."""
    candidate = next(other for other in cluster.voters if other != node_id)
    request = quorum_pb2.VoteRequest(
        cluster_id=CLUSTER,
        quorum_epoch=MAX_QUORUM_EPOCH,
        candidate=quorum_pb2.ReplicaKey(node_id=candidate, directory_id=candidate.to_bytes(16, "big")),
        voter=quorum_pb2.ReplicaKey(node_id=node_id, directory_id=node_id.to_bytes(16, "big")),
        last_epoch=1,
        log_end_offset=10**9,
        pre_vote=pre_vote,
    )
    return await cluster.quorum(node_id).vote(request)


async def test_forged_votes_stop_no_voter(tmp_path: Path) -> None:
    """Two of three voters once exited with "Value out of range: 2147483648", and could not start again."""
    async with quorum_cluster(tmp_path, 3) as cluster:
        for node_id in cluster.voters:
            for pre_vote in (True, False):
                answer = await forge(cluster, node_id, pre_vote=pre_vote)
                assert not answer.granted
                assert answer.error == quorum_pb2.QUORUM_ERROR_INVALID_REQUEST
        leader = await cluster.active()
        await cluster.stop(leader)
        await cluster.active()
        await cluster.start(leader)
        await cluster.admin(await cluster.active()).DescribeQuorum(admin_pb2.DescribeQuorumRequest())


async def test_log_has_a_line_a_second_at_most_for_each_kind(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many forged requests come; the next line has their count."""
    monkeypatch.setattr(sparse_log, "LOG_INTERVAL_S", 1e9)

    def lines() -> list[str]:
        return [record.message for record in caplog.records if "protocol_violation" in record.message]

    async with quorum_cluster(tmp_path, 3) as cluster:
        for _ in range(10):
            await forge(cluster, 1, pre_vote=False)
        assert len(lines()) == 1
        assert "kind=absurd_request" in lines()[0]
        monkeypatch.setattr(sparse_log, "LOG_INTERVAL_S", 0.0)
        await forge(cluster, 1, pre_vote=False)
        assert lines()[1].endswith("count=10")


def set_epoch(cluster: QuorumCluster, node_id: int, epoch: int) -> None:
    """Give a stopped voter an epoch, as an earlier version without the check may have left it."""
    own = ReplicaKey(node_id=NodeId(node_id), directory_id=node_id.to_bytes(16, "big"))
    store = ElectionStore(PosixDisk(), f"{cluster.path(node_id)}/metadata", own)
    store.load()
    store.save(election_state(epoch))


async def test_quorum_in_the_last_epoch_starts_says_how_to_recover_and_recovers(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """All three voters are in the last epoch; their committed records are there after the recovery."""
    async with quorum_cluster(tmp_path, 3) as cluster:
        await asyncio.gather(*(cluster.stop(node_id) for node_id in list(cluster.servers)))
        for node_id in cluster.voters:
            set_epoch(cluster, node_id, MAX_QUORUM_EPOCH + (node_id == 1))
        await asyncio.gather(*(cluster.start(node_id) for node_id in cluster.voters))
        await until(lambda: "reset-epoch" in caplog.text, what="advice")
        assert not any(server.host.is_active for server in cluster.servers.values())
        with pytest.raises(DirectoryLockedError):
            reset_epoch(cluster.path(1), 1)
        await asyncio.gather(*(cluster.stop(node_id) for node_id in list(cluster.servers)))
        # One of them may not have had anything yet when it was stopped.
        found = {node_id: read_epochs(cluster.path(node_id)).log_epoch for node_id in cluster.voters}
        target = max(found.values())
        assert target > 0
        for node_id in cluster.voters:
            arguments = ["reset-epoch", "--data-dir", str(cluster.path(node_id))]
            assert f"largest epoch in its log {found[node_id]}" in CliRunner().invoke(app, arguments).output
            result = CliRunner().invoke(app, [*arguments, "--to", str(target)])
            assert (result.exit_code, f"to {target}" in result.output) == (0, True)
        await asyncio.gather(*(cluster.start(node_id) for node_id in cluster.voters))
        await cluster.active()


async def test_reset_refuses_an_epoch_that_had_a_leader_or_is_no_way_back(tmp_path: Path) -> None:
    """An epoch below that of the log could get a second leader; a higher one is no recovery."""
    async with quorum_cluster(tmp_path, 1) as cluster:
        await cluster.stop(1)
        found = read_epochs(cluster.path(1))
        assert found.log_epoch > 0
        for epoch in (found.log_epoch - 1, found.quorum_epoch, MAX_QUORUM_EPOCH):
            with pytest.raises(SettingsError, match="epoch"):
                reset_epoch(cluster.path(1), epoch)
        assert read_epochs(cluster.path(1)) == found
