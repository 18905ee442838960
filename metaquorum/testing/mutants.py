# SPDX-License-Identifier: Apache-2.0
"""Mutants of the Raft core: known mistakes that the simulator must find; otherwise its silence proves nothing.

`disk_mutants` has those of the files, `controller_mutants` those of the controller.

A mutant replaces one piece of text in the source of one function, and puts the recompiled function wherever the original is bound.
Owns the list and the patching; nothing here runs outside of tests and `metaquorum.testing.run --mutants`.
Source: openraft's re-introduced bug.
"""

from __future__ import annotations

import inspect
import sys
import textwrap
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FunctionType, ModuleType

from metaquorum.raft import (
    election,
    follower,
    leader,
    log_view,
    membership,
    outbox,
    peers,
    reads,
    snapshots,
    start,
    state,
    transitions,
    voters,
)
from metaquorum.testing.options import (
    SimOptions,
    election_storm,
    forgery_storm,
    membership_storm,
    pause_storm,
    slow_disk_storm,
    snapshot_storm,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A replacement of text in the source of one function; see `Mutant`."""

    owner: ModuleType | type
    function: str
    old: str
    new: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """One mistake.

    Attributes:
        name: description of the mistake.
        owner: module or class that has the function.
        function: name of the function.
        old: text that occurs exactly once in its source.
        new: text that replaces it.
        also: further changes without which the mistake has no effect.
        options: returns the options for a seed that hunts it.
    """

    name: str
    owner: ModuleType | type
    function: str
    old: str
    new: str
    also: tuple[Change, ...] = ()
    options: Callable[[int], SimOptions] = election_storm


_MUTATED = ("metaquorum.", "storage.", "brokerd.")
"""Modules that may have imported a function by name."""

_LEAD_AGAIN = """
        from metaquorum.raft.calls import PeerCall
        from metaquorum.raft.roles import Leader, ReplicaProgress
        others = state.voter_set.others(state.key)
        return Leader(
            started_ms=now_ms,
            epoch_start_offset=state.log.log_end_offset,
            voters={v.key.node_id: ReplicaProgress(key=v.key, address=v.address) for v in others},
            begin_calls={v.key.node_id: PeerCall(now_ms) for v in others},
        )
"""

MUTANTS = (
    Mutant(
        name="a voter fetches before it has flushed",
        owner=follower,
        function="_is_word_good",
        old="return state.log.is_flushed or not state.is_voter",
        new="return True",
    ),
    Mutant(
        name="a voter votes twice in an epoch",
        owner=election,
        function="would_grant",
        old="return state.election.voted_key == request.candidate and is_up_to_date",
        new="return is_up_to_date",
    ),
    Mutant(
        name="a vote is given to a log that is behind",
        owner=election,
        function="would_grant",
        old=">= state.log.end_position",
        new="is not None",
    ),
    Mutant(
        name="a restarted node forgets its vote",
        owner=start,
        function="initial_role",
        old="    leader_id = state.election.leader_id\n",
        new="    leader_id = None\n    state.election = type(state.election)(\n"
        "        quorum_epoch=state.election.quorum_epoch, leader_id=None, voted_key=None)\n",
    ),
    Mutant(
        name="a restarted leader leads its epoch again",
        owner=start,
        function="initial_role",
        old="return resigned_role(state, now_ms)",
        new=_LEAD_AGAIN,
    ),
    Mutant(
        name="records of an older epoch are committed by counting",
        owner=leader,
        function="update_high_watermark",
        old="high_watermark <= role.epoch_start_offset or ",
        new="",
    ),
    Mutant(
        name="the high watermark is one voter too high",
        owner=voters,
        function="majority_offset",
        old="len(end_offsets) // 2]",
        new="max(0, len(end_offsets) // 2 - 1)]",
    ),
    Mutant(
        name="the leader counts what it has not flushed",
        owner=leader,
        function="update_high_watermark",
        old="end_offsets.append(state.log.flushed_offset)",
        new="end_offsets.append(state.log.log_end_offset)",
    ),
    Mutant(
        name="a message leaves before its state is on disk",
        owner=outbox.Outbox,
        function="say",
        old="if self.is_persisted:",
        new="if True:",
    ),
    Mutant(
        name="an epoch that no election has reached is believed",
        owner=peers,
        function="is_plausible",
        old="return epoch <= own + MAX_EPOCH_LEAP",
        new="return True",
        options=forgery_storm,
    ),
    Mutant(
        name="the epoch before the fetch offset is not compared",
        owner=leader,
        function="on_fetch",
        old="own.epoch != request.last_fetched_epoch or ",
        new="",
    ),
    Mutant(
        name="a follower cuts one record too few",
        owner=follower,
        function="_truncate",
        old="own.end_offset, diverging.end_offset)",
        new="own.end_offset, max(diverging.end_offset, own.end_offset))",
    ),
    Mutant(
        name="a leader needs one vote less than a majority",
        owner=election,
        function="poll_candidate",
        old="if granted + state.is_voter >= state.voter_set.majority:",
        new="if granted + state.is_voter + 1 >= state.voter_set.majority:",
    ),
    Mutant(
        name="a node delivers what it has not flushed",
        owner=state.RaftState,
        function="deliver",
        old="min(self.high_watermark, self.log.flushed_offset)",
        new="self.high_watermark",
    ),
    Mutant(
        name="a flush covers what was appended after it began",
        owner=log_view.LogView,
        function="end_flush",
        old="self.flushed_offset = self._flush_end_offset",
        new="self.flushed_offset = self.log_end_offset",
    ),
    Mutant(
        name="a read is answered without asking the voters",
        owner=reads,
        function="_finish_round",
        old="if confirmed < state.voter_set.majority:",
        new="if False:",
        options=pause_storm,
    ),
    Mutant(
        name="a read is confirmed by a fetch sent before it came",
        owner=reads,
        function="note_round",
        old="min(request.read_round, role.read_round)",
        new="role.read_round",
        options=pause_storm,
    ),
    Mutant(
        name="a removed leader counts itself",
        owner=leader,
        function="update_high_watermark",
        old="if state.is_voter:",
        new="if True:",
        options=membership_storm,
    ),
    Mutant(
        name="a second change begins before the first is committed",
        owner=membership,
        function="check_ready",
        old="role.high_watermark <= state.voters.latest_offset or ",
        new="",
        options=membership_storm,
    ),
    Mutant(
        name="a change begins before anything of the epoch is committed",
        owner=membership,
        function="check_ready",
        old="return ChangeRefusal.NOT_READY",
        new="return None",
        options=membership_storm,
    ),
    Mutant(
        name="the voters of a truncated record stay in force",
        owner=follower,
        function="_truncate",
        old="state.voters.truncate_suffix(to_offset)",
        new="pass",
        options=membership_storm,
    ),
    Mutant(
        name="an addition is committed by the old majority",
        owner=leader,
        function="update_high_watermark",
        old="for progress in role.voters.values()]",
        new="for progress in role.voters.values() if progress.counts_above is None or role.change is None]",
        options=membership_storm,
    ),
    Mutant(
        name="a new voter is counted by what it fetched as an observer",
        owner=leader,
        function="_note_progress",
        old="progress.counts_above is not None and",
        new="False and",
        options=slow_disk_storm,
    ),
    Mutant(
        name="a removal is answered before it is committed",
        owner=membership,
        function="poll_membership",
        old="committed >= change.next_offset",
        new="True",
        options=membership_storm,
    ),
    Mutant(
        name="the log is trimmed above the snapshot",
        owner=snapshots,
        function="_on_created",
        old="    oldest = kept[0]\n",
        new="    oldest = SnapshotId(end_offset=state.log.log_end_offset, epoch=state.log.last_epoch)\n",
        options=snapshot_storm,
    ),
    Mutant(
        name="an install keeps the epoch of the old log",
        owner=log_view.LogView,
        function="truncate_fully",
        old="self.start_epoch = to.epoch",
        new="self.start_epoch = self.last_epoch or to.epoch",
        options=snapshot_storm,
    ),
    Mutant(
        name="an install forgets the voters",
        owner=snapshots,
        function="_on_downloaded",
        old="state.voters.reset(snapshot.end_offset, event.voters)",
        new="state.voters.truncate_suffix(LOG_BEGIN)",
        options=snapshot_storm,
    ),
    Mutant(
        name="an install keeps the old high watermark",
        owner=snapshots,
        function="_on_downloaded",
        old="state.raise_high_watermark(snapshot.end_offset)",
        new="pass",
        options=snapshot_storm,
    ),
    Mutant(
        name="an interrupted install is not seen at the start",
        owner=snapshots,
        function="must_restart_log",
        old="not log.contains(newest)",
        new="newest.end_offset > log.log_end_offset + 1_000",
        options=snapshot_storm,
    ),
    Mutant(
        name="the only snapshot is dropped with the log that it stands for",
        owner=snapshots,
        function="_on_created",
        old="(*state.snapshots.ids, snapshot)[-state.config.kept_snapshots :]",
        new="(*state.snapshots.ids[:-1], snapshot)[-state.config.kept_snapshots :]",
        options=snapshot_storm,
    ),
    Mutant(
        name="a log that parted before the log start is cut instead of replaced",
        owner=snapshots,
        function="snapshot_for",
        old="if request.last_fetched_epoch < log.start_epoch:",
        new="if False:",
        options=snapshot_storm,
    ),
    Mutant(
        name="records are appended before leadership is on disk",
        owner=transitions,
        function="become_leader",
        old='assert state.outbox.is_persisted, "leadership must be on disk before the first record"',
        new="pass",
        also=(Change(owner=election, function="poll_candidate", old="if state.outbox.is_persisted:", new="if True:"),),
    ),
)
"""All mutants of the core."""


@contextmanager
def apply(mutant: Mutant) -> Generator[None]:
    """Apply the mutant during the block."""
    patches = [_patch(mutant.owner, mutant.function, mutant.old, mutant.new)]
    patches += [_patch(each.owner, each.function, each.old, each.new) for each in mutant.also]
    try:
        yield
    finally:
        for restore in reversed(patches):
            restore()


def _patch(owner: ModuleType | type, function: str, old: str, new: str) -> Callable[[], None]:
    original: object = vars(owner)[function]
    assert isinstance(original, FunctionType), f"{function} is no function"
    source = textwrap.dedent(inspect.getsource(original))
    assert source.count(old) == 1, f"{function}: {old!r} occurs {source.count(old)} times"
    scope: dict[str, object] = {}
    code = compile("from __future__ import annotations\n" + source.replace(old, new), f"<mutant of {function}>", "exec")
    exec(code, original.__globals__, scope)  # noqa: S102 -- source-level mutation is the point
    changed = scope[function]
    holders = _holders(owner, function, original)
    for holder in holders:
        setattr(holder, function, changed)

    def restore() -> None:
        for holder in holders:
            setattr(holder, function, original)

    return restore


def _holders(owner: ModuleType | type, function: str, original: object) -> list[ModuleType | type]:
    """Return the owner, and every module that has imported the function by name."""
    modules = [module for name, module in sorted(sys.modules.items()) if name.startswith(_MUTATED)]
    return [owner, *(m for m in modules if m is not owner and vars(m).get(function) is original)]
