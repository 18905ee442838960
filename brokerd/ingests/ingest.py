# SPDX-License-Identifier: Apache-2.0
"""One ingest: its value, attempts, parts and manifests, and what they mean together.

Only `put_value`, `put_attempt`, `put_plan` and `put_manifest` change it, and only `IngestsState.replay` calls them. Each record says
what is, and they may come in any order: an attempt is judged when somebody asks, never when its record comes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from brokerd.ingests.effects import IngestResult, Slice
from brokerd.ingests.records import (
    AttemptKey,
    AttemptValue,
    FreedPart,
    IngestKind,
    IngestState,
    IngestValue,
    PlanValue,
    TopicPartition,
)
from brokerd.ingests.sequences import advanced


class Ingest:
    """An ingest, or what is left of one.

    Attributes:
        ingest_id: its id.
        value: the ingest; None: it was deleted, or its record has not been replayed yet.
        attempts: attempts, those that cannot count any more included until they are deleted.
        plans: parts of decisions by round, those of complete ones included until they are deleted.
        manifests: attempt ids by task, by round, those of complete ones included until they are deleted.
        slice_count: parts of all attempts.
    """

    def __init__(self, ingest_id: str) -> None:
        self.ingest_id = ingest_id
        self.value: IngestValue | None = None
        self.attempts: dict[AttemptKey, AttemptValue] = {}
        self.plans: dict[int, dict[TopicPartition, PlanValue]] = {}
        self.manifests: dict[int, dict[int, bytes]] = {}
        self.slice_count = 0
        self._unpublished: dict[int, int] = {}
        self._slices: tuple[int, Mapping[TopicPartition, Sequence[Slice]]] | None = None

    @property
    def is_unused(self) -> bool:
        """True if nothing is left of it."""
        return self.value is None and not self.attempts and not self.plans and not self.manifests

    # ------------------------------------------------------------------------------------------------------------------
    # What the log says.

    def put_value(self, value: IngestValue | None) -> None:
        """Replace the ingest."""
        self.value = value

    def put_attempt(self, key: AttemptKey, value: AttemptValue | None) -> AttemptValue | None:
        """Replace or delete an attempt. Return the former one."""
        former = self.attempts.pop(key, None)
        if value is not None:
            self.attempts[key] = value
        self.slice_count += len(value.parts if value else ()) - len(former.parts if former else ())
        if self._slices is not None and self.is_named(self._slices[0], key):
            self._slices = None
        return former

    def put_plan(self, number: int, topic_partition: TopicPartition, value: PlanValue | None) -> None:
        """Replace or delete a part of the decision of a round."""
        plans = self.plans.setdefault(number, {})
        former = plans.pop(topic_partition, None)
        if value is not None:
            plans[topic_partition] = value
        by = _is_unpublished(value) - _is_unpublished(former)
        self._unpublished[number] = self._unpublished.get(number, 0) + by
        if not plans:
            del self.plans[number], self._unpublished[number]

    def put_manifest(self, number: int, keys: tuple[AttemptKey, ...] | None) -> None:
        """Replace or delete the manifest of a round."""
        self._slices = None
        if keys is None:
            self.manifests.pop(number, None)
        else:
            self.manifests[number] = {key.task: key.attempt_id for key in keys}

    # ------------------------------------------------------------------------------------------------------------------
    # Decisions.

    def is_incomplete(self, number: int) -> bool:
        """Return True if a round is decided and not everything of it is published."""
        value = self.value
        return value is not None and value.state is IngestState.DECIDED and value.round == number

    def unpublished(self, number: int) -> int:
        """Return how many parts of the decision of a round are not published."""
        return self._unpublished.get(number, 0)

    def is_named(self, number: int, key: AttemptKey) -> bool:
        """Return True if the manifest of a round names an attempt."""
        return self.manifests.get(number, {}).get(key.task) == key.attempt_id

    def slices(self, number: int, topic_partition: TopicPartition) -> tuple[Slice, ...]:
        """Return the slices of a part of a decision that is not complete, in the order in which they are published."""
        if self._slices is None or self._slices[0] != number:
            manifest = self.manifests[number]
            named = [
                (key, self.attempts[key]) for key in (AttemptKey(task, manifest[task]) for task in sorted(manifest))
            ]
            self._slices = (number, slices_by_partition(named))
        return tuple(self._slices[1][topic_partition])

    # ------------------------------------------------------------------------------------------------------------------
    # Attempts.

    def is_current(self, attempt: AttemptValue) -> bool:
        """Return True if an attempt belongs to the present epoch and round."""
        value = self.value
        return value is not None and (attempt.ingest_epoch, attempt.round) == (value.ingest_epoch, value.round)

    def is_reusable(self, attempt: AttemptValue) -> bool:
        """Return True if an attempt may go on in the present round: it was sealed in the last one, so it is known where it ended."""
        value = self.value
        if value is None or value.state is not IngestState.OPEN or value.decision is None:
            return False
        is_of_last_round = (attempt.ingest_epoch, attempt.round) == (value.ingest_epoch, value.decision.round)
        return is_of_last_round and attempt.is_sealed

    def is_live(self, key: AttemptKey) -> bool:
        """Return True if an attempt may still count. Once it cannot, it never can again."""
        value, attempt = self.value, self.attempts[key]
        if value is None or attempt.ingest_epoch != value.ingest_epoch:
            return False
        if value.state is IngestState.OPEN:
            return attempt.round == value.round or self.is_reusable(attempt)
        if value.state is IngestState.DECIDED:
            return attempt.round == value.round and self.is_named(value.round, key)
        return False

    def needed_from(self, key: AttemptKey, topic_partition: TopicPartition) -> int | None:
        """Return the sequence from which on staged records of an attempt may be needed in a partition; None: none is needed."""
        value, attempt = self.value, self.attempts[key]
        if value is None or not self.is_live(key):
            return None
        freed = end_sequences(attempt.freed).get(topic_partition, 0)
        if not attempt.is_sealed:
            return freed
        # Of a repeated ingest, an attempt may go on in the next round.
        goes_on = value.kind is IngestKind.REPEATED
        part = next((each for each in attempt.parts if each.topic_partition == topic_partition), None)
        if part is None:
            return freed if goes_on else None
        if attempt.round == value.round:
            plan = self.plans.get(value.round, {}).get(topic_partition)
            if value.state is IngestState.OPEN or plan is None or not plan.is_published:
                return part.first_sequence
        return advanced(part.first_sequence, part.records) if goes_on else None


def _is_unpublished(plan: PlanValue | None) -> bool:
    return plan is not None and not plan.is_published


def end_sequences(freed: Iterable[FreedPart]) -> dict[TopicPartition, int]:
    """Return where the records that earlier rounds have published end, by partition."""
    return {TopicPartition(each.topic_id, each.partition): each.end_sequence for each in freed}


def slices_by_partition(
    attempts: Sequence[tuple[AttemptKey, AttemptValue]],
) -> dict[TopicPartition, list[Slice]]:
    """Return the slices of attempts by partition, in the order of the attempts. These come by task."""
    found: dict[TopicPartition, list[Slice]] = {}
    for key, attempt in attempts:
        for part in attempt.parts:
            found.setdefault(part.topic_partition, []).append(
                Slice(
                    task=key.task,
                    producer_id=attempt.producer_id,
                    first_sequence=part.first_sequence,
                    records=part.records,
                    first_offset=part.first_offset,
                    end_offset=part.end_offset,
                )
            )
    return found


def result_of(value: IngestValue) -> IngestResult | None:
    """Return the result of the last decision; None: there was none, or it is not complete."""
    decision = value.decision
    if decision is None or value.state is IngestState.DECIDED:
        return None
    return IngestResult(
        round=decision.round,
        records=decision.records,
        dropped_attempts=decision.dropped_attempts,
        parts=decision.parts,
    )
