# SPDX-License-Identifier: Apache-2.0
"""Real nodes over loopback connections with real files: election, replication, restart, wipe, observers, limits."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import AsyncIterator, Callable
from contextvars import Context
from pathlib import Path

import pytest
from lograft.internal.v1 import quorum_pb2 as pb
from lograft.wire.codes import ErrorCode

from metaquorum.net.carrier import Carrier
from metaquorum.net.peers import NotSentError
from metaquorum.net.service import RefusalError
from metaquorum.raft.events import Event
from metaquorum.replica.driver import Driver
from metaquorum.replica.election_store import COPY_NAME, FILE_NAME, VoteFileLostError
from metaquorum.replica.quorum_node import BusyError, NotLeaderError, QuorumError, QuorumNode, QuorumSettings
from metaquorum.testing.loopback import CLUSTER_ID, LoopbackQuorum, wait_for
from metaquorum.testing.peer_client import PeerClient, QuorumCalls
from storage.directory.data_directory import DataDirectory
from storage.files.posix import PosixDisk

QuorumOf = Callable[[int], LoopbackQuorum]


@pytest.fixture
async def quorum_of(tmp_path: Path) -> AsyncIterator[QuorumOf]:
    """Make quorums of some voters; stop those that still run at the end."""
    made: list[LoopbackQuorum] = []

    def make(voter_count: int) -> LoopbackQuorum:
        made.append(LoopbackQuorum(tmp_path, voter_count))
        return made[-1]

    yield make
    for quorum in made:
        await asyncio.gather(*(machine.kill() for machine in quorum.machines))


async def everywhere(quorum: LoopbackQuorum, records: list[bytes]) -> None:
    """Wait until every running node has delivered exactly these records."""
    running = [machine for machine in quorum.machines if machine.node]
    await wait_for(
        lambda: all(machine.listener.records == records for machine in running),
        f"{len(records)} records on every node",
    )


async def test_single_node_leads_at_once_and_commits(quorum_of: QuorumOf) -> None:
    """A quorum of one does not wait for an election timeout; its first records are LeaderChange and Voters."""
    quorum = quorum_of(1)
    started = time.monotonic()
    await quorum.start()
    leader = await quorum.wait_for_leader()
    assert time.monotonic() - started < 2
    assert quorum.append([b"a", b"b"]) == 2
    await everywhere(quorum, [b"a", b"b"])
    assert [batch.is_control for batch in leader.listener.batches] == [True, True, False]
    assert leader.listener.activations == [(1, 2)]
    assert leader.node is not None
    assert leader.node.high_watermark == 4


async def test_three_nodes_elect_replicate_and_deliver_in_order(quorum_of: QuorumOf) -> None:
    """Every node delivers the same batches at the same offsets."""
    quorum = quorum_of(3)
    await quorum.start()
    leader = await quorum.wait_for_leader()
    expected = [b"record-%d" % number for number in range(100)]
    for record in expected:
        quorum.append([record])
    await everywhere(quorum, expected)
    offsets = [[batch.base_offset for batch in machine.listener.batches] for machine in quorum.machines]
    assert offsets[0] == offsets[1] == offsets[2]
    for machine in quorum.machines:
        assert machine.node is not None
        assert machine.node.leader().leader_id == leader.number
        assert machine.node.leader().address == leader.address
        status = machine.node.status()
        assert status.is_voter
        assert status.high_watermark == status.log_end_offset == status.flushed_offset == 102
        assert [voter.node_id for voter in status.voters] == [1, 2, 3]


async def test_follower_and_wrong_epoch_refuse_to_append(quorum_of: QuorumOf) -> None:
    """A caller of a node that does not lead learns the leader; nothing is appended."""
    quorum = quorum_of(3)
    await quorum.start()
    leader = await quorum.wait_for_leader()
    follower = next(machine for machine in quorum.machines if machine is not leader)
    node = follower.node
    assert node is not None
    assert leader.node is not None
    await wait_for(lambda: node.leader().leader_id == leader.number, "a follower")
    with pytest.raises(NotLeaderError) as error:
        node.append([b"x"], quorum_epoch=1)
    assert error.value.leader.leader_id == leader.number
    epoch = leader.listener.active_epoch or 0
    with pytest.raises(NotLeaderError):
        leader.node.append([b"x"], quorum_epoch=epoch + 1)
    for wrong in ([], [b"x"] * 100_001, [bytes(9 * 1024 * 1024)]):
        with pytest.raises(ValueError, match="batch"):
            leader.node.append(wrong, quorum_epoch=epoch)
    assert leader.node.status().log_end_offset == 2


async def test_killed_leader_is_replaced_within_three_seconds_and_rejoins(quorum_of: QuorumOf) -> None:
    """No acknowledged record is lost, and the old leader follows the new one."""
    quorum = quorum_of(3)
    await quorum.start()
    expected: list[bytes] = []
    for round_number in range(3):
        leader = await quorum.wait_for_leader()
        record = b"round-%d" % round_number
        quorum.append([record])
        expected.append(record)
        await wait_for(lambda: leader.listener.records == expected, "the commit at the leader")  # noqa: B023
        killed = time.monotonic()
        await leader.kill()
        await quorum.wait_for_leader(other_than=leader)
        assert time.monotonic() - killed < 3
        await leader.start()
        await everywhere(quorum, expected)


async def test_stopped_leader_hands_over(quorum_of: QuorumOf) -> None:
    """An orderly stop takes less than an election timeout, and the quorum continues to commit."""
    quorum = quorum_of(3)
    await quorum.start()
    leader = await quorum.wait_for_leader()
    started = time.monotonic()
    await leader.stop()
    await quorum.wait_for_leader(other_than=leader)
    assert time.monotonic() - started < 1.5
    quorum.append([b"after"])
    await leader.start()
    await everywhere(quorum, [b"after"])


async def test_stopping_leader_commits_what_it_appended_before_it_hands_over(quorum_of: QuorumOf) -> None:
    """A caller that waits for a commit at a leader in an orderly stop sees it, and not an unknown outcome."""
    quorum = quorum_of(3)
    await quorum.start()
    leader = await quorum.wait_for_leader()
    records = [b"record-%d" % number for number in range(20)]
    for record in records:
        quorum.append([record])
    assert leader.listener.records == []
    await leader.stop()
    assert leader.listener.records == records
    await quorum.wait_for_leader(other_than=leader)
    await everywhere(quorum, records)


async def test_whole_quorum_restarts_with_its_log(quorum_of: QuorumOf) -> None:
    """The voters are killed at once; the quorum restarts with everything committed, in a later epoch."""
    quorum = quorum_of(3)
    await quorum.start()
    first = await quorum.wait_for_leader()
    epoch = first.listener.active_epoch or 0
    quorum.append([b"kept"])
    await everywhere(quorum, [b"kept"])
    await asyncio.gather(*(machine.kill() for machine in quorum.machines))
    for machine in quorum.machines:
        await machine.start()
    leader = await quorum.wait_for_leader()
    assert (leader.listener.active_epoch or 0) > epoch
    await everywhere(quorum, [b"kept"])


async def test_minority_commits_nothing_and_its_leader_resigns(quorum_of: QuorumOf) -> None:
    """Without a majority nothing commits; the leader detects that itself."""
    quorum = quorum_of(3)
    await quorum.start()
    leader = await quorum.wait_for_leader()
    others = [machine for machine in quorum.machines if machine is not leader]
    await asyncio.gather(*(machine.kill() for machine in others))
    quorum.append([b"alone"])
    await wait_for(lambda: leader.listener.active_epoch is None, "the resignation")
    assert leader.listener.records == []
    await others[0].start()
    await quorum.wait_for_leader()


async def test_observer_follows_by_addresses_alone(quorum_of: QuorumOf) -> None:
    """A broker knows the quorum's addresses and not its voters; it delivers the same log, also after a change of leader."""
    quorum = quorum_of(3)
    await quorum.start()
    await quorum.wait_for_leader()
    quorum.append([b"before"])
    observer = await quorum.add_observer(9)
    await everywhere(quorum, [b"before"])
    assert observer.node is not None
    assert not observer.node.status().is_voter

    def is_followed() -> bool:
        # A busy machine may have elected another leader meanwhile.
        leader = quorum.leader()
        return (
            leader is not None
            and leader.node is not None
            and [o.node_id for o in leader.node.status().observers] == [9]
        )

    await wait_for(is_followed, "its progress")
    leader = await quorum.wait_for_leader()
    await leader.kill()
    await quorum.wait_for_leader(other_than=leader)
    quorum.append([b"after"])
    await everywhere(quorum, [b"before", b"after"])
    assert observer.listener.activations == []


