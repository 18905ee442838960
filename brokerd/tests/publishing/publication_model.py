# SPDX-License-Identifier: Apache-2.0
"""A model of staging partitions and publications: any interleaving of attempts, any crash, sequences near their end.

Records are values (attempt, number). A staging log and a target log are lists of batches. What the model expects follows from what the
attempts staged, not from the code under test.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from random import Random
from typing import NamedTuple

from lograft.wire.limits import STAGING_PRODUCER_ID_MIN

from brokerd.publishing import garbage, resumption
from brokerd.publishing.limits import SEQUENCE_COUNT
from brokerd.publishing.parts import KnownBatch, MissingSlice, Slice, slices_problem
from brokerd.publishing.plan import Plan, Planner, StagedBatch, is_shown

Record = tuple[int, int]
"""Producer id of the attempt, and the number of the record in it."""


class ModelBatch(NamedTuple):
    """A staged batch and its records."""

    header: StagedBatch
    records: tuple[Record, ...]


@dataclass(slots=True)
class Attempt:
    """One attempt: what it has staged, as its slices say."""

    producer_id: int
    next_sequence: int
    slices: list[Slice] = field(default_factory=list[Slice])
    staged: int = 0
    parts: list[tuple[Record, ...]] = field(default_factory=list[tuple[Record, ...]])


def staged_partition(rng: Random, *, attempts: int) -> tuple[list[ModelBatch], list[Attempt]]:
    """Return the log of a staging partition into which attempts wrote in any interleaving, and the attempts.

    Each attempt has one to three slices (those of rounds). Between the batches lie those of strangers, and copies.
    """
    near_end = SEQUENCE_COUNT - rng.randint(0, 12)
    made = [
        Attempt(
            STAGING_PRODUCER_ID_MIN + number, rng.choice((0, near_end, rng.randrange(SEQUENCE_COUNT))) % SEQUENCE_COUNT
        )
        for number in range(attempts)
    ]
    todo = [attempt for attempt in made for _ in range(rng.randint(1, 3))]
    rng.shuffle(todo)
    # Rounds of one attempt follow each other; those of different attempts overlap.
    open_slices: dict[int, tuple[Attempt, list[ModelBatch], int]] = {}
    log: list[ModelBatch] = []
    offset = rng.choice((0, rng.randint(1, 1_000)))
    while todo or open_slices:
        startable = [each for each in todo if each.producer_id not in open_slices]
        if startable and (not open_slices or rng.random() < 0.4):
            attempt = rng.choice(startable)
            todo.remove(attempt)
            open_slices[attempt.producer_id] = (attempt, [], rng.randint(1, 4))
        roll = rng.random()
        if roll < 0.15:
            count = rng.randint(1, 3)
            stranger = StagedBatch(
                offset, offset + count, 100 + count, STAGING_PRODUCER_ID_MIN + 1_000, rng.randrange(9), count
            )
            log.append(ModelBatch(stranger, tuple((stranger.producer_id, -1) for _ in range(count))))
            offset += count
            continue
        attempt, batches, left = open_slices[rng.choice(list(open_slices))]
        if batches and roll < 0.25:
            copied = rng.choice(batches)
            count = copied.header.records
            log.append(
                ModelBatch(copied.header._replace(base_offset=offset, next_offset=offset + count), copied.records)
            )
            offset += count
            continue
        count = rng.randint(1, 4)
        header = StagedBatch(offset, offset + count, 100 + count, attempt.producer_id, attempt.next_sequence, count)
        records = tuple((attempt.producer_id, attempt.staged + number) for number in range(count))
        attempt.staged += count
        attempt.next_sequence = (attempt.next_sequence + count) % SEQUENCE_COUNT
        offset += count
        log.append(ModelBatch(header, records))
        batches.append(log[-1])
        if left > 1:
            open_slices[attempt.producer_id] = (attempt, batches, left - 1)
            continue
        del open_slices[attempt.producer_id]
        first, last = batches[0].header, batches[-1].header
        total = sum(each.header.records for each in batches)
        attempt.slices.append(
            Slice(attempt.producer_id, first.base_sequence, total, first.base_offset, last.next_offset)
        )
        attempt.parts.append(tuple(record for each in batches for record in each.records))
    return log, made


def make_plan(
    log: Iterable[ModelBatch], slices: list[Slice], *, done_records: int, max_batches: int
) -> Plan | MissingSlice:
    """Plan the slices from the batches that their ranges hold."""
    assert slices_problem(slices) is None, slices_problem(slices)
    planner = Planner(slices, done_records=done_records, max_batches=max_batches)
    for batch in log:
        if any(first <= batch.header.base_offset < end for first, end in planner.ranges):
            planner.add(batch.header)
    return planner.plan()


@dataclass(slots=True)
class TargetBatch:
    """A batch of the target log. `records` empty: somebody else's."""

    base_offset: int
    next_offset: int
    base_sequence: int
    records: tuple[Record, ...]


