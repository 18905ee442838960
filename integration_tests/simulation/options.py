# SPDX-License-Identifier: Apache-2.0
"""Options of one world: each seed turns on only some faults, so that no fault hides another (swarm testing).

Source: Groce et al., "Swarm testing"; reliability 2.6.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Final

from metaquorum.metadata.topic_configs import FlushPolicy
from metaquorum.replica.quorum_settings import SnapshotSettings

SNAPSHOT_NEVER_MS: Final = 10**9
"""Longer than any run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorldOptions:
    """What may happen in a run. Times in milliseconds, means between two faults of a kind; None: none of them.

    Attributes:
        voter_count: voters of the quorum.
        broker_count: brokers.
        has_racks: True if each broker has a rack of its own, and consumers are in one of them two times of three.
        partition_count: partitions of the topic.
        replication_factor: replicas of each.
        min_isr: `min.insync.replicas`.
        flush_policy: of the topic. Under ACK the power may go anywhere at any time, everywhere at once too.
        segment_bytes: of the topic.
        delay_ms_max: longest delay of a message.
        work_ms_max: longest time of work in a thread.
        flush_ms_max: longest time of a flush.
        sender_count: producers.
        send_every_ms: mean time between two records of a producer.
        reader_count: consumers.
        register_every_ms: changes, and reads, of a register in the metadata.
        kill_every_ms: kill -9 of a server.
        power_every_ms: loss of power of a machine.
        loss_every_ms: one broker loses what others have too: its power where that is more than the policy promises, or its disk.
        blackout_every_ms: loss of power (with ACK), or kill -9, of all brokers, or of everything.
        pause_every_ms: SIGSTOP of a server.
        cut_every_ms: cuts between machines.
        stop_every_ms: SIGTERM of a server.
        client_kill_every_ms: kill -9 of a client.
        reassign_every_ms: partitions get their replicas in another order, or others.
        elect_every_ms: preferred leaders are elected.
        damage_every_ms: a bit flips in what one broker, always the same, wrote long ago; it is killed with it.
        down_ms_max: longest time that a server is down or paused, and that a cut lasts.
        directory_every_ms: the second log directory of a broker fails, and is mended or replaced later; with None they have one.
        snapshot_every_ms: each node makes a snapshot of the metadata so long after the first change since the last one.
        snapshots_kept: how many it keeps.
        voter_loss_every_ms: a voter loses its disk, and the operator puts the replacement in its place; one at a time.
        clock_drift: clocks of servers go too fast or too slow by at most this share, and the wall clocks are wrong; 0.0: all are right.
        full_every_ms: little room is left on a disk of a broker, or next to none, for a while.
        end_every_ms: mean time between two questions of a client for the ends of the partitions.
        strand_every_ms: one broker is cut off from the other brokers alone, for longer than followers may lag.
        last_disk_every_ms: brokers leave one after the other, and the last one loses its disk until it is awaited.
        switch_every_ms: `flush.policy` becomes ACK, or `flush_policy` again; the power goes no further than that one allows.
        forge_every_ms: mean time between requests, and between answers of voters, with epochs that nobody has reached.
        half_open_every_ms: connections, one or all of a server, swallow everything from then on, one way or both.
    """

    voter_count: int
    broker_count: int
    partition_count: int
    replication_factor: int
    min_isr: int
    flush_policy: FlushPolicy
    segment_bytes: int
    delay_ms_max: int
    work_ms_max: int
    flush_ms_max: int
    sender_count: int
    send_every_ms: int
    reader_count: int
    register_every_ms: int | None
    kill_every_ms: int | None
    power_every_ms: int | None
    loss_every_ms: int | None
    blackout_every_ms: int | None
    pause_every_ms: int | None
    cut_every_ms: int | None
    stop_every_ms: int | None
    client_kill_every_ms: int | None
    reassign_every_ms: int | None
    elect_every_ms: int | None
    damage_every_ms: int | None
    down_ms_max: int
    has_racks: bool = False
    directory_every_ms: int | None = None
    snapshot_every_ms: int | None = None
    snapshots_kept: int = 1
    voter_loss_every_ms: int | None = None
    clock_drift: float = 0.0
    full_every_ms: int | None = None
    end_every_ms: int | None = None
    strand_every_ms: int | None = None
    last_disk_every_ms: int | None = None
    switch_every_ms: int | None = None
    forge_every_ms: int | None = None
    half_open_every_ms: int | None = None


