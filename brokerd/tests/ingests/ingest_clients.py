# SPDX-License-Identifier: Apache-2.0
"""Clients of IngestService made of generated code only: they follow the coordinator, stage over Append, and commit."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import grpc.aio
import pytest
from lograft.v1 import errors_pb2, log_pb2, metadata_pb2
from lograft.v1 import ingest_pb2 as pb
from lograft.wire.codes import ErrorCode
from lograft.wire.status import RemoteStatus, parse_rpc_error

from brokerd.coordinator.internal_topics import INGESTS
from brokerd.process.server import BrokerServer
from brokerd.publishing.calls import PublicationCalls
from brokerd.publishing.parts import Part, PublishedPart
from brokerd.tests.publishing.staging_clients import replica_of
from brokerd.tests.support import WAIT_S, Client, refusal
from metaquorum.metadata.topic_names import staging_topic

LONG_S = 3 * WAIT_S
"""Seconds in which a call that may be repeated must succeed."""

SEQUENCES = 2**31


def may_pass(error: grpc.aio.AioRpcError) -> bool:
    """Return True if the same call may succeed later."""
    code = parse_rpc_error(error).code
    return error.code() is grpc.StatusCode.UNAVAILABLE if code is None else code.retriable


class Clients:
    """Clients of the brokers of a cluster, by address; each call goes to the coordinator of its ingest."""

    def __init__(self, addresses: Callable[[], Iterable[str]]) -> None:
        self._addresses = addresses
        self._clients: dict[str, Client] = {}

    def at(self, address: str) -> Client:
        """Return the client of a broker."""
        if address not in self._clients:
            self._clients[address] = Client(address)
        return self._clients[address]

    @property
    def any(self) -> Client:
        """A client of the first broker."""
        return self.at(next(iter(self._addresses())))

    async def see(self, metadata_offset: int) -> None:
        """Wait until every broker has applied metadata."""
        request = metadata_pb2.GetClusterRequest(min_metadata_offset=metadata_offset)
        for address in tuple(self._addresses()):
            try:
                await self.at(address).metadata.GetCluster(request, timeout=LONG_S)
            except grpc.aio.AioRpcError:
                # It was killed meanwhile.
                assert address not in self._addresses()

    async def coordinator(self, ingest_id: str) -> pb.IngestCoordinator:
        """Ask until the coordinator is known."""
        request = pb.FindIngestCoordinatorRequest(ingest_ids=[ingest_id])
        async with asyncio.timeout(LONG_S):
            while True:
                found = (await self.any.ingests.FindIngestCoordinator(request, timeout=WAIT_S)).coordinators[0]
                if not found.HasField("error"):
                    return found
                assert found.error.code == errors_pb2.ERROR_CODE_COORDINATOR_LOADING, found
                await asyncio.sleep(0.05)

    async def there(self, ingest_id: str) -> Client:
        """Return a client of the coordinator."""
        found = await self.coordinator(ingest_id)
        return self.at(f"{found.host}:{found.port}")

    async def call(self, ingest_id: str, method: str, request: Any) -> Any:
        """Call the coordinator, again after each refusal that may pass."""
        async with asyncio.timeout(LONG_S):
            while True:
                client = await self.there(ingest_id)
                try:
                    return await getattr(client.ingests, method)(request, timeout=LONG_S)
                except grpc.aio.AioRpcError as error:
                    if not may_pass(error):
                        raise
                await asyncio.sleep(0.05)

    async def append(self, topic: str, values: Sequence[bytes], **fields: Any) -> log_pb2.AppendResponse:
        """Append with a sequence, until it is acknowledged."""
        async with asyncio.timeout(LONG_S):
            while True:
                try:
                    return await self.any.append(topic, values, **fields)
                except grpc.aio.AioRpcError as error:
                    if not may_pass(error) and parse_rpc_error(error).code is not ErrorCode.OUTCOME_UNKNOWN:
                        raise
                await asyncio.sleep(0.05)

    async def refused(self, ingest_id: str, method: str, request: Any) -> RemoteStatus:
        """Return the status with which the coordinator refuses a call."""
        try:
            response = await self.call(ingest_id, method, request)
        except grpc.aio.AioRpcError as error:
            return parse_rpc_error(error)
        raise AssertionError(f"the call was answered: {response}")

    async def close(self) -> None:
        """Close the channels."""
        for client in self._clients.values():
            await client.channel.close()


@asynccontextmanager
async def clients_of(*servers: BrokerServer) -> AsyncIterator[Clients]:
    """Clients of brokers that stay."""
    made = Clients(lambda: [str(server.address) for server in servers])
    try:
        yield made
    finally:
        await made.close()


class Attempt:
    """An attempt that stages over Append."""

    def __init__(self, ingest: Ingest, task: int, attempt_id: bytes, producer_id: int) -> None:
        self._ingest = ingest
        self.task = task
        self.attempt_id = attempt_id
        self.producer_id = producer_id
        self.next_sequences: dict[tuple[str, int], int] = {}
        self.parts: dict[tuple[str, int], pb.StagedPart] = {}

    async def stage(self, topic: str, partition: int, *values: bytes) -> None:
        """Append a batch to the staging topic of a topic, again after each failure: its sequence keeps it from being there twice."""
        where = (topic, partition)
        sequence = self.next_sequences.get(where, 0)
        producer = log_pb2.ProducerIdentity(producer_id=self.producer_id, producer_epoch=0)
        target = self._ingest.topics[topic]
        response = await self._ingest.clients.append(
            target.staging_topic,
            values,
            partition=partition,
            sequence=log_pb2.AppendSequence(producer=producer, base_sequence=sequence),
        )
        base_offset = response.ranges[0].base_offset
        part = self.parts.setdefault(
            where,
            pb.StagedPart(
                topic_id=target.topic_id, partition=partition, first_sequence=sequence, first_offset=base_offset
            ),
        )
        part.records += len(values)
        part.end_offset = base_offset + len(values)
        self.next_sequences[where] = (sequence + len(values)) % SEQUENCES

    async def seal(self, round_number: int = 0) -> Attempt:
        """Seal what is staged."""
        await self._ingest.clients.call(self._ingest.ingest_id, "SealAttempt", self.seal_request(round_number))
        return self

    def seal_request(self, round_number: int = 0) -> pb.SealAttemptRequest:
        """Return the request that seals it."""
        return pb.SealAttemptRequest(
            ingest_id=self._ingest.ingest_id,
            ingest_epoch=self._ingest.epoch,
            task=self.task,
            attempt_id=self.attempt_id,
            parts=self.parts.values(),
            round=round_number,
        )

    @property
    def entry(self) -> pb.ManifestEntry:
        """Its entry in a manifest."""
        records = sum(each.records for each in self.parts.values())
        return pb.ManifestEntry(task=self.task, attempt_id=self.attempt_id, records=records)


class Ingest:
    """An ingest of one client.

    Attributes:
        epoch: epoch of the last open.
        round: round to commit next.
        topics: topics by name.
    """

    def __init__(self, clients: Clients, ingest_id: str) -> None:
        self.clients = clients
        self.ingest_id = ingest_id
        self.epoch = 0
        self.round = 0
        self.topics: dict[str, pb.IngestTopic] = {}

    def open_request(self, *topics: str, **fields: Any) -> pb.OpenIngestRequest:
        """Return the request of an open."""
        fields.setdefault("kind", pb.INGEST_KIND_SINGLE)
        return pb.OpenIngestRequest(ingest_id=self.ingest_id, topics=topics, **fields)

    async def open(self, *topics: str, **fields: Any) -> pb.OpenIngestResponse:
        """Open it, and wait until every broker knows its staging topics."""
        opened: pb.OpenIngestResponse = await self.clients.call(
            self.ingest_id, "OpenIngest", self.open_request(*topics, **fields)
        )
        self.epoch, self.round = opened.ingest_epoch, opened.round
        self.topics = {each.topic: each for each in opened.topics}
        await self.clients.see(opened.metadata_offset)
        return opened

    def attempt_request(self, task: int, attempt_id: bytes = b"a") -> pb.OpenAttemptRequest:
        """Return the request that opens an attempt."""
        return pb.OpenAttemptRequest(
            ingest_id=self.ingest_id, ingest_epoch=self.epoch, task=task, attempt_id=attempt_id
        )

    async def attempt(self, task: int, attempt_id: bytes = b"a") -> Attempt:
        """Open an attempt."""
        response = await self.clients.call(self.ingest_id, "OpenAttempt", self.attempt_request(task, attempt_id))
        return Attempt(self, task, attempt_id, response.producer_id)

    async def staged(self, task: int, topic: str, partition: int, *values: bytes, attempt_id: bytes = b"a") -> Attempt:
        """Open an attempt, stage one batch, and seal it."""
        attempt = await self.attempt(task, attempt_id)
        await attempt.stage(topic, partition, *values)
        return await attempt.seal()

    def commit_request(self, *attempts: Attempt, **fields: Any) -> pb.CommitIngestRequest:
        """Return the request of a commit."""
        fields.setdefault("round", self.round)
        return pb.CommitIngestRequest(
            ingest_id=self.ingest_id,
            ingest_epoch=self.epoch,
            manifest=[each.entry for each in attempts],
            **fields,
        )

    async def commit(self, *attempts: Attempt, **fields: Any) -> pb.CommitIngestResponse:
        """Commit."""
        request = self.commit_request(*attempts, **fields)
        return await self.clients.call(self.ingest_id, "CommitIngest", request)

    async def abort(self, **fields: Any) -> None:
        """Abort."""
        request = pb.AbortIngestRequest(ingest_id=self.ingest_id, ingest_epoch=self.epoch, **fields)
        await self.clients.call(self.ingest_id, "AbortIngest", request)

    async def describe(self) -> pb.IngestDescription:
        """Describe it."""
        request = pb.DescribeIngestRequest(ingest_id=self.ingest_id)
        return (await self.clients.call(self.ingest_id, "DescribeIngest", request)).ingest

    async def wait_state(self, state: pb.IngestState.ValueType) -> pb.IngestDescription:
        """Ask until it is in a state."""
        async with asyncio.timeout(LONG_S):
            while True:
                found = await self.describe()
                if found.state == state:
                    return found
                await asyncio.sleep(0.02)


class Gate:
    """Holds publications up until it opens; those of some coordinators, or all.

    Attributes:
        held: parts that wait, or have waited.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *node_ids: int) -> None:
        self._opened = asyncio.Event()
        self.held: list[Part] = []
        publish = PublicationCalls.publish

        async def later(calls: PublicationCalls, part: Part, **fields: Any) -> PublishedPart:
            if not node_ids or calls._local.node_id in node_ids:
                self.held.append(part)
                await self._opened.wait()
            return await publish(calls, part, **fields)

        monkeypatch.setattr(PublicationCalls, "publish", later)

    def open(self) -> None:
        """Let everything through."""
        self._opened.set()