class Target:
    """A target log: its batches, and how many of them are committed."""

    def __init__(self, base_sequence: int) -> None:
        self.batches: list[TargetBatch] = []
        self.committed = 0
        self.base_sequence = base_sequence

    @property
    def end_offset(self) -> int:
        return self.batches[-1].next_offset if self.batches else 0

    @property
    def next_sequence(self) -> int | None:
        """The next sequence of the publishing producer, as the log's producer state has it."""
        for batch in reversed(self.batches):
            if batch.records:
                return (batch.base_sequence + len(batch.records)) % SEQUENCE_COUNT
        return None

    def append(self, base_sequence: int, records: tuple[Record, ...]) -> None:
        """Append a published batch by the rule of the log."""
        expected = self.next_sequence
        assert expected is None or base_sequence == expected, f"sequence {base_sequence}, the log expects {expected}"
        base_offset = self.end_offset
        self.batches.append(TargetBatch(base_offset, base_offset + len(records), base_sequence, records))

    def append_foreign(self, count: int) -> None:
        base_offset = self.end_offset
        self.batches.append(TargetBatch(base_offset, base_offset + count, -1, ()))

    def published(self) -> list[Record]:
        return [record for batch in self.batches for record in batch.records]


def publish_once(
    rng: Random,
    target: Target,
    log: dict[int, ModelBatch],
    slices: list[Slice],
    base_sequence: int,
    records: int,
    *,
    crash: bool,
) -> tuple[int, int] | None:
    """Publish a part as a leader does, until it crashes; return its offsets if it does not crash."""
    done = resumption.done_records(base_sequence, records, target.next_sequence)
    assert isinstance(done, int), done
    max_batches = rng.choice((1, 2, 5, 1_000))
    while done < records:
        plan = make_plan(log.values(), slices, done_records=done, max_batches=max_batches)
        assert isinstance(plan, Plan), plan
        assert plan.first_record == done < plan.end_record
        assert len(list(plan.batches())) <= max_batches + 1
        for run in plan.runs(max_bytes=rng.choice((1, 150, 250, 10_000))):
            assert run.batches[0].base_offset == run.base_offset
            covered = run.base_offset
            for batch in run.batches:
                assert batch.base_offset == covered, "a run has a hole"
                covered = batch.next_offset
                staged = log[batch.base_offset]
                assert batch.size_bytes == staged.header.size_bytes
                target.append((base_sequence + batch.first_record) % SEQUENCE_COUNT, staged.records)
                if rng.random() < 0.3:
                    target.append_foreign(rng.randint(1, 3))
                if crash and rng.random() < 0.3:
                    return None
            assert covered == run.end_offset
        done = plan.end_record
    if crash:
        return None
    search = resumption.PartSearch(base_sequence, records)
    search.add(
        KnownBatch(each.base_sequence, each.base_offset, each.next_offset) for each in target.batches if each.records
    )
    assert search.found is not None, "the part is published and not found"
    return search.found


def check_publication(rng: Random) -> None:
    """Publish several parts one after another with crashes in between; check each record, once and in order."""
    log, attempts = staged_partition(rng, attempts=rng.randint(1, 4))
    by_offset = {each.header.base_offset: each for each in log}
    sequence = rng.choice((0, SEQUENCE_COUNT - rng.randint(1, 15), rng.randrange(SEQUENCE_COUNT)))
    target = Target(sequence)
    expected: list[Record] = []
    before: tuple[int, int, list[Slice], tuple[int, int]] | None = None
    before_end = 0
    for round_number in range(3):
        chosen = [each for each in attempts if len(each.slices) > round_number and rng.random() < 0.8]
        rng.shuffle(chosen)
        slices = [each.slices[round_number] for each in chosen]
        if not slices:
            continue
        wanted = [record for each in chosen for record in each.parts[round_number]]
        records = len(wanted)
        for _ in range(rng.randint(0, 3)):
            target.committed = max(target.committed, rng.randint(0, len(target.batches)))
            # An earlier part is committed before the next one begins.
            target.committed = max(target.committed, before_end)
            publish_once(rng, target, by_offset, slices, sequence, records, crash=True)
            if rng.random() < 0.6:
                del target.batches[max(target.committed, rng.randint(0, len(target.batches))) :]
        found = publish_once(rng, target, by_offset, slices, sequence, records, crash=False)
        again = publish_once(rng, target, by_offset, slices, sequence, records, crash=False)
        assert found == again, "a publication that comes twice has other offsets"
        expected += wanted
        assert target.published() == expected, "not every record once and in order"
        assert found is not None
        at_offsets = [each for each in target.batches if found[0] <= each.base_offset < found[1]]
        assert [record for each in at_offsets for record in each.records] == wanted, (
            "the offsets are not those of the part"
        )
        before_end = len(target.batches)
        if before is not None:
            old = publish_once(rng, target, by_offset, before[2], before[0], before[1], crash=False)
            assert old == before[3], "an old part is answered with other offsets"
        before = (sequence, records, slices, found)
        sequence = (sequence + records) % SEQUENCE_COUNT
        if target.next_sequence is not None:
            behind = resumption.done_records((sequence + 7) % SEQUENCE_COUNT, 1, target.next_sequence)
            assert behind == resumption.Lost(7), behind


