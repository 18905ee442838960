# SPDX-License-Identifier: Apache-2.0
"""Metadata records to bytes and back: the value of one record in a batch of the metadata log.

Owns the translation between the dataclasses of `metaquorum.metadata.records` and the protobuf message
`lograft.internal.v1.MetadataRecord`, a persistent format. Only this module turns absent values and sentinels of the wire into None:
rack "" and broker epoch 0 (offset 0 holds a record of the quorum itself, never a registration).
Source: `proto/lograft/internal/v1/metadata_record.proto`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, assert_never

from google.protobuf.message import DecodeError
from lograft.internal.v1 import metadata_record_pb2 as pb

from metaquorum.metadata import partition_change_codec
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

OtherRecord = (
    BrokerRecord
    | BrokerChangeRecord
    | RemoveBrokerRecord
    | TopicRecord
    | RemoveTopicRecord
    | PartitionRecord
    | ConfigRecord
    | ProducerIdsRecord
    | FeatureLevelRecord
    | NoOpRecord
)
"""Every kind except the one of `partition_change_codec`."""


_RESOURCE_NUMBERS: Final = {each: pb.ConfigResource.ValueType(each.value) for each in ConfigResource}
_RESOURCES: Final = {number: each for each, number in _RESOURCE_NUMBERS.items()}


class RecordDecodeError(Exception):
    """This version cannot read these bytes of the metadata log or of an image: they are damaged, or a newer version wrote them."""


def encode(record: MetadataRecord) -> bytes:
    """Return a record as bytes."""
    if isinstance(record, PartitionChangeRecord):
        return partition_change_codec.encode(record)
    return _to_message(record).SerializeToString()


def decode(data: bytes) -> MetadataRecord:
    """Return the record that the bytes encode.

    Raises:
        RecordDecodeError: the bytes are no record, or a record of an unknown kind.
    """
    change = partition_change_codec.decode(data)
    if change is not None:
        return change
    try:
        message = pb.MetadataRecord.FromString(data)
    except DecodeError as error:
        raise RecordDecodeError(f"{len(data)} bytes are no metadata record: {error}") from error
    kind = message.WhichOneof("record")
    read = None if kind is None else _READERS.get(kind)
    if kind is None or read is None:
        raise RecordDecodeError("metadata record of an unknown kind; it was written by a newer version of Lograft")
    try:
        return read(getattr(message, kind))
    except ValueError as error:
        raise RecordDecodeError(f"metadata record {kind}: {error}") from error


def _to_message(record: OtherRecord) -> pb.MetadataRecord:
    match record:
        case PartitionRecord():
            return pb.MetadataRecord(
                partition=pb.PartitionRecord(
                    topic_id=record.topic_id,
                    partition=record.partition,
                    replicas=record.replicas,
                    isr=record.isr,
                    leader_id=record.leader_id,
                    leader_epoch=record.leader_epoch,
                    partition_epoch=record.partition_epoch,
                    elr=record.elr,
                    last_known_elr=record.last_known_elr,
                    adding=record.adding,
                    removing=record.removing,
                    awaited=partition_change_codec.awaited_messages(record.awaited),
                )
            )
        case TopicRecord():
            return pb.MetadataRecord(topic=pb.TopicRecord(topic=record.topic, topic_id=record.topic_id))
        case RemoveTopicRecord():
            return pb.MetadataRecord(remove_topic=pb.RemoveTopicRecord(topic_id=record.topic_id))
        case ConfigRecord():
            # Filled in place, which costs half as much as a message that is copied into another.
            message = pb.MetadataRecord()
            config = message.config
            config.resource = _RESOURCE_NUMBERS[record.resource]
            config.resource_name = record.resource_name
            config.name = record.name
            if record.value is not None:
                config.value = record.value
            return message
        case BrokerRecord():
            return pb.MetadataRecord(broker=_broker_message(record))
        case BrokerChangeRecord():
            return pb.MetadataRecord(broker_change=_broker_change_message(record))
        case RemoveBrokerRecord():
            return pb.MetadataRecord(
                remove_broker=pb.RemoveBrokerRecord(broker_id=record.broker_id, broker_epoch=record.broker_epoch)
            )
        case ProducerIdsRecord():
            return pb.MetadataRecord(
                producer_ids=pb.ProducerIdsRecord(
                    broker_id=record.broker_id,
                    broker_epoch=record.broker_epoch,
                    next_producer_id=record.next_producer_id,
                )
            )
        case FeatureLevelRecord():
            return pb.MetadataRecord(feature_level=pb.FeatureLevelRecord(name=record.name, level=record.level))
        case NoOpRecord():
            return pb.MetadataRecord(no_op=pb.NoOpRecord())
        case _:
            assert_never(record)


def _broker_message(record: BrokerRecord) -> pb.BrokerRecord:
    assert record.broker_epoch != 0, f"0 stands for an absent broker epoch: {record}"
    return pb.BrokerRecord(
        broker_id=record.broker_id,
        incarnation_id=record.incarnation_id,
        broker_epoch=record.broker_epoch or 0,
        host=record.host,
        port=record.port,
        rack=record.rack or "",
        fenced=record.fenced,
        log_directory_ids=record.log_directory_ids,
        unclean=record.unclean,
        lost_directories=record.lost_directories,
        replaced_log_directory_ids=record.replaced_log_directory_ids,
        replaced_broker_epoch=record.replaced_broker_epoch,
        offline_log_directory_ids=record.offline_log_directory_ids,
        min_feature_level=record.min_feature_level,
        max_feature_level=record.max_feature_level,
        replication_port=record.replication_port,
    )


def _broker_change_message(record: BrokerChangeRecord) -> pb.BrokerChangeRecord:
    offline = record.offline_log_directory_ids
    return pb.BrokerChangeRecord(
        broker_id=record.broker_id,
        broker_epoch=record.broker_epoch,
        fenced=record.fenced,
        in_controlled_shutdown=record.in_controlled_shutdown,
        unclean=record.unclean,
        offline_log_directories=None if offline is None else pb.DirectoryIdList(directory_ids=offline),
    )


def _read_broker(message: pb.BrokerRecord) -> BrokerRecord:
    return BrokerRecord(
        broker_id=message.broker_id,
        incarnation_id=message.incarnation_id,
        broker_epoch=message.broker_epoch or None,
        host=message.host,
        port=message.port,
        rack=message.rack or None,
        fenced=message.fenced,
        log_directory_ids=tuple(message.log_directory_ids),
        unclean=message.unclean,
        lost_directories=message.lost_directories,
        replaced_log_directory_ids=tuple(message.replaced_log_directory_ids),
        replaced_broker_epoch=message.replaced_broker_epoch,
        offline_log_directory_ids=tuple(message.offline_log_directory_ids),
        # Absent in records written before there were several levels.
        min_feature_level=message.min_feature_level or 1,
        max_feature_level=message.max_feature_level or 1,
        replication_port=message.replication_port,
    )


def _read_broker_change(message: pb.BrokerChangeRecord) -> BrokerChangeRecord:
    leaving = message.in_controlled_shutdown if message.HasField("in_controlled_shutdown") else None
    has_offline, offline = message.HasField("offline_log_directories"), message.offline_log_directories
    return BrokerChangeRecord(
        broker_id=message.broker_id,
        broker_epoch=message.broker_epoch,
        fenced=message.fenced if message.HasField("fenced") else None,
        in_controlled_shutdown=leaving,
        unclean=message.unclean if message.HasField("unclean") else None,
        offline_log_directory_ids=tuple(offline.directory_ids) if has_offline else None,
    )


def _read_remove_broker(message: pb.RemoveBrokerRecord) -> RemoveBrokerRecord:
    return RemoveBrokerRecord(broker_id=message.broker_id, broker_epoch=message.broker_epoch)


def _read_topic(message: pb.TopicRecord) -> TopicRecord:
    return TopicRecord(topic=message.topic, topic_id=message.topic_id)


def _read_remove_topic(message: pb.RemoveTopicRecord) -> RemoveTopicRecord:
    return RemoveTopicRecord(topic_id=message.topic_id)


def _read_partition(message: pb.PartitionRecord) -> PartitionRecord:
    return PartitionRecord(
        topic_id=message.topic_id,
        partition=message.partition,
        replicas=tuple(message.replicas),
        isr=tuple(message.isr),
        leader_id=message.leader_id if message.HasField("leader_id") else None,
        leader_epoch=message.leader_epoch,
        partition_epoch=message.partition_epoch,
        elr=tuple(message.elr),
        last_known_elr=tuple(message.last_known_elr),
        adding=tuple(message.adding),
        removing=tuple(message.removing),
        awaited=partition_change_codec.packed_awaited(message.awaited),
    )


def _read_config(message: pb.ConfigRecord) -> ConfigRecord:
    resource = _RESOURCES.get(message.resource)
    if resource is None:
        raise ValueError(f"{message.resource} is no kind of resource")
    return ConfigRecord(
        resource=resource,
        resource_name=message.resource_name,
        name=message.name,
        value=message.value if message.HasField("value") else None,
    )


def _read_producer_ids(message: pb.ProducerIdsRecord) -> ProducerIdsRecord:
    return ProducerIdsRecord(
        broker_id=message.broker_id,
        broker_epoch=message.broker_epoch,
        next_producer_id=message.next_producer_id,
    )


def _read_feature_level(message: pb.FeatureLevelRecord) -> FeatureLevelRecord:
    return FeatureLevelRecord(name=message.name, level=message.level)


def _read_no_op(_: pb.NoOpRecord) -> NoOpRecord:
    return NoOpRecord()


_READERS: Final[dict[str, Callable[[Any], MetadataRecord]]] = {
    "broker": _read_broker,
    "broker_change": _read_broker_change,
    "remove_broker": _read_remove_broker,
    "topic": _read_topic,
    "remove_topic": _read_remove_topic,
    "partition": _read_partition,
    "partition_change": partition_change_codec.read,
    "config": _read_config,
    "producer_ids": _read_producer_ids,
    "feature_level": _read_feature_level,
    "no_op": _read_no_op,
}
"""Reader by the name of the field in the oneof."""
