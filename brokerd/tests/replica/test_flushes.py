# SPDX-License-Identifier: Apache-2.0
"""Repeated flushes of a log with three replicas: real core, log and flush thread over a simulated disk."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from brokerd.replica import replica as replica_module
from brokerd.replica.replica import Replica
from brokerd.tests.replica.broker_of_three import BrokerOfThree, append
from metaquorum.tests.quorum_cluster import until
from storage.testing.sim_disk import Refusal

RETRIES_S = 0.1
"""Seconds in which a flush is tried again many times."""


@pytest.fixture
async def three(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[BrokerOfThree]:
    """A broker with one partition, whose flushes are tried again after 5 ms."""
    monkeypatch.setattr(replica_module, "FLUSH_RETRY_MS", 5)
    made = BrokerOfThree()
    yield made
    await made.manager.stop()


async def unflushed(three: BrokerOfThree) -> Replica:
    """Return a leader whose first flush is under way and will find no space."""
    replica = await three.start(leader_id=1)
    three.disk.refuse("append", "leader-epoch-checkpoint", Refusal.FULL)
    append(replica)
    return replica


def calls_of_log(three: BrokerOfThree) -> int:
    """Return the number of disk calls for the files of the partition. The manager has files of its own."""
    return sum("-0/" in call.path for call in three.disk.calls)


async def test_flush_that_found_no_space_is_tried_again(three: BrokerOfThree) -> None:
    """The flush is repeated without a request."""
    replica = await unflushed(three)
    await until(lambda: replica.log.flushed_offset == 1, what="the flush")


async def test_flush_is_not_tried_again_while_somebody_else_works_on_the_log(three: BrokerOfThree) -> None:
    """A truncation may run in a thread. The flush waits until the log is unlocked, and runs then."""
    replica = await unflushed(three)
    async with replica.locked() as log:
        calls = calls_of_log(three)
        await asyncio.sleep(RETRIES_S)
        assert log.flushed_offset == 0
        assert calls_of_log(three) == calls
    await until(lambda: replica.log.flushed_offset == 1, what="the flush")


async def test_flush_is_not_tried_again_on_a_closed_replica(three: BrokerOfThree) -> None:
    """The log flushes itself when it is closed."""
    replica = await unflushed(three)
    assert await replica.close("test")
    calls = calls_of_log(three)
    await asyncio.sleep(RETRIES_S)
    assert calls_of_log(three) == calls


async def test_held_flushes_become_one_at_the_release(three: BrokerOfThree) -> None:
    """Nothing is flushed during a hold, in a hold of another neither; then one flush covers everything."""
    replica = await three.start(leader_id=1)
    replica.hold_flushes()
    replica.hold_flushes()
    for _ in range(3):
        append(replica)
    replica.release_flushes()
    await asyncio.sleep(RETRIES_S)
    assert (replica.log.flushed_offset, replica.log_end_offset) == (0, 3)
    replica.release_flushes()
    await until(lambda: replica.log.flushed_offset == 3, what="the flush")


async def test_release_flushes_nothing_that_nobody_asked_for(three: BrokerOfThree) -> None:
    """A topic without flushes stays without them."""
    replica = await three.start(leader_id=1, policy="none")
    replica.hold_flushes()
    append(replica)
    replica.release_flushes()
    await asyncio.sleep(RETRIES_S)
    assert replica.log.flushed_offset == 0


async def test_release_waits_while_somebody_else_works_on_the_log(three: BrokerOfThree) -> None:
    """The flush waits until the log is unlocked, as after a flush that found no space."""
    replica = await three.start(leader_id=1)
    replica.hold_flushes()
    append(replica)
    async with replica.locked() as log:
        replica.release_flushes()
        await asyncio.sleep(RETRIES_S)
        assert log.flushed_offset == 0
    await until(lambda: replica.log.flushed_offset == 1, what="the flush")
