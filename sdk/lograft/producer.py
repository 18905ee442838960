# SPDX-License-Identifier: Apache-2.0
"""The blocking producer.

It owns the lock, the waits of the caller's threads and the fast path of `send`. Everything that talks to brokers runs
on the background event loop (`_client.runtime`). Any number of threads may use one producer.

The fast path serves records whose value is bytes, whose key is bytes or None, and that give nothing else. It costs one
lookup, one checksum and one append, without the lock (`_producer.accumulator` says why that is safe). All other records
take `_send_slowly`, and so does a record that no longer fits into the room of its open batch.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Sequence
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any

from lograft._client.clock import monotonic_ms, wall_clock_ms
from lograft._client.forks import loading, on_fork
from lograft._client.immortal import keep_for_ever
from lograft._client.runtime import on_exit, open_on_runtime, release_runtime, wait_if_ending
from lograft._client.usable import unusable_error
from lograft._producer.accumulator import AddResult
from lograft._producer.arguments import check_columns, check_record, is_plain
from lograft._producer.buffers import NO_TOPIC, OpenBatch, PartitionBuffer, Place, TopicBuffers
from lograft._producer.bulk import EncodedPiece, LoosePiece, check_encoded
from lograft._producer.deliveries import Deliveries, OnBatch, say_lost
from lograft._producer.partitioner import PartitionFunction
from lograft._producer.record_columns import RECORD_OVERHEAD_BYTES, record_size
from lograft._producer.serializers import Serializer, serializers_of
from lograft.delivery import Delivery
from lograft.errors import (
    BufferTimeoutError,
    DeliveryError,
    LograftError,
    RequestTimeoutError,
    UsageError,
)
from lograft.settings import CONNECTION_LIVENESS_MS, PRODUCER_DEFAULTS, ProducerSettings, parse_acks, parse_bootstrap
from lograft.types import Headers

if TYPE_CHECKING:
    from lograft._client.background_loop import Runtime
    from lograft._producer.sender import Sender
    from lograft.transaction import Transaction, Transactions


class Producer:
    """Sends records to topics, from any number of threads.

    `send` takes a record and does not wait for its acknowledgement. `flush` and `close` report failures as `DeliveryError`,
    and `on_batch` reports the result of every batch. The log of a partition holds its records in the order of the `send` calls.
    Each record is in the log once, unless `idempotent` is off or `acks` is "none".

        with Producer("localhost:9640") as producer:
            producer.send("events", b"value", key=b"key")

    Args:
        bootstrap: brokers to ask first: "host:port", several separated by commas, or a list.
        cluster_id: the id that the cluster must have; None accepts any cluster.
        connection_liveness_ms: milliseconds without a byte from the broker after which a connection has failed, 4,000 to
            60,000.
        acks: when a batch counts as delivered: "all", "leader" or "none".
        idempotent: brokers recognise resent batches, so no record is in the log twice.
        linger_ms: milliseconds for which a batch waits for more records, 0 to 60,000; 0 sends at once.
        batch_bytes: size at which a batch is sent, 1,024 to 8 MiB; topics with a smaller `max.message.bytes` get smaller
            batches.
        max_in_flight: unacknowledged batches for each partition, 1 to 16.
        buffer_bytes: bytes of records that the producer holds, `batch_bytes` to 16 GiB. A record counts with its key, its value
            and 16 bytes. `send` waits while the buffer is full.
        codec: "none" or "zstd".
        delivery_timeout_ms: milliseconds after which an unacknowledged record has failed, 1 to 86,400,000.
        exit_flush_ms: milliseconds for which the process waits at its end for undelivered records of a producer that is still
            open, 0 to 600,000. All producers of the process share this time. The producer reports on standard error how many
            records it could not deliver. `lograft.aio.Producer` lacks this setting: its event loop has ended by then.
        on_batch: function that the background thread calls for every batch that was acknowledged or failed. It must be quick
            and must not wait in a blocking client.
        partitioner: how the key of a record chooses its partition. "crc32c": as in the Append call of brokers. "murmur2": as
            in Kafka's Java client. "sticky": keys do not matter; every record goes where records without a key go, and the
            next batch goes to a partition of the leader with the fewest unacknowledged bytes. A function
            (topic, key, partition_count) -> partition is called once for each record with a key, in the calling thread.
            `partition=` comes before all of them.
        key_serializer: function that returns the bytes of a key; it does not see None. `send` and `send_many` call it in the
            calling thread; `send_arrow` and `send_batch` do not.
        value_serializer: the same for values. Serializers, or a function as `partitioner`, cost `send` about 3 us more than
            their own time.
        client_id: name of the program for operators, 1 to 249 letters, digits, dots, underscores and hyphens. Brokers get it at
            the front of gRPC's user agent.

    Raises:
        InvalidSettingError: a setting is out of range.
        InvalidAcksError: `acks` has another value.
    """

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
        exit_flush_ms: int = PRODUCER_DEFAULTS.exit_flush_ms,
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
            exit_flush_ms=exit_flush_ms,
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
        # The topic that took the slow path last. Most programs send to one topic and pass the same string object each time.
        self._recent: tuple[str, TopicBuffers | None] = NO_TOPIC
        self._lock = threading.Lock()
        self._progress = threading.Condition(self._lock)
        self._waiters = 0
        # The flush marks that threads in `flush` wait for. Threads that wait for room have none.
        self._flush_marks: list[int] = []
        self._is_closed = False
        self._is_forked = False
        self._runtime: Runtime | None = None
        self._sender: Sender | None = None
        self._new_sender = partial(Sender, self._client, self._deliveries, self._lock, self._on_progress)
        self._start_lock = threading.Lock()
        self._transactions: Transactions | None = None
        on_fork(self, Producer._after_fork)
        on_exit(self, Producer._leave)

    def send(
        self,
        topic: str,
        value: Any,
        key: Any = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Headers | None = None,
    ) -> Delivery:
        """Send one record. Wait while the buffer is full, and while the client looks up a new topic.

        Args:
            topic: topic name.
            value: value: bytes, or what `value_serializer` takes; None is a null (a tombstone in a compacted topic).
            key: key: bytes, or what `key_serializer` takes. Records with the same key go to the same partition.
            partition: partition. With None, the key decides; records without a key fill a batch of one partition after the
                other.
            timestamp_ms: create time in milliseconds since 1970-01-01 UTC. None stands for now, up to `linger_ms` (at least
                10 ms) early.
            headers: (name, value) pairs.

        Returns:
            The delivery of the record, to wait for its offset. A program that does not need it ignores it.

        Raises:
            UsageError: a field is not valid, or the producer is closed.
            RecordTooLargeError: the record exceeds the limit of its topic.
            UnknownTopicError: the topic or the partition does not exist.
            BufferTimeoutError: the buffer stayed full for `delivery_timeout_ms`.
            LograftError: the client could not look up the topic.
        """
        # Measured: each omitted keyword-only argument costs 15 ns, `a is b is c is None` 17 ns more than this, counting bytes 55 ns.
        # A uniform batch needs no count.
        if partition is None and timestamp_ms is None and headers is None and type(value) is bytes:
            recent, buffers = self._recent
            if topic is not recent:
                buffers = self._fast.get(topic)
            if buffers is None:
                pass
            elif type(key) is bytes:
                try:
                    part = buffers.by_key[key]
                except KeyError:
                    part = buffers.of_key(key)
                batch = part.open
                if len(value) != batch.value_length or len(key) != batch.key_length:
                    room = batch.room - (len(value) + len(key) + RECORD_OVERHEAD_BYTES)
                    if room < 0:
                        return self._send_slowly(topic, value, key, partition, timestamp_ms, headers)
                    batch.room = room
                batch += (value, key)
                number = len(batch)
                if number >= batch.limit:
                    return self._settle(part, batch, number, value, key)
                delivery = Delivery()
                delivery._outcome = batch.outcome  # pyright: ignore[reportPrivateUsage]
                delivery._number = number  # pyright: ignore[reportPrivateUsage]
                return delivery
            elif key is None:
                part = buffers.parts[buffers.sticky]
                batch = part.open
                if len(value) != batch.value_length or batch.key_length is not None:
                    room = batch.room - (len(value) + RECORD_OVERHEAD_BYTES)
                    if room < 0:
                        return self._send_slowly(topic, value, key, partition, timestamp_ms, headers)
                    batch.room = room
                batch += (value, None)
                number = len(batch)
                if number >= batch.limit:
                    return self._settle(part, batch, number, value, None)
                delivery = Delivery()
                delivery._outcome = batch.outcome  # pyright: ignore[reportPrivateUsage]
                delivery._number = number  # pyright: ignore[reportPrivateUsage]
                return delivery
        if self._serializers is not None:
            value, key = self._serializers.one(topic, value, key)
        return self._send_slowly(topic, value, key, partition, timestamp_ms, headers)

    def _settle(
        self, part: PartitionBuffer, batch: OpenBatch, number: int, value: bytes, key: bytes | None
    ) -> Delivery:
        """Do what the limit of a batch asks for after the fast path has appended a record to it.

        An open batch gets more memory. A record that came after its batch was closed is added again.
        """
        with self._lock:
            if part.open is batch:
                self._deliveries.accumulator.refill(part)
            elif batch:
                # Nothing would send what a closed producer takes.
                self._check_usable()
                self._deliveries.accumulator.take_late(part, batch, now_ms=monotonic_ms(), wall_ms=wall_clock_ms())
                self._wake_if_needed()
            # Another thread may have added the record, with its own. Records of the same objects are interchangeable.
            for at, moved in enumerate(batch.moved):
                if moved.value is value and moved.key is key:
                    del batch.moved[at]
                    return Delivery.at(moved.place)
        # The batch was closed after the append, so the record is in it.
        return Delivery.at(Place(batch.outcome, number // 2, None))

    def _send_slowly(
        self,
        topic: str,
        value: object,
        key: object,
        partition: int | None,
        timestamp_ms: object,
        headers: object,
    ) -> Delivery:
        record = check_record(value, key, timestamp_ms, headers)
        buffers = self._open_topic(topic)
        partition = self._deliveries.ask_program(buffers, record[1], partition)
        deadline_ms: int | None = None
        while True:
            wait_if_ending()
            with self._progress:
                self._check_usable()
                part = self._deliveries.choose(buffers, record[1], partition)
                result = self._deliveries.add(part, *record)
                if result is AddResult.ADDED:
                    place = self._deliveries.accumulator.last_place(part)
                    self._wake_if_needed()
                    return Delivery.at(place)
                if result is AddResult.BUFFER_FULL:
                    deadline_ms = self._wait_for_room(deadline_ms)
                    continue
            raise self._deliveries.too_large(part, record_size(*record))

    def send_many(
        self,
        topic: str,
        values: Sequence[Any],
        *,
        keys: Sequence[Any] | None = None,
        partition: int | None = None,
        timestamps_ms: Sequence[int] | None = None,
    ) -> None:
        """Send many records, several times faster than `send` for each of them.

        Args:
            topic: topic name.
            values: values, in order: bytes, or what `value_serializer` takes.
            keys: one key for each value, None for a record without a key. Without `keys`, no record has a key.
            partition: partition of all records. With None, the key of each record decides.
            timestamps_ms: one create time for each value, in milliseconds since 1970-01-01 UTC; None stands for now.

        Raises:
            LograftError: as `send`. The producer has taken the records before the one that failed.
        """
        if self._serializers is not None:
            values, keys = self._serializers.many(topic, values, keys)
        check_columns(values, keys, timestamps_ms)
        buffers = self._open_topic(topic)
        pieces = self._deliveries.cut_columns(buffers, values, keys, timestamps_ms, partition)
        self._send_pieces(buffers, pieces)

    def send_arrow(self, topic: str, data: Any, *, partition: int | None = None, extra_columns: str = "refuse") -> None:
        """Send the rows of a `pyarrow.RecordBatch` or `Table`, column by column.

        Args:
            topic: topic name.
            data: rows with a column `value` and, if wanted, `key`, `timestamp` (or `timestamp_ms`) and `headers`, a list of
                (key, value).
            partition: partition of all rows. With None, the key of each row decides; rows without a key fill a batch of one
                partition after the other.
            extra_columns: what becomes of other columns. "refuse" raises `UsageError`, because their data would be lost;
                "ignore" leaves them out; "headers" makes each of them a header of its name, after those of `headers`. Binary
                and string columns give their bytes, others the text to which Arrow casts them, nulls a null.

        Raises:
            LograftError: as `send`. The producer has taken the batches before the one that failed.
        """
        buffers = self._open_topic(topic)
        pieces = self._deliveries.cut_rows(buffers, data, partition, extra_columns)
        self._send_pieces(buffers, pieces)

    def send_batch(self, topic: str, partition: int, encoded: bytearray, record_count: int) -> None:
        """Send an encoded batch as it is. `lograft.wire.batch.encode_batch` makes one.

        Args:
            topic: topic name.
            partition: partition.
            encoded: one whole batch. The producer owns it from now on and writes its producer id, epoch and sequence into it.
            record_count: number of records, equal to the count in the batch header.

        Raises:
            UsageError: `encoded` is not one whole batch of `record_count` records.
            LograftError: as `send`.
        """
        body = check_encoded(encoded, record_count)
        piece = EncodedPiece(partition=partition, body=body, record_count=record_count, may_split=False)
        self._send_pieces(self._open_topic(topic), (piece,))

    def _send_pieces(self, buffers: TopicBuffers, pieces: Iterable[LoosePiece | EncodedPiece]) -> None:
        for piece in pieces:
            result = AddResult.TOO_LARGE
            if isinstance(piece, EncodedPiece) or is_plain(piece):
                result = self._send_piece(buffers, piece)
            if result is not AddResult.TOO_LARGE:
                continue
            if isinstance(piece, EncodedPiece):
                part = self._deliveries.choose(buffers, None, piece.partition)
                raise self._deliveries.too_large(part, len(piece.body))
            for record in piece.records():
                self._send_slowly(buffers.topic, *record)

    def _send_piece(self, buffers: TopicBuffers, piece: LoosePiece | EncodedPiece) -> AddResult:
        deadline_ms: int | None = None
        while True:
            wait_if_ending()
            with self._progress:
                self._check_usable()
                result = self._deliveries.take(buffers, piece)
                if result is AddResult.BUFFER_FULL:
                    deadline_ms = self._wait_for_room(deadline_ms)
                    continue
                self._wake_if_needed()
            return result

    def transaction(self, transaction_id: str, *, topics: Iterable[str] = (), ttl_ms: int = 0) -> Transaction:
        """Return a transaction: a block whose records are published as a whole, or not at all.

            with producer.transaction("orders-app-1") as transaction:
                transaction.send("orders", b"value")

        The id names one instance of an application. The first transaction of an id in a producer takes it over from an earlier
        program, which is fenced by that; further ones need no new start. The producer keeps the id until it is closed. Records
        that are sent with the producer itself belong to no transaction. The settings of the producer hold for its transactions,
        but for `acks`, `idempotent` and `on_batch`.

        Args:
            transaction_id: id of the application, 1 to 255 bytes in UTF-8.
            topics: topics that its transactions will send to; more are learnt when they are sent to. Name all here if a transaction
                may meet a new one after 1,000 records or 1 MiB: that is refused then (`TransactionTopicsError`).
            ttl_ms: milliseconds without a sign of life of this producer after which an open transaction is aborted, 10,000 to
                604,800,000; 0: one hour. The first transaction of an id decides.

        Raises:
            IngestFencedError: another program has taken over the id: end this producer.
            UsageError: an argument is not valid, the producer is closed, or it uses too many ids.
        """
        with loading():
            from lograft.transaction import Transactions
        with self._start_lock:
            self._check_usable()
            if self._transactions is None:
                self._transactions = Transactions(self._client, self._settings, self._serializers)
            transactions = self._transactions
        return transactions.begin(transaction_id, topics, ttl_ms)

    def flush(self, timeout_ms: int | None = None) -> None:
        """Wait until every record sent so far is acknowledged or has failed.

        Args:
            timeout_ms: milliseconds to wait. None waits until the end, which comes within `delivery_timeout_ms`.

        Raises:
            DeliveryError: batches have failed since the last flush.
            RequestTimeoutError: the time is up. The producer goes on sending the rest.
        """
        try:
            self._flush(timeout_ms)
        except LograftError:
            wait_if_ending()
            raise

    def _flush(self, timeout_ms: int | None) -> None:
        deadline_ms = None if timeout_ms is None else monotonic_ms() + timeout_ms
        with self._progress:
            self._check_usable()
            mark = self._deliveries.accumulator.flush_mark()
            self._wake_if_needed()
            while not self._deliveries.accumulator.has_reached(mark):
                left_s = None if deadline_ms is None else (deadline_ms - monotonic_ms()) / 1000
                if left_s is not None and left_s <= 0:
                    raise RequestTimeoutError(f"not everything was acknowledged within {timeout_ms} ms")
                self._flush_marks.append(mark)
                try:
                    self._wait(left_s)
                finally:
                    self._flush_marks.remove(mark)
                self._check_usable()
            failure = self._deliveries.take_failures()
        if failure is not None:
            raise failure

    def close(self, timeout_ms: int | None = None) -> None:
        """Flush and close the connections. Further calls do nothing.

        Args:
            timeout_ms: milliseconds for the flush. Records that are not acknowledged by then have failed.

        Raises:
            DeliveryError: batches have failed since the last flush.
        """
        with self._lock:
            if self._is_closed or self._is_forked:
                return
        try:
            self.flush(timeout_ms)
        except RequestTimeoutError:
            # The remaining batches fail below, and the last lines report them.
            pass
        finally:
            self._shut()
        with self._lock:
            failure = self._deliveries.take_failures()
        if failure is not None:
            raise failure

    def _shut(self) -> None:
        with self._progress:
            self._is_closed = True
            self._live.clear()
            self._recent = NO_TOPIC
            # Records that other threads sent during the flush fail below and are reported too.
            self._deliveries.accumulator.seal_all()
            sender, runtime = self._sender, self._runtime
            transactions, self._transactions = self._transactions, None
            self._progress.notify_all()
        if transactions is not None:
            transactions.close()
        if sender is not None and runtime is not None:
            try:
                runtime.run(sender.close())
            finally:
                release_runtime(runtime)
                # Batches are left only if the sender could not end in order.
                self._end_deliveries(unusable_error("producer", is_forked=False))

    def _leave(self, started_s: float) -> None:
        """Deliver the remaining records within the time for that and report those that failed. The end of the process calls this."""
        with self._lock:
            if self._is_closed or self._is_forked:
                return
            # From now on daemon threads that send wait for ever, so none of their records is half delivered.
            self._live.clear()
            self._recent = NO_TOPIC
            count = self._deliveries.unresolved_records()
        left_ms = self._settings.exit_flush_ms - round((time.monotonic() - started_s) * 1000)
        try:
            self.close(timeout_ms=max(0, left_ms))
        except DeliveryError as error:
            say_lost(error.failed_record_count, f"the process ends, and the producer was not closed ({error.message})")
        except LograftError as error:
            if count:
                say_lost(count, f"the process ends, and the producer was not closed ({error.message})")

    def __enter__(self) -> Producer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # -- inside

    def _open_topic(self, topic: str) -> TopicBuffers:
        wait_if_ending()
        with self._lock:
            self._check_usable()
            buffers = self._live.get(topic)
            if buffers is not None:
                if self._is_fast:
                    self._recent = topic, buffers
                return buffers
        if type(topic) is not str or not topic:
            raise UsageError(f"topic is a name, not {topic!r}")
        sender, runtime = self._start()
        partition_count = runtime.run(sender.open_topic(topic))
        with self._lock:
            self._check_usable()
            self._deliveries.open_topic(topic, partition_count)
            sender.note_leaders(topic)
            return self._live[topic]

    def _start(self) -> tuple[Sender, Runtime]:
        with self._start_lock:
            if self._sender is None or self._runtime is None:
                self._sender, self._runtime = open_on_runtime(self._new_sender)
            return self._sender, self._runtime

    def _check_usable(self) -> None:
        if self._is_closed or self._is_forked:
            raise unusable_error("producer", is_forked=self._is_forked)

    def _end_deliveries(self, error: LograftError) -> None:
        with self._lock:
            calls = self._deliveries.end(error)
        for call in calls:
            call()

    def _wake_if_needed(self) -> None:
        """Tell the loop of new work, once for each wake. The caller holds the lock."""
        sender, runtime = self._sender, self._runtime
        if sender is not None and runtime is not None and sender.needs_wake():
            sender.is_wake_due = True
            runtime.loop.call_soon_threadsafe(sender.wake)

    def _wait_for_room(self, deadline_ms: int | None) -> int:
        """Wait until a batch has its result, and return the deadline of the whole wait. The caller holds the lock."""
        at_ms = monotonic_ms()
        if deadline_ms is None:
            deadline_ms = at_ms + self._settings.delivery_timeout_ms
        if at_ms >= deadline_ms:
            raise BufferTimeoutError(
                f"buffer_bytes ({self._settings.buffer_bytes}) stayed full for {self._settings.delivery_timeout_ms} ms"
            )
        self._deliveries.accumulator.relieve()
        self._wake_if_needed()
        self._wait((deadline_ms - at_ms) / 1000)
        return deadline_ms

    def _wait(self, timeout_s: float | None) -> None:
        runtime = self._runtime
        if runtime is not None and runtime.is_current_thread():
            raise UsageError("on_batch runs on the thread that would end this wait: do not wait in it")
        self._waiters += 1
        try:
            self._progress.wait(timeout_s)
        finally:
            self._waiters -= 1

    def _on_progress(self) -> None:
        if self._waiters and self._deliveries.accumulator.should_wake(self._waiters, self._flush_marks):
            self._progress.notify_all()

    def _after_fork(self) -> None:
        """Make every later call raise `ForkedClientError`. Runs in the forked child."""
        self._lock = threading.Lock()
        self._progress = threading.Condition(self._lock)
        self._start_lock = threading.Lock()
        self._is_forked = True
        # The calls that wait are the parent's.
        self._deliveries.end(unusable_error("producer", is_forked=True))
        if self._transactions is not None:
            self._transactions.after_fork()
        keep_for_ever((self._sender, self._runtime, self._transactions))
        self._sender = self._runtime = self._transactions = None
        self._live.clear()
        self._recent = NO_TOPIC
