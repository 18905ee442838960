# SPDX-License-Identifier: Apache-2.0
"""A broker that misbehaves on demand, over real gRPC. A client must survive what a healthy broker never does.

It keeps one log for each partition in memory, with producer state, so that tests can still require exactly once. Each test
gives `on_produce` or `on_fetch`, which decides by the number of the stream what goes wrong.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future

import grpc
import grpc.aio
from lograft.v1 import errors_pb2, log_pb2, log_pb2_grpc, metadata_pb2, metadata_pb2_grpc
from lograft.wire.batch import encode_batch, read_header, stamp

TOPIC_ID = bytes(16)
START_TIMEOUT_S = 20

ProduceScript = Callable[[int, log_pb2.ProduceRequest], "list[log_pb2.ProduceResponse | grpc.StatusCode | None] | None"]
FetchScript = Callable[[int, log_pb2.FetchRequest], "list[log_pb2.FetchResponse | grpc.StatusCode | None] | None"]


Context = grpc.aio.ServicerContext[object, object]


class Leaders:
    """The leaders of topic "t", as the scripted brokers of one test report them."""

    def __init__(self, partition_count: int = 1) -> None:
        self.brokers: dict[int, int] = {}
        self.racks: dict[int, str] = {}
        self.isr: tuple[int, ...] = ()
        self.partition_count = partition_count
        self.leader_id = 1
        self.leaders: dict[int, int] = {}
        """Leaders of the partitions that `leader_id` does not lead."""
        self.leader_epoch = 1
        self.topic_id = TOPIC_ID
        self.cluster_id = "scripted"

    def describe(self) -> metadata_pb2.GetClusterResponse:
        """Return the state of the cluster."""
        return metadata_pb2.GetClusterResponse(
            cluster_id=self.cluster_id,
            brokers=[
                metadata_pb2.Broker(
                    broker_id=broker_id, host="127.0.0.1", port=port, rack=self.racks.get(broker_id, "")
                )
                for broker_id, port in self.brokers.items()
            ],
            topics=[
                metadata_pb2.Topic(
                    topic="t",
                    topic_id=self.topic_id,
                    partitions=[
                        metadata_pb2.Partition(
                            partition=number,
                            leader_id=self.leaders.get(number, self.leader_id),
                            leader_epoch=self.leader_epoch,
                            isr=self.isr,
                        )
                        for number in range(self.partition_count)
                    ],
                )
            ],
            metadata_offset=1,
        )


class Log:
    """The batches of one partition with their offsets, and what each producer appended."""

    def __init__(self) -> None:
        self.batches: list[bytes] = []
        self.end_offset = 0
        self._known: dict[tuple[int, int], int] = {}

    def append(self, body: bytes) -> tuple[int, bool]:
        """Append a batch unless the log has it, and return (base offset, duplicate)."""
        header = read_header(body)
        key = (header.producer_id, header.base_sequence)
        if header.has_producer and key in self._known:
            return self._known[key], True
        stamped = bytearray(body)
        stamp(stamped, base_offset=self.end_offset, leader_epoch=1)
        self._known[key] = self.end_offset
        self.end_offset += header.record_count
        self.batches.append(bytes(stamped))
        return self._known[key], False


def fill(log: Log, count: int, *, start: int = 0) -> None:
    """Append batches of one number each."""
    for number in range(start, start + count):
        log.append(bytes(encode_batch([b"%d" % number])))


class ScriptedBroker(log_pb2_grpc.LogServiceServicer, metadata_pb2_grpc.MetadataServiceServicer):
    """A broker of scripted behaviour, by default a healthy one.

    A script gets (number of the stream from 0, request) for every request. It returns None for the behaviour of a healthy
    broker, or a list of responses to send instead. A None in the list ends the stream.
    """

    def __init__(self, leaders: Leaders, broker_id: int = 1, logs: dict[int, Log] | None = None) -> None:
        self.leaders = leaders
        self.broker_id = broker_id
        self.logs = logs if logs is not None else {number: Log() for number in range(leaders.partition_count)}
        self.on_produce: ProduceScript = lambda stream, request: None
        self.on_fetch: FetchScript = lambda stream, request: None
        self.offset_failures: list[errors_pb2.ErrorCode] = []
        """Answers to the next ListOffsets calls, one for each, for every partition."""
        self.produce_streams = 0
        self.fetch_streams = 0
        self.identities = 0
        self.opens: list[log_pb2.ProduceOpen] = []
        self.max_in_flight_bytes = 1 << 20
        self.most_in_flight_bytes = 0
        self.port = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ready: Future[int] = Future()
        self._stopping = asyncio.Event()
        self._news = asyncio.Event()
        self._thread = threading.Thread(target=self._main, daemon=True)

    @property
    def bootstrap(self) -> str:
        """Address for clients."""
        return f"127.0.0.1:{self.port}"

    def __enter__(self) -> ScriptedBroker:
        self._thread.start()
        self.port = self._ready.result(START_TIMEOUT_S)
        self.leaders.brokers[self.broker_id] = self.port
        return self

    def __exit__(self, *error: object) -> None:
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._stop)
        self._thread.join(START_TIMEOUT_S)

    def _stop(self) -> None:
        self._stopping.set()
        self._news.set()

    def announce(self, leader_id: int) -> None:
        """Make another broker the leader in the next leader epoch, and tell the watchers of this broker."""
        self.leaders.leader_id = leader_id
        self.leaders.leader_epoch += 1
        assert self._loop is not None, "not started"
        self._loop.call_soon_threadsafe(self._news.set)

    def _main(self) -> None:
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        server = grpc.aio.server()
        log_pb2_grpc.add_LogServiceServicer_to_server(self, server)
        metadata_pb2_grpc.add_MetadataServiceServicer_to_server(self, server)
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        self._ready.set_result(port)
        await self._stopping.wait()
        await server.stop(None)

    # -- metadata

    async def GetCluster(self, request: object, context: object) -> metadata_pb2.GetClusterResponse:
        return self.leaders.describe()

    async def WatchCluster(self, request: object, context: object) -> AsyncIterator[metadata_pb2.WatchClusterResponse]:
        while not self._stopping.is_set():
            self._news.clear()
            state = self.leaders.describe()
            yield metadata_pb2.WatchClusterResponse(
                snapshot=True,
                metadata_offset=1,
                cluster_id=state.cluster_id,
                brokers=state.brokers,
                topics=state.topics,
            )
            await self._news.wait()

    async def ListOffsets(self, request: log_pb2.ListOffsetsRequest, context: object) -> log_pb2.ListOffsetsResponse:
        results: list[log_pb2.OffsetResult] = []
        failure = self.offset_failures.pop(0) if self.offset_failures else None
        for query in request.queries:
            if failure is not None:
                error = errors_pb2.PartitionError(code=failure, message="scripted")
                results.append(log_pb2.OffsetResult(topic=query.topic, partition=query.partition, error=error))
                continue
            is_end = query.position == log_pb2.OFFSET_POSITION_LATEST
            offset = self.logs[query.partition].end_offset if is_end else 0
            results.append(log_pb2.OffsetResult(topic=query.topic, partition=query.partition, offset=offset))
        return log_pb2.ListOffsetsResponse(results=results)

    # -- produce

    async def Produce(
        self, request_iterator: AsyncIterator[log_pb2.ProduceRequest], context: Context
    ) -> AsyncIterator[log_pb2.ProduceResponse]:
        stream = self.produce_streams
        self.produce_streams += 1
        routes: dict[int, int] = {}
        async for request in request_iterator:
            scripted = self.on_produce(stream, request)
            if request.HasField("open") or request.HasField("bind"):
                opened = request.open.routes if request.HasField("open") else request.bind.routes
                routes.update({route.route: route.partition for route in opened})
            for response in self._answer(request, routes) if scripted is None else scripted:
                if response is None:
                    return
                if isinstance(response, grpc.StatusCode):
                    await context.abort(response, "scripted")
                yield response

    def _answer(self, request: log_pb2.ProduceRequest, routes: dict[int, int]) -> list[log_pb2.ProduceResponse]:
        if not request.HasField("batch"):
            return [self.opened(request)]
        route = request.batch.route
        base_offset, duplicate = self.logs[routes[route]].append(request.batch.body)
        return [receipt(route, request.batch.batch_number, base_offset, duplicate=duplicate)]

    def opened(self, request: log_pb2.ProduceRequest) -> log_pb2.ProduceResponse:
        """Return a healthy broker's answer to open or bind."""
        opened = log_pb2.ProduceOpened(
            cluster_id="scripted",
            node_id=self.broker_id,
            max_in_flight_batches=16,
            max_in_flight_bytes=self.max_in_flight_bytes,
        )
        wanted = request.open.routes if request.HasField("open") else request.bind.routes
        for route in wanted:
            opened.routes.add(
                route=route.route,
                topic_id=self.leaders.topic_id,
                leader_epoch=self.leaders.leader_epoch,
                max_batch_bytes=1 << 20,
            )
        if request.HasField("open"):
            self.opens.append(request.open)
            if request.open.HasField("producer"):
                opened.producer.CopyFrom(request.open.producer)
            elif not request.open.without_idempotence:
                self.identities += 1
                opened.producer.producer_id = 1_000 * self.broker_id + self.identities
        return log_pb2.ProduceResponse(opened=opened)

    # -- fetch

    async def Fetch(
        self, request_iterator: AsyncIterator[log_pb2.FetchRequest], context: Context
    ) -> AsyncIterator[log_pb2.FetchResponse]:
        stream = self.fetch_streams
        self.fetch_streams += 1
        async for request in request_iterator:
            scripted = self.on_fetch(stream, request)
            for response in self._fetched(request) if scripted is None else scripted:
                if response is None:
                    return
                if isinstance(response, grpc.StatusCode):
                    await context.abort(response, "scripted")
                yield response

    def _fetched(self, request: log_pb2.FetchRequest) -> list[log_pb2.FetchResponse]:
        if request.HasField("unbind"):
            return [log_pb2.FetchResponse(route_end=log_pb2.RouteEnd(route=route)) for route in request.unbind.routes]
        wanted = request.open.routes if request.HasField("open") else request.bind.routes
        if not wanted and not request.HasField("open"):
            return []
        return [
            fetch_opened(request, self.leaders.topic_id, self.leaders.leader_epoch),
            *(self.chunk(route) for route in wanted),
        ]

    def chunk(self, route: log_pb2.FetchRoute) -> log_pb2.FetchResponse:
        """Return all batches of a route's partition that end after its offset."""
        log = self.logs[route.partition]
        bodies = [batch for batch in log.batches if read_header(batch).next_offset > route.offset]
        return chunk(route.route, b"".join(bodies), log.end_offset)


