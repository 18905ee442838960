# SPDX-License-Identifier: Apache-2.0
"""The controller's shell starts periodic work itself, prefers sweeps, and never has two works of one kind under way."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from metaquorum.controller.commands import (
    AlterPartition,
    Command,
    Decision,
    ElectPreferredLeaders,
    Heartbeat,
    IsrProposal,
    Reassignment,
    ReassignPartitions,
)
from metaquorum.controller.controller import Controller
from metaquorum.controller.settings import ControllerSettings
from metaquorum.controller_service.controller_host import ControllerHost
from metaquorum.controller_service.long_work import MAX_SLICES_IN_FLIGHT
from metaquorum.metadata import record_codec
from metaquorum.metadata.records import BrokerChangeRecord, LeaderChange, MetadataRecord, PartitionChangeRecord
from metaquorum.tests.controller_shell import Shell
from metaquorum.tests.controller_world import create_topic, topic_id
from metaquorum.tests.quorum_cluster import until

INTERVAL_MS = 300_000
PARTITIONS = 6


@dataclass
class Clock:
    """The clock that the host reads; its timers use the real one."""

    now_ms: int = 1_000_000


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """A clock that stands until the test moves it."""
    made = Clock()
    monkeypatch.setattr(ControllerHost, "_now_ms", staticmethod(lambda: made.now_ms))
    return made


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    """A host that checks every few milliseconds whether work is due, and works in small slices."""
    settings = ControllerSettings(session_timeout_ms=20, max_walk_records=1, max_sweep_records=2)
    one = Shell(tmp_path / "image", settings=settings)
    yield one
    one.host.on_deactivate()
    one.store.close()


async def do(shell: Shell, command: Command) -> None:
    """Submit a command and commit it with all that follows."""
    task = asyncio.ensure_future(shell.host.submit(command, timeout_ms=5_000))
    await shell.settle()
    await task


def leaders(shell: Shell) -> list[int | None]:
    """Return the committed leaders of the topic."""
    topic = shell.host.image.topic_by_name("t")
    assert topic is not None
    return [partition.leader_id for partition in topic.partitions]


async def prefer_second(shell: Shell) -> tuple[int, int]:
    """Brokers 1 and 2 and a topic that 1 leads, in sync on both, with 2 as the first replica; return their epochs."""
    await shell.activate()
    first, second = await shell.broker(1), await shell.broker(2)
    await do(shell, Heartbeat(broker_id=2, broker_epoch=second, metadata_offset=1 << 40, want_fence=True))
    await do(shell, create_topic("t", partition_count=PARTITIONS))
    await do(shell, Heartbeat(broker_id=2, broker_epoch=second, metadata_offset=1 << 40))
    moves = (Reassignment(topic="t", partition=each, replicas=(2, 1)) for each in range(PARTITIONS))
    await do(shell, ReassignPartitions(reassignments=tuple(moves)))
    proposals = (
        IsrProposal(
            topic_id=topic_id("t"), partition=each, leader_epoch=0, partition_epoch=1, isr=((1, None), (2, None))
        )
        for each in range(PARTITIONS)
    )
    await do(shell, AlterPartition(broker_id=1, broker_epoch=first, proposals=tuple(proposals)))
    assert leaders(shell) == [1] * PARTITIONS
    return first, second


def appended(shell: Shell) -> list[MetadataRecord]:
    """Return the records that are appended and not committed."""
    return [record_codec.decode(data) for batch in shell.log.pending for data in batch.records]


async def test_preferred_leaders_come_back_by_themselves_after_the_interval(shell: Shell, clock: Clock) -> None:
    """No request is needed: the tick finds that the interval is over. No broker is fenced for the time that has passed."""
    await prefer_second(shell)
    clock.now_ms += INTERVAL_MS

    def are_back() -> bool:
        shell.commit()
        return leaders(shell) == [2] * PARTITIONS

    await until(are_back, what="the first replicas to lead")
    assert not any(broker.fenced for broker in shell.host.image.brokers.values())


async def test_sweep_goes_before_periodic_work(shell: Shell, clock: Clock) -> None:
    """A broker is lost while leaders return one by one: its partitions get leaders before the next one returns."""
    first, _ = await prefer_second(shell)
    clock.now_ms += INTERVAL_MS
    await until(lambda: len(shell.log.pending) == MAX_SLICES_IN_FLIGHT, what="the first slices")
    away = Heartbeat(broker_id=1, broker_epoch=first, metadata_offset=1 << 40, want_fence=True)
    fencing = asyncio.ensure_future(shell.host.submit(away, timeout_ms=5_000))
    await asyncio.sleep(0)
    records: list[MetadataRecord] = []
    for _ in range(60):
        records += appended(shell)
        shell.commit()
        await asyncio.sleep(0)
    await fencing
    fenced = next(index for index, record in enumerate(records) if isinstance(record, BrokerChangeRecord))
    after = [record for record in records[fenced + 1 :] if isinstance(record, PartitionChangeRecord)]
    # The sweep gives all other partitions their leader; none is left for the periodic work.
    swept = [record for record in after if record.isr == (2,)]
    assert fenced == MAX_SLICES_IN_FLIGHT
    assert len(swept) == len(after) == PARTITIONS
    assert [record.leader for record in swept].count(LeaderChange(leader_id=2)) == PARTITIONS - fenced
    assert leaders(shell) == [2] * PARTITIONS


async def test_work_that_is_under_way_is_not_begun_again(
    shell: Shell, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many intervals pass without a commit, there is one walk, and each partition moves once."""
    decide, due = Controller.decide, Controller.due
    begun: list[Command] = []
    was_due: list[Command] = []

    def watched_decide(self: Controller, command: Command, now_ms: int) -> Decision:
        begun.extend(each for each in (command,) if each == ElectPreferredLeaders())
        return decide(self, command, now_ms)

    def watched_due(self: Controller, now_ms: int) -> tuple[Command, ...]:
        was_due.extend(works := due(self, now_ms))
        return works

    monkeypatch.setattr(Controller, "decide", watched_decide)
    monkeypatch.setattr(Controller, "due", watched_due)
    await prefer_second(shell)

    def intervals_are_over() -> bool:
        if len(was_due) > 3:
            return True
        # The clock stops at the last check, so that no work is due after the end of the walk.
        clock.now_ms += INTERVAL_MS
        return False

    await until(intervals_are_over, what="several intervals")
    assert len(shell.log.pending) == MAX_SLICES_IN_FLIGHT
    records: list[MetadataRecord] = []
    for _ in range(60):
        records += appended(shell)
        shell.commit()
        await asyncio.sleep(0)
    moved = [record.partition for record in records if isinstance(record, PartitionChangeRecord)]
    assert moved == list(range(PARTITIONS))
    assert begun == [ElectPreferredLeaders()]
