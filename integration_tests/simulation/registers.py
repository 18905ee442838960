# SPDX-License-Identifier: Apache-2.0
"""A register in the metadata of the world: a number that one client writes and others read, each through any broker.

Owns what a read may show. Law (linearizability of one register with one writer): a read shows at least what was acknowledged before it
began, and at most what was sent before it ended; or it shows a write with an unknown outcome, which may be carried out late.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from typing import Final, Protocol

from lograft.aio import Admin
from lograft.errors import LograftError, OutcomeUnknownError
from lograft.types import ConfigResource

from integration_tests.simulation.clients import AFTER_ERROR_S, TOPIC, until_topic
from integration_tests.simulation.options import WorldOptions
from integration_tests.simulation.process import SimProcess
from metaquorum.testing.invariants import require
from metaquorum.testing.scheduler import Scheduler

CONFIG: Final = "description"
RESOURCE: Final = ConfigResource.topic(TOPIC)


class Register:
    """The writes of the register: what was sent, what was acknowledged, and what has an unknown outcome."""

    def __init__(self) -> None:
        self.sent = 0
        self.acknowledged = 0
        self.unknown: set[int] = set()

    def check(self, value: int, *, at_least: int) -> None:
        """Check the value of a read that was sent when `at_least` was acknowledged."""
        is_last = at_least <= value <= self.sent or value in self.unknown
        require(is_last, "a register shows the last change", (value, at_least, self.sent, self.unknown))


class RegisterWorld(Protocol):
    """What these clients need from the world."""

    scheduler: Scheduler
    options: WorldOptions
    counts: Counter[str]
    bootstrap: list[str]
    register: Register
    is_topic_there: bool
    is_healed: bool


async def read_register(world: RegisterWorld, admin: Admin) -> None:
    """Read once and check the value.

    Raises:
        LograftError: nothing was read.
        InvariantViolation: the value is not the last change.
    """
    at_least = world.register.acknowledged
    configs = (await admin.describe_configs([RESOURCE]))[RESOURCE]
    world.register.check(int(configs[CONFIG].value or 0), at_least=at_least)


async def read_at_last(world: RegisterWorld) -> None:
    """Read until a broker answers, and check the value."""
    async with Admin(world.bootstrap) as admin:
        while True:
            try:
                await read_register(world, admin)
            except LograftError:
                await asyncio.sleep(AFTER_ERROR_S)
            else:
                return


class RegisterClient:
    """Reads or writes until the world is healed, and reads once more at the end."""

    def __init__(self, world: RegisterWorld, process: SimProcess, *, is_writer: bool) -> None:
        self._world = world
        self._is_writer = is_writer
        self._rng: random.Random = world.scheduler.rng(f"client/{process.name}")

    async def run(self) -> None:
        """Work until the world is healed, then read once more."""
        world = self._world
        await until_topic(world)
        every_ms = world.options.register_every_ms
        assert every_ms is not None, "a client without work"
        async with Admin(world.bootstrap) as admin:
            while not world.is_healed:
                await asyncio.sleep(self._rng.uniform(0, 2 * every_ms) / 1000)
                await self._work(admin)
        await read_at_last(world)

    async def _work(self, admin: Admin) -> None:
        try:
            if self._is_writer:
                await self._write(admin)
            else:
                await read_register(self._world, admin)
                self._world.counts["register read"] += 1
        except LograftError:
            await asyncio.sleep(AFTER_ERROR_S)

    async def _write(self, admin: Admin) -> None:
        register = self._world.register
        register.sent += 1
        try:
            await admin.alter_configs({RESOURCE: {CONFIG: str(register.sent)}})
        except OutcomeUnknownError:
            self._world.counts["register: outcome unknown"] += 1
            register.unknown.add(register.sent)
            await asyncio.sleep(AFTER_ERROR_S)
        except LograftError:
            # The write was not carried out, so its number is used again.
            register.sent -= 1
            raise
        else:
            register.acknowledged = register.sent
            self._world.counts["register changed"] += 1
            await read_register(self._world, admin)
