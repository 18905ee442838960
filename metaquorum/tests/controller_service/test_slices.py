# SPDX-License-Identifier: Apache-2.0
"""Long work of the controller runs in bounded batches, with other commands in between."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from metaquorum.controller.commands import Command, FenceBroker, Heartbeat
from metaquorum.controller.settings import ControllerSettings
from metaquorum.metadata import record_codec
from metaquorum.metadata.records import BrokerChangeRecord, PartitionChangeRecord
from metaquorum.tests.controller_shell import Shell
from metaquorum.tests.controller_world import SETTINGS, World, create_topic

MAX_BATCH_BYTES = 1024 * 1024


def batches(world: World, command: Command) -> list[list[bytes]]:
    """Append a command and everything that follows from it; return the batches."""
    found: list[list[bytes]] = []
    decision = world.append(command)
    while True:
        found.append([record_codec.encode(record) for record in decision.records])
        if decision.then is None:
            world.commit()
            return found
        decision = world.append(decision.then)


def test_fencing_a_broker_that_leads_very_many_partitions_takes_bounded_batches() -> None:
    """Of 12,000 partitions that a broker leads, every batch moves 500, in topics small and large."""
    world = World()
    for broker_id in (1, 2, 3):
        world.start_broker(broker_id)
    for number in range(10):
        world.write_topic(f"small-{number}", (1, 2, 3), partition_count=200)
    world.write_topic("large", (1, 2, 3), partition_count=10_000)
    made = batches(world, FenceBroker(broker_id=1, broker_epoch=world.epoch(1)))
    assert [len(batch) for batch in made] == [1, *[SETTINGS.max_sweep_records] * 24]
    assert all(sum(map(len, batch)) < MAX_BATCH_BYTES for batch in made)
    assert world.image.counts.leaders == {2: 12_000}
    assert batches(world, FenceBroker(broker_id=1, broker_epoch=world.epoch(1))) == [[]]


def test_looking_at_very_many_partitions_is_bounded_too() -> None:
    """If no partition has to change, a slice ends after 10,000 partitions."""
    world = World()
    for broker_id in (1, 2):
        world.start_broker(broker_id)
    world.write_topic("t", (1,), partition_count=25_000)
    made = batches(world, FenceBroker(broker_id=2, broker_epoch=world.epoch(2)))
    assert len(made) == 1 + 25_000 // SETTINGS.max_sweep_partitions + 1
    assert made[1:] == [[], [], []]


def test_slice_of_the_largest_records_stays_below_a_mebibyte() -> None:
    """Even with 100 replicas under the longest ids, all lists changed."""
    node_ids = tuple(range(2**31 - 100, 2**31))
    record = PartitionChangeRecord(
        topic_id=b"\xff" * 16, partition=2**31 - 1, isr=node_ids, replicas=node_ids, elr=node_ids, last_known_elr=()
    )
    assert SETTINGS.max_sweep_records * (len(record_codec.encode(record)) + 20) < MAX_BATCH_BYTES


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    """A host whose log commits when the test calls it, and whose sweeps have small slices."""
    one = Shell(tmp_path / "image", settings=ControllerSettings(max_sweep_records=3))
    yield one
    one.store.close()


async def test_heartbeat_is_answered_between_the_slices(shell: Shell) -> None:
    """A heartbeat that comes after the first slice does not wait for the last one."""
    await shell.activate()
    first = await shell.broker(1)
    await shell.run(create_topic("t", partition_count=30))
    second = await shell.broker(2)
    gone = asyncio.ensure_future(shell.host.submit(FenceBroker(broker_id=1, broker_epoch=first), timeout_ms=5_000))
    await asyncio.sleep(0)
    beat = Heartbeat(broker_id=2, broker_epoch=second, metadata_offset=1 << 40, want_fence=True)
    late = asyncio.ensure_future(shell.host.submit(beat, timeout_ms=5_000))
    appended: list[object] = []
    for _ in range(60):
        await asyncio.sleep(0)
        appended += [record_codec.decode(data) for batch in shell.log.pending for data in batch.records]
        shell.commit()
    await asyncio.gather(gone, late)
    moves = [isinstance(record, PartitionChangeRecord) for record in appended]
    fencings = [index for index, record in enumerate(appended) if isinstance(record, BrokerChangeRecord)]
    assert moves.count(True) >= 30
    assert len(fencings) == 2
    assert fencings[1] < len(appended) - 20, "the heartbeat waited for the sweep"
