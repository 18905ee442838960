# SPDX-License-Identifier: Apache-2.0
"""Builders for tests of the partition core with several replicas."""

from __future__ import annotations

from brokerd.partition.effects import Effect
from brokerd.partition.events import BatchAppended, BrokerState, Event, LogFlushed, PartitionChanged
from brokerd.partition.leader_events import FollowerAcked, FollowerSubscribed
from brokerd.partition.reconciliation import EpochEnd
from brokerd.partition.replica import PartitionReplica
from metaquorum.metadata.state import PartitionImage
from metaquorum.metadata.topic_configs import FlushPolicy

LAG_MS = 1_000


def broker(node_id: int, *, epoch: int | None = None, can_lead: bool = True) -> BrokerState:
    """Return a broker. By default its epoch is ten times its id."""
    return BrokerState(node_id=node_id, broker_epoch=10 * node_id if epoch is None else epoch, can_lead=can_lead)


BROKERS = (broker(1), broker(2), broker(3))


def image(
    *,
    isr: tuple[int, ...] = (1, 2, 3),
    leader_id: int | None = 1,
    leader_epoch: int = 5,
    partition_epoch: int = 7,
    replicas: tuple[int, ...] = (1, 2, 3),
    adding: tuple[int, ...] = (),
    elr: tuple[int, ...] = (),
) -> PartitionImage:
    """Return a state of the partition."""
    return PartitionImage(0, replicas, isr, leader_id, leader_epoch, partition_epoch, elr=elr, adding=adding)


def changed(
    partition: PartitionImage, *, min_isr: int = 2, brokers: tuple[BrokerState, ...] = BROKERS
) -> PartitionChanged:
    """Return a change of the metadata."""
    return PartitionChanged(partition=partition, min_isr=min_isr, brokers=brokers)


class Replica:
    """The core of node 1, and its clock.

    Args:
        policy: flush policy.
        end: end of the log, all of it flushed.
        high_watermark: the stored high watermark; None: the replica may be alone.
        last_epoch: epoch of the last record.
    """

    def __init__(
        self,
        policy: FlushPolicy = FlushPolicy.ACK,
        *,
        end: int = 0,
        high_watermark: int | None = 0,
        last_epoch: int | None = None,
    ) -> None:
        self.now_ms = 10_000
        self.core = PartitionReplica(
            node_id=1,
            log_end_offset=end,
            flushed_offset=end,
            flush_policy=policy,
            flush_interval_ms=100,
            high_watermark=high_watermark,
            last_epoch=last_epoch,
            lag_max_ms=LAG_MS,
        )

    def step(self, event: Event, *, after_ms: int = 0) -> list[Effect]:
        """Give the core an event."""
        self.now_ms += after_ms
        return self.core.step(event, self.now_ms)

    def append(self, end: int, *, after_ms: int = 0) -> list[Effect]:
        """Let the log grow and be flushed."""
        effects = self.step(BatchAppended(log_end_offset=end), after_ms=after_ms)
        return effects + self.step(LogFlushed(flushed_offset=end))

    def subscribe(
        self,
        node_id: int,
        *,
        end: int = 0,
        flushed: int | None = None,
        session: int = 1,
        broker_epoch: int | None = None,
        leader_epoch: int = 5,
        last_epoch: int | None = None,
        epoch_end: EpochEnd | None = None,
        log_start_offset: int = 0,
    ) -> list[Effect]:
        """Subscribe a follower."""
        return self.step(
            FollowerSubscribed(
                node_id=node_id,
                broker_epoch=10 * node_id if broker_epoch is None else broker_epoch,
                session=session,
                leader_epoch=leader_epoch,
                log_end_offset=end,
                flushed_offset=end if flushed is None else flushed,
                last_epoch=last_epoch,
                epoch_end=epoch_end,
                log_start_offset=log_start_offset,
            )
        )

    def acked(
        self,
        node_id: int,
        appended: int,
        *,
        flushed: int | None = None,
        session: int = 1,
        broker_epoch: int | None = None,
        after_ms: int = 0,
    ) -> list[Effect]:
        """Acknowledge as a follower."""
        event = FollowerAcked(
            node_id=node_id,
            broker_epoch=10 * node_id if broker_epoch is None else broker_epoch,
            session=session,
            appended_offset=appended,
            flushed_offset=appended if flushed is None else flushed,
        )
        return self.step(event, after_ms=after_ms)


def leader(
    policy: FlushPolicy = FlushPolicy.ACK,
    *,
    isr: tuple[int, ...] = (1, 2, 3),
    end: int = 0,
    min_isr: int = 2,
    followers: tuple[int, ...] = (2, 3),
) -> Replica:
    """Return a leader of epoch 5 whose followers have subscribed from its log end on."""
    replica = Replica(policy, end=end, last_epoch=4 if end else None)
    replica.step(changed(image(isr=isr), min_isr=min_isr))
    for node_id in followers:
        last_epoch = 4 if end else None
        replica.subscribe(node_id, end=end, last_epoch=last_epoch, epoch_end=EpochEnd(4, end) if end else None)
    return replica