def receipt(route: int, number: int, base_offset: int, *, duplicate: bool = False) -> log_pb2.ProduceResponse:
    """Return the receipt for one batch."""
    return log_pb2.ProduceResponse(
        receipt=log_pb2.ProduceReceipt(
            route=route,
            last_batch_number=number,
            base_offsets=[base_offset],
            durability=log_pb2.DURABILITY_FLUSHED,
            duplicates=[0] if duplicate else [],
        )
    )


def produce_end(
    route: int, code: errors_pb2.ErrorCode, *, unknown: bool = False, hint: errors_pb2.LeaderHint | None = None
) -> log_pb2.ProduceResponse:
    """Return the end of a produce route."""
    error = errors_pb2.PartitionError(code=code, message="scripted", leader=hint)
    return log_pb2.ProduceResponse(
        route_end=log_pb2.RouteEnd(route=route, error=error, first_failed_batch_number=1, outcome_unknown=unknown)
    )


def fetch_opened(
    request: log_pb2.FetchRequest, topic_id: bytes = TOPIC_ID, leader_epoch: int = 1
) -> log_pb2.FetchResponse:
    """Return a healthy broker's answer to open or bind."""
    wanted = request.open.routes if request.HasField("open") else request.bind.routes
    routes = [
        log_pb2.FetchRouteOpened(route=route.route, topic_id=topic_id, leader_epoch=leader_epoch) for route in wanted
    ]
    return log_pb2.FetchResponse(opened=log_pb2.FetchOpened(cluster_id="scripted", node_id=1, routes=routes))


def chunk(route: int, body: bytes, next_offset: int) -> log_pb2.FetchResponse:
    """Return batches of a route."""
    return log_pb2.FetchResponse(
        chunk=log_pb2.FetchChunk(route=route, next_offset=next_offset, high_watermark=next_offset, body=body)
    )


def fetch_end(route: int, error: errors_pb2.PartitionError) -> log_pb2.FetchResponse:
    """Return the end of a fetch route."""
    return log_pb2.FetchResponse(route_end=log_pb2.RouteEnd(route=route, error=error))
