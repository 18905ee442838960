# SPDX-License-Identifier: Apache-2.0
"""The laws of a group, over the merged journals of all its processes: owners, deliveries, commits. Does not know files or processes.

Owns what counts as an owner, and which duplicates are allowed. docs/testing.md has the laws as a table.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from integration_tests.scenarios.group_proofs.journal import Entry, Kind

PROBLEMS_MAX = 200
"""Problems that are kept as text; further ones are only counted."""

CLEAN = "clean"
"""How an ownership ended if everything delivered was committed."""


@dataclass(slots=True)
class PartitionState:
    """One partition at a moment.

    Attributes:
        holder: member that holds it.
        position: next offset that the holder must deliver.
        delivered_end: everything below it was delivered to somebody.
        acknowledged: highest commit that was acknowledged.
        attempted: highest commit that was sent.
        ended: how the last ownership ended.
        passed_over: members that were passed over and have not been told yet, with the reason.
    """

    holder: str | None = None
    position: int = 0
    delivered_end: int = 0
    acknowledged: int = 0
    attempted: int = 0
    ended: str = CLEAN
    passed_over: dict[str, str] = field(default_factory=dict[str, str])


@dataclass(slots=True)
class MemberState:
    """One process at a moment.

    Attributes:
        holds: partitions that it holds.
        is_stopped: True between SIGSTOP and SIGCONT.
        continued_ns: when it was continued last.
        excuse: why it may be passed over: it was stopped or busy in this round, and was not told of a loss since; else None.
    """

    holds: set[int] = field(default_factory=set[int])
    is_stopped: bool = False
    continued_ns: int = 0
    excuse: str | None = None


class GroupLaws:
    """Takes entries in the order of their times and finds what the group may not do.

    Args:
        partition_count: number of partitions.

    Attributes:
        problems: what was found.
        problem_count: how many, also those that are not kept.
        bounds: losses of members to which nothing was done. Then they, or the coordinator, did not run for a session.
        duplicates: records that came again, by how the ownership before had ended.
        late_deliveries: records that a stopped process delivered from a poll that had begun before.
        counts: how often what happened.
    """

    def __init__(self, partition_count: int) -> None:
        self.partitions = [PartitionState() for _ in range(partition_count)]
        self.members: dict[str, MemberState] = {}
        self.problems: list[str] = []
        self.problem_count = 0
        self.bounds: list[str] = []
        self.duplicates: Counter[str] = Counter()
        self.late_deliveries = 0
        self.counts: Counter[str] = Counter()
        self._allowed: frozenset[str] | None = None
        self._steady = ""
        self._first_ns: int | None = None
        self._now_ns = 0
        # What the coordinator named last, and what its next answer must name at least.
        self._told_last = [0] * partition_count
        self._least = [0] * partition_count
        self._takers = {
            Kind.ASSIGNED: self._assigned,
            Kind.POLLED: self._polled,
            Kind.COMMITTING: self._committing,
            Kind.COMMITTED: self._committed,
            Kind.REVOKED: self._revoked,
            Kind.LOST: self._lost,
            Kind.BUSY: self._busy,
            Kind.WRONG: self._wrong,
            Kind.KILLED: self._killed,
            Kind.STOPPED: self._stopped,
            Kind.CONTINUED: self._continued,
            Kind.LEFT: self._left,
            Kind.STEADY_BEGINS: self._steady_begins,
            Kind.STEADY_ENDS: self._steady_ends,
            Kind.ROUND: self._round,
            Kind.ASKING: self._asking,
            Kind.TOLD: self._told,
            Kind.ENDS: self._ends,
        }

    def take(self, entry: Entry) -> None:
        """Take the next entry."""
        if self._first_ns is None:
            self._first_ns = entry.time_ns
        self._now_ns = entry.time_ns
        self.counts[entry.kind.value] += 1
        taker = self._takers.get(entry.kind)
        if taker is not None:
            taker(entry)

    def member(self, name: str) -> MemberState:
        """Return the state of a member."""
        return self.members.setdefault(name, MemberState())

    # -- owners

    def _assigned(self, entry: Entry) -> None:
        name, member = entry.writer, self.member(entry.writer)
        starts = entry.by_partition("starts")
        self._check_steady(name, f"got {sorted(starts)}")
        for number, start in starts.items():
            state = self.partitions[number]
            state.passed_over.pop(name, None)
            if state.holder == name:
                self._note(f"{name} was assigned {number}, which it holds")
            elif state.holder is not None:
                self._pass_over(number, state, name)
            if start < state.acknowledged:
                self._note(f"{name} begins {number} at {start}: {state.acknowledged} was committed, so it moved back")
            if start > state.attempted:
                self._note(f"{name} begins {number} at {start}: nobody committed more than {state.attempted}")
            if start > state.delivered_end:
                self._note(f"{name} begins {number} at {start} and skips records from {state.delivered_end} on")
            again = state.delivered_end - start
            if again > 0:
                self.duplicates[state.ended] += again
                if state.ended == CLEAN:
                    self._note(f"{name} begins {number} at {start}: {again} records come again without a reason")
            state.holder, state.position = name, start
            member.holds.add(number)

    def _pass_over(self, number: int, state: PartitionState, new: str) -> None:
        """Judge that a partition went to another member before its holder has given it up."""
        old = state.holder
        assert old is not None
        holder = self.member(old)
        reason = holder.excuse
        if reason is None:
            # By its own clock the holder has stopped before. If not, its next delivery shows it.
            self._note_bound(f"{new} was assigned {number} while {old} holds it and was neither stopped nor busy")
            reason = "expired"
        state.passed_over[old] = reason
        state.ended = reason
        holder.holds.discard(number)

    def _revoked(self, entry: Entry) -> None:
        self._check_steady(entry.writer, f"gave up {entry.fields['partitions']}")
        for number in entry.fields["partitions"]:
            state = self.partitions[number]
            if state.holder != entry.writer:
                self._note(f"{entry.writer} gives {number} up, which {state.holder} holds")
                continue
            is_clean = entry.fields["is_committed"]
            self._end(number, state, CLEAN if is_clean else "commit failed")
            if is_clean and state.acknowledged < state.delivered_end:
                self._note(
                    f"{entry.writer} gives {number} up with everything committed, "
                    f"but {state.acknowledged} of {state.delivered_end} is"
                )

    def _lost(self, entry: Entry) -> None:
        member = self.member(entry.writer)
        reason = member.excuse
        if reason is None and entry.fields["partitions"]:
            self._note_bound(f"{entry.writer} lost {entry.fields['partitions']} and was neither stopped nor busy")
        for number in entry.fields["partitions"]:
            state = self.partitions[number]
            if state.passed_over.pop(entry.writer, None) is not None:
                continue
            if state.holder == entry.writer:
                self._end(number, state, reason or "expired")
            else:
                self._note(f"{entry.writer} lost {number}, which it did not hold")
        if not member.is_stopped:
            member.excuse = None

    def _killed(self, entry: Entry) -> None:
        name = entry.fields["target"]
        member = self.member(name)
        for number in sorted(member.holds):
            self._end(number, self.partitions[number], "crash")
        for state in self.partitions:
            state.passed_over.pop(name, None)

    def _left(self, entry: Entry) -> None:
        member = self.member(entry.writer)
        if member.holds:
            self._note(f"{entry.writer} left and holds {sorted(member.holds)}")
        untold = [number for number, state in enumerate(self.partitions) if entry.writer in state.passed_over]
        if untold:
            self._note(f"{entry.writer} left and was never told that it had lost {untold}")

    def _end(self, number: int, state: PartitionState, how: str) -> None:
        assert state.holder is not None
        self.member(state.holder).holds.discard(number)
        state.holder, state.ended = None, how

    # -- deliveries

    def _polled(self, entry: Entry) -> None:
        name, member = entry.writer, self.member(entry.writer)
        began_ns = entry.fields["began_ns"]
        for number, (first, last) in entry.by_partition("records").items():
            state = self.partitions[number]
            self.counts["records"] += last - first + 1
            if state.holder != name:
                if name in state.passed_over and (member.is_stopped or began_ns <= member.continued_ns):
                    self.late_deliveries += last - first + 1
                else:
                    self._note(f"{name} delivers {first} to {last} of {number}, which {state.holder} holds")
                continue
            if first != state.position:
                what = "skips" if first > state.position else "repeats"
                self._note(f"{name} delivers {first} of {number} after {state.position - 1}: it {what} records")
            state.position = last + 1
            state.delivered_end = max(state.delivered_end, last + 1)

    def _wrong(self, entry: Entry) -> None:
        self._note(f"{entry.writer}: {entry.fields['text']}")

    # -- commits

    def _committing(self, entry: Entry) -> None:
        for number, offset in entry.by_partition("offsets").items():
            state = self.partitions[number]
            if offset > state.delivered_end:
                self._note(f"{entry.writer} commits {offset} of {number}: delivered is up to {state.delivered_end}")
            state.attempted = max(state.attempted, offset)

    def _committed(self, entry: Entry) -> None:
        for number, offset in entry.by_partition("offsets").items():
            state = self.partitions[number]
            state.acknowledged = max(state.acknowledged, offset)

    def _asking(self, entry: Entry) -> None:
        self._least = [
            max(state.acknowledged, told) for state, told in zip(self.partitions, self._told_last, strict=True)
        ]

    def _told(self, entry: Entry) -> None:
        for number, offset in entry.by_partition("offsets").items():
            state, least = self.partitions[number], self._least[number]
            if offset < least:
                self._note(f"the committed offset of {number} is {offset}, and was {least}")
            if offset > state.attempted:
                self._note(
                    f"the committed offset of {number} is {offset}: nobody committed more than {state.attempted}"
                )
            self._told_last[number] = offset

    def _ends(self, entry: Entry) -> None:
        for number, end in entry.by_partition("offsets").items():
            state = self.partitions[number]
            if state.delivered_end < end:
                self._note(f"{number}: records from {state.delivered_end} to {end - 1} were never delivered")
            if state.acknowledged < end:
                self._note(f"{number}: {state.acknowledged} is committed at the end, not {end}")

    # -- what is done to members

    def _stopped(self, entry: Entry) -> None:
        member = self.member(entry.fields["target"])
        member.is_stopped, member.excuse = True, "stopped"

    def _continued(self, entry: Entry) -> None:
        member = self.member(entry.fields["target"])
        member.is_stopped = False
        member.continued_ns = entry.time_ns

    def _busy(self, entry: Entry) -> None:
        member = self.member(entry.writer)
        member.excuse = "busy"

    def _round(self, entry: Entry) -> None:
        for member in self.members.values():
            if not member.is_stopped:
                member.excuse = None

    def _steady_begins(self, entry: Entry) -> None:
        self._allowed, self._steady = frozenset(entry.fields["allowed"]), entry.fields["text"]

    def _steady_ends(self, entry: Entry) -> None:
        self._allowed = None

    def _check_steady(self, name: str, what: str) -> None:
        if self._allowed is not None and name not in self._allowed:
            self._note_bound(f"{name} {what} during {self._steady}, which does not concern it")

    def _note(self, problem: str) -> None:
        self.problem_count += 1
        if len(self.problems) < PROBLEMS_MAX:
            self.problems.append(f"{self._at()}: {problem}")

    def _note_bound(self, problem: str) -> None:
        if len(self.bounds) < PROBLEMS_MAX:
            self.bounds.append(f"{self._at()}: BOUND {problem}")

    def _at(self) -> str:
        return f"{(self._now_ns - (self._first_ns or 0)) / 1e9:.3f} s"
