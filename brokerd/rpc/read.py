# SPDX-License-Identifier: Apache-2.0
"""The Read call: records of one partition, wherever its leader is, waiting a while when there is none yet.

Owns the decoding into plain records and the long poll. This is the plain form; whoever wants speed uses the Fetch
stream.
"""

from __future__ import annotations

import asyncio
from typing import Final

from lograft.v1 import log_pb2
from lograft.wire.batch import BatchRecord, read_batches
from lograft.wire.codes import ErrorCode
from lograft.wire.errors import BatchError
from lograft.wire.limits import MAX_GRPC_MESSAGE_BYTES

from brokerd.failure import Failure, RefusedError, refused
from brokerd.limits import (
    BIND_WAIT_MS,
    DEFAULT_READ_BYTES,
    DEFAULT_READ_RECORDS,
    FORWARD_WAIT_MS,
    MAX_READ_BYTES,
    MAX_READ_DECODES,
    MAX_READ_RECORDS,
    MAX_READ_WAIT_MS,
    MAX_WAITING_READS,
)
from brokerd.replication.hosted_replica import HostedReplica
from brokerd.rpc.calls import ServicerContext, check_cluster, left_ms
from brokerd.rpc.fetch_stream import check_offset
from brokerd.rpc.forward import Forwarder
from brokerd.rpc.forwarded import was_forwarded
from brokerd.rpc.parts import BrokerParts

METHOD: Final = "/lograft.v1.LogService/Read"

THREAD_BYTES: Final = 32 * 1024
"""Bytes of batches from which on they are decoded in a thread, so that other streams are not held up."""


class _Waiter:
    """Waits for the high watermark of one replica to pass an offset."""

    def __init__(self, offset: int) -> None:
        self._offset = offset
        self.moved: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def on_high_watermark(self, high_watermark: int) -> None:
        if high_watermark > self._offset and not self.moved.done():
            self.moved.set_result(None)

    def on_service_end(self, failure: Failure) -> None:
        if not self.moved.done():
            self.moved.set_exception(RefusedError(failure))


class ReadCalls:
    """The Read call of one broker."""

    def __init__(self, parts: BrokerParts, forwarder: Forwarder) -> None:
        self._parts = parts
        self._forwarder = forwarder
        self._waiting_count = 0
        self._decodes = asyncio.Semaphore(MAX_READ_DECODES)

    async def read(self, request: log_pb2.ReadRequest, context: ServicerContext) -> log_pb2.ReadResponse:
        """Serve one call.

        Raises:
            RefusedError: nothing was read.
        """
        check_cluster(request.cluster_id, self._parts.cluster_id)
        max_records = _bounded("max_records", request.max_records, DEFAULT_READ_RECORDS, MAX_READ_RECORDS)
        max_bytes = _bounded("max_bytes", request.max_bytes, DEFAULT_READ_BYTES, MAX_READ_BYTES)
        max_wait_ms = _bounded("max_wait_ms", request.max_wait_ms, 0, MAX_READ_WAIT_MS)
        locator = self._parts.locator
        is_forwarded = await was_forwarded(context, self._parts, [(request.topic, request.partition)])
        place = locator.leader(locator.topic(request.topic), request.partition)
        if not locator.is_local(place) and not is_forwarded:
            return await self._forwarder.call(
                place,
                METHOD,
                request,
                log_pb2.ReadResponse,
                timeout_ms=left_ms(context, at_most_ms=FORWARD_WAIT_MS + max_wait_ms),
                is_read_only=True,
            )
        wait_ms = left_ms(context, at_most_ms=BIND_WAIT_MS)
        replica = await locator.local_leader(request.topic, request.partition, timeout_ms=wait_ms)
        check_offset(replica, request.offset)
        if request.offset >= replica.high_watermark and max_wait_ms > 0:
            await self._wait(replica, request.offset, left_ms(context, at_most_ms=max_wait_ms))
        return await self._records(replica, request.offset, max_records, max_bytes)

    async def _wait(self, replica: HostedReplica, offset: int, timeout_ms: int) -> None:
        if self._waiting_count >= MAX_WAITING_READS:
            message = f"{MAX_WAITING_READS} reads wait on this broker, which is its limit"
            raise refused(ErrorCode.OVERLOADED, message, retry_after_ms=1_000)
        waiter = _Waiter(offset)
        replica.listeners.add_read(waiter)
        self._waiting_count += 1
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await waiter.moved
        except TimeoutError:
            return  # no record came in time: the answer is empty
        finally:
            self._waiting_count -= 1
            replica.listeners.remove(waiter)

    async def _records(
        self, replica: HostedReplica, offset: int, max_records: int, max_bytes: int
    ) -> log_pb2.ReadResponse:
        response = log_pb2.ReadResponse(
            next_offset=offset, high_watermark=replica.high_watermark, log_start_offset=replica.log_start_offset
        )
        # More than one turn only over batches without user records.
        while not response.records and response.next_offset < response.high_watermark:
            found = replica.read(response.next_offset, max_bytes, end_offset=response.high_watermark)
            if not found.data:
                break
            try:
                if len(found.data) >= THREAD_BYTES:
                    async with self._decodes:
                        await asyncio.to_thread(_decode, found.data, response, max_records, max_bytes)
                else:
                    _decode(found.data, response, max_records, max_bytes)
            except BatchError as error:
                message = f"a stored batch of {replica} at or after offset {response.next_offset} is damaged: {error}"
                raise refused(ErrorCode.DATA_LOSS, message) from error
            if not response.records:
                response.next_offset = found.next_offset
        if response.ByteSize() > MAX_GRPC_MESSAGE_BYTES:
            message = f"the record at offset {offset} is too large for this call: use the Fetch stream"
            raise refused(ErrorCode.MESSAGE_TOO_LARGE, message)
        return response


def _bounded(name: str, value: int, default: int, largest: int) -> int:
    if not 0 <= value <= largest:
        raise refused(ErrorCode.INVALID_REQUEST, f"{name} {value} is not between 0 and {largest}")
    return value or default


def _decode(data: bytes, response: log_pb2.ReadResponse, max_records: int, max_bytes: int) -> None:
    """Add the records from `response.next_offset` on to the response, within the limits; at least one if there is one.

    Raises:
        BatchError: the bytes are not whole, valid batches.
    """
    size_bytes = 0
    for batch in read_batches(data):
        if batch.header.is_control:
            continue
        for record in batch.records():
            if record.offset < response.next_offset:
                continue
            size_bytes += _size(record)
            if response.records and (len(response.records) >= max_records or size_bytes > max_bytes):
                return
            _add(response, record)
            response.next_offset = record.offset + 1


def _size(record: BatchRecord) -> int:
    # Headers count too, beyond what the contract says of keys and values: the message has a hard limit.
    size_bytes = len(record.key or b"") + len(record.value or b"")
    for key, value in record.headers:
        size_bytes += len(key) + len(value or b"")
    return size_bytes


def _add(response: log_pb2.ReadResponse, record: BatchRecord) -> None:
    added = response.records.add(
        key=record.key, value=record.value, timestamp_ms=record.timestamp_ms, offset=record.offset
    )
    for key, value in record.headers:
        added.headers.add(key=key, value=value)
