# SPDX-License-Identifier: Apache-2.0
"""Records of ingests to records of the log and back.

Owns a persistent format: the keys, made by hand because compaction compares their bytes, and the translation of the values to protobuf.
It fits `brokerd.coordinator.core.RecordCodec`. What it returns is well-formed: numbers in range, lists in their order.
Source: `docs/ingest.md` section "Records of `__ingests`", `proto/lograft/internal/v1/ingest_record.proto`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from itertools import pairwise
from typing import Final

from google.protobuf.message import DecodeError
from lograft.internal.v1 import ingest_record_pb2 as pb

from brokerd.coordinator.core import Record
from brokerd.ingests.records import (
    NO_OFFSET,
    AttemptKey,
    AttemptRecord,
    AttemptValue,
    CounterRecord,
    DecisionValue,
    EpochsRecord,
    FreedPart,
    IngestKind,
    IngestLogRecord,
    IngestRecord,
    IngestState,
    IngestTopic,
    IngestValue,
    ManifestRecord,
    PlanRecord,
    PlanValue,
    PublishedPart,
    SequencesRecord,
    StagedPart,
    TopicPartition,
    UnresolvedGroup,
)
from brokerd.ingests.sequences import BLOCK_PARTITIONS, SEQUENCE_MODULUS, is_staging_producer_id

_INGEST, _ATTEMPT, _PLAN, _SEQUENCES, _COUNTER, _MANIFEST, _EPOCHS = 1, 2, 3, 4, 5, 6, 7
_KIND: Final = struct.Struct(">B")
_LENGTH: Final = struct.Struct(">H")
_TASK: Final = struct.Struct(">Q")
_ROUND: Final = struct.Struct(">I")
_PLACE: Final = struct.Struct(">16sI")
"""A topic id, and a partition or a block."""

_TOPIC_ID_BYTES: Final = 16
_DIGEST_BYTES: Final = 32


class IngestRecordError(Exception):
    """This version cannot read a record of `__ingests`: it is damaged, or a newer version wrote it. Update this broker."""


class IngestCodec:
    """`encode` and `decode` as the object that the runtime takes."""

    def encode(self, record: IngestLogRecord) -> Record:
        """Return the record of the log."""
        return encode(record)

    def decode(self, record: Record) -> IngestLogRecord:
        """Return the record that the log has.

        Raises:
            IngestRecordError: see `decode` of the module.
        """
        return decode(record)


def encode(record: IngestLogRecord) -> Record:
    """Return the record of the log."""
    match record:
        case IngestRecord():
            key = _KIND.pack(_INGEST) + _text(record.ingest_id)
            return Record(key, None if record.value is None else _encode_ingest(record.value))
        case AttemptRecord():
            rest = _TASK.pack(record.key.task) + _bytes(record.key.attempt_id)
            key = _KIND.pack(_ATTEMPT) + _text(record.ingest_id) + rest
            return Record(key, None if record.value is None else _encode_attempt(record.value))
        case PlanRecord():
            rest = _ROUND.pack(record.round) + _PLACE.pack(*record.topic_partition)
            key = _KIND.pack(_PLAN) + _text(record.ingest_id) + rest
            return Record(key, None if record.value is None else _encode_plan(record.value))
        case SequencesRecord():
            key = _KIND.pack(_SEQUENCES) + _PLACE.pack(record.topic_id, record.block)
            return Record(key, None if record.value is None else _encode_sequences(record.value))
        case CounterRecord():
            message = None if record.value is None else pb.IngestCounterRecord(given=record.value)
            return Record(_KIND.pack(_COUNTER), None if message is None else message.SerializeToString())
        case EpochsRecord():
            epochs = None if record.value is None else pb.IngestEpochsRecord(forgotten=record.value)
            return Record(_KIND.pack(_EPOCHS), None if epochs is None else epochs.SerializeToString())
        case ManifestRecord():
            key = _KIND.pack(_MANIFEST) + _text(record.ingest_id) + _ROUND.pack(record.round)
            return Record(key, None if record.value is None else _encode_manifest(record.value))


def decode(record: Record) -> IngestLogRecord:
    """Return the record that the log has.

    Raises:
        IngestRecordError: the key is of an unknown kind, or key or value are malformed.
    """
    try:
        return _decode(record)
    except (struct.error, DecodeError, ValueError) as error:
        raise IngestRecordError(f"record with key {record.key[:64].hex()} cannot be read: {error}") from error


def _decode(record: Record) -> IngestLogRecord:
    key, data = _Key(record.key), record.value
    kind = key.number(_KIND)
    match kind:
        case 1:
            ingest_id = key.text()
            key.end()
            return IngestRecord(ingest_id, None if data is None else _decode_ingest(data))
        case 2:
            ingest_id, attempt = key.text(), AttemptKey(key.number(_TASK), key.bytes())
            key.end()
            return AttemptRecord(ingest_id, attempt, None if data is None else _decode_attempt(data))
        case 3:
            ingest_id, number = key.text(), key.number(_ROUND)
            topic_partition = TopicPartition(*key.place())
            key.end()
            return PlanRecord(ingest_id, number, topic_partition, None if data is None else _decode_plan(data))
        case 4:
            topic_id, block = key.place()
            key.end()
            return SequencesRecord(topic_id, block, None if data is None else _decode_sequences(data))
        case 5:
            key.end()
            given = None if data is None else pb.IngestCounterRecord.FromString(data).given
            return CounterRecord(None if given is None else _natural(given))
        case 6:
            ingest_id, number = key.text(), key.number(_ROUND)
            key.end()
            return ManifestRecord(ingest_id, number, None if data is None else _decode_manifest(data))
        case 7:
            key.end()
            forgotten = None if data is None else pb.IngestEpochsRecord.FromString(data).forgotten
            return EpochsRecord(None if forgotten is None else _natural(forgotten))
        case _:
            raise ValueError(f"kind {kind} is unknown")


class _Key:
    """Reads the fields of a key, one after another."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._at = 0

    def number(self, form: struct.Struct) -> int:
        (number,) = form.unpack_from(self._key, self._at)
        self._at += form.size
        return number

    def place(self) -> tuple[bytes, int]:
        topic_id, number = _PLACE.unpack_from(self._key, self._at)
        self._at += _PLACE.size
        return topic_id, number

    def bytes(self) -> bytes:
        length = self.number(_LENGTH)
        found = self._key[self._at : self._at + length]
        if len(found) < length:
            raise ValueError("the key is cut short")
        self._at += length
        return found

    def text(self) -> str:
        return self.bytes().decode()

    def end(self) -> None:
        if self._at != len(self._key):
            raise ValueError("the key has more than its fields")


