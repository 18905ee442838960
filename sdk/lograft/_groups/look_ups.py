# SPDX-License-Identifier: Apache-2.0
"""Look-ups of the committed offsets of a group: pages, and partitions whose offset waits for the decision of an ingest.

Owns the repetition for such partitions. The caller makes the calls, and repeats those that fail as a whole.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

from lograft._client.backoff import Backoff, Rng
from lograft._client.clock import monotonic_ms
from lograft._client.stubs import group_service
from lograft._groups.membership import RETRY_FLOOR_MS
from lograft._groups.messages import decode_offsets, encode_partitions
from lograft._groups.steps import Partition
from lograft.errors import LograftError, ProtocolError
from lograft.types import OffsetAndMetadata
from lograft.v1 import group_pb2

if TYPE_CHECKING:
    import grpc.aio

MAX_PARTITIONS: Final = 4_000
"""Partitions of one request."""

PENDING_RETRY_LIMIT_MS: Final = 1_000
"""Most milliseconds between two look-ups of an offset that waits for the decision of an ingest, which takes seconds at most."""

T = TypeVar("T")
Q = TypeVar("Q")


class CoordinatorCalls(Protocol):
    """Makes calls to the coordinators of groups: the carrier of members, and `Coordinators`."""

    async def call(
        self,
        group_id: str,
        method: Callable[[grpc.aio.Channel], grpc.aio.UnaryUnaryMultiCallable[Q, T]],
        request: Q,
        *,
        timeout_ms: int,
    ) -> T:
        """Make a unary call to the coordinator of a group; see `Coordinators.call`."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LookUp:
    """What a look-up has found.

    Attributes:
        offsets: committed offsets; None: positively no offset is stored.
        errors: partitions of which nothing can be said, and why: never "no offset".
        names: names of topics, if all partitions were asked for.
    """

    offsets: Mapping[Partition, OffsetAndMetadata | None]
    errors: Mapping[Partition, LograftError]
    names: Mapping[bytes, str]


def look_up_backoff(rng: Rng) -> Backoff:
    """Return the pauses until an offset that waits for a decision is asked for again."""
    return Backoff(base_ms=2 * RETRY_FLOOR_MS, limit_ms=PENDING_RETRY_LIMIT_MS, rng=rng)


async def look_up(
    coordinators: CoordinatorCalls,
    group_id: str,
    partitions: Sequence[Partition] | None,
    *,
    cluster_id: str,
    timeout_ms: int,
    backoff: Backoff | None = None,
) -> LookUp:
    """Look up committed offsets.

    Args:
        coordinators: makes the calls.
        group_id: the group.
        partitions: partitions to look up; None: all that have an offset.
        cluster_id: id of the cluster.
        timeout_ms: milliseconds for everything together.
        backoff: gives the pauses until partitions with a retriable error are asked for again; None: that is the caller's business.

    Raises:
        LograftError: no coordinator answered in time, or it refused.
    """
    deadline_ms = monotonic_ms() + timeout_ms
    offsets: dict[Partition, OffsetAndMetadata | None] = {}
    errors: dict[Partition, LograftError] = {}
    names: dict[bytes, str] = {}
    wanted = partitions
    while True:
        for page in _pages(wanted):
            request = group_pb2.FetchOffsetsRequest(
                cluster_id=cluster_id, group_id=group_id, topics=encode_partitions(page or ())
            )
            response = await coordinators.call(
                group_id,
                lambda channel: group_service(channel).FetchOffsets,
                request,
                timeout_ms=max(1, deadline_ms - monotonic_ms()),
            )
            stored, refused = decode_offsets(response)
            if page is not None and not all(each in stored or each in refused for each in page):
                # Silence about a partition is no positive "no offset".
                raise ProtocolError(f"the coordinator of group {group_id!r} left out partitions of a look-up")
            for each in stored:
                errors.pop(each, None)
            offsets |= stored
            errors |= refused
            names.update((each.topic_id, each.topic) for each in response.topics)
        again = [each for each, error in errors.items() if error.code.retriable]
        if backoff is None or not again:
            break
        delay_ms = backoff.next_delay_ms(at_least_ms=max(errors[each].retry_after_ms or 0 for each in again))
        if monotonic_ms() + delay_ms >= deadline_ms:
            break
        await asyncio.sleep(delay_ms / 1000)
        wanted = again
    return LookUp(offsets=offsets, errors=errors, names=names)


def _pages(partitions: Sequence[Partition] | None) -> list[Sequence[Partition] | None]:
    if partitions is None:
        return [None]
    return [partitions[start : start + MAX_PARTITIONS] for start in range(0, len(partitions), MAX_PARTITIONS)]
