# SPDX-License-Identifier: Apache-2.0
"""The ceiling of replication: three bare grpc.aio processes that do to the same bytes what any replicated log must, and nothing else.

The leader checks the CRC-32C of each message, appends it to one file and sends it, as it came, over one stream to each follower,
which does the same and answers. The producer gets its answer when both followers have answered: after the append (`none`), or
after a group fdatasync in all three (`ack`). Messages are raw bytes: no protobuf, no partitions, no epochs, no sequence numbers.
Allocator tuning and uvloop as in Lograft's own servers.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import struct
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import grpc.aio
import uvloop
from crc32c import crc32c
from lograft.wire.malloc import tune_allocator

from benchmarks.ceiling_client import connect
from benchmarks.ceiling_server import ACK, CRC, CRC_COVERS_FROM, CRC_POSITION, MAX_MESSAGE_BYTES, identity

SERVICE = "ceiling.Replica"
COUNT = struct.Struct(">Q")


class Log:
    """One file. It appends one checked message at a time, and one thread flushes it in groups."""

    def __init__(self, path: Path, *, is_flushed: bool) -> None:
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        self._flusher = ThreadPoolExecutor(1)
        self._is_flushed = is_flushed
        self._appended = 0
        self.held = 0
        self.news = asyncio.Event()
        self._wanted = asyncio.Event()
        self._task = asyncio.create_task(self._flush()) if is_flushed else None

    def append(self, message: bytes) -> None:
        """Check and append a message. `held` follows at once, or after a flush."""
        if CRC.unpack_from(message, CRC_POSITION)[0] != crc32c(memoryview(message)[CRC_COVERS_FROM:]):
            raise ValueError("checksum does not match")
        os.writev(self._descriptor, [message])
        self._appended += 1
        if self._is_flushed:
            self._wanted.set()
        else:
            self._hold(self._appended)

    def _hold(self, count: int) -> None:
        self.held = count
        self.news.set()

    async def _flush(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            group = self._appended
            await loop.run_in_executor(self._flusher, os.fdatasync, self._descriptor)
            self._hold(group)


class Follower:
    """Appends what the leader sends, and reports how many messages it holds."""

    def __init__(self, log: Log) -> None:
        self._log = log

    async def replicate(self, requests: AsyncIterator[bytes], context: grpc.aio.ServicerContext) -> None:
        """Serve the leader's stream."""
        log = self._log

        async def answer() -> None:
            while True:
                await log.news.wait()
                log.news.clear()
                await context.write(COUNT.pack(log.held))

        answering = asyncio.create_task(answer())
        async for message in requests:
            log.append(message)
        answering.cancel()


class Leader:
    """Appends what the producer sends, passes it to the followers, and answers when all hold it."""

    def __init__(self, log: Log, followers: Sequence[str]) -> None:
        self._log = log
        self._channels = [connect(address) for address in followers]
        self._calls = [
            channel.stream_stream(f"/{SERVICE}/Replicate", identity, identity)() for channel in self._channels
        ]
        self._held = [0] * len(followers)
        self._tasks = [asyncio.create_task(self._hear(number)) for number in range(len(followers))]

    async def _hear(self, number: int) -> None:
        async for answer in self._calls[number]:
            self._held[number] = COUNT.unpack(answer)[0]
            self._log.news.set()

    async def produce(self, requests: AsyncIterator[bytes], context: grpc.aio.ServicerContext) -> None:
        """Serve the producer's stream."""
        log = self._log
        queues: list[asyncio.Queue[bytes]] = [asyncio.Queue() for _ in self._calls]
        answered = log.held
        received = answered
        progress = asyncio.Event()

        async def push(number: int) -> None:
            while True:
                await self._calls[number].write(await queues[number].get())

        async def answer() -> None:
            nonlocal answered
            while True:
                await log.news.wait()
                log.news.clear()
                held = min(log.held, *self._held)
                while answered < held:
                    answered += 1
                    await context.write(ACK)
                progress.set()

        tasks = [asyncio.create_task(push(number)) for number in range(len(self._calls))]
        answering = asyncio.create_task(answer())
        async for message in requests:
            log.append(message)
            received += 1
            for queue in queues:
                queue.put_nowait(message)
        while answered < received:
            progress.clear()
            await progress.wait()
        for task in (*tasks, answering):
            task.cancel()


async def serve(path: Path, followers: Sequence[str], *, is_flushed: bool) -> None:
    """Serve on an ephemeral loopback port, printed as `ready PORT`. With followers this process is the leader."""
    server = grpc.aio.server(
        options=[
            ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
            ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
        ]
    )
    log = Log(path, is_flushed=is_flushed)
    stream = grpc.stream_stream_rpc_method_handler
    if followers:
        methods = {"Produce": stream(Leader(log, followers).produce, identity, identity)}
    else:
        methods = {"Replicate": stream(Follower(log).replicate, identity, identity)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, methods),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(f"ready {port}", flush=True)
    await server.wait_for_termination()


def main() -> None:
    """Run one process of the ceiling until it is killed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--file", type=Path, required=True)
    parser.add_argument("--followers", nargs="*", default=[])
    parser.add_argument("--flush", action="store_true")
    arguments = parser.parse_args()
    tune_allocator()
    uvloop.run(serve(arguments.file, arguments.followers, is_flushed=arguments.flush))


if __name__ == "__main__":
    main()
