# SPDX-License-Identifier: Apache-2.0
"""The hostile clients, in their own process: `python -m integration_tests.scenarios.hostile.attackers KIND host:port`.

Prints one line of JSON when the attack is complete, holds it until standard input ends, and prints another line with its results.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import resource
import selectors
import socket
import sys
import threading
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any, Final

import grpc
import grpc.aio
from lograft.v1 import log_pb2, metadata_pb2

from integration_tests.scenarios.hostile.bombs import all_kinds
from integration_tests.scenarios.hostile.http2 import WINDOW_MAX, Connection, greeting, grpc_call

BACKLOG_TOPIC = "backlog"
"""Topic whose partition 0 has batches of about 1 MB, and partition 1 of 64 KB."""
BOMB_TOPIC = "bombs"
FETCH, PRODUCE = "/lograft.v1.LogService/Fetch", "/lograft.v1.LogService/Produce"
APPEND, READ = "/lograft.v1.LogService/Append", "/lograft.v1.LogService/Read"
WATCH = "/lograft.v1.MetadataService/WatchCluster"

IDLE_CONNECTIONS = 5_000
CHANNELS = 600
READERS = 200
BOMBERS = 40
BOMB_READERS = 8
"""Readers among the bombers. They read what the others managed to store."""
HUGE_SENDERS = 20
HUGE_BYTES = 60_000_000
CREDIT_BYTES = 1 << 30
CHUNK_BYTES = 4 * 1024 * 1024
CALL_TIMEOUT_S = 60.0
OPEN_TIMEOUT_S = 120.0
OPENED_AT_ONCE = 50
SPARE_DESCRIPTORS = 200
CHECK_S = 0.2
AFTER_FAILURE_S = 0.05

Seen = Counter[str]
"""Number of results by kind."""


def say(**what: object) -> None:
    """Send a line to the process that started this one."""
    print(json.dumps(what), flush=True)


def fetch_open(partition: int) -> bytes:
    """Return the opening of a fetch stream with credit for nearly everything at once."""
    route = log_pb2.FetchRoute(route=1, topic=BACKLOG_TOPIC, partition=partition, offset=0)
    opening = log_pb2.FetchOpen(routes=[route], credit_bytes=CREDIT_BYTES, max_chunk_bytes=CHUNK_BYTES)
    return log_pb2.FetchRequest(open=opening).SerializeToString()


def produce_open() -> bytes:
    """Return the opening of a produce stream of one route."""
    route = log_pb2.ProduceRoute(route=1, topic=BOMB_TOPIC, partition=0)
    return log_pb2.ProduceRequest(
        open=log_pb2.ProduceOpen(without_idempotence=True, routes=[route])
    ).SerializeToString()


def new_channel(address: str) -> grpc.aio.Channel:
    """Return a channel with its own connection."""
    options = (
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.max_send_message_length", -1),
        ("grpc.enable_http_proxy", 0),
    )
    return grpc.aio.insecure_channel(address, options=options)


def stream(channel: grpc.aio.Channel, method: str) -> Any:
    """Open a bidirectional stream of bytes."""
    return channel.stream_stream(method)()


async def end_of_input() -> None:
    """Wait until standard input ends. A daemon thread waits, so that it does not keep this process alive."""
    loop, ended = asyncio.get_running_loop(), asyncio.Event()

    def wait() -> None:
        sys.stdin.read()
        loop.call_soon_threadsafe(ended.set)

    threading.Thread(target=wait, daemon=True).start()
    await ended.wait()


async def open_all(count: int, opening: Callable[[int], Awaitable[object]], seen: Seen) -> None:
    """Open the streams 0 to `count`, several at once."""
    slots = asyncio.Semaphore(OPENED_AT_ONCE)

    async def one(index: int) -> None:
        async with slots:
            try:
                async with asyncio.timeout(OPEN_TIMEOUT_S):
                    await opening(index)
            except grpc.aio.AioRpcError as error:
                seen[error.code().name] += 1
            except TimeoutError:
                seen["no answer"] += 1
            else:
                seen["opened"] += 1

    await asyncio.gather(*(one(index) for index in range(count)))


async def idle(address: str) -> Seen:
    """Hold connections that send no requests and answer pings."""
    host, port = address.split(":")
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    count = min(IDLE_CONNECTIONS, limit - SPARE_DESCRIPTORS)
    seen = Seen({"connections": count})
    stopped = threading.Event()
    ready = threading.Event()

    def hold() -> None:
        with selectors.DefaultSelector() as selector:
            for opened in range(count):
                connection = Connection((host, int(port)))
                selector.register(connection.socket, selectors.EVENT_READ, connection)
                if opened % OPENED_AT_ONCE == 0:
                    take(selector)
            ready.set()
            while not stopped.is_set():
                take(selector)

    def take(selector: selectors.BaseSelector) -> None:
        for key, _ in selector.select(CHECK_S if ready.is_set() else 0):
            if not key.data.on_readable():
                selector.unregister(key.data.socket)
                key.data.socket.close()
                seen["closed by the server"] += 1

    holding = asyncio.create_task(asyncio.to_thread(hold))
    await asyncio.wait((holding, asyncio.create_task(asyncio.to_thread(ready.wait))), return_when="FIRST_COMPLETED")
    say(ready=True, **seen)
    await end_of_input()
    stopped.set()
    await holding
    return seen


async def channels(address: str) -> Seen:
    """Hold channels with four open streams each: two fetch, one produces, one watches."""
    seen, made, held = Seen(), [new_channel(address) for _ in range(CHANNELS)], list[Any]()

    async def opening(index: int) -> None:
        channel, kind = made[index // 4], index % 4
        if kind < 3:
            call = stream(channel, PRODUCE if kind == 2 else FETCH)
            held.append(call)
            await call.write(produce_open() if kind == 2 else fetch_open(3))
        else:
            request = metadata_pb2.WatchClusterRequest().SerializeToString()
            call = channel.unary_stream(WATCH)(request)
            held.append(call)
        await call.read()

    await open_all(CHANNELS * 4, opening, seen)
    say(ready=True, **seen)
    await end_of_input()
    return seen


async def readers(address: str) -> Seen:
    """Hold fetch streams on connections of their own that grant credit and never read."""
    seen, made, held = Seen(), [new_channel(address) for _ in range(READERS)], list[Any]()

    async def opening(index: int) -> None:
        call = stream(made[index], FETCH)
        held.append(call)
        await call.write(fetch_open(index % 2))

    await open_all(READERS, opening, seen)
    say(ready=True, **seen)
    await end_of_input()
    for call in held:
        if call.done():
            seen[f"ended: {(await call.code()).name}"] += 1
    return seen


async def sockets(address: str) -> Seen:
    """Hold fetch streams on plain sockets, with the largest windows and without any read."""
    host, port = address.split(":")
    held: list[socket.socket] = []
    for index in range(READERS):
        connection = socket.create_connection((host, int(port)))
        connection.sendall(greeting(window=WINDOW_MAX) + grpc_call(FETCH, address, fetch_open(index % 2)))
        held.append(connection)
    say(ready=True, opened=len(held))
    await end_of_input()
    for connection in held:
        connection.close()
    return Seen({"opened": len(held)})


async def bombers(address: str) -> Seen:
    """Send batches that inflate to the limit or beyond, as fast as they are answered, and read the stored ones."""
    seen, bodies = Seen(), itertools.cycle(all_kinds())

    async def send(channel: grpc.aio.Channel) -> None:
        batch = log_pb2.ProduceBatch(route=1, batch_number=1, body=next(bodies))
        call = stream(channel, PRODUCE)
        await call.write(produce_open())
        await call.write(log_pb2.ProduceRequest(batch=batch).SerializeToString())
        await call.done_writing()
        async for answer in call:
            kind = log_pb2.ProduceResponse.FromString(answer).WhichOneof("message")
            if kind != "opened":
                seen["refused" if kind == "route_end" else "stored"] += 1

    async def read(channel: grpc.aio.Channel) -> None:
        call = channel.unary_unary(READ, log_pb2.ReadRequest.SerializeToString, log_pb2.ReadResponse.FromString)
        request = log_pb2.ReadRequest(topic=BOMB_TOPIC, partition=0, offset=next(offsets), max_wait_ms=1_000)
        await call(request, timeout=CALL_TIMEOUT_S)
        seen["read"] += 1

    # Offsets within the first records of each kind that is stored.
    offsets = itertools.cycle((0, 1, 2, 100_002))
    await repeat(address, seen, [*[send] * (BOMBERS - BOMB_READERS), *[read] * BOMB_READERS])
    return seen


async def huge(address: str) -> Seen:
    """Send messages far above gRPC's size limit, many at once, as calls and as batches of streams."""
    seen, body = Seen(), bytes(HUGE_BYTES)
    batch = log_pb2.ProduceRequest(batch=log_pb2.ProduceBatch(route=1, batch_number=1, body=body)).SerializeToString()
    append = log_pb2.AppendRequest(topic=BOMB_TOPIC, records=[log_pb2.Record(value=body)]).SerializeToString()

    async def send_batch(channel: grpc.aio.Channel) -> None:
        call = stream(channel, PRODUCE)
        await call.write(produce_open())
        await call.write(batch)
        await call.read()
        await call.read()

    async def send_append(channel: grpc.aio.Channel) -> None:
        await channel.unary_unary(APPEND)(append, timeout=CALL_TIMEOUT_S)

    half = HUGE_SENDERS // 2
    await repeat(address, seen, [*[send_batch] * half, *[send_append] * half])
    return seen


async def repeat(address: str, seen: Seen, attacks: list[Callable[[grpc.aio.Channel], Awaitable[None]]]) -> None:
    """Repeat each attack on its own connection until standard input ends, and count how calls fail."""

    async def one(attack: Callable[[grpc.aio.Channel], Awaitable[None]]) -> None:
        channel = new_channel(address)
        while True:
            try:
                await attack(channel)
            except (grpc.aio.AioRpcError, asyncio.InvalidStateError) as error:
                seen[error.code().name if isinstance(error, grpc.aio.AioRpcError) else "ended"] += 1
                await asyncio.sleep(AFTER_FAILURE_S)

    tasks = [asyncio.create_task(one(attack)) for attack in attacks]
    say(ready=True, attackers=len(tasks))
    await end_of_input()
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


KINDS: Final = {
    "idle": idle,
    "channels": channels,
    "readers": readers,
    "sockets": sockets,
    "bombers": bombers,
    "huge": huge,
}


def main() -> int:
    """Attack."""
    kind, address = sys.argv[1:]
    say(**asyncio.run(KINDS[kind](address)))
    sys.stdout.flush()
    # What is still open belongs to the attack, so this does not wait for it.
    os._exit(0)


if __name__ == "__main__":
    main()
