# SPDX-License-Identifier: Apache-2.0
"""The laws of ingests in the world.

They have four views: the committed log of `__ingests`, the committed records of the topics that ingests publish to, the answers to
clients, and the committed offsets of their groups. This module owns what clients have staged and asked for, and what the committed logs
say of it. It looks at nothing that a coordinator or a leader keeps for itself, except that the append of a published batch is seen when
it happens.

Laws
    one decision: a round has at most one decision; it is one that a client asked for at its own epoch, not below the last epoch that an
        open was answered with. An attempt exists at the epoch at which a client opened it.
    only what counts: a published record was sealed by an attempt that a committed decision names, and the decision was committed before
        the record was appended.
    once, in order: in a partition each record of a decision is below the high watermark at most once, in the order of (task, sequence).
    all of it: when a round is complete in the log, or its commit is answered, every record of it is below the high watermark.
    answers agree: all answers to commits of a round agree with its decision, whenever it is made.
    offsets: those of a group are committed if and only if the decision is, and are there, or pending, when the commit is answered.
    each input once: a decision of a program that consumes, transforms and produces has an output for each input that its offsets pass,
        and no other decision has one. At the end that is every input from the first one to the committed offset.
    no reader waits: a reader gets what is below the high watermark, also while an ingest is open with records staged for the partition.
    nothing remains: at the end no ingest is open, nothing of any is left to publish, and staging partitions are empty.

Source: docs/ingest.md "Invariants".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple
from unittest import mock

from lograft.v1 import ingest_pb2 as pb
from lograft.wire.batch import read_batches
from lograft.wire.codes import ErrorCode
from lograft.wire.limits import PUBLISHING_PRODUCER_ID_MIN

from brokerd.coordinator.core import Record
from brokerd.ingests.codec import decode
from brokerd.ingests.commands import GroupOffset, GroupOffsets, ManifestEntry
from brokerd.ingests.commits import digest_of
from brokerd.ingests.coordinators import IngestCoordinators
from brokerd.ingests.records import (
    AttemptKey,
    AttemptRecord,
    DecisionValue,
    IngestRecord,
    IngestState,
    IngestValue,
    ManifestRecord,
    PlanRecord,
)
from brokerd.replica.replica import Replica
from metaquorum.testing.invariants import InvariantViolation, require
from storage.types import HeadedBatch

Key = tuple[bytes, int]
"""Topic id and partition."""

FED: Final = "fed"
"""The topic that ingests publish to, and that other producers append to."""
BRIEF: Final = "brief"
"""The second topic that ingests publish to: it is deleted, and made again, now and then."""
GROUP_PREFIX: Final = "ingests-"
"""Groups whose offsets go with ingests have names that begin with this."""
TRANSFORM_GROUP: Final = GROUP_PREFIX + "transform"
"""The group of programs that consume, transform and produce: its offsets are positions in what they read."""
PLAIN: Final = b"plain "
"""Values of records that do not belong to an ingest begin with this."""

NEGATIVE: Final = frozenset(
    {
        ErrorCode.INGEST_NOT_FOUND,
        ErrorCode.INGEST_FENCED,
        ErrorCode.INGEST_ABORTED,
        ErrorCode.INGEST_CONFLICT,
        ErrorCode.INGEST_INCOMPLETE,
        ErrorCode.UNKNOWN_TOPIC,
    }
)
"""Answers to a commit that say that it does not count."""


class AttemptName(NamedTuple):
    """An attempt of one epoch and round."""

    ingest_id: str
    ingest_epoch: int
    round: int
    task: int
    attempt_id: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """What a client asks for, whenever and however often."""

    ingest_id: str
    ingest_epoch: int
    round: int
    manifest: tuple[tuple[int, bytes, int], ...]
    group_id: str = ""
    offsets: tuple[tuple[bytes, int, int], ...] = ()

    @property
    def digest(self) -> bytes:
        """Digest by which a decision names it."""
        offsets = None
        if self.group_id:
            offsets = GroupOffsets(
                group_id=self.group_id,
                offsets=tuple(
                    GroupOffset(topic_id=topic_id, partition=partition, offset=offset)
                    for topic_id, partition, offset in self.offsets
                ),
            )
        entries = [ManifestEntry(task=task, attempt_id=name, records=records) for task, name, records in self.manifest]
        return digest_of(entries, offsets)


@dataclass(slots=True)
class _Decision:
    """A decision of the committed log: what it is about, and what of it is published."""

    commit: Commit
    value: DecisionValue
    expected: dict[Key, dict[bytes, int]]
    placed: dict[Key, dict[int, int]] = field(default_factory=dict[Key, dict[int, int]])
    result: pb.IngestResult | None = None


class IngestLaws:
    """Checks ingests.

    Args:
        counts: what happened in the run.
        has_damage: True where damage may hide where a part begins or ends.

    Attributes:
        look: lets the oracle look at what leaders know to be committed; the world sets it.
    """

    def __init__(self, counts: Counter[str], *, has_damage: bool) -> None:
        self._counts = counts
        self._has_damage = has_damage
        self._values: dict[str, IngestValue] = {}
        self._leftovers: dict[tuple[object, ...], None] = {}
        self._asked_attempts: dict[tuple[str, int, AttemptKey], None] = {}
        self._commits: dict[tuple[str, int], list[Commit]] = {}
        self._opened: dict[str, int] = {}
        self._epochs: dict[tuple[str, int], None] = {}
        self._staged: dict[bytes, tuple[AttemptName, Key]] = {}
        self._seals: dict[AttemptName, dict[Key, tuple[bytes, ...]]] = {}
        self._decisions: dict[tuple[str, int], _Decision] = {}
        self._negative: dict[Commit, ErrorCode] = {}
        self._offset_commits: dict[tuple[str, int], Commit] = {}
        self._group_decisions: dict[str, Commit] = {}
        self._offsets: dict[str, dict[Key, int]] = {}
        self._deleted: dict[bytes, None] = {}
        self._fed: dict[tuple[Key, int], bytes] = {}
        self._offset_count = 0
        self._inputs: dict[bytes, tuple[Key, int]] = {}
        self._transformed: dict[Key, dict[int, Commit]] = {}
        self._is_looking = False
        self.look: Callable[[], None] = lambda: None
        self.violation: InvariantViolation | None = None

    def throw_away(self) -> None:
        """Release the world, and the frames of a violation."""
        self.look = lambda: None
        self.violation = None

    @contextmanager
    def noting(self) -> Generator[None]:
        """Keep a violation for the world: an exception here would look to the code under test like a fault of its own."""
        try:
            yield
        except InvariantViolation as violation:
            self.violation = self.violation or violation

    @contextmanager
    def watching(self) -> Generator[None]:
        """Check every published batch when it is appended, and count coordinators."""
        append: Callable[..., Any] = Replica.append_decided
        on_active: Callable[..., None] = IngestCoordinators._on_active  # pyright: ignore[reportPrivateUsage]

        def watched_append(replica: Replica, run: Sequence[HeadedBatch], **others: Any) -> Any:
            with self.noting():
                for head, _, payload in run:
                    self._on_published(head + payload)
            return append(replica, run, **others)

        def watched_on_active(owner: IngestCoordinators, partition: int, is_active: bool) -> None:
            on_active(owner, partition, is_active)
            found = owner._runtime.find(partition)  # pyright: ignore[reportPrivateUsage]
            if is_active and found is not None:
                self._counts["ingest coordinator loaded"] += 1
                self._counts["ingest coordinator loaded from a snapshot"] += found.is_last_load_from_snapshot

        with (
            mock.patch.object(Replica, "append_decided", watched_append),
            mock.patch.object(IngestCoordinators, "_on_active", watched_on_active),
        ):
            yield

    def _find(self, place: tuple[str, int]) -> _Decision | None:
        if place not in self._decisions:
            self._look()
        return self._decisions.get(place)

    def _look(self) -> None:
        """Take what is committed and was not shown: a leader that started again may know more at once than it tells."""
        if not self._is_looking:
            self._is_looking = True
            self.look()
            self._is_looking = False

    # What clients do.

    def opens_attempt(self, name: AttemptName) -> None:
        """Note that a client opens an attempt."""
        self._asked_attempts[name.ingest_id, name.ingest_epoch, AttemptKey(name.task, name.attempt_id)] = None

    def stages(self, name: AttemptName, key: Key, value: bytes) -> None:
        """Note that an attempt stages a record."""
        self._staged[value] = (name, key)

    def seals(self, name: AttemptName, parts: Mapping[Key, Sequence[bytes]]) -> None:
        """Note that an attempt is sealed, with all that it has staged in its round."""
        self._seals[name] = {key: tuple(values) for key, values in parts.items()}

    def transforms(self, value: bytes, key: Key, offset: int) -> None:
        """Note of which input a record is the output, before it is staged."""
        self._inputs[value] = (key, offset)

    def next_offset(self) -> int:
        """Return the offset of a commit: it names the commit."""
        self._offset_count += 1
        return self._offset_count

    def asks(self, commit: Commit) -> None:
        """Note that a client asks for a commit."""
        commits = self._commits.setdefault((commit.ingest_id, commit.round), [])
        if commit not in commits:
            commits.append(commit)
            if commit.group_id != TRANSFORM_GROUP:
                for _, _, offset in commit.offsets:
                    self._offset_commits[commit.group_id, offset] = commit

    def deletes(self, topic_id: bytes) -> None:
        """Note that a topic may be deleted from now on."""
        self._deleted[topic_id] = None

    # What clients are told.

    def opened(self, ingest_id: str, response: pb.OpenIngestResponse) -> None:
        """Check the answer to an open."""
        if response.state == pb.INGEST_STATE_COMMITTED:
            self._check_result((ingest_id, response.result.round), response.result)
            return
        law = "every open has an epoch of its own"
        require((ingest_id, response.ingest_epoch) not in self._epochs, law, (ingest_id, response.ingest_epoch))
        self._epochs[ingest_id, response.ingest_epoch] = None
        self._opened[ingest_id] = max(self._opened.get(ingest_id, 0), response.ingest_epoch)

    def committed(self, commit: Commit, response: pb.CommitIngestResponse) -> None:
        """Check the answer to a commit that counts."""
        self._counts["ingest commit answered"] += 1
        self._counts["ingest commit answered again"] += response.was_committed
        decision = self._find((commit.ingest_id, commit.round))
        require(decision is not None, "a commit is answered after its decision", commit)
        assert decision is not None
        law = "a commit gets the answer of its own manifest"
        require(decision.value.digest == commit.digest, law, (commit, decision.commit))
        refusal = self._negative.get(commit)
        # The same manifest may have been refused at an epoch that had staged nothing.
        require(refusal is None, "answers to a commit agree", (commit, refusal))
        self._check_result((commit.ingest_id, commit.round), response.result)

    def refused(self, commit: Commit, code: ErrorCode) -> None:
        """Check the refusal of a commit."""
        self._counts[f"ingest commit refused: {code.name}"] += 1
        decision = self._find((commit.ingest_id, commit.round))
        if code is ErrorCode.INGEST_CONFLICT and not commit.group_id:
            require(decision is not None, "a conflict is one with a decision", commit)
        if code not in NEGATIVE:
            return
        require(decision is None or decision.commit != commit, "a commit that counts is not refused", (commit, code))
        self._negative[commit] = code

    def aborted(self, ingest_id: str, ingest_epoch: int, number: int) -> None:
        """Check the answer to an abort: nothing of this epoch and round is ever decided."""
        decision = self._decisions.get((ingest_id, number))
        law = "what was aborted is not decided"
        require(
            decision is None or decision.commit.ingest_epoch != ingest_epoch, law, (ingest_id, ingest_epoch, number)
        )
        for commit in self._commits.get((ingest_id, number), ()):
            if commit.ingest_epoch == ingest_epoch:
                self._negative.setdefault(commit, ErrorCode.INGEST_ABORTED)

    def refused_abort(self, ingest_id: str, number: int, code: ErrorCode) -> None:
        """Check the refusal of an abort."""
        if code is ErrorCode.INGEST_COMMITTED:
            law = "only what is decided is too late to abort"
            require(self._find((ingest_id, number)) is not None, law, (ingest_id, number))

    def fetched(self, commit: Commit, key: Key, offset: int | None) -> None:
        """Check a fetch of offsets after a commit with offsets was answered."""
        mine = commit.offsets[0][2]
        require(
            offset is not None and offset >= mine, "offsets of a commit are there, or pending", (commit, key, offset)
        )

    def _check_result(self, place: tuple[str, int], result: pb.IngestResult) -> None:
        decision = self._find(place)
        require(decision is not None, "a result is one of a decision", place)
        assert decision is not None
        if decision.result is None:
            decision.result = result
        require(decision.result == result, "answers about a round agree", (place, decision.result, result))
        require(result.records == decision.value.records, "a result counts its records", (place, result))
        self._check_complete(place, decision)
        parts = {(part.topic_id, part.partition): part for part in result.parts}
        law = "a result has the parts of its decision"
        require(parts.keys() == decision.expected.keys(), law, (place, result))
        for key, part in parts.items():
            is_gone = key[0] in self._deleted or self._has_damage
            if part.first_offset < 0 or part.end_offset < 0:
                require(is_gone, "the offsets of a part are known", (place, part))
                continue
            offsets = sorted(decision.placed.get(key, {}).values())
            found = (part.first_offset, part.end_offset)
            if offsets and len(offsets) == len(decision.expected[key]):
                require(
                    found == (offsets[0], offsets[-1] + 1), "a result says where its parts are", (place, part, offsets)
                )

    def _check_complete(self, place: tuple[str, int], decision: _Decision) -> None:
        for key, values in decision.expected.items():
            if key[0] not in self._deleted:
                if len(decision.placed.get(key, {})) < len(values):
                    self._look()
                there = len(decision.placed.get(key, {}))
                require(
                    there == len(values), "all of a complete round is published", (place, key[1], there, len(values))
                )

    # The committed log of `__ingests`.

    def on_committed(self, records: Iterable[Record]) -> None:
        """Take the records of one committed batch of `__ingests`, in the order of the log."""
        found = list(map(decode, records))
        manifests = {
            (each.ingest_id, each.round): each.value
            for each in found
            if isinstance(each, ManifestRecord) and each.value is not None
        }
        for record in found:
            match record:
                case IngestRecord():
                    self._on_ingest(record, manifests)
                case AttemptRecord():
                    self._on_attempt(record)
                case ManifestRecord():
                    self._keep(("manifest", record.ingest_id, record.round), is_there=record.value is not None)
                case PlanRecord():
                    place = ("plan", record.ingest_id, record.round, record.topic_partition)
                    self._keep(place, is_there=record.value is not None)
                case _:
                    pass

    def _keep(self, place: tuple[object, ...], *, is_there: bool) -> None:
        if is_there:
            self._leftovers[place] = None
        else:
            self._leftovers.pop(place, None)

    def _on_attempt(self, record: AttemptRecord) -> None:
        value = record.value
        self._keep(("attempt", record.ingest_id, record.key), is_there=value is not None)
        if value is not None:
            place = (record.ingest_id, value.ingest_epoch, record.key)
            require(place in self._asked_attempts, "an attempt has the epoch of its client", (record.ingest_id, value))

    def _on_ingest(
        self, record: IngestRecord, manifests: Mapping[tuple[str, int], tuple[AttemptKey, ...] | None]
    ) -> None:
        ingest_id, value, before = record.ingest_id, record.value, self._values.get(record.ingest_id)
        if value is None:
            # The clocks of two coordinators may differ by more than the hour for which an aborted ingest is kept.
            law = "only what was aborted is forgotten within a run"
            require(before is not None and before.state is IngestState.ABORTED, law, (ingest_id, before))
            self._values.pop(ingest_id)
            return
        self._values[ingest_id] = value
        if before is not None:
            law = "epochs and rounds do not go back"
            is_ascending = value.ingest_epoch >= before.ingest_epoch and value.round >= before.round
            require(is_ascending, law, (ingest_id, before, value))
        self._counts["ingest fenced by an open"] += before is not None and value.ingest_epoch > before.ingest_epoch
        self._counts["ingest aborted"] += value.state is IngestState.ABORTED
        decision = value.decision
        if decision is None:
            return
        place = (ingest_id, decision.round)
        known = self._decisions.get(place)
        if known is None:
            known = self._decisions[place] = self._decided(ingest_id, decision, manifests.get(place) or ())
        same = (known.value.digest, known.value.ingest_epoch, known.value.records)
        law = "a round has one decision"
        require(same == (decision.digest, decision.ingest_epoch, decision.records), law, (place, known.value, decision))
        if value.state is not IngestState.DECIDED:
            self._check_complete(place, known)

    def _decided(self, ingest_id: str, value: DecisionValue, manifest: tuple[AttemptKey, ...]) -> _Decision:
        self._counts["ingest decided"] += 1
        number, epoch = value.round, value.ingest_epoch
        asked = [each for each in self._commits.get((ingest_id, number), ()) if each.ingest_epoch == epoch]
        commit = next((each for each in asked if each.digest == value.digest), None)
        require(commit is not None, "a decision is what a client asked for at its epoch", (ingest_id, value, asked))
        assert commit is not None
        opened = self._opened.get(ingest_id, 0)
        require(epoch >= opened, "no fenced epoch is decided", (commit, opened))
        require(
            commit not in self._negative,
            "a commit that was refused is not decided",
            (commit, self._negative.get(commit)),
        )
        expected: dict[Key, dict[bytes, int]] = {}
        keys: list[AttemptKey] = []
        for task, attempt_id, records in sorted(commit.manifest):
            name = AttemptName(ingest_id, epoch, number, task, attempt_id)
            parts = self._seals.get(name)
            require(parts is not None, "only sealed attempts are decided", name)
            assert parts is not None
            require(sum(map(len, parts.values())) == records, "a manifest counts its records", (name, records))
            keys.append(AttemptKey(task, attempt_id))
            for key, values in parts.items():
                places = expected.setdefault(key, {})
                for each in values:
                    places[each] = len(places)
        law = "a decision has the manifest of its commit"
        require(not value.records or manifest == tuple(keys), law, (commit, manifest))
        require(value.records == sum(map(len, expected.values())), "a decision counts its records", (commit, value))
        if commit.group_id == TRANSFORM_GROUP:
            self._check_inputs(commit, [value for values in expected.values() for value in values])
        elif commit.group_id:
            self._group_decisions[commit.group_id] = commit
        self._counts["ingest records decided"] += value.records
        return _Decision(commit, value, expected)

    def _check_inputs(self, commit: Commit, values: Sequence[bytes]) -> None:
        """Check that the outputs of a decision are those of the inputs that its offsets pass, and that no other decision has them."""
        inputs: dict[Key, list[int]] = {}
        for value in values:
            key, offset = self._inputs[value]
            inputs.setdefault(key, []).append(offset)
        for topic_id, partition, end in commit.offsets:
            key = (topic_id, partition)
            passed = inputs.pop(key, [])
            law = "offsets go with the outputs of the inputs before them"
            require(passed == list(range(end - len(passed), end)), law, (commit, partition, passed))
            done = self._transformed.setdefault(key, {})
            for offset in passed:
                require(offset not in done, "each input counts once", (commit, partition, offset, done.get(offset)))
                done[offset] = commit
        require(not inputs, "outputs go with the offsets of their inputs", (commit, inputs))
        self._counts["transform input decided"] += len(values)

    # The topics.

    def _on_published(self, data: Any) -> None:
        for batch in read_batches(data):
            for value in batch.values():
                self._counted(value or b"")

    def _counted(self, value: bytes) -> tuple[_Decision, Key, int]:
        """Return the decision by which a record counts, its partition and its place there."""
        who = self._staged.get(value)
        require(who is not None, "what is published was staged", value)
        assert who is not None
        name, key = who
        decision = self._find((name.ingest_id, name.round))
        require(decision is not None, "what is published is decided", name)
        assert decision is not None
        at = decision.expected.get(key, {}).get(value)
        require(at is not None, "only what counts is published", (name, value, decision.commit))
        assert at is not None
        return decision, key, at

    def on_topic_committed(self, key: Key, data: bytes) -> None:
        """Take a committed batch of a topic that ingests publish to."""
        for batch in read_batches(data):
            is_published = batch.header.producer_id >= PUBLISHING_PRODUCER_ID_MIN
            for offset, value in zip(batch.offsets(), batch.values(), strict=True):
                record = value or b""
                self._fed[key, offset] = record
                if not is_published:
                    require(
                        record.startswith(PLAIN), "staged records come by publication alone", (key[1], offset, record)
                    )
                    continue
                decision, meant, at = self._counted(record)
                require(meant == key, "a record is published to its own partition", (record, key))
                places = decision.placed.setdefault(key, {})
                require(at not in places, "a record is published once", (record, key[1], places.get(at), offset))
                for other, other_offset in places.items():
                    is_in_order = (other < at) == (other_offset < offset)
                    law = "a decision is published in the order of tasks and sequences"
                    require(is_in_order, law, (decision.commit, key[1], record, at, offset, other, other_offset))
                places[at] = offset
                self._counts["ingest record published"] += 1

    def reads(self, key: Key, offset: int, response: Any) -> int:
        """Check an answer to a reader of the lasting topic; return the offset to read next."""
        law = "a reader gets what is below the high watermark"
        require(bool(response.records) or offset >= response.high_watermark, law, (key[1], offset, response))
        if any((key, record.offset) not in self._fed for record in response.records):
            self._look()
        for number, record in enumerate(response.records):
            known = self._fed.get((key, offset + number))
            is_same = (record.offset, record.value) == (offset + number, known)
            require(is_same, "readers get every committed record", (key[1], offset + number, record, known))
        self._counts["ingest reader's records"] += len(response.records)
        return offset + len(response.records)

    def end_of(self, key: Key) -> int:
        """Return the end (exclusive) of what is committed in a partition that ingests publish to."""
        return max((offset + 1 for each, offset in self._fed if each == key), default=0)

    # Groups.

    def on_group_offset(self, group_id: str, key: Key, offset: int) -> None:
        """Take a committed offset of a group of ingests."""
        if group_id == TRANSFORM_GROUP:
            self._on_transform_offset(key, offset)
            return
        commit = self._offset_commits.get((group_id, offset))
        require(commit is not None, "an offset is one of a commit", (group_id, offset))
        assert commit is not None
        decision = self._find((commit.ingest_id, commit.round))
        is_decided = decision is not None and decision.commit == commit
        require(is_decided, "offsets count only with their decision", (group_id, offset, commit))
        known = self._offsets.setdefault(group_id, {})
        require(offset >= known.get(key, 0), "offsets of a group do not move back", (group_id, known.get(key), offset))
        known[key] = offset
        self._counts["ingest offset committed"] += 1

    def _on_transform_offset(self, key: Key, offset: int) -> None:
        if offset - 1 not in self._transformed.get(key, {}):
            self._look()
        commit = self._transformed.get(key, {}).get(offset - 1)
        is_end = commit is not None and (*key, offset) in commit.offsets
        require(is_end, "offsets count only with their decision", (TRANSFORM_GROUP, key[1], offset, commit))
        known = self._offsets.setdefault(TRANSFORM_GROUP, {})
        law = "offsets of a group do not move back"
        require(offset >= known.get(key, 0), law, (TRANSFORM_GROUP, key[1], known.get(key), offset))
        known[key] = offset
        self._counts["transform offset committed"] += 1

    # The end.

    @property
    def is_over(self) -> bool:
        """True if no ingest is open, nothing waits, and what was decided of groups is committed there."""
        ended = (IngestState.COMMITTED, IngestState.ABORTED)
        values = self._values.values()
        self._look()
        return (
            all(value.state in ended and value.group is None for value in values)
            and not self._leftovers
            and all(self._has_offsets(commit) for commit in self._group_decisions.values())
            and all(self._transform_offset(key) == max(done) + 1 for key, done in self._transformed.items())
        )

    def _transform_offset(self, key: Key) -> int:
        return self._offsets.get(TRANSFORM_GROUP, {}).get(key, 0)

    def _has_offsets(self, commit: Commit) -> bool:
        known = self._offsets.get(commit.group_id, {})
        return all(known.get((topic_id, partition)) == offset for topic_id, partition, offset in commit.offsets)

    def check_all(self) -> None:
        """Check at the end that every round that is decided is whole."""
        for place, decision in self._decisions.items():
            self._check_complete(place, decision)
        for key, done in self._transformed.items():
            missing = [each for each in range(self._transform_offset(key)) if each not in done]
            require(not missing, "every input before the committed offset has its output", (key[1], missing[:10]))

    def lines(self) -> list[str]:
        """Return what is not over, for a report."""
        ended = (IngestState.COMMITTED, IngestState.ABORTED)
        lines = [
            f"  ingest {ingest_id}: {value}"
            for ingest_id, value in self._values.items()
            if value.state not in ended or value.group is not None
        ]
        lines += [f"  left of ingests: {place}" for place in list(self._leftovers)[:20]]
        lines += [
            f"  offsets not there: {commit} {self._offsets.get(commit.group_id)}"
            for commit in self._group_decisions.values()
            if not self._has_offsets(commit)
        ]
        lines += [
            f"  transformed up to {max(done) + 1}, committed {self._transform_offset(key)}: partition {key[1]}"
            for key, done in self._transformed.items()
        ]
        return lines
