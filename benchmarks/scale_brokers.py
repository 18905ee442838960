# SPDX-License-Identifier: Apache-2.0
"""Brokers of the scale benchmark without replicas: they register, send heartbeats, and follow the active controller.

Each makes the controller calls of a broker. They share one gRPC listener, so a test connection to them succeeds. The first broker, the
*victim*, names a port on which no process listens. When its connection breaks it is found gone, like a killed process. Everything runs
on one event loop.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping

import grpc.aio
from lograft.internal.v1 import controller_pb2

from integration_tests.harness.cluster import CLUSTER_ID, HOST
from metaquorum.net.link import CallError
from metaquorum.net.service import RefusalError
from metaquorum.testing.peer_client import ControllerCalls, PeerClient
from metaquorum.testing.ports import free_port

HEARTBEAT_S = 0.5
"""Seconds between two heartbeats."""

RETRY_S = 0.1
"""Seconds before the next voter is tried."""

CALL_TIMEOUT_MS = 3_000


class HollowBroker:
    """One broker; `run` keeps it registered until it is cancelled.

    Args:
        broker_id: node id.
        addresses: internal ports of the voters, by node id.
        port: port that it registers as its own.
    """

    def __init__(self, broker_id: int, addresses: Mapping[int, str], port: int) -> None:
        self.broker_id = broker_id
        self.broker_epoch = 0
        self.unfenced = asyncio.Event()
        self._addresses = addresses
        self._port = port
        self._incarnation_id = os.urandom(16)

    async def run(self) -> None:
        """Register and send heartbeats. After a refusal use the next voter."""
        while True:
            for address in self._addresses.values():
                try:
                    async with PeerClient(CLUSTER_ID, node_id=self.broker_id) as client:
                        await self._serve(ControllerCalls(client, address))
                except (CallError, RefusalError):
                    self.unfenced.clear()
                    await asyncio.sleep(RETRY_S)

    async def _serve(self, controller: ControllerCalls) -> None:
        request = controller_pb2.RegisterBrokerRequest(
            cluster_id=CLUSTER_ID,
            broker_id=self.broker_id,
            incarnation_id=self._incarnation_id,
            host=HOST,
            port=self._port,
            log_directory_ids=[self._incarnation_id],
            feature_level=controller_pb2.FeatureRange(min_level=1, max_level=1),
        )
        answer = await controller.register(request, timeout_ms=CALL_TIMEOUT_MS)
        self.broker_epoch = answer.broker_epoch
        beat = controller_pb2.HeartbeatRequest(
            cluster_id=CLUSTER_ID,
            broker_id=self.broker_id,
            broker_epoch=answer.broker_epoch,
            # The broker holds no metadata. It claims its own registration, which is enough to be unfenced.
            metadata_offset=answer.broker_epoch + 1,
        )
        while True:
            response = await controller.heartbeat(beat, timeout_ms=CALL_TIMEOUT_MS)
            if response.fenced:
                self.unfenced.clear()
            else:
                self.unfenced.set()
            await asyncio.sleep(HEARTBEAT_S)


class HollowBrokers:
    """Several brokers with consecutive ids; the first is the victim.

    Args:
        first_id: node id of the victim.
        count: number of brokers.
        addresses: internal ports of the voters, by node id.
    """

    def __init__(self, first_id: int, count: int, addresses: Mapping[int, str]) -> None:
        self._first_id = first_id
        self._count = count
        self.addresses = addresses
        self._server = grpc.aio.server()
        self._brokers: dict[int, HollowBroker] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}

    @property
    def victim_id(self) -> int:
        """Node id of the victim."""
        return self._first_id

    @property
    def victim_epoch(self) -> int:
        """Epoch of the victim's registration."""
        return self._brokers[self.victim_id].broker_epoch

    @property
    def ids(self) -> range:
        """Node ids of all brokers."""
        return range(self._first_id, self._first_id + self._count)

    async def start(self) -> None:
        """Start all brokers and wait until all are unfenced."""
        port = self._server.add_insecure_port(f"{HOST}:0")
        await self._server.start()
        for broker_id in range(self._first_id, self._first_id + self._count):
            self._start(broker_id, free_port() if broker_id == self._first_id else port)
        await self.wait_unfenced()

    def _start(self, broker_id: int, port: int) -> None:
        broker = HollowBroker(broker_id, self.addresses, port)
        self._brokers[broker_id] = broker
        self._tasks[broker_id] = asyncio.create_task(broker.run())

    async def wait_unfenced(self) -> None:
        """Wait until every running broker is unfenced."""
        for broker in self._brokers.values():
            await broker.unfenced.wait()

    async def lose(self) -> None:
        """Break the victim's connection, as its death does."""
        await self._end(self.victim_id)

    async def restore(self) -> None:
        """Start the victim again, as another process, and wait until it is unfenced."""
        self._start(self.victim_id, free_port())
        await self.wait_unfenced()

    async def _end(self, broker_id: int) -> None:
        del self._brokers[broker_id]
        task = self._tasks.pop(broker_id)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    async def stop(self) -> None:
        """Stop all brokers."""
        for broker_id in list(self._tasks):
            await self._end(broker_id)
        await self._server.stop(0)
