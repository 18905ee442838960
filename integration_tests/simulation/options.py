# SPDX-License-Identifier: Apache-2.0
"""Options of one world. Each seed turns on only some faults, so that no fault hides another (swarm testing).

Source: Groce et al., "Swarm testing".
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Final

from metaquorum.metadata.topic_configs import FlushPolicy
from metaquorum.replica.quorum_settings import SnapshotSettings

SNAPSHOT_NEVER_MS: Final = 10**9
"""Milliseconds that are longer than any run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorldOptions:
    """What may happen in a run. Times are milliseconds, and those of faults are means between two of a kind; None: no such fault.

    Attributes:
        voter_count: voters of the quorum.
        broker_count: brokers.
        has_racks: True if each broker has its own rack, and consumers are in one of these racks two times of three.
        partition_count: partitions of the topic.
        replication_factor: replicas of each partition.
        min_isr: `min.insync.replicas`.
        flush_policy: flush policy of the topic. Under ACK any machine may lose power at any time, also all at once.
        segment_bytes: segment size of the topic.
        delay_ms_max: longest delay of a message.
        work_ms_max: longest time of work in a thread.
        flush_ms_max: longest time of a flush.
        sender_count: producers.
        send_every_ms: mean time between two records of a producer.
        reader_count: consumers.
        register_every_ms: changes and reads of a register in the metadata.
        kill_every_ms: kill -9 of a server.
        power_every_ms: power loss of a machine.
        loss_every_ms: one broker loses data that others have too: by a power loss beyond the promise of the policy, or with its disk.
        blackout_every_ms: power loss (with ACK) or kill -9 of all brokers or of all machines.
        pause_every_ms: SIGSTOP of a server.
        cut_every_ms: cuts between machines.
        stop_every_ms: SIGTERM of a server.
        client_kill_every_ms: kill -9 of a client.
        reassign_every_ms: partitions get other replicas, or the same in another order.
        elect_every_ms: preferred leaders are elected.
        damage_every_ms: a bit flips in old data of one broker, always the same, which is killed for it.
        down_ms_max: longest time for which a server is down or paused, or a cut lasts.
        directory_every_ms: the second log directory of a broker fails and is mended or replaced later. None: brokers have one
            directory.
        snapshot_every_ms: time from the first change since the last snapshot of the metadata to the next snapshot, on each node.
        snapshots_kept: number of snapshots that a node keeps.
        voter_loss_every_ms: a voter loses its disk, and the operator replaces it; one at a time.
        clock_drift: maximum share by which clocks of servers run fast or slow. Wall clocks are wrong too. 0.0: all clocks are right.
        full_every_ms: a disk of a broker has little free space, or almost none, for a while.
        end_every_ms: mean time between two questions of a client for the ends of the partitions.
        strand_every_ms: one broker is isolated from the other brokers for longer than followers may lag.
        last_disk_every_ms: brokers leave one after the other, and the last one loses its disk until it is awaited.
        switch_every_ms: `flush.policy` changes between ACK and `flush_policy`. Power losses stay within what `flush_policy` allows.
        forge_every_ms: mean time between forged requests, and between forged answers of voters.
        half_open_every_ms: connections, one or all of a server, swallow everything from then on, one way or both.
        group_count: groups that read the topic.
        member_count: members of each group.
        coordinator_count: partitions of `__groups`.
        leave_every_ms: mean time until a member leaves its group, for a while.
        stall_every_ms: mean time between two stalls of a member's application, some longer than its processing limit.
        member_every_ms: kill -9 or SIGSTOP of a member, or all its connections are reset.
        coordinator_every_ms: kill -9 or SIGSTOP of the coordinator of a group.
        move_every_ms: partitions of `__groups` get other replicas, or their preferred leaders are elected.
        compact_every_ms: passes of the cleaner on a broker.
        ingest_count: clients of ingests.
        ingest_every_ms: mean time between two ingests of a client.
        transform_count: programs that consume, transform and produce, in one group.
        ingest_coordinator_count: partitions of `__ingests`.
        brief_every_ms: one of the two topics that ingests publish to is deleted, and made again.
        large_part_bytes: bytes from which the parts of ingests count as large. None: as in production, where no world stages that much.
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
    group_count: int = 0
    member_count: int = 0
    coordinator_count: int = 1
    leave_every_ms: int | None = None
    stall_every_ms: int | None = None
    member_every_ms: int | None = None
    coordinator_every_ms: int | None = None
    move_every_ms: int | None = None
    compact_every_ms: int | None = None
    ingest_count: int = 0
    ingest_every_ms: int = 200
    ingest_coordinator_count: int = 1
    brief_every_ms: int | None = None
    transform_count: int = 0
    large_part_bytes: int | None = None


def snapshot_settings(options: WorldOptions) -> SnapshotSettings:
    """Return when the nodes of a world make snapshots of the metadata. Without the option they practically never do."""
    return SnapshotSettings(interval_ms=options.snapshot_every_ms or SNAPSHOT_NEVER_MS, kept=options.snapshots_kept)


def rack_name(number: int) -> str:
    """Return the rack of the broker with that number, from 1."""
    return f"rack-{number}"


def draw_options(rng: random.Random) -> WorldOptions:
    """Draw the options of one seed."""

    def sometimes(low: int, high: int, chance: float = 0.5) -> int | None:
        return rng.randint(low, high) if rng.random() < chance else None

    replication_factor = rng.choice([1, 2, 3, 3, 3, 3, 3, 3])
    flush_policy = rng.choice([FlushPolicy.ACK, FlushPolicy.ACK, FlushPolicy.NONE, FlushPolicy.INTERVAL])
    is_flushed = flush_policy is FlushPolicy.ACK
    min_isr = rng.randint(1, max(1, replication_factor - 1))
    # One of three may lose everything while the others keep their data. Without flushes the others must therefore not be killed.
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
        # New options come last, so that the other options of a seed stay the same. A failing disk may lose what is not flushed.
        directory_every_ms=sometimes(1_000, 6_000, 0.8) if is_flushed and replication_factor == 3 else None,
        snapshot_every_ms=sometimes(100, 4_000, 0.7),
        snapshots_kept=rng.choice([1, 1, 2]),
        voter_loss_every_ms=sometimes(1_000, 8_000, 0.6) if voter_count > 1 else None,
        clock_drift=rng.choice([0.0, 0.01, 0.1]),
        full_every_ms=sometimes(1_000, 8_000, 0.4),
        end_every_ms=sometimes(100, 1_000, 0.6),
        strand_every_ms=sometimes(1_000, 6_000, 0.5) if min_isr == 2 else None,
        # With a single replica no other broker could wrongly become leader.
        last_disk_every_ms=sometimes(500, 4_000, 0.6) if replication_factor > 1 and not is_lasting else None,
        switch_every_ms=None if is_flushed else sometimes(300, 4_000, 0.5),
        forge_every_ms=sometimes(100, 2_000, 0.6),
        half_open_every_ms=sometimes(500, 6_000, 0.6),
        group_count=rng.choice([0, 1, 1, 1, 2]),
        member_count=rng.choice([2, 3, 4]),
        coordinator_count=rng.choice([1, 2]),
        leave_every_ms=sometimes(2_000, 15_000, 0.6),
        stall_every_ms=sometimes(5_000, 20_000, 0.4),
        member_every_ms=sometimes(2_000, 8_000, 0.6),
        coordinator_every_ms=sometimes(2_000, 8_000, 0.6),
        move_every_ms=sometimes(1_000, 6_000, 0.6),
        # What was compacted is not repaired (docs/replication.md), so worlds with damage compact nothing.
        compact_every_ms=None if is_flushed and replication_factor == 3 else sometimes(300, 2_000, 0.7),
        ingest_count=rng.choice([0, 0, 1, 2]),
        ingest_every_ms=rng.choice([100, 300, 1_000]),
        ingest_coordinator_count=rng.choice([1, 2]),
        brief_every_ms=sometimes(3_000, 15_000, 0.6),
        transform_count=rng.choice([0, 1, 2]),
        large_part_bytes=rng.choice([None, 1, 200, 500]),
    )


def power_storm(seed: int) -> WorldOptions:
    """Options with constant power losses, slow disks and falling leaders; for mutant hunts."""
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
    """Options with leaders that are constantly killed, paused and isolated, and without flushes; for mutant hunts."""
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
    """Options with one broker after the other losing its unflushed data or its disk; for mutant hunts."""
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
    """Options with brokers that lose unflushed data while the policy changes; for mutant hunts."""
    return replace(
        loss_storm(seed), flush_policy=FlushPolicy.NONE, flush_ms_max=1_000, elect_every_ms=None, switch_every_ms=100
    )


def quorum_storm(seed: int) -> WorldOptions:
    """Options with quorum leaders that are paused and killed while the metadata changes; for mutant hunts."""
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
    """Options with forged messages about elections in epochs that none has reached; for mutant hunts."""
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
    """Options with constantly flipping bits of one broker, and moving leaders; for mutant hunts."""
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
    """Options with log directories that constantly fail and are mended or replaced, and moving leaders; for mutant hunts."""
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
    """Options with the shortest possible metadata log, failing servers, and lost disks of voters; for mutant hunts."""
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
    """Options with followers that leave the ISR behind cuts, and leaders that die while followers catch up; for mutant hunts."""
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
    """Options with long pauses of servers while a client asks for the ends of partitions; for mutant hunts."""
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
    """Options with the fault "last disk" over and over; for mutant hunts."""
    # If two of three are needed, the last but one has everything too, unless it may have lost unflushed data.
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
    """Options with connections that constantly swallow everything, and moving leaders; for mutant hunts."""
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


def group_storm(seed: int) -> WorldOptions:
    """Options with members that come, go and stop, and coordinators that are constantly killed, paused, moved and compacted."""
    return replace(
        power_storm(seed),
        partition_count=3,
        send_every_ms=80,
        flush_ms_max=5,
        reader_count=0,
        kill_every_ms=None,
        power_every_ms=None,
        blackout_every_ms=None,
        cut_every_ms=8_000,
        stop_every_ms=8_000,
        elect_every_ms=None,
        down_ms_max=4_000,
        group_count=1,
        member_count=3,
        coordinator_count=1,
        leave_every_ms=6_000,
        stall_every_ms=10_000,
        member_every_ms=3_000,
        coordinator_every_ms=3_000,
        move_every_ms=2_000,
        compact_every_ms=500,
    )


def lease_storm(seed: int) -> WorldOptions:
    """Options with members that are stopped for about a session, and clocks that run wrong; for hunts of two owners."""
    return replace(
        group_storm(seed),
        clock_drift=0.1,
        delay_ms_max=1,
        sender_count=1,
        send_every_ms=300,
        cut_every_ms=None,
        stop_every_ms=None,
        leave_every_ms=None,
        stall_every_ms=None,
        member_every_ms=2_000,
        coordinator_every_ms=None,
        move_every_ms=None,
        compact_every_ms=None,
    )


def ingest_storm(seed: int) -> WorldOptions:
    """Options with ingests, and their coordinators and the leaders of their topics killed, paused, moved and compacted."""
    return replace(
        power_storm(seed),
        partition_count=1,
        sender_count=1,
        send_every_ms=400,
        flush_ms_max=5,
        reader_count=0,
        kill_every_ms=4_000,
        power_every_ms=None,
        blackout_every_ms=None,
        cut_every_ms=8_000,
        stop_every_ms=8_000,
        elect_every_ms=1_500,
        reassign_every_ms=5_000,
        half_open_every_ms=4_000,
        down_ms_max=3_000,
        coordinator_every_ms=3_000,
        move_every_ms=2_000,
        compact_every_ms=500,
        ingest_count=3,
        ingest_every_ms=100,
        brief_every_ms=6_000,
    )


def transform_storm(seed: int) -> WorldOptions:
    """Options with programs that consume, transform and produce, and that come, go and stop as their coordinators do."""
    return replace(
        ingest_storm(seed),
        partition_count=2,
        sender_count=2,
        send_every_ms=60,
        ingest_count=1,
        ingest_every_ms=400,
        transform_count=3,
        member_every_ms=2_500,
        brief_every_ms=None,
        reassign_every_ms=None,
    )
