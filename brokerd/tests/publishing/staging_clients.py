# SPDX-License-Identifier: Apache-2.0
"""Clients of real brokers that stage: staging topics as the coordinator will make them, and attempts over Append."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from lograft.internal.v1 import controller_pb2
from lograft.v1 import admin_pb2, log_pb2, metadata_pb2

from brokerd.failure import RefusedError
from brokerd.process.server import BrokerServer
from brokerd.publishing.calls import PublicationCalls
from brokerd.publishing.parts import Part, PublishedPart, Slice
from brokerd.replica.replica import Replica
from brokerd.tests.support import WAIT_S, Client, connected
from metaquorum.metadata.topic_names import staging_topic
from metaquorum.net.methods import Method

STAGING = 2**61
PUBLISHING = 2**62


async def make_staging_topic(server: BrokerServer, topic_id: bytes, partitions: int, **configs: str) -> str:
    """Create the staging topic of a topic, and wait until this broker knows it. Returns its name."""
    assert server._broker is not None
    request = admin_pb2.CreateTopicRequest(
        topic=staging_topic(topic_id),
        partition_count=partitions,
        replication_factor=int(configs.pop("replication_factor", "1")),
        configs={name.replace("_", "."): value for name, value in configs.items()},
    )
    call = controller_pb2.AdminCall(method="CreateTopic", request=request.SerializeToString())
    answer = await server._broker.calls.call(Method.ADMIN, call.SerializeToString(), timeout_ms=int(WAIT_S * 1000))
    admin_answer = controller_pb2.AdminAnswer.FromString(answer)
    created = admin_pb2.CreateTopicResponse.FromString(admin_answer.response)
    await wait_seen((server,), created.metadata_offset)
    return request.topic


async def wait_seen(servers: tuple[BrokerServer, ...], metadata_offset: int) -> None:
    """Wait until brokers have applied metadata."""
    for server in servers:
        assert await server.observer.wait_for(metadata_offset, timeout_ms=int(WAIT_S * 1000))


class RemoteAttempt:
    """An attempt that stages into one partition over Append."""

    def __init__(self, client: Client, topic: str, partition: int, number: int) -> None:
        self._client = client
        self._topic = topic
        self._partition = partition
        self.producer_id = STAGING + number
        self.values: list[bytes] = []
        self._first_offset = -1
        self._end_offset = -1

    async def stage(self, *values: bytes) -> log_pb2.AppendResponse:
        """Append a batch."""
        response = await self._client.append(
            self._topic,
            values,
            partition=self._partition,
            sequence=log_pb2.AppendSequence(
                producer=log_pb2.ProducerIdentity(producer_id=self.producer_id, producer_epoch=0),
                base_sequence=len(self.values),
            ),
        )
        found = response.ranges[0]
        if self._first_offset < 0:
            self._first_offset = found.base_offset
        self._end_offset = found.base_offset + len(values)
        self.values += values
        return response

    def seal(self) -> Slice:
        """Return its slice."""
        return Slice(self.producer_id, 0, len(self.values), self._first_offset, self._end_offset)


def part_of(topic_id: bytes, partition: int, *slices: Slice, base_sequence: int = 0) -> Part:
    """Return the part of a decision."""
    return Part(
        topic_id=topic_id,
        partition=partition,
        producer_id=PUBLISHING + 3,
        base_sequence=base_sequence,
        records=sum(each.records for each in slices),
        slices=slices,
    )


def calls_of(server: BrokerServer) -> PublicationCalls:
    """Return the calls of a broker."""
    assert server.publication_calls is not None
    return server.publication_calls


async def publish_until_done(calls: Callable[[], PublicationCalls], part: Part) -> PublishedPart:
    """Ask for a publication as a coordinator does: again after each failure that may pass."""
    async with asyncio.timeout(3 * WAIT_S):
        while True:
            try:
                return await calls().publish(part)
            except RefusedError as error:
                if not error.failure.code.retriable:
                    raise
                await asyncio.sleep(min(error.failure.retry_after_ms, 100) / 1000)


async def read_all(client: Client, topic: str, partition: int) -> list[bytes]:
    """Return all values of a partition."""
    values: list[bytes] = []
    while True:
        response = await client.read(topic, partition, len(values))
        if not response.records:
            return values
        values += [record.value for record in response.records]


def led_by(server: BrokerServer, topic: str, node_id: int) -> int:
    """Return a partition that a broker leads."""
    image = server.observer.image.topic_by_name(topic)
    assert image is not None
    return next(each.partition for each in image.partitions if each.leader_id == node_id)


def replica_of(server: BrokerServer, topic: str, partition: int) -> Replica | None:
    """Return the replica of a partition at a broker."""
    image = server.observer.image.topic_by_name(topic)
    assert image is not None
    assert server.replica_manager is not None
    return server.replica_manager.find(image.topic_id, partition)


@asynccontextmanager
async def staged_topic(
    server: BrokerServer, *others: BrokerServer, partitions: int = 1, **configs: str
) -> AsyncIterator[tuple[Client, bytes, str]]:
    """A client of a broker, the id of a new topic `t`, and the name of its staging topic; other brokers know both."""
    async with connected(server) as client:
        created = await client.create_topic("t", partitions, **configs)
        name = await make_staging_topic(server, created.topic.topic_id, partitions)
        await wait_seen(others, server.observer.metadata_offset)
        request = metadata_pb2.GetClusterRequest(min_metadata_offset=created.metadata_offset)
        await client.metadata.GetCluster(request, timeout=WAIT_S)
        yield client, created.topic.topic_id, name
