# SPDX-License-Identifier: Apache-2.0
"""The Append call: takes records and appends one batch to each partition, here or at the broker that leads it.

Owns the choice of partitions, the encoding, and the wait for acknowledgement. This is the simple call for any language; the Produce
stream is the fast one. Law: a call answers OK only if every range has reached its level. If one fails, the call fails, and the status
carries the ranges that were appended. The code is OUTCOME_UNKNOWN whenever records may be in a log without an acknowledgement.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from typing import Final

from lograft.v1 import log_pb2
from lograft.wire.batch import encode_batch
from lograft.wire.codes import ErrorCode
from lograft.wire.errors import BatchError
from lograft.wire.header import read_header
from lograft.wire.limits import MAX_RECORDS_PER_BATCH
from lograft.wire.partitioner import partition_for_key

from brokerd.api.calls import CallContext, CallFailedError, check_cluster, left_ms
from brokerd.api.forward import Forwarder, was_forwarded
from brokerd.api.log_service.batch_check import needs_recompression
from brokerd.api.log_service.init_producer import check_identity
from brokerd.api.log_service.staging import check_use, staging_rules
from brokerd.api.parts import BrokerParts
from brokerd.clock import wall_ms
from brokerd.failure import Failure, LeaderPlace, RefusedError, refused
from brokerd.limits import APPEND_WAIT_MS, BIND_WAIT_MS
from brokerd.partition.effects import LossReason
from brokerd.partition.events import AckLevel, Durability
from brokerd.replica.refusals import too_few_after_failure
from brokerd.replica.replica import Replica
from metaquorum.metadata.image import TopicImage
from metaquorum.metadata.topic_configs import TopicSettings

METHOD: Final = "Append"
"""Name of the method in the service."""

NO_PRODUCER: Final = -1
"""Producer id of an append without a sequence."""

THREAD_RECORDS: Final = 1_000
"""Number of records from which on a thread encodes the request, so that other streams are not delayed."""

_LEVELS = {
    log_pb2.ACKS_UNSPECIFIED: AckLevel.ALL,
    log_pb2.ACKS_ALL: AckLevel.ALL,
    log_pb2.ACKS_LEADER: AckLevel.LEADER,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """The records of a request for one partition; `indexes` is ascending."""

    partition: int
    indexes: Sequence[int]
    place: LeaderPlace


class AppendCalls:
    """The Append call of one broker."""

    def __init__(self, parts: BrokerParts, forwarder: Forwarder) -> None:
        self._parts = parts
        self._forwarder = forwarder
        self._round_robin = count()

    async def append(self, request: log_pb2.AppendRequest, context: CallContext) -> log_pb2.AppendResponse:
        """Serve one Append.

        Raises:
            RefusedError: not all records were appended.
        """
        check_cluster(request.cluster_id, self._parts.cluster_id)
        producer_id = request.sequence.producer.producer_id if request.HasField("sequence") else NO_PRODUCER
        check_use(self._parts, request.topic, producer_id)
        level = _read_level(request.acks)
        if not 1 <= len(request.records) <= MAX_RECORDS_PER_BATCH:
            message = f"an append takes 1 to {MAX_RECORDS_PER_BATCH} records, this one has {len(request.records)}"
            raise refused(ErrorCode.INVALID_REQUEST, message)
        if request.HasField("sequence"):
            await self._check_sequence(request)
        if left_ms(context, at_most_ms=APPEND_WAIT_MS) <= 0:
            raise refused(ErrorCode.TIMED_OUT, "the deadline has passed; nothing was appended")
        is_forwarded = await was_forwarded(context, self._parts, [(request.topic, request.partition)])
        parts = self._split(request, self._parts.locator.topic(request.topic))
        if is_forwarded:
            self._check_local(parts, request.topic)
        results = await asyncio.gather(
            *(self._append_part(request, part, level, context) for part in parts), return_exceptions=True
        )
        return _join(results)

    async def _check_sequence(self, request: log_pb2.AppendRequest) -> None:
        sequence = request.sequence
        if not request.HasField("partition"):
            raise refused(ErrorCode.INVALID_REQUEST, "`sequence` counts within one partition: set `partition` too")
        if sequence.base_sequence < 0:
            raise refused(ErrorCode.INVALID_REQUEST, f"base_sequence {sequence.base_sequence} is below 0")
        producer = sequence.producer
        await check_identity(self._parts.observer, producer.producer_id, producer.producer_epoch)

    def _split(self, request: log_pb2.AppendRequest, topic: TopicImage) -> list[_Part]:
        locator = self._parts.locator
        if request.HasField("partition"):
            place = locator.leader(topic, request.partition)
            return [_Part(partition=request.partition, indexes=range(len(request.records)), place=place)]
        partition_count = len(topic.partitions)
        indexes_by_partition: dict[int, list[int]] = {}
        without_key = next(self._round_robin) % partition_count
        for index, record in enumerate(request.records):
            key = record.key if record.HasField("key") else None
            partition = without_key if key is None else partition_for_key(key, partition_count)
            indexes_by_partition.setdefault(partition, []).append(index)
        return [
            _Part(partition=partition, indexes=indexes, place=locator.leader(topic, partition))
            for partition, indexes in sorted(indexes_by_partition.items())
        ]

    def _check_local(self, parts: list[_Part], topic: str) -> None:
        for part in parts:
            if not self._parts.locator.is_local(part.place):
                message = f"broker {part.place.leader_id} leads {topic}-{part.partition}"
                raise RefusedError(Failure(code=ErrorCode.NOT_LEADER, message=message, leader=part.place))

    async def _append_part(
        self, request: log_pb2.AppendRequest, part: _Part, level: AckLevel, context: CallContext
    ) -> log_pb2.AppendedRange:
        if not self._parts.locator.is_local(part.place):
            return await self._forward(request, part, context)
        wait_ms = left_ms(context, at_most_ms=BIND_WAIT_MS)
        replica = await self._parts.locator.local_leader(request.topic, part.partition, timeout_ms=wait_ms)
        if len(part.indexes) >= THREAD_RECORDS:
            batch = await asyncio.to_thread(_encode, request, part.indexes)
        else:
            batch = _encode(request, part.indexes)
        staging = staging_rules(self._parts, replica)
        settings = replica.settings if staging is None else staging.settings
        max_bytes = min(replica.max_message_bytes, settings.max_message_bytes)
        if len(batch) > max_bytes:
            message = f"the records make a batch of {len(batch)} bytes, the topic takes {max_bytes}"
            raise refused(ErrorCode.MESSAGE_TOO_LARGE, message)
        stored = memoryview(batch)
        if needs_recompression(stored, settings):
            stored = await self._recompress(stored, settings, max_bytes)
        if staging is not None:
            staging.admit(stored, read_header(stored))
        appended = replica.append(stored, read_header(stored), level=level)
        durability = await self._wait_for_ack(replica, appended.next_offset, level, context)
        return log_pb2.AppendedRange(
            partition=part.partition,
            base_offset=appended.base_offset,
            record_indexes=part.indexes,
            durability=log_pb2.Durability.ValueType(durability),
            duplicate=appended.duplicate,
        )

    async def _recompress(self, batch: memoryview, settings: TopicSettings, max_bytes: int) -> memoryview:
        """Return a batch with the codec of its topic."""
        threads = self._parts.batch_threads
        stored, checked = await threads.check_and_recompress(batch, settings, max_bytes=max_bytes)
        if isinstance(checked, BatchError):
            raise refused(checked.code, str(checked)) from checked
        return stored

    async def _wait_for_ack(
        self, replica: Replica, next_offset: int, level: AckLevel, context: CallContext
    ) -> Durability:
        reached: asyncio.Future[Durability | LossReason] = asyncio.get_running_loop().create_future()

        def on_ack(outcome: Durability | LossReason) -> None:
            if not reached.done():
                reached.set_result(outcome)

        token = replica.want_ack(next_offset, level, on_ack)
        try:
            async with asyncio.timeout(left_ms(context, at_most_ms=APPEND_WAIT_MS) / 1000):
                outcome = await reached
        except TimeoutError:
            outcome = None
        finally:
            replica.drop_ack(token)
        if outcome is LossReason.NOT_ENOUGH_REPLICAS:
            raise RefusedError(too_few_after_failure(str(replica)))
        if not isinstance(outcome, Durability):
            message = "the records are in the leader's log and were not acknowledged: they may or may not stay"
            raise refused(ErrorCode.OUTCOME_UNKNOWN, message)
        return outcome

    async def _forward(
        self, request: log_pb2.AppendRequest, part: _Part, context: CallContext
    ) -> log_pb2.AppendedRange:
        forwarded = log_pb2.AppendRequest(
            cluster_id=self._parts.cluster_id,
            topic=request.topic,
            partition=part.partition,
            records=[request.records[index] for index in part.indexes],
            acks=request.acks,
        )
        if request.HasField("sequence"):
            forwarded.sequence.CopyFrom(request.sequence)
        response = await self._forwarder.call(
            part.place,
            METHOD,
            forwarded,
            log_pb2.AppendResponse,
            timeout_ms=left_ms(context, at_most_ms=APPEND_WAIT_MS),
            is_read_only=False,
        )
        if len(response.ranges) != 1:
            message = f"broker {part.place.leader_id} answered with {len(response.ranges)} ranges"
            raise refused(ErrorCode.INTERNAL, message)
        answer = response.ranges[0]
        del answer.record_indexes[:]
        answer.record_indexes.extend(part.indexes)
        return answer


def _read_level(acks: int) -> AckLevel:
    for known, level in _LEVELS.items():
        if known == acks:
            return level
    raise refused(ErrorCode.INVALID_ACKS, f"acks {acks} is not offered here: use ACKS_ALL (1) or ACKS_LEADER (2)")


def _encode(request: log_pb2.AppendRequest, indexes: Sequence[int]) -> bytearray:
    """Encode the records of one partition as a batch.

    Raises:
        RefusedError: a record violates the batch format.
    """
    records = [request.records[index] for index in indexes]
    now_ms = wall_ms()
    sequence = request.sequence if request.HasField("sequence") else None
    has_keys = any(record.HasField("key") for record in records)
    has_headers = any(record.headers for record in records)
    try:
        return encode_batch(
            [record.value if record.HasField("value") else None for record in records],
            keys=[record.key if record.HasField("key") else None for record in records] if has_keys else None,
            timestamps_ms=[record.timestamp_ms if record.HasField("timestamp_ms") else now_ms for record in records],
            headers=[_headers(record) for record in records] if has_headers else None,
            producer_id=-1 if sequence is None else sequence.producer.producer_id,
            producer_epoch=-1 if sequence is None else sequence.producer.producer_epoch,
            base_sequence=-1 if sequence is None else sequence.base_sequence,
        )
    except BatchError as error:
        raise refused(error.code, str(error)) from error


def _headers(record: log_pb2.Record) -> list[tuple[str, bytes | None]]:
    return [(header.key, header.value if header.HasField("value") else None) for header in record.headers]


def _join(results: Sequence[log_pb2.AppendedRange | BaseException]) -> log_pb2.AppendResponse:
    """Join the answers of all partitions. One failure fails the call, and the error carries the appended ranges."""
    response = log_pb2.AppendResponse(
        ranges=[result for result in results if isinstance(result, log_pb2.AppendedRange)]
    )
    failures = [result for result in results if isinstance(result, BaseException)]
    if not failures:
        return response
    for failure in failures:
        if not isinstance(failure, RefusedError):
            raise failure
    # An unknown outcome is the worst failure and must not hide behind another refusal.
    refusals = [failure for failure in failures if isinstance(failure, RefusedError)]
    worst = next((one for one in refusals if one.failure.code is ErrorCode.OUTCOME_UNKNOWN), refusals[0])
    raise CallFailedError(worst.failure, response) if response.ranges else worst
