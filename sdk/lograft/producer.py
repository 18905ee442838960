# SPDX-License-Identifier: Apache-2.0
"""The blocking producer.

Owns the lock, the waits of the caller's threads, and the lean path of `send`. Everything that talks to brokers runs
on the background event loop (`_client.runtime`). Any number of threads may use one producer.

The lean path: when value and key are bytes and nothing else is given, one lookup, one checksum and one append, without
the lock (`_producer.accumulator` says why that is safe). Everything else, and every record that does not fit into what
its open batch was granted, takes `_send_slowly`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Any

from lograft._client.clock import monotonic_ms, wall_clock_ms
from lograft._client.forks import on_fork
from lograft._client.immortal import keep_for_ever
from lograft._client.runtime import Runtime, on_exit, open_on_runtime, release_runtime, wait_if_ending
from lograft._client.usable import unusable_error
from lograft._producer.accumulator import AddResult
from lograft._producer.arguments import check_columns, check_record, is_plain
from lograft._producer.buffers import NO_TOPIC, OpenBatch, PartitionBuffer, TopicBuffers
from lograft._producer.bulk import EncodedPiece, LoosePiece, check_encoded
from lograft._producer.deliveries import Deliveries, OnBatch, say_lost
from lograft._producer.record_columns import RECORD_OVERHEAD_BYTES, record_size
from lograft._producer.sender import Sender
from lograft.errors import (
    BufferTimeoutError,
    DeliveryError,
    LograftError,
    RequestTimeoutError,
    UsageError,
)
from lograft.settings import CONNECTION_LIVENESS_MS, PRODUCER_DEFAULTS, ProducerSettings, parse_acks, parse_bootstrap
from lograft.types import Headers


class Producer:
    """Sends records to topics, from any number of threads.

    `send` returns at once and reports nothing: failures come out of `flush` and `close` as `DeliveryError`, and every
    batch can be followed with `on_batch`. Records of one partition are in the log in the order in which they were
    sent, once each (unless `idempotent` is off or `acks` is "none").

        with Producer("localhost:9640") as producer:
            producer.send("events", b"value", key=b"key")

    Args:
        bootstrap: "host:port", several with commas, or a list: brokers to ask first.
        cluster_id: id that the cluster must have; None: any.
        connection_liveness_ms: milliseconds without a sign of life after which a connection is given up, 4,000 to 60,000.
        acks: "all", "leader" or "none": when a batch counts as delivered.
        idempotent: resends are recognised, so that no record is in the log twice.
        linger_ms: milliseconds that a batch waits for more records, 0 to 60,000; 0 sends what is there at once.
        batch_bytes: size at which a batch is sent, 1,024 to 8 MiB; topics with a lower limit get smaller ones.
        max_in_flight: unacknowledged batches of one partition, 1 to 16.
        buffer_bytes: bytes of records (keys and values and 16 bytes each) held here, `batch_bytes` to 16 GiB; above it `send`
            waits.
        codec: "none" or "zstd".
        delivery_timeout_ms: milliseconds after which an unacknowledged record has failed, 1 to 86,400,000.
        exit_flush_ms: milliseconds that the end of the process waits for what was not delivered, if the producer is still open then,
            0 to 600,000; what is left is said on standard error. All producers of a process share the time. Not of
            `lograft.aio.Producer`, whose event loop is gone then.
        on_batch: called for every batch that was acknowledged or failed, on the background thread: be quick, and call
            no blocking client.

    Raises:
        InvalidSettingError: a setting is out of range; InvalidAcksError for `acks`.
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
        connection_liveness_ms: int = CONNECTION_LIVENESS_MS,
    ) -> None:
        self._settings = ProducerSettings(
            acks=parse_acks(acks),
            idempotent=idempotent,
            linger_ms=linger_ms,
            batch_bytes=batch_bytes,
            max_in_flight=max_in_flight,
            buffer_bytes=buffer_bytes,
            codec=codec,
            delivery_timeout_ms=delivery_timeout_ms,
            exit_flush_ms=exit_flush_ms,
        )
        self._client = parse_bootstrap(bootstrap, cluster_id, connection_liveness_ms=connection_liveness_ms)
        self._deliveries = Deliveries(self._settings, on_batch)
        self._live = self._deliveries.live
        # The topic that came last to the slow path: most send to one, whose name is the same object each time.
        self._recent: tuple[str, TopicBuffers | None] = NO_TOPIC
        self._lock = threading.Lock()
        self._progress = threading.Condition(self._lock)
        self._waiters = 0
        # What those of the waiters wait for that wait for a flush, not for room.
        self._flush_marks: list[int] = []
        self._is_closed = False
        self._is_forked = False
        self._runtime: Runtime | None = None
        self._sender: Sender | None = None
        self._start_lock = threading.Lock()
        on_fork(self)
        on_exit(self)

    def send(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Headers | None = None,
    ) -> None:
        """Send one record; waits while the buffer is full.

        Args:
            topic: topic name.
            value: value; None: a null (a tombstone in a compacted topic).
            key: key; records with the same key go to the same partition.
            partition: partition; None: by key, and records without a key fill one partition after the other.
            timestamp_ms: create time in milliseconds since 1970-01-01 UTC; None: now, up to `linger_ms` early.
            headers: (name, value) pairs.

        Raises:
            UsageError: a field is not valid, or the producer is closed.
            RecordTooLargeError: the record is over the limit of its topic.
            UnknownTopicError: no such topic or partition.
            BufferTimeoutError: the buffer stayed full for `delivery_timeout_ms`.
            LograftError: the topic could not be looked up.
        """
        # Measured: keyword-only arguments that are left out cost 15 ns each, differences of large numbers 15 ns each.
        if partition is timestamp_ms is headers is None and type(value) is bytes:
            recent, buffers = self._recent
            if topic is not recent:
                buffers = self._live.get(topic)
            if buffers is None:
                pass
            elif type(key) is bytes:
                try:
                    part = buffers.by_key[key]
                except KeyError:
                    part = buffers.of_key(key)
                batch = part.open
                room = batch.room - (len(value) + len(key) + RECORD_OVERHEAD_BYTES)
                if room >= 0:
                    batch.room = room
                    batch += (value, key)
                    if part.open is not batch:
                        self._take_late(part, batch)
                    return
            elif key is None:
                part = buffers.parts[buffers.sticky]
                batch = part.open
                room = batch.room - (len(value) + RECORD_OVERHEAD_BYTES)
                if room >= 0:
                    batch.room = room
                    batch += (value, None)
                    if part.open is not batch:
                        self._take_late(part, batch)
                    return
        self._send_slowly(topic, value, key, partition, timestamp_ms, headers)

    def _take_late(self, part: PartitionBuffer, batch: OpenBatch) -> None:
        """The batch was closed while a record was appended to it: have the record taken in, if it was not."""
        with self._lock:
            self._deliveries.accumulator.take_late(part, batch, now_ms=monotonic_ms(), wall_ms=wall_clock_ms())
            self._wake_if_needed()

    def _send_slowly(
        self,
        topic: str,
        value: object,
        key: object,
        partition: int | None,
        timestamp_ms: object,
        headers: object,
    ) -> None:
        record = check_record(value, key, timestamp_ms, headers)
        buffers = self._open_topic(topic)
        deadline_ms: int | None = None
        while True:
            wait_if_ending()
            with self._progress:
                self._check_usable()
                part = self._deliveries.choose(buffers, record[1], partition)
                result = self._deliveries.add(part, *record)
                if result is AddResult.BUFFER_FULL:
                    deadline_ms = self._wait_for_room(deadline_ms)
                    continue
                self._wake_if_needed()
            if result is AddResult.TOO_LARGE:
                raise self._deliveries.too_large(part, record_size(*record))
            return

    def send_many(
        self,
        topic: str,
        values: Sequence[bytes],
        *,
        keys: Sequence[bytes | None] | None = None,
        partition: int | None = None,
        timestamps_ms: Sequence[int] | None = None,
    ) -> None:
        """Send many records: several times faster than `send` for each.

        Args:
            topic: topic name.
            values: values, in order.
            keys: one key for each value, None where there is none; None: no record has one.
            partition: partition for all; None: by key.
            timestamps_ms: one create time for each value; None: now.

        Raises:
            LograftError: as `send`. Records before the one that failed have been taken.
        """
        check_columns(values, keys, timestamps_ms)
        buffers = self._open_topic(topic)
        pieces = self._deliveries.cut_columns(buffers, values, keys, timestamps_ms, partition)
        self._send_pieces(buffers, pieces)

    def send_arrow(self, topic: str, data: Any, *, partition: int | None = None) -> None:
        """Send the rows of a `pyarrow.RecordBatch` or `Table`, column to column.

        Args:
            topic: topic name.
            data: column `value`, and if wanted `key`, `timestamp` (or `timestamp_ms`), `headers` (list of (key,
                value)).
            partition: partition for all; None: by key, rows without a key to one partition after the other.

        Raises:
            LograftError: as `send`. Batches before the one that failed have been taken.
        """
        buffers = self._open_topic(topic)
        pieces = self._deliveries.cut_rows(buffers, data, partition)
        self._send_pieces(buffers, pieces)

    def send_batch(self, topic: str, partition: int, encoded: bytearray, record_count: int) -> None:
        """Send a batch that was encoded with `lograft.wire.batch.encode_batch`, as it is.

        Args:
            topic: topic name.
            partition: partition.
            encoded: one whole batch. It belongs to the producer from now on, which writes its identity into it.
            record_count: records in it, as its header says.

        Raises:
            UsageError: it is not one whole batch of `record_count` records.
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

    def flush(self, timeout_ms: int | None = None) -> None:
        """Wait until everything sent before is acknowledged or has failed.

        Args:
            timeout_ms: milliseconds to wait; None: as long as it takes, which `delivery_timeout_ms` bounds.

        Raises:
            DeliveryError: batches failed since the last flush.
            RequestTimeoutError: the time is up; what was sent is still under way.
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
        """Flush and let the connections go. Further calls do nothing.

        Args:
            timeout_ms: milliseconds for the flush; what is not acknowledged then has failed.

        Raises:
            DeliveryError: batches failed since the last flush.
        """
        with self._lock:
            if self._is_closed or self._is_forked:
                return
        try:
            self.flush(timeout_ms)
        except RequestTimeoutError:
            # What is left fails below and is reported there.
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
            # What other threads sent meanwhile fails below, and is reported.
            self._deliveries.accumulator.seal_all()
            sender, runtime = self._sender, self._runtime
            self._progress.notify_all()
        if sender is not None and runtime is not None:
            try:
                runtime.run(sender.close())
            finally:
                release_runtime(runtime)

    def leave(self, started_s: float) -> None:
        """Called at the end of the process: deliver what is left, within the time for that, and say what could not be."""
        with self._lock:
            if self._is_closed or self._is_forked:
                return
            # What daemon threads go on to send waits with them, and is not half delivered.
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
                self._recent = topic, buffers
                return buffers
        if type(topic) is not str or not topic:
            raise UsageError(f"topic is a name, not {topic!r}")
        sender, runtime = self._start()
        partition_count = runtime.run(sender.open_topic(topic))
        with self._lock:
            self._check_usable()
            self._deliveries.open_topic(topic, partition_count)
            return self._live[topic]

    def _start(self) -> tuple[Sender, Runtime]:
        with self._start_lock:
            if self._sender is None or self._runtime is None:
                self._sender, self._runtime = open_on_runtime(
                    lambda: Sender(self._client, self._deliveries, self._lock, self._on_progress)
                )
            return self._sender, self._runtime

    def _check_usable(self) -> None:
        if self._is_closed or self._is_forked:
            raise unusable_error("producer", is_forked=self._is_forked)

    def _wake_if_needed(self) -> None:
        """Tell the loop of new work; called with the lock held, once for each wake."""
        sender, runtime = self._sender, self._runtime
        if sender is not None and runtime is not None and sender.needs_wake():
            sender.is_wake_due = True
            runtime.loop.call_soon_threadsafe(sender.wake)

    def _wait_for_room(self, deadline_ms: int | None) -> int:
        """Wait for a batch to be resolved; called with the lock held. Returns the deadline of the whole wait."""
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

    def after_fork(self) -> None:
        """Called in a forked child: refuse to work from now on."""
        self._lock = threading.Lock()
        self._progress = threading.Condition(self._lock)
        self._start_lock = threading.Lock()
        self._is_forked = True
        keep_for_ever((self._sender, self._runtime))
        self._sender = self._runtime = None
        self._live.clear()
        self._recent = NO_TOPIC
