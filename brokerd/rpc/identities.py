# SPDX-License-Identifier: Apache-2.0
"""Whether a producer identity that a client brings along was ever given out."""

from __future__ import annotations

from typing import Final

from lograft.wire.codes import ErrorCode

from brokerd.clock import monotonic_ms
from brokerd.failure import refused
from brokerd.metadata.observer import MetadataObserver

MAX_PRODUCER_EPOCH: Final = 32_767
"""Largest producer epoch: it is a signed 16-bit number in the batch header."""

IDENTITY_LAG_MS: Final = 1_000
"""Milliseconds that this broker may be behind the broker that gave an id out."""


async def check_identity(observer: MetadataObserver, producer_id: int, producer_epoch: int) -> None:
    """Refuse an identity that the quorum never gave out: a later owner of the id would collide with it.

    Raises:
        RefusedError: INVALID_REQUEST.
    """
    give_up_ms = monotonic_ms() + IDENTITY_LAG_MS
    while producer_id >= observer.image.next_producer_id:
        # The block may be committed and not have come here yet.
        left_ms = give_up_ms - monotonic_ms()
        if not await observer.wait_for(observer.metadata_offset + 1, timeout_ms=left_ms):
            break
    if not 0 <= producer_id < observer.image.next_producer_id or not 0 <= producer_epoch <= MAX_PRODUCER_EPOCH:
        raise refused(
            ErrorCode.INVALID_REQUEST,
            f"producer {producer_id} epoch {producer_epoch} was never given out by this cluster: ask for a new one",
        )