async def test_first_start_of_three_nodes_makes_one_quorum(quorum_of: QuorumOf) -> None:
    """Fresh nodes format only when all have answered; two of them wait for a silent third."""
    quorum = quorum_of(3)
    await quorum.serve()
    silent = quorum.machines[2]
    await silent.stop()
    starts = [asyncio.create_task(machine.first_start()) for machine in quorum.machines[:2]]
    await asyncio.wait(starts, timeout=1.5)
    assert not any(start.done() for start in starts)
    assert not (quorum.machines[0].path / "meta.json").exists()
    await asyncio.gather(silent.first_start(), *starts)
    await quorum.wait_for_leader()
    quorum.append([b"one"])
    await everywhere(quorum, [b"one"])
    for machine in quorum.machines:
        assert machine.node is not None
        assert machine.node.status().is_voter


async def test_wiped_voter_comes_back_as_an_observer_and_gets_no_vote(quorum_of: QuorumOf) -> None:
    """A wiped disk is never the old voter: it has a fresh directory id, gets no vote, and its votes do not count."""
    quorum = quorum_of(3)
    await quorum.start()
    leader = await quorum.wait_for_leader()
    quorum.append([b"kept"])
    await everywhere(quorum, [b"kept"])
    wiped = next(machine for machine in quorum.machines if machine is not leader)
    old_id = wiped.directory_id
    await wiped.kill()
    shutil.rmtree(wiped.path)
    node = await wiped.first_start()
    assert node.directory_id != old_id
    await everywhere(quorum, [b"kept"])
    assert not node.status().is_voter
    assert node.status().role == "follower"
    candidate = pb.ReplicaKey(node_id=wiped.number, directory_id=node.directory_id)
    async with PeerClient(CLUSTER_ID) as client:
        response = await QuorumCalls(client, leader.address).vote(
            pb.VoteRequest(
                cluster_id=CLUSTER_ID,
                quorum_epoch=1_000,
                candidate=candidate,
                voter=pb.ReplicaKey(node_id=leader.number, directory_id=leader.directory_id),
                # All that it can have; a log ahead of this voter's could know of other voters (KIP-853).
                last_epoch=node.leader().quorum_epoch,
                log_end_offset=node.status().log_end_offset,
            )
        )
    assert response.error == pb.QUORUM_ERROR_INVALID_VOTER_KEY
    assert not response.granted
    assert response.quorum_epoch < 1_000
    assert leader.node is not None
    assert [observer.node_id for observer in leader.node.status().observers] == [wiped.number]


