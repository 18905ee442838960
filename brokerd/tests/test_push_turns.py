# SPDX-License-Identifier: Apache-2.0
"""Whose turn it is on a stream between brokers: credits, fairness, and the rate of catch-up traffic."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brokerd.limits import CATCH_UP_EVERY_BYTES, CATCH_UP_TURN_BYTES, MAX_CREDIT_BYTES, REPLICA_CHUNK_BYTES
from brokerd.partition.leader_stream_rate import NO_LIMIT, RATE_LOOK_MS, ByteRate, PushRates
from brokerd.partition.leader_stream_traffic import Traffic
from brokerd.partition.leader_stream_turns import Turns

MIB = 1024 * 1024
IN_SYNC, CATCH_UP, MOVING = Traffic


def turns(*, in_sync_bytes: int = 1 << 40, catch_up_bytes: int = 1 << 40, rates: PushRates | None = None) -> Turns:
    """Return turns with credit."""
    made = Turns(rates or PushRates())
    assert made.grant(in_sync_bytes=in_sync_bytes, catch_up_bytes=catch_up_bytes)
    return made


def serve(made: Turns, kinds: dict[int, Traffic], rounds: int, *, size_bytes: int = MIB, now_ms: int = 0) -> list[int]:
    """Let routes that always have more be served one chunk a turn; return whose turn it was."""
    served: list[int] = []
    for _ in range(rounds):
        route = made.take(now_ms)
        assert route is not None
        made.spend(size_bytes, kinds[route])
        made.add(route, kinds[route])
        served.append(route)
    return served


def test_routes_of_a_class_take_turns() -> None:
    """Each route with something to send gets one chunk, then the next one; adding one twice changes nothing."""
    made = turns()
    for route in (3, 1, 2, 3):
        made.add(route, IN_SYNC)
    assert serve(made, {1: IN_SYNC, 2: IN_SYNC, 3: IN_SYNC}, 7) == [3, 1, 2, 3, 1, 2, 3]


def test_nobody_in_no_queue_has_a_turn() -> None:
    """Without routes, and without those that were taken out, there is nothing to send."""
    made = turns()
    assert made.take(0) is None
    made.add(1, IN_SYNC)
    made.add(2, CATCH_UP)
    assert made.is_anybody_waiting
    made.remove(1, IN_SYNC)
    assert made.is_anybody_waiting
    made.remove(2, CATCH_UP)
    assert not made.is_anybody_waiting
    made.remove(2, CATCH_UP)
    assert made.take(0) is None


def test_in_sync_routes_go_first() -> None:
    """A catch-up route waits while an in-sync one has something to send, and is served right after."""
    made = turns()
    made.add(1, CATCH_UP)
    made.add(2, IN_SYNC)
    assert [made.take(0), made.take(0), made.take(0)] == [2, 1, None]


def test_catch_up_routes_get_a_turn_after_every_16_mib() -> None:
    """Under in-sync load that never ends, catch-up routes get one MiB after each 16, and never stop."""
    made = turns()
    made.add(1, IN_SYNC)
    made.add(2, CATCH_UP)
    served = serve(made, {1: IN_SYNC, 2: CATCH_UP}, 3 * 17)
    assert served == ([1] * 16 + [2]) * 3
    assert CATCH_UP_EVERY_BYTES == 16 * CATCH_UP_TURN_BYTES == 16 * MIB


def test_a_turn_of_small_chunks_is_as_many_bytes() -> None:
    """What catch-up routes earned is counted in bytes, not in messages."""
    made = turns()
    made.add(1, IN_SYNC)
    made.add(2, CATCH_UP)
    made.add(3, CATCH_UP)
    kinds = {1: IN_SYNC, 2: CATCH_UP, 3: CATCH_UP}
    assert serve(made, kinds, 16) == [1] * 16
    assert serve(made, kinds, 5, size_bytes=MIB // 4) == [2, 3, 2, 3, 1]


def test_an_earned_turn_waits_for_nobody() -> None:
    """Without a catch-up route that may send, in-sync routes go on; turns do not add up."""
    made = turns(catch_up_bytes=0)
    made.add(1, IN_SYNC)
    made.add(2, CATCH_UP)
    kinds = {1: IN_SYNC, 2: CATCH_UP}
    assert serve(made, kinds, 40) == [1] * 40
    assert made.grant(in_sync_bytes=0, catch_up_bytes=10 * MIB)
    assert serve(made, kinds, 4) == [2, 1, 1, 1]


def test_in_sync_routes_keep_their_order_while_a_turn_is_owed() -> None:
    """With nobody to take what was earned, each in-sync route still gets one chunk a turn."""
    made = turns()
    for route in (1, 2, 3):
        made.add(route, IN_SYNC)
    assert serve(made, dict.fromkeys((1, 2, 3), IN_SYNC), 24) == [1, 2, 3] * 8


def test_credit_of_one_class_is_not_spent_by_the_other() -> None:
    """Without in-sync credit catch-up routes are served; without any, nobody is."""
    made = turns(in_sync_bytes=1, catch_up_bytes=2)
    made.add(1, IN_SYNC)
    made.add(2, CATCH_UP)
    assert serve(made, {1: IN_SYNC, 2: CATCH_UP}, 2) == [1, 2]
    assert made.take(0) is None
    assert made.grant(in_sync_bytes=MIB, catch_up_bytes=0)
    assert made.take(0) == 1


def test_a_message_may_overdraw_once() -> None:
    """The last byte of credit sends a whole message; nothing more is sent until the debt is paid."""
    made = turns(in_sync_bytes=1, catch_up_bytes=0)
    made.add(1, IN_SYNC)
    assert serve(made, {1: IN_SYNC}, 1) == [1]
    assert made.credit_bytes(is_in_sync=True) == 1 - MIB
    assert made.grant(in_sync_bytes=MIB - 1, catch_up_bytes=0)
    assert made.take(0) is None
    assert made.grant(in_sync_bytes=1, catch_up_bytes=0)
    assert made.take(0) == 1


@pytest.mark.parametrize(("in_sync", "catch_up"), [(-1, 5), (5, -1), (MAX_CREDIT_BYTES, 0), (0, MAX_CREDIT_BYTES)])
def test_bad_credit_changes_nothing(in_sync: int, catch_up: int) -> None:
    """Credit below zero or over the limit is refused as a whole."""
    made = turns(in_sync_bytes=7, catch_up_bytes=8)
    assert not made.grant(in_sync_bytes=in_sync, catch_up_bytes=catch_up)
    assert (made.credit_bytes(is_in_sync=True), made.credit_bytes(is_in_sync=False)) == (7, 8)


def test_a_route_that_changes_its_class_waits_in_the_other_queue() -> None:
    """It is served as its new class says, and only once; one that does not wait stays out."""
    made = turns()
    made.add(1, CATCH_UP)
    made.add(2, CATCH_UP)
    made.move(2, IN_SYNC)
    made.move(3, IN_SYNC)
    assert [made.take(0) for _ in range(3)] == [2, 1, None]
    made.add(1, IN_SYNC)
    made.move(1, CATCH_UP)
    made.remove(1, CATCH_UP)
    assert made.take(0) is None


def test_the_rate_holds_catch_up_routes_back_and_nobody_else() -> None:
    """A route held by the rate is served when the bucket has filled; the deadline says when."""
    made = turns(rates=PushRates(catch_up_limit=1_000))
    made.add(1, CATCH_UP)
    assert made.take(0) == 1
    made.spend(1_250, CATCH_UP)
    assert made.deadline_ms() is None
    made.add(1, CATCH_UP)
    assert made.take(0) is None
    assert made.deadline_ms() == 251
    made.add(2, IN_SYNC)
    assert made.take(0) == 2
    made.spend(MIB, IN_SYNC)
    made.look(250)
    assert made.deadline_ms() == 251
    made.look(251)
    assert made.deadline_ms() is None
    assert made.take(251) == 1


def test_a_route_without_credit_waits_for_no_time() -> None:
    """Where credit is missing, the rate sets no deadline; nor where nobody waits."""
    made = turns(catch_up_bytes=10, rates=PushRates(catch_up_limit=10))
    made.add(1, CATCH_UP)
    assert made.take(0) == 1
    made.spend(20, CATCH_UP)
    made.add(1, CATCH_UP)
    assert made.take(0) is None
    assert made.deadline_ms() is None
    assert made.grant(in_sync_bytes=0, catch_up_bytes=100)
    assert made.take(0) is None
    assert made.deadline_ms() == 1_000
    made.remove(1, CATCH_UP)
    assert made.deadline_ms() is None


def test_moves_and_catch_up_alternate() -> None:
    """Whoever has more routes, each of the two kinds gets every second turn, and the whole while the other has nothing to send."""
    made = turns()
    kinds = {1: CATCH_UP, 2: MOVING, 3: MOVING}
    for route, traffic in kinds.items():
        made.add(route, traffic)
    assert serve(made, kinds, 6) == [1, 2, 1, 3, 1, 2]
    made.remove(1, CATCH_UP)
    assert serve(made, kinds, 3) == [3, 2, 3]


def test_the_rate_of_moves_holds_moves_back_and_nobody_else() -> None:
    """While moves wait for their bucket, catch-up routes have every turn; a move counts for both buckets."""
    made = turns(rates=PushRates(catch_up_limit=10_000, move_limit=1_000))
    kinds = {1: MOVING, 2: CATCH_UP, 3: IN_SYNC}
    made.add(1, MOVING)
    assert serve(made, kinds, 1, size_bytes=1_500) == [1]
    assert made.take(0) is None
    assert made.deadline_ms() == 501
    made.add(2, CATCH_UP)
    assert serve(made, kinds, 2, size_bytes=1_000) == [2, 2]
    assert made.take(501) == 1
    made.spend(15_000, MOVING)
    made.add(1, MOVING)
    assert made.take(501) is None, "the bucket of catch-up, full at 501, holds both now"
    assert made.deadline_ms() == 501 + 501
    made.add(3, IN_SYNC)
    assert made.take(501) == 3
    assert serve(made, kinds, 1, size_bytes=1, now_ms=1_002) == [2]
    assert made.take(1_002) == 2, "the bucket of moves is in debt"


def test_a_move_that_catches_up_is_held_back_no_more() -> None:
    """Once its follower is in sync, no bucket counts."""
    made = turns(rates=PushRates(move_limit=1))
    made.add(1, MOVING)
    assert made.take(0) == 1
    made.spend(MIB, MOVING)
    made.add(1, MOVING)
    assert made.take(0) is None
    assert made.deadline_ms() == RATE_LOOK_MS
    made.move(1, IN_SYNC)
    assert made.deadline_ms() is None
    assert serve(made, {1: IN_SYNC}, 2) == [1, 1]


def test_a_message_is_no_larger_than_one_second_allows() -> None:
    """With a low limit small messages go out again and again, not a large one and then nothing for long."""
    made = turns(rates=PushRates(catch_up_limit=MIB // 2, move_limit=MIB // 4))
    assert [made.message_bytes(traffic) for traffic in Traffic] == [REPLICA_CHUNK_BYTES, MIB // 2, MIB // 4]
    made = turns(rates=PushRates(catch_up_limit=2 * MIB))
    assert [made.message_bytes(traffic) for traffic in Traffic] == [REPLICA_CHUNK_BYTES] * 3


def test_only_a_limit_that_differs_is_set() -> None:
    """Told the same limits, the buckets stay as they are; told others, only what changed begins anew."""
    rates = PushRates(catch_up_limit=100)
    rates.spend(300, CATCH_UP)
    assert not rates.set_limits(catch_up_limit=100, move_limit=NO_LIMIT, now_ms=0)
    assert rates.held_by(CATCH_UP, 0) is rates.held_by(MOVING, 0) is not None
    assert rates.set_limits(catch_up_limit=100, move_limit=50, now_ms=0)
    assert rates.held_by(CATCH_UP, 0) is not None
    assert rates.set_limits(catch_up_limit=NO_LIMIT, move_limit=50, now_ms=0)
    assert rates.held_by(CATCH_UP, 0) is None
    rates.spend(50, MOVING)
    assert rates.held_by(MOVING, 0) is not None
    assert rates.held_by(IN_SYNC, 0) is rates.held_by(CATCH_UP, 0) is None


def test_the_bucket_holds_one_second() -> None:
    """However long nothing was sent, one second's worth may go at once, plus what one message takes more."""
    rate = ByteRate(100)
    assert rate.is_open(10_000_000)
    rate.spend(99)
    assert rate.is_open(10_000_000)
    rate.spend(51)
    assert not rate.is_open(10_000_000)
    assert rate.due_ms() == 10_000_501
    assert not rate.is_open(10_000_500)
    assert rate.is_open(10_000_501)


