# SPDX-License-Identifier: Apache-2.0
"""Damage to a log that other replicas can repair: real core and log on a simulated disk; the test plays the other brokers."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from lograft.wire.batch import read_header
from lograft.wire.codes import ErrorCode

from brokerd.clock import monotonic_ms
from brokerd.controller_client.partition_requests import ResignReason
from brokerd.failure import RefusedError
from brokerd.limits import REPAIR_RETRY_MS
from brokerd.partition.events import AckLevel
from brokerd.partition.reconciliation import EpochEnd, SubscriptionError
from brokerd.replica.damage_reports import DamageReports
from brokerd.replica.repairing import DamageRepairs
from brokerd.replica.replica import Replica
from brokerd.replica.replication_border import RepairCallError
from brokerd.replication.repair import RepairCalls
from brokerd.tests.replica.broker_of_three import TOPIC_ID, BrokerOfThree, Route, followed, follower, send, stamped
from brokerd.tests.support import WAIT_S
from metaquorum.testing.peer_client import PeerClient
from metaquorum.testing.ports import free_ports
from metaquorum.tests.quorum_cluster import HOST, until
from storage.log.epochs import EpochStart, LeaderEpochs
from storage.maintenance.repair import SegmentRepair
from storage.testing.sim_disk import Refusal

COUNT = 8
"""Batches of one record each, all of them committed."""

DAMAGED = 3


class Peers:
    """The other brokers. Notes the requests to them."""

    def __init__(self) -> None:
        self.reports = DamageReports()
        self.asked: list[str] = []
        self.answers: dict[int, Callable[[range], bytes]] = {}

    def sources(self, topic_id: bytes, partition: int) -> list[int]:
        assert (topic_id, partition) == (TOPIC_ID, 0)
        return [2, 3]

    async def fetch(self, broker_id: int, _topic_id: bytes, _partition: int, wanted: range) -> bytes:
        self.asked.append(f"fetch {broker_id}")
        if broker_id not in self.answers:
            raise RepairCallError(f"broker {broker_id} has nothing")
        return self.answers[broker_id](wanted)


def right(wanted: range) -> bytes:
    """Return what the leader appended."""
    return stamped(wanted.start, 0, len(wanted))


def damaged_batch(wanted: range) -> bytes:
    """Return the same with one flipped bit."""
    data = bytearray(right(wanted))
    data[-1] ^= 1
    return bytes(data)


@pytest.fixture
async def peers() -> Peers:
    return Peers()


@pytest.fixture
async def three(peers: Peers) -> AsyncIterator[BrokerOfThree]:
    """A broker with one partition of three replicas."""
    made = BrokerOfThree(repairs=peers)
    yield made
    await made.manager.stop()


def hurt(three: BrokerOfThree, replica: Replica, offset: int = DAMAGED) -> None:
    """Change a byte of a batch behind the broker's back, and let the broker check it again."""
    path = f"{replica.log.directory}/{0:020d}.log"
    position = len(stamped(0, 0, offset + 1)) - 2
    three.disk.corrupt(path, position, bytes([three.disk.read_file(path)[position] ^ 0x20]))
    segment = replica.log.segments.holding(offset)
    segment.unverified_bytes = segment.size_bytes


def read_fails(replica: Replica, offset: int = DAMAGED, *, code: ErrorCode = ErrorCode.LEADER_NOT_AVAILABLE) -> None:
    with pytest.raises(RefusedError) as caught:
        replica.read(offset, 1, end_offset=COUNT)
    assert caught.value.failure.code is code


async def follower_with_damage(three: BrokerOfThree) -> Replica:
    replica = await followed(three)
    send(three, stamped(0, 0, COUNT), base_offset=0, high_watermark=COUNT)
    replica.log.flush()
    hurt(three, replica)
    read_fails(replica)
    return replica


def is_whole(replica: Replica) -> bool:
    found, offset = b"", 0
    while offset < COUNT:
        read = replica.read(offset, 1 << 20, end_offset=COUNT)
        found, offset = found + bytes(read.data), read.next_offset
    return not replica.log.damaged and found == stamped(0, 0, COUNT)


