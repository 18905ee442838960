# SPDX-License-Identifier: Apache-2.0
"""How a broker leaves: its requests to the controller, the cost of a stop for each partition, and the log lines."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest
from lograft import aio

import metaquorum.controller.controller as controller_module
from brokerd.limits import REPLICA_SLICE
from brokerd.replica.manager import ReplicaManager
from brokerd.replica.replica import Replica
from brokerd.replica.role_log import MAX_ROLE_LINES
from brokerd.tests.replica.lone_broker import ROOT, TOPIC_ID, LoneBroker
from brokerd.tests.support import WAIT_S, connected, running_broker, second_broker
from metaquorum.controller import brokers
from metaquorum.controller.commands import Decision, Heartbeat
from metaquorum.metadata.records import BrokerChangeRecord, LeaderChange, PartitionChangeRecord
from storage.testing.sim_disk import SimDisk

ROLES = "brokerd.replica.role_log"


@pytest.fixture
def disk() -> SimDisk:
    """A disk with an empty data directory."""
    made = SimDisk()
    for path in ("/data", ROOT):
        made.make_directory(path)
    return made


class Heartbeats:
    """The heartbeats of brokers, and the changes of brokers that they caused."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked_shutdown: set[int] = set()
        self.changes: list[BrokerChangeRecord] = []
        heartbeat = brokers.heartbeat

        def heartbeat_and_note(*arguments: Any) -> Decision:
            decision = heartbeat(*arguments)
            command = arguments[2]
            assert isinstance(command, Heartbeat)
            if command.want_shutdown:
                self.asked_shutdown.add(command.broker_id)
            self.changes += [each for each in decision.records if isinstance(each, BrokerChangeRecord)]
            return decision

        monkeypatch.setattr(brokers, "heartbeat", heartbeat_and_note)
        assert not hasattr(controller_module, "heartbeat"), "the controller would call the old one"

    def of(self, broker_id: int) -> list[BrokerChangeRecord]:
        """Return the changes of a broker."""
        return [each for each in self.changes if each.broker_id == broker_id]


async def test_a_broker_with_nobody_to_hand_over_to_is_fenced_and_waits_for_none_of_its_partitions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its partitions lose their leader after it, in the controller that stays. Later it leads them again, with everything."""
    heartbeats = Heartbeats(monkeypatch)
    async with running_broker(tmp_path / "1") as first, aio.Admin(str(first.address)) as admin:
        async with second_broker(first, tmp_path / "2") as second, connected(second) as client:
            await client.create_topic("t", 6)
            described = await admin.describe_topic("t")
            (own, *_) = [each.partition for each in described.partitions if each.leader_id == 2]
            await client.append("t", [b"v"], partition=own)
        assert 2 not in heartbeats.asked_shutdown
        unfenced, fenced = heartbeats.of(2)
        assert (unfenced.fenced, fenced.fenced, fenced.in_controlled_shutdown) == (False, True, None)
        while any(each.leader_id == 2 for each in (await admin.describe_topic("t")).partitions):
            assert await first.observer.wait_for(first.observer.metadata_offset + 1, timeout_ms=int(WAIT_S * 1000))
        async with second_broker(first, tmp_path / "2") as second, connected(second) as client:
            assert [each.value for each in (await client.read("t", own)).records] == [b"v"]


async def test_a_broker_that_leads_for_others_waits_until_they_lead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One partition with a replica elsewhere is enough. When the broker has gone, the others lead."""
    heartbeats = Heartbeats(monkeypatch)
    async with running_broker(tmp_path / "1") as first, aio.Admin(str(first.address)) as admin:
        async with second_broker(first, tmp_path / "2") as second:
            await admin.create_topic("t", partition_count=2, replication_factor=2)
            await admin.create_topic("alone", partition_count=4)
            assert await second.observer.wait_for(first.observer.metadata_offset, timeout_ms=int(WAIT_S * 1000))
            assert second.replica_manager is not None
            await second.replica_manager.wait_idle()
        assert 2 in heartbeats.asked_shutdown
        assert any(each.in_controlled_shutdown for each in heartbeats.of(2))
        assert {each.leader_id for each in (await admin.describe_topic("t")).partitions} == {1}


