# SPDX-License-Identifier: Apache-2.0
"""What administrators see of ingests: a list, and one with its progress.

Decisions over `IngestsState`; none of them changes anything.
"""

from __future__ import annotations

import heapq

from brokerd.ingests.answers import (
    IngestDecision,
    IngestDescription,
    IngestList,
    IngestListing,
    Refusal,
    decided,
    refused,
)
from brokerd.ingests.commands import DescribeIngest, ListIngests
from brokerd.ingests.ingest import Ingest, result_of
from brokerd.ingests.limits import LISTED_MAX
from brokerd.ingests.opening import not_found
from brokerd.ingests.records import IngestValue
from brokerd.ingests.state import IngestsState


def describe(state: IngestsState, command: DescribeIngest) -> IngestDecision:
    """Describe an ingest with its progress."""
    known = state.value_of(command.ingest_id)
    if known is None:
        return not_found(command.ingest_id)
    ingest, value = known
    current = [each for each in ingest.attempts.values() if ingest.is_current(each)]
    sealed = [each for each in current if each.is_sealed]
    result = result_of(value)
    plans = ingest.plans.get(value.round, {}) if result is None and value.decision is not None else {}
    return decided(
        IngestDescription(
            listing=_listing(state, ingest, value),
            open_attempts=len(current) - len(sealed),
            sealed_attempts=len(sealed),
            sealed_records=sum(part.records for each in sealed for part in each.parts),
            parts=len(plans) if result is None else len(result.parts),
            published_parts=len(plans) - ingest.unpublished(value.round) if result is None else len(result.parts),
            result=result,
        )
    )


def list_ingests(state: IngestsState, command: ListIngests) -> IngestDecision:
    """List ingests by id, a page at a time."""
    if not 1 <= command.limit <= LISTED_MAX:
        return refused(Refusal.INVALID_REQUEST, f"a page has 1 to {LISTED_MAX} ingests")
    wanted = (
        ingest_id
        for ingest_id, ingest in state.ingests.items()
        if ingest_id > command.after
        and ingest.value is not None
        and (not command.states or ingest.value.state in command.states)
    )
    ids = heapq.nsmallest(command.limit + 1, wanted)
    found: list[IngestListing] = []
    for ingest_id in ids[: command.limit]:
        ingest = state.ingests[ingest_id]
        assert ingest.value is not None, ingest_id
        found.append(_listing(state, ingest, ingest.value))
    return decided(IngestList(ingests=tuple(found), has_more=len(ids) > command.limit))


def _listing(state: IngestsState, ingest: Ingest, value: IngestValue) -> IngestListing:
    return IngestListing(
        ingest_id=ingest.ingest_id,
        kind=value.kind,
        state=value.state,
        ingest_epoch=value.ingest_epoch,
        round=value.round,
        topics=value.topics,
        ttl_ms=value.ttl_ms,
        touched_ms=state.lived_unix_ms(ingest.ingest_id),
    )
