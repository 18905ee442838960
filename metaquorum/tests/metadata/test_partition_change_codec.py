# SPDX-License-Identifier: Apache-2.0
"""Changes of partitions as bytes: the fast codec writes and reads any bytes like protobuf."""

from __future__ import annotations

import pytest
from google.protobuf.message import DecodeError
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from lograft.internal.v1 import metadata_record_pb2 as pb

from metaquorum.metadata import partition_change_codec, record_codec
from metaquorum.metadata.awaited import AwaitedReplica, pack, unpack
from metaquorum.metadata.record_codec import RecordDecodeError
from metaquorum.metadata.records import LeaderChange, PartitionChangeRecord

NODE_IDS = st.none() | st.lists(st.integers(0, 2**31 - 1) | st.integers(0, 5), max_size=4).map(tuple)
AWAITED = st.lists(
    st.builds(
        AwaitedReplica,
        broker_id=st.integers(0, 2**31 - 1),
        directory_ids=st.lists(st.binary(min_size=16, max_size=16), min_size=1, max_size=2).map(tuple),
    ),
    max_size=2,
).map(pack)
LEADERS = st.none() | st.builds(LeaderChange, leader_id=st.none() | st.integers(0, 2**31 - 1))
CHANGES = st.builds(
    PartitionChangeRecord,
    topic_id=st.binary(min_size=16, max_size=16) | st.binary(max_size=20),
    partition=st.integers(0, 300) | st.integers(0, 2**31 - 1) | st.sampled_from((2**7, 2**14, 2**21 - 1, 2**21)),
    leader=LEADERS,
    isr=NODE_IDS,
    replicas=NODE_IDS,
    elr=NODE_IDS,
    last_known_elr=NODE_IDS,
    adding=NODE_IDS,
    removing=NODE_IDS,
    awaited=st.none() | AWAITED,
)
CHECKED = settings(max_examples=400, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)


def by_protobuf(record: PartitionChangeRecord) -> bytes:
    """Return protobuf's encoding of the whole record."""
    message = pb.PartitionChangeRecord(topic_id=record.topic_id, partition=record.partition)
    if record.leader is not None:
        message.leader.SetInParent()
        if record.leader.leader_id is not None:
            message.leader.leader_id = record.leader.leader_id
    for name in ("isr", "replicas", "elr", "last_known_elr", "adding", "removing"):
        node_ids = getattr(record, name)
        if node_ids is not None:
            field = getattr(message, name)
            field.SetInParent()
            field.node_ids.extend(node_ids)
    if record.awaited is not None:
        message.awaited.SetInParent()
        for each in unpack(record.awaited):
            message.awaited.replicas.add(broker_id=each.broker_id, directory_ids=each.directory_ids)
    return pb.MetadataRecord(partition_change=message).SerializeToString()


def read_by_protobuf(data: bytes) -> PartitionChangeRecord | None:
    """Return protobuf's decoding; None if the bytes are not a change of a partition."""
    try:
        message = pb.MetadataRecord.FromString(data)
    except DecodeError:
        return None
    return partition_change_codec.read(message.partition_change) if message.HasField("partition_change") else None


@CHECKED
@given(CHANGES)
def test_bytes_are_those_of_protobuf_and_read_back(record: PartitionChangeRecord) -> None:
    """Property, for topic ids and partitions of any size: the fast codec and protobuf write the same bytes."""
    data = record_codec.encode(record)
    assert data == by_protobuf(record)
    assert record_codec.decode(data) == record
    usual = len(record.topic_id) == 16 and record.partition < 2**21
    assert partition_change_codec.decode(data) == (record if usual else None)


@CHECKED
@given(CHANGES, st.data())
def test_bytes_of_another_shape_are_read_as_protobuf_reads_them(
    record: PartitionChangeRecord, data: st.DataObject
) -> None:
    """Property: changed, truncated or extended bytes give protobuf's record, or its refusal."""
    changed = bytearray(record_codec.encode(record))
    for _ in range(data.draw(st.integers(0, 3))):
        changed[data.draw(st.integers(0, len(changed) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(changed[: data.draw(st.integers(0, len(changed)))]) + data.draw(st.binary(max_size=6))
    short = partition_change_codec.decode(cut)
    if short is not None:
        assert short == read_by_protobuf(cut)


TOPIC_ID = bytes(range(16))
HEAD = b"\x0a\x10" + TOPIC_ID


@pytest.mark.parametrize(
    "body",
    [
        HEAD + b"\x10\x05" + HEAD[:2] + b"z" * 16,
        HEAD + HEAD[:2] + b"z" * 16,
        HEAD + b"\x0a\x00",
        HEAD + b"\x10\x05\x10\x07",
        HEAD + b"\x10\x05\x10\x00",
        HEAD + b"\x10\x85\x00",
        HEAD + b"\x10\x85\x80\x00",
        HEAD + b"\x10\x85\x80\x80\x00",
        HEAD + b"\x10\xff\xff\xff\xff\x07",
        HEAD + b"\x22\x02\x08\x01\x10\x05",
        HEAD + b"\x22\x02\x08\x01",
        HEAD + b"\x22\x03\x0a\x01\x01\x1a\x00",
        HEAD + b"\x78\x01",
        HEAD + b"\x1a",
        HEAD + b"\x10",
        HEAD[:-1],
        b"\x10\x05" + HEAD,
        b"",
    ],
)
def test_fields_twice_out_of_order_or_unusual_are_read_as_protobuf_reads_them(body: bytes) -> None:
    """The last value of a field wins, the order does not matter, unpacked lists are lists, and unknown fields are skipped."""
    data = b"\x3a" + bytes([len(body)]) + body
    expected = read_by_protobuf(data)
    if expected is None:
        with pytest.raises(RecordDecodeError):
            record_codec.decode(data)
    else:
        assert record_codec.decode(data) == expected


@pytest.mark.parametrize("data", [b"\x3a", b"\x3a\x80", b"\x3a\x80\x80\x80\x80", b"\x3a\x7f" + HEAD])
def test_damaged_record_is_refused(data: bytes) -> None:
    """The fast codec leaves a wrong length to protobuf, which refuses it."""
    with pytest.raises(RecordDecodeError):
        record_codec.decode(data)


def test_kind_of_another_record_behind_a_change_counts() -> None:
    """Of two fields of the oneof, the last one wins."""
    change = record_codec.encode(PartitionChangeRecord(topic_id=TOPIC_ID, partition=3))
    other = pb.MetadataRecord(no_op=pb.NoOpRecord())
    assert type(record_codec.decode(change + other.SerializeToString())).__name__ == "NoOpRecord"
