# SPDX-License-Identifier: Apache-2.0
"""The records of one producer from `send` to their delivery report: topics in use, accumulator, failures until the next flush.

This module owns encoding, the clock readings for the accumulator, and the list of failures. It knows no lock and no loop: the
blocking producer uses it under its lock.
"""

from __future__ import annotations

import logging
import random
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Final

from lograft._client.clock import monotonic_ms, wall_clock_ms
from lograft._producer.accumulator import Accumulator, AddResult
from lograft._producer.arrow import Rows, encode_rows
from lograft._producer.batches import SealedBatch
from lograft._producer.buffers import PartitionBuffer, TopicBuffers
from lograft._producer.bulk import EncodedPiece, LoosePiece, cut
from lograft._producer.outcomes import Call
from lograft._producer.partitioner import RULES, KeyRule, ask_function
from lograft.errors import (
    BatchFailure,
    DeliveryError,
    LograftError,
    RecordTooLargeError,
    UnknownPartitionError,
    UsageError,
)
from lograft.settings import MAX_REPORTED_FAILURES, ProducerSettings
from lograft.types import BatchReceipt, Headers
from lograft.wire.batch import Codec, EncodedBatch, compose_batch
from lograft.wire.limits import MAX_BATCH_BYTES

logger = logging.getLogger(__name__)

OnBatch = Callable[[BatchReceipt], None]

_CODECS: Final = {"none": Codec.NONE, "zstd": Codec.ZSTD}


