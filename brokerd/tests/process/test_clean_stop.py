# SPDX-License-Identifier: Apache-2.0
"""How a broker proves its last clean shutdown: the mark on disk, the registration, and the controller's reaction."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from lograft.v1 import metadata_pb2

import brokerd.process.server
from brokerd.process.server import BrokerServer
from brokerd.process.settings import BrokerSettings
from brokerd.tests.replica.lone_broker import ROOT, TOPIC_ID, LoneBroker, append
from brokerd.tests.support import connected, running_broker
from metaquorum.controller import brokers
from metaquorum.controller.commands import Decision
from metaquorum.metadata.records import BrokerRecord
from metaquorum.process.settings import Address
from storage.errors import DiskFullError
from storage.log.partition_log import PartitionLog
from storage.testing.sim_disk import Refusal, SimDisk
from storage.types import LogSettings

MARK = "clean-stop"


class Registrations:
    """What brokers reported about their last stop, and whether the controller counted it as unclean."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.said: list[int | None] = []
        self.unclean: list[bool] = []
        register = brokers.register

        def register_and_note(*arguments: Any) -> Decision:
            decision = register(*arguments)
            if decision.records and isinstance(decision.records[0], BrokerRecord):
                self.said.append(arguments[3].clean_stop_epoch)
                self.unclean.append(decision.records[0].unclean)
            return decision

        monkeypatch.setattr(brokers, "register", register_and_note)


@pytest.fixture
def registrations(monkeypatch: pytest.MonkeyPatch) -> Registrations:
    """Collect all registrations during a test."""
    return Registrations(monkeypatch)


async def life(directory: Path, value: bytes) -> int:
    """Run a broker that appends a value and shuts down cleanly. Return the epoch in its mark."""
    async with running_broker(directory) as server, connected(server) as client:
        if not (await client.metadata.GetCluster(metadata_pb2.GetClusterRequest())).topics:
            await client.create_topic("t", flush_policy="none")
        await client.append("t", [value])
    words = (directory / MARK).read_text().split()
    return int(words[words.index("broker_epoch") + 1])


async def test_orderly_stop_is_proven_by_the_epoch_of_the_registration(
    tmp_path: Path, registrations: Registrations
) -> None:
    """Each run leaves the epoch of its own registration. The next run reports it, and it counts as clean."""
    first = await life(tmp_path, b"1")
    second = await life(tmp_path, b"2")
    third = await life(tmp_path, b"3")
    assert first < second < third
    assert registrations.said == [None, first, second]
    assert registrations.unclean == [False, False, False]


@pytest.mark.parametrize("left", ["old mark", "no mark", "mark without an epoch"])
async def test_stop_without_its_mark_is_unclean_and_with_one_replica_the_broker_leads_again(
    tmp_path: Path, registrations: Registrations, left: str
) -> None:
    """A killed process leaves the mark of an earlier run. No other broker has the records, so they are served."""
    first = await life(tmp_path, b"1")
    old_mark = (tmp_path / MARK).read_bytes()
    await life(tmp_path, b"2")
    if left == "old mark":
        (tmp_path / MARK).write_bytes(old_mark)
    elif left == "no mark":
        (tmp_path / MARK).unlink()
    else:
        (tmp_path / MARK).write_bytes(b"0\n0\n")
    async with running_broker(tmp_path) as server, connected(server) as client:
        assert [record.value for record in (await client.read("t")).records] == [b"1", b"2"]
        await client.append("t", [b"3"])
    assert registrations.said[-1] == (first if left == "old mark" else None)
    assert registrations.unclean == [False, False, True]
    await life(tmp_path, b"4")
    assert registrations.unclean[-1] is False


async def test_broker_that_never_registered_leaves_the_old_mark(tmp_path: Path) -> None:
    """It opened no log, so the proof of the run before it still holds."""
    settings = BrokerSettings(
        data_directory=tmp_path / "2",
        node_id=2,
        cluster_id="c",
        listen=Address(host="127.0.0.1", port=0),
        quorum_addresses=("127.0.0.1:1",),
    )
    server = BrokerServer(settings)
    await server.start()
    (tmp_path / "2" / MARK).write_bytes(b"old")
    await server.stop()
    assert (tmp_path / "2" / MARK).read_bytes() == b"old"


async def test_mark_that_cannot_be_written_does_not_hinder_the_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, registrations: Registrations, caplog: pytest.LogCaptureFixture
) -> None:
    """The stop ends, logs the failure, and counts as unclean."""

    def refuse(*_: object) -> None:
        raise DiskFullError("/d/clean-stop", "no space")

    with monkeypatch.context() as patched:
        patched.setattr(brokerd.process.server, "mark_clean_stop", refuse)
        async with running_broker(tmp_path):
            pass
    assert not (tmp_path / MARK).exists()
    assert "not marked as clean" in caplog.text
    async with running_broker(tmp_path):
        pass
    assert registrations.unclean == [False, True]


@pytest.fixture
async def lone() -> AsyncIterator[LoneBroker]:
    """A broker over an empty disk, with two partitions."""
    disk = SimDisk()
    disk.make_directory("/data")
    disk.make_directory(ROOT)
    made = LoneBroker(disk)
    made.register()
    await made.manager.start()
    made.create_topic(policy="none", partition_count=2)
    yield made
    await made.manager.stop()


async def test_host_tells_that_all_logs_were_closed_clean(lone: LoneBroker) -> None:
    """This includes records that only the close flushes."""
    for partition in range(2):
        append(await lone.replica(partition), [b"x"])
    assert await lone.manager.stop()


async def test_log_that_could_not_be_closed_clean_makes_the_stop_unclean(lone: LoneBroker) -> None:
    """One failed log is enough. The others are still closed clean."""
    for partition in range(2):
        append(await lone.replica(partition), [b"x"])
    lone.disk.refuse("append", "leader-epoch-checkpoint", Refusal.FULL)
    assert not await lone.manager.stop()


async def test_failed_log_directory_makes_the_stop_unclean(lone: LoneBroker) -> None:
    """Records that were acknowledged before the disk failed may be missing."""
    replica = await lone.replica(0)
    lone.disk.refuse("append", ".log", Refusal.IO_ERROR)
    with pytest.raises(Exception, match="failed"):
        append(replica, [b"x"])
    assert not await lone.manager.stop()


async def test_log_that_is_still_being_opened_is_closed_clean_too() -> None:
    """A stop right after the creation of a topic waits for its logs, and their marks exist."""
    disk = SimDisk()
    disk.make_directory("/data")
    disk.make_directory(ROOT)
    lone = LoneBroker(disk)
    lone.register()
    await lone.manager.start()
    lone.create_topic(partition_count=2)
    assert await lone.manager.stop()
    for partition in range(2):
        directory = f"{ROOT}/{TOPIC_ID.hex()}-{partition}"
        if disk.exists(directory):
            assert PartitionLog.open(disk, directory, settings=LogSettings(), now_ms=0).report.clean