def test_a_deep_debt_is_looked_at_every_second() -> None:
    """A stream that waits asks again each second, so that a changed limit is noticed."""
    rate = ByteRate(1)
    rate.spend(MIB)
    assert not rate.is_open(500)
    assert rate.due_ms() == 500 + RATE_LOOK_MS
    rate.set_limit(NO_LIMIT, now_ms=600)
    assert rate.due_ms() == 600
    assert rate.is_open(600)
    rate.spend(MIB)
    assert rate.is_open(600)
    rate.set_limit(50, now_ms=700)
    assert rate.is_open(700), "a bucket that had no limit begins full"


def test_a_changed_limit_keeps_the_debt_and_bounds_the_bucket() -> None:
    """A lower limit leaves no more than its own second in the bucket; a debt is paid at the new rate."""
    rate = ByteRate(1_000)
    rate.set_limit(100, now_ms=0)
    rate.spend(100)
    assert not rate.is_open(0)
    rate.spend(100)
    rate.set_limit(1_000, now_ms=0)
    assert not rate.is_open(100)
    assert rate.is_open(101)


def test_the_clock_of_the_bucket_never_goes_back() -> None:
    """An earlier time fills nothing."""
    rate = ByteRate(10)
    rate.spend(20)
    assert not rate.is_open(500)
    assert not rate.is_open(100)


