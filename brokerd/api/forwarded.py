# SPDX-License-Identifier: Apache-2.0
"""A call that another broker passed on: the mark it carries, and what its receiver makes of it.

Owns the mark and the wait of a receiver that has seen less metadata than the forwarder. Must not send calls.
Law: a call goes one hop, so a receiver that cannot answer what the forwarder believed it leads refuses it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from brokerd.api.calls import ServicerContext, left_ms
from brokerd.api.parts import BrokerParts
from brokerd.limits import FORWARDED_WAIT_MS

FORWARDED_KEY: Final = "lograft-forwarded"
"""Metadata key of a call that another broker passed on; such a call is never passed on again.

Its value is the metadata offset that the forwarder had seen (exclusive, decimal).
"""

MAX_OFFSET_DIGITS: Final = 19
"""Digits of the largest offset; a longer value is no offset."""


def forwarded_mark(metadata_offset: int) -> tuple[tuple[str, str], ...]:
    """Make the gRPC metadata of a call that is passed on by a broker that has seen `metadata_offset`."""
    return ((FORWARDED_KEY, str(metadata_offset)),)


async def was_forwarded(context: ServicerContext, parts: BrokerParts, wanted: Iterable[tuple[str, int]]) -> bool:
    """Tell whether another broker passed the call on, when this broker knows what that one knew.

    A new topic, or a new leader, reaches the brokers one after the other. A receiver that does not lead what it is asked
    for waits for the metadata that the forwarder had seen, FORWARDED_WAIT_MS at most; then its own view counts.

    Args:
        context: the call.
        parts: this broker's metadata and replicas.
        wanted: topic name and partition of everything that the call asks for.
    """
    seen = _seen_by_forwarder(context)
    if seen is None:
        return False
    is_behind = parts.observer.metadata_offset < seen
    if is_behind and not all(parts.locator.leads(topic, partition) for topic, partition in wanted):
        await parts.observer.wait_for(seen, timeout_ms=left_ms(context, at_most_ms=FORWARDED_WAIT_MS))
    return True


def _seen_by_forwarder(context: ServicerContext) -> int | None:
    for key, value in context.invocation_metadata() or ():
        if key == FORWARDED_KEY:
            is_offset = isinstance(value, str) and len(value) <= MAX_OFFSET_DIGITS and value.isdecimal()
            return int(value) if is_offset else 0
    return None