def check_damage(rng: Random) -> None:
    """Damage one batch of the staging partition, or one slice: the plan names the slice, and no other one."""
    log, attempts = staged_partition(rng, attempts=rng.randint(1, 3))
    slices = [each for attempt in attempts for each in attempt.slices]
    rng.shuffle(slices)
    index = rng.randrange(len(slices))
    hit = slices[index]
    own = [
        at
        for at, each in enumerate(log)
        if each.header.producer_id == hit.producer_id and hit.first_offset <= each.header.base_offset < hit.end_offset
    ]
    originals = [at for at in own if log.index(log[at]) == at and not _is_copy(log, at)]
    at = rng.choice(originals)
    header = log[at].header
    match rng.randrange(6):
        case 0:
            if any(_is_copy(log, other) and log[other].records == log[at].records for other in own):
                return
            del log[at]
        case 1:
            log[at] = ModelBatch(header._replace(records=header.records - 1), log[at].records)
        case 2:
            slices[index] = hit._replace(first_sequence=(hit.first_sequence + 1) % SEQUENCE_COUNT)
        case 3:
            slices[index] = hit._replace(records=hit.records - 1)
            if hit.records == 1:
                return
        case 4:
            if hit.records == hit.end_offset - hit.first_offset:
                return
            slices[index] = hit._replace(records=hit.records + 1)
        case _:
            first = log[originals[0]].header
            if first.records < 2 or hit.end_offset - hit.first_offset <= hit.records:
                return
            slices[index] = hit._replace(first_offset=hit.first_offset + 1)
    if slices_problem(slices) is not None:
        return
    planner = Planner(slices, max_batches=rng.choice((0, 1, 1_000)))
    for batch in log:
        planner.add(batch.header)
    found = [each.index for each in planner.missing()]
    assert found == [index], (found, index)
    assert isinstance(planner.plan(), MissingSlice)


def check_shown(rng: Random) -> None:
    """Judge slices by what a log knows of their producers: whole ones are shown, those that say something else are not."""
    log, attempts = staged_partition(rng, attempts=rng.randint(1, 3))
    originals = [each.header for at, each in enumerate(log) if not _is_copy(log, at)]
    for attempt in attempts:
        own = [each for each in originals if each.producer_id == attempt.producer_id]
        cut = rng.randint(0, len(own))
        window = [KnownBatch(each.base_sequence, each.base_offset, each.next_offset) for each in own[-16:]][:cut]
        whole = {each.base_offset: KnownBatch(each.base_sequence, each.base_offset, each.next_offset) for each in own}
        for wanted in attempt.slices:
            begin = whole[wanted.first_offset]
            recent = window[rng.randint(0, len(window)) :]
            is_ended = any(each.next_offset == wanted.end_offset for each in recent)
            assert is_shown(wanted, recent, begin=begin) is is_ended, (wanted, recent)
            assert not is_shown(wanted._replace(records=wanted.records + 1), recent, begin=begin)
            assert not is_shown(wanted._replace(end_offset=wanted.end_offset + 1), recent, begin=begin)
            moved = (wanted.first_sequence + 1) % SEQUENCE_COUNT
            assert not is_shown(wanted._replace(first_sequence=moved), recent, begin=begin)
            assert not is_shown(wanted._replace(first_sequence=moved, records=wanted.records - 1), recent, begin=begin)
            if recent and recent[0].base_offset > wanted.first_offset:
                assert not is_shown(wanted, recent, begin=None)


def _is_copy(log: list[ModelBatch], at: int) -> bool:
    return any(
        log[earlier].header.producer_id == log[at].header.producer_id and log[earlier].records == log[at].records
        for earlier in range(at)
    )


def check_garbage(rng: Random) -> None:
    """Sweep a staging partition until everything is freed: nothing that is needed goes, and in the end nothing stays."""
    log, attempts = staged_partition(rng, attempts=rng.randint(1, 4))
    headers = [each.header for each in log]
    # What is needed of each attempt: from one of its slices on, nothing, or it is not known.
    needs: dict[int, int] = {}
    live: dict[int, int | None] = {STAGING_PRODUCER_ID_MIN + 1_000: None}
    for attempt in attempts:
        kind = rng.randrange(4)
        if kind == 0:
            live[attempt.producer_id] = None
        elif kind == 1:
            needs[attempt.producer_id] = attempt.slices[0].first_offset
        else:
            number = rng.randrange(len(attempt.slices))
            needs[attempt.producer_id] = attempt.slices[number].first_offset
            live[attempt.producer_id] = attempt.slices[number].first_sequence
    needed_offsets = [
        first
        for producer_id, begin in needs.items()
        for each in headers
        if each.producer_id == producer_id and (first := each.base_offset) >= begin
    ]
    for each in headers:
        begin = needs.get(each.producer_id)
        is_needed = begin is not None and (each.base_offset >= begin or each.producer_id not in live)
        assert garbage.is_needed(each, live) is is_needed, each
    start = garbage.first_needed(headers, live)
    if not needed_offsets:
        assert start is None, "something stays that nobody needs"
        return
    assert start is not None, "needed records go"
    assert start <= min(needed_offsets), "needed records go"
    assert start == min(needed_offsets), "garbage stays"
