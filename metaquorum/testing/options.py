# SPDX-License-Identifier: Apache-2.0
"""Options of one simulated run. Each seed turns on only some faults, so that no fault hides another (swarm testing).

Source: Groce et al., "Swarm testing".
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

REAL_FILES_SHARE = 0.5
"""Share of the seeds with real log and vote files on their disks; the other seeds are faster."""

CONTROLLER_SHARE = 0.3
"""Share of the seeds in which a controller runs on each leader."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SimOptions:
    """What may happen in a run. Times in milliseconds, chances from 0 to 1.

    Attributes:
        voter_count: voters, 1 to 5.
        observer_count: observers.
        delay_ms_max: longest delay of a message; the shortest is 0, so messages overtake each other.
        loss: chance that a message is lost.
        duplication: chance that a message arrives twice.
        flush_ms_max: longest time of a flush or of a write of the vote.
        crash_every_ms: mean time between crashes; None for none. A crash loses unflushed data.
        shutdown_every_ms: mean time between orderly shutdowns; None for none.
        cut_every_ms: mean time between network cuts, one-way or both ways; None for none.
        pause_every_ms: mean time between pauses of a process (its timers fire late); None for none.
        wipe: whether one voter loses its whole disk once and comes back as an observer.
        clock_drift: greatest relative drift of a node's clock.
        proposal_every_ms: mean time between proposals.
        down_ms_max: longest time that a stopped node stays down, or that a cut lasts.
        change_every_ms: mean time between requests to change the voters; None for none.
        transfer_every_ms: mean time between requests to transfer the leadership; None for none.
        snapshot_every: records between two snapshots of a node; None for no snapshots.
        kept_snapshots: snapshots that a node keeps.
        power_loss: chance of a power loss between the steps of an install, a trim, a truncation or a start; a hundredth of it for any
            other write to real files.
        real_files: whether the disks have the real log and vote files.
        refusal: chance that the disk refuses a truncation, a trim or an install; a hundredth of it for any other write.
        damage_every_ms: mean time between bit flips on a disk; None for none.
        move_every_ms: mean time between moves of a voter to another address; None for none.
        controller_every_ms: mean time between turns of the controllers on leaders; None for none.
        forge_every_ms: mean time between forged requests in the name of voters with absurd epochs; None for none.
    """

    voter_count: int
    observer_count: int
    delay_ms_max: int
    loss: float
    duplication: float
    flush_ms_max: int
    crash_every_ms: int | None
    shutdown_every_ms: int | None
    cut_every_ms: int | None
    pause_every_ms: int | None
    wipe: bool
    clock_drift: float
    proposal_every_ms: int
    down_ms_max: int
    change_every_ms: int | None
    transfer_every_ms: int | None
    snapshot_every: int | None = None
    kept_snapshots: int = 2
    power_loss: float = 0.0
    real_files: bool = False
    refusal: float = 0.0
    damage_every_ms: int | None = None
    move_every_ms: int | None = None
    controller_every_ms: int | None = None
    forge_every_ms: int | None = None


def draw_options(rng: random.Random) -> SimOptions:
    """Return random options for one seed."""
    voter_count = rng.choice([1, 2, 3, 3, 3, 3, 4, 5, 5])

    def sometimes(low: int, high: int, chance: float = 0.6) -> int | None:
        return rng.randint(low, high) if rng.random() < chance else None

    return SimOptions(
        voter_count=voter_count,
        observer_count=rng.choice([0, 0, 1, 2]),
        delay_ms_max=rng.choice([2, 10, 30, 150]),
        loss=rng.choice([0.0, 0.0, 0.01, 0.05, 0.2]),
        duplication=rng.choice([0.0, 0.02, 0.2]),
        flush_ms_max=rng.choice([1, 5, 20, 80]),
        crash_every_ms=sometimes(500, 5_000, 0.8),
        shutdown_every_ms=sometimes(1_000, 10_000, 0.4),
        cut_every_ms=sometimes(500, 6_000),
        pause_every_ms=sometimes(1_000, 8_000, 0.4),
        wipe=voter_count >= 3 and rng.random() < 0.3,
        clock_drift=rng.choice([0.0, 0.0, 0.01, 0.1]),
        proposal_every_ms=rng.choice([4, 10, 30, 100]),
        down_ms_max=rng.choice([50, 500, 3_000]),
        change_every_ms=sometimes(100, 3_000),
        transfer_every_ms=sometimes(500, 5_000, 0.4),
        snapshot_every=rng.choice([None, 3, 10, 50, 300]),
        kept_snapshots=rng.choice([1, 2, 3]),
        power_loss=rng.choice([0.0, 0.02, 0.2]),
        real_files=rng.random() < REAL_FILES_SHARE,
        refusal=rng.choice([0.0, 0.02, 0.1]),
        damage_every_ms=sometimes(500, 5_000),
        move_every_ms=sometimes(500, 5_000, 0.4),
        controller_every_ms=sometimes(40, 200, CONTROLLER_SHARE),
        forge_every_ms=sometimes(100, 2_000, 0.4),
    )


