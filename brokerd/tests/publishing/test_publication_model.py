# SPDX-License-Identifier: Apache-2.0
"""The pure part of publications under any interleaving of attempts and any crash, and the mutants that this finds."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokerd.publishing.limits import PART_RECORDS_MAX, SEQUENCE_COUNT
from brokerd.publishing.parts import Gap, MissingSlice, Part, Slice, part_problem, slices_problem
from brokerd.publishing.plan import Planner, StagedBatch
from brokerd.publishing.resumption import Lost, done_records
from brokerd.tests.publishing.publication_model import (
    check_damage,
    check_garbage,
    check_publication,
    check_shown,
)
from brokerd.tests.publishing.publication_mutants import MUTANTS
from metaquorum.testing.mutants import Mutant, apply

STAGING = 2**61
PUBLISHING = 2**62
MUTANT_SEEDS = 400
"""Seeds in which a mutant must be found."""

worlds = st.integers(0, 2**32).map(Random)


@given(worlds)
def test_each_record_is_published_once_and_in_order(rng: Random) -> None:
    """Whatever the interleaving, and wherever leaders crash and lose what was not committed."""
    check_publication(rng)


@given(worlds)
def test_damage_names_its_slice(rng: Random) -> None:
    """A missing, shortened or foreign batch, or a slice that says something else, makes that slice incomplete, and no other one."""
    check_damage(rng)


@given(worlds)
def test_producer_state_shows_whole_slices_only(rng: Random) -> None:
    """As far back as it goes, and with the first batch of the slice."""
    check_shown(rng)


@given(worlds)
def test_sweep_frees_what_nobody_needs_and_nothing_else(rng: Random) -> None:
    """The log may begin at the first needed batch; what nobody answers for is needed."""
    check_garbage(rng)


@given(st.integers(0, SEQUENCE_COUNT - 1), st.integers(1, PART_RECORDS_MAX), st.integers(0, SEQUENCE_COUNT // 2 - 1))
def test_progress_counts_modulo_the_sequences(base: int, records: int, ahead: int) -> None:
    """Ahead of the begin is done, up to the end of the part; behind it, records are lost."""
    assert done_records(base, records, (base + ahead) % SEQUENCE_COUNT) == min(ahead, records)
    assert done_records(base, records, (base - ahead - 1) % SEQUENCE_COUNT) == Lost(ahead + 1)
    assert done_records(base, records, None) == 0


def part(*slices: Slice, records: int | None = None, producer_id: int = PUBLISHING, base_sequence: int = 0) -> Part:
    total = sum(each.records for each in slices) if records is None else records
    return Part(
        topic_id=bytes(16),
        partition=0,
        producer_id=producer_id,
        base_sequence=base_sequence,
        records=total,
        slices=slices,
    )


def piece(number: int = 0, *, first: int = 0, records: int = 5, end: int | None = None, sequence: int = 0) -> Slice:
    return Slice(STAGING + number, sequence, records, first, first + records if end is None else end)


def test_plausible_part_is_accepted() -> None:
    """Slices may overlap those of others, wrap, and go to the largest part."""
    assert part_problem(part(piece(0, end=20), piece(1, first=3), piece(0, first=20))) is None
    assert part_problem(part(piece(sequence=SEQUENCE_COUNT - 1), base_sequence=SEQUENCE_COUNT - 1)) is None
    assert part_problem(part(piece(records=PART_RECORDS_MAX))) is None


@pytest.mark.parametrize(
    ("absurd", "text"),
    [
        (part(), "slices"),
        (part(*(piece(number) for number in range(20_001))), "slices"),
        (part(piece()._replace(producer_id=STAGING - 1)), "staging producer"),
        (part(piece()._replace(producer_id=PUBLISHING)), "staging producer"),
        (part(piece(sequence=SEQUENCE_COUNT)), "sequence"),
        (part(piece(sequence=-1)), "sequence"),
        (part(piece(records=0)), "records"),
        (part(piece(end=4)), "do not fit"),
        (part(piece(first=-1)), "do not fit"),
        (part(piece(0, end=9), piece(0, first=8)), "overlap"),
        (part(piece(), records=6), "together"),
        (part(piece(), producer_id=PUBLISHING - 1), "publishing producer"),
        (part(piece(), base_sequence=SEQUENCE_COUNT), "sequence"),
        (part(piece(0, records=PART_RECORDS_MAX), piece(1)), "records"),
    ],
)
def test_absurd_part_is_refused(absurd: Part, text: str) -> None:
    """Each with the reason."""
    assert text in (part_problem(absurd) or ""), part_problem(absurd)


def test_first_incomplete_slice_is_named() -> None:
    """With the reason, in the order of the slices."""
    slices = [piece(0), piece(1, first=5), piece(2, first=10)]
    planner = Planner(slices)
    planner.add(StagedBatch(0, 5, 100, STAGING, 0, 5))
    planner.add(StagedBatch(10, 14, 100, STAGING + 2, 0, 4))
    assert planner.plan() == MissingSlice(1, STAGING + 1, Gap.BEGIN)
    assert list(planner.missing())[1] == MissingSlice(2, STAGING + 2, Gap.END)
    assert "slice 1" in str(planner.plan())


def test_a_border_that_no_batch_has_is_refused() -> None:
    """What was published ends within a batch: the staged batches are not those that were published."""
    planner = Planner([piece(0)], done_records=3)
    planner.add(StagedBatch(0, 5, 100, STAGING, 0, 5))
    assert planner.plan() == MissingSlice(0, STAGING, Gap.PUBLISHED)


def test_no_slices_are_no_part() -> None:
    """A commit without records has nothing to publish, so nobody asks for it."""
    assert slices_problem([]) is not None


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_mutant_is_found(mutant: Mutant) -> None:
    """Each known mistake breaks a law in one of the seeds."""
    found = False
    with apply(mutant):
        for seed in range(MUTANT_SEEDS):
            try:
                for check in (check_publication, check_damage, check_shown, check_garbage):
                    check(Random(seed))
            except Exception:
                found = True
                break
    assert found, mutant.name
