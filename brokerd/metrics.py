# SPDX-License-Identifier: Apache-2.0
"""The metrics of a broker process: those of its quorum node, be it an observer or a voter. Composition only."""

from __future__ import annotations

from typing import TYPE_CHECKING

from brokerd.errors import AddressInUseError
from metaquorum.runtime.quorum_node import QuorumNode
from metaquorum.settings import Address

if TYPE_CHECKING:
    from metaquorum.rpc.metrics_listener import MetricsListener


def open_metrics(node: QuorumNode, listen: Address) -> MetricsListener:
    """Serve the metrics of a node until the listener is closed.

    Raises:
        AddressInUseError: the port is taken, or the address is not of this machine.
    """
    # Loaded where it is used: a broker without metrics need not know the library.
    from metaquorum.rpc.metrics_listener import MetricsAddressError, MetricsListener

    listener = MetricsListener(node.sample)
    try:
        listener.open(listen)
    except MetricsAddressError as error:
        raise AddressInUseError(str(error)) from error
    return listener
