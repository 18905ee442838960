# SPDX-License-Identifier: Apache-2.0
"""The clocks of simulated machines: timers, `time.monotonic` and `time.time` at the rate and with the error of the machine."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from integration_tests.simulation.process import SimProcess
from integration_tests.simulation.virtual_loop import Clock
from integration_tests.simulation.virtual_network import Network
from integration_tests.simulation.virtual_platform import EPOCH_S, platform
from metaquorum.testing.scheduler import Scheduler


def clocked(scheduler: Scheduler, clock: Clock) -> SimProcess:
    """A process on a machine with these clocks."""
    chance: dict[str, Any] = {"rng": scheduler.rng("a"), "work_ms_max": 0, "flush_ms_max": 0}
    return SimProcess(scheduler, machine="a", number=0, disk=None, on_fault=print, clock=clock, **chance)


@pytest.mark.parametrize("rate", [0.9, 0.99, 1.0, 1.01, 1.1])
def test_a_timer_rings_by_the_clock_of_its_machine(rate: float) -> None:
    """A timer of a clock that is too fast fires too early. Code that checks the clock then sees that the time has come."""
    scheduler, found = Scheduler(1), list[tuple[float, float, float, int]]()
    network = Network(scheduler, scheduler.rng("network"), delay_ms_max=1)
    process = clocked(scheduler, Clock(rate=rate, offset_ms=1_234_567))

    async def sleep() -> None:
        loop = asyncio.get_running_loop()
        for _ in range(20):
            started_s, began_ms = loop.time(), scheduler.now_ms
            assert time.monotonic() == started_s
            deadline_s = started_s + 0.7
            await asyncio.sleep(0.7)
            found.append((deadline_s, loop.time(), time.monotonic_ns() / 10**9, scheduler.now_ms - began_ms))

    with platform(scheduler, network):
        process.run(sleep(), lambda error: found.clear() if error else None)
        while scheduler.run_next():
            pass
    assert len(found) == 20
    for deadline_s, now_s, monotonic_s, took_ms in found:
        assert deadline_s - 1e-9 <= now_s <= deadline_s + 0.002
        assert monotonic_s == pytest.approx(now_s, abs=1e-8)
        assert took_ms == pytest.approx(700 / rate, abs=1.5)


def test_the_wall_clock_of_a_machine_may_be_wrong() -> None:
    """It is ahead by its offset and goes at the rate of the machine, in its threads too; a client's is right."""
    scheduler, found = Scheduler(1), list[float]()
    network = Network(scheduler, scheduler.rng("network"), delay_ms_max=1)
    process = clocked(scheduler, Clock(rate=1.1, wall_offset_ms=-60_000))

    async def look() -> None:
        await asyncio.sleep(1.1)
        found.append(time.time() - EPOCH_S)
        found.append(await asyncio.to_thread(time.time) - EPOCH_S)

    with platform(scheduler, network):
        process.run(look(), lambda error: found.clear() if error else None)
        while scheduler.run_next():
            pass
        found.append(time.time() - EPOCH_S)
    assert found == pytest.approx([-58.9, -58.9, 1.0], abs=0.003)
