# SPDX-License-Identifier: Apache-2.0
"""The membership core, one rule after another, in virtual time."""

from __future__ import annotations

import random

import pytest
from lograft._groups.membership import (
    ANSWER_TIMEOUT_MS,
    JOIN,
    LEAVE,
    RETRY_FLOOR_MS,
    WILL_BE_BACK,
    Membership,
    Phase,
    Refused,
    Request,
    State,
    Subscription,
)
from lograft._groups.steps import Ended, Left, Lost, Revoked, Unassigned
from lograft.wire.codes import ErrorCode

TOPIC = b"t" * 16
A, B, C = (TOPIC, 0), (TOPIC, 1), (TOPIC, 2)
LIMIT_MS = 10_000


def new_member(*, is_static: bool = False) -> Membership:
    """Return a member that wants one topic."""
    return Membership(Subscription(("t",)), rng=random.Random(1), processing_limit_ms=LIMIT_MS, is_static=is_static)


def told(epoch: int = 1, number: int = 0, *partitions: tuple[bytes, int]) -> State:
    """Return a state, with an assignment if it has a number."""
    return State(
        member_epoch=epoch,
        assignment_number=number,
        assignment=frozenset(partitions) if number else None,
        heartbeat_interval_ms=1_000,
        session_timeout_ms=8_000,
    )


def ask(member: Membership, now_ms: int, idle_ms: int = 0) -> Request:
    """Return the request that the member sends now."""
    request = member.request(now_ms, idle_ms)
    assert request is not None, "nothing is sent"
    return request


def answer(member: Membership, request: Request, state: State | Refused, now_ms: int) -> None:
    """Answer a request."""
    member.hear(request.beat_number, state, now_ms)


def take_all(member: Membership) -> list[tuple[bytes, int]]:
    """Take what is assigned."""
    step = member.next_step()
    assert isinstance(step, Unassigned), step
    return [each for each in step.partitions if member.take(each)]


def joined(*partitions: tuple[bytes, int], is_static: bool = False) -> Membership:
    """Return a member that holds partitions since time 0, and owes no beat."""
    member = new_member(is_static=is_static)
    answer(member, ask(member, 0), told(1, 1, *partitions), 0)
    assert not partitions or take_all(member) == list(partitions)
    answer(member, ask(member, 0), told(1), 0)
    assert member.request(0, 0) is None
    return member


def test_join_has_the_whole_subscription_and_repeats_until_answered() -> None:
    """A join without an answer is sent again under the next number, and no beat comes before the answer."""
    member = new_member()
    first = ask(member, 0)
    assert (first.member_epoch, first.beat_number, first.subscription) == (JOIN, 1, Subscription(("t",)))
    assert first.owned is None
    assert member.request(ANSWER_TIMEOUT_MS - 1, 0) is None
    second = ask(member, ANSWER_TIMEOUT_MS)
    assert (second.member_epoch, second.beat_number, second.subscription) == (JOIN, 2, Subscription(("t",)))
    answer(member, first, told(), ANSWER_TIMEOUT_MS)
    assert member.phase is Phase.JOINING, "the answer to an older request counted"
    answer(member, second, told(), ANSWER_TIMEOUT_MS)
    assert member.phase is Phase.MEMBER


def test_beat_follows_each_assignment_at_once_and_each_interval() -> None:
    """An assignment is echoed at once; without news the member beats once in each interval."""
    member = new_member()
    answer(member, ask(member, 0), told(3, 7, A), 10)
    beat = ask(member, 10)
    assert (beat.member_epoch, beat.assignment_number, beat.owned) == (3, 7, (A,))
    answer(member, beat, told(3), 20)
    assert member.request(20, 0) is None
    assert member.deadline_ms(0, 20) == 1_010
    assert member.request(1_009, 0) is None
    assert ask(member, 1_010).owned == (A,)


def test_assignment_with_an_old_number_is_ignored() -> None:
    """A late copy of an earlier assignment takes nothing away, also when it was pushed."""
    member = joined(A, B)
    member.hear(0, told(2, 5, A, B, C), 100)
    member.hear(0, told(1, 4, A), 110)
    assert member.owned == (A, B, C)
    assert member.epoch == 2


