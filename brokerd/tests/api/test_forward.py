# SPDX-License-Identifier: Apache-2.0
"""What a forwarded call means when the other broker is gone, silent, or answers nonsense."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio
import pytest
from lograft.v1 import log_pb2
from lograft.wire.codes import ErrorCode

from brokerd.api.forward import Forwarder
from brokerd.api.forwarded import FORWARDED_KEY
from brokerd.controller_client.peer_channels import PeerChannels
from brokerd.failure import LeaderPlace, RefusedError
from metaquorum.metadata.listener import CommittedBatch
from metaquorum.metadata.loader import MetadataLoader

METHOD = "/lograft.v1.LogService/Read"
Behaviour = Callable[[bytes, Any], Awaitable[bytes]]


def place(port: int) -> LeaderPlace:
    return LeaderPlace(leader_id=2, leader_epoch=1, host="127.0.0.1", port=port)


@asynccontextmanager
async def peer(behaviour: Behaviour) -> AsyncIterator[tuple[Forwarder, LeaderPlace, grpc.aio.Server]]:
    """A peer that answers Read as told."""
    server = grpc.aio.server()
    methods = {"Read": grpc.unary_unary_rpc_method_handler(behaviour)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("lograft.v1.LogService", methods),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    peers = PeerChannels()
    try:
        yield Forwarder(peers, MetadataLoader()), place(port), server
    finally:
        await peers.close()
        await server.stop(None)


def nothing_committed_up_to(next_offset: int) -> CommittedBatch:
    return CommittedBatch(
        base_offset=0, next_offset=next_offset, quorum_epoch=1, append_timestamp_ms=0, records=[], is_control=True
    )


async def code_of(forwarder: Forwarder, leader: LeaderPlace, *, is_read_only: bool, timeout_ms: int) -> ErrorCode:
    with pytest.raises(RefusedError) as caught:
        await forwarder.call(
            leader,
            METHOD,
            log_pb2.ReadRequest(),
            log_pb2.ReadResponse,
            timeout_ms=timeout_ms,
            is_read_only=is_read_only,
        )
    return caught.value.failure.code


async def test_peer_that_cannot_be_reached_got_nothing() -> None:
    """No connection means that nothing left: a retry is safe, also for an append."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    peers = PeerChannels()
    for is_read_only in (True, False):
        code = await code_of(
            Forwarder(peers, MetadataLoader()), place(port), is_read_only=is_read_only, timeout_ms=2_000
        )
        assert code is ErrorCode.LEADER_NOT_AVAILABLE
    await peers.close()


@pytest.mark.parametrize(
    ("is_read_only", "code"), [(True, ErrorCode.TIMED_OUT), (False, ErrorCode.OUTCOME_UNKNOWN)], ids=["read", "append"]
)
async def test_silent_peer_leaves_an_append_unknown(is_read_only: bool, code: ErrorCode) -> None:
    """When the time is over a read was only late, an append may have happened."""

    async def silent(_request: bytes, _context: Any) -> bytes:
        await asyncio.Event().wait()
        raise AssertionError

    async with peer(silent) as (forwarder, leader, _):
        assert await code_of(forwarder, leader, is_read_only=is_read_only, timeout_ms=2_000) is code


@pytest.mark.parametrize(
    ("is_read_only", "code"),
    [(True, ErrorCode.LEADER_NOT_AVAILABLE), (False, ErrorCode.OUTCOME_UNKNOWN)],
    ids=["read", "append"],
)
async def test_peer_that_dies_under_the_call_leaves_an_append_unknown(is_read_only: bool, code: ErrorCode) -> None:
    """A connection that breaks after the bytes have left says nothing about an append."""
    arrived = asyncio.Event()

    async def hang(_request: bytes, _context: Any) -> bytes:
        arrived.set()
        await asyncio.Event().wait()
        raise AssertionError

    async with peer(hang) as (forwarder, leader, server):
        arrival = asyncio.create_task(arrived.wait())
        call = None
        while not arrived.is_set():
            # On a busy machine a call may be given up before it has left.
            call = asyncio.create_task(code_of(forwarder, leader, is_read_only=is_read_only, timeout_ms=5_000))
            await asyncio.wait((call, arrival), return_when=asyncio.FIRST_COMPLETED)
        assert call is not None
        await server.stop(None)
        assert await call is code


async def test_call_says_what_the_forwarder_had_seen() -> None:
    """The leader can wait for the metadata that made the forwarder choose it."""
    marks: list[str] = []

    async def note(_request: bytes, context: Any) -> bytes:
        marks.extend(value for key, value in context.invocation_metadata() if key == FORWARDED_KEY)
        return b""

    async with peer(note) as (_, leader, _):
        peers, observer = PeerChannels(), MetadataLoader()
        forwarder = Forwarder(peers, observer)
        for next_offset in (3, 7):
            observer.on_commit(nothing_committed_up_to(next_offset))
            await forwarder.call(
                leader, METHOD, log_pb2.ReadRequest(), log_pb2.ReadResponse, timeout_ms=5_000, is_read_only=True
            )
        await peers.close()
    assert marks == ["3", "7"]


async def test_answer_of_no_use_is_internal() -> None:
    """Bytes that are no answer are the fault of the cluster, not of the client."""

    async def nonsense(_request: bytes, _context: Any) -> bytes:
        return b"\xff\xff\xff"

    async with peer(nonsense) as (forwarder, leader, _):
        assert await code_of(forwarder, leader, is_read_only=True, timeout_ms=5_000) is ErrorCode.INTERNAL


async def test_channels_are_shared_and_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """One channel for an address; beyond the bound the one idle longest is closed, those in use never."""
    monkeypatch.setattr("brokerd.controller_client.peer_channels.MAX_PEER_CHANNELS", 2)
    peers = PeerChannels()
    async with peers.use("127.0.0.1:1") as first, peers.use("127.0.0.1:2"):
        async with peers.use("127.0.0.1:1") as again:
            assert again is first
        async with peers.use("127.0.0.1:3") as third:
            pass
    async with peers.use("127.0.0.1:4"), peers.use("127.0.0.1:3") as kept:
        assert kept is third
    async with peers.use("127.0.0.1:1") as reopened:
        assert reopened is not first
    await peers.close()
