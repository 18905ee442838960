# SPDX-License-Identifier: Apache-2.0
"""The metadata that decisions see: the committed image, with the appended but uncommitted records over it.

Owns the overlay. It holds copies of only those brokers and topics that uncommitted records touch, and drops them as the records
commit; so a million committed partitions exist only once in memory. It lives as long as one leadership: dropping it drops everything
uncommitted. Law: after every record its view equals an image that replayed the same records. Answers from committed state must not
read it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import deque
from collections.abc import Hashable, Iterator, Mapping
from typing import Generic, TypeVar

from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.records import (
    ConfigRecord,
    ConfigResource,
    FeatureLevelRecord,
    ProducerIdsRecord,
)
from metaquorum.metadata.replay import apply
from metaquorum.metadata.runs import Run, record_count
from metaquorum.metadata.state import BrokerImage, PartitionCounts, TopicImage

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class _Layer(Generic[K, V]):
    """Values that uncommitted records changed; None means removed."""

    def __init__(self) -> None:
        self.values: dict[K, V | None] = {}
        self._changes: deque[tuple[int, K]] = deque()
        self._last_offsets: dict[K, int] = {}

    def put(self, key: K, value: V | None, offset: int) -> None:
        """Set a value, changed by the record at `offset`."""
        self.values[key] = value
        if self._last_offsets.get(key) != offset:
            self._last_offsets[key] = offset
            self._changes.append((offset, key))

    def forget(self, next_offset: int) -> None:
        """Drop values whose last change is below `next_offset` (exclusive): the committed image has them now."""
        while self._changes and self._changes[0][0] < next_offset:
            offset, key = self._changes.popleft()
            if self._last_offsets[key] == offset:
                del self._last_offsets[key], self.values[key]


class AppendedImage:
    """The committed image with the overlay of uncommitted records."""

    def __init__(self, committed: MetadataImage) -> None:
        self._committed = committed
        self._brokers: _Layer[int, BrokerImage] = _Layer()
        self._topics: _Layer[bytes, TopicImage] = _Layer()
        self._ids_by_name: _Layer[str, bytes] = _Layer()
        self._features: _Layer[str, int] = _Layer()
        self._other_configs: _Layer[tuple[ConfigResource, str], dict[str, str]] = _Layer()
        self._ack_switches: _Layer[tuple[ConfigResource, str], int] = _Layer()
        self._layers = (
            self._brokers,
            self._topics,
            self._ids_by_name,
            self._features,
            self._other_configs,
            self._ack_switches,
        )
        self._names = list(committed.topic_names)
        self._counts = committed.counts.copy()
        self._next_producer_id = committed.next_producer_id
        self._offset = committed.metadata_offset
        self._base_offset = committed.metadata_offset
        self._left_leadership: dict[int, int] = {}

    @property
    def next_offset(self) -> int:
        """Offset (exclusive) of this state."""
        return self._offset

    @property
    def counts(self) -> PartitionCounts:
        """Counts over all partitions, uncommitted ones included."""
        return self._counts

    @property
    def topic_count(self) -> int:
        """Number of topics."""
        return len(self._names)

    @property
    def broker_count(self) -> int:
        """Number of registered brokers."""
        return len(self.brokers())

    @property
    def next_producer_id(self) -> int:
        """First producer id that no broker has received."""
        return self._next_producer_id

    @property
    def overlay_size(self) -> int:
        """Number of overlay entries for uncommitted records."""
        return sum(len(layer.values) for layer in self._layers)

    def feature_level(self, name: str) -> int | None:
        """Return the level of a feature, or None."""
        return self._features.values.get(name, self._committed.features.get(name))

    def broker(self, broker_id: int) -> BrokerImage | None:
        """Return a broker, or None."""
        if broker_id in self._brokers.values:
            return self._brokers.values[broker_id]
        return self._committed.broker(broker_id)

    def brokers(self) -> list[BrokerImage]:
        """Return all brokers, ascending by id."""
        merged: dict[int, BrokerImage | None] = {**self._committed.brokers, **self._brokers.values}
        return [broker for _, broker in sorted(merged.items()) if broker is not None]

    def topic_by_name(self, topic: str) -> TopicImage | None:
        """Return the topic of this name, or None."""
        if topic in self._ids_by_name.values:
            topic_id = self._ids_by_name.values[topic]
            return None if topic_id is None else self.topic_by_id(topic_id)
        committed = self._committed.topic_by_name(topic)
        return None if committed is None else self.topic_by_id(committed.topic_id)

    def topic_by_id(self, topic_id: bytes) -> TopicImage | None:
        """Return the topic of this id (16 bytes), or None."""
        if topic_id in self._topics.values:
            return self._topics.values[topic_id]
        return self._committed.topic_by_id(topic_id)

    def topics(self, *, after: str | None = None) -> Iterator[TopicImage]:
        """Iterate over topics ascending by name, starting after the name `after` (exclusive)."""
        start = 0 if after is None else bisect_right(self._names, after)
        for index in range(start, len(self._names)):
            topic = self.topic_by_name(self._names[index])
            assert topic is not None, f"topic {self._names[index]} is listed and absent"
            yield topic

    def configs_of(self, resource: ConfigResource, name: str) -> Mapping[str, str]:
        """Return the configs set for a broker, a group or the cluster. Callers must not change them."""
        overlaid = self._other_configs.values.get((resource, name))
        return self._committed.configs_of(resource, name) if overlaid is None else overlaid

    def configured_group_count(self) -> int:
        """Return the number of groups for which configs are set."""
        groups = dict.fromkeys(self._committed.configured_groups(), True)
        for (resource, name), configs in self._other_configs.values.items():
            if resource is ConfigResource.GROUP:
                groups[name] = bool(configs)
        return sum(groups.values())

    def ack_switch(self, resource: ConfigResource, resource_name: str) -> int | None:
        """Return the offset of a resource's switch to `ack`; see `MetadataImage.ack_switch`."""
        key = (resource, resource_name)
        return self._ack_switches.values.get(key, self._committed.ack_switch(resource, resource_name))

    def left_leadership_offset(self, broker_id: int) -> int:
        """Return the offset (exclusive) of the last change that took a leadership from the broker.

        A process that has applied the metadata up to here knows every partition that the broker no longer leads. For changes before
        this leadership of the controller, the answer is the start of the leadership.
        """
        return self._left_leadership.get(broker_id, self._base_offset)

    def replay(self, record: Run, offset: int) -> None:
        """Apply the appended record at `offset`, or the run that begins there.

        Raises:
            AssertionError: the offset is below the last one, or the record contradicts the state; the process must stop.
        """
        assert offset >= self._offset, f"replay of {offset} below {self._offset}"
        # Overlay entries are kept until the last record that changed them commits: for a run, its last record.
        self._offset = offset + record_count(record) - 1
        apply(self, record, offset)
        self._offset += 1

    def forget_committed(self, next_offset: int) -> None:
        """Drop from the overlay what the committed image has replayed, up to `next_offset` (exclusive)."""
        for layer in self._layers:
            layer.forget(next_offset)
        self._offset = max(self._offset, next_offset)

    # Tables for `apply`. It runs while `self._offset` is the offset of the current record, or of the last one of a run.

    def put_broker(self, broker: BrokerImage) -> None:
        """Add or replace a broker."""
        self._brokers.put(broker.broker_id, broker, self._offset)

    def drop_broker(self, broker_id: int) -> None:
        """Remove a broker."""
        self._brokers.put(broker_id, None, self._offset)

    def put_topic(self, topic: TopicImage) -> None:
        """Add a topic."""
        assert self.topic_by_name(topic.topic) is None, f"topic {topic.topic} exists"
        assert self.topic_by_id(topic.topic_id) is None, f"topic id {topic.topic_id.hex()} exists"
        self._topics.put(topic.topic_id, topic, self._offset)
        self._ids_by_name.put(topic.topic, topic.topic_id, self._offset)
        insort(self._names, topic.topic)

    def topic_for_change(self, topic_id: bytes) -> TopicImage | None:
        """Return the overlay's own copy of a topic; make one first if needed. None if the topic does not exist."""
        topic = self._topics.values.get(topic_id)
        if topic is None and topic_id not in self._topics.values:
            committed = self._committed.topic_by_id(topic_id)
            topic = None if committed is None else committed.copy()
        if topic is not None:
            self._topics.put(topic_id, topic, self._offset)
        return topic

    def drop_topic(self, topic: TopicImage) -> None:
        """Remove a topic."""
        self._topics.put(topic.topic_id, None, self._offset)
        self._ids_by_name.put(topic.topic, None, self._offset)
        self._ack_switches.put((ConfigResource.TOPIC, topic.topic_id.hex()), None, self._offset)
        del self._names[bisect_left(self._names, topic.topic)]

    def note_left_leadership(self, broker_id: int, offset: int) -> None:
        """Store when a broker last stopped leading a partition."""
        self._left_leadership[broker_id] = max(offset + 1, self._left_leadership.get(broker_id, 0))

    def put_ack_switch(self, resource: ConfigResource, resource_name: str, offset: int) -> None:
        """Store at which offset `flush.policy` of a resource may have become `ack`."""
        self._ack_switches.put((resource, resource_name), offset, self._offset)

    def put_other_config(self, record: ConfigRecord) -> None:
        """Set or remove a config of a broker, a group or the cluster, in the overlay's own copy."""
        configs = dict(self.configs_of(record.resource, record.resource_name))
        if record.value is None:
            configs.pop(record.name, None)
        else:
            configs[record.name] = record.value
        self._other_configs.put((record.resource, record.resource_name), configs, self._offset)

    def put_producer_ids(self, record: ProducerIdsRecord) -> None:
        """Store which producer ids are allocated."""
        assert record.next_producer_id >= self._next_producer_id, f"producer ids go back: {record}"
        self._next_producer_id = record.next_producer_id

    def put_feature_level(self, record: FeatureLevelRecord) -> None:
        """Store the level of a feature."""
        self._features.put(record.name, record.level, self._offset)
