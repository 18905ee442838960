# SPDX-License-Identifier: Apache-2.0
"""Which staged batches are garbage: where the log of a staging partition may begin. Pure.

Law: a batch that its coordinator may still need stays, and so does everything behind it. What a coordinator did not answer for may be
needed. A producer id is never used for another attempt, so an answer that nothing is needed holds for ever.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from lograft.wire.limits import PUBLISHING_PRODUCER_ID_MIN, STAGING_PRODUCER_ID_MIN

from brokerd.publishing.limits import SEQUENCE_COUNT
from brokerd.publishing.plan import StagedBatch

Live = Mapping[int, int | None]
"""By producer id: the sequence from which on its staged records may be needed, or None: nothing is. Missing: nobody answered."""


def is_staging_id(producer_id: int) -> bool:
    """Tell whether a producer id is one of an attempt."""
    return STAGING_PRODUCER_ID_MIN <= producer_id < PUBLISHING_PRODUCER_ID_MIN


def is_needed(batch: StagedBatch, live: Live) -> bool:
    """Tell whether a batch may be needed."""
    if not is_staging_id(batch.producer_id):
        return False
    if batch.producer_id not in live:
        return True
    from_sequence = live[batch.producer_id]
    if from_sequence is None:
        return False
    # The batch is not needed if it ends where the needed ones begin, or up to half a circle before.
    beyond = (batch.base_sequence + batch.next_offset - batch.base_offset - from_sequence) % SEQUENCE_COUNT
    return 0 < beyond <= SEQUENCE_COUNT // 2


def first_needed(batches: Iterable[StagedBatch], live: Live) -> int | None:
    """Return the base offset of the first batch that may be needed; None: none is."""
    for batch in batches:
        if is_needed(batch, live):
            return batch.base_offset
    return None
