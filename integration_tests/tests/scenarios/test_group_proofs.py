# SPDX-License-Identifier: Apache-2.0
"""A short group proof with real processes, and its judges. `make group-proofs` runs the long one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from integration_tests.harness.outcome import Outcome
from integration_tests.scenarios.group_proofs.journal import Entry, Journal, Kind, read_journals
from integration_tests.scenarios.group_proofs.judge import judge
from integration_tests.scenarios.group_proofs.laws import GroupLaws
from integration_tests.scenarios.group_proofs.run import GroupProofSettings, run
from integration_tests.scenarios.group_proofs.times import GroupTimes

SMALL = GroupProofSettings(
    seconds=0.0,
    members=3,
    statics=1,
    partitions=6,
    rate_per_s=40.0,
    session_ms=6_000,
    limit_ms=4_000,
    calm_s=0.3,
    is_timed=False,
)


@pytest.mark.process
@pytest.mark.timeout(600)
def test_group_under_every_nemesis_breaks_no_law(tmp_path: Path) -> None:
    """Each nemesis comes once: nothing is skipped, nothing has two owners, and only what may come again does."""
    outcome = run(tmp_path, SMALL)
    assert outcome.problems == []
    assert outcome.figures["rounds"] == dict.fromkeys(SMALL.only, 1)
    assert int(str(outcome.figures["acknowledged"])) > 0


class Script:
    """Writes the journals of an imagined run, a millisecond for each line."""

    def __init__(self, partition_count: int = 1) -> None:
        self.entries: list[Entry] = []
        self.partition_count = partition_count

    def add(self, writer: str, kind: Kind, **fields: Any) -> Script:
        """Add a line, one millisecond after the last one."""
        return self.at((len(self.entries) + 1) * 1_000_000, writer, kind, **fields)

    def at(self, time_ns: int, writer: str, kind: Kind, **fields: Any) -> Script:
        """Add a line at a time."""
        self.entries.append(Entry(time_ns, writer, kind, fields))
        return self

    def polled(self, writer: str, first: int, last: int, *, began_ns: int | None = None) -> Script:
        """Add a poll that returned records of partition 0."""
        began_ns = len(self.entries) * 1_000_000 if began_ns is None else began_ns
        return self.add(writer, Kind.POLLED, began_ns=began_ns, records={"0": [first, last]})

    def committed(self, writer: str, offset: int) -> Script:
        """Add a commit with its acknowledgement."""
        self.add(writer, Kind.COMMITTING, offsets={"0": offset})
        return self.add(writer, Kind.COMMITTED, offsets={"0": offset})

    def assigned(self, writer: str, start: int) -> Script:
        """Add an assignment of partition 0."""
        return self.add(writer, Kind.ASSIGNED, starts={"0": start})

    def revoked(self, writer: str, *, is_committed: bool = True) -> Script:
        """Add the end of a revocation."""
        return self.add(writer, Kind.REVOKED, partitions=[0], is_committed=is_committed, text="")

    def laws(self) -> GroupLaws:
        """Judge the laws."""
        laws = GroupLaws(self.partition_count)
        for entry in self.entries:
            laws.take(entry)
        return laws

    def problems(self) -> list[str]:
        """Return the problems without their times."""
        return [problem.split(": ", 1)[1] for problem in self.laws().problems]

    def bounds(self) -> list[str]:
        """Return losses without a fault, without their times."""
        return [problem.split(": ", 1)[1] for problem in self.laws().bounds]


def test_clean_handover_has_no_problem() -> None:
    """A member reads, commits, gives up; the next one goes on where it was, to the end."""
    script = Script().assigned("a", 0).polled("a", 0, 4).committed("a", 5).revoked("a")
    script.assigned("b", 5).polled("b", 5, 9).committed("b", 10).revoked("b").add("b", Kind.LEFT)
    script.add("proof", Kind.ENDS, offsets={"0": 10})
    laws = script.laws()
    assert laws.problems == []
    assert laws.duplicates.total() == 0


def test_records_after_a_crash_come_again_from_the_commit_on() -> None:
    """What a killed member had not committed comes again, and is counted. Below the commit nothing does."""
    script = Script().assigned("a", 0).polled("a", 0, 4).committed("a", 3).add("proof", Kind.KILLED, target="a")
    laws = script.assigned("b", 3).polled("b", 3, 6).laws()
    assert laws.problems == []
    assert laws.duplicates == {"crash": 2}


def test_duplicates_without_a_reason_are_found() -> None:
    """After a clean revocation nothing may come again."""
    script = Script().assigned("a", 0).polled("a", 0, 4).committed("a", 3).revoked("a").assigned("b", 3)
    found = script.problems()
    assert found[0] == "a gives 0 up with everything committed, but 3 of 5 is"
    assert found[1] == "b begins 0 at 3: 2 records come again without a reason"


def test_failed_commit_of_a_revocation_allows_duplicates() -> None:
    """A member that could not commit says so, and its records may come again."""
    script = Script().assigned("a", 0).polled("a", 0, 4).revoked("a", is_committed=False).assigned("b", 0)
    laws = script.laws()
    assert laws.problems == []
    assert laws.duplicates == {"commit failed": 5}


def test_skipped_records_are_found() -> None:
    """A hole in the hands of one member, a start behind what was delivered, and a missing end are each a problem."""
    assert Script().assigned("a", 0).polled("a", 0, 1).polled("a", 3, 4).problems() == [
        "a delivers 3 of 0 after 1: it skips records"
    ]
    skipping = Script().assigned("a", 0).polled("a", 0, 1).add("a", Kind.COMMITTING, offsets={"0": 4})
    assert skipping.problems() == ["a commits 4 of 0: delivered is up to 2"]
    skipping.add("proof", Kind.KILLED, target="a").assigned("b", 4)
    assert skipping.problems()[1] == "b begins 0 at 4 and skips records from 2 on"
    short = Script().assigned("a", 0).polled("a", 0, 1).committed("a", 2).add("proof", Kind.ENDS, offsets={"0": 3})
    assert short.problems() == ["0: records from 2 to 2 were never delivered", "0: 2 is committed at the end, not 3"]


def test_repeated_delivery_by_one_owner_is_found() -> None:
    """While a member holds a partition, no record comes twice."""
    assert Script().assigned("a", 0).polled("a", 0, 4).polled("a", 4, 5).problems() == [
        "a delivers 4 of 0 after 4: it repeats records"
    ]


def test_second_owner_is_found() -> None:
    """An assignment of what somebody holds, and a delivery after a revocation, are problems."""
    both = Script().assigned("a", 0).assigned("b", 0)
    assert both.bounds() == ["BOUND b was assigned 0 while a holds it and was neither stopped nor busy"]
    both.polled("a", 0, 0)
    assert both.problems()[0] == "a delivers 0 to 0 of 0, which b holds"
    late = Script().assigned("a", 0).revoked("a").polled("a", 0, 0)
    assert late.problems() == ["a delivers 0 to 0 of 0, which None holds"]


def stalled() -> Script:
    """Return a run in which a stopped member is passed over."""
    script = Script().assigned("a", 0).polled("a", 0, 4).committed("a", 5).add("proof", Kind.STOPPED, target="a")
    return script.assigned("b", 5).polled("b", 5, 6).add("proof", Kind.CONTINUED, target="a")


def test_stopped_member_may_be_passed_over_and_must_hear_of_it() -> None:
    """A stopped member loses its partitions. What its poll held is counted; what a later poll gives is a problem."""
    assert stalled().add("a", Kind.LOST, partitions=[0]).problems() == []
    in_flight = stalled().polled("a", 5, 6, began_ns=0).add("a", Kind.LOST, partitions=[0]).laws()
    assert (in_flight.problems, in_flight.late_deliveries) == ([], 2)
    late = stalled().polled("a", 5, 6, began_ns=60_000_000)
    assert late.problems() == ["a delivers 5 to 6 of 0, which b holds"]
    assert stalled().revoked("a").problems() == ["a gives 0 up, which b holds"]
    assert stalled().add("a", Kind.LEFT).problems() == ["a left and was never told that it had lost [0]"]


def test_loss_without_a_cause_is_found() -> None:
    """A member that was neither stopped nor busy keeps its partitions, also after the round of its fault."""
    assert Script().assigned("a", 0).add("a", Kind.LOST, partitions=[0]).bounds() == [
        "BOUND a lost [0] and was neither stopped nor busy"
    ]
    busy = Script().assigned("a", 0).add("a", Kind.BUSY, busy_ms=10)
    assert busy.add("a", Kind.LOST, partitions=[0]).bounds() == []
    later = Script().assigned("a", 0).add("a", Kind.BUSY, busy_ms=10).add("proof", Kind.ROUND, text="join")
    assert len(later.assigned("b", 0).bounds()) == 1


def test_offset_that_moves_back_is_found() -> None:
    """Neither a start nor an answer may be below what was acknowledged before, or above what was sent."""
    base = Script().assigned("a", 0).polled("a", 0, 9).committed("a", 8).add("proof", Kind.KILLED, target="a")
    assert base.assigned("b", 6).problems() == ["b begins 0 at 6: 8 was committed, so it moved back"]
    asked = Script().assigned("a", 0).polled("a", 0, 9).committed("a", 8)
    asked.add("questions", Kind.ASKING).add("questions", Kind.TOLD, offsets={"0": 7})
    assert asked.problems() == ["the committed offset of 0 is 7, and was 8"]
    unsent = Script().add("questions", Kind.ASKING).add("questions", Kind.TOLD, offsets={"0": 1})
    assert unsent.problems() == ["the committed offset of 0 is 1: nobody committed more than 0"]


def test_answer_is_compared_with_the_time_of_its_question() -> None:
    """A commit that is acknowledged while the question is under way need not be in the answer."""
    script = Script().assigned("a", 0).polled("a", 0, 9).add("questions", Kind.ASKING).committed("a", 8)
    assert script.add("questions", Kind.TOLD, offsets={"0": 0}).problems() == []


def test_rebalance_in_a_steady_time_is_found() -> None:
    """While nothing may happen to others, an assignment to one of them is a problem."""
    script = Script().add("proof", Kind.STEADY_BEGINS, allowed=["a"], text="a stall").assigned("b", 0)
    assert script.bounds() == ["BOUND b got [0] during a stall, which does not concern it"]


def timed(*, delivered_ns: int) -> GroupTimes:
    """Return the times of a run of two partitions: b joins at 10 s and gets partition 1; a keeps 0."""
    s = 1_000_000_000
    script = Script(2).at(0, "a", Kind.SUBSCRIBING, instance=None)
    script.at(s, "a", Kind.ASSIGNED, starts={"0": 0, "1": 0}).at(2 * s, "proof", Kind.READY)
    script.at(9 * s, "load", Kind.ACKED, partition=0, base=0, count=1)
    script.at(9 * s + 5_000_000, "a", Kind.POLLED, began_ns=0, records={"0": [0, 0]})
    script.at(10 * s, "b", Kind.SUBSCRIBING, instance=None)
    script.at(10 * s + 100_000_000, "load", Kind.ACKED, partition=0, base=1, count=1)
    script.at(10 * s + 300_000_000, "a", Kind.REVOKED, partitions=[1], is_committed=True, text="")
    script.at(10 * s + 400_000_000, "b", Kind.ASSIGNED, starts={"1": 0})
    script.at(delivered_ns, "a", Kind.POLLED, began_ns=0, records={"0": [1, 1]})
    times = GroupTimes(2)
    for entry in sorted(script.entries, key=lambda entry: entry.time_ns):
        times.take(entry)
    return times


def test_join_lasts_until_the_new_member_has_its_share() -> None:
    """The time runs from subscribe() to the last partition of the share."""
    assert timed(delivered_ns=10_105_000_000).joins_s == [0.4]


def test_pause_is_the_longest_wait_of_a_record_in_a_rebalance() -> None:
    """Only partitions that keep their owner count, and only records whose wait touches the rebalance."""
    assert timed(delivered_ns=10_105_000_000).pauses_s() == [0.005]
    assert timed(delivered_ns=10_600_000_000).pauses_s() == [0.5]
    assert timed(delivered_ns=10_105_000_000).calm_s() == []


def test_bounds_fail_the_proof(tmp_path: Path) -> None:
    """A median join over a second is a problem, if times are judged."""
    journal = Journal(tmp_path, "b")
    journal.write(Kind.SUBSCRIBING, 0, instance=None)
    Journal(tmp_path, "proof").write(Kind.ENDS, 9_000_000_000, offsets={})
    journal.write(Kind.ASSIGNED, 5_000_000_000, starts={"0": 0})
    (tmp_path / "proof.jsonl").write_text('{"t":-1,"k":"ready"}\n' + (tmp_path / "proof.jsonl").read_text())
    outcome = Outcome(proof="test")
    judge(read_journals(tmp_path), outcome, partition_count=1)
    assert "BOUND rebalance after a join: p50 is 5.00 s, over 1.0 s" in outcome.problems
    relaxed = Outcome(proof="test")
    judge(read_journals(tmp_path), relaxed, partition_count=1, is_timed=False)
    assert relaxed.problems == []


def test_journal_of_a_killed_process_is_read_up_to_its_last_whole_line(tmp_path: Path) -> None:
    """A line that a kill cut off is left out, and lines of all files come in the order of their times."""
    first, second = Journal(tmp_path, "a"), Journal(tmp_path, "b")
    first.write(Kind.LEFT, 30)
    second.write(Kind.LEFT, 20)
    second.write(Kind.READY, 10)
    with (tmp_path / "a.jsonl").open("a") as file:
        file.write('{"t":40,"k":"le')
    assert [(entry.time_ns, entry.writer) for entry in read_journals(tmp_path)] == [(10, "b"), (20, "b"), (30, "a")]
