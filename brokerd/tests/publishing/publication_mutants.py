# SPDX-License-Identifier: Apache-2.0
"""Mutants of the pure part of publications: deliberate mistakes that the model must find. Otherwise it proves nothing."""

from __future__ import annotations

from typing import Final

from brokerd.publishing import garbage, plan, resumption
from brokerd.publishing.plan import Plan, Planner, _Filling
from brokerd.publishing.resumption import PartSearch
from metaquorum.testing.mutants import Mutant

MUTANTS: Final = (
    Mutant(
        name="a copy of a staged batch is published too",
        owner=_Filling,
        function="add",
        old="if behind:",
        new="if behind and behind != batch.records:",
    ),
    Mutant(
        name="staged sequences do not wrap",
        owner=_Filling,
        function="add",
        old="(wanted.first_sequence + self.taken - batch.base_sequence) % SEQUENCE_COUNT",
        new="wanted.first_sequence + self.taken - batch.base_sequence",
    ),
    Mutant(
        name="a slice may end within a batch",
        owner=_Filling,
        function="add",
        old="elif after > wanted.records:",
        new="elif before >= wanted.records:",
    ),
    Mutant(
        name="an incomplete slice counts as complete",
        owner=_Filling,
        function="end",
        old="if self.taken < self.slice.records:",
        new="if self.taken == 0:",
    ),
    Mutant(
        name="a part starts again from its begin",
        owner=resumption,
        function="done_records",
        old="return min(ahead, records)",
        new="return ahead if ahead >= records else 0",
    ),
    Mutant(
        name="a part that was published before later ones is published again",
        owner=resumption,
        function="done_records",
        old="return min(ahead, records)",
        new="return ahead if ahead <= records else 0",
    ),
    Mutant(
        name="publishing sequences do not wrap",
        owner=resumption,
        function="done_records",
        old="(next_sequence - base_sequence) % SEQUENCE_COUNT",
        new="max(next_sequence - base_sequence, 0)",
    ),
    Mutant(
        name="a hole in the log is not noticed",
        owner=resumption,
        function="done_records",
        old="return Lost(SEQUENCE_COUNT - ahead)",
        new="return 0",
    ),
    Mutant(
        name="a plan begins with the batch before the border",
        owner=_Filling,
        function="add",
        old="if not self.is_kept or before < self.skipped:",
        new="if not self.is_kept or after < self.skipped:",
    ),
    Mutant(
        name="the first slices are left to a later plan instead of the last ones",
        owner=Planner,
        function="_shed",
        old="kept.pop()",
        new="kept.pop(0)",
    ),
    Mutant(
        name="a slice is shown whose begin is not",
        owner=plan,
        function="is_shown",
        old="first.base_offset == wanted.first_offset\n        and first.base_sequence == wanted.first_sequence\n        and ",
        new="",
    ),
    Mutant(
        name="a slice is shown whose end is not",
        owner=plan,
        function="is_shown",
        old="and last.next_offset == wanted.end_offset",
        new="",
    ),
    Mutant(
        name="a run bridges the batches of others",
        owner=Plan,
        function="runs",
        old="run[-1].next_offset != batch.base_offset or ",
        new="",
    ),
    Mutant(
        name="the slices of a part are published in the order of their offsets",
        owner=Planner,
        function="plan",
        old="for filling in self._fillings]",
        new="for filling in sorted(self._fillings, key=lambda each: each.slice.first_offset)]",
    ),
    Mutant(
        name="the offset of the last batch is taken for that of the part",
        owner=PartSearch,
        function="add",
        old="if base_sequence == self._base_sequence:",
        new="if (base_sequence - self._base_sequence) % SEQUENCE_COUNT < self._records:",
    ),
    Mutant(
        name="overlapping ranges are read only as far as the first one",
        owner=plan,
        function="scan_ranges",
        old="max(ranges[-1][1], end_offset)",
        new="min(ranges[-1][1], end_offset)",
    ),
    Mutant(
        name="what nobody answered for is garbage",
        owner=garbage,
        function="is_needed",
        old="        return True\n",
        new="        return False\n",
    ),
    Mutant(
        name="the last needed batch is garbage",
        owner=garbage,
        function="is_needed",
        old="batch.base_sequence + batch.next_offset - batch.base_offset - from_sequence",
        new="batch.base_sequence - from_sequence",
    ),
    Mutant(
        name="needed sequences do not wrap",
        owner=garbage,
        function="is_needed",
        old=" % SEQUENCE_COUNT",
        new="",
    ),
)
