# SPDX-License-Identifier: Apache-2.0
"""A walk over all partitions to those few that need something, in slices.

Owns how a slice is bounded and where the next one goes on. Must not know what the partitions need.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from metaquorum.controller.appended import AppendedImage
from metaquorum.controller.elections import Choose, chosen_changes
from metaquorum.controller.limits import MAX_WALK_PARTITIONS, MAX_WALK_RECORDS, MAX_WALK_TOPICS
from metaquorum.controller.walk_commands import SweepCursor
from metaquorum.metadata.records import MetadataRecord
from metaquorum.metadata.state import TopicImage

ChooseIn = Callable[[TopicImage], Choose | None]
"""Says what the partitions of a topic need, by their members; None: nothing at all."""


def walk(
    image: AppendedImage, start: SweepCursor, choose_in: ChooseIn
) -> tuple[list[MetadataRecord], SweepCursor | None]:
    """Return the records of one slice and where the next one goes on; None: nowhere.

    A topic may be cut. It may be gone when its turn comes, or have others before it: the cursor names it by its id.
    """
    records: list[MetadataRecord] = []
    partitions_left = MAX_WALK_PARTITIONS
    last_name = start.after_topic
    for seen, topic in enumerate(image.topics(after=start.after_topic)):
        if seen == MAX_WALK_TOPICS:
            return records, SweepCursor(after_topic=last_name)
        first = start.next_partition if topic.topic_id == start.cut_topic_id else 0
        choose = choose_in(topic)
        if choose is not None:
            end = min(len(topic.partitions), first + partitions_left)
            cut = SweepCursor(after_topic=last_name, cut_topic_id=topic.topic_id, next_partition=end)
            for number, change in chosen_changes(topic, first, end, choose):
                if len(records) == MAX_WALK_RECORDS:
                    return records, replace(cut, next_partition=number)
                records.append(change)
            if end < len(topic.partitions):
                return records, cut
            partitions_left -= end - first
        last_name = topic.topic
    return records, None
