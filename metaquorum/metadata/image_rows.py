# SPDX-License-Identifier: Apache-2.0
"""An image as rows: one key and value for each broker, topic, config and feature, and one for up to 128 partitions.

Owns the keys, and which rows a record touches. So a store can keep an image as a sorted table and update it record by record. The
rows in key order are a complete image: a replay of them rebuilds it. Persistent format; keys, all integers big-endian:

    | row            | key                                                | value                              |
    |----------------|----------------------------------------------------|------------------------------------|
    | feature        | 01, name                                           | FeatureLevelRecord                 |
    | broker         | 02, broker id (4), 00                              | BrokerRecord with its broker epoch |
    | broker leaving | 02, broker id (4), 01; only in controlled shutdown | BrokerChangeRecord                 |
    | topic          | 03, topic id (16)                                  | TopicRecord                        |
    | partition      | 04, topic id (16), partition (4)                   | PartitionRecord; up to format 2    |
    | topic config   | 05, topic id (16), name                            | ConfigRecord                       |
    | other config   | 06, resource (1), resource name, 00, name          | ConfigRecord                       |
    | producer ids   | 07                                                 | ProducerIdsRecord                  |
    | partitions     | 08, topic id (16), block (4)                       | block (`partition_blocks.py`)      |
    | deleted topics | 09, block (4)                                      | up to 64 topic ids (16 each)       |
    | ack switch     | 0A, resource (1), resource name                    | metadata offset (8)                |

Rows of single partitions are read but never written: `is_old` tells a store to replace them by blocks.
Key 00 belongs to the store.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, assert_never

from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.partition_blocks import BLOCK_PARTITIONS
from metaquorum.metadata.records import (
    BrokerChangeRecord,
    BrokerRecord,
    ConfigRecord,
    ConfigResource,
    FeatureLevelRecord,
    MetadataRecord,
    NoOpRecord,
    PartitionChangeRecord,
    PartitionRecord,
    ProducerIdsRecord,
    RemoveBrokerRecord,
    RemoveTopicRecord,
    TopicRecord,
)
from metaquorum.metadata.runs import Run
from metaquorum.metadata.state import BrokerImage, TopicImage
from metaquorum.metadata.topic_configs import FLUSH_POLICY

_FEATURE: Final = 1
_BROKER: Final = 2
_TOPIC: Final = 3
_OLD_PARTITION: Final = 4
_TOPIC_CONFIG: Final = 5
_OTHER_CONFIG: Final = 6
_PRODUCER_IDS: Final = 7
_BLOCK: Final = 8
_DELETED: Final = 9
_ACK_SWITCH: Final = 10

_BROKER_KEY: Final = struct.Struct(">BIB")
_BLOCK_KEY: Final = struct.Struct(">B16sI")
_DELETED_KEY: Final = struct.Struct(">BI")
_OFFSET: Final = struct.Struct(">q")
_PRODUCER_IDS_KEY: Final = bytes([_PRODUCER_IDS])


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionBlock:
    """The row of a block of a topic's partitions, from partition `128 * number` on; `data` is the block."""

    topic_id: bytes
    number: int
    data: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletedBlock:
    """A row of ids of deleted topics; `data` has them concatenated (`deleted_topics.py`)."""

    number: int
    data: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class AckSwitch:
    """The row of a resource's switch to `flush.policy=ack`; `data` is an offset (see `MetadataImage.ack_switch`)."""

    resource: ConfigResource
    resource_name: str
    data: bytes


Row = MetadataRecord | PartitionBlock | DeletedBlock | AckSwitch


def feature_key(name: str) -> bytes:
    """Return the key of a feature."""
    return bytes([_FEATURE]) + name.encode()


def broker_keys(broker_id: int) -> tuple[bytes, bytes]:
    """Return the keys of a broker's two rows."""
    return _BROKER_KEY.pack(_BROKER, broker_id, 0), _BROKER_KEY.pack(_BROKER, broker_id, 1)


def topic_key(topic_id: bytes) -> bytes:
    """Return the key of a topic."""
    return bytes([_TOPIC]) + topic_id


def block_key(topic_id: bytes, number: int) -> bytes:
    """Return the key of a block of partitions."""
    return _BLOCK_KEY.pack(_BLOCK, topic_id, number)


def block_place(key: bytes) -> tuple[bytes, int] | None:
    """Return topic id and block number of a partition block's key; None for any other key.

    Raises:
        struct.error: the key is too long or too short.
    """
    if key[0] != _BLOCK:
        return None
    _, topic_id, number = _BLOCK_KEY.unpack(key)
    return topic_id, number


def deleted_key(number: int) -> bytes:
    """Return the key of a block of deleted topics."""
    return _DELETED_KEY.pack(_DELETED, number)


