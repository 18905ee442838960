# SPDX-License-Identifier: Apache-2.0
"""Where the servers of a cluster reach each other."""

from __future__ import annotations

from metaquorum.metadata.image import MetadataImage
from metaquorum.process.settings import Address


def internal_address(image: MetadataImage, broker_id: int) -> Address | None:
    """Return where another broker takes the connections of servers; None: it is not registered, or without such a port."""
    broker = image.brokers.get(broker_id)
    if broker is None or broker.replication_port == 0:
        return None
    return Address(host=broker.host, port=broker.replication_port)
