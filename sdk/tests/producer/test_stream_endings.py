# SPDX-License-Identifier: Apache-2.0
"""A produce stream that ends returns its partitions, whatever else happens at the same time."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, cast

import grpc
import grpc.aio
import pytest
from lograft import Admin
from lograft._client.cluster import Cluster
from lograft._client.metadata import Leader
from lograft._producer.sequencer import PartitionSequencer
from lograft._producer.stream import PartitionSender, ProduceStream, Session, StreamOwner
from lograft.errors import LograftError, NoBrokerError
from lograft.settings import STREAM_SILENCE_MS, ProducerSettings, parse_bootstrap

DEADLINE_S = 20.0
Ended = tuple[list[PartitionSender], LograftError]


class Owner:
    """Notes what a stream returns that carries nothing."""

    def __init__(self) -> None:
        self.ended: asyncio.Future[Ended] = asyncio.get_running_loop().create_future()

    def on_stream_end(self, stream: ProduceStream, senders: Sequence[PartitionSender], error: LograftError) -> None:
        """See `StreamOwner`."""
        self.ended.set_result((list(senders), error))

    def on_bound(self, sender: PartitionSender, route: object) -> None:
        """See `StreamOwner`."""

    def __getattr__(self, name: str) -> object:
        raise AssertionError(f"the stream carried nothing, and called {name}")


def test_a_reset_while_a_stream_winds_up_loses_no_partition(bootstrap: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock of the broker's silence may run out while the stream waits for its writer. The partition is returned all the same."""
    with Admin(bootstrap) as admin:
        admin.create_topic("winds-up")

    async def lose() -> Ended:
        is_winding_up, go_on = asyncio.Event(), asyncio.Event()
        write = ProduceStream._write

        async def slow_write(stream: ProduceStream, call: Any) -> None:
            await write(stream, call)
            is_winding_up.set()
            await go_on.wait()

        monkeypatch.setattr(ProduceStream, "_write", slow_write)
        cluster, owner, settings = Cluster(parse_bootstrap(bootstrap, None)), Owner(), ProducerSettings()
        host, port = bootstrap.rsplit(":", 1)
        leader = Leader(broker_id=0, leader_epoch=0, address=f"{host}:{port}")
        stream = ProduceStream(cast("StreamOwner", owner), cluster, settings, Session(), leader=leader)
        sequencer = PartitionSequencer(is_numbered=True)
        sender = PartitionSender("winds-up", 0, sequencer=sequencer, session=stream.session, backoff=cluster.backoff())
        stream.bind(sender)
        async with asyncio.timeout(DEADLINE_S):
            while stream._call is None:  # noqa: ASYNC110 - nothing tells of it
                await asyncio.sleep(0.001)
            stream._call.cancel()
            await is_winding_up.wait()
            stream.check_silence(2**62 + STREAM_SILENCE_MS)
            await asyncio.sleep(0)
            go_on.set()
            senders, error = await owner.ended
        assert senders == [sender]
        await cluster.close()
        return senders, error

    _, error = asyncio.run(lose())
    assert "cancelled" in str(error)


class _Refusing(grpc.GenericRpcHandler):
    """Ends every call before it reads from it."""

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[bytes, bytes]:
        async def refuse(_requests: object, context: grpc.aio.ServicerContext[bytes, bytes]) -> None:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "going down")

        return grpc.stream_stream_rpc_method_handler(refuse)


def test_a_call_that_ends_before_its_opening_is_written_tells_why(monkeypatch: pytest.MonkeyPatch) -> None:
    """The stream waits for the handshake of another one. Its partitions must be retried, not failed."""

    async def lose() -> Ended:
        server = grpc.aio.server()
        server.add_generic_rpc_handlers((_Refusing(),))
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        started: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        open_stream = ProduceStream._open

        async def noted_open(stream: ProduceStream, call: Any) -> None:
            started.set_result(call)
            await open_stream(stream, call)

        monkeypatch.setattr(ProduceStream, "_open", noted_open)
        cluster, owner, session = Cluster(parse_bootstrap(f"127.0.0.1:{port}", None)), Owner(), Session()
        leader = Leader(broker_id=0, leader_epoch=0, address=f"127.0.0.1:{port}")
        async with session.handshake, asyncio.timeout(DEADLINE_S):
            stream = ProduceStream(cast("StreamOwner", owner), cluster, ProducerSettings(), session, leader=leader)
            sender = PartitionSender(
                "t", 0, sequencer=PartitionSequencer(is_numbered=True), session=session, backoff=cluster.backoff()
            )
            stream.bind(sender)
            assert await (await started).code() is grpc.StatusCode.UNAVAILABLE
        async with asyncio.timeout(DEADLINE_S):
            ended = await owner.ended
        await cluster.close()
        await server.stop(None)
        return ended

    _, error = asyncio.run(lose())
    assert isinstance(error, NoBrokerError)
    assert "going down" in str(error)
