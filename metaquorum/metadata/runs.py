# SPDX-License-Identifier: Apache-2.0
"""Runs: changes of several partitions of one topic, replayed in one pass.

Owns how a sequence of records is divided into runs. Work on very many partitions writes them topic by topic, ascending. A run of such
changes costs an image one look-up of the topic, and one pass over each block. Law: a replay of runs gives the same image as a replay
of the records one by one, so it does not matter where a run ends.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from metaquorum.metadata.records import MetadataRecord, PartitionChangeRecord

Run = MetadataRecord | list[PartitionChangeRecord]
"""One record, or changes of one topic's partitions: at least two, ascending, each partition once."""


def runs(records: Sequence[MetadataRecord], base_offset: int) -> Iterator[tuple[int, Run]]:
    """Divide records into runs. Yield each with the offset of its first record.

    Args:
        records: consecutive records.
        base_offset: offset of the first one.
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
        # Two changes of one partition must not be counted in one step: counts in between might become negative.
        if not isinstance(record, PartitionChangeRecord) or record.topic_id != topic_id or record.partition <= number:
            break
        changes.append(record)
        number = record.partition
    return changes


def record_count(run: Run) -> int:
    """Return the number of records in a run."""
    return len(run) if isinstance(run, list) else 1
