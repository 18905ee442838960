# SPDX-License-Identifier: Apache-2.0
"""The metrics of a broker process: its quorum node (observer or voter), memory budgets, log directories, groups and ingests."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from operator import attrgetter
from typing import TYPE_CHECKING, Final

from brokerd.errors import AddressInUseError
from brokerd.groups.figures import GroupFigures, GroupTotals
from brokerd.ingests.figures import IngestFigures, IngestTotals
from brokerd.memory.budget import MemoryBudget
from brokerd.publishing.quota import StagingQuota
from brokerd.replica.removed_directories import UnknownPartitions
from metaquorum.process.settings import Address
from metaquorum.replica.quorum_node import QuorumNode
from storage.directory.directories import LogDirectory

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

    from metaquorum.process.metrics_listener import MetricsListener


PREFIX: Final = "lograft_broker_memory_"
"""Prefix of the metrics of memory budgets."""

UNKNOWN_PREFIX: Final = "lograft_broker_unknown_"
"""Prefix of the metrics of stray partitions."""


GROUP_PREFIX: Final = "lograft_broker_group_"
"""Prefix of the metrics of groups."""

INGEST_PREFIX: Final = "lograft_broker_ingest_"
"""Prefix of the metrics of ingests."""


class MemoryCollector:
    """Memory budgets as Prometheus metrics. It reads the numbers one by one, outside the event loop.

    Args:
        budgets: the budgets by name; the name is their label.
    """

    def __init__(self, budgets: Mapping[str, MemoryBudget]) -> None:
        self._budgets = budgets

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics of this moment."""
        from prometheus_client.core import GaugeMetricFamily

        for name, text, value in (
            ("held_bytes", "Bytes of the budget that are held.", attrgetter("held_bytes")),
            ("limit_bytes", "Most bytes of the budget that are held at once.", attrgetter("limit_bytes")),
            ("waiters", "Streams and calls that wait for bytes of the budget.", attrgetter("waiter_count")),
        ):
            family = GaugeMetricFamily(PREFIX + name, text, labels=("budget",))
            for budget_name, budget in self._budgets.items():
                family.add_metric((budget_name,), value(budget))
            yield family


