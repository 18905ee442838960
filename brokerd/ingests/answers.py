# SPDX-License-Identifier: Apache-2.0
"""Answers of the ingest core: outcomes, refusals, and the answer that carries an outcome together with effects.

Values only. The service maps `Refusal` to the error codes of the public contract, by name.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from brokerd.coordinator.core import Decision
from brokerd.ingests.effects import Effect, IngestResult, Slice
from brokerd.ingests.records import IngestKind, IngestLogRecord, IngestState, IngestTopic, TopicPartition


class Refusal(Enum):
    """Why a command is refused. The values are names of error codes."""

    INVALID_REQUEST = "INVALID_REQUEST"
    LIMIT_EXCEEDED = "LIMIT_EXCEEDED"
    INGEST_NOT_FOUND = "INGEST_NOT_FOUND"
    INGEST_FENCED = "INGEST_FENCED"
    INGEST_COMMITTED = "INGEST_COMMITTED"
    INGEST_ABORTED = "INGEST_ABORTED"
    INGEST_CONFLICT = "INGEST_CONFLICT"
    INGEST_PUBLISHING = "INGEST_PUBLISHING"
    INGEST_INCOMPLETE = "INGEST_INCOMPLETE"


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """A refusal.

    Attributes:
        code: reason.
        message: text for people: what happened and what to do.
        retry_after_ms: milliseconds to wait before a retry; 0: no advice.
    """

    code: Refusal
    message: str
    retry_after_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """The ingest is open, or was decided before.

    Attributes:
        ingest_epoch: epoch to send from now on.
        round: round to commit next.
        state: OPEN; DECIDED: the single ingest is decided, answer when `IngestCompleted` comes; COMMITTED: there is nothing to do.
        topics: its topics.
        ttl_ms: milliseconds without a call after which it is aborted.
        result: result of the last complete decision; None: there was none.
    """

    ingest_epoch: int
    round: int
    state: IngestState
    topics: tuple[IngestTopic, ...]
    ttl_ms: int
    result: IngestResult | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptOpened:
    """The attempt is open. With the producer id that it had before, it goes on at its sequences; with another one, it begins at 0.

    Attributes:
        producer_id: producer id of its batches.
        ttl_ms: time to live of the ingest.
    """

    producer_id: int
    ttl_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Sealed:
    """The attempt is sealed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedCheck:
    """Slices of one partition that must all be at its staging partition."""

    topic_partition: TopicPartition
    slices: tuple[Slice, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """The commit can be decided if all checks succeed; by topic id and partition."""

    checks: tuple[StagedCheck, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Decided:
    """The round is decided with this manifest: answer when `IngestCompleted` comes.

    Attributes:
        round: round.
        parts: partitions that are published.
        was_committed: True: an earlier call decided it.
    """

    round: int
    parts: int
    was_committed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Committed:
    """The round is published.

    Attributes:
        result: what it has published.
        was_committed: True: an earlier call decided it.
    """

    result: IngestResult
    was_committed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class OutcomeKnown:
    """What becomes of the offsets that a group has prepared. It never changes."""

    is_committed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Noted:
    """The core knows it now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Aborted:
    """The ingest is aborted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Touched:
    """The ingest lives on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveSequences:
    """For each producer id of the question: the sequence from which on its staged records may be needed; None: nothing is needed."""

    sequences: tuple[int | None, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Watermark:
    """Every decision with records below the publishing sequence is complete in all its partitions; None: every decision is."""

    sequence: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestListing:
    """An ingest in a list; its attributes are those of `IngestValue`."""

    ingest_id: str
    kind: IngestKind
    state: IngestState
    ingest_epoch: int
    round: int
    topics: tuple[IngestTopic, ...]
    ttl_ms: int
    touched_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestDescription:
    """An ingest with its progress.

    Attributes:
        listing: what a list says of it.
        open_attempts: attempts of the present round that are open.
        sealed_attempts: attempts of the present round that are sealed.
        sealed_records: records of these.
        parts: partitions that its last decision publishes.
        published_parts: partitions of these that are published.
        result: result of its last decision; None: there was none, or it is not complete.
    """

    listing: IngestListing
    open_attempts: int
    sealed_attempts: int
    sealed_records: int
    parts: int
    published_parts: int
    result: IngestResult | None


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestList:
    """Ingests by id; `has_more`: continue after the last one."""

    ingests: tuple[IngestListing, ...]
    has_more: bool


Outcome = (
    Refused
    | Opened
    | AttemptOpened
    | Sealed
    | Planned
    | Decided
    | Committed
    | OutcomeKnown
    | Noted
    | Aborted
    | Touched
    | LiveSequences
    | Watermark
    | IngestDescription
    | IngestList
)
"""What the sender of a command is told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The response of a decision: given, and its effects carried out, when the records are committed.

    Attributes:
        outcome: what the sender is told; `Noted` for a tick.
        effects: what the shell has to do.
    """

    outcome: Outcome
    effects: tuple[Effect, ...] = ()


IngestDecision = Decision[Answer, IngestLogRecord]
"""The outcome of a command or a tick, as the coordinator runtime takes it."""


def decided(
    outcome: Outcome, records: Iterable[IngestLogRecord] = (), effects: Iterable[Effect] = ()
) -> IngestDecision:
    """Return a decision with its answer."""
    return Decision(tuple(records), Answer(outcome=outcome, effects=tuple(effects)))


def refused(code: Refusal, message: str, retry_after_ms: int = 0) -> IngestDecision:
    """Return a decision that refuses and changes nothing."""
    return Decision((), Answer(outcome=Refused(code=code, message=message, retry_after_ms=retry_after_ms)))
