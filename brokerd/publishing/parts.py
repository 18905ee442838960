# SPDX-License-Identifier: Apache-2.0
"""What a publication is about: parts and their slices, as values, and which of them are absurd. Pure.

Bounds: first sequences and offsets are inclusive, end offsets exclusive. Sequences are modulo 2^31.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import pairwise
from typing import NamedTuple

from lograft.wire.limits import MAX_OFFSET, PUBLISHING_PRODUCER_ID_MIN, STAGING_PRODUCER_ID_MIN

from brokerd.publishing.limits import LOST_RECORDS_MAX, PART_RECORDS_MAX, PART_SLICES_MAX, SEQUENCE_COUNT

UNKNOWN_OFFSET = -1
"""Offset of a published part whose records were deleted before somebody asked for it."""


class Slice(NamedTuple):
    """What one attempt has staged for one partition. It begins and ends with a batch.

    Attributes:
        producer_id: staging producer id of the attempt.
        first_sequence: sequence of its first record.
        records: number of records.
        first_offset: offset of the first record at the staging partition.
        end_offset: offset after the last one.
    """

    producer_id: int
    first_sequence: int
    records: int
    first_offset: int
    end_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """What one decision publishes in one partition.

    Attributes:
        topic_id: id of the topic, 16 bytes.
        partition: partition.
        producer_id: publishing producer id of the coordinator.
        base_sequence: publishing sequence of the first record.
        records: number of records.
        slices: what is published, in this order.
        lost_records: records published before it that its coordinator knows to be lost; the log may lack exactly these. 0: none.
    """

    topic_id: bytes
    partition: int
    producer_id: int
    base_sequence: int
    records: int
    slices: tuple[Slice, ...]
    lost_records: int = 0


class PublishedPart(NamedTuple):
    """Where a part is: offset of its first record, and offset after its last one; `UNKNOWN_OFFSET` where it was deleted since."""

    first_offset: int
    end_offset: int


class KnownBatch(NamedTuple):
    """A batch of one producer, as a log knows it; `next_offset` is exclusive."""

    base_sequence: int
    base_offset: int
    next_offset: int


class Gap(Enum):
    """Why a slice cannot be published."""

    DELETED = "its records lie below the log start: they were deleted"
    NOT_STAGED = "the log ends before it does"
    SEQUENCE = "a record is missing in its middle"
    BEGIN = "no batch begins where it begins"
    END = "no batch ends where it ends"
    HOLES = "a batch has lost records"
    PUBLISHED = "the log ends within one of its batches, which were published"


@dataclass(frozen=True, slots=True)
class MissingSlice:
    """A slice that is not there as it should be; `index` is its place in the list of slices."""

    index: int
    producer_id: int
    gap: Gap

    def __str__(self) -> str:
        return f"slice {self.index} (producer {self.producer_id}): {self.gap.value}"


def slices_problem(slices: Sequence[Slice]) -> str | None:
    """Return why no attempts can have staged these slices; None: they are plausible."""
    if not 1 <= len(slices) <= PART_SLICES_MAX:
        return f"a part has 1 to {PART_SLICES_MAX} slices, not {len(slices)}"
    ends: dict[int, list[tuple[int, int]]] = {}
    for index, each in enumerate(slices):
        problem = _slice_problem(each)
        if problem is not None:
            return f"slice {index}: {problem}"
        ends.setdefault(each.producer_id, []).append((each.first_offset, each.end_offset))
    for producer_id, ranges in ends.items():
        ranges.sort()
        if any(later[0] < earlier[1] for earlier, later in pairwise(ranges)):
            return f"two slices of producer {producer_id} overlap"
    return None


def _slice_problem(each: Slice) -> str | None:
    if not STAGING_PRODUCER_ID_MIN <= each.producer_id < PUBLISHING_PRODUCER_ID_MIN:
        return f"{each.producer_id} is no staging producer id"
    if not 0 <= each.first_sequence < SEQUENCE_COUNT:
        return f"{each.first_sequence} is no sequence"
    if not 1 <= each.records <= PART_RECORDS_MAX:
        return f"it has {each.records} records, not 1 to {PART_RECORDS_MAX}"
    if not 0 <= each.first_offset <= each.end_offset - each.records <= MAX_OFFSET:
        return f"{each.records} records do not fit between the offsets {each.first_offset} and {each.end_offset}"
    return None


def part_problem(part: Part) -> str | None:
    """Return why no coordinator can have decided such a part; None: it is plausible."""
    problem = slices_problem(part.slices)
    if problem is not None:
        return problem
    if part.producer_id < PUBLISHING_PRODUCER_ID_MIN:
        return f"{part.producer_id} is no publishing producer id"
    if not 0 <= part.base_sequence < SEQUENCE_COUNT:
        return f"{part.base_sequence} is no sequence"
    if not 1 <= part.records <= PART_RECORDS_MAX:
        return f"the part has {part.records} records, not 1 to {PART_RECORDS_MAX}"
    if not 0 <= part.lost_records <= LOST_RECORDS_MAX:
        return f"{part.lost_records} records cannot be lost"
    total = sum(each.records for each in part.slices)
    if total != part.records:
        return f"the slices have {total} records together, the part has {part.records}"
    return None