def snapshot_settings(options: WorldOptions) -> SnapshotSettings:
    """When the nodes of a world make snapshots of the metadata; practically never if options do not say so."""
    return SnapshotSettings(interval_ms=options.snapshot_every_ms or SNAPSHOT_NEVER_MS, kept=options.snapshots_kept)


def rack_name(number: int) -> str:
    """Rack of the broker with that number, from 1."""
    return f"rack-{number}"


def draw_options(rng: random.Random) -> WorldOptions:
    """Draw the options of one seed."""

    def sometimes(low: int, high: int, chance: float = 0.5) -> int | None:
        return rng.randint(low, high) if rng.random() < chance else None

    replication_factor = rng.choice([1, 2, 3, 3, 3, 3, 3, 3])
    flush_policy = rng.choice([FlushPolicy.ACK, FlushPolicy.ACK, FlushPolicy.NONE, FlushPolicy.INTERVAL])
    is_flushed = flush_policy is FlushPolicy.ACK
    min_isr = rng.randint(1, max(1, replication_factor - 1))
    # Of three one may lose everything while the others keep what they have: when they do not flush, they must not be killed.
    has_losses = min_isr == 2 and rng.random() < 0.5
    is_lasting = has_losses and not is_flushed
    kill_every_ms = None if is_lasting else sometimes(1_000, 8_000, 0.7)
    voter_count = rng.choice([1, 3, 3, 3])
    return WorldOptions(
        voter_count=voter_count,
        broker_count=rng.choice([replication_factor, 3, 4]) if replication_factor < 3 else rng.choice([3, 3, 4]),
        partition_count=rng.choice([1, 2, 3, 5]),
        replication_factor=replication_factor,
        min_isr=min_isr,
        flush_policy=flush_policy,
        segment_bytes=rng.choice([16_384, 65_536]),
        delay_ms_max=rng.choice([1, 3, 10, 40]),
        work_ms_max=rng.choice([1, 5, 30]),
        flush_ms_max=rng.choice([1, 5, 20, 80]),
        sender_count=rng.choice([1, 2, 3]),
        send_every_ms=rng.choice([5, 20, 80]),
        reader_count=rng.choice([0, 1, 1, 2]),
        register_every_ms=rng.choice([None, 30, 100, 400]),
        kill_every_ms=kill_every_ms,
        power_every_ms=sometimes(1_000, 8_000, 0.7) if is_flushed else None,
        loss_every_ms=rng.randint(1_000, 6_000) if has_losses else None,
        blackout_every_ms=None if is_lasting else sometimes(6_000, 20_000, 0.5),
        pause_every_ms=sometimes(2_000, 10_000, 0.6),
        cut_every_ms=sometimes(2_000, 10_000, 0.7),
        stop_every_ms=sometimes(3_000, 12_000, 0.6),
        client_kill_every_ms=sometimes(4_000, 15_000, 0.3),
        reassign_every_ms=sometimes(3_000, 12_000, 0.4),
        elect_every_ms=sometimes(1_000, 6_000, 0.8),
        down_ms_max=rng.choice([200, 2_000, 8_000]),
        damage_every_ms=rng.randint(200, 1_000) if is_flushed and replication_factor == 3 else None,
        has_racks=True,
        # Last of all, so that the other options of a seed are what they were. A disk that fails may lose what is not flushed.
        directory_every_ms=sometimes(1_000, 6_000, 0.8) if is_flushed and replication_factor == 3 else None,
        snapshot_every_ms=sometimes(100, 4_000, 0.7),
        snapshots_kept=rng.choice([1, 1, 2]),
        voter_loss_every_ms=sometimes(1_000, 8_000, 0.6) if voter_count > 1 else None,
        clock_drift=rng.choice([0.0, 0.01, 0.1]),
        full_every_ms=sometimes(1_000, 8_000, 0.4),
        end_every_ms=sometimes(100, 1_000, 0.6),
        strand_every_ms=sometimes(1_000, 6_000, 0.5) if min_isr == 2 else None,
        # A replica without another one has nobody who could lead in its place, wrongly.
        last_disk_every_ms=sometimes(500, 4_000, 0.6) if replication_factor > 1 and not is_lasting else None,
        switch_every_ms=None if is_flushed else sometimes(300, 4_000, 0.5),
        forge_every_ms=sometimes(100, 2_000, 0.6),
        half_open_every_ms=sometimes(500, 6_000, 0.6),
    )