def deleted_place(key: bytes) -> int | None:
    """Return the block number of a deleted-topics key; None for any other key.

    Raises:
        struct.error: the key is too long or too short.
    """
    if key[0] != _DELETED:
        return None
    _, number = _DELETED_KEY.unpack(key)
    return number


def ack_switch_key(resource: ConfigResource, resource_name: str) -> bytes:
    """Return the key of a resource's switch to `ack`."""
    return bytes([_ACK_SWITCH, resource]) + resource_name.encode()


def ack_switch_place(key: bytes) -> tuple[ConfigResource, str] | None:
    """Return the resource of an ack-switch key; None for any other key.

    Raises:
        struct.error: the key names no resource.
    """
    if key[0] != _ACK_SWITCH:
        return None
    try:
        return ConfigResource(key[1]), key[2:].decode()
    except (IndexError, ValueError) as error:
        raise struct.error(f"a switch of {key[1:20].hex()}") from error


def is_old(key: bytes) -> bool:
    """Return True for a row that only an earlier format has."""
    return key[0] == _OLD_PARTITION


def config_key(resource: ConfigResource, resource_name: str, name: str) -> bytes:
    """Return the key of a config."""
    if resource is ConfigResource.TOPIC:
        return bytes([_TOPIC_CONFIG]) + bytes.fromhex(resource_name) + name.encode()
    return bytes([_OTHER_CONFIG, resource]) + resource_name.encode() + b"\x00" + name.encode()


