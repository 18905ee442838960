# SPDX-License-Identifier: Apache-2.0
"""Translates requests of IngestService to commands of the ingest core, and its outcomes to responses.

Owns the checks that the form of a message asks for; the core checks everything else. Decides nothing.
Source: `proto/lograft/v1/ingest.proto`, `docs/ingest.md`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, TypeVar

from lograft.v1 import ingest_pb2 as pb
from lograft.wire.codes import ErrorCode
from lograft.wire.limits import MAX_OFFSET

from brokerd.api.ingest_service.limits import (
    OFFSET_METADATA_BYTES_MAX,
    PUBLISHED_PARTITIONS_MAX,
    TOUCHES_WITHIN_TTL,
)
from brokerd.api.status import partition_error
from brokerd.failure import Failure, LeaderPlace, RefusedError, refused
from brokerd.ingests import answers
from brokerd.ingests.answers import AttemptOpened, IngestListing, Opened, Outcome, Refused
from brokerd.ingests.commands import (
    AbortIngest,
    GroupOffset,
    GroupOffsets,
    ManifestEntry,
    OpenAttempt,
    PlanCommit,
    SealAttempt,
)
from brokerd.ingests.coordinator_calls import PublishedPlace
from brokerd.ingests.coordinators import OffsetsToPrepare
from brokerd.ingests.effects import IngestResult
from brokerd.ingests.limits import (
    ATTEMPT_ID_BYTES_MAX,
    GROUP_ID_BYTES_MAX,
    INGEST_ID_BYTES_MAX,
    LISTED_MAX,
    MANIFEST_ATTEMPTS_MAX,
    OFFSETS_MAX,
    OWNER_BYTES_MAX,
    PARTITIONS_MAX,
    TOPICS_MAX,
    TTL_MS_MAX,
    TTL_MS_MIN,
)
from brokerd.ingests.records import IngestKind, IngestState, IngestTopic, StagedPart
from metaquorum.metadata.topic_names import staging_topic

TopicNames = Callable[[bytes], str]
"""Returns the name of a topic id; empty if this broker's metadata has no such topic."""

TOPIC_ID_BYTES: Final = 16
"""Bytes of a topic id."""

_KINDS: Final[Mapping[IngestKind, pb.IngestKind.ValueType]] = {
    IngestKind.SINGLE: pb.INGEST_KIND_SINGLE,
    IngestKind.REPEATED: pb.INGEST_KIND_REPEATED,
}

_STATES: Final[Mapping[IngestState, pb.IngestState.ValueType]] = {
    IngestState.OPEN: pb.INGEST_STATE_OPEN,
    IngestState.DECIDED: pb.INGEST_STATE_DECIDED,
    IngestState.COMMITTED: pb.INGEST_STATE_COMMITTED,
    IngestState.ABORTED: pb.INGEST_STATE_ABORTED,
}

OutcomeT = TypeVar("OutcomeT")


# Refusals.


def expect(outcome: Outcome, kind: type[OutcomeT]) -> OutcomeT:
    """Return the outcome of a kind.

    Raises:
        RefusedError: the core has refused. Values of `Refusal` are names of error codes.
    """
    if isinstance(outcome, Refused):
        code = ErrorCode.from_reason(outcome.code.value)
        raise RefusedError(Failure(code=code, message=outcome.message, retry_after_ms=outcome.retry_after_ms))
    if not isinstance(outcome, kind):
        raise AssertionError(f"unexpected outcome {type(outcome).__name__}")
    return outcome


def _invalid(message: str) -> RefusedError:
    return refused(ErrorCode.INVALID_REQUEST, message)


# Requests. Every function raises `RefusedError`: INVALID_REQUEST, or LIMIT_EXCEEDED.


def check_ingest_id(ingest_id: str) -> None:
    """Refuse what is no ingest id."""
    size_bytes = len(ingest_id.encode())
    if not 1 <= size_bytes <= INGEST_ID_BYTES_MAX:
        raise _invalid(f"an ingest id has 1 to {INGEST_ID_BYTES_MAX} bytes, this one has {size_bytes}")


def _check_epoch(ingest_epoch: int, *, least: int = 1) -> None:
    if ingest_epoch < least:
        raise _invalid(f"ingest_epoch {ingest_epoch} is none that OpenIngest gives: send the one of its answer")


