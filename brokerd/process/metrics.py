# SPDX-License-Identifier: Apache-2.0
"""The metrics of a broker process: its quorum node (observer or voter), its memory budgets, its log directories."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from operator import attrgetter
from typing import TYPE_CHECKING, Final

from brokerd.errors import AddressInUseError
from brokerd.memory.budget import MemoryBudget
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


def open_metrics(
    node: QuorumNode,
    listen: Address,
    budgets: Mapping[str, MemoryBudget],
    *,
    unknown: Callable[[], Mapping[LogDirectory, UnknownPartitions]],
) -> MetricsListener:
    """Serve the metrics of a node and of its broker's memory budgets and log directories until the listener is closed.

    Raises:
        AddressInUseError: the port is taken, or the address is not one of this machine.
    """
    # Imported here, so that a broker without metrics does not need the library.
    from metaquorum.process.metrics_listener import MetricsAddressError, MetricsListener

    listener = MetricsListener(node.sample, MemoryCollector(budgets), UnknownPartitionsCollector(unknown))
    try:
        listener.open(listen)
    except MetricsAddressError as error:
        raise AddressInUseError(str(error)) from error
    return listener
