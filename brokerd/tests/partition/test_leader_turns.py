# SPDX-License-Identifier: Apache-2.0
"""Turns on a stream between brokers: credits, fairness, and the rates."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brokerd.partition.leader_stream import Turns
from brokerd.partition.replication_rates import RATE_LOOK_MS, ReplicationRates, Traffic
from brokerd.partition.stream_messages import Credit
from brokerd.tests.partition.leader_sessions import LIMITS

MIB = 1024 * 1024
IN_SYNC, CATCH_UP, MOVING = Traffic


def turns(
    *, in_sync_bytes: int = 1 << 40, catch_up_bytes: int = 1 << 40, rates: ReplicationRates | None = None
) -> Turns:
    """Return turns with credit."""
    made = Turns(LIMITS, rates or ReplicationRates())
    assert made.grant(Credit(in_sync_bytes, catch_up_bytes))
    return made


def serve(made: Turns, kinds: dict[int, Traffic], rounds: int, *, size_bytes: int = MIB, now_ms: int = 0) -> list[int]:
    """Serve routes that always have more, one chunk per turn. Return the order of the routes."""
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
    assert made.is_waiting
    made.remove(1, IN_SYNC)
    assert made.is_waiting
    made.remove(2, CATCH_UP)
    assert not made.is_waiting
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
    assert LIMITS.catch_up_every_bytes == 16 * LIMITS.catch_up_turn_bytes == 16 * MIB


def test_a_turn_of_small_chunks_is_as_many_bytes() -> None:
    """The share of catch-up routes is counted in bytes, not in messages."""
    made = turns()
    made.add(1, IN_SYNC)
    made.add(2, CATCH_UP)
    made.add(3, CATCH_UP)
    kinds = {1: IN_SYNC, 2: CATCH_UP, 3: CATCH_UP}
    assert serve(made, kinds, 16) == [1] * 16
    assert serve(made, kinds, 5, size_bytes=MIB // 4) == [2, 3, 2, 3, 1]


def test_an_earned_turn_waits_for_nobody() -> None:
    """Without a catch-up route that may send, in-sync routes continue, and owed turns do not add up."""
    made = turns(catch_up_bytes=0)
    made.add(1, IN_SYNC)
    made.add(2, CATCH_UP)
    kinds = {1: IN_SYNC, 2: CATCH_UP}
    assert serve(made, kinds, 40) == [1] * 40
    assert made.grant(Credit(0, 10 * MIB))
    assert serve(made, kinds, 4) == [2, 1, 1, 1]


def test_in_sync_routes_keep_their_order_while_a_turn_is_owed() -> None:
    """If no catch-up route can use an owed turn, each in-sync route still gets one chunk per turn."""
    made = turns()
    for route in (1, 2, 3):
        made.add(route, IN_SYNC)
    assert serve(made, dict.fromkeys((1, 2, 3), IN_SYNC), 24) == [1, 2, 3] * 8


def test_credit_of_one_class_is_not_spent_by_the_other() -> None:
    """Without in-sync credit catch-up routes are served. Without any credit no route is."""
    made = turns(in_sync_bytes=1, catch_up_bytes=2)
    made.add(1, IN_SYNC)
    made.add(2, CATCH_UP)
    assert serve(made, {1: IN_SYNC, 2: CATCH_UP}, 2) == [1, 2]
    assert made.take(0) is None
    assert made.grant(Credit(MIB, 0))
    assert made.take(0) == 1


def test_a_message_may_overdraw_once() -> None:
    """The last byte of credit sends a whole message. Nothing more is sent until the debt is paid."""
    made = turns(in_sync_bytes=1, catch_up_bytes=0)
    made.add(1, IN_SYNC)
    assert serve(made, {1: IN_SYNC}, 1) == [1]
    assert made.credit_bytes(is_in_sync=True) == 1 - MIB
    assert made.grant(Credit(MIB - 1, 0))
    assert made.take(0) is None
    assert made.grant(Credit(1, 0))
    assert made.take(0) == 1


@pytest.mark.parametrize(
    ("in_sync", "catch_up"), [(-1, 5), (5, -1), (LIMITS.max_credit_bytes, 0), (0, LIMITS.max_credit_bytes)]
)
def test_bad_credit_changes_nothing(in_sync: int, catch_up: int) -> None:
    """Credit below zero or over the limit is refused as a whole."""
    made = turns(in_sync_bytes=7, catch_up_bytes=8)
    assert not made.grant(Credit(in_sync, catch_up))
    assert (made.credit_bytes(is_in_sync=True), made.credit_bytes(is_in_sync=False)) == (7, 8)


def test_a_route_that_changes_its_class_waits_in_the_other_queue() -> None:
    """It is served in its new class, and only once. A route that does not wait stays out."""
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
    made = turns(rates=ReplicationRates(catch_up_limit=1_000))
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
    """If credit is missing, the rate sets no deadline; nor if no route waits."""
    made = turns(catch_up_bytes=10, rates=ReplicationRates(catch_up_limit=10))
    made.add(1, CATCH_UP)
    assert made.take(0) == 1
    made.spend(20, CATCH_UP)
    made.add(1, CATCH_UP)
    assert made.take(0) is None
    assert made.deadline_ms() is None
    assert made.grant(Credit(0, 100))
    assert made.take(0) is None
    assert made.deadline_ms() == 1_000
    made.remove(1, CATCH_UP)
    assert made.deadline_ms() is None


def test_moves_and_catch_up_alternate() -> None:
    """However many routes each kind has, each gets every second turn, and all turns while the other kind has nothing to send."""
    made = turns()
    kinds = {1: CATCH_UP, 2: MOVING, 3: MOVING}
    for route, traffic in kinds.items():
        made.add(route, traffic)
    assert serve(made, kinds, 6) == [1, 2, 1, 3, 1, 2]
    made.remove(1, CATCH_UP)
    assert serve(made, kinds, 3) == [3, 2, 3]


def test_the_rate_of_moves_holds_moves_back_and_nobody_else() -> None:
    """While moves wait for their bucket, catch-up routes have every turn; a move counts for both buckets."""
    made = turns(rates=ReplicationRates(catch_up_limit=10_000, move_limit=1_000))
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
    made = turns(rates=ReplicationRates(move_limit=1))
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
    made = turns(rates=ReplicationRates(catch_up_limit=MIB // 2, move_limit=MIB // 4))
    assert [made.message_bytes(traffic) for traffic in Traffic] == [LIMITS.chunk_bytes, MIB // 2, MIB // 4]
    made = turns(rates=ReplicationRates(catch_up_limit=2 * MIB))
    assert [made.message_bytes(traffic) for traffic in Traffic] == [LIMITS.chunk_bytes] * 3


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
