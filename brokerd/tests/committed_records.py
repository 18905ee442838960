# SPDX-License-Identifier: Apache-2.0
"""Metadata as a quorum would have committed it, for tests of the code that follows it."""

from __future__ import annotations

from metaquorum.metadata import record_codec
from metaquorum.metadata.listener import CommittedBatch
from metaquorum.metadata.loader import MetadataLoader
from metaquorum.metadata.records import BrokerRecord, MetadataRecord, PartitionRecord, TopicRecord

TOPIC_ID = bytes(range(16))


def commit(observer: MetadataLoader, *records: MetadataRecord, is_control: bool = False) -> None:
    """Apply these records to the metadata, as one committed batch."""
    base_offset = observer.metadata_offset
    observer.on_commit(
        CommittedBatch(
            base_offset=base_offset,
            next_offset=base_offset + max(len(records), 1),
            quorum_epoch=1,
            append_timestamp_ms=0,
            records=[record_codec.encode(record) for record in records],
            is_control=is_control,
        )
    )


def topic(name: str, topic_id: bytes, partition_count: int = 1) -> list[MetadataRecord]:
    """The records of a topic whose partitions broker 1 leads."""
    partitions = [
        PartitionRecord(
            topic_id=topic_id,
            partition=partition,
            replicas=(1,),
            isr=(1,),
            leader_id=1,
            leader_epoch=0,
            partition_epoch=0,
        )
        for partition in range(partition_count)
    ]
    return [TopicRecord(topic=name, topic_id=topic_id), *partitions]


def broker(broker_id: int) -> BrokerRecord:
    """The registration of a broker."""
    return BrokerRecord(
        broker_id=broker_id,
        incarnation_id=bytes(16),
        broker_epoch=broker_id,
        host="h",
        port=1,
        rack=None,
        fenced=True,
    )