async def test_voter_without_its_vote_file_refuses_to_start(quorum_of: QuorumOf) -> None:
    """A voter that may have forgotten its vote does not vote."""
    quorum = quorum_of(1)
    await quorum.start()
    await quorum.wait_for_leader()
    await quorum.stop()
    machine = quorum.machines[0]
    for name in (FILE_NAME, COPY_NAME):
        (machine.path / "metadata" / name).unlink()
    with pytest.raises(VoteFileLostError):
        await machine.start()


async def test_listener_that_fails_stops_its_node_and_no_other(quorum_of: QuorumOf) -> None:
    """An image that missed a batch must not be used; the rest of the quorum continues."""
    quorum = quorum_of(3)
    await quorum.start()
    leader = await quorum.wait_for_leader()
    follower = next(machine for machine in quorum.machines if machine is not leader)
    await everywhere(quorum, [])
    follower.listener.failure = RuntimeError("cannot apply")
    quorum.append([b"poison"])
    assert follower.node is not None
    with pytest.raises(RuntimeError, match="cannot apply"):
        await follower.node.wait_stopped()
    await wait_for(lambda: leader.listener.records == [b"poison"], "the commit at the leader")


async def test_uncommitted_bytes_are_bounded(quorum_of: QuorumOf) -> None:
    """A leader that cannot commit refuses more than its limit."""
    quorum = quorum_of(3)
    await quorum.start()
    leader = await quorum.wait_for_leader()
    await asyncio.gather(*(machine.kill() for machine in quorum.machines if machine is not leader))

    def fill() -> None:
        for _ in range(40):
            quorum.append([bytes(1024 * 1024)])

    with pytest.raises(BusyError):
        fill()


