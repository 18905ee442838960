# SPDX-License-Identifier: Apache-2.0
"""The asyncio producer.

It owns the waits of the caller's tasks and the fast path of `send`, which awaits nothing. Everything runs on the caller's loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any

from lograft._client.clock import monotonic_ms
from lograft._client.forks import loading, on_fork
from lograft._client.immortal import keep_for_ever
from lograft._client.runtime import on_exit
from lograft._client.usable import unusable_error
from lograft._producer.accumulator import AddResult
from lograft._producer.arguments import check_columns, check_record, is_plain
from lograft._producer.buffers import TopicBuffers
from lograft._producer.bulk import EncodedPiece, LoosePiece, check_encoded
from lograft._producer.deliveries import Deliveries, OnBatch, say_lost
from lograft._producer.partitioner import PartitionFunction
from lograft._producer.record_columns import RECORD_OVERHEAD_BYTES, record_size
from lograft._producer.serializers import Serializer, serializers_of
from lograft.delivery import Delivery
from lograft.errors import BufferTimeoutError, RequestTimeoutError, UsageError
from lograft.settings import CONNECTION_LIVENESS_MS, PRODUCER_DEFAULTS, ProducerSettings, parse_acks, parse_bootstrap
from lograft.types import Headers, RecordReceipt

if TYPE_CHECKING:
    from lograft._producer.sender import Sender
    from lograft.aio.transaction import Transaction, Transactions


class Producer:
    """Sends records to topics; settings, guarantees and errors as `lograft.Producer`. It belongs to one event loop."""

    def __init__(
        self,
        bootstrap: str | Sequence[str],
        *,
        cluster_id: str | None = None,
        acks: str = PRODUCER_DEFAULTS.acks.value,
        idempotent: bool = PRODUCER_DEFAULTS.idempotent,
        linger_ms: int = PRODUCER_DEFAULTS.linger_ms,
        batch_bytes: int = PRODUCER_DEFAULTS.batch_bytes,
        max_in_flight: int = PRODUCER_DEFAULTS.max_in_flight,
        buffer_bytes: int = PRODUCER_DEFAULTS.buffer_bytes,
        codec: str = PRODUCER_DEFAULTS.codec,
        delivery_timeout_ms: int = PRODUCER_DEFAULTS.delivery_timeout_ms,
        on_batch: OnBatch | None = None,
        partitioner: str | PartitionFunction = PRODUCER_DEFAULTS.partitioner,
        key_serializer: Serializer | None = None,
        value_serializer: Serializer | None = None,
        client_id: str | None = None,
        connection_liveness_ms: int = CONNECTION_LIVENESS_MS,
    ) -> None:
        with loading():
            # gRPC comes with it, so that a program that only imports the class does not wait for it.
            from lograft._producer.sender import Sender
        self._settings = ProducerSettings(
            acks=parse_acks(acks),
            idempotent=idempotent,
            linger_ms=linger_ms,
            batch_bytes=batch_bytes,
            max_in_flight=max_in_flight,
            buffer_bytes=buffer_bytes,
            codec=codec,
            delivery_timeout_ms=delivery_timeout_ms,
            partitioner=partitioner,
        )
        self._client = parse_bootstrap(
            bootstrap, cluster_id, connection_liveness_ms=connection_liveness_ms, client_id=client_id
        )
        self._serializers = serializers_of(key_serializer, value_serializer)
        self._deliveries = Deliveries(self._settings, on_batch)
        self._live = self._deliveries.live
        # The topics that the fast path finds: none where functions of the program see each record.
        self._is_fast = self._serializers is None and not self._deliveries.asks_program
        self._fast = self._live if self._is_fast else {}
        self._waiters: list[asyncio.Future[None]] = []
        # The flush marks that tasks in `flush` wait for. Tasks that wait for room have none.
        self._flush_marks: list[int] = []
        self._is_closed = False
        self._is_forked = False
        self._transactions: Transactions | None = None
        on_fork(self, Producer._after_fork)
        self._sender: Sender | None = None
        self._new_sender = partial(Sender, self._client, self._deliveries, None, self._on_progress)
        on_exit(self, type(self)._leave)

    def __del__(self) -> None:
        """Report lost records: without its event loop the producer can no longer send them."""
        # The attribute is missing when the constructor refused a setting.
        if not getattr(self, "_is_closed", True):
            self._leave(0.0)

    def _leave(self, started_s: float) -> None:
        """Report undelivered records when the producer or the process ends."""
        del started_s
        count = 0 if self._is_closed or self._is_forked else self._deliveries.unresolved_records()
        self._is_closed = True
        if count:
            say_lost(count, "the event loop ended, and the producer was not closed; use `async with`, or await close()")
        # Threads may wait for deliveries; nobody else would tell them.
        for call in self._deliveries.end(unusable_error("producer", is_forked=self._is_forked)):
            call()

    async def send(
        self,
        topic: str,
        value: Any,
        key: Any = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Headers | None = None,
    ) -> Delivery:
        """Send one record. Wait while the buffer is full, and while the client looks up a new topic. See `lograft.Producer.send`."""
        if partition is None and timestamp_ms is None and headers is None and type(value) is bytes:
            buffers = self._fast.get(topic)
            if buffers is None:
                pass
            elif type(key) is bytes:
                part = buffers.by_key.get(key) or buffers.of_key(key)
                batch = part.open
                is_uniform = len(value) == batch.value_length and len(key) == batch.key_length
                room = batch.room if is_uniform else batch.room - (len(value) + len(key) + RECORD_OVERHEAD_BYTES)
                if is_uniform or room >= 0:
                    batch.room = room
                    batch += (value, key)
                    if len(batch) >= batch.limit:
                        self._deliveries.accumulator.refill(part)
                    delivery = Delivery()
                    delivery._outcome = batch.outcome  # pyright: ignore[reportPrivateUsage]
                    delivery._number = len(batch)  # pyright: ignore[reportPrivateUsage]
                    return delivery
            elif key is None:
                part = buffers.parts[buffers.sticky]
                batch = part.open
                is_uniform = len(value) == batch.value_length and batch.key_length is None
                room = batch.room if is_uniform else batch.room - (len(value) + RECORD_OVERHEAD_BYTES)
                if is_uniform or room >= 0:
                    batch.room = room
                    batch += (value, None)
                    if len(batch) >= batch.limit:
                        self._deliveries.accumulator.refill(part)
                    delivery = Delivery()
                    delivery._outcome = batch.outcome  # pyright: ignore[reportPrivateUsage]
                    delivery._number = len(batch)  # pyright: ignore[reportPrivateUsage]
                    return delivery
        if self._serializers is not None:
            value, key = self._serializers.one(topic, value, key)
        return await self._send_slowly(topic, value, key, partition, timestamp_ms, headers)

    async def send_and_wait(
        self,
        topic: str,
        value: Any,
        key: Any = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Headers | None = None,
    ) -> RecordReceipt:
        """Send one record, wait until it is acknowledged, and return its receipt.

        The record shares a batch with others for `linger_ms`, so start several of these calls together (`asyncio.gather`)
        instead of one after the other. A cancelled call does not take the record back.

        Args:
            topic: see `lograft.Producer.send`, as for the other arguments.
            value: value.
            key: key.
            partition: partition.
            timestamp_ms: create time.
            headers: headers.

        Raises:
            LograftError: as `send`, and as `Delivery.result`.
        """
        return await (await self.send(topic, value, key, partition, timestamp_ms, headers))

    async def _send_slowly(
        self,
        topic: str,
        value: object,
        key: object,
        partition: int | None,
        timestamp_ms: object,
        headers: object,
    ) -> Delivery:
        record = check_record(value, key, timestamp_ms, headers)
        buffers = self._live.get(topic) or await self._open_topic(topic)
        partition = self._deliveries.ask_program(buffers, record[1], partition)
        deadline_ms: int | None = None
        while True:
            part = self._deliveries.choose(buffers, record[1], partition)
            result = self._deliveries.add(part, *record)
            if result is AddResult.ADDED:
                place = self._deliveries.accumulator.last_place(part)
                self._wake_if_needed()
                return Delivery.at(place)
            if result is AddResult.TOO_LARGE:
                raise self._deliveries.too_large(part, record_size(*record))
            deadline_ms = await self._wait_for_room(deadline_ms)

    async def send_many(
        self,
        topic: str,
        values: Sequence[Any],
        *,
        keys: Sequence[Any] | None = None,
        partition: int | None = None,
        timestamps_ms: Sequence[int] | None = None,
    ) -> None:
        """Send many records; see `lograft.Producer.send_many`."""
        if self._serializers is not None:
            values, keys = self._serializers.many(topic, values, keys)
        check_columns(values, keys, timestamps_ms)
        buffers = await self._open_topic(topic)
        pieces = self._deliveries.cut_columns(buffers, values, keys, timestamps_ms, partition)
        await self._send_pieces(buffers, pieces)

    async def send_arrow(
        self, topic: str, data: Any, *, partition: int | None = None, extra_columns: str = "refuse"
    ) -> None:
        """Send the rows of a `pyarrow.RecordBatch` or `Table`; see `lograft.Producer.send_arrow`."""
        buffers = await self._open_topic(topic)
        pieces = self._deliveries.cut_rows(buffers, data, partition, extra_columns)
        await self._send_pieces(buffers, pieces)

    async def send_batch(self, topic: str, partition: int, encoded: bytearray, record_count: int) -> None:
        """Send an encoded batch as it is; see `lograft.Producer.send_batch`."""
        buffers = await self._open_topic(topic)
        body = check_encoded(encoded, record_count)
        piece = EncodedPiece(partition=partition, body=body, record_count=record_count, may_split=False)
        await self._send_pieces(buffers, (piece,))

    async def _send_pieces(self, buffers: TopicBuffers, pieces: Iterable[LoosePiece | EncodedPiece]) -> None:
        for piece in pieces:
            result = AddResult.TOO_LARGE
            if isinstance(piece, EncodedPiece) or is_plain(piece):
                result = await self._send_piece(buffers, piece)
            if result is not AddResult.TOO_LARGE:
                continue
            if isinstance(piece, EncodedPiece):
                part = self._deliveries.choose(buffers, None, piece.partition)
                raise self._deliveries.too_large(part, len(piece.body))
            for record in piece.records():
                await self._send_slowly(buffers.topic, *record)

    async def _send_piece(self, buffers: TopicBuffers, piece: LoosePiece | EncodedPiece) -> AddResult:
        deadline_ms: int | None = None
        while (result := self._deliveries.take(buffers, piece)) is AddResult.BUFFER_FULL:
            deadline_ms = await self._wait_for_room(deadline_ms)
        self._wake_if_needed()
        return result

    def transaction(self, transaction_id: str, *, topics: Iterable[str] = (), ttl_ms: int = 0) -> Transaction:
        """Return a transaction, for `async with`; see `lograft.Producer.transaction`."""
        with loading():
            from lograft.aio.transaction import Transactions
        self._check_usable()
        if self._transactions is None:
            self._transactions = Transactions(self._client, self._settings, self._serializers)
        return self._transactions.begin(transaction_id, topics, ttl_ms)

    async def flush(self, timeout_ms: int | None = None) -> None:
        """Wait until every record sent so far is acknowledged or has failed; see `lograft.Producer.flush`."""
        self._check_usable()
        deadline_ms = None if timeout_ms is None else monotonic_ms() + timeout_ms
        mark = self._deliveries.accumulator.flush_mark()
        self._wake_if_needed()
        while not self._deliveries.accumulator.has_reached(mark):
            left_s = None if deadline_ms is None else (deadline_ms - monotonic_ms()) / 1000
            if left_s is not None and left_s <= 0:
                raise RequestTimeoutError(f"not everything was acknowledged within {timeout_ms} ms")
            self._flush_marks.append(mark)
            try:
                await self._wait(left_s)
            finally:
                self._flush_marks.remove(mark)
            self._check_usable()
        failure = self._deliveries.take_failures()
        if failure is not None:
            raise failure

    async def close(self, timeout_ms: int | None = None) -> None:
        """Flush and close the connections; see `lograft.Producer.close`. Further calls do nothing."""
        if self._is_closed or self._is_forked:
            return
        try:
            await self.flush(timeout_ms)
        except RequestTimeoutError:
            # The remaining batches fail below, and the last lines report them.
            pass
        finally:
            self._is_closed = True
            self._live.clear()
            # Records that other tasks sent during the flush fail below and are reported too.
            self._deliveries.accumulator.seal_all()
            sender, self._sender = self._sender, None
            transactions, self._transactions = self._transactions, None
            if transactions is not None:
                await transactions.close()
            if sender is not None:
                await sender.close()
            self._on_progress()
        failure = self._deliveries.take_failures()
        if failure is not None:
            raise failure

    def _after_fork(self) -> None:
        """Make every later call raise `ForkedClientError`. Runs in the forked child."""
        self._is_forked = True
        # The calls that wait are the parent's.
        self._deliveries.end(unusable_error("producer", is_forked=True))
        if self._transactions is not None:
            self._transactions.after_fork()
        keep_for_ever((self._sender, self._transactions))
        self._sender = self._transactions = None
        self._live.clear()
        self._waiters.clear()

    async def __aenter__(self) -> Producer:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    # -- inside

    async def _open_topic(self, topic: str) -> TopicBuffers:
        self._check_usable()
        buffers = self._live.get(topic)
        if buffers is not None:
            return buffers
        if type(topic) is not str or not topic:
            raise UsageError(f"topic is a name, not {topic!r}")
        if self._sender is None:
            self._sender = self._new_sender()
        partition_count = await self._sender.open_topic(topic)
        self._check_usable()
        self._deliveries.open_topic(topic, partition_count)
        self._sender.note_leaders(topic)
        return self._live[topic]

    def _check_usable(self) -> None:
        if self._is_closed or self._is_forked:
            raise unusable_error("producer", is_forked=self._is_forked)

    def _wake_if_needed(self) -> None:
        sender = self._sender
        if sender is not None and sender.needs_wake():
            sender.is_wake_due = True
            asyncio.get_running_loop().call_soon(sender.wake)

    async def _wait_for_room(self, deadline_ms: int | None) -> int:
        at_ms = monotonic_ms()
        if deadline_ms is None:
            deadline_ms = at_ms + self._settings.delivery_timeout_ms
        if at_ms >= deadline_ms:
            raise BufferTimeoutError(
                f"buffer_bytes ({self._settings.buffer_bytes}) stayed full for {self._settings.delivery_timeout_ms} ms"
            )
        self._deliveries.accumulator.relieve()
        self._wake_if_needed()
        await self._wait((deadline_ms - at_ms) / 1000)
        self._check_usable()
        return deadline_ms

    async def _wait(self, timeout_s: float | None) -> None:
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        try:
            async with asyncio.timeout(timeout_s):
                await waiter
        except TimeoutError:
            # The callers check the time themselves.
            return
        finally:
            if waiter in self._waiters:
                self._waiters.remove(waiter)

    def _on_progress(self) -> None:
        if not self._is_closed and not self._deliveries.accumulator.should_wake(len(self._waiters), self._flush_marks):
            return
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)