def touched_keys(record: Run, before: MetadataImage) -> list[bytes]:
    """Return the keys of the rows that a record adds, changes or removes.

    Args:
        record: the record or run that is about to be replayed.
        before: the image before it.
    """
    match record:
        case list():
            numbers = dict.fromkeys(change.partition // BLOCK_PARTITIONS for change in record)
            return [block_key(record[0].topic_id, number) for number in numbers]
        case PartitionRecord() | PartitionChangeRecord():
            return [block_key(record.topic_id, record.partition // BLOCK_PARTITIONS)]
        case TopicRecord():
            return [topic_key(record.topic_id)]
        case RemoveTopicRecord():
            return _topic_keys(record.topic_id, before)
        case ConfigRecord():
            keys = [config_key(record.resource, record.resource_name, record.name)]
            if record.name == FLUSH_POLICY:
                keys.append(ack_switch_key(record.resource, record.resource_name))
            return keys
        case BrokerRecord() | BrokerChangeRecord() | RemoveBrokerRecord():
            return list(broker_keys(record.broker_id))
        case ProducerIdsRecord():
            return [_PRODUCER_IDS_KEY]
        case FeatureLevelRecord():
            return [feature_key(record.name)]
        case NoOpRecord():
            return []
        case _:
            assert_never(record)


def _topic_keys(topic_id: bytes, image: MetadataImage) -> list[bytes]:
    topic = image.topic_by_id(topic_id)
    assert topic is not None, f"removal of unknown topic {topic_id.hex()}"
    keys = [topic_key(topic_id)]
    keys.extend(block_keys(topic))
    keys.extend(config_key(ConfigResource.TOPIC, topic_id.hex(), name) for name in topic.configs)
    keys.append(ack_switch_key(ConfigResource.TOPIC, topic_id.hex()))
    keys.extend(deleted_key(number) for number in image.deleted_topics.touched_numbers())
    return keys


def block_keys(topic: TopicImage) -> Iterator[bytes]:
    """Iterate over the keys of a topic's blocks of partitions, ascending."""
    return (block_key(topic.topic_id, number) for number in range(len(topic.partitions.blocks())))


def add_row(image: MetadataImage, row: Row) -> None:
    """Add a row to an image that is being filled in key order. Its offset is set at the end, by `MetadataImage.reset_offset`.

    Raises:
        AssertionError, struct.error, IndexError: the row is damaged or contradicts the image.
    """
    if isinstance(row, PartitionBlock):
        image.put_block(row.topic_id, row.number, row.data)
    elif isinstance(row, DeletedBlock):
        image.put_deleted_block(row.number, row.data)
    elif isinstance(row, AckSwitch):
        image.put_ack_switch(row.resource, row.resource_name, *_OFFSET.unpack(row.data))
    elif isinstance(row, ConfigRecord):
        image.put_config(row)
    else:
        # Rows are states and not facts in time: the offset is set once, at the end.
        image.replay(row, image.metadata_offset)


def row(image: MetadataImage, key: bytes) -> Row | None:
    """Return the row that an image has at `key`, or None."""
    match key[0]:
        case 1:
            name = key[1:].decode()
            level = image.features.get(name)
            return None if level is None else FeatureLevelRecord(name=name, level=level)
        case 2:
            _, broker_id, second = _BROKER_KEY.unpack(key)
            broker = image.broker(broker_id)
            return None if broker is None else _broker_row(broker, second=bool(second))
        case 3:
            topic = image.topic_by_id(key[1:])
            return None if topic is None else TopicRecord(topic=topic.topic, topic_id=topic.topic_id)
        case 5:
            topic_id, name = key[1:17], key[17:].decode()
            topic = image.topic_by_id(topic_id)
            value = None if topic is None else topic.configs.get(name)
            return None if value is None else _config_row(ConfigResource.TOPIC, topic_id.hex(), name, value)
        case 6:
            resource = ConfigResource(key[1])
            # A group id may contain the separator, the name of a config cannot.
            resource_name, name = key[2:].decode().rsplit("\x00", 1)
            value = image.configs_of(resource, resource_name).get(name)
            return None if value is None else _config_row(resource, resource_name, name, value)
        case 8:
            _, topic_id, number = _BLOCK_KEY.unpack(key)
            topic = image.topic_by_id(topic_id)
            return None if topic is None else _block_row(topic, number)
        case 9:
            _, number = _DELETED_KEY.unpack(key)
            data = image.deleted_topics.block(number)
            return None if data is None else DeletedBlock(number=number, data=data)
        case 10:
            place = ack_switch_place(key)
            assert place is not None, f"no switch at {key.hex()}"
            offset = image.ack_switch(*place)
            return (
                None
                if offset is None
                else AckSwitch(resource=place[0], resource_name=place[1], data=_OFFSET.pack(offset))
            )
        case _:
            assert key == _PRODUCER_IDS_KEY, f"no row has the key {key.hex()}"
            return image.producer_ids


def _block_row(topic: TopicImage, number: int) -> PartitionBlock | None:
    blocks = topic.partitions.blocks()
    if number >= len(blocks):
        return None
    return PartitionBlock(topic_id=topic.topic_id, number=number, data=blocks[number])


def _broker_row(broker: BrokerImage, *, second: bool) -> MetadataRecord | None:
    if second:
        if not broker.in_controlled_shutdown:
            return None
        return BrokerChangeRecord(
            broker_id=broker.broker_id, broker_epoch=broker.broker_epoch, in_controlled_shutdown=True
        )
    return BrokerRecord(
        broker_id=broker.broker_id,
        incarnation_id=broker.incarnation_id,
        broker_epoch=broker.broker_epoch,
        host=broker.host,
        port=broker.port,
        rack=broker.rack,
        fenced=broker.fenced,
        log_directory_ids=broker.log_directory_ids,
        unclean=broker.unclean,
        lost_directories=broker.lost_directories,
        replaced_log_directory_ids=broker.replaced_log_directory_ids,
        replaced_broker_epoch=broker.replaced_broker_epoch,
        offline_log_directory_ids=broker.offline_log_directory_ids,
        min_feature_level=broker.min_feature_level,
        max_feature_level=broker.max_feature_level,
        replication_port=broker.replication_port,
    )


def _config_row(resource: ConfigResource, resource_name: str, name: str, value: str) -> ConfigRecord:
    return ConfigRecord(resource=resource, resource_name=resource_name, name=name, value=value)


def all_keys(image: MetadataImage) -> Iterator[bytes]:
    """Iterate over the keys of all rows, ascending."""
    yield from sorted(feature_key(name) for name in image.features)
    for broker_id in sorted(image.brokers):
        plain, leaving = broker_keys(broker_id)
        yield plain
        if image.brokers[broker_id].in_controlled_shutdown:
            yield leaving
    for topic in image.topics_by_id():
        yield topic_key(topic.topic_id)
    for topic in image.topics_by_id():
        for name in sorted(topic.configs, key=str.encode):
            yield config_key(ConfigResource.TOPIC, topic.topic_id.hex(), name)
    yield from sorted(
        config_key(resource, resource_name, name)
        for (resource, resource_name), configs in image.other_configs().items()
        for name in configs
    )
    if image.producer_ids is not None:
        yield _PRODUCER_IDS_KEY
    for topic in image.topics_by_id():
        yield from block_keys(topic)
    for number in image.deleted_topics.numbers():
        yield deleted_key(number)
    yield from sorted(ack_switch_key(*place) for place in image.ack_switches())


def all_rows(image: MetadataImage) -> Iterator[tuple[bytes, Row]]:
    """Iterate over (key, row) of the whole image in key order."""
    for key in all_keys(image):
        found = row(image, key)
        assert found is not None, f"key {key.hex()} of the image has no row"
        yield key, found
