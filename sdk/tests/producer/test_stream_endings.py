# SPDX-License-Identifier: Apache-2.0
"""A produce stream that ends returns its partitions, whatever else happens at the same time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import cast

import grpc
import grpc.aio
import pytest
from lograft._client.cluster import Cluster
from lograft._client.metadata import Leader
from lograft._client.transport import OpenCall, finish, open_call
from lograft._producer import stream as produce_stream
from lograft._producer.sequencer import PartitionSequencer
from lograft._producer.stream import PartitionSender, ProduceStream, Session, StreamOwner
from lograft.errors import LograftError, NoBrokerError
from lograft.settings import STREAM_SILENCE_MS, ProducerSettings, parse_bootstrap

DEADLINE_S = 20.0
Ended = tuple[list[PartitionSender], LograftError]


class Owner:
    """Notes what a stream that never opens returns."""

    def __init__(self) -> None:
        self.ended: asyncio.Future[Ended] = asyncio.get_running_loop().create_future()

    def on_stream_end(self, stream: ProduceStream, senders: Sequence[PartitionSender], error: LograftError) -> None:
        """See `StreamOwner`."""
        self.ended.set_result((list(senders), error))

    def __getattr__(self, name: str) -> object:
        raise AssertionError(f"the stream never opened, and called {name}")


def test_a_reset_while_a_failed_opening_winds_up_loses_no_partition(
    bootstrap: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock of the broker's silence may run out at the same moment. The partition is returned all the same."""

    async def lose() -> Ended:
        is_winding_up, go_on = asyncio.Event(), asyncio.Event()

        async def slow_finish(opened: OpenCall[object]) -> None:
            is_winding_up.set()
            await go_on.wait()
            await finish(opened)

        monkeypatch.setattr(produce_stream, "finish", slow_finish)
        client = parse_bootstrap(bootstrap, "not-the-id-of-this-cluster")
        cluster, owner, settings = Cluster(client), Owner(), ProducerSettings()
        host, port = bootstrap.rsplit(":", 1)
        leader = Leader(broker_id=0, leader_epoch=0, address=f"{host}:{port}")
        stream = ProduceStream(cast("StreamOwner", owner), cluster, settings, Session(), leader=leader)
        sender = PartitionSender(
            "t", 0, sequencer=PartitionSequencer(is_numbered=True), session=stream.session, backoff=cluster.backoff()
        )
        stream.bind(sender)
        async with asyncio.timeout(DEADLINE_S):
            await is_winding_up.wait()
            stream.check_silence(2**62 + STREAM_SILENCE_MS)
            await asyncio.sleep(0)
            go_on.set()
            senders, error = await owner.ended
        assert senders == [sender]
        await cluster.close()
        return senders, error

    _, error = asyncio.run(lose())
    assert "cluster" in str(error)


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
        started: asyncio.Future[OpenCall[grpc.aio.Call]] = asyncio.get_running_loop().create_future()

        async def noted_open_call(start: Callable[[], grpc.aio.Call]) -> OpenCall[grpc.aio.Call]:
            opened = await open_call(start)
            started.set_result(opened)
            return opened

        monkeypatch.setattr(produce_stream, "open_call", noted_open_call)
        cluster, owner, session = Cluster(parse_bootstrap(f"127.0.0.1:{port}", None)), Owner(), Session()
        leader = Leader(broker_id=0, leader_epoch=0, address=f"127.0.0.1:{port}")
        async with session.handshake, asyncio.timeout(DEADLINE_S):
            stream = ProduceStream(cast("StreamOwner", owner), cluster, ProducerSettings(), session, leader=leader)
            sender = PartitionSender(
                "t", 0, sequencer=PartitionSequencer(is_numbered=True), session=session, backoff=cluster.backoff()
            )
            stream.bind(sender)
            assert await (await started).call.code() is grpc.StatusCode.UNAVAILABLE
        async with asyncio.timeout(DEADLINE_S):
            ended = await owner.ended
        await cluster.close()
        await server.stop(None)
        return ended

    _, error = asyncio.run(lose())
    assert isinstance(error, NoBrokerError)
    assert "going down" in str(error)
