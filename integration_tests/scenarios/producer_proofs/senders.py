# SPDX-License-Identifier: Apache-2.0
"""The two producers of a proof, blocking and asyncio, each in a thread of its own. They send in bursts that fill their pipelines."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from functools import partial
from queue import SimpleQueue

import uvloop
from lograft import Delivery, Producer, aio
from lograft.errors import LograftError
from lograft.types import RecordReceipt

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
        return place_in(delivery.result(0))
    except LograftError as error:
        return error


def place_in(receipt: RecordReceipt) -> tuple[int, int]:
    """Return partition and offset of a receipt."""
    assert receipt.offset is not None, "an acknowledged record has an offset"
    return receipt.partition, receipt.offset


def size_of(key: bytes, value: bytes) -> int:
    """Return the bytes that a record counts in the buffer."""
    return len(key) + len(value) + RECORD_OVERHEAD_BYTES


class Waiter(Background):
    """Waits in a thread for the handles of one partition, in the order of sending."""

    def __init__(self, sent: Sent) -> None:
        super().__init__("a waiter", self._wait, join_timeout_s=JOIN_TIMEOUT_S)
        self._sent = sent
        self._handles: SimpleQueue[tuple[int, int, Delivery] | None] = SimpleQueue()

    def put(self, key: int, number: int, delivery: Delivery) -> None:
        """Wait for a handle as well."""
        self._handles.put((key, number, delivery))

    def join(self) -> None:
        """Wait for all handles, and end."""
        self._handles.put(None)
        super().join()

    def _wait(self) -> None:
        while (handle := self._handles.get()) is not None:
            key, number, delivery = handle
            try:
                found: tuple[int, int] | Exception = place_in(delivery.result(DELIVERY_TIMEOUT_MS * 2))
            except LograftError as error:
                found = error
            self._sent.resolved(key, number, found)


class BlockingSender(Background):
    """A `Producer`. Threads wait for some of its handles, the others have callbacks."""

    def __init__(self, bootstrap: str, topic: str, sent: Sent, *, keys: int, seed: int) -> None:
        super().__init__("blocking", self._send, join_timeout_s=JOIN_TIMEOUT_S)
        self._bootstrap, self._topic, self._sent = bootstrap, topic, sent
        self._bursts = Bursts(keys, seed)

    def _send(self) -> None:
        # A waiter for each partition: one that waits in a partition without a leader would hear late of the others.
        waiters: dict[int, Waiter] = {}
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
                            if delivery.partition not in waiters:
                                waiters[delivery.partition] = waiter = Waiter(self._sent)
                                waiter.start()
                            waiters[delivery.partition].put(key, number, delivery)
                        else:
                            delivery.add_done_callback(partial(self._done, key, number))
                producer.close(CLOSE_TIMEOUT_MS)
        finally:
            for waiter in waiters.values():
                waiter.join()

    def _done(self, key: int, number: int, delivery: Delivery) -> None:
        self._sent.resolved(key, number, place_of(delivery))


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
            found: tuple[int, int] | Exception = place_in(await delivery)
        except LograftError as error:
            found = error
        self._sent.resolved(key, number, found)
