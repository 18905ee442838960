# SPDX-License-Identifier: Apache-2.0
"""One fetch stream from one broker.

This module owns the handshake, routes, credit, and the assignment of arrivals to partitions. It must not choose brokers, retry
or decode batches.

The stream passes chunks on unchanged. Their bytes count against the credit until the consumer has used the chunk. Chunks of
abandoned routes are given back at once.
Source: docs/clients.md, "Raw batches"; proto/lograft/v1/log.proto.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Final, Protocol

import grpc
import grpc.aio

from lograft._client.backoff import Backoff
from lograft._client.clock import monotonic_ms
from lograft._client.cluster import Cluster
from lograft._client.transport import WRITER_TIMEOUT_S, Purpose, to_error, write_first
from lograft._consumer.fetch_buffer import Cursor, PrefetchBudget
from lograft._consumer.nearest import ReadPlace
from lograft.errors import LograftError, NoBrokerError, ProtocolError, RequestTimeoutError
from lograft.settings import (
    CONNECT_TIMEOUT_MS,
    FETCH_STALLED_MS,
    STREAM_OPEN_TIMEOUT_MS,
    STREAM_SILENCE_MS,
    ConsumerSettings,
)
from lograft.v1 import errors_pb2, log_pb2
from lograft.wire.frames import FetchFrame, decode_fetch_response

logger = logging.getLogger(__name__)

FETCH_METHOD: Final = "/lograft.v1.LogService/Fetch"

_Call = grpc.aio.StreamStreamCall[log_pb2.FetchRequest, "FetchFrame | log_pb2.FetchResponse"]


class PartitionFetcher:
    """One partition that is being fetched. A stream writes `stream` and `route`; the engine writes everything else.

    Attributes:
        cursor: the consumer's cursor of the partition.
        generation: generation of the cursor for which it fetches.
        fetch_offset: next offset to request.
        stream: the stream to which the partition is bound or being bound; None while it waits for a broker.
        place: the broker of that stream, or of the last one; None before the first.
        follower_after_ms: monotonic time before which only the leader is asked.
        route: route number on the stream.
        topic_id: id of the topic at the first binding.
        unknown_since_ms: monotonic time since when brokers do not know the partition.
        avoided: a broker that could not be used. The engine tries the same one again only after a pause.
        retry: timer of the next attempt.
    """

    __slots__ = (
        "avoided",
        "backoff",
        "cursor",
        "fetch_offset",
        "follower_after_ms",
        "generation",
        "place",
        "retry",
        "route",
        "stream",
        "topic_id",
        "unknown_since_ms",
    )

    def __init__(self, cursor: Cursor, generation: int, offset: int, backoff: Backoff) -> None:
        self.cursor = cursor
        self.generation = generation
        self.fetch_offset = offset
        self.backoff = backoff
        self.stream: FetchStream | None = None
        self.route = 0
        self.topic_id: bytes | None = None
        self.unknown_since_ms: int | None = None
        self.avoided: ReadPlace | None = None
        self.place: ReadPlace | None = None
        self.follower_after_ms = 0
        self.retry: asyncio.TimerHandle | None = None

    @property
    def is_at_follower(self) -> bool:
        """True if the partition is bound to a follower, or was when it was last bound."""
        return self.place is not None and not self.place.is_leader


class StreamOwner(Protocol):
    """What a stream reports to its owner, the engine. It separates the wire from the search for brokers."""

    def on_bound(self, fetcher: PartitionFetcher, opened: log_pb2.FetchRouteOpened) -> None:
        """The partition's route is open."""
        ...

    def on_chunk(self, fetcher: PartitionFetcher, stream: FetchStream, frame: FetchFrame) -> None:
        """Batches of the partition have arrived."""
        ...

    def on_mark(self, fetcher: PartitionFetcher, stream: FetchStream, mark: log_pb2.FetchMark) -> None:
        """The partition has made progress without bytes."""
        ...

    def on_route_end(self, fetcher: PartitionFetcher, error: errors_pb2.PartitionError) -> None:
        """The broker ended the partition's route. The stream continues."""
        ...

    def on_stream_end(self, stream: FetchStream, fetchers: Sequence[PartitionFetcher], error: LograftError) -> None:
        """The stream has ended."""
        ...

    def on_room(self) -> None:
        """Bytes have become free, so that streams may grant more."""
        ...


