# SPDX-License-Identifier: Apache-2.0
"""Records of groups to records of the log and back.

Owns a persistent format: the keys, made by hand because compaction compares their bytes, and the translation of the values to protobuf.
It fits `brokerd.coordinator.core.RecordCodec`. Only this module turns absent values of the wire into None.
Source: `docs/groups.md` section "Records", `proto/lograft/internal/v1/group_record.proto`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Final

from google.protobuf.message import DecodeError
from lograft.internal.v1 import group_record_pb2 as pb

from brokerd.coordinator.core import Record
from brokerd.groups.records import (
    CurrentRecord,
    CurrentValue,
    GroupLogRecord,
    GroupRecord,
    GroupValue,
    Held,
    MemberRecord,
    MemberValue,
    OffsetRecord,
    OffsetValue,
    Partitions,
    PendingOffset,
    PendingRecord,
    PendingValue,
    Subscription,
    TargetRecord,
    TargetValue,
)

_HEAD: Final = struct.Struct(">BH")
_OFFSET_TAIL: Final = struct.Struct(">16sI")
_LENGTH: Final = struct.Struct(">H")
_ROUND: Final = struct.Struct(">I")
_GROUP, _MEMBER, _TARGET, _CURRENT, _OFFSET, _PENDING = 1, 2, 3, 4, 5, 6


class GroupRecordError(Exception):
    """This version cannot read a record of `__groups`: it is damaged, or a newer version wrote it. Update this broker."""


def encode(record: GroupLogRecord) -> Record:
    """Return the record of the log."""
    match record:
        case OffsetRecord():
            tail = _OFFSET_TAIL.pack(record.topic_id, record.partition)
            return Record(_key(_OFFSET, record.group_id, tail), _encode_offset(record.value))
        case PendingRecord():
            ingest = record.ingest_id.encode()
            tail = _LENGTH.pack(len(ingest)) + ingest + _ROUND.pack(record.round)
            return Record(_key(_PENDING, record.group_id, tail), _encode_pending(record.value))
        case CurrentRecord():
            return Record(_member_key(_CURRENT, record), _encode_current(record.value))
        case TargetRecord():
            return Record(_member_key(_TARGET, record), _encode_target(record.value))
        case MemberRecord():
            return Record(_member_key(_MEMBER, record), _encode_member(record.value))
        case GroupRecord():
            return Record(_key(_GROUP, record.group_id, b""), _encode_group(record.value))


def decode(record: Record) -> GroupLogRecord:
    """Return the record that the log has.

    Raises:
        GroupRecordError: the key is of an unknown kind, or key or value are malformed.
    """
    try:
        return _decode(record)
    except (struct.error, DecodeError, ValueError) as error:
        raise GroupRecordError(f"record with key {record.key[:64].hex()} cannot be read: {error}") from error


class GroupCodec:
    """`encode` and `decode` as the object that the runtime takes."""

    def encode(self, record: GroupLogRecord) -> Record:
        """Return the record of the log."""
        return encode(record)

    def decode(self, record: Record) -> GroupLogRecord:
        """Return the record that the log has.

        Raises:
            GroupRecordError: see `decode` of the module.
        """
        return decode(record)


def _decode(record: Record) -> GroupLogRecord:
    kind, length = _HEAD.unpack_from(record.key)
    end = _HEAD.size + length
    if end > len(record.key):
        raise ValueError("the key is cut short")
    group_id = record.key[_HEAD.size : end].decode()
    tail, data = record.key[end:], record.value
    match kind:
        case 6:
            (size,) = _LENGTH.unpack_from(tail)
            ingest, number = tail[_LENGTH.size : _LENGTH.size + size], tail[_LENGTH.size + size :]
            value = None if data is None else _decode_pending(data)
            return PendingRecord(group_id, ingest.decode(), _ROUND.unpack(number)[0], value)
        case 5:
            topic_id, partition = _OFFSET_TAIL.unpack(tail)
            return OffsetRecord(group_id, topic_id, partition, None if data is None else _decode_offset(data))
        case 4:
            return CurrentRecord(group_id, tail.decode(), None if data is None else _decode_current(data))
        case 3:
            return TargetRecord(group_id, tail.decode(), None if data is None else _decode_target(data))
        case 2:
            return MemberRecord(group_id, tail.decode(), None if data is None else _decode_member(data))
        case 1 if not tail:
            return GroupRecord(group_id, None if data is None else _decode_group(data))
        case _:
            raise ValueError(f"kind {kind} is unknown")


def _key(kind: int, group_id: str, tail: bytes) -> bytes:
    group = group_id.encode()
    return _HEAD.pack(kind, len(group)) + group + tail


def _member_key(kind: int, record: MemberRecord | TargetRecord | CurrentRecord) -> bytes:
    return _key(kind, record.group_id, record.member_id.encode())


def _encode_group(value: GroupValue | None) -> bytes | None:
    if value is None:
        return None
    return pb.GroupStateRecord(
        group_epoch=value.group_epoch,
        target_epoch=value.target_epoch,
        topics_digest=value.topics_digest,
        metadata_offset=value.metadata_offset,
        empty_since_ms=value.empty_since_ms,
    ).SerializeToString()


def _decode_group(data: bytes) -> GroupValue:
    message = pb.GroupStateRecord.FromString(data)
    return GroupValue(
        group_epoch=message.group_epoch,
        target_epoch=message.target_epoch,
        topics_digest=message.topics_digest,
        metadata_offset=message.metadata_offset,
        empty_since_ms=message.empty_since_ms if message.HasField("empty_since_ms") else None,
    )


def _encode_member(value: MemberValue | None) -> bytes | None:
    if value is None:
        return None
    return pb.GroupMemberRecord(
        topic_names=value.subscription.names,
        topic_pattern=value.subscription.pattern,
        processing_limit_ms=value.processing_limit_ms,
        session_timeout_ms=value.session_timeout_ms,
        instance_id=value.instance_id,
        rack=value.rack,
        client_id=value.client_id,
        client_host=value.client_host,
        assignor=value.assignor,
    ).SerializeToString()


def _decode_member(data: bytes) -> MemberValue:
    message = pb.GroupMemberRecord.FromString(data)
    return MemberValue(
        subscription=Subscription(tuple(message.topic_names), message.topic_pattern),
        processing_limit_ms=message.processing_limit_ms,
        session_timeout_ms=message.session_timeout_ms,
        instance_id=message.instance_id if message.HasField("instance_id") else None,
        rack=message.rack if message.HasField("rack") else None,
        client_id=message.client_id,
        client_host=message.client_host,
        assignor=message.assignor,
    )


def _encode_target(value: TargetValue | None) -> bytes | None:
    if value is None:
        return None
    topics = [
        pb.GroupTopicPartitions(topic_id=topic_id, partitions=numbers) for topic_id, numbers in value.partitions.items()
    ]
    return pb.GroupTargetRecord(target_epoch=value.target_epoch, topics=topics).SerializeToString()


def _decode_target(data: bytes) -> TargetValue:
    message = pb.GroupTargetRecord.FromString(data)
    partitions: Partitions = {topic.topic_id: tuple(topic.partitions) for topic in message.topics}
    return TargetValue(target_epoch=message.target_epoch, partitions=partitions)


def _encode_current(value: CurrentValue | None) -> bytes | None:
    if value is None:
        return None
    return pb.GroupCurrentRecord(
        member_epoch=value.member_epoch,
        previous_epoch=value.previous_epoch,
        assigned=_held_messages(value.assigned),
        revoking=_held_messages(value.revoking),
    ).SerializeToString()


def _decode_current(data: bytes) -> CurrentValue:
    message = pb.GroupCurrentRecord.FromString(data)
    return CurrentValue(
        member_epoch=message.member_epoch,
        previous_epoch=message.previous_epoch,
        assigned=_held(message.assigned),
        revoking=_held(message.revoking),
    )


def _held_messages(held: Held) -> list[pb.GroupHeldPartitions]:
    messages: list[pb.GroupHeldPartitions] = []
    for topic_id, numbers in held.items():
        by_epoch: dict[int, list[int]] = {}
        for number, epoch in numbers.items():
            by_epoch.setdefault(epoch, []).append(number)
        messages += [
            pb.GroupHeldPartitions(topic_id=topic_id, assignment_epoch=epoch, partitions=by_epoch[epoch])
            for epoch in sorted(by_epoch)
        ]
    return messages


def _held(messages: Iterable[pb.GroupHeldPartitions]) -> Held:
    found: dict[bytes, dict[int, int]] = {}
    for message in messages:
        found.setdefault(message.topic_id, {}).update(dict.fromkeys(message.partitions, message.assignment_epoch))
    return {topic_id: dict(sorted(numbers.items())) for topic_id, numbers in found.items()}


def _encode_offset(value: OffsetValue | None) -> bytes | None:
    if value is None:
        return None
    return pb.GroupOffsetRecord(
        offset=value.offset,
        commit_ms=value.commit_ms,
        leader_epoch=None if value.leader_epoch < 0 else value.leader_epoch,
        metadata=value.metadata,
    ).SerializeToString()


def _decode_offset(data: bytes) -> OffsetValue:
    message = pb.GroupOffsetRecord.FromString(data)
    return OffsetValue(
        offset=message.offset,
        commit_ms=message.commit_ms,
        leader_epoch=message.leader_epoch if message.HasField("leader_epoch") else -1,
        metadata=message.metadata,
    )


def _encode_pending(value: PendingValue | None) -> bytes | None:
    if value is None:
        return None
    offsets = [
        pb.GroupPendingOffset(
            topic_id=each.topic_id,
            partition=each.partition,
            offset=each.offset,
            leader_epoch=None if each.leader_epoch < 0 else each.leader_epoch,
            metadata=each.metadata,
        )
        for each in value.offsets
    ]
    return pb.GroupPendingRecord(
        ingest_epoch=value.ingest_epoch,
        prepared_ms=value.prepared_ms,
        offsets=offsets,
        offsets_digest=value.offsets_digest,
    ).SerializeToString()


def _decode_pending(data: bytes) -> PendingValue:
    message = pb.GroupPendingRecord.FromString(data)
    offsets = tuple(
        PendingOffset(
            topic_id=each.topic_id,
            partition=each.partition,
            offset=each.offset,
            leader_epoch=each.leader_epoch if each.HasField("leader_epoch") else -1,
            metadata=each.metadata,
        )
        for each in message.offsets
    )
    return PendingValue(
        ingest_epoch=message.ingest_epoch,
        prepared_ms=message.prepared_ms,
        offsets=offsets,
        offsets_digest=message.offsets_digest,
    )
