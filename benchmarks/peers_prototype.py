# SPDX-License-Identifier: Apache-2.0
"""A client process of the bare gRPC prototype in `make bench-peers`: what a record costs from one process to another over gRPC alone.

The server is that of the ceiling in `make bench`: it checks and appends a message, and pushes it to its one subscriber. Both sides
run on uvloop. One message is on its way at a time, and the next one has what has gathered meanwhile, as of a client without linger.
A message for each record costs 0.3 ms of CPU on either side, so at 10,000 records per second its latency would be that of a queue
that only grows. With more messages on their way the latency is no lower at 1,000 per second, and higher at 10,000.
"""

from __future__ import annotations

import asyncio
import sys
from collections import deque
from collections.abc import AsyncIterator
from functools import cache

import uvloop
from lograft.wire.batch import encode_batch

from benchmarks.ceiling_client import connect
from benchmarks.ceiling_server import SERVICE, identity
from benchmarks.peers_task import Latencies, Meter, Pace, Sample, Task, do_task, values_of

IN_FLIGHT = 1
"""Messages that the server has not answered."""


async def latency(task: Task) -> Sample:
    """From send to the message in the subscriber's hand, at a steady rate."""
    meter = Meter(task.pids)
    latencies = Latencies(meter, warm_up=task.paced_warm_up, records=task.records)
    value = values_of(task.value_bytes)[0]

    @cache
    def message_of(count: int) -> bytes:
        return bytes(encode_batch([value] * count, timestamps_ms=1))

    gathered, on_way = 0, deque[int]()
    has_gathered, window = asyncio.Event(), asyncio.Semaphore(IN_FLIGHT)
    async with connect(task.bootstrap) as up, connect(task.bootstrap) as down:
        subscription = down.unary_stream(f"/{SERVICE}/Subscribe", identity, identity)(b"")
        received: AsyncIterator[bytes] = subscription.__aiter__()
        await anext(received)
        call = up.stream_stream(f"/{SERVICE}/Relay", identity, identity)()
        await call.wait_for_connection()

        async def write() -> None:
            nonlocal gathered
            left = latencies.total
            while left:
                await window.acquire()
                await has_gathered.wait()
                has_gathered.clear()
                count, gathered = gathered, 0
                on_way.append(count)
                left -= count
                await call.write(message_of(count))
            await call.done_writing()

        async def receive() -> None:
            while not latencies.is_complete:
                await anext(received)
                latencies.receive(on_way.popleft())
            meter.stop()

        async def take_answers() -> None:
            async for _ in call:
                window.release()

        tasks = [asyncio.create_task(each) for each in (write(), receive(), take_answers())]
        pace = Pace(task.rate)
        for index in range(latencies.total):
            delay_s = pace.delay_s(index)
            if delay_s > 0:
                await asyncio.sleep(delay_s)
            latencies.send()
            gathered += 1
            has_gathered.set()
        await asyncio.gather(*tasks)
        subscription.cancel()
    return meter.sample(task.records, latencies.counted_ms)


def latency_uvloop(task: Task) -> Sample:
    """The same in an event loop of uvloop."""
    return uvloop.run(latency(task))


if __name__ == "__main__":
    sys.exit(do_task({"latency, uvloop": latency_uvloop}))
