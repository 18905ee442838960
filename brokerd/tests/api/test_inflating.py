# SPDX-License-Identifier: Apache-2.0
"""The cost of inflating for a broker: threads, memory that is counted until the work ends, and no remains of refused batches."""

from __future__ import annotations

import asyncio
import gc
import random
import sys
import threading
import tracemalloc
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from lograft.v1 import errors_pb2, log_pb2
from lograft.wire.batch import Codec, encode_batch
from lograft.wire.limits import MAX_GRPC_MESSAGE_BYTES

import brokerd.api.log_service.read
from brokerd.api.log_service.batch_check import COPIES, BatchThreads, is_costly, thread_count
from brokerd.limits import MAX_INFLATE_THREADS, MAX_READ_BYTES, MIN_BUDGET_BYTES
from brokerd.short_turns import SHORT_S, ShortTurns
from brokerd.tests.support import WAIT_S, Client, ProduceStream, refusal

SMALL_BYTES = 1_000
LARGE_BYTES = 3_000_000


async def store(client: Client, value_bytes: int) -> None:
    """Store a record of zeros, in a batch of a few hundred bytes."""
    await client.create_topic("t")
    stream = ProduceStream(client)
    await stream.open(("t", 0), without_idempotence=True)
    body = bytes(encode_batch([bytes(value_bytes)], timestamps_ms=1, codec=Codec.ZSTD))
    assert len(body) < SMALL_BYTES * 10
    await stream.send_body(body)
    await stream.receipts(1)
    await stream.finish()


@pytest.mark.parametrize(("value_bytes", "is_thread"), [(SMALL_BYTES, False), (LARGE_BYTES, True)])
async def test_a_small_batch_that_inflates_to_much_is_read_in_a_thread(
    client: Client, monkeypatch: pytest.MonkeyPatch, value_bytes: int, is_thread: bool
) -> None:
    """Its inflated size decides, not its size on disk, so that the event loop can serve other clients."""
    decode, threads = brokerd.api.log_service.read._decode, list[threading.Thread]()  # pyright: ignore[reportPrivateUsage]

    def noted(*arguments: Any) -> Any:
        threads.append(threading.current_thread())
        return decode(*arguments)

    monkeypatch.setattr(brokerd.api.log_service.read, "_decode", noted)
    await store(client, value_bytes)
    assert len((await client.read("t")).records[0].value) == value_bytes
    assert [thread is not threading.current_thread() for thread in threads] == [is_thread]


async def test_nothing_of_a_refused_read_waits_for_the_collector(client: Client) -> None:
    """The frames with the inflated batch are freed when the call is refused."""
    await store(client, MAX_GRPC_MESSAGE_BYTES + 1)
    gc.collect()
    gc.disable()
    try:
        for _ in range(3):
            refused = await refusal(client.read("t"))
            assert refused.code == errors_pb2.ERROR_CODE_MESSAGE_TOO_LARGE
        async with asyncio.timeout(WAIT_S):
            while True:
                if not frames_of("brokerd/api/log_service/read.py"):
                    break
                await asyncio.sleep(0.01)
    finally:
        gc.enable()


@pytest.mark.parametrize("record_count", [1, 16_384])
def test_a_read_makes_no_more_of_a_batch_than_it_gives(record_count: int) -> None:
    """Beside the inflated batch, memory holds only the records of the answer, not records that do not fit into it."""
    value = bytes(2 * MAX_GRPC_MESSAGE_BYTES // record_count)
    data = bytes(encode_batch([value] * record_count, timestamps_ms=1, codec=Codec.ZSTD))
    response = log_pb2.ReadResponse()
    tracemalloc.start()
    try:
        is_small = brokerd.api.log_service.read._decode(data, response, 10, MAX_READ_BYTES)  # pyright: ignore[reportPrivateUsage]
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (is_small, len(response.records)) == ((False, 0) if record_count == 1 else (True, 10))
    assert peak_bytes < 2 * MAX_GRPC_MESSAGE_BYTES + 1024 * 1024 + (MAX_READ_BYTES if record_count > 1 else 0)


def frames_of(path: str) -> list[types.FrameType]:
    """Return the live frames of a file."""
    return [
        each
        for each in gc.get_objects()
        if isinstance(each, types.FrameType) and Path(each.f_code.co_filename).as_posix().endswith(path)
    ]


async def test_work_is_counted_until_it_ends() -> None:
    """A cancelled caller does not free the memory for others while the thread still runs."""
    threads = BatchThreads(MIN_BUDGET_BYTES)
    begun, ended = threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        assert ended.wait(WAIT_S)

    size_bytes = MIN_BUDGET_BYTES // COPIES
    first = asyncio.create_task(threads.run(work, size_bytes))
    assert await asyncio.to_thread(begun.wait, WAIT_S)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    assert threads.budget.holder_count == 1
    second = asyncio.create_task(threads.run(lambda: "done", size_bytes))
    await until(lambda: threads.budget.waiter_count == 1)
    ended.set()
    assert await second == "done"
    await until(lambda: threads.budget.holder_count == 0)
    threads.close()


@pytest.mark.parametrize(("value", "is_thread"), [(bytes(100), True), (None, False)])
def test_a_bomb_of_less_than_two_megabytes_is_checked_in_a_thread(value: bytes | None, is_thread: bool) -> None:
    """A hundred bytes cost a client nothing, whatever their inflated size is. Ordinary records stay in the event loop."""
    values = [value or random.Random(index).randbytes(10) * 10 for index in range(10_000)]
    body = bytes(encode_batch(values, timestamps_ms=1, codec=Codec.ZSTD))
    assert is_costly(memoryview(body)) is is_thread


@pytest.mark.parametrize("is_owner", [True, False])
async def test_turns_are_short_while_batches_are_worked_on(is_owner: bool) -> None:
    """Turns are short only in the program that owns the process, and only until the last work ends."""
    usual_s, threads = sys.getswitchinterval(), BatchThreads(MIN_BUDGET_BYTES)
    if is_owner:
        threads.short_turns = ShortTurns()
    found_s = await asyncio.gather(*(threads.run(sys.getswitchinterval, 0) for _ in range(3)))
    assert found_s == [SHORT_S if is_owner else usual_s] * 3
    await until(lambda: sys.getswitchinterval() == usual_s)
    threads.close()


@pytest.mark.parametrize(("processors", "threads"), [(1, 1), (2, 1), (3, 1), (4, 2), (64, MAX_INFLATE_THREADS)])
def test_few_processors_inflate_one_batch_at_once(processors: int, threads: int) -> None:
    """Otherwise the threads would take the processor of the event loop."""
    assert thread_count(processors) == threads


async def until(condition: Callable[[], bool]) -> None:
    """Wait until a condition holds."""
    async with asyncio.timeout(WAIT_S):
        while True:
            if condition():
                return
            await asyncio.sleep(0.01)