async def test_a_cluster_of_one_changes_no_partition_before_it_says_that_it_may_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It needs one change of the broker for any number of partitions. Its controller does no more work while logs are closed."""
    heartbeats = Heartbeats(monkeypatch)
    leaders: list[int | None] = []
    stop = ReplicaManager.stop

    async def stop_and_note(self: ReplicaManager) -> bool:
        leaders.append(server.observer.leader.leader_id)
        return await stop(self)

    monkeypatch.setattr(ReplicaManager, "stop", stop_and_note)
    async with running_broker(tmp_path) as server, connected(server) as client:
        await client.create_topic("t", 20)
    assert leaders == [None]
    assert not heartbeats.asked_shutdown
    assert [each.fenced for each in heartbeats.of(1)] == [False, True]


async def test_a_stop_gives_others_their_turn_and_follows_no_more_metadata(
    disk: SimDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between slices of closed logs, a voter in the same process works. What it commits costs the replicas nothing."""
    lone = LoneBroker(disk)
    lone.register()
    await lone.manager.start()
    lone.create_topic(partition_count=3 * REPLICA_SLICE)
    await lone.manager.wait_idle()
    replicas = list(lone.manager.replicas())
    taken: list[object] = []
    monkeypatch.setattr(Replica, "take_partition", lambda self, event: taken.append(event))
    closed_counts: set[int] = set()

    async def look() -> None:
        while True:
            closed_counts.add(sum(not each.is_writable for each in replicas))
            lone.commit(
                PartitionChangeRecord(topic_id=TOPIC_ID, partition=0, leader=LeaderChange(leader_id=None)),
            )
            await asyncio.sleep(0)

    looking = asyncio.create_task(look())
    assert await lone.manager.stop()
    looking.cancel()
    assert {REPLICA_SLICE, 2 * REPLICA_SLICE} <= closed_counts
    assert taken == []


async def test_many_changes_of_roles_are_counted_in_one_line(disk: SimDisk, caplog: pytest.LogCaptureFixture) -> None:
    """The first changes have their own lines. A stop reports the number of the others at once."""
    caplog.set_level(logging.INFO, logger=ROLES)
    lone = LoneBroker(disk)
    lone.register()
    await lone.manager.start()
    lone.create_topic(partition_count=3 * MAX_ROLE_LINES)
    await lone.manager.wait_idle()
    lone.commit(
        *(
            PartitionChangeRecord(topic_id=TOPIC_ID, partition=partition, leader=LeaderChange(leader_id=None))
            for partition in range(MAX_ROLE_LINES)
        )
    )
    await lone.manager.stop()
    lines = [record.getMessage() for record in caplog.records if record.name == ROLES]
    assert len(lines) == MAX_ROLE_LINES + 1
    assert lines[0] == "role: partition=t-0 leader_id=1 leader_epoch=0 is_leader=True log_end_offset=0"
    assert lines[-1] == (
        f"roles: {3 * MAX_ROLE_LINES} more partitions changed: led={2 * MAX_ROLE_LINES} followed=0 leaderless={MAX_ROLE_LINES}"
    )


async def test_few_changes_of_roles_have_a_line_each(disk: SimDisk, caplog: pytest.LogCaptureFixture) -> None:
    """Nothing is counted then."""
    caplog.set_level(logging.INFO, logger=ROLES)
    lone = LoneBroker(disk)
    lone.register()
    await lone.manager.start()
    lone.create_topic(partition_count=2)
    await lone.manager.wait_idle()
    await lone.manager.stop()
    assert [record.getMessage().split()[1] for record in caplog.records if record.name == ROLES] == [
        "partition=t-0",
        "partition=t-1",
    ]