class UnknownPartitionsCollector:
    """Stray partitions in the log directories of a broker as Prometheus metrics.

    Args:
        counts: returns the last count of each directory. It is called outside the event loop.
    """

    def __init__(self, counts: Callable[[], Mapping[LogDirectory, UnknownPartitions]]) -> None:
        self._counts = counts

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics of this moment."""
        from prometheus_client.core import GaugeMetricFamily

        counts = self._counts()
        for name, text, value in (
            ("partitions", "Partition directories that the metadata never knew.", attrgetter("partition_count")),
            ("partition_bytes", "Bytes of the files in them.", attrgetter("size_bytes")),
        ):
            family = GaugeMetricFamily(UNKNOWN_PREFIX + name, text, labels=("directory",))
            for directory, found in counts.items():
                family.add_metric((directory.path,), value(found))
            yield family


class GroupCollector:
    """The groups that a broker coordinates as Prometheus metrics.

    Args:
        read: returns the totals, and the figures of the last look; None before the broker is composed. It is called outside the event
            loop.
    """

    def __init__(self, read: Callable[[], tuple[GroupTotals, GroupFigures] | None]) -> None:
        self._read = read

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics of this moment."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        found = self._read()
        if found is None:
            return
        totals, figures = found
        groups = GaugeMetricFamily(
            GROUP_PREFIX + "groups", "Groups that this broker coordinates, by state.", labels=("state",)
        )
        for state, count in figures.groups.items():
            groups.add_metric((state,), count)
        yield groups
        for name, text, value in (
            ("coordinators", "Partitions of __groups whose coordinator is active here.", figures.coordinator_count),
            ("members", "Members of these groups.", figures.member_count),
            ("offsets", "Committed offsets of these groups.", figures.offset_count),
            ("last_load_seconds", "Seconds that the last loading of a coordinator took.", totals.last_load_ms / 1000),
        ):
            yield GaugeMetricFamily(GROUP_PREFIX + name, text, value=value)
        for name, text, value in (
            ("loads", "Loadings of coordinators that ended.", totals.loads),
            ("load_seconds", "Seconds that they took together.", totals.load_ms / 1000),
            ("expired_offsets", "Committed offsets that have expired.", totals.expired_offsets),
            ("expired_groups", "Groups without members and offsets that were deleted.", totals.expired_groups),
            ("assignments", "Target assignments that were computed.", totals.computed_assignments),
            ("failed_assignments", "Computations of target assignments that failed.", totals.failed_assignments),
            ("ended_slow_streams", "Groups streams that were ended because nobody read.", totals.ended_slow_streams),
        ):
            yield CounterMetricFamily(GROUP_PREFIX + name, text, value=value)
        removed = CounterMetricFamily(
            GROUP_PREFIX + "removed_members", "Members that were removed without asking for it.", labels=("reason",)
        )
        for reason, count in dict(totals.removed_members).items():
            removed.add_metric((reason.lower(),), count)
        yield removed
        commands = CounterMetricFamily(
            GROUP_PREFIX + "commands", "Commands to coordinators, by kind and result.", labels=("command", "result")
        )
        for labels, count in dict(totals.commands).items():
            commands.add_metric(labels, count)
        yield commands


class IngestCollector:
    """The ingests that a broker coordinates, and what is staged at it, as Prometheus metrics.

    Args:
        read: returns the totals, the figures of the last look, and the staging quota; None before the broker is composed. It is called
            outside the event loop.
    """

    def __init__(self, read: Callable[[], tuple[IngestTotals, IngestFigures, StagingQuota] | None]) -> None:
        self._read = read

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics of this moment."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        found = self._read()
        if found is None:
            return
        totals, figures, quota = found
        ingests = GaugeMetricFamily(
            INGEST_PREFIX + "ingests", "Ingests that this broker coordinates, by state.", labels=("state",)
        )
        for state, count in figures.ingests.items():
            ingests.add_metric((state,), count)
        yield ingests
        for name, text, value in (
            ("coordinators", "Partitions of __ingests whose coordinator is active here.", figures.coordinator_count),
            ("attempts", "Attempts of these ingests.", figures.attempt_count),
            ("last_load_seconds", "Seconds that the last loading of a coordinator took.", totals.last_load_ms / 1000),
            ("staged_bytes", "Bytes of the staging partitions that this broker leads.", quota.used_bytes),
            ("staged_limit_bytes", "Bytes that may be staged at this broker.", quota.limit_bytes),
        ):
            yield GaugeMetricFamily(INGEST_PREFIX + name, text, value=value)
        for name, text, value in (
            ("loads", "Loadings of coordinators that ended.", totals.loads),
            ("load_seconds", "Seconds that they took together.", totals.load_ms / 1000),
            ("completed_decisions", "Decisions that were published in all partitions.", totals.completed_decisions),
            ("published_parts", "Parts of decisions that leaders have published.", totals.published_parts),
            ("failed_parts", "Asks for a publication that failed; they are repeated.", totals.failed_parts),
            ("left_out_parts", "Asks left out because too many were under way.", totals.left_out_parts),
            ("ended_parts", "Parts that ended because their topic was deleted.", totals.ended_parts),
            ("lost_records", "Published records that the log of a partition has lost.", totals.lost_records),
            ("expired_ingests", "Ingests that were aborted because nobody touched them.", totals.expired_ingests),
            ("told_groups", "Outcomes that groups were told.", totals.told_groups),
            ("failed_groups", "Attempts to tell a group that failed; they are repeated.", totals.failed_groups),
        ):
            yield CounterMetricFamily(INGEST_PREFIX + name, text, value=value)
        commands = CounterMetricFamily(
            INGEST_PREFIX + "commands", "Commands to coordinators, by kind and result.", labels=("command", "result")
        )
        for labels, count in dict(totals.commands).items():
            commands.add_metric(labels, count)
        yield commands


def open_metrics(
    node: QuorumNode,
    listen: Address,
    budgets: Mapping[str, MemoryBudget],
    *,
    unknown: Callable[[], Mapping[LogDirectory, UnknownPartitions]],
    groups: Callable[[], tuple[GroupTotals, GroupFigures] | None],
    ingests: Callable[[], tuple[IngestTotals, IngestFigures, StagingQuota] | None],
) -> MetricsListener:
    """Serve the metrics of a node and of its broker's memory budgets, log directories, groups and ingests until the listener is closed.

    Raises:
        AddressInUseError: the port is taken, or the address is not one of this machine.
    """
    # Imported here, so that a broker without metrics does not need the library.
    from metaquorum.process.metrics_listener import MetricsAddressError, MetricsListener

    listener = MetricsListener(
        node.sample,
        MemoryCollector(budgets),
        UnknownPartitionsCollector(unknown),
        GroupCollector(groups),
        IngestCollector(ingests),
    )
    try:
        listener.open(listen)
    except MetricsAddressError as error:
        raise AddressInUseError(str(error)) from error
    return listener