async def test_follower_gets_back_what_was_damaged(three: BrokerOfThree, peers: Peers) -> None:
    """It comes from the first replica that has it. No leadership moves, and the log continues."""
    replica = await follower_with_damage(three)
    peers.answers = {2: right}
    repairs = DamageRepairs(three.manager.replicas, peers)
    assert await repairs.run_round() == 1
    assert is_whole(replica)
    assert peers.asked == ["fetch 2", "fetch 2"]
    assert await repairs.run_round() == 0
    assert peers.asked == ["fetch 2", "fetch 2"]


async def test_other_replicas_are_tried(three: BrokerOfThree, peers: Peers) -> None:
    """A replica without the range, or with damaged or other batches, does not end the repair."""
    replica = await follower_with_damage(three)
    useless: list[Callable[[range], bytes]] = [
        damaged_batch,
        lambda _: b"",
        lambda wanted: stamped(wanted.start + 1, 0),
        lambda wanted: stamped(wanted.start, 5),
    ]
    for answer in useless:
        if not replica.log.damaged:
            hurt(three, replica)
            read_fails(replica)
        peers.answers = {2: answer, 3: right}
        assert await DamageRepairs(three.manager.replicas, peers).run_round() == 1
        assert is_whole(replica)


async def test_range_that_nobody_has_stays_and_is_looked_at_later(
    three: BrokerOfThree, peers: Peers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Everything else is served. The others are not asked again before the pause is over."""
    replica = await follower_with_damage(three)
    repairs = DamageRepairs(three.manager.replicas, peers)
    assert await repairs.run_round() == 0
    assert peers.asked == ["fetch 2", "fetch 3"]
    peers.answers = {3: right}
    assert await repairs.run_round() == 0
    assert peers.asked == ["fetch 2", "fetch 3"]
    read_fails(replica, code=ErrorCode.DATA_LOSS)
    assert replica.read(DAMAGED + 1, 1, end_offset=COUNT).data == stamped(DAMAGED + 1, 0)
    now_ms = monotonic_ms() + REPAIR_RETRY_MS
    monkeypatch.setattr("brokerd.replica.repairing.monotonic_ms", lambda: now_ms)
    assert await repairs.run_round() == 1
    assert is_whole(replica)


async def test_segment_that_nobody_flushes_is_flushed_for_its_repair(three: BrokerOfThree, peers: Peers) -> None:
    """Under `none` the active segment would never be due."""
    replica = await followed(three)
    send(three, stamped(0, 0, COUNT), base_offset=0, high_watermark=COUNT)
    hurt(three, replica)
    read_fails(replica)
    assert replica.log.flushed_offset == 0
    peers.answers = {2: right}
    assert await DamageRepairs(three.manager.replicas, peers).run_round() == 1
    assert replica.log.flushed_offset == COUNT
    assert is_whole(replica)


async def test_damage_that_is_not_committed_is_told_as_lost(three: BrokerOfThree, peers: Peers) -> None:
    """No other replica is asked, because the range may still be truncated. Once it is committed and due again, it is repaired."""
    replica = await followed(three)
    send(three, stamped(0, 0, COUNT), base_offset=0, high_watermark=DAMAGED)
    replica.log.flush()
    hurt(three, replica)
    read_fails(replica)
    peers.answers = {2: right}
    assert await DamageRepairs(three.manager.replicas, peers).run_round() == 0
    assert not peers.asked
    read_fails(replica, code=ErrorCode.DATA_LOSS)
    follower(three).on_leader_marks(three.said.session, high_watermark=COUNT, log_start_offset=0)
    peers.reports.forget_due(monotonic_ms() + REPAIR_RETRY_MS)
    assert await DamageRepairs(three.manager.replicas, peers).run_round() == 1
    assert is_whole(replica)


async def leader_with_damage(three: BrokerOfThree) -> Replica:
    """Return a leader that was a follower."""
    replica = await follower_with_damage(three)
    three.lead(1)
    assert replica.is_leader
    return replica


async def test_leader_does_not_say_where_an_epoch_ends_that_damage_hides(three: BrokerOfThree, peers: Peers) -> None:
    """The last batch before its own epoch is damaged. A follower with records there waits until it is repaired."""
    replica = await followed(three)
    send(three, stamped(0, 0, COUNT), base_offset=0, high_watermark=COUNT)
    replica.log.flush()
    hurt(three, replica, COUNT - 1)
    read_fails(replica, COUNT - 1)
    three.lead(1)
    parted, behind, again = Route(2, session=1), Route(3, session=1), Route(2, session=2)
    three.subscribe(replica, parted, leader_epoch=1, end=COUNT + 1, last_epoch=0)
    assert parted.heard == [("ended", SubscriptionError.STORAGE_FAILED, 0)]
    three.subscribe(replica, behind, leader_epoch=1, end=COUNT - 1, last_epoch=0)
    assert behind.heard[0][0] == "accepted"
    peers.answers = {2: right}
    assert await DamageRepairs(three.manager.replicas, peers).run_round() == 1
    three.subscribe(replica, again, leader_epoch=1, end=COUNT + 1, last_epoch=0)
    assert again.heard == [("diverged", EpochEnd(0, COUNT))]


async def test_epoch_whose_beginning_was_damaged_begins_there_again(three: BrokerOfThree, peers: Peers) -> None:
    """Its epoch checkpoint was lost too, so its epoch seemed to begin behind the damage."""
    replica = await followed(three)
    three.lead(2)
    follower(three).on_subscription_accepted(three.said.session, high_watermark=0, log_start_offset=0)
    sent = stamped(0, 0, DAMAGED) + stamped(DAMAGED, 1, COUNT - DAMAGED)
    send(three, stamped(0, 0, DAMAGED), base_offset=0)
    send(three, stamped(DAMAGED, 1, COUNT - DAMAGED), base_offset=DAMAGED, leader_epoch=1, high_watermark=COUNT)
    replica.log.flush()
    replica.log._epochs = LeaderEpochs([EpochStart(0, 0), EpochStart(1, DAMAGED + 1)])
    hurt(three, replica)
    read_fails(replica)
    peers.answers = {2: lambda wanted: stamped(wanted.start, 1, len(wanted))}
    assert await DamageRepairs(three.manager.replicas, peers).run_round() == 1
    assert bytes(replica.read(0, 1 << 20, end_offset=COUNT).data) == sent
    end = replica.log.end_offset_for_epoch(0)
    assert end is not None
    assert end.end_offset == DAMAGED


async def test_leader_gives_up_the_leadership_before_it_repairs(three: BrokerOfThree, peers: Peers) -> None:
    """It resigns only when another replica has shown that it has the range."""
    replica = await leader_with_damage(three)
    assert await DamageRepairs(three.manager.replicas, peers).run_round() == 0
    assert three.said.given_up == []
    peers.asked.clear()
    peers.answers = {3: right}
    peers.reports.forget_due(monotonic_ms() + REPAIR_RETRY_MS)
    assert await DamageRepairs(three.manager.replicas, peers).run_round() == 1
    assert peers.asked == ["fetch 2", "fetch 3", "fetch 2", "fetch 3"]
    (given_up,) = three.said.given_up
    assert (given_up.reason, given_up.leader_epoch) == (ResignReason.DAMAGE, 1)
    assert is_whole(replica)


async def test_leader_that_nobody_can_follow_repairs_itself(three: BrokerOfThree, peers: Peers) -> None:
    """The others have the range but may not lead."""
    replica = await leader_with_damage(three)
    peers.answers = {2: right}
    assert await DamageRepairs(three.manager.replicas, peers).run_round() == 1
    assert replica.is_leader
    assert is_whole(replica)


async def test_read_that_meets_damage_brings_the_look_forward(
    three: BrokerOfThree, peers: Peers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The repair does not wait for the next check."""
    monkeypatch.setattr("brokerd.replica.repairing.REPAIR_CHECK_MS", 3_600_000)
    replica = await followed(three)
    send(three, stamped(0, 0, COUNT), base_offset=0, high_watermark=COUNT)
    replica.log.flush()
    peers.answers = {2: right}
    task = asyncio.create_task(DamageRepairs(three.manager.replicas, peers).run())
    hurt(three, replica)
    read_fails(replica)
    await until(lambda: not replica.log.damaged, what="the repair")
    assert is_whole(replica)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_end_in_the_middle_leaves_nothing(
    three: BrokerOfThree, peers: Peers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The step that runs in a thread ends first. What it wrote is removed, and the damage stays known."""
    replica = await follower_with_damage(three)
    peers.answers = {2: right}
    is_in, may_go_on = threading.Event(), threading.Event()
    put = SegmentRepair.put

    def wait_then_put(work: SegmentRepair, batches: bytes) -> None:
        put(work, batches)
        is_in.set()
        assert may_go_on.wait(WAIT_S)

    monkeypatch.setattr(SegmentRepair, "put", wait_then_put)
    task = asyncio.create_task(DamageRepairs(three.manager.replicas, peers).run_round())
    assert await asyncio.to_thread(is_in.wait, WAIT_S)
    task.cancel()
    await asyncio.sleep(0)
    assert not task.done()
    may_go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert replica.log.damaged
    assert not [name for name in three.disk.list_directory(replica.log.directory) if name.endswith(".cleaned")]


async def test_fault_in_one_log_does_not_end_the_others(
    three: BrokerOfThree, peers: Peers, caplog: pytest.LogCaptureFixture
) -> None:
    """It is logged with its traceback."""
    replica = await follower_with_damage(three)

    def fault(_wanted: range) -> bytes:
        raise ZeroDivisionError

    peers.answers = {2: fault}
    assert await DamageRepairs(three.manager.replicas, peers).run_round() == 0
    assert "action=repair problem=fault" in caplog.text
    assert replica.log.damaged
    read_fails(replica, code=ErrorCode.DATA_LOSS)


@asynccontextmanager
async def calls_with(three: BrokerOfThree) -> AsyncIterator[RepairCalls]:
    """Yield the calls of broker 1, with their own connections."""
    async with PeerClient("c", node_id=1) as client:
        yield RepairCalls(
            three.observer,
            client.peers,
            cluster_id="c",
            node_id=1,
            incarnation_id=b"i" * 16,
            broker_epoch=lambda: 1,
        )


async def test_leader_is_asked_first(three: BrokerOfThree) -> None:
    """Then come the in-sync replicas, then the others. This broker is never asked, and nothing is asked about unknown partitions."""
    await followed(three)
    three.lead(3, isr=(1, 3))
    async with calls_with(three) as calls:
        assert calls.sources(TOPIC_ID, 0) == [3, 2]
        assert calls.sources(TOPIC_ID, 9) == []
        assert calls.sources(bytes(16), 0) == []


async def test_brokers_that_do_not_answer_are_told_by_name(three: BrokerOfThree) -> None:
    """An unregistered broker, and an unreachable one."""
    await followed(three)
    async with calls_with(three) as calls:
        with pytest.raises(RepairCallError, match="broker 9 is not registered"):
            await calls.fetch(9, TOPIC_ID, 0, range(1))
        (port,) = free_ports(1)
        three.commit(replace(three.registration(2, broker_epoch=2), host=HOST, replication_port=port))
        with pytest.raises(RepairCallError, match=r"broker 2: .*cannot be reached"):
            await calls.fetch(2, TOPIC_ID, 0, range(1))


@pytest.mark.parametrize("is_committed", [True, False])
async def test_damaged_leader_lets_an_eligible_replica_do_only_without_loss(
    three: BrokerOfThree, peers: Peers, is_committed: bool
) -> None:
    """Records that it alone acknowledged (acks=1) would be lost with the leadership, so only an in-sync replica may lead."""
    replica = await leader_with_damage(three)
    if not is_committed:
        acknowledged: list[object] = []
        replica.append(stamped(COUNT, 1, 1), read_header(stamped(COUNT, 1, 1)))
        replica.want_ack(replica.log_end_offset, AckLevel.LEADER, lambda *heard: acknowledged.append(heard))
        assert acknowledged
    peers.answers = {2: right}
    assert await DamageRepairs(three.manager.replicas, peers).run_round() == 1
    assert [given_up.allow_eligible for given_up in three.said.given_up] == [is_committed]


async def test_disk_that_does_not_answer_ends_the_repair(three: BrokerOfThree, peers: Peers) -> None:
    """There is no space, or a file cannot be read. The damage stays, and is checked later."""
    replica = await follower_with_damage(three)
    peers.answers = {2: right}
    for operation, path_part, refusal in (
        ("create_file", ".cleaned", Refusal.FULL),
        ("pread", ".log", Refusal.IO_ERROR),
        ("rename", ".cleaned", Refusal.FULL),
    ):
        three.disk.refuse(operation, path_part, refusal)
        assert await DamageRepairs(three.manager.replicas, peers).run_round() == 0, operation
        peers.reports.forget_due(monotonic_ms() + REPAIR_RETRY_MS)
        assert not [name for name in three.disk.list_directory(replica.log.directory) if name.endswith(".cleaned")]
    assert await DamageRepairs(three.manager.replicas, peers).run_round() == 1
    assert is_whole(replica)
