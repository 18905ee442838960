# SPDX-License-Identifier: Apache-2.0
"""The metrics of a broker process: those of its quorum node, be it an observer or a voter, and its memory budgets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from operator import attrgetter
from typing import TYPE_CHECKING, Final

from brokerd.errors import AddressInUseError
from brokerd.memory_budget import MemoryBudget
from metaquorum.runtime.quorum_node import QuorumNode
from metaquorum.settings import Address

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

    from metaquorum.rpc.metrics_listener import MetricsListener


PREFIX: Final = "lograft_broker_memory_"
"""Beginning of the names of the budgets' metrics."""


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


def open_metrics(node: QuorumNode, listen: Address, budgets: Mapping[str, MemoryBudget]) -> MetricsListener:
    """Serve the metrics of a node and the memory budgets of its broker until the listener is closed.

    Raises:
        AddressInUseError: the port is taken, or the address is not of this machine.
    """
    # Loaded where it is used: a broker without metrics need not know the library.
    from metaquorum.rpc.metrics_listener import MetricsAddressError, MetricsListener

    listener = MetricsListener(node.sample, MemoryCollector(budgets))
    try:
        listener.open(listen)
    except MetricsAddressError as error:
        raise AddressInUseError(str(error)) from error
    return listener
