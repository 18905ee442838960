# SPDX-License-Identifier: Apache-2.0
"""How a replica runs its core: the order of effects, events that wait for a truncation, the timer."""

from __future__ import annotations

import asyncio

import pytest

from brokerd.partition.events import BatchAppended, Event, FlushPolicyChanged, Tick
from brokerd.partition.follower_events import BatchesReceived, LogTruncated, SubscriptionDiverged
from brokerd.partition.reconciliation import EpochEnd
from brokerd.replica.replica import Replica
from brokerd.tests.replica import lone_broker
from brokerd.tests.replica.broker_of_three import (
    TOPIC_ID,
    BrokerOfThree,
    Route,
    append,
    followed,
    follower,
    send,
    stamped,
)
from brokerd.tests.replica.lone_broker import LoneBroker
from metaquorum.metadata.records import ConfigRecord, ConfigResource
from metaquorum.tests.quorum_cluster import until
from storage.errors import DiskFailedError


class Steps:
    """The events that the cores of replicas have handled, in order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.taken: list[tuple[Replica, type[Event]]] = []
        after_step = Replica._after_step

        def note(replica: Replica, event: Event) -> None:
            after_step(replica, event)
            self.taken.append((replica, type(event)))

        monkeypatch.setattr(Replica, "_after_step", note)

    def of(self, replica: Replica) -> list[type[Event]]:
        """Return the events of one replica."""
        return [event for each, event in self.taken if each is replica]


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> Steps:
    """Collect the events of all replicas from now on."""
    return Steps(monkeypatch)


def set_config(broker: BrokerOfThree | LoneBroker, name: str, value: str) -> None:
    """Set a config of the topic in the metadata."""
    broker.commit(ConfigRecord(resource=ConfigResource.TOPIC, resource_name=TOPIC_ID.hex(), name=name, value=value))


async def truncating(three: BrokerOfThree, policy: str = "none") -> Replica:
    """Return a follower of five records that begins to truncate to three for its new leader, broker 3."""
    replica = await followed(three, policy)
    send(three, stamped(0, 0, 5), base_offset=0)
    three.lead(3)
    follower(three).on_subscription_diverged(three.said.session, EpochEnd(0, 3))
    return replica


async def test_append_comes_behind_the_other_effects_of_its_event(three: BrokerOfThree, steps: Steps) -> None:
    """So nothing older overtakes the effects of the append."""
    replica = await followed(three)
    send(three, stamped(0, 0), base_offset=0)
    taken = steps.of(replica)
    received = taken.index(BatchesReceived)
    assert taken[received + 1] is BatchAppended, "told when the event of the batches was done with"
    assert [ack.appended_offset for ack in three.said.acks] == [1]


async def test_events_wait_while_the_log_is_truncated(three: BrokerOfThree, steps: Steps) -> None:
    """Events that arrived during the truncation follow it in order. One of them may lead to the next truncation."""
    replica = await truncating(three)
    asked, taken = len(three.said.subscriptions), len(steps.of(replica))
    set_config(three, "flush.policy", "ack")
    follower(three).on_subscription_diverged(three.said.session + 1, EpochEnd(0, 2))
    set_config(three, "flush.policy", "none")
    assert len(steps.of(replica)) == taken
    await three.said.wait(lambda: three.said.subscriptions[-1].log_end_offset == 2)
    assert [each.log_end_offset for each in three.said.subscriptions[asked:]] == [3, 2]
    of_interest = (LogTruncated, FlushPolicyChanged, SubscriptionDiverged)
    assert [each for each in steps.of(replica)[taken:] if each in of_interest] == [
        LogTruncated,
        FlushPolicyChanged,
        SubscriptionDiverged,
        LogTruncated,
        FlushPolicyChanged,
    ]


async def test_flush_that_ends_before_a_truncation_is_not_told_behind_it(three: BrokerOfThree) -> None:
    """The flush concerns records that no longer exist. The end of the truncation says what is flushed."""
    replica = await truncating(three, policy="ack")
    await three.said.wait(lambda: three.said.subscriptions[-1].log_end_offset == 3)
    assert three.said.subscriptions[-1].flushed_offset == 3
    assert replica.log.flushed_offset == 3


async def test_failure_of_the_log_does_not_wait_for_a_truncation(three: BrokerOfThree) -> None:
    """The end of a replica is reported at once."""
    replica = await truncating(three)
    three.manager.note_disk_failure(replica.directory, DiskFailedError("/data/x", "gone"))
    assert not replica.is_writable


async def test_timer_is_set_to_the_earlier_time(three: BrokerOfThree) -> None:
    """The leader's timer for lagging followers is set, but a flush is due earlier. No follower is proposed to leave at that time."""
    replica = await three.start(leader_id=1, policy="interval")
    set_config(three, "flush.interval.ms", "1")
    for node_id in (2, 3):
        three.subscribe(replica, Route(node_id))
    append(replica)
    await until(lambda: replica.log.flushed_offset == 1, what="the flush")
    assert three.said.proposals == []


async def test_closed_replica_is_woken_no_more(lone: LoneBroker, steps: Steps) -> None:
    """Its timer would have come before that of another replica, which was set later."""
    lone.create_topic("interval", partition_count=2)
    set_config(lone, "flush.interval.ms", "1")
    closed, other = await lone.replica(0), await lone.replica(1)
    for replica in (closed, other):
        lone_broker.append(replica, [b"a"])
    assert await closed.close("test")
    await until(lambda: Tick in steps.of(other), what="the timer of the other replica")
    await asyncio.sleep(0)
    assert Tick not in steps.of(closed)
