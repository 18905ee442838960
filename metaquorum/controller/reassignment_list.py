# SPDX-License-Identifier: Apache-2.0
"""The reassignments that are under way, page by page.

Owns the walk over the partitions of an image in slices, because few of a million are being moved and no list of those is kept.
A page shows the image as it is when it is asked for; topics may come and go between two pages.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from metaquorum.controller.limits import MAX_LISTED_REASSIGNMENTS, MAX_SWEEP_PARTITIONS
from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.state import PartitionImage, TopicImage


@dataclass(frozen=True, slots=True, kw_only=True)
class ListCursor:
    """Where a list goes on: at this partition of the topic, or at the first topic behind it when it is gone."""

    topic: str
    next_partition: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ReassignmentPage:
    """Reassignments under way as (topic, partition), ascending by name and number; `then` None: this was the last page."""

    found: tuple[tuple[str, PartitionImage], ...]
    then: ListCursor | None


def list_reassignments(
    image: MetadataImage, start: ListCursor | None, topics: Sequence[str] | None = None
) -> ReassignmentPage:
    """Return one page.

    Args:
        image: the metadata.
        start: where to go on; None: at the beginning.
        topics: names of the topics that it is about; None: all. Unknown ones have no reassignments.
    """
    found: list[tuple[str, PartitionImage]] = []
    seen = 0
    for topic in _topics(image, start, topics):
        first = start.next_partition if start is not None and topic.topic == start.topic else 0
        for number in range(first, len(topic.partitions)):
            if seen >= MAX_SWEEP_PARTITIONS or len(found) >= MAX_LISTED_REASSIGNMENTS:
                then = ListCursor(topic=topic.topic, next_partition=number)
                return ReassignmentPage(found=tuple(found), then=then)
            seen += 1
            partition = topic.partitions[number]
            if partition.adding or partition.removing:
                found.append((topic.topic, partition))
    return ReassignmentPage(found=tuple(found), then=None)


def _topics(image: MetadataImage, start: ListCursor | None, names: Sequence[str] | None) -> Iterator[TopicImage]:
    if names is not None:
        wanted = (image.topic_by_name(name) for name in sorted(set(names)) if start is None or name >= start.topic)
        yield from (topic for topic in wanted if topic is not None)
        return
    if start is not None:
        same = image.topic_by_name(start.topic)
        if same is not None:
            yield same
    yield from image.topics(after=None if start is None else start.topic)
