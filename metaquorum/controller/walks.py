# SPDX-License-Identifier: Apache-2.0
"""A walk over all partitions to those few that need something, in slices.

Owns how a slice is bounded and where the next one goes on. Must not know what the partitions need.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from metaquorum.controller.appended import AppendedImage
from metaquorum.controller.commands import SweepCursor
from metaquorum.metadata.records import MetadataRecord, PartitionChangeRecord
from metaquorum.metadata.state import TopicImage

Choose = Callable[[bytes], PartitionChangeRecord | None]
"""Says which change partitions with these members need; it names the first partition of no topic. Equal ones need the same, so it
is worked out once for all of a slice, and what is kept ends with it."""

ChooseIn = Callable[[TopicImage], Choose | None]
"""Says what the partitions of a topic need, by their members; None: nothing at all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceBounds:
    """Where a slice ends at the latest.

    Attributes:
        records: records that it makes.
        partitions: partitions that it looks at.
        topics: topics that it looks at; None: any number.
    """

    records: int
    partitions: int
    topics: int | None = None


def walk(
    image: AppendedImage, start: SweepCursor, bounds: SliceBounds, choose_in: ChooseIn
) -> tuple[list[MetadataRecord], SweepCursor | None]:
    """Return the records of one slice and where the next one goes on; None: nowhere.

    A topic may be cut. It may be gone when its turn comes, or have others before it: the cursor names it by its id.
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
    """Go over the partitions of a topic from one number to another (exclusive): those that need a change, with it."""
    for number, change in topic.partitions.chosen(first, end, choose):
        yield number, change.addressed(topic.topic_id, number)
