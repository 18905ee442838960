# SPDX-License-Identifier: Apache-2.0
"""The machine of a coordinator partition, step by step."""

from __future__ import annotations

import pytest

from brokerd.coordinator import machine as machine_module
from brokerd.coordinator.core import Record
from brokerd.coordinator.limits import (
    LOAD_RETRY_MAX_MS,
    LOAD_RETRY_MS,
    MAX_QUEUED_BYTES,
    MAX_QUEUED_COMMANDS,
    MAX_TURN_BYTES,
    MAX_TURN_COMMANDS,
    MAX_TURN_RECORDS,
    MAX_WAITING_ANSWERS,
    TICK_FLOOR_MS,
    TICK_RETRY_MS,
)
from brokerd.coordinator.machine import State
from brokerd.coordinator.prefix import LogPiece
from brokerd.coordinator.unserved import UnservedReason as Reason
from brokerd.tests.coordinator.machine_log import MOVED, TOO_FEW, MachineLog
from brokerd.tests.coordinator.register_core import Break, Fill, Increment, Read, Remove


def record(name: str, number: int) -> Record:
    return Record(name.encode(), b"%d 0  " % number)


# Turns and answers.


def test_response_waits_for_the_high_watermark() -> None:
    """A command is answered when its records are committed, not when they are appended."""
    here = MachineLog()
    token = here.submit(Increment("a"))
    here.turns()
    assert here.log == [record("a", 1)]
    assert here.answered == {}
    here.commit()
    assert here.answered == {token: 1}


def test_decisions_see_uncommitted_state() -> None:
    """The second command counts on from the first one, which is not committed yet."""
    here = MachineLog()
    tokens = [here.submit(Increment("a")) for _ in range(3)]
    here.turns()
    here.commit()
    assert [here.answered[token] for token in tokens] == [1, 2, 3]
    assert here.appends == [1, 1, 1]


def test_commands_of_several_scopes_share_an_append() -> None:
    """Commands that cannot see each other go into one batch; one that can begins the next turn."""
    here = MachineLog()
    for name in ("a", "b", "c", "a", "d"):
        here.submit(Increment(name))
    here.turns()
    assert here.appends == [3, 2]
    assert here.core.registers == {"a": (2, ""), "b": (1, ""), "c": (1, ""), "d": (1, "")}


def test_command_without_a_scope_has_a_turn_of_its_own() -> None:
    """What may depend on everything is decided after everything, and before everything that follows."""
    here = MachineLog()
    for command in (Increment("a"), Fill("x", 2), Increment("b"), Increment("c")):
        here.submit(command)
    here.turns()
    assert here.appends == [1, 2, 2]


def test_without_scopes_each_command_has_a_turn() -> None:
    """Without a function for scopes every command may depend on every other."""
    here = MachineLog(scoped=False)
    for name in ("a", "b", "a"):
        here.submit(Increment(name))
    here.turns()
    assert here.appends == [1, 1, 1]
    assert here.core.registers["a"] == (2, "")


def test_read_only_answer_waits_for_what_it_has_seen() -> None:
    """A read of uncommitted state is answered with that state's commit; a read before it at once."""
    here = MachineLog()
    before = here.submit(Read("a"))
    here.turns()
    assert here.answered == {before: 0}
    here.submit(Increment("a"))
    here.turns()
    after = here.submit(Read("a"))
    here.turns()
    assert after not in here.answered
    here.commit()
    assert here.answered[after] == 1


def test_read_in_the_turn_of_a_write_of_another_scope_does_not_wait_for_it() -> None:
    """It has not seen those records, so it waits for what was there before the turn."""
    here = MachineLog()
    write, read = here.submit(Increment("a")), here.submit(Read("b"))
    here.turns()
    assert here.answered == {read: 0}
    here.commit()
    assert here.answered[write] == 1


def test_turn_is_bounded_in_commands() -> None:
    """A long queue is decided in several turns, so that the event loop is free between them."""
    here = MachineLog()
    for at in range(MAX_TURN_COMMANDS + 1):
        here.submit(Increment(f"r{at}"))
    here.turns()
    assert here.appends == [MAX_TURN_COMMANDS, 1]


