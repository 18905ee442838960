# SPDX-License-Identifier: Apache-2.0
"""The ceiling: a bare grpc.aio server that does to the same bytes what any log server must, and nothing else.

Produce checks the CRC-32C of the message and appends it to one file (`none`), or appends and answers after a group fdatasync (`ack`).
Fetch sends the file in chunks by pread. Relay appends one small message and pushes it to one subscriber. Messages are raw bytes:
no protobuf, no partitions, no sequence numbers. allocator tuning and uvloop as in Lograft's own servers.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import struct
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import uvloop
from crc32c import crc32c
from lograft.wire.malloc import tune_allocator

SERVICE = "ceiling.Ceiling"
ACK = b"\x01"
MAX_MESSAGE_BYTES = 16 * 1024 * 1024
CRC = struct.Struct(">I")
CRC_POSITION, CRC_COVERS_FROM = 17, 21
CPU = struct.Struct(">d")
FETCH = struct.Struct(">IQ")


def identity(data: bytes) -> bytes:
    """Pass a message through unparsed."""
    return data


class Ceiling:
    """The handlers, with one file, one flusher thread, and at most one relay subscriber."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        self._flusher = ThreadPoolExecutor(1)
        self._subscribers: list[asyncio.Queue[bytes]] = []

    def _append(self, message: bytes) -> None:
        if CRC.unpack_from(message, CRC_POSITION)[0] != crc32c(memoryview(message)[CRC_COVERS_FROM:]):
            raise ValueError("checksum does not match")
        os.writev(self._descriptor, [message])

    async def produce_none(self, requests: AsyncIterator[bytes], _context: object) -> AsyncIterator[bytes]:
        """Append each message to the page cache and answer."""
        async for message in requests:
            self._append(message)
            yield ACK

    async def produce_ack(self, requests: AsyncIterator[bytes], context: grpc.aio.ServicerContext) -> None:
        """Append each message and answer once a group fdatasync has covered it."""
        loop = asyncio.get_running_loop()
        appended = asyncio.Event()
        waiting, finished = 0, False

        async def flush_groups() -> None:
            nonlocal waiting
            while not (finished and waiting == 0):
                await appended.wait()
                appended.clear()
                group, waiting = waiting, 0
                if group:
                    await loop.run_in_executor(self._flusher, os.fdatasync, self._descriptor)
                for _ in range(group):
                    await context.write(ACK)
                if waiting or finished:
                    appended.set()

        flushing = asyncio.create_task(flush_groups())
        async for message in requests:
            self._append(message)
            waiting += 1
            appended.set()
        finished = True
        appended.set()
        await flushing

    async def fetch(self, request: bytes, _context: object) -> AsyncIterator[bytes]:
        """Send the first `limit` bytes of the file in chunks of the requested size."""
        chunk_bytes, limit = FETCH.unpack(request)
        for position in range(0, limit, chunk_bytes):
            yield os.pread(self._descriptor, min(chunk_bytes, limit - position), position)

    async def relay(self, requests: AsyncIterator[bytes], _context: object) -> AsyncIterator[bytes]:
        """Append each message, push it to the subscribers, and answer."""
        async for message in requests:
            self._append(message)
            for subscriber in self._subscribers:
                subscriber.put_nowait(message)
            yield ACK

    async def subscribe(self, _request: bytes, context: grpc.aio.ServicerContext) -> AsyncIterator[bytes]:
        """Receive what `relay` appends from now on."""
        await context.send_initial_metadata(())
        queue: asyncio.Queue[bytes] = asyncio.Queue()
        self._subscribers.append(queue)
        try:
            yield b""
            while True:
                yield await queue.get()
        finally:
            self._subscribers.remove(queue)

    async def cpu(self, _request: bytes, _context: object) -> bytes:
        """Return the CPU seconds of this process."""
        times = os.times()
        return CPU.pack(times.user + times.system)


def handlers(ceiling: Ceiling) -> grpc.GenericRpcHandler:
    """Return the handlers with identity serializers."""
    stream_stream = grpc.stream_stream_rpc_method_handler
    return grpc.method_handlers_generic_handler(
        SERVICE,
        {
            "ProduceNone": stream_stream(ceiling.produce_none, identity, identity),
            "ProduceAck": stream_stream(ceiling.produce_ack, identity, identity),
            "Relay": stream_stream(ceiling.relay, identity, identity),
            "Fetch": grpc.unary_stream_rpc_method_handler(ceiling.fetch, identity, identity),
            "Subscribe": grpc.unary_stream_rpc_method_handler(ceiling.subscribe, identity, identity),
            "Cpu": grpc.unary_unary_rpc_method_handler(ceiling.cpu, identity, identity),
        },
    )


async def serve(path: Path) -> None:
    """Serve on an ephemeral loopback port, printed as `ready PORT`."""
    server = grpc.aio.server(
        options=[
            ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
            ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
        ]
    )
    server.add_generic_rpc_handlers((handlers(Ceiling(path)),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(f"ready {port}", flush=True)
    await server.wait_for_termination()


def main() -> None:
    """Run the ceiling server until it is killed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--file", type=Path, required=True)
    arguments = parser.parse_args()
    tune_allocator()
    uvloop.run(serve(arguments.file))


if __name__ == "__main__":
    main()
