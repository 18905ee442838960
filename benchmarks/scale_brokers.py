# SPDX-License-Identifier: Apache-2.0
"""Brokers of the scale benchmark that host nothing: they register, send heartbeats, and follow the active controller.

Each speaks the controller's calls as a broker does. They share one gRPC listener, so that a redial finds life; the first broker,
the *victim*, names a port on which nobody listens: when its stream breaks it is found gone, as a killed process is.
Everything runs on one event loop.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Sequence

import grpc
import grpc.aio
from lograft.internal.v1 import controller_pb2

from integration_tests.cluster.cluster import CLUSTER_ID, HOST
from integration_tests.cluster.ports import free_port

HEARTBEAT_S = 0.5
"""Seconds between two heartbeats."""

RETRY_S = 0.1
"""Seconds before the next voter is tried."""

CALL_TIMEOUT_S = 3.0
CAUGHT_UP_OFFSET = 2**62
"""Metadata offset that the brokers claim to have applied: they hold no metadata."""

_SERVICE = "/lograft.internal.v1.ControllerService/"


class HollowBroker:
    """One broker; `run` keeps it registered until it is cancelled.

    Args:
        broker_id: node id.
        addresses: quorum listeners of the voters.
        port: port that it names as its own.
    """

    def __init__(self, broker_id: int, addresses: Sequence[str], port: int) -> None:
        self.broker_id = broker_id
        self.broker_epoch = 0
        self.unfenced = asyncio.Event()
        self._addresses = addresses
        self._port = port
        self._incarnation_id = os.urandom(16)

    async def run(self) -> None:
        """Register and send heartbeats, with the next voter whenever one refuses."""
        while True:
            for address in self._addresses:
                try:
                    async with grpc.aio.insecure_channel(address) as channel:
                        await self._serve(channel)
                except grpc.aio.AioRpcError:
                    self.unfenced.clear()
                    await asyncio.sleep(RETRY_S)

    async def _serve(self, channel: grpc.aio.Channel) -> None:
        register = channel.unary_unary(
            _SERVICE + "RegisterBroker", response_deserializer=controller_pb2.RegisterBrokerResponse.FromString
        )
        request = controller_pb2.RegisterBrokerRequest(
            cluster_id=CLUSTER_ID,
            broker_id=self.broker_id,
            incarnation_id=self._incarnation_id,
            host=HOST,
            port=self._port,
            log_directory_ids=[self._incarnation_id],
            feature_level=controller_pb2.FeatureRange(min_level=1, max_level=1),
        )
        answer = await register(request.SerializeToString(), timeout=CALL_TIMEOUT_S)
        self.broker_epoch = answer.broker_epoch
        beats = channel.stream_stream(
            _SERVICE + "Heartbeat", response_deserializer=controller_pb2.HeartbeatResponse.FromString
        )
        async for response in beats(self._requests(answer.broker_epoch)):
            if response.fenced:
                self.unfenced.clear()
            else:
                self.unfenced.set()

    async def _requests(self, broker_epoch: int) -> AsyncIterator[bytes]:
        beat = controller_pb2.HeartbeatRequest(
            cluster_id=CLUSTER_ID,
            broker_id=self.broker_id,
            broker_epoch=broker_epoch,
            metadata_offset=CAUGHT_UP_OFFSET,
        ).SerializeToString()
        while True:
            yield beat
            await asyncio.sleep(HEARTBEAT_S)


class HollowBrokers:
    """Some brokers, from an id on; the first is the victim.

    Args:
        first_id: node id of the victim.
        count: how many.
        addresses: quorum listeners of the voters.
    """

    def __init__(self, first_id: int, count: int, addresses: Sequence[str]) -> None:
        self._first_id = first_id
        self._count = count
        self._addresses = addresses
        self._server = grpc.aio.server()
        self._brokers: dict[int, HollowBroker] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}

    @property
    def victim_id(self) -> int:
        """Node id of the broker that `lose` takes away."""
        return self._first_id

    @property
    def victim_epoch(self) -> int:
        """Epoch of the victim's registration."""
        return self._brokers[self.victim_id].broker_epoch

    @property
    def ids(self) -> range:
        """Node ids of all."""
        return range(self._first_id, self._first_id + self._count)

    async def start(self) -> None:
        """Start all and wait until all may lead."""
        port = self._server.add_insecure_port(f"{HOST}:0")
        await self._server.start()
        for broker_id in range(self._first_id, self._first_id + self._count):
            self._start(broker_id, free_port() if broker_id == self._first_id else port)
        await self.wait_unfenced()

    def _start(self, broker_id: int, port: int) -> None:
        broker = HollowBroker(broker_id, self._addresses, port)
        self._brokers[broker_id] = broker
        self._tasks[broker_id] = asyncio.create_task(broker.run())

    async def wait_unfenced(self) -> None:
        """Wait until every one that runs may lead."""
        for broker in self._brokers.values():
            await broker.unfenced.wait()

    async def lose(self) -> None:
        """Break the victim's stream, as its death does."""
        await self._end(self.victim_id)

    async def restore(self) -> None:
        """Start the victim again, as another process; returns when it may lead."""
        self._start(self.victim_id, free_port())
        await self.wait_unfenced()

    async def _end(self, broker_id: int) -> None:
        del self._brokers[broker_id]
        task = self._tasks.pop(broker_id)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    async def stop(self) -> None:
        """End all."""
        for broker_id in list(self._tasks):
            await self._end(broker_id)
        await self._server.stop(0)
