# SPDX-License-Identifier: Apache-2.0
"""Mutants of the coordinator runtime: deliberate mistakes that the model must find. Otherwise it proves nothing."""

from __future__ import annotations

from typing import Final

from brokerd.coordinator import prefix
from brokerd.coordinator.machine import PartitionMachine
from brokerd.coordinator.prefix import LogPiece, PrefixFold
from metaquorum.testing.mutants import Change, Mutant

MUTANTS: Final = (
    Mutant(
        name="a command is answered when its records are appended",
        owner=PartitionMachine,
        function="_end_turn",
        old="self.replayed_end if has_records else seen_end",
        new="0",
    ),
    Mutant(
        name="a read does not wait for what it has seen",
        owner=PartitionMachine,
        function="_end_turn",
        old="self._waiting.append(waiting)",
        new="if not has_records and waiting.token is not None:\n"
        "            self._answers.append(Answer(waiting.token, waiting.response, None))\n"
        "            continue\n"
        "        self._waiting.append(waiting)",
    ),
    Mutant(
        name="commands that see each other share a turn",
        owner=PartitionMachine,
        function="_decide_commands",
        old="(scope is None or scope in turn.scopes)",
        new="scope is None",
    ),
    Mutant(
        name="a refused command is answered as if it were appended",
        owner=PartitionMachine,
        function="refuse_turn",
        old="self._refuse(decided.token, refused)",
        new="kept.append(decided)",
    ),
    Mutant(
        name="records are replayed before the log has accepted them",
        owner=PartitionMachine,
        function="refuse_turn",
        old="    refused = Unserved(",
        new="    for decided in turn.decided:\n"
        "        for record in decided.decision.records:\n"
        "            self._core.replay(record)\n"
        "    refused = Unserved(",
    ),
    Mutant(
        name="an appended record is not replayed",
        owner=PartitionMachine,
        function="accept_turn",
        old="core.replay(record)",
        new="pass",
    ),
    Mutant(
        name="the core outlives its leadership",
        owner=PartitionMachine,
        function="begin_load",
        old="self._core = self._new_core()",
        new="self._core = self._core or self._new_core()",
        also=(Change(owner=PartitionMachine, function="_end", old="self._core = None", new="pass"),),
    ),
    Mutant(
        name="a partition serves before the high watermark has passed the load end",
        owner=PartitionMachine,
        function="_try_activate",
        old=" and self.high_watermark >= self.load_end",
        new="",
    ),
    Mutant(
        name="a partition serves before everything is replayed",
        owner=PartitionMachine,
        function="_try_activate",
        old="self._is_loaded and ",
        new="self._core is not None and ",
    ),
    Mutant(
        name="a command whose append was under way is said to have changed nothing",
        owner=PartitionMachine,
        function="_end",
        old="unknown if decided.decision.records else unserved",
        new="unserved",
    ),
    Mutant(
        name="an appended command is said to have changed nothing",
        owner=PartitionMachine,
        function="_end",
        old="unknown if waiting.has_records else unserved",
        new="unserved",
    ),
    Mutant(
        name="waiting answers are forgotten at the end of the leadership",
        owner=PartitionMachine,
        function="_end",
        old="for waiting in self._waiting:",
        new="for waiting in ():",
    ),
    Mutant(
        name="a command that was given up is decided",
        owner=PartitionMachine,
        function="_decide_commands",
        old="if queued.is_dropped:",
        new="if False:",
    ),
    Mutant(
        name="an appended command that was given up is said to have changed nothing",
        owner=PartitionMachine,
        function="drop",
        old="outcome_unknown(self._partition) if waiting.has_records else timed_out(self._partition)",
        new="timed_out(self._partition)",
    ),
    Mutant(
        name="the queue has no bound",
        owner=PartitionMachine,
        function="submit",
        old="if len(self._queue) >= MAX_QUEUED_COMMANDS:",
        new="if False:",
    ),
    Mutant(
        name="the waiting answers have no bound",
        owner=PartitionMachine,
        function="_decide_commands",
        old=" or len(self._waiting) + len(turn.decided) >= MAX_WAITING_ANSWERS",
        new="",
    ),
    Mutant(
        name="another writer is not noticed",
        owner=PartitionMachine,
        function="accept_turn",
        old="if base_offset != self.replayed_end:",
        new="if False:",
    ),
    Mutant(
        name="a failed partition loads up to the old load end",
        owner=PartitionMachine,
        function="reload",
        old="self.load_end = log_end_offset",
        new="pass",
    ),
    Mutant(
        name="a snapshot is loaded although the log above it has a gap",
        owner=PartitionMachine,
        function="takes",
        old="not self._needs_whole or",
        new="True or",
    ),
    Mutant(
        name="a snapshot is made over a gap",
        owner=PrefixFold,
        function="add",
        old="not self._may_have_gaps and",
        new="False and",
    ),
    Mutant(
        name="a removed key of the last snapshot stays in the next one",
        owner=PrefixFold,
        function="over",
        old="if record.key not in newest",
        new="if newest.get(record.key) is None",
    ),
    Mutant(
        name="a gap at the end of a batch is overlooked",
        owner=LogPiece,
        function="is_whole_from",
        old="len(self.records) - self.count_below(offset) == self.next_offset - begin",
        new="len(self.records) - self.count_below(offset) == (self.offsets[-1] + 1 if self.offsets else begin) - begin",
    ),
    Mutant(
        name="the leader epoch at the end of a snapshot is not compared",
        owner=prefix,
        function="why_unusable",
        old="if snapshot.last_epoch != epoch_before_end:",
        new="if False:",
    ),
)
"""All mutants of the runtime."""
