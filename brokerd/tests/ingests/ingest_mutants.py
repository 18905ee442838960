# SPDX-License-Identifier: Apache-2.0
"""Mutants of the ingest core: deliberate mistakes that the walk must find. Otherwise it proves nothing.

Owns the list. `metaquorum.testing.mutants` defines mutants and installs the mistake.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from brokerd.ingests import attempts, commits, opening, publication
from brokerd.ingests.ingest import Ingest
from brokerd.ingests.state import IngestsState
from metaquorum.testing.mutants import Mutant


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestMutant(Mutant):
    """A mistake, and what finds it.

    Attributes:
        seeds: seeds of the walk that are tried until one finds it.
        directed: name of the test that finds it instead, because the walk meets it too rarely.
    """

    seeds: Sequence[int] = range(12)
    directed: str = ""


MUTANTS: Final = (
    IngestMutant(
        name="a fenced client commits",
        owner=commits,
        function="_verify",
        old="    if command.ingest_epoch != value.ingest_epoch:\n        return fenced(value, command.ingest_epoch)\n",
        new="",
    ),
    IngestMutant(
        name="an open keeps the epoch",
        owner=opening,
        function="open_ingest",
        old="ingest_epoch=former.ingest_epoch + 1,",
        new="ingest_epoch=former.ingest_epoch,",
    ),
    IngestMutant(
        name="an attempt counts that is not sealed",
        owner=commits,
        function="_verify",
        old=" or not attempt.is_sealed",
        new="",
    ),
    IngestMutant(
        name="attempts of an earlier round or epoch count",
        owner=commits,
        function="_verify",
        old=" or not ingest.is_current(attempt)",
        new="",
        seeds=range(6, 14),
    ),
    IngestMutant(
        name="another manifest gets the first answer",
        owner=commits,
        function="_answered_before",
        old="!= decision.digest",
        new="is None",
    ),
    IngestMutant(
        name="a round that is long over counts as fenced",
        owner=commits,
        function="_verify",
        old="command.round < value.decision.round",
        new="False",
    ),
    IngestMutant(
        name="the sequence of a partition does not move",
        owner=commits,
        function="_outline",
        old="advanced(base, records)",
        new="base",
    ),
    IngestMutant(
        name="the newest part of a partition is published first",
        owner=IngestsState,
        function="incomplete_parts",
        old="-distance(",
        new="distance(",
    ),
    IngestMutant(
        name="parts are ordered without wrapping around",
        owner=IngestsState,
        function="incomplete_parts",
        old="-distance(each.plan.base_sequence, newest)",
        new="each.plan.base_sequence",
        directed="test_sequences_wrap_around",
    ),
    IngestMutant(
        name="a part is published beside the one before it",
        owner=commits,
        function="decide_commit",
        old="if state.first_unpublished(topic_partition) is None:",
        new="if True:",
    ),
    IngestMutant(
        name="the first part completes the decision",
        owner=publication,
        function="end_parts",
        old="if len(ends) < ingest.unpublished(number):",
        new="if False:",
    ),
    IngestMutant(
        name="a leader is not told which losses are noted",
        owner=publication,
        function="_publish",
        old="lost_records=plan.lost_records",
        new="lost_records=0",
    ),
    IngestMutant(
        name="a repeated ingest stays in its round",
        owner=publication,
        function="completed",
        old=", round=value.round + 1",
        new="",
    ),
    IngestMutant(
        name="the watermark counts what waits for publication only",
        owner=publication,
        function="published_up_to",
        old="    return decided(",
        new="    parts = [each for each in parts if not each.plan.is_published]\n    return decided(",
    ),
    IngestMutant(
        name="readers hear of no end",
        owner=publication,
        function="published_up_to",
        old="end_sequence=end_sequence",
        new="end_sequence=0",
    ),
    IngestMutant(
        name="a question of a group aborts nothing",
        owner=opening,
        function="decide_outcome",
        old="        return decided(OutcomeKnown(is_committed=False), [record], effects)",
        new="        pass",
    ),
    IngestMutant(
        name="a group is told about another epoch",
        owner=opening,
        function="decide_outcome",
        old="(group.ingest_epoch, group.round) == asked",
        new="group.round == command.round",
        directed="test_question_about_a_fenced_epoch_disturbs_nobody",
    ),
    IngestMutant(
        name="other offsets of a decided round count",
        owner=opening,
        function="decide_outcome",
        old="is_committed=group.offsets_digest == command.offsets_digest",
        new="is_committed=True",
        directed="test_outcome_is_that_of_the_offsets_that_the_decision_names",
    ),
    IngestMutant(
        name="offsets count again after the group has applied them",
        owner=opening,
        function="decide_outcome",
        old="    if value.state is IngestState.OPEN and (",
        new="    if (value.decision and (value.decision.ingest_epoch, value.decision.round) == asked and group is None):\n"
        "        return decided(OutcomeKnown(is_committed=True))\n"
        "    if value.state is IngestState.OPEN and (",
    ),
    IngestMutant(
        name="an outcome that a group has not heard is replaced",
        owner=commits,
        function="_verify",
        old="if value.group is not None and value.group.is_committed:",
        new="if False:",
    ),
    IngestMutant(
        name="a decision is forgotten before its group has heard",
        owner=IngestsState,
        function="_deadline_ms",
        old="if value.group is not None and value.group.is_committed:",
        new="if False:",
    ),
    IngestMutant(
        name="staged records are freed at the decision",
        owner=Ingest,
        function="needed_from",
        old=" or plan is None or not plan.is_published",
        new="",
    ),
    IngestMutant(
        name="a deposed coordinator frees what its successor needs",
        owner=attempts,
        function="live",
        old="if producer_id >= staging_producer_id(state.partition, state.given):",
        new="if False:",
    ),
    IngestMutant(
        name="an attempt that a manifest names is deleted",
        owner=Ingest,
        function="is_live",
        old="attempt.round == value.round and self.is_named(value.round, key)",
        new="False",
    ),
    IngestMutant(
        name="an attempt goes on without what its rounds have published",
        owner=attempts,
        function="open_attempt",
        old="freed=_freed(attempt)",
        new="freed=attempt.freed",
    ),
    IngestMutant(
        name="an attempt goes on that was not sealed",
        owner=Ingest,
        function="is_reusable",
        old="is_of_last_round and attempt.is_sealed",
        new="is_of_last_round",
    ),
    IngestMutant(
        name="producer ids are counted in memory alone",
        owner=attempts,
        function="open_attempt",
        old="        CounterRecord(number + 1),\n",
        new="",
    ),
    IngestMutant(
        name="an ingest is aborted at once after loading",
        owner=IngestsState,
        function="_deadline_ms",
        old="return max(lived_ms + value.ttl_ms, self.soft.begun_ms + min(value.ttl_ms, LOADED_GRACE_MS))",
        new="return lived_ms + value.ttl_ms",
    ),
    IngestMutant(
        name="a commit is no sign of life",
        owner=commits,
        function="_verify",
        old="        state.touch(ingest)\n",
        new="        pass\n",
    ),
    IngestMutant(
        name="a repeated ingest is never forgotten",
        owner=IngestsState,
        function="_deadline_ms",
        old="    return lived_ms + (REPEATED_KEEP_MS if",
        new="    return None if value.kind is IngestKind.REPEATED else lived_ms + (REPEATED_KEEP_MS if",
    ),
    IngestMutant(
        name="an answer about a part of a forgotten ingest counts",
        owner=publication,
        function="part_published",
        old=" or plan.base_sequence != command.base_sequence",
        new="",
        directed="test_late_answer_about_a_forgotten_ingest_is_ignored",
    ),
    IngestMutant(
        name="a group that nobody told is not told after a failover",
        owner=IngestsState,
        function="_after_value",
        old="soft.groups.expect(ingest.ingest_id, outcome)",
        new="pass",
    ),
    IngestMutant(
        name="parts are not asked for again after a failover",
        owner=IngestsState,
        function="note_time",
        old="self._after_part(topic_partition)",
        new="pass",
    ),
    IngestMutant(
        name="a new ingest has the epochs of a forgotten one",
        owner=opening,
        function="open_ingest",
        old="ingest_epoch=state.forgotten_epoch + 1",
        new="ingest_epoch=1",
    ),
    IngestMutant(
        name="a late copy seals an attempt in the next round",
        owner=attempts,
        function="seal",
        old="if attempt is not None and command.round not in (0, value.round):",
        new="if False:",
        directed="test_late_copy_of_a_seal_of_the_last_round",
    ),
)
