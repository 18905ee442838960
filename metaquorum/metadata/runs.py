# SPDX-License-Identifier: Apache-2.0
"""Records that are replayed in one go: changes of several partitions of one topic.

Owns how records in a row are divided into runs. A work over very many partitions writes them topic by topic, ascending; a run of
such changes costs an image one look-up of the topic, and one pass over each block. Law: replaying runs makes of an image
exactly what replaying the records one by one makes of it, so where a run ends is nobody's affair.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from metaquorum.metadata.records import MetadataRecord, PartitionChangeRecord

Run = MetadataRecord | list[PartitionChangeRecord]
"""One record, or changes of partitions of one topic: two or more, in ascending order, each partition once."""


def runs(records: Sequence[MetadataRecord], base_offset: int) -> Iterator[tuple[int, Run]]:
    """Divide records into runs; each comes with the offset of its first record.

    Args:
        records: records in a row.
        base_offset: offset of the first of them.
    """
    end = 0
    while end < len(records):
        start, first = end, records[end]
        end += 1
        if isinstance(first, PartitionChangeRecord):
            changes = _changes_from(records, start, first)
            if len(changes) > 1:
                end = start + len(changes)
                yield base_offset + start, changes
                continue
        yield base_offset + start, first


def _changes_from(
    records: Sequence[MetadataRecord], start: int, first: PartitionChangeRecord
) -> list[PartitionChangeRecord]:
    changes = [first]
    topic_id, number = first.topic_id, first.partition
    for index in range(start + 1, len(records)):
        record = records[index]
        # A partition that comes twice would be counted twice at once: what it is in between might never add up.
        if not isinstance(record, PartitionChangeRecord) or record.topic_id != topic_id or record.partition <= number:
            break
        changes.append(record)
        number = record.partition
    return changes


def record_count(run: Run) -> int:
    """Return how many records a run has."""
    return len(run) if isinstance(run, list) else 1