async def test_long_log_is_delivered_to_a_new_node_in_slices(quorum_of: QuorumOf) -> None:
    """Catching up over several fetches and slices keeps order and content."""
    quorum = quorum_of(1)
    await quorum.start()
    await quorum.wait_for_leader()
    expected: list[bytes] = []
    for number in range(60):
        batch = [b"%06d-" % (number * 10 + index) + bytes(5_000) for index in range(10)]
        quorum.append(batch)
        expected += batch
    await everywhere(quorum, expected)
    await quorum.add_observer(7)
    await everywhere(quorum, expected)


async def test_requests_of_another_cluster_and_nonsense_are_refused(quorum_of: QuorumOf) -> None:
    """The server checks every request before the node sees it, and the node continues."""
    quorum = quorum_of(1)
    await quorum.start()
    leader = await quorum.wait_for_leader()
    own = pb.ReplicaKey(node_id=1, directory_id=leader.directory_id)
    other = pb.ReplicaKey(node_id=5, directory_id=bytes(16))
    async with PeerClient(CLUSTER_ID) as client:
        calls = QuorumCalls(client, leader.address)
        vote = await calls.vote(pb.VoteRequest(cluster_id="another", candidate=other, voter=own, quorum_epoch=9))
        assert vote.error == pb.QUORUM_ERROR_WRONG_CLUSTER
        fetched = await calls.fetch(pb.FetchQuorumRequest(cluster_id="another", replica=other))
        assert fetched.error == pb.QUORUM_ERROR_WRONG_CLUSTER
        begin = pb.BeginQuorumEpochRequest(cluster_id="another", voter=own, leader_address="a:1", leader_id=5)
        assert (await calls.begin(begin)).error == pb.QUORUM_ERROR_WRONG_CLUSTER
        ended = await calls.end(pb.EndQuorumEpochRequest(cluster_id="another", leader_id=5))
        assert ended.error == pb.QUORUM_ERROR_WRONG_CLUSTER
        assert (await calls.vote(pb.VoteRequest())).error == pb.QUORUM_ERROR_INVALID_REQUEST
        assert (await calls.fetch(pb.FetchQuorumRequest())).error == pb.QUORUM_ERROR_INVALID_REQUEST
        assert (await calls.begin(pb.BeginQuorumEpochRequest())).error == pb.QUORUM_ERROR_INVALID_REQUEST
        assert (await calls.end(pb.EndQuorumEpochRequest(leader_id=-1))).error == pb.QUORUM_ERROR_INVALID_REQUEST
        probed = await calls.probe(pb.ProbeRequest(node_id=5, directory_id=bytes(16), cluster_id=CLUSTER_ID))
    assert probed.formatted
    assert probed.has_history
    assert not probed.accepts_initial_voter
    quorum.append([b"still here"])
    await everywhere(quorum, [b"still here"])


async def test_server_of_another_cluster_is_not_heard(quorum_of: QuorumOf) -> None:
    """The connection ends with that reason before a request."""
    quorum = quorum_of(1)
    await quorum.start()
    leader = await quorum.wait_for_leader()
    async with PeerClient("another") as stranger:
        with pytest.raises(NotSentError, match="this is cluster 'another', not 'loopback'"):
            await QuorumCalls(stranger, leader.address).probe(pb.ProbeRequest())


async def test_node_that_stops_answers_fetches_that_wait(quorum_of: QuorumOf) -> None:
    """The answers say so: followers look for the next leader at once, and the stop does not wait for them."""
    quorum = quorum_of(1)
    await quorum.start()
    leader = await quorum.wait_for_leader()
    node = leader.node
    assert node is not None
    status = node.status()
    request = pb.FetchQuorumRequest(
        cluster_id=CLUSTER_ID,
        quorum_epoch=node.leader().quorum_epoch,
        replica=pb.ReplicaKey(node_id=9, directory_id=b"o" * 16),
        fetch_offset=status.log_end_offset,
        last_fetched_epoch=node.leader().quorum_epoch,
        high_watermark=status.high_watermark,
        max_bytes=1_000,
        max_wait_ms=30_000,
    )
    async with PeerClient(CLUSTER_ID) as client:
        fetching = asyncio.create_task(QuorumCalls(client, leader.address).fetch(request))
        await wait_for(lambda: bool(node.status().observers), "the fetch at the leader")
        assert not fetching.done()
        await leader.stop()
        async with asyncio.timeout(5):
            # From a node that no longer leads, or whose core is gone.
            assert (await fetching).error in (pb.QUORUM_ERROR_NOT_LEADER, pb.QUORUM_ERROR_UNAVAILABLE)