class Deliveries:
    """Takes the records of one producer and keeps their failures for the next flush.

    Attributes:
        live: topics that accept records. The fast path of send() looks only here before it appends. The producer empties it
            when it is closed.
        topics: every topic in use.
        accumulator: the open and sealed batches.
    """

    def __init__(self, settings: ProducerSettings, on_batch: OnBatch | None) -> None:
        codec = _CODECS[settings.codec]

        def encode(
            values: Sequence[bytes | None],
            keys: Sequence[bytes | None] | None,
            timestamps_ms: int | Sequence[int],
            headers: Sequence[Headers] | None,
            lengths: tuple[int, int | None] | None,
        ) -> EncodedBatch:
            value_length, key_length = lengths or (None, None)
            return compose_batch(
                values,
                keys=keys,
                timestamps_ms=timestamps_ms,
                headers=headers,
                codec=codec,
                value_lengths=None if value_length is None else [value_length] * len(values),
                key_lengths=None if key_length is None else [key_length] * len(values),
            )

        self.settings = settings
        self._codec = codec
        partitioner = settings.partitioner
        self._rule = RULES[partitioner] if isinstance(partitioner, str) else KeyRule(function=partitioner)
        self.live: dict[str, TopicBuffers] = {}
        self.topics: dict[str, TopicBuffers] = {}
        self.accumulator = Accumulator(
            batch_bytes=settings.batch_bytes,
            buffer_bytes=settings.buffer_bytes,
            linger_ms=settings.linger_ms,
            max_in_flight=settings.max_in_flight,
            delivery_timeout_ms=settings.delivery_timeout_ms,
            max_record_bytes=MAX_BATCH_BYTES,
            encode=encode,
        )
        self._on_batch = on_batch
        self._failures: list[BatchFailure] = []
        self._failed_records = 0
        self._random = random.Random()

    # -- topics

    def open_topic(self, topic: str, partition_count: int) -> None:
        """Start to use a topic."""
        buffers = self.topics.get(topic)
        if buffers is None:
            buffers = self.accumulator.add_topic(
                topic, partition_count, first_sticky=self._random.randrange(1 << 20), rule=self._rule
            )
            self.topics[topic] = buffers
        self.live[topic] = buffers

    def grow_topic(self, topic: str, partition_count: int) -> None:
        """Add buffers for the new partitions of a topic."""
        self.accumulator.grow_topic(self.topics[topic], partition_count)

    def note_leaders(self, topic: str, leaders: Sequence[int | None]) -> None:
        """Take the node ids of the leaders, by partition."""
        for part, leader in zip(self.topics[topic].parts, leaders, strict=False):
            part.leader = -1 if leader is None else leader

    def ask_program(self, buffers: TopicBuffers, key: bytes | None, partition: int | None) -> int | None:
        """Return the partition that the program's own partitioner chooses; without one, or where it has no say, the given one.

        The caller must not hold a lock: the function may use the producer.

        Raises:
            UsageError: the function failed.
        """
        function = self._rule.function
        if function is None or key is None or partition is not None:
            return partition
        return ask_function(function, buffers.topic, key, buffers.count)

    @property
    def asks_program(self) -> bool:
        """True when the program's own partitioner is asked for each record with a key."""
        return self._rule.function is not None

    @property
    def needs_leaders(self) -> bool:
        """True when the choice of partitions depends on their leaders."""
        return self._rule.ignores_keys

    def choose(self, buffers: TopicBuffers, key: bytes | None, partition: int | None) -> PartitionBuffer:
        """Return the buffer for a record: of the given partition, else by key, else the sticky one.

        Raises:
            UnknownPartitionError: the topic has no such partition.
        """
        parts = buffers.parts
        if partition is None:
            buffers.suit_keys()
            return parts[buffers.sticky] if key is None else buffers.by_key.get(key) or buffers.of_key(key)
        if type(partition) is not int:
            raise UsageError(f"partition is a whole number, not {partition!r}")
        if not 0 <= partition < len(parts):
            raise UnknownPartitionError(
                f"topic {buffers.topic!r} has partitions 0 to {len(parts) - 1}, not {partition}"
            )
        return parts[partition]

    # -- records

    def add(
        self,
        part: PartitionBuffer,
        value: bytes | None,
        key: bytes | None,
        timestamp_ms: int | None,
        headers: Headers | None,
    ) -> AddResult:
        """Add a checked record, with the current clock readings."""
        return self.accumulator.add(
            part, value, key, timestamp_ms, headers, now_ms=monotonic_ms(), wall_ms=wall_clock_ms()
        )

    def take(self, buffers: TopicBuffers, piece: LoosePiece | EncodedPiece) -> AddResult:
        """Add a piece of many records, with the current clock readings. The values and keys of a loose piece are already checked."""
        part = self.choose(buffers, None, piece.partition)
        if isinstance(piece, LoosePiece):
            return self.accumulator.extend(
                part, piece.values, piece.keys, piece.timestamps_ms, now_ms=monotonic_ms(), wall_ms=wall_clock_ms()
            )
        result = self.accumulator.add_encoded(
            part, piece.body, piece.record_count, may_split=piece.may_split, now_ms=monotonic_ms()
        )
        if result is AddResult.ADDED and piece.partition is None:
            self.accumulator.turn_sticky(buffers)
        return result

    def cut_columns(
        self,
        buffers: TopicBuffers,
        values: Sequence[bytes],
        keys: Sequence[bytes | None] | None,
        timestamps_ms: Sequence[int] | None,
        partition: int | None,
    ) -> Iterator[LoosePiece | EncodedPiece]:
        """Cut checked columns into pieces; see `bulk.cut`."""
        return cut(
            values,
            keys,
            timestamps_ms,
            partition=partition,
            partition_count=len(buffers.parts),
            rule=self._rule,
            topic=buffers.topic,
            batch_bytes=self._batch_limit(buffers),
            codec=self._codec,
            wall_clock_ms=wall_clock_ms,
        )

    def cut_rows(
        self, buffers: TopicBuffers, data: Rows, partition: int | None, extra_columns: str
    ) -> Iterator[EncodedPiece]:
        """Encode Arrow rows; see `arrow.encode_rows`."""
        return encode_rows(
            data,
            partition=partition,
            partition_count=len(buffers.parts),
            rule=self._rule,
            topic=buffers.topic,
            batch_bytes=self._batch_limit(buffers),
            codec=self._codec,
            wall_ms=wall_clock_ms(),
            extra_columns=extra_columns,
        )

    def _batch_limit(self, buffers: TopicBuffers) -> int:
        """Return the size in bytes that batches of a topic should not exceed, as far as the limit is known."""
        return min(self.settings.buffer_bytes, *(part.size_limit for part in buffers.parts))

    def too_large(self, part: PartitionBuffer, size_bytes: int) -> RecordTooLargeError:
        """Return the error for a record, or an encoded batch, that can never be sent."""
        limit = min(part.max_record_bytes, self.settings.buffer_bytes)
        return RecordTooLargeError(
            f"a record or batch of about {size_bytes} bytes for topic {part.topic!r} is over the limit of {limit} bytes "
            "with its overhead: send smaller records, or raise max.message.bytes of the topic (at most 8 MiB) or "
            "the producer's buffer_bytes"
        )

    # -- results

    def note_result(self, receipt: BatchReceipt) -> None:
        """Keep a failure for the next flush."""
        if receipt.error is None:
            return
        self._failed_records += receipt.record_count
        if len(self._failures) < MAX_REPORTED_FAILURES:
            self._failures.append(
                BatchFailure(
                    topic=receipt.topic,
                    partition=receipt.partition,
                    record_count=receipt.record_count,
                    error=receipt.error,
                )
            )

    def call_back(self, receipt: BatchReceipt) -> None:
        """Call the user's callback. Log an exception that it raises, and go on."""
        if self._on_batch is None:
            return
        try:
            self._on_batch(receipt)
        except Exception:
            logger.exception("on_batch failed for %s-%d", receipt.topic, receipt.partition)

    def end(self, error: LograftError) -> list[Call]:
        """Give every record that has no result an error, and return the calls that waited for one.

        Only for the end of a producer that can send no more: in a forked child, or after its event loop.
        """
        return [call for outcome in self.accumulator.unresolved_outcomes() for call in outcome.end(error)]

    def release(self, batch: SealedBatch) -> None:
        """Free the memory of a resolved batch."""
        part = self.topics[batch.topic].parts[batch.partition]
        self.accumulator.release(batch, part, now_ms=monotonic_ms())

    def limit(self, topic: str, partition: int, max_batch_bytes: int) -> None:
        """Set the largest batch that a topic accepts."""
        self.accumulator.limit_batches(self.topics[topic].parts[partition], max_batch_bytes)

    def unresolved_records(self) -> int:
        """Return the number of records that are neither acknowledged nor failed."""
        return self.accumulator.unresolved_records()

    def take_failures(self) -> DeliveryError | None:
        """Return the failures since the last call as one error, and forget them."""
        if not self._failures:
            return None
        error = DeliveryError(self._failures, failed_record_count=self._failed_records)
        self._failures = []
        self._failed_records = 0
        return error


def say_lost(count: int, reason: str) -> None:
    """Report on standard error, and as a warning, that records of a producer that was not closed are lost."""
    text = f"lograft: {count} record{'s were' if count != 1 else ' was'} not delivered: {reason}"
    warnings.warn(text, ResourceWarning, stacklevel=2)
    # Python hides warnings of this kind by default, but users must see the loss.
    with suppress(OSError, ValueError):
        sys.stderr.write(text + "\n")