class FetchStream:
    """Reads any number of partitions from one broker, within a credit. Belongs to one event loop."""

    def __init__(
        self,
        owner: StreamOwner,
        cluster: Cluster,
        settings: ConsumerSettings,
        budget: PrefetchBudget,
        *,
        broker_id: int,
        address: str,
    ) -> None:
        self.broker_id = broker_id
        self.address = address
        self.is_closed = False
        self._owner = owner
        self._cluster = cluster
        self._settings = settings
        self._ledger = budget.add_stream()
        self._next_route = 0
        self._to_bind: list[PartitionFetcher] = []
        self._routes: dict[int, PartitionFetcher] = {}
        self._outbox: deque[log_pb2.FetchRequest] = deque()
        self._wakeup: asyncio.Future[None] | None = None
        self._heard_ms = monotonic_ms()
        self._reset_reason: LograftError | None = None
        self._call: _Call | None = None
        self._is_ending = False
        self._loop = asyncio.get_running_loop()
        self._task = self._loop.create_task(self._run())

    @property
    def is_idle(self) -> bool:
        """True when no partition uses the stream."""
        return not self._routes and not self._to_bind

    def bind(self, fetcher: PartitionFetcher) -> None:
        """Fetch a partition from its `fetch_offset` on, from the leader or a follower as its `place` says."""
        fetcher.stream = self
        fetcher.route = self._next_route
        self._next_route += 1
        self._to_bind.append(fetcher)
        self._wake()

    def unbind(self, fetcher: PartitionFetcher) -> None:
        """Stop fetching a partition. The stream reports nothing more about it."""
        fetcher.stream = None
        if fetcher in self._to_bind:
            self._to_bind.remove(fetcher)
        elif self._routes.pop(fetcher.route, None) is not None:
            self._outbox.append(log_pb2.FetchRequest(unbind=log_pb2.FetchUnbind(routes=[fetcher.route])))
            self._wake()

    def give_back(self, size_bytes: int) -> None:
        """Return the bytes of chunks that were consumed or dropped. Also of a stream that has ended."""
        self._ledger.consume(size_bytes)
        self._owner.on_room()

    def grant(self) -> None:
        """Grant the broker what the stream may have, in steps."""
        grant = self._ledger.take_grant()
        if grant:
            self._heard_ms = monotonic_ms()
            self._outbox.append(log_pb2.FetchRequest(credit=log_pb2.FetchCredit(bytes=grant)))
            self._wake()

    @property
    def heard_ms(self) -> int:
        """Monotonic time at which the broker last sent something, or was last granted credit."""
        return self._heard_ms

    def fetchers(self) -> list[PartitionFetcher]:
        """Return the partitions whose routes are open or requested."""
        return list(self._routes.values())

    @property
    def _is_owed(self) -> bool:
        """True while the broker could send something, at least marks."""
        return bool(self._routes) and self._ledger.open_bytes > 0

    def is_stalled(self, at_ms: int) -> bool:
        """True if the broker sent nothing for `FETCH_STALLED_MS` although it could. The engine then asks another one for the leader."""
        return self._is_owed and at_ms - self._heard_ms > FETCH_STALLED_MS

    def check_silence(self, at_ms: int) -> None:
        """End the stream if the broker sent nothing for `STREAM_SILENCE_MS` although it could send, at least marks."""
        if self._is_owed and at_ms - self._heard_ms > STREAM_SILENCE_MS:
            self._reset(RequestTimeoutError(f"{self.address} sent nothing for {STREAM_SILENCE_MS} ms"))

    async def close(self) -> None:
        """End the stream without calling the owner."""
        if not self.is_closed:
            self.is_closed = True
            self._ledger.end()
        self._stop()
        await asyncio.gather(self._task, return_exceptions=True)

    def _reset(self, reason: LograftError) -> None:
        self._reset_reason = reason
        self._stop()

    def _stop(self) -> None:
        """End the task. Cancel its call if it has one, so that gRPC can end the read under way."""
        if self._call is not None:
            self._call.cancel()
        elif not self._is_ending:
            self._task.cancel()

    def _wake(self) -> None:
        if self._wakeup is not None and not self._wakeup.done():
            self._wakeup.set_result(None)

    async def _run(self) -> None:
        with ExitStack() as uses:
            error = await self._carry(uses)
        if not self.is_closed:
            self._end(error)

    async def _carry(self, uses: ExitStack) -> LograftError:
        """Connect, open the stream, carry it to its end and return why it ended. `uses` keeps the channel open until then."""
        error: LograftError
        channel: grpc.aio.Channel | None = None
        call: _Call | None = None
        writer: asyncio.Task[None] | None = None
        transport = self._cluster.transport
        try:
            channel = await transport.connect(self.address, Purpose.BULK, timeout_s=CONNECT_TIMEOUT_MS / 1000)
            uses.enter_context(transport.using(channel))
            multi: grpc.aio.StreamStreamMultiCallable[log_pb2.FetchRequest, FetchFrame | log_pb2.FetchResponse]
            multi = channel.stream_stream(
                FETCH_METHOD,
                request_serializer=log_pb2.FetchRequest.SerializeToString,
                response_deserializer=decode_fetch_response,
            )
            call = multi()
            await self._open(call)
            self._call = call
            writer = self._loop.create_task(self._write(call))
            await self._read(call)
            error = NoBrokerError(f"{self.address} closed the fetch stream")
        except grpc.RpcError as cause:
            error = to_error(cause, self.address)
        except LograftError as cause:
            error = cause
        except TimeoutError:
            error = self._reset_reason = RequestTimeoutError(f"{self.address} did not open the fetch stream in time")
        except asyncio.CancelledError:
            if self.is_closed:
                raise
            if self._reset_reason is None:
                self._cluster.note_cancelled()
            error = self._reset_reason or NoBrokerError(f"the fetch stream from {self.address} was cancelled")
        except Exception as cause:
            logger.exception("fetch stream from %s failed", self.address)
            error = ProtocolError(f"the fetch stream from {self.address} failed: {cause!r}")
        finally:
            # From here on no caller cancels this task: it must return the bound partitions.
            self._is_ending = True
            if call is not None:
                call.cancel()
            if writer is not None:
                self._wake()
                await asyncio.wait((writer,), timeout=WRITER_TIMEOUT_S)
                writer.cancel()
            if channel is not None and isinstance(self._reset_reason, RequestTimeoutError):
                # The connection may have died without a sign. Further streams over it would fail in the same way.
                transport.give_up(channel)
        return error

    def _end(self, error: LograftError) -> None:
        self.is_closed = True
        self._ledger.end()
        fetchers = [*self._routes.values(), *self._to_bind]
        self._routes.clear()
        self._to_bind.clear()
        for fetcher in fetchers:
            fetcher.stream = None
        self._owner.on_stream_end(self, fetchers, error)

    async def _open(self, call: _Call) -> None:
        async with asyncio.timeout(STREAM_OPEN_TIMEOUT_MS / 1000):
            request = log_pb2.FetchOpen(
                cluster_id=self._cluster.cluster_id,
                routes=self._take_routes(),
                credit_bytes=self._ledger.begin(),
                max_chunk_bytes=self._settings.max_chunk_bytes,
            )
            await write_first(call, log_pb2.FetchRequest(open=request))
            response = await call.read()
        if isinstance(response, log_pb2.FetchResponse) and response.WhichOneof("message") == "opened":
            self._on_message(response)
        elif isinstance(response, log_pb2.FetchResponse) and response.WhichOneof("message") == "go_away":
            raise NoBrokerError(f"{self.address} is going away: {response.go_away.message}")
        elif isinstance(response, FetchFrame | log_pb2.FetchResponse):
            raise ProtocolError(f"{self.address} answered the opening of a fetch stream with something else")
        else:
            raise NoBrokerError(f"{self.address} closed the fetch stream before it was open")

    def _take_routes(self) -> list[log_pb2.FetchRoute]:
        routes: list[log_pb2.FetchRoute] = []
        for fetcher in self._to_bind:
            self._routes[fetcher.route] = fetcher
            routes.append(
                log_pb2.FetchRoute(
                    route=fetcher.route,
                    topic=fetcher.cursor.tp.topic,
                    partition=fetcher.cursor.tp.partition,
                    offset=fetcher.fetch_offset,
                    allow_follower=fetcher.is_at_follower,
                    topic_id=fetcher.topic_id or b"",
                )
            )
        self._to_bind.clear()
        self._heard_ms = monotonic_ms()
        return routes

    async def _write(self, call: _Call) -> None:
        try:
            while not self._is_ending:
                if self._to_bind:
                    await call.write(log_pb2.FetchRequest(bind=log_pb2.FetchBind(routes=self._take_routes())))
                elif self._outbox:
                    await call.write(self._outbox.popleft())
                else:
                    self._wakeup = self._loop.create_future()
                    await self._wakeup
        except (grpc.RpcError, asyncio.InvalidStateError) as error:
            # The reader sees the same end of the stream, with its reason.
            logger.debug("writing to %s ended: %s", self.address, error)
        except Exception as error:
            logger.exception("writing to %s failed", self.address)
            self._reset(ProtocolError(f"writing to {self.address} failed: {error!r}"))

    async def _read(self, call: _Call) -> None:
        while True:
            response = await call.read()
            if isinstance(response, FetchFrame):
                self._on_frame(response)
            elif isinstance(response, log_pb2.FetchResponse):
                self._on_message(response)
            else:
                return

    def _on_frame(self, frame: FetchFrame) -> None:
        self._heard_ms = monotonic_ms()
        size_bytes = len(frame.body)
        self._ledger.receive(size_bytes)
        fetcher = self._routes.get(frame.route)
        if fetcher is None:
            self.give_back(size_bytes)
        else:
            self._owner.on_chunk(fetcher, self, frame)

    def _on_message(self, response: log_pb2.FetchResponse) -> None:
        self._heard_ms = monotonic_ms()
        match response.WhichOneof("message"):
            case "opened":
                for route in response.opened.routes:
                    fetcher = self._routes.get(route.route)
                    if fetcher is not None:
                        self._owner.on_bound(fetcher, route)
            case "mark":
                fetcher = self._routes.get(response.mark.route)
                if fetcher is not None:
                    self._owner.on_mark(fetcher, self, response.mark)
            case "route_end":
                fetcher = self._routes.pop(response.route_end.route, None)
                if fetcher is not None:
                    fetcher.stream = None
                    self._owner.on_route_end(fetcher, response.route_end.error)
            case "go_away":
                raise NoBrokerError(f"{self.address} is going away: {response.go_away.message}")
            case _:
                raise ProtocolError(f"{self.address} sent a message that this version does not know")