async def test_server_without_a_node_is_unavailable(quorum_of: QuorumOf) -> None:
    """A node that is starting or stopping says so, and the caller retries."""
    (machine,) = quorum_of(1).machines
    await machine.serve()
    key = pb.ReplicaKey(node_id=1, directory_id=bytes(16))
    async with PeerClient(CLUSTER_ID) as client:
        calls = QuorumCalls(client, machine.address)
        assert (await calls.vote(pb.VoteRequest(candidate=key, voter=key))).error == pb.QUORUM_ERROR_UNAVAILABLE
        assert (await calls.fetch(pb.FetchQuorumRequest(replica=key))).error == pb.QUORUM_ERROR_UNAVAILABLE
        begin = pb.BeginQuorumEpochRequest(voter=key, leader_address="a:1")
        assert (await calls.begin(begin)).error == pb.QUORUM_ERROR_UNAVAILABLE
        assert (await calls.end(pb.EndQuorumEpochRequest())).error == pb.QUORUM_ERROR_UNAVAILABLE
        with pytest.raises(RefusalError) as error:
            await calls.probe(pb.ProbeRequest())
    assert error.value.code is ErrorCode.SHUTTING_DOWN


async def test_node_on_the_directory_of_another_is_refused(quorum_of: QuorumOf) -> None:
    """Settings and directory must name the same node and cluster."""
    quorum = quorum_of(1)
    await quorum.start()
    await quorum.stop()
    directory = DataDirectory.open(PosixDisk(), str(quorum.machines[0].path))
    carrier = Carrier(cluster_id=CLUSTER_ID, node_id=1)
    await carrier.start(None)
    with pytest.raises(QuorumError, match="belongs to node 1"):
        QuorumNode(QuorumSettings(node_id=2, cluster_id=CLUSTER_ID), directory, carrier.peers)
    node = QuorumNode(QuorumSettings(node_id=1, cluster_id=CLUSTER_ID), directory, carrier.peers)
    assert node.leader().leader_id is None
    assert node.high_watermark is None
    with pytest.raises(QuorumError, match="does not run"):
        node.status()
    with pytest.raises(NotLeaderError):
        node.append([b"x"], quorum_epoch=1)
    await node.stop()
    await carrier.close()
    directory.close()


async def test_deadline_that_is_put_off_needs_no_new_timer(
    quorum_of: QuorumOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nearly every event puts some deadline off; the timer stays then, and is set again when it fires too early."""
    quorum = quorum_of(3)
    await quorum.start()
    leader = await quorum.wait_for_leader()
    loop = asyncio.get_running_loop()
    call_at, submit = loop.call_at, Driver.submit
    waiting: dict[Driver, float] = {}
    put_off_count = 0
    needless: list[str] = []

    def watch_timer(
        when: float, callback: Callable[..., object], *arguments: object, context: Context | None = None
    ) -> asyncio.TimerHandle:
        driver = getattr(callback, "__self__", None)
        if not isinstance(driver, Driver):
            return call_at(when, callback, *arguments, context=context)
        if driver in waiting and when >= waiting[driver]:
            needless.append(f"a timer at {when} beside one at {waiting[driver]}")
        waiting[driver] = when

        def fire() -> None:
            del waiting[driver]
            callback(*arguments)

        return call_at(when, fire, context=context)

    def watch_event(driver: Driver, event: Event) -> None:
        nonlocal put_off_count
        submit(driver, event)
        deadline_ms = driver._node.deadline_ms()
        put_off_count += driver in waiting and deadline_ms is not None and deadline_ms / 1_000 > waiting[driver]

    monkeypatch.setattr(loop, "call_at", watch_timer)
    monkeypatch.setattr(Driver, "submit", watch_event)
    for number in range(1, 101):
        quorum.append([b"record"])
        await wait_for(lambda: len(leader.listener.records) == number, "the commit")  # noqa: B023
    assert not needless
    assert put_off_count > 100
