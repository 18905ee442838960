# SPDX-License-Identifier: Apache-2.0
"""Observations of a cluster during a soak, and their judgement. Pure.

Samples are taken at intervals. What happens between two samples shows in numbers that only rise: the quorum epoch and the leader epochs
of partitions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

MIB = 1024 * 1024
GROWTH_MIB_PER_MIN_MAX = 6.0
"""Maximum memory that a server may gain per minute after it has settled, in MiB."""
GROWTH_JUDGED_FROM_S = 240.0
"""Seconds of a soak from which on growth is judged. In a shorter soak buffers and caches still fill."""
SETTLED_SHARE = 0.5
"""Share of the soak, counted from its end, in which growth is measured."""
RSS_BYTES_MAX = 1024 * MIB
"""Maximum memory of a server at any time."""
DISK_BYTES_MAX = 4_000_000_000
"""Maximum bytes of the data directories of all servers together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """The cluster at one moment.

    Attributes:
        time_s: seconds since the soak began.
        quorum_epoch: quorum epoch according to the quorum leader.
        quorum_leader_id: leader of the quorum; None: there is none.
        fenced: fenced brokers.
        leader_epochs: leader epoch of each partition.
        out_of_sync: number of replicas that are not in sync, of all partitions.
        rss_bytes: memory of each server.
        disk_bytes: bytes of all data directories.
    """

    time_s: float
    quorum_epoch: int
    quorum_leader_id: int | None
    fenced: tuple[int, ...]
    leader_epochs: tuple[int, ...]
    out_of_sync: int
    rss_bytes: Mapping[str, int]
    disk_bytes: int


def growth_bytes_per_s(points: Sequence[tuple[float, float]]) -> float:
    """Return the slope of the least-squares line through points (seconds, bytes); 0 with fewer than two different times."""
    count = len(points)
    mean_s = sum(time_s for time_s, _ in points) / max(1, count)
    mean = sum(value for _, value in points) / max(1, count)
    spread = sum((time_s - mean_s) ** 2 for time_s, _ in points)
    if spread == 0:
        return 0.0
    return sum((time_s - mean_s) * (value - mean) for time_s, value in points) / spread


def growth_mib_per_min(samples: Sequence[Sample], server: str) -> float:
    """Return how fast the memory of a server grows in the later part of the samples."""
    begin_s, end_s = samples[0].time_s, samples[-1].time_s
    from_s = end_s - (end_s - begin_s) * SETTLED_SHARE
    points = [(each.time_s, float(each.rss_bytes[server])) for each in samples if each.time_s >= from_s]
    return growth_bytes_per_s(points) * 60 / MIB


def leader_changes(samples: Sequence[Sample]) -> int:
    """Return the number of leadership changes of all partitions, including those between samples."""
    first, last = samples[0].leader_epochs, samples[-1].leader_epochs
    return sum(last) - sum(first)


def judge(samples: Sequence[Sample]) -> list[str]:
    """Return the problems: an election, a fenced broker, unbounded growth. Needs at least two samples."""
    if len(samples) < 2:
        return [f"{len(samples)} samples of the cluster tell nothing"]
    problems: list[str] = []
    first = samples[0]
    for before, after in pairwise(samples):
        if after.quorum_epoch != before.quorum_epoch:
            epochs = f"{before.quorum_epoch} -> {after.quorum_epoch}"
            problems.append(f"quorum epoch {epochs} between {before.time_s:.1f} and {after.time_s:.1f} s: an election")
        if set(after.fenced) - set(before.fenced):
            problems.append(f"brokers {after.fenced} are fenced at {after.time_s:.1f} s")
    for server in first.rss_bytes:
        growth = growth_mib_per_min(samples, server)
        is_judged = samples[-1].time_s - first.time_s >= GROWTH_JUDGED_FROM_S
        if is_judged and growth > GROWTH_MIB_PER_MIN_MAX:
            problems.append(f"{server} gains {growth:.1f} MiB a minute, over {GROWTH_MIB_PER_MIN_MAX}")
        most = max(each.rss_bytes[server] for each in samples)
        if most > RSS_BYTES_MAX:
            problems.append(f"{server} had {most / MIB:.0f} MiB of memory, over {RSS_BYTES_MAX // MIB}")
    most = max(each.disk_bytes for each in samples)
    if most > DISK_BYTES_MAX:
        problems.append(f"the data directories had {most} bytes, over {DISK_BYTES_MAX}")
    return problems