def _check_topic_id(topic_id: bytes) -> None:
    if len(topic_id) != TOPIC_ID_BYTES:
        raise _invalid(f"a topic id has {TOPIC_ID_BYTES} bytes, not {len(topic_id)}")


def _check_attempt(task: int, attempt_id: bytes) -> None:
    if task < 0:
        raise _invalid(f"tasks are numbered from 0 on; {task} is none")
    if not 1 <= len(attempt_id) <= ATTEMPT_ID_BYTES_MAX:
        raise _invalid(f"an attempt id has 1 to {ATTEMPT_ID_BYTES_MAX} bytes, this one has {len(attempt_id)}")


def open_kind(request: pb.OpenIngestRequest) -> IngestKind:
    """Check the fields of an open, and return the kind."""
    check_ingest_id(request.ingest_id)
    kind = next((kind for kind, number in _KINDS.items() if number == request.kind), None)
    if kind is None:
        raise _invalid("kind is INGEST_KIND_SINGLE or INGEST_KIND_REPEATED")
    if not request.topics:
        raise _invalid("name at least one topic")
    if len(request.topics) > TOPICS_MAX:
        message = f"an ingest has at most {TOPICS_MAX} topics, not {len(request.topics)}; use several ingests"
        raise refused(ErrorCode.LIMIT_EXCEEDED, message)
    if len(set(request.topics)) < len(request.topics):
        raise _invalid("a topic is named twice")
    if request.ttl_ms and not TTL_MS_MIN <= request.ttl_ms <= TTL_MS_MAX:
        raise _invalid(f"ttl_ms is {TTL_MS_MIN} to {TTL_MS_MAX}, or 0, not {request.ttl_ms}")
    if len(request.owner) > OWNER_BYTES_MAX:
        raise _invalid(f"owner has at most {OWNER_BYTES_MAX} bytes, not {len(request.owner)}")
    return kind


def attempt_command(request: pb.OpenAttemptRequest) -> OpenAttempt:
    """Return the command that opens an attempt."""
    check_ingest_id(request.ingest_id)
    _check_epoch(request.ingest_epoch)
    _check_attempt(request.task, request.attempt_id)
    return OpenAttempt(
        ingest_id=request.ingest_id,
        ingest_epoch=request.ingest_epoch,
        task=request.task,
        attempt_id=request.attempt_id,
    )


def seal_command(request: pb.SealAttemptRequest) -> SealAttempt:
    """Return the command that seals an attempt."""
    check_ingest_id(request.ingest_id)
    _check_epoch(request.ingest_epoch)
    _check_attempt(request.task, request.attempt_id)
    if request.round < 0:
        raise _invalid(f"rounds are numbered from 1 on, 0 is the present one; {request.round} is none")
    if len(request.parts) > PARTITIONS_MAX:
        message = f"an attempt has records for at most {PARTITIONS_MAX} partitions, not {len(request.parts)}"
        raise refused(ErrorCode.LIMIT_EXCEEDED, message)
    return SealAttempt(
        ingest_id=request.ingest_id,
        ingest_epoch=request.ingest_epoch,
        task=request.task,
        attempt_id=request.attempt_id,
        parts=tuple(map(_staged_part, request.parts)),
        round=request.round,
    )


def _staged_part(message: pb.StagedPart) -> StagedPart:
    _check_topic_id(message.topic_id)
    if min(message.partition, message.first_sequence, message.first_offset) < 0 or message.records < 1:
        raise _invalid("partition, first_sequence and first_offset are 0 or more, and a part has at least one record")
    if not message.first_offset < message.end_offset <= MAX_OFFSET:
        raise _invalid(f"end_offset {message.end_offset} is not above first_offset, or above {MAX_OFFSET}")
    return StagedPart(
        topic_id=message.topic_id,
        partition=message.partition,
        first_sequence=message.first_sequence,
        records=message.records,
        first_offset=message.first_offset,
        end_offset=message.end_offset,
    )


