# SPDX-License-Identifier: Apache-2.0
"""How a core is run: the order of effects, events that wait, the timer."""

from __future__ import annotations

import asyncio

from brokerd.partition.effects import AppendBatches, Effect, FlushLog, SendAck, Subscribe, TruncateLog
from brokerd.partition.events import (
    BatchAppended,
    BrokerState,
    Event,
    FlushPolicyChanged,
    LogFlushed,
    PartitionChanged,
    StorageFailed,
)
from brokerd.partition.follower_events import BatchesReceived, LogCut, SubscriptionAccepted, SubscriptionDiverged
from brokerd.partition.reconciliation import EpochEnd
from brokerd.partition.replica import PartitionReplica
from brokerd.replica.core_runner import CoreRunner
from brokerd.tests.support import WAIT_S
from metaquorum.metadata.state import PartitionImage
from metaquorum.metadata.topic_configs import FlushPolicy


class Shell:
    """Carries effects out by writing them down; an append grows the log at once."""

    def __init__(self, policy: FlushPolicy, log_end_offset: int = 0, interval_ms: int = 60_000) -> None:
        self.effects: list[Effect] = []
        self.finished: list[type[Event]] = []
        self.flushed = asyncio.Event()
        self.core = PartitionReplica(
            node_id=1,
            log_end_offset=log_end_offset,
            flushed_offset=0,
            flush_policy=policy,
            flush_interval_ms=interval_ms,
            high_watermark=0,
            last_epoch=0 if log_end_offset else None,
        )
        self.runner = CoreRunner(self.core, self.carry_out, lambda event: self.finished.append(type(event)))

    def carry_out(self, effect: Effect) -> None:
        self.effects.append(effect)
        if isinstance(effect, AppendBatches):
            self.runner.step(BatchAppended(log_end_offset=self.core.log_end_offset + 1))
        elif isinstance(effect, FlushLog):
            self.flushed.set()
        elif isinstance(effect, TruncateLog):
            self.runner.pause()

    def follow(self, leader_epoch: int = 0) -> int:
        """Follow broker 2; return the number of the subscription."""
        self.runner.step(
            PartitionChanged(
                partition=PartitionImage(0, (1, 2), (1, 2), 2, leader_epoch, leader_epoch),
                min_isr=1,
                brokers=(BrokerState(node_id=2, broker_epoch=1, can_lead=True),),
            )
        )
        asked = self.effects[-1]
        assert isinstance(asked, Subscribe)
        return asked.session


async def test_append_comes_behind_the_other_effects_of_its_event() -> None:
    """So that what the append leads to is not overtaken by something older."""
    shell = Shell(FlushPolicy.NONE)
    session = shell.follow()
    shell.runner.step(SubscriptionAccepted(session=session, high_watermark=0, log_start_offset=0))
    shell.finished.clear()
    shell.runner.step(BatchesReceived(session=session, base_offset=0, leader_epoch=0))
    assert shell.finished == [BatchesReceived, BatchAppended]
    assert [type(effect) for effect in shell.effects[-2:]] == [AppendBatches, SendAck]


async def test_events_wait_while_the_log_is_cut() -> None:
    """Those that came meanwhile follow the cut, in their order; one of them may pause again."""
    shell = Shell(FlushPolicy.NONE, log_end_offset=5)
    session = shell.follow()
    diverged = SubscriptionDiverged(
        session=session, leader_end=EpochEnd(0, 3), own_end=EpochEnd(0, 5), own_start_offset=0
    )
    shell.runner.step(diverged)
    assert isinstance(shell.effects[-1], TruncateLog)
    seen = len(shell.effects)
    shell.runner.step(FlushPolicyChanged(policy=FlushPolicy.ACK, interval_ms=0))
    again = SubscriptionDiverged(
        session=session + 1, leader_end=EpochEnd(0, 2), own_end=EpochEnd(0, 3), own_start_offset=0
    )
    shell.runner.step(again)
    shell.runner.step(FlushPolicyChanged(policy=FlushPolicy.NONE, interval_ms=0))
    assert len(shell.effects) == seen
    shell.runner.resume(LogCut(log_end_offset=3, flushed_offset=0, last_epoch=0, log_start_offset=0))
    assert [type(effect) for effect in shell.effects[seen:]] == [Subscribe, FlushLog, TruncateLog]
    assert shell.finished[-1] is SubscriptionDiverged
    shell.runner.resume(LogCut(log_end_offset=2, flushed_offset=0, last_epoch=0, log_start_offset=0))
    assert shell.finished[-2:] == [LogCut, FlushPolicyChanged]


async def test_flush_that_ends_before_a_cut_is_not_told_behind_it() -> None:
    """It tells of records that are gone; the end of the cut says what is flushed."""
    shell = Shell(FlushPolicy.ACK, log_end_offset=5)
    session = shell.follow()
    shell.runner.step(
        SubscriptionDiverged(session=session, leader_end=EpochEnd(0, 3), own_end=EpochEnd(0, 5), own_start_offset=0)
    )
    shell.runner.step(LogFlushed(flushed_offset=5))
    shell.runner.resume(LogCut(log_end_offset=3, flushed_offset=3, last_epoch=0, log_start_offset=0))
    assert (shell.core.log_end_offset, shell.core.flushed_offset) == (3, 3)


async def test_failure_of_the_log_does_not_wait_for_a_cut() -> None:
    """The end of a replica is told at once."""
    shell = Shell(FlushPolicy.NONE, log_end_offset=5)
    session = shell.follow()
    shell.runner.step(
        SubscriptionDiverged(session=session, leader_end=EpochEnd(0, 3), own_end=EpochEnd(0, 5), own_start_offset=0)
    )
    shell.runner.step(StorageFailed(message="gone"))
    assert shell.core.is_failed


async def test_timer_is_set_to_the_earlier_time() -> None:
    """A replica that waits for a late flush gets another one before it, and is woken for that one."""
    shell = Shell(FlushPolicy.INTERVAL, interval_ms=20)
    session = shell.follow()
    shell.runner.step(SubscriptionAccepted(session=session, high_watermark=0, log_start_offset=0))
    shell.runner.step(BatchesReceived(session=session, base_offset=0, leader_epoch=0))
    assert not shell.flushed.is_set()
    async with asyncio.timeout(WAIT_S):
        await shell.flushed.wait()
    shell.runner.close()


async def test_closed_runner_rings_no_more() -> None:
    """What was held back is dropped with it."""
    shell = Shell(FlushPolicy.INTERVAL, interval_ms=1)
    session = shell.follow()
    shell.runner.step(SubscriptionAccepted(session=session, high_watermark=0, log_start_offset=0))
    shell.runner.step(BatchesReceived(session=session, base_offset=0, leader_epoch=0))
    shell.runner.close()
    other = Shell(FlushPolicy.INTERVAL, interval_ms=1)
    other.runner.step(BatchAppended(log_end_offset=1))
    async with asyncio.timeout(WAIT_S):
        await other.flushed.wait()
    assert not shell.flushed.is_set()
    other.runner.close()
