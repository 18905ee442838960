# SPDX-License-Identifier: Apache-2.0
"""The admin calls about ingests: list, describe, abort.

A call about one ingest goes to its coordinator, which is looked for again within the time of the call. This module owns the pages of
lists.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Final

from lograft._admin.calls import AdminCalls
from lograft._client.clock import monotonic_ms
from lograft._client.stubs import ingest_service
from lograft._ingests.arguments import check_ingest_id
from lograft.errors import RetriableError, UsageError
from lograft.settings import LAST_TRY_MS
from lograft.types import IngestDescription, IngestList, IngestState
from lograft.v1 import ingest_pb2 as pb

PAGE_INGESTS: Final = 1_000
"""Ingests in one page of a list."""


async def list_ingests(calls: AdminCalls, states: Iterable[IngestState] | None = None) -> IngestList:
    """List the ingests of the cluster, by id. Coordinators that load or move are asked again until the time is up.

    Args:
        states: list only ingests in one of these states; None lists all.

    Returns:
        The ingests without their results, and the coordinators that did not answer in time: theirs are missing.

    Raises:
        UsageError: a state is not one that an ingest can have.
        LograftError: no broker answered.
    """
    from lograft._ingests.messages import STATES, decode_description

    numbers = {state: number for number, state in STATES.items()}
    wanted: list[pb.IngestState.ValueType] = []
    for state in states or ():
        if state not in numbers:
            raise UsageError(f"ingests are {', '.join(each.value for each in numbers)}, not {state!r}")
        wanted.append(numbers[state])
    if states is not None and not wanted:
        return IngestList(ingests=())
    deadline_ms = monotonic_ms() + calls.timeout_ms
    backoff = calls.cluster.backoff()
    found: list[IngestDescription] = []
    missing: set[int] = set()
    incomplete: pb.ListIngestsResponse | None = None
    after = ""
    while True:
        request = pb.ListIngestsRequest(
            cluster_id=calls.cluster.cluster_id, after=after, limit=PAGE_INGESTS, states=wanted
        )
        try:
            response = await calls.cluster.ask(
                lambda channel: ingest_service(channel).ListIngests,
                request,
                timeout_ms=max(1, deadline_ms - monotonic_ms()),
            )
        except RetriableError:
            # No time is left for another attempt: what an earlier one has found is better than nothing.
            if incomplete is None:
                raise
            response = incomplete
        delay_ms = backoff.next_delay_ms()
        if response.missing_coordinator_ids and deadline_ms - monotonic_ms() - delay_ms >= LAST_TRY_MS:
            incomplete = response
            await asyncio.sleep(delay_ms / 1000)
            continue
        incomplete = None
        missing.update(response.missing_coordinator_ids)
        found += map(decode_description, response.ingests)
        if not response.has_more or not response.ingests:
            return IngestList(ingests=tuple(found), missing_coordinator_ids=tuple(sorted(missing)))
        after = response.ingests[-1].ingest_id


async def describe_ingest(calls: AdminCalls, ingest_id: str) -> IngestDescription:
    """Describe an ingest, or the transactions of an id: state, progress, and what was committed last.

    Args:
        ingest_id: id of the ingest, or of transactions.

    Raises:
        IngestNotFoundError: there is no such ingest, or it was forgotten.
        UsageError: the id is not 1 to 255 bytes of text.
        LograftError: no coordinator answered in time.
    """
    from lograft._ingests.messages import decode_description

    name = check_ingest_id(ingest_id)
    request = pb.DescribeIngestRequest(cluster_id=calls.cluster.cluster_id, ingest_id=name)
    response = await calls.ingest_coordinators().call(
        name, lambda channel: ingest_service(channel).DescribeIngest, request, timeout_ms=calls.timeout_ms
    )
    return decode_description(response.ingest)


async def abort_ingest(calls: AdminCalls, ingest_id: str) -> None:
    """End an ingest, or the present transaction of an id, without publishing anything. Its client is told so at its next call.

    Args:
        ingest_id: id of the ingest, or of transactions.

    Raises:
        IngestCommittedError: it is committed, or the transaction is decided.
        IngestNotFoundError: there is no such ingest.
        UsageError: the id is not 1 to 255 bytes of text.
        LograftError: no coordinator answered in time.
    """
    name = check_ingest_id(ingest_id)
    request = pb.AbortIngestRequest(ingest_id=name)
    await calls.ingest_coordinators().call(
        name, lambda channel: ingest_service(channel).AbortIngest, request, timeout_ms=calls.timeout_ms
    )