def commit_command(request: pb.CommitIngestRequest) -> tuple[PlanCommit, OffsetsToPrepare | None]:
    """Return the command of a commit, and the offsets that its group has to prepare."""
    check_ingest_id(request.ingest_id)
    _check_epoch(request.ingest_epoch)
    if request.round < 1:
        raise _invalid(f"rounds are numbered from 1 on; {request.round} is none")
    if len(request.manifest) > MANIFEST_ATTEMPTS_MAX:
        message = f"a manifest has at most {MANIFEST_ATTEMPTS_MAX} attempts, not {len(request.manifest)}"
        raise refused(ErrorCode.LIMIT_EXCEEDED, message)
    manifest: list[ManifestEntry] = []
    for each in request.manifest:
        _check_attempt(each.task, each.attempt_id)
        if each.records < 0:
            raise _invalid(f"an attempt has 0 records or more, not {each.records}")
        manifest.append(ManifestEntry(task=each.task, attempt_id=each.attempt_id, records=each.records))
    offsets = _group_offsets(request.offsets) if request.HasField("offsets") else None
    command = PlanCommit(
        ingest_id=request.ingest_id,
        ingest_epoch=request.ingest_epoch,
        round=request.round,
        manifest=tuple(manifest),
        offsets=offsets,
    )
    if offsets is None:
        return command, None
    sent = request.offsets
    prepare = OffsetsToPrepare(
        group_id=sent.group_id,
        ingest_id=request.ingest_id,
        ingest_epoch=request.ingest_epoch,
        round=request.round,
        offsets=offsets.offsets,
        member_id=sent.member_id,
        member_epoch=sent.member_epoch,
        instance_id=sent.instance_id,
        commit_number=sent.commit_number,
    )
    return command, prepare


def _group_offsets(message: pb.IngestOffsets) -> GroupOffsets:
    for what, text, least in (
        ("group id", message.group_id, 1),
        ("member id", message.member_id, 0),
        ("instance id", message.instance_id, 0),
    ):
        if not least <= len(text.encode()) <= GROUP_ID_BYTES_MAX:
            raise _invalid(f"a {what} has {least} to {GROUP_ID_BYTES_MAX} bytes, this one has {len(text.encode())}")
    if message.commit_number < 0:
        raise _invalid("commit_number is 0 or more")
    if not message.offsets:
        raise _invalid("name at least one offset, or leave `offsets` out")
    if len(message.offsets) > OFFSETS_MAX:
        text = f"a commit has at most {OFFSETS_MAX} offsets, not {len(message.offsets)}"
        raise refused(ErrorCode.LIMIT_EXCEEDED, text)
    offsets: list[GroupOffset] = []
    for each in message.offsets:
        _check_topic_id(each.topic_id)
        if each.partition < 0 or not 0 <= each.offset <= MAX_OFFSET:
            raise _invalid(f"partition {each.partition} or offset {each.offset} is none")
        if len(each.metadata.encode()) > OFFSET_METADATA_BYTES_MAX:
            raise _invalid(f"the text of an offset has at most {OFFSET_METADATA_BYTES_MAX} bytes")
        offsets.append(
            GroupOffset(
                topic_id=each.topic_id,
                partition=each.partition,
                offset=each.offset,
                leader_epoch=each.leader_epoch if each.HasField("leader_epoch") else -1,
                metadata=each.metadata,
            )
        )
    return GroupOffsets(group_id=message.group_id, offsets=tuple(offsets))


def abort_command(request: pb.AbortIngestRequest) -> AbortIngest:
    """Return the command of an abort."""
    check_ingest_id(request.ingest_id)
    _check_epoch(request.ingest_epoch, least=0)
    if request.round < 0:
        raise _invalid(f"rounds are numbered from 1 on, 0 is the present one; {request.round} is none")
    return AbortIngest(ingest_id=request.ingest_id, ingest_epoch=request.ingest_epoch, round=request.round)


def check_touch(request: pb.TouchIngestRequest) -> None:
    """Check the fields of a touch."""
    check_ingest_id(request.ingest_id)
    _check_epoch(request.ingest_epoch)


def list_limit(request: pb.ListIngestsRequest) -> int:
    """Check the fields of a list, and return the limit."""
    if not 0 <= request.limit <= LISTED_MAX:
        raise _invalid(f"the limit is 0 to {LISTED_MAX}, not {request.limit}")
    if len(request.after.encode()) > INGEST_ID_BYTES_MAX:
        raise _invalid(f"`after` is an ingest id, of at most {INGEST_ID_BYTES_MAX} bytes")
    return request.limit or LISTED_MAX


