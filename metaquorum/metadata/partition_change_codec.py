# SPDX-License-Identifier: Apache-2.0
"""Changes of partitions to bytes and back: the one kind of record of which there may be 100,000 at once.

Owns their encoding, with a fast path for their usual shape. The partitions of a lost broker change in few ways: a record is its topic
id, its partition, and the *rest*, which says how it changes. protobuf writes and reads each distinct rest once. Laws: the bytes are
those that protobuf would write for the whole record; the fast path reads a record as protobuf would, and leaves bytes of any other
shape to it.

    | bytes          | what it is                                                       |
    |----------------|------------------------------------------------------------------|
    | 3a, length     | field `partition_change` of `MetadataRecord`; a varint           |
    | 0a 10, 16 more | field `topic_id`                                                 |
    | 10, number     | field `partition`, a varint; absent for partition 0              |
    | the rest       | the other fields, ascending by number, as protobuf writes them   |

Source: `proto/lograft/internal/v1/metadata_record.proto`; the encoding of protobuf.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Final

from google.protobuf.message import DecodeError
from lograft.internal.v1 import metadata_record_pb2 as pb

from metaquorum.metadata.awaited import AwaitedReplica, pack, unpack
from metaquorum.metadata.records import LeaderChange, PartitionChangeRecord

CACHED_RESTS: Final = 4_096
"""Distinct rests that are cached, in each direction: less than 1 KiB each if partitions have few replicas."""

CACHED_NUMBERS: Final = 4_096
"""Varints that are cached."""

_KIND: Final = 0x3A
_TOPIC_ID: Final = b"\x0a\x10"
_TOPIC_ID_BYTES: Final = 16
_PARTITION: Final = 0x10
_MAX_SHORT_NUMBER: Final = 2**21
"""What three bytes of a varint hold, exclusive. Larger partition numbers and lengths take the slow path."""

NodeIds = tuple[int, ...]


def encode(record: PartitionChangeRecord) -> bytes:
    """Return a change as the bytes of a `MetadataRecord`."""
    topic_id, partition, leader = record.topic_id, record.partition, record.leader
    if len(topic_id) != _TOPIC_ID_BYTES or not 0 <= partition < _MAX_SHORT_NUMBER:
        return pb.MetadataRecord(partition_change=_to_message(record)).SerializeToString()
    rest = _written(
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
    number = b"\x10" + _varint(partition) if partition else b""
    length = _varint(len(_TOPIC_ID) + _TOPIC_ID_BYTES + len(number) + len(rest))
    return b"".join((b"\x3a", length, _TOPIC_ID, topic_id, number, rest))


def decode(data: bytes) -> PartitionChangeRecord | None:
    """Return the change that the bytes encode; None for bytes of any other shape."""
    try:
        if data[0] != _KIND:
            return None
        size_bytes, begin = _number(data, 1)
        head = begin + len(_TOPIC_ID)
        end = head + _TOPIC_ID_BYTES
        if len(data) != begin + size_bytes or data[begin:head] != _TOPIC_ID or len(data) < end:
            return None
        partition, rest = 0, end
        if len(data) > end and data[end] == _PARTITION:
            partition, rest = _number(data, end + 1)
    except IndexError:
        return None
    change = _read(data[rest:])
    return None if change is None else change.addressed(data[head:end], partition)


def read(message: pb.PartitionChangeRecord) -> PartitionChangeRecord:
    """Return a protobuf message as a record."""
    leader = None
    if message.HasField("leader"):
        leader = LeaderChange(leader_id=message.leader.leader_id if message.leader.HasField("leader_id") else None)
    return PartitionChangeRecord(
        topic_id=message.topic_id,
        partition=message.partition,
        leader=leader,
        isr=tuple(message.isr.node_ids) if message.HasField("isr") else None,
        replicas=tuple(message.replicas.node_ids) if message.HasField("replicas") else None,
        elr=tuple(message.elr.node_ids) if message.HasField("elr") else None,
        last_known_elr=tuple(message.last_known_elr.node_ids) if message.HasField("last_known_elr") else None,
        adding=tuple(message.adding.node_ids) if message.HasField("adding") else None,
        removing=tuple(message.removing.node_ids) if message.HasField("removing") else None,
        awaited=packed_awaited(message.awaited.replicas) if message.HasField("awaited") else None,
    )


def _to_message(record: PartitionChangeRecord) -> pb.PartitionChangeRecord:
    return pb.PartitionChangeRecord(
        topic_id=record.topic_id,
        partition=record.partition,
        leader=None if record.leader is None else pb.LeaderChange(leader_id=record.leader.leader_id),
        isr=None if record.isr is None else pb.ReplicaList(node_ids=record.isr),
        replicas=None if record.replicas is None else pb.ReplicaList(node_ids=record.replicas),
        elr=None if record.elr is None else pb.ReplicaList(node_ids=record.elr),
        last_known_elr=None if record.last_known_elr is None else pb.ReplicaList(node_ids=record.last_known_elr),
        adding=None if record.adding is None else pb.ReplicaList(node_ids=record.adding),
        removing=None if record.removing is None else pb.ReplicaList(node_ids=record.removing),
        awaited=None if record.awaited is None else pb.AwaitedReplicaList(replicas=awaited_messages(record.awaited)),
    )


def awaited_messages(packed: NodeIds) -> list[pb.AwaitedReplica]:
    """Return packed awaited replicas (`awaited.py`) as protobuf messages."""
    return [pb.AwaitedReplica(broker_id=each.broker_id, directory_ids=each.directory_ids) for each in unpack(packed)]


def packed_awaited(messages: Iterable[pb.AwaitedReplica]) -> NodeIds:
    """Return protobuf messages of awaited replicas in packed form.

    Raises:
        ValueError: a directory id does not have 16 bytes, or a replica has none.
    """
    found = [AwaitedReplica(each.broker_id, tuple(each.directory_ids)) for each in messages]
    for each in found:
        if not each.directory_ids or any(len(directory_id) != 16 for directory_id in each.directory_ids):
            raise ValueError(f"the awaited replica of broker {each.broker_id} has no directory ids of 16 bytes")
    return pack(found)


@lru_cache(maxsize=CACHED_RESTS)
def _written(
    changes_leader: bool,
    leader_id: int | None,
    isr: NodeIds | None,
    replicas: NodeIds | None,
    elr: NodeIds | None,
    last_known_elr: NodeIds | None,
    adding: NodeIds | None,
    removing: NodeIds | None,
    awaited: NodeIds | None,
) -> bytes:
    """Return the rest of a record. It is a message with default topic id and partition, whose fields come first and are then absent."""
    change = PartitionChangeRecord(
        topic_id=b"",
        partition=0,
        leader=LeaderChange(leader_id=leader_id) if changes_leader else None,
        isr=isr,
        replicas=replicas,
        elr=elr,
        last_known_elr=last_known_elr,
        adding=adding,
        removing=removing,
        awaited=awaited,
    )
    return _to_message(change).SerializeToString()


@lru_cache(maxsize=CACHED_RESTS)
def _read(rest: bytes) -> PartitionChangeRecord | None:
    """Return the change that a rest encodes; None if it is damaged or contains more than a rest."""
    try:
        message = pb.PartitionChangeRecord.FromString(rest)
    except DecodeError:
        return None
    # A topic id or a partition inside the rest would override those before it, even with a default value.
    is_rest = not message.topic_id and not message.partition and message.SerializeToString() == rest
    return read(message) if is_rest else None


@lru_cache(maxsize=CACHED_NUMBERS)
def _varint(number: int) -> bytes:
    found = bytearray()
    while number >= 0x80:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    found.append(number)
    return bytes(found)


def _number(data: bytes, position: int) -> tuple[int, int]:
    """Return the varint of up to three bytes at a position, and the position after it.

    Raises:
        IndexError: the varint is longer, or the data ends early.
    """
    first = data[position]
    if first < 0x80:
        return first, position + 1
    second = data[position + 1]
    if second < 0x80:
        return first & 0x7F | second << 7, position + 2
    third = data[position + 2]
    if third >= 0x80:
        raise IndexError(position)
    return first & 0x7F | (second & 0x7F) << 7 | third << 14, position + 3
