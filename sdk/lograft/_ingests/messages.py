# SPDX-License-Identifier: Apache-2.0
"""Values of ingests to protobuf and back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from lograft._groups.offsets import OffsetsForDecision
from lograft._producer.staging import StagedRange
from lograft.types import IngestDescription, IngestKind, IngestResult, IngestState, PublishedRange, SealedAttempt
from lograft.v1 import ingest_pb2 as pb

STATES: Final = {
    pb.INGEST_STATE_OPEN: IngestState.OPEN,
    pb.INGEST_STATE_DECIDED: IngestState.DECIDED,
    pb.INGEST_STATE_COMMITTED: IngestState.COMMITTED,
    pb.INGEST_STATE_ABORTED: IngestState.ABORTED,
}
KINDS: Final = {pb.INGEST_KIND_SINGLE: IngestKind.SINGLE, pb.INGEST_KIND_REPEATED: IngestKind.REPEATED}
KIND_NUMBERS: Final = {kind: number for number, kind in KINDS.items()}


def decode_result(message: pb.IngestResult, *, was_committed: bool) -> IngestResult:
    """Convert the result of a commit."""
    return IngestResult(
        round=message.round,
        records=message.records,
        dropped_attempts=message.dropped_attempts,
        partitions=tuple(
            PublishedRange(
                topic=each.topic,
                partition=each.partition,
                records=each.records,
                first_offset=each.first_offset if each.first_offset >= 0 else None,
                end_offset=each.end_offset if each.end_offset >= 0 else None,
            )
            for each in message.parts
        ),
        was_committed=was_committed,
    )


def decode_description(message: pb.IngestDescription) -> IngestDescription:
    """Convert the description of an ingest."""
    return IngestDescription(
        ingest_id=message.ingest_id,
        kind=KINDS.get(message.kind, IngestKind.UNKNOWN),
        state=STATES.get(message.state, IngestState.UNKNOWN),
        epoch=message.ingest_epoch,
        round=message.round,
        topics=tuple(each.topic or each.topic_id.hex() for each in message.topics),
        touched_ms=message.touched_ms,
        ttl_ms=message.ttl_ms,
        open_attempts=message.open_attempts,
        sealed_attempts=message.sealed_attempts,
        sealed_records=message.sealed_records,
        parts=message.parts,
        published_parts=message.published_parts,
        result=decode_result(message.result, was_committed=True) if message.HasField("result") else None,
    )


def encode_parts(ranges: Mapping[tuple[str, int], StagedRange], topic_ids: Mapping[str, bytes]) -> list[pb.StagedPart]:
    """Convert what an attempt has staged."""
    return [
        pb.StagedPart(
            topic_id=topic_ids[topic],
            partition=partition,
            first_sequence=staged.first_sequence,
            records=staged.records,
            first_offset=staged.first_offset,
            end_offset=staged.end_offset,
        )
        for (topic, partition), staged in sorted(ranges.items())
    ]


def encode_manifest(sealed: Iterable[SealedAttempt]) -> list[pb.ManifestEntry]:
    """Convert the attempts that count, in the order of tasks: the same manifest is the same message."""
    return [
        pb.ManifestEntry(task=each.task, attempt_id=each.attempt_id, records=each.records)
        for each in sorted(sealed, key=lambda each: each.task)
    ]


def encode_offsets(offsets: OffsetsForDecision) -> pb.IngestOffsets:
    """Convert offsets of a group that go with a decision."""
    return pb.IngestOffsets(
        group_id=offsets.group_id,
        member_id=offsets.member_id,
        member_epoch=offsets.member_epoch,
        instance_id=offsets.instance_id or "",
        commit_number=offsets.commit_number,
        offsets=[
            pb.IngestOffset(
                topic_id=topic_id,
                partition=partition,
                offset=each.offset,
                leader_epoch=each.leader_epoch,
                metadata=each.metadata,
            )
            for (topic_id, partition), each in sorted(offsets.offsets.items())
        ],
    )
