# SPDX-License-Identifier: Apache-2.0
"""Whether a server that asks belongs here: it names this cluster, and is the process that this broker's metadata has registered.

Owns those checks for everything that servers ask of one another. Law: a broker that is refused because the metadata here is behind is
told to try again; one that is refused because a newer process is registered must register again.
"""

from __future__ import annotations

from typing import Final

from lograft.wire.codes import ErrorCode

from brokerd.failure import refused
from metaquorum.metadata.image import MetadataImage

UNREGISTERED_RETRY_MS: Final = 250
"""Milliseconds after which a broker should ask again where a registration is not known yet."""


def check_named_cluster(named: str, cluster_id: str) -> None:
    """Refuse a request that does not name this cluster: servers know theirs.

    Raises:
        RefusedError: WRONG_CLUSTER.
    """
    if named != cluster_id:
        message = f"this is cluster {cluster_id!r}, not {named[:100]!r}: check the address"
        raise refused(ErrorCode.WRONG_CLUSTER, message)


def check_registered(image: MetadataImage, broker_id: int, *, broker_epoch: int, incarnation_id: bytes) -> None:
    """Refuse a broker that is not registered with that epoch as that process.

    Args:
        image: the metadata as this broker has it.
        broker_id: node id of the broker that asks.
        broker_epoch: epoch of its registration, as it says.
        incarnation_id: random id of its process, as it says.

    Raises:
        RefusedError: METADATA_NOT_REACHED, there is no such registration here yet; STALE_BROKER_EPOCH, there is a newer one;
            INVALID_REQUEST, the registration of that epoch is of another process.
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
    """Return what is said to a process behind which another one registered."""
    return f"broker {broker_id} is registered with epoch {newer_epoch}, this is the earlier one {broker_epoch}: register again"
