# SPDX-License-Identifier: Apache-2.0
"""The controller's shell: its own long work, and what callers hear while it stops."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from lograft.wire.codes import ErrorCode

from metaquorum.controller import elections
from metaquorum.controller.commands import Heartbeat
from metaquorum.runtime.listener import QuorumLeader
from metaquorum.tests.controller_world import create_topic
from metaquorum.tests.test_controller_host import EPOCH, Shell, failure


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    one = Shell(tmp_path / "image")
    yield one
    one.store.close()


async def test_slice_of_a_sweep_waits_for_the_commit_of_the_one_before(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A long work never has more than one slice uncommitted: followers are not kept waiting, and what is done stays done."""
    monkeypatch.setattr(elections, "MAX_SWEEP_RECORDS", 1)
    await shell.activate()
    epoch = await shell.broker(1)
    await shell.run(create_topic("t", partition_count=5))
    away = Heartbeat(broker_id=1, broker_epoch=epoch, metadata_offset=1 << 40, want_fence=True)
    fencing = asyncio.ensure_future(shell.host.submit(away, timeout_ms=5_000))
    slices = 0
    while True:
        for _ in range(50):
            await asyncio.sleep(0)
        if not shell.log.pending:
            break
        slices += 1
        # The fencing itself is appended with the first slice.
        assert len(shell.log.pending) <= 1 + (slices == 1)
        shell.commit()
    await fencing
    topic = shell.host.image.topic_by_name("t")
    assert topic is not None
    assert [partition.leader_id for partition in topic.partitions] == [None] * 5
    assert slices >= 5


async def test_stopping_node_names_the_leader_that_it_handed_over_to(shell: Shell) -> None:
    """Callers go on there at once; before the next leader is known they are told to try again."""
    await shell.activate()
    shell.host.stop()
    assert (await failure(shell, create_topic("a"))).code is ErrorCode.SHUTTING_DOWN
    shell.host.on_deactivate()
    shell.log.known = QuorumLeader(leader_id=None, quorum_epoch=EPOCH, address=None)
    assert (await failure(shell, create_topic("a"))).code is ErrorCode.SHUTTING_DOWN
    shell.log.known = QuorumLeader(leader_id=2, quorum_epoch=EPOCH + 1, address="127.0.0.1:9642")
    error = await failure(shell, create_topic("a"))
    assert error.code is ErrorCode.NOT_CONTROLLER
    assert error.leader == shell.log.known
