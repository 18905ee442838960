# SPDX-License-Identifier: Apache-2.0
"""The topics and brokers that metadata records touch, and a bounded history of such changes.

Pure. Owns the answer to "what changed since offset N?". Holds no state of the cluster itself.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.records import (
    BrokerChangeRecord,
    BrokerRecord,
    ConfigRecord,
    ConfigResource,
    PartitionChangeRecord,
    PartitionRecord,
    RemoveBrokerRecord,
    RemoveTopicRecord,
    TopicRecord,
)
from metaquorum.metadata.runs import Run


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataChange:
    """Names and ids that committed records below `metadata_offset` touched; the image has their state.

    Attributes:
        metadata_offset: end of the change (exclusive).
        topics: names of the topics.
        topic_ids: ids of the topics.
        broker_ids: ids of the brokers.
        inherited_configs: True if configs of the cluster or of a broker changed, which topics and groups inherit.
        group_ids: ids of the groups whose configs changed.
        partitions: numbers of the changed partitions of a topic of which nothing else changed; a topic without an entry changed as a
            whole.
    """

    metadata_offset: int
    topics: frozenset[str]
    topic_ids: frozenset[bytes]
    broker_ids: frozenset[int]
    inherited_configs: bool = False
    group_ids: frozenset[str] = frozenset()
    partitions: Mapping[bytes, frozenset[int]] = field(default_factory=dict[bytes, frozenset[int]])

    @property
    def is_empty(self) -> bool:
        """True if only the offset moved."""
        return not (self.topic_ids or self.broker_ids or self.group_ids or self.inherited_configs)


class ChangeCollector:
    """Collects the changes of one committed batch; one object for each batch."""

    def __init__(self) -> None:
        self._topics: set[str] = set()
        self._topic_ids: set[bytes] = set()
        self._broker_ids: set[int] = set()
        self._inherited_configs = False
        self._group_ids: set[str] = set()
        self._partitions: dict[bytes, set[int]] = {}
        self._whole: set[bytes] = set()

    def add(self, record: Run, image: MetadataImage) -> None:
        """Add what a record or a run touches; `image` is the state before it."""
        match record:
            case list():
                topic_id = record[0].topic_id
                self._add_topic_id(topic_id, image)
                self._partitions.setdefault(topic_id, set()).update(change.partition for change in record)
            case TopicRecord():
                self._topics.add(record.topic)
                self._topic_ids.add(record.topic_id)
                self._whole.add(record.topic_id)
            case PartitionRecord() | PartitionChangeRecord():
                self._add_topic_id(record.topic_id, image)
                self._partitions.setdefault(record.topic_id, set()).add(record.partition)
            case RemoveTopicRecord():
                self._add_topic_id(record.topic_id, image)
                self._whole.add(record.topic_id)
            case ConfigRecord():
                if record.resource is ConfigResource.TOPIC:
                    topic_id = bytes.fromhex(record.resource_name)
                    self._add_topic_id(topic_id, image)
                    self._whole.add(topic_id)
                elif record.resource is ConfigResource.GROUP:
                    self._group_ids.add(record.resource_name)
                else:
                    self._inherited_configs = True
            case BrokerRecord() | BrokerChangeRecord() | RemoveBrokerRecord():
                self._broker_ids.add(record.broker_id)
            case _:
                pass  # clients see no producer ids, feature levels and no-ops

    def _add_topic_id(self, topic_id: bytes, image: MetadataImage) -> None:
        self._topic_ids.add(topic_id)
        topic = image.topic_by_id(topic_id)
        if topic is not None:
            self._topics.add(topic.topic)

    def finish(self, metadata_offset: int) -> MetadataChange:
        """Return the collected changes as the change that leads to `metadata_offset` (exclusive)."""
        return MetadataChange(
            metadata_offset=metadata_offset,
            topics=frozenset(self._topics),
            topic_ids=frozenset(self._topic_ids),
            broker_ids=frozenset(self._broker_ids),
            inherited_configs=self._inherited_configs,
            group_ids=frozenset(self._group_ids),
            partitions={
                topic_id: frozenset(numbers)
                for topic_id, numbers in self._partitions.items()
                if topic_id not in self._whole
            },
        )


class ChangeHistory:
    """The last changes, so that a client can resume.

    Args:
        max_changes: number of changes kept; older ones are dropped.
    """

    def __init__(self, max_changes: int) -> None:
        self._max_changes = max_changes
        self._changes: deque[MetadataChange] = deque()
        # The history has every change from this offset (inclusive) on.
        self._from_offset: int | None = None

    def add(self, change: MetadataChange, *, base_offset: int) -> None:
        """Add the change of the records from `base_offset` (inclusive) on."""
        if self._from_offset is None:
            self._from_offset = base_offset
        if change.topic_ids or change.broker_ids:
            self._changes.append(change)
        while len(self._changes) > self._max_changes:
            self._from_offset = self._changes.popleft().metadata_offset

    def since(self, metadata_offset: int) -> MetadataChange | None:
        """Return everything that changed at or after `metadata_offset`; None if the history does not reach so far back."""
        if self._from_offset is None or metadata_offset < self._from_offset:
            return None
        later = [change for change in reversed(self._changes) if change.metadata_offset > metadata_offset]
        return MetadataChange(
            metadata_offset=later[0].metadata_offset if later else metadata_offset,
            topics=frozenset[str]().union(*(change.topics for change in later)),
            topic_ids=frozenset[bytes]().union(*(change.topic_ids for change in later)),
            broker_ids=frozenset[int]().union(*(change.broker_ids for change in later)),
        )
