# SPDX-License-Identifier: Apache-2.0
"""A scan over all partitions, in slices, that finds the few that need a change.

Owns the bounds of a slice, and the position at which the next one continues. Does not know what the partitions need.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from metaquorum.controller.appended import AppendedImage
from metaquorum.controller.commands import SweepCursor
from metaquorum.metadata.records import MetadataRecord, PartitionChangeRecord
from metaquorum.metadata.state import TopicImage

Choose = Callable[[bytes], PartitionChangeRecord | None]
"""Returns the change that partitions with these members need, without topic and partition number.

Equal members need equal changes, so each is computed once for a slice; the results are dropped with the slice.
"""

ChooseIn = Callable[[TopicImage], Choose | None]
"""Returns the function for the partitions of a topic; None: none of them needs a change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceBounds:
    """Limits at which a slice ends.

    Attributes:
        records: records that it makes.
        partitions: partitions that it examines.
        topics: topics that it examines; None: any number.
    """

    records: int
    partitions: int
    topics: int | None = None


def walk(
    image: AppendedImage, start: SweepCursor, bounds: SliceBounds, choose_in: ChooseIn
) -> tuple[list[MetadataRecord], SweepCursor | None]:
    """Return the records of one slice, and the position of the next one; None at the end.

    A slice may end inside a topic. Before the next one this topic may be deleted, or others created before it, so the cursor names it
    by its id.
    """
    records: list[MetadataRecord] = []
    partitions_left = bounds.partitions
    last_name = start.after_topic
    for seen, topic in enumerate(image.topics(after=start.after_topic)):
        if seen == bounds.topics:
            return records, SweepCursor(after_topic=last_name)
        first = start.next_partition if topic.topic_id == start.cut_topic_id else 0
        choose = choose_in(topic)
        if choose is not None:
            end = min(len(topic.partitions), first + partitions_left)
            cut = SweepCursor(after_topic=last_name, cut_topic_id=topic.topic_id, next_partition=end)
            for number, change in _chosen_changes(topic, first, end, choose):
                if len(records) == bounds.records:
                    return records, replace(cut, next_partition=number)
                records.append(change)
            if end < len(topic.partitions):
                return records, cut
            partitions_left -= end - first
        last_name = topic.topic
    return records, None


def _chosen_changes(
    topic: TopicImage, first: int, end: int, choose: Choose
) -> Iterator[tuple[int, PartitionChangeRecord]]:
    """Yield the partitions from `first` to `end` (exclusive) that need a change, with the change."""
    for number, change in topic.partitions.chosen(first, end, choose):
        yield number, change.addressed(topic.topic_id, number)
