# SPDX-License-Identifier: Apache-2.0
"""The two producers of a proof, blocking and asyncio, each in a thread of its own. They send in bursts that fill their pipelines."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Sequence
from functools import partial

import uvloop
from lograft import Delivery, Producer, aio
from lograft.errors import LograftError

from integration_tests.harness.background import Background
from integration_tests.scenarios.producer_proofs.sent import RECORD_OVERHEAD_BYTES, Sent, encode

BATCH_BYTES = 1_024
MAX_IN_FLIGHT = 8
BUFFER_BYTES = 256 * 1024
DELIVERY_TIMEOUT_MS = 120_000
LINGER_MS = 2
SIZES_BYTES = (30, 60, 900)
"""Sizes of values: many records of a batch, and records that fill one."""
BURST_RECORDS = 160
"""Records of a burst: with these sizes, some ten batches for each of six partitions."""
BURST_INTERVAL_S = 0.3
AWAITED_EVERY = 3
"""One of this many handles is awaited, the others have a callback."""
CLOSE_TIMEOUT_MS = 120_000
JOIN_TIMEOUT_S = 180.0
SETTINGS = {
    "batch_bytes": BATCH_BYTES,
    "max_in_flight": MAX_IN_FLIGHT,
    "buffer_bytes": BUFFER_BYTES,
    "delivery_timeout_ms": DELIVERY_TIMEOUT_MS,
    "linger_ms": LINGER_MS,
}


class Bursts:
    """Draws the records of bursts."""

    def __init__(self, keys: int, seed: int) -> None:
        self._rng = random.Random(seed)
        self._keys = keys

    def draw(self) -> Sequence[tuple[int, int]]:
        """Return key and size of each record of a burst."""
        return [
            (self._rng.randrange(self._keys), self._rng.choices(SIZES_BYTES, weights=(4, 4, 2))[0])
            for _ in range(BURST_RECORDS)
        ]


def place_of(delivery: Delivery) -> tuple[int, int] | Exception:
    """Return where a resolved handle says that the record is, or its error."""
    try:
        receipt = delivery.result(0)
    except LograftError as error:
        return error
    return receipt.partition, -1 if receipt.offset is None else receipt.offset


def size_of(key: bytes, value: bytes) -> int:
    """Return the bytes that a record counts in the buffer."""
    return len(key) + len(value) + RECORD_OVERHEAD_BYTES


class BlockingSender(Background):
    """A `Producer`. Some of its handles are waited for in a second thread, the others have callbacks."""

    def __init__(self, bootstrap: str, topic: str, sent: Sent, *, keys: int, seed: int) -> None:
        super().__init__("blocking", self._send, join_timeout_s=JOIN_TIMEOUT_S)
        self._bootstrap, self._topic, self._sent = bootstrap, topic, sent
        self._bursts = Bursts(keys, seed)
        self._awaited: list[tuple[int, int, Delivery]] = []
        self._has_awaited = threading.Condition()
        self._is_over = False

    def _send(self) -> None:
        waiter = Background("the waiter", self._wait, join_timeout_s=JOIN_TIMEOUT_S)
        waiter.start()
        try:
            with Producer(self._bootstrap, **SETTINGS) as producer:
                turn = 0
                while not self.stopping.wait(BURST_INTERVAL_S):
                    for key, size_bytes in self._bursts.draw():
                        turn += 1
                        number = self._sent.take(key)
                        name, value = encode(key, number, size_bytes)
                        delivery = producer.send(self._topic, value, name)
                        self._sent.sending(key, number, delivery.partition, size_of(name, value))
                        if turn % AWAITED_EVERY == 0:
                            with self._has_awaited:
                                self._awaited.append((key, number, delivery))
                                self._has_awaited.notify()
                        else:
                            delivery.add_done_callback(partial(self._done, key, number))
                producer.close(CLOSE_TIMEOUT_MS)
        finally:
            with self._has_awaited:
                self._is_over = True
                self._has_awaited.notify()
            waiter.join()

    def _done(self, key: int, number: int, delivery: Delivery) -> None:
        self._sent.resolved(key, number, place_of(delivery))

    def _wait(self) -> None:
        while True:
            with self._has_awaited:
                while not self._awaited and not self._is_over:
                    self._has_awaited.wait()
                awaited, self._awaited = self._awaited, []
            if not awaited:
                return
            for key, number, delivery in awaited:
                try:
                    receipt = delivery.result(DELIVERY_TIMEOUT_MS * 2)
                    found: tuple[int, int] | Exception = (
                        receipt.partition,
                        -1 if receipt.offset is None else receipt.offset,
                    )
                except LograftError as error:
                    found = error
                self._sent.resolved(key, number, found)


class AioSender(Background):
    """An `aio.Producer` in its own event loop. Some of its handles are awaited, the others have callbacks."""

    def __init__(self, bootstrap: str, topic: str, sent: Sent, *, keys: int, seed: int) -> None:
        super().__init__("aio", lambda: uvloop.run(self._send()), join_timeout_s=JOIN_TIMEOUT_S)
        self._bootstrap, self._topic, self._sent = bootstrap, topic, sent
        self._bursts = Bursts(keys, seed)

    async def _send(self) -> None:
        tasks: set[asyncio.Task[None]] = set()
        async with aio.Producer(self._bootstrap, **SETTINGS) as producer:
            turn = 0
            while not self.stopping.is_set():
                await asyncio.sleep(BURST_INTERVAL_S)
                for key, size_bytes in self._bursts.draw():
                    turn += 1
                    number = self._sent.take(key)
                    name, value = encode(key, number, size_bytes)
                    delivery = await producer.send(self._topic, value, name)
                    self._sent.sending(key, number, delivery.partition, size_of(name, value))
                    if turn % AWAITED_EVERY == 0:
                        task = asyncio.get_running_loop().create_task(self._wait(key, number, delivery))
                        tasks.add(task)
                        task.add_done_callback(tasks.discard)
                    else:
                        delivery.add_done_callback(partial(self._done, key, number))
            await producer.close(CLOSE_TIMEOUT_MS)
        if tasks:
            await asyncio.wait(tasks, timeout=JOIN_TIMEOUT_S / 2)

    def _done(self, key: int, number: int, delivery: Delivery) -> None:
        self._sent.resolved(key, number, place_of(delivery))

    async def _wait(self, key: int, number: int, delivery: Delivery) -> None:
        try:
            receipt = await delivery
        except LograftError as error:
            self._sent.resolved(key, number, error)
            return
        self._sent.resolved(key, number, (receipt.partition, -1 if receipt.offset is None else receipt.offset))