def _bytes(data: bytes) -> bytes:
    return _LENGTH.pack(len(data)) + data


def _text(text: str) -> bytes:
    return _bytes(text.encode())


def _natural(number: int) -> int:
    if number < 0:
        raise ValueError(f"{number} is negative")
    return number


def _sequence(number: int) -> int:
    if not 0 <= number < SEQUENCE_MODULUS:
        raise ValueError(f"{number} is no sequence")
    return number


def _offset(number: int) -> int:
    if number < NO_OFFSET:
        raise ValueError(f"{number} is no offset")
    return number


def _fixed(data: bytes, length: int) -> bytes:
    if len(data) != length:
        raise ValueError(f"{len(data)} bytes where {length} are expected")
    return data


def _ascending(numbers: Iterable[tuple[bytes, int]]) -> None:
    if any(first >= second for first, second in pairwise(numbers)):
        raise ValueError("partitions are not in order")


def _encode_ingest(value: IngestValue) -> bytes:
    message = pb.IngestStateRecord(
        kind=pb.IngestRecordKind.ValueType(value.kind.value),
        state=pb.IngestRecordState.ValueType(value.state.value),
        ingest_epoch=value.ingest_epoch,
        round=value.round,
        topics=[pb.IngestTopicRecord(topic_id=each.topic_id, topic=each.name) for each in value.topics],
        ttl_ms=value.ttl_ms,
        touched_ms=value.touched_ms,
        owner=value.owner,
        fenced_owners=value.fenced_owners,
    )
    decision, group = value.decision, value.group
    if decision is not None:
        message.decision.CopyFrom(
            pb.IngestDecisionRecord(
                round=decision.round,
                ingest_epoch=decision.ingest_epoch,
                digest=decision.digest,
                records=decision.records,
                dropped_attempts=decision.dropped_attempts,
                parts=map(_published_message, decision.parts),
                group_id=decision.group_id,
            )
        )
    if group is not None:
        message.group.CopyFrom(
            pb.IngestGroupRecord(
                group_id=group.group_id,
                ingest_epoch=group.ingest_epoch,
                round=group.round,
                is_committed=group.is_committed,
            )
        )
    return message.SerializeToString()


def _decode_ingest(data: bytes) -> IngestValue:
    message = pb.IngestStateRecord.FromString(data)
    decision = _decode_decision(message.decision) if message.HasField("decision") else None
    state = IngestState(message.state)
    if decision is None and state in (IngestState.DECIDED, IngestState.COMMITTED):
        raise ValueError(f"it is {state.name} without a decision")
    return IngestValue(
        kind=IngestKind(message.kind),
        state=state,
        ingest_epoch=_natural(message.ingest_epoch),
        round=_natural(message.round),
        topics=tuple(IngestTopic(_fixed(each.topic_id, _TOPIC_ID_BYTES), each.topic) for each in message.topics),
        ttl_ms=_natural(message.ttl_ms),
        touched_ms=_natural(message.touched_ms),
        decision=decision,
        group=_decode_group(message.group) if message.HasField("group") else None,
        owner=message.owner,
        fenced_owners=tuple(message.fenced_owners),
    )


