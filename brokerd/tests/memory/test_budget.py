# SPDX-License-Identifier: Apache-2.0
"""The core of a memory budget: queue, sizes, returned grants; and the gate that waits for it."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lograft.wire.codes import ErrorCode

from brokerd.failure import RefusedError
from brokerd.memory.budget import Grant, MemoryBudget, MemoryGate

LONG_MS = 60_000


def test_who_came_first_is_granted_first() -> None:
    """A small request does not overtake a large one that waits, although it would fit."""
    budget = MemoryBudget(10)
    first, large, small = budget.ask(6), budget.ask(5), budget.ask(1)
    assert [each.is_held for each in (first, large, small)] == [True, False, False]
    assert budget.give_back(first) == [large, small]
    assert (budget.held_bytes, budget.holder_count, budget.waiter_count) == (6, 2, 0)


def test_a_request_above_the_limit_is_granted_alone() -> None:
    """It waits until nothing else is held, and nothing is granted beside it."""
    budget = MemoryBudget(10)
    first, huge, third = budget.ask(1), budget.ask(11), budget.ask(1)
    assert budget.give_back(first) == [huge]
    assert budget.held_bytes == 11
    assert budget.give_back(huge) == [third]


def test_a_waiter_that_leaves_lets_the_next_one_in() -> None:
    """The first request of the queue leaves. Those behind it that fit are granted at once."""
    budget = MemoryBudget(10)
    budget.ask(6)
    large, small = budget.ask(5), budget.ask(4)
    assert budget.give_back(large) == [small]
    assert (budget.held_bytes, budget.waiter_count) == (10, 0)


def test_bytes_are_given_back_once() -> None:
    """A second return is a fault of the caller, whether it held the bytes or only waited."""
    budget = MemoryBudget(10)
    held, waiting = budget.ask(10), budget.ask(1)
    budget.give_back(waiting)
    budget.give_back(held)
    for grant in (held, waiting):
        with pytest.raises(AssertionError, match="twice"):
            budget.give_back(grant)


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 15), st.integers(0, 3)), max_size=60))
def test_the_limit_holds_and_order_too(steps: list[tuple[int, int]]) -> None:
    """For any requests and returns, the sum is right, exceeds the limit only for one holder, and grants keep their order."""
    budget = MemoryBudget(10)
    asked: list[Grant] = []
    granted: list[Grant] = []
    live: list[Grant] = []
    for size_bytes, choice in steps:
        if choice == 0 and live:
            granted += budget.give_back(live.pop(size_bytes % len(live)))
        else:
            grant = budget.ask(size_bytes)
            asked.append(grant)
            live.append(grant)
            granted += [grant] if grant.is_held else []
        held = [grant for grant in live if grant.is_held]
        assert budget.held_bytes == sum(grant.size_bytes for grant in held)
        assert (budget.holder_count, budget.waiter_count) == (len(held), len(live) - len(held))
        assert budget.held_bytes <= 10 or len(held) == 1
        waiting = [grant for grant in live if not grant.is_held]
        # Nobody waits without need.
        assert not waiting or (held and budget.held_bytes + waiting[0].size_bytes > 10)
    assert granted == [grant for grant in asked if grant in granted]


async def test_waiters_go_on_in_turn() -> None:
    """Two wait for the bytes of one holder. The first gets them, then the second."""
    gate = MemoryGate("tests", 10)
    held = gate.try_take(10)
    assert held is not None
    assert gate.try_take(1) is None
    waiting = [asyncio.create_task(gate.take(10, timeout_ms=LONG_MS)) for _ in range(2)]
    await asyncio.sleep(0)
    assert gate.budget.waiter_count == 2
    gate.give_back(held)
    first = await waiting[0]
    assert not waiting[1].done()
    gate.give_back(first)
    gate.give_back(await waiting[1])
    assert gate.budget.held_bytes == 0


async def test_a_waiter_without_a_turn_is_refused() -> None:
    """The refusal is typed, may be retried, and leaves nothing behind."""
    gate = MemoryGate("tests", 10)
    held = gate.try_take(10)
    assert held is not None
    with pytest.raises(RefusedError) as refusal:
        await gate.take(3, timeout_ms=1)
    assert refusal.value.failure.code is ErrorCode.OVERLOADED
    assert refusal.value.failure.retry_after_ms > 0
    gate.give_back(held)
    assert (gate.budget.held_bytes, gate.budget.waiter_count) == (0, 0)


@pytest.mark.parametrize("is_granted_before", [False, True])
async def test_a_cancelled_waiter_leaves(is_granted_before: bool) -> None:
    """Its bytes are free for others, whether it still waited or was granted the bytes just before."""
    gate = MemoryGate("tests", 10)
    held = gate.try_take(10)
    assert held is not None
    waiting = asyncio.create_task(gate.take(10, timeout_ms=LONG_MS))
    await asyncio.sleep(0)
    assert gate.budget.waiter_count == 1
    if is_granted_before:
        gate.give_back(held)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    if not is_granted_before:
        gate.give_back(held)
    assert (gate.budget.held_bytes, gate.budget.waiter_count) == (0, 0)
    assert gate.try_take(10) is not None