def test_revoked_partition_is_owned_until_it_was_given_up() -> None:
    """Every beat names it until the application has given it up, also beats in between; then the next beat confirms."""
    member = joined(A, B)
    member.hear(0, told(1, 2, A), 100)
    step = member.next_step()
    assert step == Revoked((B,))
    assert member.next_step() is None, "told twice"
    beat = ask(member, 100)
    assert (beat.assignment_number, beat.owned) == (2, (A, B))
    answer(member, beat, told(1), 110)
    assert isinstance(step, Revoked)
    member.gave_up(step.partitions)
    assert member.held == (A,)
    assert ask(member, 110).owned == (A,)


def test_partitions_that_stay_are_not_told_again() -> None:
    """A new assignment that contains a held partition leaves it alone."""
    member = joined(A, B)
    member.hear(0, told(2, 2, A, B, C), 100)
    assert member.next_step() == Unassigned((C,))


def test_partition_that_comes_and_goes_unseen_is_never_told() -> None:
    """While the application is busy, a partition may come and go. Nobody hears of it, and it is not confirmed late."""
    member = joined(A)
    member.hear(0, told(2, 2, A, B), 100)
    member.hear(0, told(3, 3, A), 200)
    assert member.next_step() is None
    assert ask(member, 200).owned == (A,)


def test_revocation_comes_before_assignment() -> None:
    """Nothing new is handed out while something is being given up."""
    member = joined(A)
    member.hear(0, told(2, 2, B), 100)
    step = member.next_step()
    assert step == Revoked((A,))
    assert member.next_step() is None
    member.gave_up((A,))
    assert member.next_step() == Unassigned((B,))


def test_partition_that_returns_during_its_revocation_is_new() -> None:
    """It is handed out again after the callback, and a look-up of offsets from before does not count."""
    member = joined(A, B)
    member.hear(0, told(1, 2, A), 100)
    assert member.next_step() == Revoked((B,))
    member.hear(0, told(2, 3, A, B), 110)
    mark = member.mark()
    member.gave_up((B,))
    assert member.next_step() == Unassigned((B,))
    assert not member.is_fresh(B, mark)
    assert member.is_fresh(B, member.mark())


def test_answer_about_offsets_from_before_the_assignment_is_not_fresh() -> None:
    """The former owner may have committed more since."""
    member = joined(A)
    mark = member.mark()
    member.hear(0, told(2, 2, A, B), 100)
    assert not member.is_fresh(B, mark)
    assert member.is_fresh(B, member.mark())
    assert not member.is_fresh(A, member.mark()), "it is held already"


def test_broken_stream_is_no_loss() -> None:
    """The member keeps what it has, and beats with its epoch over the next stream at once."""
    member = joined(A)
    ask(member, 1_000)
    member.disconnected()
    beat = ask(member, 1_100)
    assert (beat.member_epoch, beat.owned) == (1, (A,))
    assert member.next_step() is None


def test_session_ends_by_the_sending_of_the_last_answered_beat() -> None:
    """The member must stop before the coordinator gives its partitions away, so it counts from the sending."""
    member = joined(A)
    beat = ask(member, 1_000)
    answer(member, beat, told(1), 3_000)
    member.tick(8_199, 0)
    assert member.phase is Phase.MEMBER
    member.tick(8_200, 0)
    assert member.phase is Phase.JOINING
    step = member.next_step()
    assert isinstance(step, Lost)
    assert step.partitions == (A,)
    assert member.held == ()


def test_coordinator_with_a_fast_clock_never_ends_a_session_first() -> None:
    """The world simulator found two owners where the coordinator's clock ran faster by a tenth (lease_storm, seed 0)."""
    member = joined(A)
    sent_ms = 1_000
    answer(member, ask(member, sent_ms), told(1), sent_ms)
    fast_clock = 1.1
    coordinator_end_ms = sent_ms + 8_000 / fast_clock
    assert member.lease_end_ms <= coordinator_end_ms
    deadline_ms = member.deadline_ms(0, sent_ms + 6_000)
    assert deadline_ms is not None
    assert deadline_ms <= member.lease_end_ms