def _decode_decision(message: pb.IngestDecisionRecord) -> DecisionValue:
    parts = tuple(
        PublishedPart(
            topic_id=_fixed(each.topic_id, _TOPIC_ID_BYTES),
            partition=_natural(each.partition),
            records=_natural(each.records),
            first_offset=_offset(each.first_offset),
            end_offset=_offset(each.end_offset),
        )
        for each in message.parts
    )
    _ascending((each.topic_id, each.partition) for each in parts)
    return DecisionValue(
        round=_natural(message.round),
        ingest_epoch=_natural(message.ingest_epoch),
        digest=_fixed(message.digest, _DIGEST_BYTES),
        records=_natural(message.records),
        dropped_attempts=_natural(message.dropped_attempts),
        parts=parts,
        group_id=message.group_id,
    )


def _decode_group(message: pb.IngestGroupRecord) -> UnresolvedGroup:
    return UnresolvedGroup(
        group_id=message.group_id,
        ingest_epoch=_natural(message.ingest_epoch),
        round=_natural(message.round),
        is_committed=message.is_committed,
    )


def _published_message(part: PublishedPart) -> pb.PublishedPartRecord:
    return pb.PublishedPartRecord(
        topic_id=part.topic_id,
        partition=part.partition,
        records=part.records,
        first_offset=part.first_offset,
        end_offset=part.end_offset,
    )


def _encode_attempt(value: AttemptValue) -> bytes:
    parts = (
        pb.StagedPartRecord(
            topic_id=each.topic_id,
            partition=each.partition,
            first_sequence=each.first_sequence,
            records=each.records,
            first_offset=each.first_offset,
            end_offset=each.end_offset,
        )
        for each in value.parts
    )
    freed = (
        pb.FreedPartRecord(topic_id=each.topic_id, partition=each.partition, end_sequence=each.end_sequence)
        for each in value.freed
    )
    return pb.IngestAttemptRecord(
        producer_id=value.producer_id,
        ingest_epoch=value.ingest_epoch,
        round=value.round,
        is_sealed=value.is_sealed,
        parts=parts,
        freed=freed,
    ).SerializeToString()


def _decode_attempt(data: bytes) -> AttemptValue:
    message = pb.IngestAttemptRecord.FromString(data)
    if not is_staging_producer_id(message.producer_id):
        raise ValueError(f"{message.producer_id} is no staging producer id")
    parts = tuple(
        StagedPart(
            topic_id=_fixed(each.topic_id, _TOPIC_ID_BYTES),
            partition=_natural(each.partition),
            first_sequence=_sequence(each.first_sequence),
            records=_natural(each.records),
            first_offset=_natural(each.first_offset),
            end_offset=_natural(each.end_offset),
        )
        for each in message.parts
    )
    freed = tuple(
        FreedPart(
            topic_id=_fixed(each.topic_id, _TOPIC_ID_BYTES),
            partition=_natural(each.partition),
            end_sequence=_sequence(each.end_sequence),
        )
        for each in message.freed
    )
    _ascending((each.topic_id, each.partition) for each in parts)
    _ascending((each.topic_id, each.partition) for each in freed)
    return AttemptValue(
        producer_id=message.producer_id,
        ingest_epoch=_natural(message.ingest_epoch),
        round=_natural(message.round),
        is_sealed=message.is_sealed,
        parts=parts,
        freed=freed,
    )


def _encode_plan(value: PlanValue) -> bytes:
    return pb.IngestPlanRecord(
        base_sequence=value.base_sequence,
        records=value.records,
        is_published=value.is_published,
        first_offset=value.first_offset,
        end_offset=value.end_offset,
    ).SerializeToString()


def _decode_plan(data: bytes) -> PlanValue:
    message = pb.IngestPlanRecord.FromString(data)
    return PlanValue(
        base_sequence=_sequence(message.base_sequence),
        records=_natural(message.records),
        is_published=message.is_published,
        first_offset=_offset(message.first_offset),
        end_offset=_offset(message.end_offset),
    )


def _encode_sequences(value: tuple[int, ...]) -> bytes:
    return pb.IngestSequencesRecord(next_sequences=value).SerializeToString()


def _decode_sequences(data: bytes) -> tuple[int, ...]:
    message = pb.IngestSequencesRecord.FromString(data)
    if len(message.next_sequences) > BLOCK_PARTITIONS:
        raise ValueError(f"a block of {len(message.next_sequences)} partitions")
    return tuple(map(_sequence, message.next_sequences))


def _encode_manifest(value: tuple[AttemptKey, ...]) -> bytes:
    return pb.IngestManifestRecord(
        tasks=[each.task for each in value], attempt_ids=[each.attempt_id for each in value]
    ).SerializeToString()


def _decode_manifest(data: bytes) -> tuple[AttemptKey, ...]:
    message = pb.IngestManifestRecord.FromString(data)
    if len(message.tasks) != len(message.attempt_ids):
        raise ValueError(f"{len(message.tasks)} tasks with {len(message.attempt_ids)} attempts")
    if any(first >= second for first, second in pairwise(message.tasks)):
        raise ValueError("tasks are not in order")
    return tuple(map(AttemptKey, map(_natural, message.tasks), message.attempt_ids))
