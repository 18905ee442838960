# SPDX-License-Identifier: Apache-2.0
"""The effect of each record on an image: the one transition function of the metadata.

Owns the meaning of records. Two images use it: the committed one (`image.py`), and the controller's view with appended, uncommitted
records (`appended.py`). So both understand every record in the same way. Law: a record that contradicts the image stops the process
by an assertion, because an image that skipped a record is wrong from there on.
Source: `docs/controller.md` section "Records".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Protocol, assert_never

from metaquorum.metadata.partition_blocks import BLOCK_PARTITIONS, MembersChange, change_members, is_possible
from metaquorum.metadata.records import (
    BrokerChangeRecord,
    BrokerRecord,
    ConfigRecord,
    ConfigResource,
    FeatureLevelRecord,
    NoOpRecord,
    PartitionChangeRecord,
    PartitionRecord,
    ProducerIdsRecord,
    RemoveBrokerRecord,
    RemoveTopicRecord,
    TopicRecord,
)
from metaquorum.metadata.runs import Run
from metaquorum.metadata.state import BrokerImage, PartitionCounts, PartitionImage, TopicImage
from metaquorum.metadata.topic_configs import FLUSH_POLICY, FlushPolicy


class ImageTables(Protocol):
    """The tables that `apply` reads and changes."""

    @property
    def counts(self) -> PartitionCounts:
        """Counts over all partitions, which `apply` keeps up to date."""
        ...

    def broker(self, broker_id: int) -> BrokerImage | None:
        """Return a broker, or None."""
        ...

    def put_broker(self, broker: BrokerImage) -> None:
        """Add or replace a broker."""
        ...

    def drop_broker(self, broker_id: int) -> None:
        """Remove an existing broker."""
        ...

    def put_topic(self, topic: TopicImage) -> None:
        """Add a topic whose name and id are unused."""
        ...

    def topic_for_change(self, topic_id: bytes) -> TopicImage | None:
        """Return a topic, or None. The caller is about to change it in place."""
        ...

    def drop_topic(self, topic: TopicImage) -> None:
        """Remove an existing topic."""
        ...

    def note_left_leadership(self, broker_id: int, offset: int) -> None:
        """Note that the record at `offset` took a partition away from a leader."""
        ...

    def configs_of(self, resource: ConfigResource, name: str) -> Mapping[str, str]:
        """Return the configs set for a broker, a group or the cluster."""
        ...

    def put_ack_switch(self, resource: ConfigResource, resource_name: str, offset: int) -> None:
        """Store the offset of the last record by which `flush.policy=ack` may have begun to apply to a resource."""
        ...

    def put_other_config(self, record: ConfigRecord) -> None:
        """Set or remove a config of a broker, a group or the cluster."""
        ...

    def put_producer_ids(self, record: ProducerIdsRecord) -> None:
        """Store the last allocated block of producer ids."""
        ...

    def put_feature_level(self, record: FeatureLevelRecord) -> None:
        """Store the level of a feature."""
        ...


def apply(tables: ImageTables, record: Run, offset: int) -> None:
    """Apply the record at `offset`, or the run that begins there, to `tables`."""
    match record:
        case PartitionRecord():
            _create_partition(tables, record)
        case list():
            _change_partitions(tables, record, offset)
        case PartitionChangeRecord():
            _change_partitions(tables, (record,), offset)
        case TopicRecord():
            tables.put_topic(TopicImage(record.topic, record.topic_id))
        case RemoveTopicRecord():
            topic = tables.topic_for_change(record.topic_id)
            assert topic is not None, f"offset {offset}: removal of unknown topic {record.topic_id.hex()}"
            for members, count in topic.partitions.tally():
                tables.counts.move(members, -count)
            tables.drop_topic(topic)
        case ConfigRecord():
            _change_config(tables, record, offset)
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
        record.awaited,
    )
    _check_partition(topic, partition)
    topic.partitions.append(partition)
    tables.counts.add(partition)


def _change_partitions(tables: ImageTables, records: Sequence[PartitionChangeRecord], offset: int) -> None:
    """Change partitions of one topic, in ascending order and each once; the first record is at `offset`.

    One pass over the blocks; a change of equal members is computed and counted once.
    """
    topic = tables.topic_for_change(records[0].topic_id)
    assert topic is not None, f"change of partition {records[0].partition} of unknown topic {records[0].topic_id.hex()}"
    changes = [_change_partition(topic, record) for record in records]
    for change, count in Counter(changes).items():
        tables.counts.replace(change.before, change.after, count)
    for change, last_offset in dict(zip(changes, range(offset, offset + len(changes)), strict=True)).items():
        leader_id = change.before.leader_id
        if leader_id is not None and leader_id != change.after.leader_id:
            tables.note_left_leadership(leader_id, last_offset)


def _change_partition(topic: TopicImage, record: PartitionChangeRecord) -> MembersChange:
    number, leader, partitions = record.partition, record.leader, topic.partitions
    assert 0 <= number < len(partitions), f"{topic.topic}: change of unknown partition {number}"
    block = partitions.open(number // BLOCK_PARTITIONS)
    place = number % BLOCK_PARTITIONS
    change = change_members(
        block.members[place],
        leader is not None,
        None if leader is None else leader.leader_id,
        record.isr,
        record.replicas,
        record.elr,
        record.last_known_elr,
        record.adding,
        record.removing,
        record.awaited,
    )
    block.members[place] = change.data
    block.leader_epochs[place] += leader is not None
    block.partition_epochs[place] += 1
    return change


def _check_partition(topic: TopicImage, partition: PartitionImage) -> None:
    possible = is_possible(
        partition.leader_id,
        partition.replicas,
        partition.isr,
        partition.elr,
        partition.adding,
        partition.removing,
        partition.awaited,
    )
    assert possible, f"{topic.topic}: impossible {partition}"


def set_config(tables: ImageTables, record: ConfigRecord) -> None:
    """Set or remove a config as a plain state, without deriving a switch of `flush.policy`."""
    if record.resource is not ConfigResource.TOPIC:
        tables.put_other_config(record)
        return
    topic = tables.topic_for_change(bytes.fromhex(record.resource_name))
    assert topic is not None, f"config {record.name} of unknown topic {record.resource_name}"
    if record.value is None:
        topic.configs.pop(record.name, None)
    else:
        topic.configs[record.name] = record.value


def _change_config(tables: ImageTables, record: ConfigRecord, offset: int) -> None:
    if record.name == FLUSH_POLICY and _may_switch_to_ack(tables, record):
        tables.put_ack_switch(record.resource, record.resource_name, offset)
    set_config(tables, record)


def _may_switch_to_ack(tables: ImageTables, record: ConfigRecord) -> bool:
    """Return True if `ack` may begin to apply to records acknowledged unflushed. A removal may uncover an inherited `ack`."""
    if record.value not in (FlushPolicy.ACK.value, None):
        return False
    if record.resource is not ConfigResource.TOPIC:
        before = tables.configs_of(record.resource, record.resource_name).get(FLUSH_POLICY)
        return before != FlushPolicy.ACK.value
    topic = tables.topic_for_change(bytes.fromhex(record.resource_name))
    assert topic is not None, f"config {record.name} of unknown topic {record.resource_name}"
    # The configs of a new topic come before its partitions: no record has been acknowledged yet.
    return len(topic.partitions) > 0 and topic.configs.get(FLUSH_POLICY) != FlushPolicy.ACK.value


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
            lost_directories=record.lost_directories,
            replaced_log_directory_ids=record.replaced_log_directory_ids,
            replaced_broker_epoch=record.replaced_broker_epoch,
            offline_log_directory_ids=record.offline_log_directory_ids,
            min_feature_level=record.min_feature_level,
            max_feature_level=record.max_feature_level,
            replication_port=record.replication_port,
        )
    )


def _change_broker(tables: ImageTables, record: BrokerChangeRecord) -> None:
    broker = _known_broker(tables, record.broker_id, record.broker_epoch)
    unclean = broker.unclean if record.unclean is None else record.unclean
    shutdown, offline = record.in_controlled_shutdown, record.offline_log_directory_ids
    tables.put_broker(
        replace(
            broker,
            fenced=broker.fenced if record.fenced is None else record.fenced,
            in_controlled_shutdown=broker.in_controlled_shutdown if shutdown is None else shutdown,
            unclean=unclean,
            lost_directories=broker.lost_directories and unclean,
            replaced_log_directory_ids=broker.replaced_log_directory_ids if unclean else (),
            replaced_broker_epoch=broker.replaced_broker_epoch if unclean else 0,
            offline_log_directory_ids=broker.offline_log_directory_ids if offline is None else offline,
        )
    )


def _known_broker(tables: ImageTables, broker_id: int, broker_epoch: int) -> BrokerImage:
    broker = tables.broker(broker_id)
    assert broker is not None, f"record about broker {broker_id}, which is not registered"
    assert broker.broker_epoch == broker_epoch, f"record about {broker}, but with epoch {broker_epoch}"
    return broker
