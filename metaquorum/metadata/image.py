# SPDX-License-Identifier: Apache-2.0
"""The committed metadata of a cluster. Every voter and every broker holds it in memory.

Owns the tables and their look-ups. Only `replay` and `advance` change it, with committed records in offset order; reads are plain
look-ups at any time between. It never holds anything uncommitted: see `metaquorum.controller.appended` for that.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator, Mapping
from types import MappingProxyType

from metaquorum.metadata.deleted_topics import DeletedTopics
from metaquorum.metadata.records import (
    ConfigRecord,
    ConfigResource,
    FeatureLevelRecord,
    ProducerIdsRecord,
)
from metaquorum.metadata.replay import apply, set_config
from metaquorum.metadata.runs import Run, record_count
from metaquorum.metadata.state import BrokerImage, PartitionCounts, PartitionImage, TopicImage

__all__ = ["FIRST_PRODUCER_ID", "BrokerImage", "MetadataImage", "PartitionImage", "TopicImage"]

FIRST_PRODUCER_ID = 1
"""The first producer id that is allocated. 0 stays unused because protobuf does not distinguish it from an absent field."""

NO_CONFIGS: Mapping[str, str] = MappingProxyType({})
"""The configs of a resource for which none are set."""


class MetadataImage:
    """Brokers, topics, partitions, configs, producer ids and features, as committed below `metadata_offset`."""

    def __init__(self) -> None:
        self._brokers: dict[int, BrokerImage] = {}
        self._topics: dict[bytes, TopicImage] = {}
        self._ids_by_name: dict[str, bytes] = {}
        self._names: list[str] = []
        self._counts = PartitionCounts()
        self._features: dict[str, int] = {}
        self._other_configs: dict[tuple[ConfigResource, str], dict[str, str]] = {}
        self._producer_ids: ProducerIdsRecord | None = None
        self._unsealed: dict[bytes, TopicImage] = {}
        self._deleted_topics = DeletedTopics()
        self._ack_switches: dict[tuple[ConfigResource, str], int] = {}
        self._metadata_offset = 0

    @property
    def metadata_offset(self) -> int:
        """Offset (exclusive) of this state: the image has every committed record below it."""
        return self._metadata_offset

    @property
    def brokers(self) -> Mapping[int, BrokerImage]:
        """Registered brokers by id; a live view."""
        return MappingProxyType(self._brokers)

    @property
    def features(self) -> Mapping[str, int]:
        """Feature levels by name; a live view."""
        return MappingProxyType(self._features)

    @property
    def counts(self) -> PartitionCounts:
        """Counts over all partitions. Callers must not change them."""
        return self._counts

    @property
    def topic_names(self) -> list[str]:
        """Names of all topics, ascending. Callers must not change the list."""
        return self._names

    @property
    def next_producer_id(self) -> int:
        """First producer id that no broker has received."""
        return FIRST_PRODUCER_ID if self._producer_ids is None else self._producer_ids.next_producer_id

    @property
    def producer_ids(self) -> ProducerIdsRecord | None:
        """The last allocated block of producer ids, or None."""
        return self._producer_ids

    @property
    def deleted_topics(self) -> DeletedTopics:
        """Ids of the topics that were deleted most recently. Callers must not change them."""
        return self._deleted_topics

    def topic_by_name(self, topic: str) -> TopicImage | None:
        """Return the topic of this name, or None."""
        topic_id = self._ids_by_name.get(topic)
        return None if topic_id is None else self._topics[topic_id]

    def topic_by_id(self, topic_id: bytes) -> TopicImage | None:
        """Return the topic of this id (16 bytes), or None."""
        return self._topics.get(topic_id)

    def topics(self, *, after: str | None = None) -> Iterator[TopicImage]:
        """Iterate over topics ascending by name, starting after the name `after` (exclusive)."""
        start = 0 if after is None else bisect_right(self._names, after)
        for index in range(start, len(self._names)):
            yield self._topics[self._ids_by_name[self._names[index]]]

    def topics_by_id(self) -> Iterator[TopicImage]:
        """Iterate over topics ascending by id."""
        for topic_id in sorted(self._topics):
            yield self._topics[topic_id]

    def other_configs(self) -> Mapping[tuple[ConfigResource, str], Mapping[str, str]]:
        """Configs of brokers, groups and the cluster by (resource, resource name); a live view."""
        return MappingProxyType(self._other_configs)

    def configs_of(self, resource: ConfigResource, name: str) -> Mapping[str, str]:
        """Return the configs set for a broker, a group or the cluster. Callers must not change them."""
        return self._other_configs.get((resource, name), NO_CONFIGS)

    def configured_groups(self) -> Iterator[str]:
        """Yield the ids of the groups for which configs are set."""
        return (name for resource, name in self._other_configs if resource is ConfigResource.GROUP)

    def ack_switches(self) -> Mapping[tuple[ConfigResource, str], int]:
        """Return the offset of `ack_switch` for every resource that has one; a live view."""
        return MappingProxyType(self._ack_switches)

    def ack_switch(self, resource: ConfigResource, resource_name: str) -> int | None:
        """Return the offset of the last record by which `flush.policy=ack` may have begun to apply to a resource, or None.

        Args:
            resource: kind of the resource.
            resource_name: its name, as in `ConfigRecord`.
        """
        return self._ack_switches.get((resource, resource_name))

    def replay(self, record: Run, offset: int) -> None:
        """Apply the committed record at `offset`, or the run that begins there.

        Raises:
            AssertionError: the offset is below the image's, or the record contradicts the image; the process must stop.
        """
        assert offset >= self._metadata_offset, f"replay of {offset} below {self._metadata_offset}"
        apply(self, record, offset)
        self._metadata_offset = offset + record_count(record)

    def advance(self, next_offset: int) -> None:
        """Move the offset to the end of a batch, over records that change nothing, and pack the partitions that the batch changed."""
        assert next_offset >= self._metadata_offset, f"advance to {next_offset} below {self._metadata_offset}"
        self._metadata_offset = next_offset
        for topic in self._unsealed.values():
            topic.partitions.seal()
        self._unsealed.clear()

    def reset_offset(self, next_offset: int) -> None:
        """Set the offset of an image that was filled from rows instead of from the log."""
        self._metadata_offset = next_offset

    # Tables for `replay.apply`.

    def broker(self, broker_id: int) -> BrokerImage | None:
        """Return a broker, or None."""
        return self._brokers.get(broker_id)

    def put_broker(self, broker: BrokerImage) -> None:
        """Add or replace a broker."""
        self._brokers[broker.broker_id] = broker

    def drop_broker(self, broker_id: int) -> None:
        """Remove a broker."""
        del self._brokers[broker_id]

    def put_topic(self, topic: TopicImage) -> None:
        """Add a topic."""
        assert topic.topic not in self._ids_by_name, f"topic {topic.topic} exists"
        assert topic.topic_id not in self._topics, f"topic id {topic.topic_id.hex()} exists"
        self._topics[topic.topic_id] = topic
        self._ids_by_name[topic.topic] = topic.topic_id
        insort(self._names, topic.topic)

    def topic_for_change(self, topic_id: bytes) -> TopicImage | None:
        """Return a topic, or None. The caller is about to change it in place."""
        topic = self._topics.get(topic_id)
        if topic is not None:
            self._unsealed[topic_id] = topic
        return topic

    def put_block(self, topic_id: bytes, number: int, data: bytes) -> None:
        """Add the next block of partitions of a topic, from a stored row.

        Raises:
            AssertionError, struct.error, IndexError: the block is damaged or contradicts the image.
        """
        topic = self._topics.get(topic_id)
        assert topic is not None, f"block {number} of unknown topic {topic_id.hex()}"
        for members, count in topic.partitions.add_block(number, data):
            self._counts.move(members, count)

    def put_deleted_block(self, number: int, data: bytes) -> None:
        """Add the next block of deleted topics, from a stored row.

        Raises:
            AssertionError: the block is damaged or out of order.
        """
        self._deleted_topics.add_block(number, data)

    def drop_topic(self, topic: TopicImage) -> None:
        """Remove a topic, and add its id to the deleted ones."""
        self._deleted_topics.add(topic.topic_id)
        self._ack_switches.pop((ConfigResource.TOPIC, topic.topic_id.hex()), None)
        del self._topics[topic.topic_id]
        del self._ids_by_name[topic.topic]
        del self._names[bisect_left(self._names, topic.topic)]

    def note_left_leadership(self, broker_id: int, offset: int) -> None:
        """Do nothing: only the controller's view of appended records needs to know when a leadership ended."""

    def put_config(self, record: ConfigRecord) -> None:
        """Set a config from a stored row. A row is a state, so no switch of `flush.policy` is derived from it."""
        set_config(self, record)

    def put_ack_switch(self, resource: ConfigResource, resource_name: str, offset: int) -> None:
        """Store at which offset `flush.policy` of a resource may have become `ack`."""
        self._ack_switches[resource, resource_name] = offset

    def put_other_config(self, record: ConfigRecord) -> None:
        """Set or remove a config of a broker, a group or the cluster."""
        key = (record.resource, record.resource_name)
        if record.value is not None:
            self._other_configs.setdefault(key, {})[record.name] = record.value
            return
        configs = self._other_configs.get(key, {})
        configs.pop(record.name, None)
        if not configs:
            self._other_configs.pop(key, None)

    def put_producer_ids(self, record: ProducerIdsRecord) -> None:
        """Store the last allocated block of producer ids."""
        assert record.next_producer_id >= self.next_producer_id, f"producer ids go back: {record}"
        self._producer_ids = record

    def put_feature_level(self, record: FeatureLevelRecord) -> None:
        """Store a feature level."""
        self._features[record.name] = record.level