@settings(max_examples=200, deadline=None)
@given(
    st.integers(1, 10**7),
    st.lists(st.tuples(st.integers(0, 400), st.integers(1, REPLICA_CHUNK_BYTES)), min_size=1, max_size=60),
)
def test_no_more_than_the_rate_is_sent(limit: int, sends: list[tuple[int, int]]) -> None:
    """Over any time, what was sent is at most one second's worth and the rate times the time, plus one message."""
    rate = ByteRate(limit)
    now_ms = sent_bytes = 0
    for pause_ms, size_bytes in sends:
        now_ms += pause_ms
        if rate.is_open(now_ms):
            assert sent_bytes <= limit + limit * now_ms / 1000
            rate.spend(size_bytes)
            sent_bytes += size_bytes
        else:
            assert rate.due_ms() > now_ms


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("admtg"), st.integers(1, 4), st.sampled_from(Traffic)), max_size=60))
def test_a_route_waits_once_in_the_queue_of_its_class(steps: list[tuple[str, int, Traffic]]) -> None:
    """Whatever comes, each route that waits is given exactly once."""
    made = turns()
    waiting: dict[int, Traffic] = {}
    kinds = dict.fromkeys(range(1, 5), IN_SYNC)
    for kind, route, traffic in steps:
        match kind:
            case "a":
                made.add(route, kinds[route])
                waiting[route] = kinds[route]
            case "d":
                made.remove(route, kinds[route])
                waiting.pop(route, None)
            case "m" if kinds[route] is not traffic:
                kinds[route] = traffic
                made.move(route, traffic)
                if route in waiting:
                    waiting[route] = traffic
            case "t":
                taken = made.take(0)
                assert (taken is None) == (not waiting)
                if taken is not None:
                    assert waiting.pop(taken) is IN_SYNC or IN_SYNC not in waiting.values()
            case _:
                pass
    rest = [made.take(0) for _ in waiting]
    assert sorted(route for route in rest if route is not None) == sorted(waiting)
    assert made.take(0) is None
