# SPDX-License-Identifier: Apache-2.0
"""The client beside the hostile ones, in its own process: `python -m integration_tests.scenarios.hostile.healthy host:port`.

Produces records with acks=all at a modest rate, whatever the answers are, and fetches them. The latency of a record runs from the
moment at which it is due until the consumer has it, which is after its acknowledgement. For every line on standard input it prints,
as JSON, the latencies of the records that were due since the previous line.
"""

from __future__ import annotations

import asyncio
import json
import math
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress

import lograft.aio
from lograft import Admin, TopicPartition

from integration_tests.harness.load.times import quantile

TOPIC = "healthy"
RECORDS_PER_S = 50
VALUE = bytes(100)
POLL_TIMEOUT_MS = 1_000
REPORT_WAIT_S = 20.0


def percentile(ordered: Sequence[float], share: float) -> float:
    """Return the smallest value that at least `share` (above 0) of the values do not exceed; NaN without values."""
    return quantile(ordered, share) if ordered else math.nan


class Healthy:
    """A client that produces and fetches at a modest rate, and reports latencies."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._due_s: list[float] = []
        self._received_s: list[float] = []
        self._reported = 0
        self._arrived = asyncio.Event()

    async def run(self) -> None:
        """Produce and fetch until standard input ends."""
        lines: asyncio.Queue[str] = asyncio.Queue()
        loop = asyncio.get_running_loop()

        def read_lines() -> None:
            for line in sys.stdin:
                loop.call_soon_threadsafe(lines.put_nowait, line)
            loop.call_soon_threadsafe(lines.put_nowait, "")

        async with (
            lograft.aio.Producer(self._address, linger_ms=0) as producer,
            lograft.aio.Consumer(self._address) as consumer,
        ):
            await consumer.assign([TopicPartition(TOPIC, 0)])
            threading.Thread(target=read_lines, daemon=True).start()
            tasks = [asyncio.create_task(self._send(producer)), asyncio.create_task(self._receive(consumer))]
            while await lines.get():
                await self._report()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _send(self, producer: lograft.aio.Producer) -> None:
        started_s = time.perf_counter()
        while True:
            due_s = started_s + len(self._due_s) / RECORDS_PER_S
            await asyncio.sleep(max(0.0, due_s - time.perf_counter()))
            self._due_s.append(due_s)
            await producer.send(TOPIC, VALUE, partition=0)

    async def _receive(self, consumer: lograft.aio.Consumer) -> None:
        while True:
            fetched = await consumer.poll_batch(POLL_TIMEOUT_MS)
            if fetched is not None:
                self._received_s += [time.perf_counter()] * len(fetched.values())
                self._arrived.set()

    async def _report(self) -> None:
        begin, end = self._reported, len(self._due_s)
        self._reported = end
        give_up_s = time.perf_counter() + REPORT_WAIT_S
        while len(self._received_s) < end and time.perf_counter() < give_up_s:
            self._arrived.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._arrived.wait(), give_up_s - time.perf_counter())
        pairs = zip(self._received_s[begin:end], self._due_s[begin:end], strict=False)
        waits_ms = sorted((received_s - due_s) * 1e3 for received_s, due_s in pairs)
        report = {
            "records": end - begin,
            "missing": end - begin - len(waits_ms),
            "p50_ms": percentile(waits_ms, 0.5),
            "p99_ms": percentile(waits_ms, 0.99),
            "max_ms": percentile(waits_ms, 1.0),
        }
        print(json.dumps(report), flush=True)


def main() -> None:
    """Create the topic and run."""
    (address,) = sys.argv[1:]
    with Admin(address) as admin:
        admin.create_topic(TOPIC)
    asyncio.run(Healthy(address).run())


if __name__ == "__main__":
    main()
