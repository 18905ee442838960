# SPDX-License-Identifier: Apache-2.0
"""What a transaction stores: the range of offsets of its records in each partition, and which claim it stands on.

It owns the claims of one consumer. It does no I/O.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from lograft.errors import OffsetsFencedError, TransactionFailedError, UsageError
from lograft.fetched import FetchedBatch
from lograft.types import ConsumerRecord, TopicPartition

Records = ConsumerRecord | FetchedBatch | Iterable[ConsumerRecord | FetchedBatch]
"""What a transaction takes: a record, a batch, or several. Records of a partition need not be all that a poll gave."""


class AlreadyStoredError(TransactionFailedError):
    """Records are stored already, by a transaction whose end this consumer did not hear of, or because they came twice."""

    def __init__(self, tp: TopicPartition, next_offset: int) -> None:
        super().__init__(f"records of {tp} below offset {next_offset} are stored already: poll again")
        self.tp = tp
        self.next_offset = next_offset


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """Offsets of the records of one partition: the first, and the one after the last."""

    first_offset: int
    next_offset: int


@dataclass(frozen=True, slots=True)
class Claim:
    """A partition that the consumer owns in the database, under an epoch."""

    key: tuple[bytes, int]
    epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """A change of one row."""

    tp: TopicPartition
    key: tuple[bytes, int]
    epoch: int
    first_offset: int
    next_offset: int


def ranges_of(records: Records) -> dict[TopicPartition, OffsetRange]:
    """Return the range of offsets of each partition.

    Raises:
        UsageError: something is neither a record nor a batch.
    """
    if isinstance(records, ConsumerRecord | FetchedBatch):
        records = [records]
    ranges: dict[TopicPartition, OffsetRange] = {}
    firsts: dict[tuple[str, int], int] = {}
    nexts: dict[tuple[str, int], int] = {}
    for each in records:
        if isinstance(each, ConsumerRecord):
            first, following = each.offset, each.offset + 1
        elif isinstance(each, FetchedBatch):  # pyright: ignore[reportUnnecessaryIsInstance]
            first, following = each.base_offset, each.next_offset
        else:
            raise UsageError(f"a transaction takes records or batches of the consumer, not {each!r}")
        tp = (each.topic, each.partition)
        if first < firsts.setdefault(tp, first):
            firsts[tp] = first
        if following > nexts.setdefault(tp, following):
            nexts[tp] = following
    for tp, first in firsts.items():
        ranges[TopicPartition(*tp)] = OffsetRange(first, nexts[tp])
    return ranges


class Claims:
    """The claims of one consumer. Only its `SqlOffsets` writes it.

    Attributes:
        held: the claims.
        waiting: partitions that the group has assigned, and whose claim has failed so far.
    """

    def __init__(self) -> None:
        self.held: dict[TopicPartition, Claim] = {}
        self.waiting: set[TopicPartition] = set()

    def assigned(self, tps: Iterable[TopicPartition]) -> None:
        """Note partitions that must be claimed."""
        for tp in tps:
            self.held.pop(tp, None)
            self.waiting.add(tp)

    def claimed(self, claims: Mapping[TopicPartition, Claim]) -> None:
        """Note claims."""
        self.held |= claims
        self.waiting.difference_update(claims)

    def forget(self, tps: Iterable[TopicPartition]) -> None:
        """Note that partitions are gone."""
        for tp in tps:
            self.held.pop(tp, None)
            self.waiting.discard(tp)

    def moves(
        self, ranges: Mapping[TopicPartition, OffsetRange], positions: Mapping[TopicPartition, int]
    ) -> list[Move]:
        """Return the changes that store ranges.

        Args:
            ranges: the offsets of the records.
            positions: where the consumer is, in those of the partitions that are assigned to it.

        Raises:
            OffsetsFencedError: the consumer does not have a partition any more.
            TransactionFailedError: the consumer has gone back since it gave the records.
        """
        gone = [tp for tp in ranges if tp not in self.held or tp not in positions]
        if gone:
            raise OffsetsFencedError(
                f"{', '.join(map(str, gone))}: not this consumer's any more, or assigned past SqlOffsets",
                partitions=gone,
            )
        for tp, each in ranges.items():
            if each.next_offset > positions[tp]:
                raise TransactionFailedError(
                    f"the records of {tp} up to offset {each.next_offset} were read before the consumer went back to offset "
                    f"{positions[tp]}: poll again"
                )
        return [
            Move(
                tp=tp,
                key=self.held[tp].key,
                epoch=self.held[tp].epoch,
                first_offset=each.first_offset,
                next_offset=each.next_offset,
            )
            for tp, each in ranges.items()
        ]