def wanted_states(numbers: Iterable[int]) -> tuple[IngestState, ...]:
    """Return the states that a list asks for."""
    known = {int(number): state for state, number in _STATES.items()}
    wanted = tuple(dict.fromkeys(numbers))
    for number in wanted:
        if number not in known:
            raise _invalid(f"{number} is no state of an ingest")
    return tuple(known[number] for number in wanted)


def published_places(request: pb.GetPublishedRequest) -> list[PublishedPlace]:
    """Return the partitions that a client asks about."""
    if not 1 <= len(request.partitions) <= PUBLISHED_PARTITIONS_MAX:
        raise _invalid(f"name 1 to {PUBLISHED_PARTITIONS_MAX} partitions, not {len(request.partitions)}")
    for each in request.partitions:
        _check_topic_id(each.topic_id)
        if each.partition < 0:
            raise _invalid(f"{each.partition} is no partition")
    return [PublishedPlace(each.producer_id, each.topic_id, each.partition) for each in request.partitions]


# Responses.


def coordinator_message(ingest_id: str, place: LeaderPlace) -> pb.IngestCoordinator:
    """Return who coordinates an ingest."""
    return pb.IngestCoordinator(ingest_id=ingest_id, broker_id=place.leader_id, host=place.host, port=place.port)


def opened_message(opened: Opened, names: TopicNames, *, metadata_offset: int) -> pb.OpenIngestResponse:
    """Return the answer to an open; a broker with this metadata offset knows the staging topics."""
    message = pb.OpenIngestResponse(
        ingest_epoch=opened.ingest_epoch,
        round=opened.round,
        state=_STATES[opened.state],
        topics=_topic_messages(opened.topics),
        touch_interval_ms=opened.ttl_ms // TOUCHES_WITHIN_TTL,
        metadata_offset=metadata_offset,
    )
    if opened.result is not None:
        message.result.CopyFrom(result_message(opened.result, opened.topics, names))
    return message


def attempt_opened_message(opened: AttemptOpened) -> pb.OpenAttemptResponse:
    """Return the answer to an open attempt."""
    return pb.OpenAttemptResponse(producer_id=opened.producer_id, touch_interval_ms=opened.ttl_ms // TOUCHES_WITHIN_TTL)


def result_message(result: IngestResult, topics: Sequence[IngestTopic], names: TopicNames) -> pb.IngestResult:
    """Return what a decision has published. A topic that is gone keeps the name that the ingest knows."""
    known = {each.topic_id: each.name for each in topics}
    return pb.IngestResult(
        round=result.round,
        records=result.records,
        dropped_attempts=result.dropped_attempts,
        parts=[
            pb.PublishedPart(
                topic_id=each.topic_id,
                topic=names(each.topic_id) or known.get(each.topic_id, ""),
                partition=each.partition,
                records=each.records,
                first_offset=each.first_offset,
                end_offset=each.end_offset,
            )
            for each in result.parts
        ],
    )


def listing_message(listing: IngestListing) -> pb.IngestDescription:
    """Return an ingest of a list."""
    return pb.IngestDescription(
        ingest_id=listing.ingest_id,
        kind=_KINDS[listing.kind],
        state=_STATES[listing.state],
        ingest_epoch=listing.ingest_epoch,
        round=listing.round,
        topics=_topic_messages(listing.topics),
        touched_ms=listing.touched_ms,
        ttl_ms=listing.ttl_ms,
    )


def description_message(found: answers.IngestDescription, names: TopicNames) -> pb.IngestDescription:
    """Return an ingest with its progress."""
    message = listing_message(found.listing)
    message.open_attempts = found.open_attempts
    message.sealed_attempts = found.sealed_attempts
    message.sealed_records = found.sealed_records
    message.parts = found.parts
    message.published_parts = found.published_parts
    if found.result is not None:
        message.result.CopyFrom(result_message(found.result, found.listing.topics, names))
    return message


def _topic_messages(topics: Sequence[IngestTopic]) -> list[pb.IngestTopic]:
    return [
        pb.IngestTopic(topic_id=each.topic_id, topic=each.name, staging_topic=staging_topic(each.topic_id))
        for each in topics
    ]


def published_message(found: int | Failure | None) -> pb.PublishedUpTo:
    """Return up to where a partition is complete."""
    if isinstance(found, Failure):
        return pb.PublishedUpTo(error=partition_error(found))
    return pb.PublishedUpTo() if found is None else pb.PublishedUpTo(sequence=found)
