# SPDX-License-Identifier: Apache-2.0
"""Where an attempt of an ingest stages its records, and what it has staged.

The engine sends batches of a topic to its staging topic, with the producer id of the attempt and epoch 0. For the rest of the producer
they keep the names and partitions of the topic. One loop writes here: that of the engine.

Law: an attempt of which one batch failed never counts, since nobody knows what else is missing.
Source: docs/ingest.md section "Staging".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from lograft.errors import LograftError, UsageError
from lograft.types import BatchReceipt

STAGING_PREFIX: Final = "__staging-"
"""What the name of a staging topic begins with; the topic id in hex follows."""

STAGING_UNKNOWN_MS: Final = 10_000
"""Milliseconds for which a broker may not know a staging topic: it was just made."""


@dataclass(frozen=True, slots=True)
class StagedRange:
    """What is staged for one partition.

    Attributes:
        first_sequence: sequence of the first record, modulo 2^31.
        records: number of records.
        first_offset: offset of the first one at the staging topic.
        end_offset: offset after the last one there. Records of others may lie between.
    """

    first_sequence: int
    records: int
    first_offset: int
    end_offset: int


class Staging:
    """One producer identity at staging topics.

    Attributes:
        producer_id: id of the attempt.
        failed: why the first batch failed that did; None: all were acknowledged so far.
    """

    def __init__(self, producer_id: int, topic_ids: Mapping[str, bytes]) -> None:
        """Stage nothing yet.

        Args:
            producer_id: id of the attempt.
            topic_ids: ids of the topics of the ingest, by name.
        """
        self.producer_id: int = producer_id
        self.failed: LograftError | None = None
        self._names = {topic: STAGING_PREFIX + topic_id.hex() for topic, topic_id in topic_ids.items()}
        self._topics = {staging: topic for topic, staging in self._names.items()}
        self._ranges: dict[tuple[str, int], StagedRange] = {}

    def name(self, topic: str) -> str:
        """Return the name of the staging topic of a topic.

        Raises:
            UsageError: the ingest does not publish to this topic.
        """
        name = self._names.get(topic)
        if name is None:
            known = ", ".join(sorted(self._names))
            raise UsageError(f"the ingest publishes to {known}, not to {topic!r}: open it with all its topics")
        return name

    def topic(self, staging_topic: str) -> str:
        """Return the topic of a staging topic."""
        return self._topics[staging_topic]

    def note(self, base_sequence: int | None, receipt: BatchReceipt) -> None:
        """Take the result of a batch and its first sequence. Batches of a partition come in the order of their sequences."""
        if receipt.error is not None:
            self.failed = self.failed or receipt.error
            return
        assert receipt.base_offset is not None, "staged without a receipt"
        assert base_sequence is not None, "staged without a sequence"
        where = (receipt.topic, receipt.partition)
        end_offset = receipt.base_offset + receipt.record_count
        known = self._ranges.get(where)
        if known is None:
            self._ranges[where] = StagedRange(base_sequence, receipt.record_count, receipt.base_offset, end_offset)
        else:
            self._ranges[where] = StagedRange(
                known.first_sequence, known.records + receipt.record_count, known.first_offset, end_offset
            )

    def take(self) -> dict[tuple[str, int], StagedRange]:
        """Return what was staged since the last call, by topic and partition, after everything has a result.

        Raises:
            LograftError: a batch failed.
        """
        if self.failed is not None:
            raise self.failed
        taken, self._ranges = self._ranges, {}
        return taken
