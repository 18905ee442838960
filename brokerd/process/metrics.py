# SPDX-License-Identifier: Apache-2.0
"""The metrics of a broker process: its quorum node, be it an observer or a voter, its memory budgets, its log directories."""

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
"""Beginning of the names of the budgets' metrics."""

UNKNOWN_PREFIX: Final = "lograft_broker_unknown_"
"""Beginning of the names of the metrics of partitions that the metadata never knew."""


class MemoryCollector:
    """The memory budgets of a broker as Prometheus reads them. Numbers are read one by one, outside of the event loop.

    Args:
        budgets: by the name that is their label.
    """

    def __init__(self, budgets: Mapping[str, MemoryBudget]) -> None:
        self._budgets = budgets

    def collect(self) -> Iterator[Metric]:
        """Give the metrics of this moment."""
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
    """What lies in the log directories of a broker and the metadata never knew, as Prometheus reads it.

    Args:
        counts: gives what was last counted in each directory; called outside of the event loop.
    """

    def __init__(self, counts: Callable[[], Mapping[LogDirectory, UnknownPartitions]]) -> None:
        self._counts = counts

    def collect(self) -> Iterator[Metric]:
        """Give the metrics of this moment."""
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
    """Serve the metrics of a node, and of the memory budgets and log directories of its broker, until the listener is closed.

    Raises:
        AddressInUseError: the port is taken, or the address is not of this machine.
    """
    # Loaded where it is used: a broker without metrics need not know the library.
    from metaquorum.process.metrics_listener import MetricsAddressError, MetricsListener

    listener = MetricsListener(node.sample, MemoryCollector(budgets), UnknownPartitionsCollector(unknown))
    try:
        listener.open(listen)
    except MetricsAddressError as error:
        raise AddressInUseError(str(error)) from error
    return listener