def calm(*, observer_count: int, proposal_every_ms: int) -> SimOptions:
    """Return options without faults for a quorum of three, for runs that bring their own fault."""
    return SimOptions(
        voter_count=3,
        observer_count=observer_count,
        delay_ms_max=2,
        loss=0.0,
        duplication=0.0,
        flush_ms_max=5,
        crash_every_ms=None,
        shutdown_every_ms=None,
        cut_every_ms=None,
        pause_every_ms=None,
        wipe=False,
        clock_drift=0.0,
        proposal_every_ms=proposal_every_ms,
        down_ms_max=1,
        change_every_ms=None,
        transfer_every_ms=None,
    )


def election_storm(seed: int) -> SimOptions:
    """Return options with almost only crashes and elections, to hunt mutants."""
    return SimOptions(
        voter_count=3 if seed % 2 else 5,
        observer_count=seed % 2,
        delay_ms_max=60,
        loss=0.02,
        duplication=0.05,
        flush_ms_max=20,
        crash_every_ms=150,
        shutdown_every_ms=None,
        cut_every_ms=700,
        pause_every_ms=None,
        wipe=False,
        clock_drift=0.0,
        proposal_every_ms=40,
        down_ms_max=60,
        change_every_ms=None,
        transfer_every_ms=None,
    )


def forgery_storm(seed: int) -> SimOptions:
    """Return options with forged requests that claim epochs which no election has reached."""
    return replace(election_storm(seed), forge_every_ms=50)


def membership_storm(seed: int) -> SimOptions:
    """Return options under which voters change and leaders fail all the time, to hunt mutants."""
    return replace(
        election_storm(seed),
        voter_count=1 + seed % 4,
        observer_count=2,
        crash_every_ms=400,
        cut_every_ms=600,
        down_ms_max=300,
        change_every_ms=60,
        transfer_every_ms=2_000,
    )


def slow_disk_storm(seed: int) -> SimOptions:
    """Return options as `membership_storm`, with disks slower than the network, to hunt mutants that count unflushed records."""
    return replace(membership_storm(seed), flush_ms_max=80, delay_ms_max=10)


def pause_storm(seed: int) -> SimOptions:
    """Return options under which leaders pause until others lead, then wake, to hunt mutants that show old data."""
    return replace(
        election_storm(seed), crash_every_ms=None, cut_every_ms=None, pause_every_ms=1_500, down_ms_max=3_000
    )


def snapshot_storm(seed: int) -> SimOptions:
    """Return options under which replicas are down for longer than the log lasts, to hunt mutants of snapshots."""
    return replace(
        election_storm(seed),
        crash_every_ms=300,
        down_ms_max=600,
        proposal_every_ms=10,
        observer_count=1,
        snapshot_every=5,
        kept_snapshots=1 + seed % 2,
        power_loss=0.1,
    )


def tear_storm(seed: int) -> SimOptions:
    """Return options with frequent power losses during writes to real files, to hunt mutants."""
    return replace(
        election_storm(seed),
        real_files=True,
        crash_every_ms=100,
        cut_every_ms=None,
        down_ms_max=30,
        flush_ms_max=50,
        proposal_every_ms=5,
        power_loss=0.3,
        refusal=0.3,
    )


def rot_storm(seed: int) -> SimOptions:
    """Return options with bit flips on real disks, as often as a quorum survives them, to hunt mutants."""
    return replace(
        election_storm(seed),
        real_files=True,
        observer_count=1,
        crash_every_ms=2_000,
        cut_every_ms=None,
        change_every_ms=50,
        proposal_every_ms=20,
        snapshot_every=20 if seed % 4 == 0 else None,
        damage_every_ms=150,
    )


def move_storm(seed: int) -> SimOptions:
    """Return options under which voters move all the time."""
    return replace(election_storm(seed), crash_every_ms=1_000, move_every_ms=300, down_ms_max=300)


def controller_storm(seed: int) -> SimOptions:
    """Return options under which controllers are busy, and take over from each other now and then."""
    return replace(
        election_storm(seed),
        crash_every_ms=1_500,
        cut_every_ms=3_000,
        down_ms_max=300,
        snapshot_every=50 if seed % 3 == 0 else None,
        controller_every_ms=60,
    )