def power_storm(seed: int) -> WorldOptions:
    """Options under which the power goes all the time, disks are slow, and leaders fall: for the hunt of mutants."""
    return WorldOptions(
        voter_count=1,
        broker_count=3,
        partition_count=3,
        replication_factor=3,
        min_isr=1 + seed % 2,
        flush_policy=FlushPolicy.ACK,
        segment_bytes=65_536,
        delay_ms_max=3,
        work_ms_max=3,
        flush_ms_max=60,
        sender_count=2,
        send_every_ms=10,
        reader_count=1,
        register_every_ms=None,
        kill_every_ms=3_000,
        power_every_ms=1_000,
        loss_every_ms=None,
        blackout_every_ms=8_000,
        pause_every_ms=None,
        cut_every_ms=3_000,
        stop_every_ms=6_000,
        client_kill_every_ms=None,
        reassign_every_ms=None,
        elect_every_ms=3_000,
        damage_every_ms=None,
        down_ms_max=1_500,
    )


def kill_storm(seed: int) -> WorldOptions:
    """Options under which leaders are killed, paused and cut off all the time, and nothing is flushed: for the hunt of mutants."""
    return replace(
        power_storm(seed),
        flush_policy=FlushPolicy.NONE,
        flush_ms_max=5,
        kill_every_ms=1_200,
        power_every_ms=None,
        pause_every_ms=4_000,
        cut_every_ms=2_000,
        blackout_every_ms=None,
        down_ms_max=4_000,
    )


def loss_storm(seed: int) -> WorldOptions:
    """Options under which one broker after the other loses what it has not flushed, or its disk: for the hunt of mutants."""
    return replace(
        power_storm(seed),
        flush_policy=FlushPolicy.NONE if seed % 2 else FlushPolicy.ACK,
        min_isr=2,
        flush_ms_max=5,
        kill_every_ms=None,
        power_every_ms=None,
        loss_every_ms=400,
        blackout_every_ms=None,
        cut_every_ms=5_000,
        down_ms_max=1_000,
    )


def switch_storm(seed: int) -> WorldOptions:
    """Options under which brokers lose what they have not flushed while the policy changes: for the hunt of mutants."""
    return replace(
        loss_storm(seed), flush_policy=FlushPolicy.NONE, flush_ms_max=1_000, elect_every_ms=None, switch_every_ms=100
    )


def quorum_storm(seed: int) -> WorldOptions:
    """Options under which leaders of the quorum are paused and killed while the metadata change: for the hunt of mutants."""
    return replace(
        power_storm(seed),
        voter_count=3,
        partition_count=1,
        sender_count=1,
        send_every_ms=200,
        reader_count=0,
        register_every_ms=10,
        kill_every_ms=None,
        power_every_ms=None,
        blackout_every_ms=None,
        pause_every_ms=400,
        cut_every_ms=None,
        stop_every_ms=None,
        elect_every_ms=None,
        down_ms_max=4_000,
    )


def forgery_storm(seed: int) -> WorldOptions:
    """Options under which anybody says that elections went on to epochs that none has reached: for the hunt of mutants."""
    return replace(
        power_storm(seed),
        voter_count=3,
        register_every_ms=100,
        power_every_ms=None,
        blackout_every_ms=None,
        stop_every_ms=None,
        forge_every_ms=200,
    )