async def code_of(call: Any) -> ErrorCode:
    """Return the code with which a call is refused."""
    return (await refusal(call)).code


async def until(is_so: Callable[[], bool]) -> None:
    """Look again and again until something is so that nobody tells."""
    async with asyncio.timeout(LONG_S):
        while True:
            if is_so():
                return
            await asyncio.sleep(0.02)


async def wait_loaded(*servers: BrokerServer) -> None:
    """Wait until every partition of `__ingests` has an active coordinator."""
    found = [server.ingests for server in servers if server.ingests is not None]
    await until(lambda: sum(len(tuple(each.cores())) for each in found) == INGESTS.partition_count)


async def wait_freed(server: BrokerServer, topic_id: bytes, partition: int) -> None:
    """Wait until nothing is staged for a partition that this broker leads, and the quota knows it."""
    replica = replica_of(server, staging_topic(topic_id), partition)
    assert replica is not None
    assert replica.is_leader
    quota = server.staging_quota
    assert quota is not None
    await until(lambda: replica.log_start_offset == replica.log_end_offset and not quota.used_bytes)


def sweep_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sweep staging partitions, and measure them, every 50 ms."""
    monkeypatch.setattr("brokerd.publishing.sweep.STAGING_SWEEP_MS", 50)
    monkeypatch.setattr("brokerd.process.server.STAGING_SWEEP_MS", 50)
