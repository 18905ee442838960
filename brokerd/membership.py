# SPDX-License-Identifier: Apache-2.0
"""Checks that a server belongs to this cluster and that its process is the registered one.

Owns these checks for all requests between servers. Law: if the metadata of this broker is behind, the other broker is told to try
again. If a newer process is registered, the other broker must register again.
"""

from __future__ import annotations

from typing import Final

from lograft.wire.codes import ErrorCode

from brokerd.failure import refused
from metaquorum.metadata.image import MetadataImage

UNREGISTERED_RETRY_MS: Final = 250
"""Milliseconds after which a broker should ask again while its registration is not known here."""


def check_named_cluster(named: str, cluster_id: str) -> None:
    """Refuse a request that does not name this cluster. Unlike a client, a server always knows its cluster.

    Raises:
        RefusedError: WRONG_CLUSTER.
    """
    if named != cluster_id:
        message = f"this is cluster {cluster_id!r}, not {named[:100]!r}: check the address"
        raise refused(ErrorCode.WRONG_CLUSTER, message)


def check_registered(image: MetadataImage, broker_id: int, *, broker_epoch: int, incarnation_id: bytes) -> None:
    """Refuse a broker unless it is registered with this epoch and this process.

    Args:
        image: the metadata of this broker.
        broker_id: node id in the request.
        broker_epoch: epoch of the registration, as the request says.
        incarnation_id: random id of the process, as the request says.

    Raises:
        RefusedError: METADATA_NOT_REACHED, this broker does not know the registration yet; STALE_BROKER_EPOCH, a newer one exists;
            INVALID_REQUEST, the registration with this epoch belongs to another process.
    """
    known = image.brokers.get(broker_id)
    if known is None or broker_epoch > known.broker_epoch:
        message = (
            f"broker {broker_id} is not known here with epoch {broker_epoch}: try again once the metadata has come here"
        )
        raise refused(ErrorCode.METADATA_NOT_REACHED, message, retry_after_ms=UNREGISTERED_RETRY_MS)
    if broker_epoch < known.broker_epoch:
        raise refused(ErrorCode.STALE_BROKER_EPOCH, stale(broker_id, broker_epoch, known.broker_epoch))
    if incarnation_id != known.incarnation_id:
        message = (
            f"epoch {broker_epoch} of broker {broker_id} belongs to another process: register, and name its incarnation"
        )
        raise refused(ErrorCode.INVALID_REQUEST, message)


def stale(broker_id: int, broker_epoch: int, newer_epoch: int) -> str:
    """Return the message for a process after a newer process has registered under its id."""
    return f"broker {broker_id} is registered with epoch {newer_epoch}, this is the earlier one {broker_epoch}: register again"
