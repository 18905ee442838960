# SPDX-License-Identifier: Apache-2.0
"""The metrics of a quorum node in the form of Prometheus.

Owns names, units and help texts, and their derivation from a sample. Keeps nothing between two scrapes.
Source: KIP-595 "Metrics" (what is shown); Prometheus, "Metric and label naming". `docs/quorum.md` section "Metrics".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from metaquorum.replica.latency_window import BUCKETS_S, Latencies
from metaquorum.replica.quorum_metrics import ROLES, QuorumSample

PREFIX: Final = "lograft_quorum_"
"""Prefix of every name."""

NOBODY: Final = -1
"""Value of a metric that is a node id, if there is no such node."""


class QuorumCollector(Collector):
    """Turns one sample into metrics at each scrape.

    Args:
        take: returns the sample; None if there is nothing to show yet.
    """

    def __init__(self, take: Callable[[], QuorumSample | None]) -> None:
        self._take = take

    def describe(self) -> Iterable[Metric]:
        """Return nothing: otherwise a registry would scrape to learn the names."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics of one sample."""
        sample = self._take()
        if sample is None:
            return
        info = GaugeMetricFamily(
            f"{PREFIX}info", "Always 1; which node of which cluster this is.", labels=("cluster_id", "node_id")
        )
        info.add_metric((sample.cluster_id, str(sample.node_id)), 1)
        yield info
        role = GaugeMetricFamily(
            f"{PREFIX}role", "1 for the role that this node has, 0 for the others.", labels=("role",)
        )
        for name in ROLES:
            role.add_metric((name,), int(name == sample.role))
        yield role
        for name, text, value in _gauges(sample):
            if value is not None:
                yield GaugeMetricFamily(PREFIX + name, text, value=value)
        for name, text, total in _counters(sample):
            yield CounterMetricFamily(PREFIX + name, text, value=total)
        yield from _latencies(
            "commit_latency",
            "from the append of a record by this node as leader to its commit, a sample of the records",
            sample.meter.commits,
        )
        yield from _latencies(
            "election_latency", "for which this node knew no leader before one of a new epoch", sample.meter.elections
        )


def _gauges(sample: QuorumSample) -> Iterator[tuple[str, str, float | None]]:
    log_end, high_watermark = sample.log_end_offset, sample.high_watermark
    yield "leader_id", "Node id of the leader of the epoch; -1: none known.", _node(sample.leader_id)
    yield "voted_id", "Node id that has this node's vote in the epoch; -1: none.", _node(sample.voted_id)
    yield "epoch", "Highest quorum epoch seen.", sample.quorum_epoch
    yield "is_voter", "1 where this node votes, 0 where it observes.", int(sample.is_voter)
    yield "high_watermark_offset", "End of the committed log, exclusive; absent: not known.", high_watermark
    yield "log_start_offset", "First offset of the log, inclusive.", sample.log_start_offset
    yield "log_end_offset", "End of the log, exclusive.", log_end
    yield "log_end_epoch", "Quorum epoch of the last record.", sample.log_end_epoch
    yield "flushed_offset", "End of the log on stable storage, exclusive.", sample.flushed_offset
    yield "unflushed_records", "Records that are not on stable storage here.", log_end - sample.flushed_offset
    uncommitted = None if high_watermark is None else max(0, log_end - high_watermark)
    yield "uncommitted_records", "Records here that are not known to be committed.", uncommitted
    yield (
        "uncommitted_bytes",
        "Bytes that this leader appended and that are not committed; 0 on others.",
        sample.uncommitted_bytes,
    )
    yield "voters", "Voters in force.", sample.voter_count
    yield "observers", "Observers that fetch from this leader; absent on others.", sample.observer_count
    yield (
        "uncommitted_voter_change",
        "1 while the newest set of voters is not known to be committed.",
        int(sample.has_uncommitted_change),
    )
    yield (
        "loop_idle_ratio",
        "Share of the time since the last scrape in which the event loop used no processor; absent at the first.",
        sample.loop_idle_ratio,
    )


def _node(node_id: int | None) -> int:
    return NOBODY if node_id is None else node_id


def _counters(sample: QuorumSample) -> Iterator[tuple[str, str, float]]:
    meter = sample.meter
    yield "appended_records", "Records appended to the log of this node, as leader or follower.", meter.appended_records
    yield "fetched_records", "Those of them that were fetched from a leader.", meter.fetched_records
    yield "truncations", "Times that the log was cut where it parted from the leader's.", meter.truncations
    yield "elections", "Times that this node learnt of the leader of a new epoch.", meter.elections.count
    yield "loop_busy_seconds", "Processor time of the event loop.", sample.loop_busy_s


def _latencies(name: str, what: str, latencies: Latencies) -> Iterator[Metric]:
    buckets: list[tuple[str, float]] = []
    total = 0
    for bound, count in zip((*map(str, BUCKETS_S), "+Inf"), latencies.bucket_counts, strict=True):
        total += count
        buckets.append((bound, total))
    yield HistogramMetricFamily(f"{PREFIX}{name}_seconds", f"Time {what}.", buckets=buckets, sum_value=latencies.sum_s)
    for kind, value in (("avg", latencies.recent_avg_s), ("max", latencies.recent_max_s)):
        if value is not None:
            text = f"The {kind} of the last minute of the time {what}; absent: there was none."
            yield GaugeMetricFamily(f"{PREFIX}{name}_{kind}_seconds", text, value=value)
