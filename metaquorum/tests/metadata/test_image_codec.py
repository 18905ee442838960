# SPDX-License-Identifier: Apache-2.0
"""Metadata records as bytes: round trip, absent fields, refused bytes."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lograft.internal.v1 import metadata_record_pb2 as pb

from metaquorum.metadata import record_codec
from metaquorum.metadata.awaited import AwaitedReplica, pack
from metaquorum.metadata.record_codec import RecordDecodeError
from metaquorum.metadata.records import (
    BrokerChangeRecord,
    BrokerRecord,
    ConfigRecord,
    ConfigResource,
    FeatureLevelRecord,
    LeaderChange,
    MetadataRecord,
    NoOpRecord,
    PartitionChangeRecord,
    PartitionRecord,
    ProducerIdsRecord,
    RemoveBrokerRecord,
    RemoveTopicRecord,
    TopicRecord,
)

INT32 = st.integers(0, 2**31 - 1)
INT64 = st.integers(0, 2**63 - 1)
IDS = st.binary(min_size=16, max_size=16)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
NODE_IDS = st.lists(INT32, max_size=4).map(tuple)
AWAITED = st.lists(
    st.builds(AwaitedReplica, broker_id=INT32, directory_ids=st.lists(IDS, min_size=1, max_size=2).map(tuple)),
    max_size=2,
).map(pack)
OPTIONAL_NODE = st.none() | INT32

RECORDS: st.SearchStrategy[MetadataRecord] = st.one_of(
    st.builds(
        BrokerRecord,
        broker_id=INT32,
        incarnation_id=IDS,
        broker_epoch=st.none() | st.integers(1, 2**63 - 1),
        host=TEXT,
        port=INT32,
        rack=st.none() | TEXT.filter(bool),
        fenced=st.booleans(),
        log_directory_ids=st.lists(IDS, max_size=3).map(tuple),
        replaced_broker_epoch=INT64,
        min_feature_level=st.integers(1, 2**31 - 1),
        max_feature_level=st.integers(1, 2**31 - 1),
    ),
    st.builds(
        BrokerChangeRecord,
        broker_id=INT32,
        broker_epoch=INT64,
        fenced=st.none() | st.booleans(),
        in_controlled_shutdown=st.none() | st.booleans(),
    ),
    st.builds(RemoveBrokerRecord, broker_id=INT32, broker_epoch=INT64),
    st.builds(TopicRecord, topic=TEXT, topic_id=IDS),
    st.builds(RemoveTopicRecord, topic_id=IDS),
    st.builds(
        PartitionRecord,
        topic_id=IDS,
        partition=INT32,
        replicas=NODE_IDS,
        isr=NODE_IDS,
        leader_id=OPTIONAL_NODE,
        leader_epoch=INT32,
        partition_epoch=INT32,
        elr=NODE_IDS,
        last_known_elr=NODE_IDS,
        adding=NODE_IDS,
        removing=NODE_IDS,
        awaited=AWAITED,
    ),
    st.builds(
        PartitionChangeRecord,
        topic_id=IDS,
        partition=INT32,
        leader=st.none() | st.builds(LeaderChange, leader_id=OPTIONAL_NODE),
        isr=st.none() | NODE_IDS,
        replicas=st.none() | NODE_IDS,
        elr=st.none() | NODE_IDS,
        last_known_elr=st.none() | NODE_IDS,
        adding=st.none() | NODE_IDS,
        removing=st.none() | NODE_IDS,
        awaited=st.none() | AWAITED,
    ),
    st.builds(
        ConfigRecord, resource=st.sampled_from(ConfigResource), resource_name=TEXT, name=TEXT, value=st.none() | TEXT
    ),
    st.builds(ProducerIdsRecord, broker_id=INT32, broker_epoch=INT64, next_producer_id=INT64),
    st.builds(FeatureLevelRecord, name=TEXT, level=INT32),
    st.just(NoOpRecord()),
)


@settings(max_examples=400, deadline=None, derandomize=True)
@given(RECORDS)
def test_record_survives_the_way_through_bytes(record: MetadataRecord) -> None:
    """Every record is the same after encode and decode, absent values included."""
    assert record_codec.decode(record_codec.encode(record)) == record


@settings(max_examples=300, deadline=None, derandomize=True)
@given(st.binary(max_size=60) | RECORDS.map(record_codec.encode).map(lambda data: data[:-1]))
def test_damaged_bytes_are_a_typed_error_or_a_record(data: bytes) -> None:
    """Whatever the bytes are, decode returns a record or raises its own error."""
    try:
        record_codec.decode(data)
    except RecordDecodeError:
        return


def test_record_of_a_newer_version_is_refused() -> None:
    """A kind that this version does not know is not skipped: the image would miss a fact."""
    with pytest.raises(RecordDecodeError, match="newer version"):
        record_codec.decode(b"")
    unknown_field_99 = bytes([0x9A, 0x06, 0x00])
    with pytest.raises(RecordDecodeError, match="newer version"):
        record_codec.decode(unknown_field_99)


def test_config_of_an_unknown_resource_is_refused() -> None:
    """An unknown enum value is damage or from a newer version, and no default."""
    data = pb.MetadataRecord(config=pb.ConfigRecord(name="x")).SerializeToString()
    with pytest.raises(RecordDecodeError, match="config"):
        record_codec.decode(data)


def test_broker_epoch_zero_is_never_written() -> None:
    """0 stands for "the offset of this record"; as an epoch it would be lost."""
    record = BrokerRecord(
        broker_id=1, incarnation_id=bytes(16), broker_epoch=0, host="h", port=1, rack=None, fenced=True
    )
    with pytest.raises(AssertionError, match="absent"):
        record_codec.encode(record)


def test_every_kind_of_the_protobuf_message_is_known() -> None:
    """The codec reads every member of the oneof in the proto file."""
    fields = {field.name for field in pb.MetadataRecord.DESCRIPTOR.oneofs_by_name["record"].fields}
    assert set(record_codec._READERS) == fields