def damage_storm(seed: int) -> WorldOptions:
    """Options under which bits of one broker flip all the time and leaders move: for the hunt of mutants."""
    return replace(
        power_storm(seed),
        partition_count=1,
        segment_bytes=16_384,
        flush_ms_max=5,
        kill_every_ms=None,
        power_every_ms=None,
        blackout_every_ms=None,
        cut_every_ms=None,
        stop_every_ms=None,
        elect_every_ms=500,
        damage_every_ms=1_000,
        down_ms_max=500,
    )


def directory_storm(seed: int) -> WorldOptions:
    """Options under which log directories fail all the time, are mended and replaced, and leaders move: for the hunt of mutants."""
    return replace(
        power_storm(seed),
        flush_ms_max=5,
        power_every_ms=None,
        kill_every_ms=None,
        blackout_every_ms=None,
        stop_every_ms=None,
        cut_every_ms=2_000,
        elect_every_ms=1_000,
        directory_every_ms=500,
        down_ms_max=1_500 if seed % 2 else 6_000,
    )


def snapshot_storm(seed: int) -> WorldOptions:
    """Options under which the metadata log is as short as can be, and servers and voters' disks go: for the hunt of mutants."""
    return replace(
        power_storm(seed),
        voter_count=3,
        register_every_ms=50,
        kill_every_ms=1_500,
        cut_every_ms=2_000,
        elect_every_ms=1_000,
        reassign_every_ms=3_000,
        down_ms_max=3_000,
        snapshot_every_ms=200,
        voter_loss_every_ms=4_000,
    )


def catch_up_storm(seed: int) -> WorldOptions:
    """Options under which followers fall out of sync behind cuts, and leaders die while they catch up: for the hunt of mutants."""
    return replace(
        power_storm(seed),
        min_isr=1,
        partition_count=5,
        send_every_ms=4,
        delay_ms_max=40,
        flush_ms_max=5,
        kill_every_ms=600,
        power_every_ms=None,
        blackout_every_ms=None,
        cut_every_ms=1_200,
        elect_every_ms=None,
        stop_every_ms=None,
        down_ms_max=6_000,
    )


def end_storm(seed: int) -> WorldOptions:
    """Options under which servers are stopped for long while a client asks where the partitions end: for the hunt of mutants."""
    return replace(
        kill_storm(seed),
        kill_every_ms=None,
        pause_every_ms=1_500,
        cut_every_ms=None,
        elect_every_ms=None,
        stop_every_ms=None,
        down_ms_max=15_000,
        end_every_ms=200,
    )


def last_disk_storm(seed: int) -> WorldOptions:
    """Options under which the last broker that leaves loses its disk, over and over: for the hunt of mutants."""
    # Of three of which two are needed the last but one has everything too, unless it may have lost what it did not flush.
    flush_policy, replication_factor, min_isr = (
        (FlushPolicy.NONE, 2, 1),
        (FlushPolicy.ACK, 3, 1),
        (FlushPolicy.NONE, 3, 2),
        (FlushPolicy.ACK, 2, 1),
    )[seed % 4]
    return replace(
        power_storm(seed),
        flush_policy=flush_policy,
        replication_factor=replication_factor,
        min_isr=min_isr,
        flush_ms_max=5,
        kill_every_ms=None,
        power_every_ms=None,
        blackout_every_ms=None,
        cut_every_ms=None,
        stop_every_ms=None,
        last_disk_every_ms=1_000,
        down_ms_max=1_500,
    )


def half_open_storm(seed: int) -> WorldOptions:
    """Options under which connections swallow everything all the time, and leaders move: for the hunt of mutants."""
    return replace(
        power_storm(seed),
        voter_count=3,
        flush_ms_max=5,
        register_every_ms=100,
        kill_every_ms=None,
        power_every_ms=None,
        blackout_every_ms=None,
        cut_every_ms=None,
        stop_every_ms=None,
        half_open_every_ms=600,
    )
