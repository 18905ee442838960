# SPDX-License-Identifier: Apache-2.0
"""What each record does to an image: the one transition function of the metadata.

Owns the meaning of records. Two images use it, the committed one (`image.py`) and the one with appended, uncommitted
records (`appended.py`), so that both understand every record in the same way. Law: a record that does not fit the image
stops the process (an assertion), because an image that skipped a fact is wrong from there on.
Source: `docs/controller.md` section "Records".
"""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol, assert_never

from metaquorum.controller.partition_blocks import is_possible
from metaquorum.controller.records import (
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
from metaquorum.controller.state import BrokerImage, PartitionCounts, PartitionImage, TopicImage


class ImageTables(Protocol):
    """Where `apply` reads and writes."""

    @property
    def counts(self) -> PartitionCounts:
        """Counts over all partitions; `apply` keeps them."""
        ...

    def broker(self, broker_id: int) -> BrokerImage | None:
        """Return a broker."""
        ...

    def put_broker(self, broker: BrokerImage) -> None:
        """Add or replace a broker."""
        ...

    def drop_broker(self, broker_id: int) -> None:
        """Remove a broker that is present."""
        ...

    def put_topic(self, topic: TopicImage) -> None:
        """Add a topic whose name and id are free."""
        ...

    def topic_for_change(self, topic_id: bytes) -> TopicImage | None:
        """Return a topic that the caller is about to change in place."""
        ...

    def drop_topic(self, topic: TopicImage) -> None:
        """Remove a topic that is present."""
        ...

    def note_leader(self, old: PartitionImage, new: PartitionImage) -> None:
        """Learn that a partition changed from `old` to `new`."""
        ...

    def put_other_config(self, record: ConfigRecord) -> None:
        """Set or remove a config that belongs to no topic."""
        ...

    def put_producer_ids(self, record: ProducerIdsRecord) -> None:
        """Remember which producer ids are given out."""
        ...

    def put_feature_level(self, record: FeatureLevelRecord) -> None:
        """Remember the level of a feature."""
        ...


def apply(tables: ImageTables, record: MetadataRecord, offset: int) -> None:
    """Change `tables` by the record at `offset`."""
    match record:
        case PartitionRecord():
            _create_partition(tables, record)
        case PartitionChangeRecord():
            _change_partition(tables, record)
        case TopicRecord():
            tables.put_topic(TopicImage(record.topic, record.topic_id))
        case RemoveTopicRecord():
            topic = tables.topic_for_change(record.topic_id)
            assert topic is not None, f"offset {offset}: removal of unknown topic {record.topic_id.hex()}"
            for members, count in topic.partitions.tally():
                tables.counts.move(members, -count)
            tables.drop_topic(topic)
        case ConfigRecord():
            _set_config(tables, record)
        case BrokerRecord():
            _register_broker(tables, record, offset)
        case BrokerChangeRecord():
            _change_broker(tables, record)
        case RemoveBrokerRecord():
            _known_broker(tables, record.broker_id, record.broker_epoch)
            tables.drop_broker(record.broker_id)
        case ProducerIdsRecord():
            tables.put_producer_ids(record)
        case FeatureLevelRecord():
            tables.put_feature_level(record)
        case NoOpRecord():
            pass
        case _:
            assert_never(record)


def _create_partition(tables: ImageTables, record: PartitionRecord) -> None:
    topic = tables.topic_for_change(record.topic_id)
    assert topic is not None, f"partition {record.partition} of unknown topic {record.topic_id.hex()}"
    assert record.partition == len(topic.partitions), f"{topic.topic}: partition {record.partition} out of turn"
    replicas = record.replicas
    partition = PartitionImage(
        record.partition,
        replicas,
        replicas if record.isr == replicas else record.isr,
        record.leader_id,
        record.leader_epoch,
        record.partition_epoch,
        record.elr,
        record.last_known_elr,
        record.adding,
        record.removing,
    )
    _check_partition(topic, partition)
    topic.partitions.append(partition)
    tables.counts.add(partition)


def _change_partition(tables: ImageTables, record: PartitionChangeRecord) -> None:
    topic = tables.topic_for_change(record.topic_id)
    assert topic is not None, f"change of partition {record.partition} of unknown topic {record.topic_id.hex()}"
    assert record.partition < len(topic.partitions), f"{topic.topic}: change of unknown partition {record.partition}"
    old = topic.partitions[record.partition]
    replicas = old.replicas if record.replicas is None else record.replicas
    isr = old.isr if record.isr is None else record.isr
    new = PartitionImage(
        old.partition,
        replicas,
        isr,
        old.leader_id if record.leader is None else record.leader.leader_id,
        old.leader_epoch + (record.leader is not None),
        old.partition_epoch + 1,
        old.elr if record.elr is None else record.elr,
        old.last_known_elr if record.last_known_elr is None else record.last_known_elr,
        old.adding if record.adding is None else record.adding,
        old.removing if record.removing is None else record.removing,
    )
    _check_partition(topic, new)
    topic.partitions[record.partition] = new
    tables.counts.replace(old, new)
    tables.note_leader(old, new)


def _check_partition(topic: TopicImage, partition: PartitionImage) -> None:
    possible = is_possible(
        partition.leader_id, partition.replicas, partition.isr, partition.elr, partition.adding, partition.removing
    )
    assert possible, f"{topic.topic}: impossible {partition}"


def _set_config(tables: ImageTables, record: ConfigRecord) -> None:
    if record.resource is not ConfigResource.TOPIC:
        tables.put_other_config(record)
        return
    topic = tables.topic_for_change(bytes.fromhex(record.resource_name))
    assert topic is not None, f"config {record.name} of unknown topic {record.resource_name}"
    if record.value is None:
        topic.configs.pop(record.name, None)
    else:
        topic.configs[record.name] = record.value


def _register_broker(tables: ImageTables, record: BrokerRecord, offset: int) -> None:
    tables.put_broker(
        BrokerImage(
            broker_id=record.broker_id,
            incarnation_id=record.incarnation_id,
            broker_epoch=offset if record.broker_epoch is None else record.broker_epoch,
            host=record.host,
            port=record.port,
            rack=record.rack,
            fenced=record.fenced,
            in_controlled_shutdown=False,
            log_directory_ids=record.log_directory_ids,
            unclean=record.unclean,
            offline_log_directory_ids=record.offline_log_directory_ids,
            min_feature_level=record.min_feature_level,
            max_feature_level=record.max_feature_level,
        )
    )


def _change_broker(tables: ImageTables, record: BrokerChangeRecord) -> None:
    broker = _known_broker(tables, record.broker_id, record.broker_epoch)
    shutdown, offline = record.in_controlled_shutdown, record.offline_log_directory_ids
    tables.put_broker(
        replace(
            broker,
            fenced=broker.fenced if record.fenced is None else record.fenced,
            in_controlled_shutdown=broker.in_controlled_shutdown if shutdown is None else shutdown,
            unclean=broker.unclean if record.unclean is None else record.unclean,
            offline_log_directory_ids=broker.offline_log_directory_ids if offline is None else offline,
        )
    )


def _known_broker(tables: ImageTables, broker_id: int, broker_epoch: int) -> BrokerImage:
    broker = tables.broker(broker_id)
    assert broker is not None, f"record about broker {broker_id}, which is not registered"
    assert broker.broker_epoch == broker_epoch, f"record about {broker}, but with epoch {broker_epoch}"
    return broker
