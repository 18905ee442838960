# SPDX-License-Identifier: Apache-2.0
"""Which logs are opened now: only a few while partitions are created, and requested ones first."""

from __future__ import annotations

import asyncio

import pytest

from brokerd.limits import LOG_OPEN_TASKS
from brokerd.replica.opening_turns import BURST_OPEN_TASKS, BURST_QUIET_MS, OpeningTurns
from brokerd.tests.support import WAIT_S

MANY = 3 * LOG_OPEN_TASKS


class Logs:
    """Logs that wait, by number, and those that were opened, in order."""

    def __init__(self, turns: OpeningTurns, count: int) -> None:
        self.begun: list[int] = []
        self.tasks = [asyncio.create_task(self._open(turns, number)) for number in range(count)]

    async def _open(self, turns: OpeningTurns, number: int) -> None:
        await turns.take(number)
        self.begun.append(number)

    async def settle(self) -> list[int]:
        """Run all tasks that can run."""
        for _ in range(5):
            await asyncio.sleep(0)
        return self.begun


async def test_some_are_opened_at_a_time_in_order() -> None:
    """They are opened in order while no partitions are created, as at a start."""
    turns = OpeningTurns()
    logs = Logs(turns, MANY)
    assert await logs.settle() == list(range(LOG_OPEN_TASKS))
    for _ in range(MANY):
        turns.give_back()
        await logs.settle()
    assert logs.begun == list(range(MANY))


async def test_few_are_opened_while_partitions_are_created_and_the_others_when_that_is_over() -> None:
    """The end of the creations needs no message."""
    turns = OpeningTurns()
    turns.note_new()
    logs = Logs(turns, MANY)
    assert len(await logs.settle()) == BURST_OPEN_TASKS
    async with asyncio.timeout(WAIT_S):
        await asyncio.wait(logs.tasks[:LOG_OPEN_TASKS])
    assert logs.begun == list(range(LOG_OPEN_TASKS))
    for task in logs.tasks:
        task.cancel()


async def test_timer_that_comes_a_little_early_ends_the_burst(monkeypatch: pytest.MonkeyPatch) -> None:
    """An event loop may call a timer too early, by less than its clock's resolution. Nothing keeps waiting, and nothing spins."""
    loop = asyncio.get_running_loop()
    now_s = 100.0
    monkeypatch.setattr(loop, "time", lambda: now_s)
    turns = OpeningTurns()
    turns.note_new()
    logs = Logs(turns, MANY)
    assert len(await logs.settle()) == BURST_OPEN_TASKS
    now_s += BURST_QUIET_MS / 1000 - 1e-10
    assert len(await logs.settle()) == LOG_OPEN_TASKS
    for task in logs.tasks:
        task.cancel()


async def test_one_that_somebody_waits_for_goes_before_the_others() -> None:
    """This holds while partitions are created too."""
    turns = OpeningTurns()
    turns.note_new()
    logs = Logs(turns, MANY)
    await logs.settle()
    turns.hurry(MANY - 1)
    assert await logs.settle() == [0, MANY - 1]
    turns.hurry(0)
    turns.end_burst()
    assert len(await logs.settle()) == LOG_OPEN_TASKS
    for task in logs.tasks:
        task.cancel()


async def test_a_turn_that_is_not_wanted_any_more_goes_to_the_next() -> None:
    """It is cancelled while it waits, or at the moment at which it gets its turn."""
    turns = OpeningTurns()
    logs = Logs(turns, LOG_OPEN_TASKS + 2)
    await logs.settle()
    logs.tasks[-2].cancel()
    await logs.settle()
    turns.give_back()
    assert await logs.settle() == [*range(LOG_OPEN_TASKS), LOG_OPEN_TASKS + 1]
    late = Logs(turns, 1)
    await late.settle()
    turns.give_back()
    late.tasks[0].cancel()
    await late.settle()
    assert late.begun == []
    last = Logs(turns, 1)
    assert await last.settle() == [0]
