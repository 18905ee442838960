# SPDX-License-Identifier: Apache-2.0
"""The Read call: returns records of one partition from its leader, and waits a while if no record is there yet.

If the client allows it, an in-sync follower answers: the broker that got the call must be one, must have the offset and must be able
to read it. Owns the decoding into plain records and the long poll. This is the simple call; the Fetch stream is the fast one.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial
from typing import Final

from lograft.v1 import log_pb2
from lograft.wire.batch import BatchRecord, iter_batches, read_batches
from lograft.wire.codes import ErrorCode
from lograft.wire.errors import BatchError
from lograft.wire.limits import MAX_GRPC_MESSAGE_BYTES

from brokerd.api.calls import CallContext, check_cluster, left_ms
from brokerd.api.forward import Forwarder, was_forwarded
from brokerd.api.log_service.batch_check import inflated_bytes
from brokerd.api.log_service.readers import ServingReplica, Verdict, find_follower, find_serving
from brokerd.api.parts import BrokerParts
from brokerd.failure import Failure, RefusedError, refused
from brokerd.limits import (
    BIND_WAIT_MS,
    DEFAULT_READ_BYTES,
    DEFAULT_READ_RECORDS,
    FORWARD_WAIT_MS,
    MAX_READ_BYTES,
    MAX_READ_RECORDS,
    MAX_READ_WAIT_MS,
    MAX_WAITING_READS,
)
from brokerd.replica.replica import Replica

METHOD: Final = "Read"
"""Name of the method in the service."""

THREAD_BYTES: Final = 32 * 1024
"""Bytes of batches, or of one inflated batch, from which on a thread decodes them, so that other streams are not delayed."""

PIECE_RECORDS: Final = 512
"""Records of a batch that become objects in one step. Even in a thread such a step holds the interpreter lock."""

READ_COPIES: Final = 2
"""Copies of the values in memory beside the inflated batch: as objects, and in the answer."""


class _Waiter:
    """Waits until the high watermark of one replica passes an offset."""

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

    async def read(self, request: log_pb2.ReadRequest, context: CallContext) -> log_pb2.ReadResponse:
        """Serve one Read.

        Raises:
            RefusedError: the call returns no records.
        """
        check_cluster(request.cluster_id, self._parts.cluster_id)
        _check_bounds("max_records", request.max_records, MAX_READ_RECORDS)
        _check_bounds("max_bytes", request.max_bytes, MAX_READ_BYTES)
        _check_bounds("max_wait_ms", request.max_wait_ms, MAX_READ_WAIT_MS)
        locator = self._parts.locator
        is_forwarded = await was_forwarded(context, self._parts, [(request.topic, request.partition)])
        if request.allow_follower:
            follower = find_follower(locator, request.topic, request.partition)
            if follower is not None and follower.judge(request.offset) is Verdict.SERVED:
                with suppress(RefusedError):
                    return await self._serve(follower, request, context)
                # The replica no longer follows, or is damaged at this offset: ask the leader.
        place = locator.leader(locator.topic(request.topic), request.partition)
        if not locator.is_local(place) and not is_forwarded:
            return await self._forwarder.call(
                place,
                METHOD,
                request,
                log_pb2.ReadResponse,
                timeout_ms=left_ms(context, at_most_ms=FORWARD_WAIT_MS + request.max_wait_ms),
                is_read_only=True,
            )
        wait_ms = left_ms(context, at_most_ms=BIND_WAIT_MS)
        serving = await find_serving(
            locator, request.topic, request.partition, allow_follower=False, timeout_ms=wait_ms
        )
        serving.check(request.offset)
        return await self._serve(serving, request, context)

    async def _serve(
        self, serving: ServingReplica, request: log_pb2.ReadRequest, context: CallContext
    ) -> log_pb2.ReadResponse:
        """Read records, after a wait if there are none yet. The caller has checked the limits of the request."""
        if request.offset >= serving.end_offset and request.max_wait_ms > 0:
            await self._wait(serving, request.offset, left_ms(context, at_most_ms=request.max_wait_ms))
        max_records = request.max_records or DEFAULT_READ_RECORDS
        return await self._records(serving, request.offset, max_records, request.max_bytes or DEFAULT_READ_BYTES)

    async def _wait(self, serving: ServingReplica, offset: int, timeout_ms: int) -> None:
        if self._waiting_count >= MAX_WAITING_READS:
            message = f"{MAX_WAITING_READS} reads wait on this broker, which is its limit"
            raise refused(ErrorCode.OVERLOADED, message, retry_after_ms=1_000)
        waiter = _Waiter(offset)
        listeners = serving.listeners
        listeners.add_read(waiter)
        self._waiting_count += 1
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await waiter.moved
        except TimeoutError:
            return  # no record came in time: the answer is empty
        finally:
            self._waiting_count -= 1
            listeners.remove(waiter)

    async def _records(
        self, serving: ServingReplica, offset: int, max_records: int, max_bytes: int
    ) -> log_pb2.ReadResponse:
        replica = serving.replica
        response = log_pb2.ReadResponse(
            next_offset=offset, high_watermark=serving.end_offset, log_start_offset=replica.log_start_offset
        )
        # This loop runs more than once only over batches without user records.
        while not response.records and response.next_offset < response.high_watermark:
            found = replica.read(response.next_offset, max_bytes, end_offset=response.high_watermark)
            if not found.data:
                break
            is_small = await self._add_records(replica, found.data, response, max_records, max_bytes)
            if not is_small or response.ByteSize() > MAX_GRPC_MESSAGE_BYTES:
                message = f"the record at offset {offset} is too large for this call: use the Fetch stream"
                raise refused(ErrorCode.MESSAGE_TOO_LARGE, message)
            if not response.records:
                response.next_offset = found.next_offset
        return response

    async def _add_records(
        self, replica: Replica, data: bytes, response: log_pb2.ReadResponse, max_records: int, max_bytes: int
    ) -> bool:
        """Decode batches into the response, as `_decode` does. A thread does it if it takes long or needs much memory.

        Raises:
            RefusedError: DATA_LOSS, a stored batch is damaged; OVERLOADED, no thread or memory became free in time.
        """
        try:
            largest_bytes = _largest_bytes(data)
            if max(len(data), largest_bytes) < THREAD_BYTES:
                return _decode(data, response, max_records, max_bytes)
            work = partial(_decode, data, response, max_records, max_bytes)
            return await self._parts.batch_threads.run(work, READ_COPIES * largest_bytes)
        except BatchError as error:
            message = f"a stored batch of {replica} at or after offset {response.next_offset} is damaged: {error}"
            raise refused(ErrorCode.DATA_LOSS, message) from error


def _check_bounds(name: str, value: int, largest: int) -> None:
    if not 0 <= value <= largest:
        raise refused(ErrorCode.INVALID_REQUEST, f"{name} {value} is not between 0 and {largest}")


def _largest_bytes(data: bytes) -> int:
    """Return the maximum inflated size of any one of the batches. They are inflated one after the other.

    Raises:
        BatchError: the bytes are not whole batches.
    """
    view = memoryview(data)
    return max(inflated_bytes(view[position : position + header.size_bytes]) for position, header in iter_batches(data))


def _decode(data: bytes, response: log_pb2.ReadResponse, max_records: int, max_bytes: int) -> bool:
    """Add the records from `response.next_offset` on to the response, within the limits, but at least one.

    Returns:
        False if the first record is too large for any message; then no record is added.

    Raises:
        BatchError: the bytes are not whole, valid batches.
    """
    size_bytes = 0
    for batch in read_batches(data):
        if batch.header.is_control:
            continue
        index = batch.index_of(response.next_offset)
        while index < batch.record_count:
            # Records beyond the limits stay in their columns: a batch may have 100,000 records, or one of 64 MiB.
            count = batch.count_within(index, max_records=PIECE_RECORDS, max_bytes=max_bytes - size_bytes)
            if count == 0:
                if response.records:
                    return True
                if not batch.count_within(index, max_records=1, max_bytes=MAX_GRPC_MESSAGE_BYTES):
                    return False
                count = 1
            for record in batch.piece(index, count):
                size_bytes += _size(record)
                if response.records and (len(response.records) >= max_records or size_bytes > max_bytes):
                    return True
                if size_bytes > MAX_GRPC_MESSAGE_BYTES:
                    return False
                _add(response, record)
                response.next_offset = record.offset + 1
            index += count
    return True


def _size(record: BatchRecord) -> int:
    # Headers count too, although the contract limits only keys and values: the message has a hard limit.
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