@pytest.mark.parametrize(
    "code", [ErrorCode.UNKNOWN_MEMBER, ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.PROCESSING_LIMIT_EXCEEDED]
)
def test_fenced_member_loses_everything_and_joins_after_the_floor(code: ErrorCode) -> None:
    """The partitions are lost, none is named again, and the join has epoch 0 and the whole subscription."""
    member = joined(A, B)
    answer(member, ask(member, 1_000), Refused(code=code, message="gone"), 1_010)
    assert member.next_step() == Lost((A, B), code, "gone")
    assert member.next_step() is None
    assert member.request(1_010 + RETRY_FLOOR_MS - 1, 0) is None
    join = ask(member, 1_010 + 4 * RETRY_FLOOR_MS)
    assert (join.member_epoch, join.subscription) == (JOIN, Subscription(("t",)))
    assert join.lost_epoch == 1, "the coordinator may not know of the loss"
    later_ms = 1_010 + 4 * RETRY_FLOOR_MS + ANSWER_TIMEOUT_MS
    join = ask(member, later_ms)
    assert (join.member_epoch, join.lost_epoch) == (JOIN, 1), "the first join got no answer"
    answer(member, join, told(9, 1, A), later_ms)
    assert member.next_step() == Unassigned((A,)), "an assignment after a join counts from number 1 again"


def test_pushed_removal_counts() -> None:
    """The coordinator tells a removed member at once; it need not wait for its next beat."""
    member = joined(A)
    member.hear(0, Refused(code=ErrorCode.UNKNOWN_MEMBER, message="gone"), 50)
    assert isinstance(member.next_step(), Lost)


def test_refusals_for_ever_are_spaced() -> None:
    """However often the coordinator refuses, two attempts are at least the floor apart, and pauses grow."""
    member = new_member()
    now_ms, last_ms, pauses = 0, -RETRY_FLOOR_MS, list[int]()
    while len(pauses) < 12:
        request = member.request(now_ms, 0)
        if request is not None:
            pauses.append(now_ms - last_ms)
            last_ms = now_ms
            answer(member, request, Refused(code=ErrorCode.COORDINATOR_LOADING, message=""), now_ms)
        now_ms += 1
    assert min(pauses) >= RETRY_FLOOR_MS
    assert max(pauses) > 1_000


def test_advice_of_the_coordinator_is_followed() -> None:
    """INSTANCE_IN_USE says how long the session of the other process may still last."""
    member = new_member(is_static=True)
    refused = Refused(code=ErrorCode.INSTANCE_IN_USE, message="", retry_after_ms=30_000)
    answer(member, ask(member, 0), refused, 0)
    assert member.request(29_999, 0) is None
    assert member.request(30_000, 0) is not None


@pytest.mark.parametrize("code", [ErrorCode.INSTANCE_FENCED, ErrorCode.INVALID_PATTERN, ErrorCode.UNKNOWN_ASSIGNOR])
def test_final_refusal_ends_the_member(code: ErrorCode) -> None:
    """It loses what it has, tells the error once, and sends nothing more."""
    member = joined(A)
    answer(member, ask(member, 1_000), Refused(code=code, message="no"), 1_000)
    assert isinstance(member.next_step(), Lost)
    assert member.next_step() == Ended(code, "no")
    assert member.next_step() is None
    assert member.request(100_000, 0) is None
    assert member.deadline_ms(0, 100_000) is None


def test_superseded_copy_loses_nothing() -> None:
    """A beat that came too late says nothing about the member."""
    member = joined(A)
    answer(member, ask(member, 1_000), Refused(code=ErrorCode.REQUEST_SUPERSEDED, message=""), 1_000)
    assert member.phase is Phase.MEMBER
    assert member.held == (A,)


def test_subscription_is_repeated_until_a_beat_that_had_it_is_answered() -> None:
    """A push in between, or the answer to an earlier beat, proves nothing."""
    member = joined(A)
    old = ask(member, 1_000)
    wanted = Subscription(("t", "u"))
    member.subscribe(wanted)
    answer(member, old, told(1), 1_010)
    first = ask(member, 1_010)
    assert first.subscription == wanted
    member.hear(0, told(2, 2, A, B), 1_020)
    member.disconnected()
    second = ask(member, 1_200)
    assert second.subscription == wanted
    answer(member, second, told(2), 1_210)
    assert ask(member, 3_000).subscription is None


