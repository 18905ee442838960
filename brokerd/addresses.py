# SPDX-License-Identifier: Apache-2.0
"""The internal addresses at which servers of a cluster reach each other."""

from __future__ import annotations

from metaquorum.metadata.image import MetadataImage
from metaquorum.process.settings import Address


def internal_address(image: MetadataImage, broker_id: int) -> Address | None:
    """Return the address of a broker's internal port; None if the broker is not registered or has no such port."""
    broker = image.brokers.get(broker_id)
    if broker is None or broker.replication_port == 0:
        return None
    return Address(host=broker.host, port=broker.replication_port)
