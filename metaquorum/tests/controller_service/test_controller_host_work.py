# SPDX-License-Identifier: Apache-2.0
"""The controller's shell: its own long work, and the answers to callers while it stops."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from lograft.wire.codes import ErrorCode

from metaquorum.controller.commands import Heartbeat
from metaquorum.controller.settings import ControllerSettings
from metaquorum.controller_service.long_work import MAX_SLICES_IN_FLIGHT
from metaquorum.metadata.listener import QuorumLeader
from metaquorum.tests.controller_shell import EPOCH, Shell, failure
from metaquorum.tests.controller_world import create_topic


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    """A host whose sweeps make one record in each slice."""
    one = Shell(tmp_path / "image", settings=ControllerSettings(max_sweep_records=1))
    yield one
    one.store.close()


async def test_two_slices_of_a_sweep_wait_for_their_commit_and_the_next_one_for_theirs(shell: Shell) -> None:
    """The host decides one slice while followers write the one before, and no more, so that callers wait for one slice at most."""
    await shell.activate()
    epoch = await shell.broker(1)
    await shell.run(create_topic("t", partition_count=5))
    away = Heartbeat(broker_id=1, broker_epoch=epoch, metadata_offset=1 << 40, want_fence=True)
    fencing = asyncio.ensure_future(shell.host.submit(away, timeout_ms=5_000))
    in_flight: list[int] = []
    while True:
        for _ in range(50):
            await asyncio.sleep(0)
        if not shell.log.pending:
            break
        in_flight.append(len(shell.log.pending))
        # The oldest commits alone, as it does where the next one was appended after its round had begun.
        shell.loader.on_commit(shell.log.pending.pop(0))
    await fencing
    topic = shell.host.image.topic_by_name("t")
    assert topic is not None
    assert [partition.leader_id for partition in topic.partitions] == [None] * 5
    # The fencing itself comes first, with as many slices behind it as may be there.
    assert in_flight == [1 + MAX_SLICES_IN_FLIGHT, *[MAX_SLICES_IN_FLIGHT] * 4, 1]


async def test_slices_in_flight_end_with_the_leadership(shell: Shell) -> None:
    """The next leadership of the same node begins its own sweep, however many earlier slices never committed."""
    await shell.activate()
    epoch = await shell.broker(1)
    await shell.run(create_topic("t", partition_count=5))
    away = Heartbeat(broker_id=1, broker_epoch=epoch, metadata_offset=1 << 40, want_fence=True)
    fencing = asyncio.ensure_future(shell.host.submit(away, timeout_ms=5_000))
    for _ in range(50):
        await asyncio.sleep(0)
    fenced, first, second = shell.log.pending
    shell.loader.on_commit(fenced)
    shell.loader.on_commit(first)
    await fencing
    shell.loader.on_deactivate()
    shell.log.pending.clear()
    shell.log.end_offset = second.base_offset
    await shell.activate()
    topic = shell.host.image.topic_by_name("t")
    assert topic is not None
    assert [(each.leader_id, each.partition_epoch) for each in topic.partitions] == [(None, 1)] * 5


async def test_stopping_node_names_the_leader_that_it_handed_over_to(shell: Shell) -> None:
    """Callers turn to the new leader at once; before it is known they are asked to retry."""
    await shell.activate()
    shell.host.stop()
    assert (await failure(shell, create_topic("a"))).code is ErrorCode.SHUTTING_DOWN
    shell.loader.on_deactivate()
    shell.log.known = QuorumLeader(leader_id=None, quorum_epoch=EPOCH, address=None)
    assert (await failure(shell, create_topic("a"))).code is ErrorCode.SHUTTING_DOWN
    shell.log.known = QuorumLeader(leader_id=2, quorum_epoch=EPOCH + 1, address="127.0.0.1:9642")
    error = await failure(shell, create_topic("a"))
    assert error.code is ErrorCode.NOT_CONTROLLER
    assert error.leader == shell.log.known
