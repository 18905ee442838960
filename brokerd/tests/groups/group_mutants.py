# SPDX-License-Identifier: Apache-2.0
"""Mutants of the group core: deliberate mistakes that the walk must find. Otherwise it proves nothing.

Owns the list. `metaquorum.testing.mutants` defines mutants and installs the mistake.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from brokerd.groups import membership, offsets, pending, reconciliation, targets
from brokerd.groups.core import GroupCore
from brokerd.groups.group import Group
from brokerd.groups.sessions import Session, Sessions
from brokerd.groups.state import CoordinatorState
from metaquorum.testing.mutants import Mutant


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupMutant(Mutant):
    """A mistake, and what finds it.

    Attributes:
        seeds: seeds of the walk that are tried until one finds it.
        directed: name of the test that finds it instead, because the walk meets it too rarely.
    """

    seeds: Sequence[int] = range(20)
    directed: str = ""


MUTANTS: Final = (
    GroupMutant(
        name="a partition is given before its owner has released it",
        owner=reconciliation,
        function="reconcile",
        old="if number not in kept.get(topic_id, ()) and is_free(topic_id, number)",
        new="if number not in kept.get(topic_id, ())",
    ),
    GroupMutant(
        name="a revocation is confirmed by any beat",
        owner=reconciliation,
        function="reconcile",
        old="and not _overlap(owned, revoking)",
        new="",
    ),
    GroupMutant(
        name="a revocation is confirmed by a beat that has not seen the last assignment",
        owner=membership,
        function="beat",
        old="is_settled = session.is_settled",
        new="is_settled = True",
        seeds=range(35, 45),
    ),
    GroupMutant(
        name="partitions that stay get a new assignment epoch",
        owner=reconciliation,
        function="reconcile",
        old="assigned=_merged(kept, gained),",
        new="assigned={t: dict.fromkeys(n, target_epoch) for t, n in _merged(kept, gained).items()},",
    ),
    GroupMutant(
        name="a partition is taken away without a revocation",
        owner=reconciliation,
        function="reconcile",
        old="        revoking = _merged(revoking, leaving)\n",
        new="        pass\n",
    ),
    GroupMutant(
        name="the last member leaves the target epoch behind",
        owner=membership,
        function="removal",
        old="target_epoch=value.group_epoch, ",
        new="",
    ),
    GroupMutant(
        name="a commit is accepted from a former owner",
        owner=offsets,
        function="_check_held",
        old="if assignment_epoch is not None and assignment_epoch <= member_epoch:",
        new="if True:",
        directed="test_commit_is_judged_for_each_partition",
    ),
    GroupMutant(
        name="a late copy of a commit counts",
        owner=offsets,
        function="check_commit",
        old="if 0 < command.commit_number < session.commit_number:",
        new="if False:",
    ),
    GroupMutant(
        name="the number of a commit before the first beat at a coordinator is forgotten",
        owner=offsets,
        function="check_commit",
        old="state.sessions.of(command.group_id, command.member_id)",
        new="state.sessions.get(command.group_id, command.member_id)",
        directed="test_late_copy_of_a_commit_moves_nothing_back",
    ),
    GroupMutant(
        name="a takeover keeps the epoch of the old process",
        owner=membership,
        function="_taken_over_value",
        old="target_epoch=risen.group_epoch, group_epoch=risen.group_epoch + (not is_current)",
        new="target_epoch=value.target_epoch, group_epoch=risen.group_epoch",
        directed="test_takeover_uses_a_new_assignment_epoch",
    ),
    GroupMutant(
        name="offsets of a group with members expire",
        owner=offsets,
        function="expire",
        old="if value is None or value.empty_since_ms is None or group.members:",
        new="value = value and replace(value, empty_since_ms=value.empty_since_ms or 0)\n"
        "    if value is None or (group.members and not group.offsets):",
    ),
    GroupMutant(
        name="offsets expire from their commit alone",
        owner=offsets,
        function="expire",
        old="max(offset.commit_ms, value.empty_since_ms)",
        new="offset.commit_ms",
        seeds=range(9, 14),
    ),
    GroupMutant(
        name="a group is reconciled while its target is written",
        owner=CoordinatorState,
        function="may_reconcile",
        old=" and not group.is_frozen",
        new="",
        directed="test_large_target_is_written_in_parts_and_counts_as_a_whole",
    ),
    GroupMutant(
        name="a coordinator whose topics are behind takes partitions away",
        owner=CoordinatorState,
        function="knows_topics_of",
        old="return self.topics.is_loaded and self.topics.metadata_offset >= group.known_value.metadata_offset",
        new="return True",
    ),
    GroupMutant(
        name="changed topics raise no epoch",
        owner=GroupCore,
        function="_compare_topics",
        old="!= group.known_value.topics_digest",
        new="is None",
    ),
    GroupMutant(
        name="nobody is woken by a release",
        owner=Group,
        function="put_current",
        old="waiting.update(dict.fromkeys(self._target_owners.of(topic_id, number)))",
        new="pass",
        directed="test_released_partition_is_pushed_at_once",
    ),
    GroupMutant(
        name="offsets of a deleted topic stay",
        owner=offsets,
        function="of_deleted_topic",
        old="    for group_id in state.groups_with_offsets(topic_id):",
        new="    for group_id in ():",
    ),
    GroupMutant(
        name="every outcome commits",
        owner=pending,
        function="resolve",
        old="if command.is_committed and is_it:",
        new="if is_it:",
    ),
    GroupMutant(
        name="an outcome at a higher epoch commits what a lower one has prepared",
        owner=pending,
        function="resolve",
        old="is_it = (value.ingest_epoch, value.offsets_digest) == (command.ingest_epoch, command.offsets_digest)",
        new="is_it = value.offsets_digest == command.offsets_digest",
        directed="test_outcome_of_a_higher_epoch_drops_what_a_lower_one_has_prepared",
    ),
    GroupMutant(
        name="an outcome commits other offsets of its round",
        owner=pending,
        function="resolve",
        old="is_it = (value.ingest_epoch, value.offsets_digest) == (command.ingest_epoch, command.offsets_digest)",
        new="is_it = value.ingest_epoch == command.ingest_epoch",
        directed="test_outcome_counts_for_exactly_the_offsets_that_it_names",
    ),
    GroupMutant(
        name="an outcome commits all but one",
        owner=pending,
        function="_committed",
        old="for each in value.offsets",
        new="for each in value.offsets[:-1]",
    ),
    GroupMutant(
        name="a commit passes a pending partition",
        owner=offsets,
        function="check_offsets",
        old="or _check_pending(group, each.topic_id, each.partition, renewed)",
        new="",
    ),
    GroupMutant(
        name="a fetch answers with the offset from before the pending one",
        owner=offsets,
        function="fetch",
        old="(problem := _check_pending(group, *key))",
        new="(problem := None)",
    ),
    GroupMutant(
        name="a prepare keeps what it may although a partition is refused",
        owner=pending,
        function="prepare",
        old="if result.refused is not None:",
        new="if False:",
        directed="test_prepare_checks_as_a_commit_does",
    ),
    GroupMutant(
        name="a late copy of a prepare counts",
        owner=Sessions,
        function="is_resolved",
        old="(number, epoch) <= self._last_resolved((group_id, ingest_id))",
        new="False",
        directed="test_late_copy_of_a_prepare_is_refused",
    ),
    GroupMutant(
        name="nobody asks what became of pending offsets",
        owner=pending,
        function="ask_outcomes",
        old="effects.append(",
        new="(",
    ),
    GroupMutant(
        name="a coordinator does not ask about the pending offsets that it has loaded",
        owner=CoordinatorState,
        function="begin",
        old="self._watch_outcome(OutcomeTimer(group.group_id, ingest_id, number))",
        new="pass",
        directed="test_loaded_coordinator_asks_in_its_own_time",
    ),
    GroupMutant(
        name="a group with pending offsets expires",
        owner=offsets,
        function="expire",
        old="if group.pending or state",
        new="if state",
        directed="test_expiry_leaves_pending_offsets_alone",
    ),
    GroupMutant(
        name="pending offsets of a deleted topic stay",
        owner=pending,
        function="without_topics",
        old="    for group_id in group_ids:",
        new="    for group_id in ():",
        directed="test_topics_that_are_deleted_together_leave_pending_offsets_together",
    ),
    GroupMutant(
        name="a result that is not awaited is stored",
        owner=targets,
        function="store",
        old="not is_awaited or epoch <= group.known_value.target_epoch",
        new="False",
    ),
    GroupMutant(
        name="a beat does not extend the session",
        owner=Sessions,
        function="hear",
        old="self.timers.set(Timer(TimerKind.SESSION, group_id, member_id), expires_ms)",
        new="pass",
    ),
    GroupMutant(
        name="an assignment is repeated under the same number",
        owner=Session,
        function="next_number",
        old="max(self.sent_number or 0, self.echoed_number) + 1",
        new="max(self.sent_number or 1, self.echoed_number)",
    ),
    GroupMutant(
        name="a member is pushed before it has echoed",
        owner=membership,
        function="push",
        old=" or not session.is_settled",
        new="",
        directed="test_push_waits_for_the_echo",
    ),
    GroupMutant(
        name="a member that has lost everything keeps what it had",
        owner=membership,
        function="join",
        old="if _holds_at(member.known_current, command.lost_epoch):",
        new="if False:",
        directed="test_join_after_a_loss_that_the_coordinator_did_not_see_gets_everything_anew",
    ),
    GroupMutant(
        name="a takeover waits for the process that it replaces",
        owner=Group,
        function="is_free",
        old="return not holders or all(each == ignored for each in holders)",
        new="return not holders",
        directed="test_replacement_takes_over_when_the_stream_is_closed",
    ),
)
