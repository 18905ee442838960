# SPDX-License-Identifier: Apache-2.0
"""A paced load of metadata changes: a fixed rate whatever the answers are, by several clients, in its own thread.

Owns the pace, the clients and the times of acknowledgements. A `Ledger` holds the acknowledged changes. Only the load's thread writes
it while the load runs. If too many operations are under way, a due operation is not sent but counted as held back. So the rate that was
reached is always measured, never assumed.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import uvloop
from lograft import aio
from lograft.errors import LograftError, OutcomeUnknownError, TopicAlreadyExistsError
from lograft.settings import REQUEST_TIMEOUT_MS
from lograft.types import ConfigResource

from integration_tests.harness.background import Background
from integration_tests.harness.history.ledger import Ledger, Register
from integration_tests.harness.load.pace import Pace, touches
from integration_tests.harness.load.times import Span, gaps_s
from integration_tests.harness.wait import wait_for

CONFIG = "description"
CLIENTS = 8
IN_FLIGHT_MAX = 2_000
"""Maximum operations under way at once."""
CREATION_EVERY = 50
"""One of this many operations creates a topic. The broker opens every topic, which is usually not the subject of a proof."""
REGISTER_SECONDS = 4
"""There are registers for this many seconds of the rate, so that an outage and its unknown outcomes do not stop the writes."""
RETIREMENT_S = 45.0
"""Seconds after which a register with an unknown write is free again. No request lives longer than 30 s, on its way or in a server."""
START_TIMEOUT_S = 120.0
DRAIN_TIMEOUT_S = 60.0
GROUP = 10
"""Creations that are sent at once while the registers are created."""


CREATION_CALLS = 2
"""Calls of the client for one creation, each with a time limit: one creates the topic, one waits until it is shown."""


@dataclass(frozen=True, slots=True)
class Operation:
    """An ended operation, whatever its outcome. Times are monotonic; each of its calls has a time limit."""

    began_s: float
    ended_s: float
    calls: int

    @property
    def took_s(self) -> float:
        """Seconds from its beginning to its end."""
        return self.ended_s - self.began_s


class MetadataLoad:
    """The load on the brokers at `bootstrap`; a context manager. It runs from the first register to the end of the context.

    Args:
        bootstrap: addresses of the brokers.
        rate_per_s: operations a second.
        request_timeout_ms: time limit of each call.
        creation_every: one of this many operations creates a topic once there are enough registers; the others change configs.
    """

    def __init__(
        self,
        bootstrap: str,
        *,
        rate_per_s: int,
        request_timeout_ms: int = REQUEST_TIMEOUT_MS,
        creation_every: int = CREATION_EVERY,
    ) -> None:
        self.ledger = Ledger()
        self.acknowledged_s: list[float] = []
        self.operations: list[Operation] = []
        self.failures: Counter[str] = Counter()
        self.held_back = 0
        self.longest_call_s = 0.0
        self.running_since_s = 0.0
        self._bootstrap = bootstrap
        self._rate_per_s = rate_per_s
        self._pace = Pace(rate_per_s)
        self._request_timeout_ms = request_timeout_ms
        self._creation_every = creation_every
        self._thread = Background("the load", lambda: uvloop.run(self._main()), join_timeout_s=DRAIN_TIMEOUT_S)
        self._clients: list[aio.Admin] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._number = 0
        self._topic_number = 0

    def __enter__(self) -> Self:
        self._thread.start()
        try:
            wait_for(
                lambda: bool(self.running_since_s) or self._thread.broken is not None,
                timeout_s=START_TIMEOUT_S,
                what="the registers of the load",
            )
        except BaseException:
            self.stop()
            raise
        self.check()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """Send nothing more, wait for the operations under way, and close the clients. Idempotent."""
        with suppress(RuntimeError):
            # `check` raises the error.
            self._thread.join()

    def check(self) -> None:
        """Raise the error that ended the load, if any."""
        self._thread.check()

    def acknowledged_since(self, when_s: float) -> bool:
        """Return True if an operation was acknowledged after a time of the monotonic clock."""
        self.check()
        return bool(self.acknowledged_s) and self.acknowledged_s[-1] > when_s

    def longest_gap_s(self, start_s: float, end_s: float) -> float:
        """Return the longest time without an acknowledgement that touches the given span of the monotonic clock."""
        return max(gaps_s(self.acknowledged_s, start_s, end_s))

    @property
    def standstills(self) -> list[Span]:
        """Spans in which this process did not run."""
        return self._pace.standstills

    def stood_still(self, start_s: float, end_s: float) -> bool:
        """Return True if a process pause touches the given span of the monotonic clock."""
        return touches(self.standstills, start_s, end_s)

    def standstill_s(self) -> float:
        """Return the seconds of all process pauses together."""
        return sum(ended_s - began_s for began_s, ended_s in self.standstills)

    def reached_per_s(self) -> float:
        """Return the acknowledged operations per second since the registers exist, outages included, process pauses excluded."""
        counted = sum(when_s > self.running_since_s for when_s in self.acknowledged_s)
        if not counted:
            return 0.0
        return counted / (self.acknowledged_s[-1] - self.running_since_s - self.standstill_s())

    # -- in the load's thread

    async def _main(self) -> None:
        timeout_ms = self._request_timeout_ms
        self._clients = [aio.Admin(self._bootstrap, request_timeout_ms=timeout_ms) for _ in range(CLIENTS)]
        try:
            await self._make_registers()
            self.running_since_s = time.monotonic()
            await self._send_at_pace()
            while self._tasks:
                await asyncio.wait(self._tasks)
        finally:
            await asyncio.gather(*(client.close() for client in self._clients))

    async def _make_registers(self) -> None:
        while len(self.ledger.registers) < REGISTER_SECONDS * self._rate_per_s and not self._thread.stopping.is_set():
            await asyncio.gather(*(self._create(self._next_client()) for _ in range(GROUP)))

    async def _send_at_pace(self) -> None:
        pace = self._pace
        pace.start(time.monotonic())
        while not self._thread.stopping.is_set():
            for _ in range(pace.due(time.monotonic())):
                self._send()
            pace.rest(time.monotonic())
            await asyncio.sleep(pace.next_s - time.monotonic())

    def _send(self) -> None:
        if len(self._tasks) >= IN_FLIGHT_MAX:
            self.held_back += 1
            return
        self._number += 1
        client = self._next_client()
        if self._number % self._creation_every == 0:
            work = self._create(client)
        else:
            register = self.ledger.take_register()
            if register is None:
                self.held_back += 1
                return
            work = self._write(client, register)
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _next_client(self) -> aio.Admin:
        return self._clients[self._number % CLIENTS]

    async def _create(self, client: aio.Admin) -> None:
        self._topic_number += 1
        topic = f"t{self._topic_number:06d}"
        began_s = time.monotonic()
        try:
            created = await client.create_topic(topic)
        except TopicAlreadyExistsError:
            self.ledger.topic_repeated(topic)
        except LograftError as error:
            # The creation may have been acknowledged before the description that follows it failed.
            self.failures[f"create: {type(error).__name__}: {error.code.name}"] += 1
            self.ledger.topic_unknown(topic)
        else:
            self.ledger.topic_acknowledged(topic, created.topic_id)
            self._note_time(began_s)
        self.operations.append(Operation(began_s, time.monotonic(), CREATION_CALLS))

    async def _write(self, client: aio.Admin, register: Register) -> None:
        began_s = time.monotonic()
        try:
            await client.alter_configs({ConfigResource.topic(register.topic): {CONFIG: str(register.sent)}})
        except OutcomeUnknownError as error:
            self.failures[f"write: {type(error).__name__}: {error.code.name}"] += 1
            self.ledger.write_unknown(register)
            asyncio.get_running_loop().call_later(RETIREMENT_S, self.ledger.release, register)
        except LograftError as error:
            self.failures[f"write: {type(error).__name__}: {error.code.name}"] += 1
            self.ledger.write_refused(register)
        else:
            self.ledger.write_acknowledged(register)
            self._note_time(began_s)
        self.operations.append(Operation(began_s, time.monotonic(), 1))

    def _note_time(self, began_s: float) -> None:
        now_s = time.monotonic()
        self.acknowledged_s.append(now_s)
        self.longest_call_s = max(self.longest_call_s, now_s - began_s)