def test_application_over_its_limit_loses_and_says_so_until_refused() -> None:
    """Also after the application has come back: its partitions are lost already. It joins only when it is asked for records."""
    member = joined(A)
    member.tick(5_000, LIMIT_MS)
    assert member.held == (A,)
    member.tick(5_001, LIMIT_MS + 1)
    step = member.next_step()
    assert isinstance(step, Lost)
    assert step.code is ErrorCode.PROCESSING_LIMIT_EXCEEDED
    beat = ask(member, 5_001, LIMIT_MS + 1)
    assert beat.idle_ms > LIMIT_MS
    assert beat.owned == ()
    answer(member, beat, told(1), 5_010)
    member.hear(0, told(2, 9, A), 5_020)
    assert member.wanted == (), "what comes meanwhile is not used"
    again = ask(member, 6_100, 0)
    assert again.idle_ms > LIMIT_MS, "it has forgotten that it was over its limit"
    answer(member, again, Refused(code=ErrorCode.PROCESSING_LIMIT_EXCEEDED, message=""), 6_110)
    assert member.request(8_000, LIMIT_MS + 1) is None, "it joins without an application"
    assert member.deadline_ms(LIMIT_MS + 1, 8_000) is None
    assert ask(member, 8_000, 0).member_epoch == JOIN


def test_leave_follows_the_revocation() -> None:
    """The member gives everything up first; until then it beats as a member."""
    member = joined(A)
    member.leave()
    step = member.next_step()
    assert step == Revoked((A,))
    assert ask(member, 1_000).member_epoch == 1
    member.gave_up((A,))
    leave = ask(member, 1_010)
    assert leave.member_epoch == LEAVE
    answer(member, leave, told(0), 1_020)
    assert member.next_step() == Left()
    assert member.phase is Phase.ENDED


@pytest.mark.parametrize(("is_static", "epoch"), [(True, WILL_BE_BACK), (False, LEAVE)])
def test_only_a_static_member_will_be_back(is_static: bool, epoch: int) -> None:
    """A dynamic member leaves for good, whatever its consumer asks for."""
    member = joined(is_static=is_static)
    member.leave(will_be_back=True)
    assert ask(member, 10).member_epoch == epoch


def test_member_that_never_asked_leaves_without_a_word() -> None:
    """The coordinator has never heard of it."""
    member = new_member()
    member.leave()
    assert member.request(0, 0) is None
    assert member.phase is Phase.ENDED


def test_leave_of_a_removed_member_is_done() -> None:
    """The coordinator does not know it any more, which is what it wants."""
    member = joined()
    member.leave()
    answer(member, ask(member, 10), Refused(code=ErrorCode.UNKNOWN_MEMBER, message=""), 10)
    assert member.phase is Phase.ENDED
    assert member.error is None


def test_member_that_does_not_give_up_within_its_limit_stops_by_itself() -> None:
    """It may be removed without hearing of it, so it loses everything, also what it keeps, and says why (world, seed 75)."""
    member = joined(A, B)
    answer(member, ask(member, 1_000), told(1, 2, A), 1_010)
    assert member.next_step() == Revoked((B,))
    beat = ask(member, 1_020)
    answer(member, beat, told(1), 1_030)
    at_ms = 1_030
    while at_ms < 1_010 + LIMIT_MS - 1_000:
        at_ms += 1_000
        answer(member, ask(member, at_ms), told(1), at_ms)
        assert member.held == (A, B)
    deadline_ms = member.deadline_ms(0, at_ms)
    assert deadline_ms is not None
    assert deadline_ms <= 1_010 + LIMIT_MS + 1
    member.tick(1_010 + LIMIT_MS, 0)
    assert member.held == (A, B)
    member.tick(1_011 + LIMIT_MS, 0)
    assert member.held == ()
    step = member.next_step()
    assert isinstance(step, Lost)
    assert (step.partitions, step.code) == ((A, B), ErrorCode.PROCESSING_LIMIT_EXCEEDED)
    assert ask(member, 1_012 + LIMIT_MS).idle_ms > LIMIT_MS


def test_confirmed_revocation_stops_the_clock_of_the_member() -> None:
    """The next revocation has the whole limit again."""
    member = joined(A, B)
    answer(member, ask(member, 1_000), told(1, 2, A), 1_010)
    step = member.next_step()
    assert isinstance(step, Revoked)
    member.gave_up(step.partitions)
    answer(member, ask(member, 1_020), told(2), 1_030)
    answer(member, ask(member, 7_000), told(2), 7_000)
    member.tick(1_011 + LIMIT_MS, 0)
    assert member.held == (A,)