def test_turn_is_bounded_in_bytes() -> None:
    """A decision that would pass the bound begins the next turn; it is not lost."""
    here = MachineLog()
    for at in range(4):
        here.submit(Increment(f"r{at}", padding_bytes=MAX_TURN_BYTES // 2 - 100))
    here.turns()
    assert here.appends == [2, 2]


def test_turn_is_bounded_in_records(monkeypatch: pytest.MonkeyPatch) -> None:
    """Decisions with many records go into several appends."""
    monkeypatch.setattr(machine_module, "MAX_TURN_RECORDS", 2)
    here = MachineLog()
    for at in range(3):
        here.submit(Increment(f"r{at}"))
    here.turns()
    assert here.appends == [2, 1]


@pytest.mark.parametrize("command", [Increment("a", padding_bytes=1 << 20), Fill("x", MAX_TURN_RECORDS + 1)])
def test_too_large_decision_is_refused_and_changes_nothing(command: Increment | Fill) -> None:
    """A decision that does not fit into a batch gets a typed answer; the next command goes on."""
    here = MachineLog()
    large, small = here.submit(command), here.submit(Increment("a"))
    here.turns()
    here.commit()
    assert here.answered == {large: Reason.TOO_LARGE, small: 1}
    assert here.log == [record("a", 1)]


def test_refused_append_answers_its_commands_and_changes_nothing() -> None:
    """The commands of the turn get the log's failure, a read of the turn its answer, and the next command the old number."""
    here = MachineLog()
    here.submit(Increment("a"))
    here.turns()
    here.commit()
    write, read = here.submit(Increment("a")), here.submit(Read("b"))
    assert here.begin() == [record("a", 2)]
    here.machine.refuse_turn(TOO_FEW, here.now_ms)
    answers = here.note()
    assert here.answered[write] is Reason.REFUSED
    assert [answer.unserved.failure for answer in answers if answer.unserved] == [TOO_FEW]
    assert here.answered[read] == 0
    again = here.submit(Increment("a"))
    here.turns()
    here.commit()
    assert here.answered[again] == 2
    assert here.log == [record("a", 1), record("a", 2)]


def test_command_that_the_core_cannot_decide_fails_alone() -> None:
    """An exception of `decide` is reported and answered; the commands beside it are decided."""
    here = MachineLog()
    bad, good = here.submit(Break()), here.submit(Increment("a"))
    here.turns()
    here.commit()
    assert here.answered == {bad: Reason.FAILED, good: 1}
    (fault,) = here.machine.take_faults()
    assert isinstance(fault.error, RuntimeError)
    assert here.machine.state is State.ACTIVE


def test_append_at_another_offset_shows_another_writer() -> None:
    """The state misses a record, so the partition fails; the command may be in the log."""
    here = MachineLog()
    token = here.submit(Increment("a"))
    records = here.begin()
    here.log.append(Record(b"foreign", b"1 0  "))
    here.accept(records)
    here.note()
    assert here.machine.state is State.FAILED
    assert here.answered == {token: Reason.OUTCOME_UNKNOWN}


def test_core_that_cannot_replay_its_own_record_fails_the_partition() -> None:
    """The state is wrong from there on. The command is in the log, so its outcome is unknown, and a new command is refused."""
    here = MachineLog()
    token = here.submit(Increment("a", by="poison"))
    here.turns()
    assert here.machine.state is State.FAILED
    assert here.answered == {token: Reason.OUTCOME_UNKNOWN}
    assert here.answered[here.submit(Read("a"))] is Reason.FAILED


# The end of a leadership.


def test_end_of_the_leadership_answers_everything_by_what_may_be_in_the_log() -> None:
    """Appended: unknown. Read-only and undecided: moved, with the leader; nothing was changed."""
    here = MachineLog()
    appended = here.submit(Increment("a"))
    here.turns()
    read = here.submit(Read("a"))
    here.turns()
    queued = here.submit(Increment("a"))
    here.resign()
    assert here.answered == {appended: Reason.OUTCOME_UNKNOWN, read: Reason.MOVED, queued: Reason.MOVED}
    assert here.machine.state is State.INACTIVE
    assert here.machine.core is None


def test_end_of_the_leadership_during_an_append_leaves_the_outcome_open() -> None:
    """The log may fail half-way through the write, so those commands are unknown, whatever the append returns later."""
    here = MachineLog()
    write, read = here.submit(Increment("a")), here.submit(Read("b"))
    assert here.begin()
    here.resign()
    assert here.answered == {write: Reason.OUTCOME_UNKNOWN, read: Reason.MOVED}
    here.machine.refuse_turn(TOO_FEW, here.now_ms)
    here.machine.accept_turn(0)
    here.note()
    assert here.machine.state is State.INACTIVE


def test_next_leadership_begins_with_a_fresh_core() -> None:
    """Uncommitted state that the log lost is not in the next core."""
    here = MachineLog()
    here.submit(Increment("a"))
    here.turns()
    here.resign()
    here.log.clear()
    here.lead(3)
    token = here.submit(Increment("a"))
    here.turns()
    here.commit()
    assert here.answered[token] == 1


# Loading.


def test_commands_are_told_to_come_back_while_loading() -> None:
    """Until everything is replayed and committed the answer is LOADING; before a leadership there is no coordinator."""
    here = MachineLog([record("a", 7)], lead=False)
    assert here.answered[here.submit(Read("a"))] is Reason.NO_COORDINATOR
    here.machine.lead(leader_epoch=1, log_end_offset=1, high_watermark=0)
    assert here.answered[here.submit(Read("a"))] is Reason.LOADING
    here.load()
    assert here.machine.state is State.LOADING
    assert here.answered[here.submit(Read("a"))] is Reason.LOADING
    here.commit()
    assert here.machine.state is State.ACTIVE
    token = here.submit(Read("a"))
    here.turns()
    here.turns()
    assert here.answered[token] == 7


def test_high_watermark_alone_does_not_make_a_partition_active() -> None:
    """Everything is committed, but not replayed yet."""
    here = MachineLog([record("a", 7)], lead=False)
    here.machine.lead(leader_epoch=1, log_end_offset=1, high_watermark=0)
    here.machine.begin_load(0, is_snapshot=False)
    here.machine.advance(1)
    assert here.machine.state is State.LOADING
    here.machine.note_loaded(1)
    assert here.machine.state is State.ACTIVE


def test_gap_is_taken_only_without_a_snapshot() -> None:
    """Above a snapshot a missing record may be a tombstone; without one it was replaced."""
    here = MachineLog(lead=False)
    here.machine.lead(leader_epoch=1, log_end_offset=9, high_watermark=9)
    gap = LogPiece(4, 9, [4, 8], [record("a", 1), record("b", 1)])
    whole = LogPiece(4, 6, range(4, 6), [record("a", 1), record("b", 1)])
    here.machine.begin_load(5, is_snapshot=True)
    assert here.machine.takes(whole)
    assert not here.machine.takes(gap)
    assert not here.machine.takes(LogPiece(6, 7, [6], [record("a", 1)]))
    here.machine.begin_load(0, is_snapshot=False)
    assert here.machine.takes(gap)


def test_record_that_cannot_be_replayed_fails_the_load() -> None:
    """An unknown record stops the partition instead of being skipped; the wait for the next try doubles up to a bound."""
    here = MachineLog([Record(b"a", b"from the future")])
    waits = [here.machine.retry_ms]
    assert here.machine.state is State.FAILED
    for _ in range(8):
        here.machine.reload(log_end_offset=1, high_watermark=1)
        here.load()
        waits.append(here.machine.retry_ms)
    assert waits[:3] == [LOAD_RETRY_MS, 2 * LOAD_RETRY_MS, 4 * LOAD_RETRY_MS]
    assert waits[-1] == LOAD_RETRY_MAX_MS
    here.log[0] = record("a", 3)
    here.machine.reload(log_end_offset=1, high_watermark=1)
    here.load()
    here.turn()
    token = here.submit(Read("a"))
    here.turns()
    assert here.answered[token] == 3


# Ticks.


def test_first_call_of_an_active_core_is_a_tick() -> None:
    """It tells the core the time, so that leases get their full length after loading."""
    lease = Record(b"a", b"1 500  ")
    here = MachineLog([lease], lead=False)
    here.now_ms = 90_000
    here.lead(1)
    assert here.core.tick_count == 1
    assert here.machine.tick_due_ms(here.now_ms) == 90_500


def test_tick_appends_in_a_turn_of_its_own_and_reports_when_committed() -> None:
    """Commands wait for the turn after it."""
    here = MachineLog()
    here.submit(Increment("a", lease_ms=100))
    here.turns()
    here.commit()
    here.now_ms += 100
    here.submit(Increment("b"))
    here.turn()
    assert here.log[-1] == Record(b"a", None)
    assert here.ticks == []
    here.turns()
    here.commit()
    assert here.ticks == [1]
    assert here.core.registers == {"b": (1, "")}


def test_ticks_have_a_floor_and_a_longer_one_after_a_refusal() -> None:
    """A core whose deadline has passed does not keep the event loop busy."""
    here = MachineLog()
    here.submit(Increment("a", lease_ms=100))
    here.turns()
    here.commit()
    here.now_ms += 100
    assert here.begin() == [Record(b"a", None)]
    here.machine.refuse_turn(TOO_FEW, here.now_ms)
    assert here.machine.tick_due_ms(here.now_ms) == here.now_ms + TICK_RETRY_MS
    here.now_ms += TICK_RETRY_MS
    here.core.deadlines_ms["ghost"] = 0
    here.turn()
    here.core.deadlines_ms["ghost"] = 0
    assert here.machine.tick_due_ms(here.now_ms) == here.now_ms + TICK_FLOOR_MS


# Bounds, and callers who give up.


def test_queue_is_bounded_in_commands_and_bytes() -> None:
    """Beyond the bounds commands are refused at once, dropped ones included."""
    here = MachineLog()
    tokens = [here.submit(Increment(f"r{at}")) for at in range(MAX_QUEUED_COMMANDS)]
    assert here.answered[here.submit(Read("a"))] is Reason.OVERLOADED
    assert here.machine.drop(tokens[0]) is not None
    assert here.answered[here.submit(Read("a"))] is Reason.OVERLOADED
    full = MachineLog()
    full.submit(Read("a"), size_bytes=MAX_QUEUED_BYTES)
    assert full.answered[full.submit(Read("a"), size_bytes=1)] is Reason.OVERLOADED
    full.turns()
    full.submit(Read("a"), size_bytes=MAX_QUEUED_BYTES)
    assert full.machine.queued_count == 1


def test_answers_that_wait_are_bounded() -> None:
    """While the high watermark stands still, the queue fills instead; it empties when it moves."""
    here = MachineLog()
    for at in range(MAX_WAITING_ANSWERS):
        here.submit(Increment(f"r{at}"))
        if here.machine.queued_count == MAX_TURN_COMMANDS:
            here.turns()
    late = here.submit(Increment("late"))
    here.turns()
    assert here.machine.waiting_count == MAX_WAITING_ANSWERS
    assert here.machine.queued_count == 1
    assert here.begin() == []
    here.commit()
    here.turns()
    here.commit()
    assert here.answered[late] == 1


def test_uncommitted_bytes_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Large records count by their bytes."""
    monkeypatch.setattr(machine_module, "MAX_UNCOMMITTED_BYTES", 1_000)
    here = MachineLog()
    for name in ("a", "b"):
        here.submit(Increment(name, padding_bytes=1_000))
        here.turns()
    assert here.machine.waiting_count == 1
    here.commit()
    here.turns()
    here.commit()
    assert sorted(here.core.registers) == ["a", "b"]


def test_command_given_up_in_the_queue_is_never_decided() -> None:
    """TIMED_OUT says that nothing has changed, so the command must not take effect later."""
    here = MachineLog()
    here.submit(Increment("a"))
    dropped = here.submit(Increment("a"))
    unserved = here.machine.drop(dropped)
    assert unserved is not None
    assert unserved.reason is Reason.TIMED_OUT
    here.turns()
    here.commit()
    assert here.core.registers == {"a": (1, "")}
    assert dropped not in here.answered
    assert here.machine.drop(dropped) is None


def test_command_given_up_after_its_append_is_unknown_and_one_that_read_is_not() -> None:
    """What was appended may still be committed."""
    here = MachineLog()
    write = here.submit(Increment("a"))
    here.turns()
    read = here.submit(Read("a"))
    here.turns()
    reasons = [unserved.reason for unserved in map(here.machine.drop, (write, read)) if unserved is not None]
    assert reasons == [Reason.OUTCOME_UNKNOWN, Reason.TIMED_OUT]
    here.commit()
    assert here.answered == {}
    assert here.machine.waiting_count == 0


def test_removed_register_begins_anew() -> None:
    """A tombstone goes through the log like any record."""
    here = MachineLog()
    for command in (Increment("a"), Increment("a"), Remove("a"), Increment("a")):
        here.submit(command)
    here.turns()
    here.commit()
    assert list(here.answered.values()) == [1, 2, 2, 1]
    assert here.log[2] == Record(b"a", None)


def test_moved_answer_names_the_leader() -> None:
    """Callers learn where to go, also those whose outcome is unknown."""
    here = MachineLog()
    here.submit(Increment("a"))
    here.turns()
    here.submit(Read("b"))
    here.machine.resign(MOVED)
    answers = here.note()
    assert [answer.unserved.failure.leader for answer in answers if answer.unserved] == [MOVED.failure.leader] * 2
