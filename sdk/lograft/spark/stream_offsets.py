# SPDX-License-Identifier: Apache-2.0
"""Offsets of a streaming query: their form in the checkpoint, and how far the next micro-batch goes.

Pure: it takes what the brokers say and returns offsets and ranges. It must not know Spark.

    {"version": 1, "topics": {"orders": {"id": "5f3c...", "offsets": {"0": 23, "1": 7}}}}

The id is the topic's, 32 hexadecimal digits: a topic that is deleted and created again has another one, and its offsets mean other
records. Offsets are the next to read. Topics and partitions ascend, so that equal offsets have equal text: Spark compares text.

Laws:
* A micro-batch reads exactly the offsets between its two ends, however often it is planned.
* A new partition of a known topic begins with offset 0. A topic that the start does not name stands at its log start in the
  end of the next micro-batch, and is read from there by the one after it. So what is new is read whole, and every micro-batch
  knows where it began.
* The end of a micro-batch is never beyond what was readable, nor beyond the target of `Trigger.AvailableNow`.
* With a limit each partition advances in proportion to what it has to read, so that none falls behind the others. If the
  limit is less than one record for each of them, they take turns.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, cast

from lograft.errors import OffsetOutOfRangeError, UnknownTopicError, UsageError
from lograft.spark.ranges import OffsetRange, Readable
from lograft.spark.record_sizes import shares
from lograft.types import TopicPartition

VERSION: Final = 1
_ADVICE: Final = "Set failOnDataLoss to false to read what there is"


class TopicRecreatedError(UnknownTopicError):
    """The topic of a checkpoint was deleted, and another one has its name."""


@dataclass(frozen=True, slots=True)
class TopicOffsets:
    """The next offset of each partition of one topic, and the topic's id (16 bytes)."""

    topic_id: bytes
    offsets: Mapping[int, int]


StreamOffset = Mapping[str, TopicOffsets]
"""The next offsets of a query, by topic name."""


@dataclass(frozen=True, slots=True)
class TopicLog:
    """A selected topic as it is now: its id (16 bytes), and the readable offsets of its selected partitions."""

    topic_id: bytes
    partitions: Mapping[int, Readable]


@dataclass(frozen=True, slots=True)
class Found:
    """Ranges, one for each partition with something to read, ascending, and what is missing.

    `losses` has one line for each missing part; it is empty if lost data is an error.
    """

    ranges: tuple[OffsetRange, ...]
    losses: tuple[str, ...]


def to_json(offset: StreamOffset) -> dict[str, object]:
    """Return the form of the checkpoint."""
    return {
        "version": VERSION,
        "topics": {
            name: {
                "id": topic.topic_id.hex(),
                "offsets": {str(partition): topic.offsets[partition] for partition in sorted(topic.offsets)},
            }
            for name, topic in sorted(offset.items())
        },
    }


def from_json(value: object) -> dict[str, TopicOffsets]:
    """Return the offsets of a checkpoint.

    Raises:
        UsageError: the checkpoint is not from Lograft, or from a newer version.
    """
    version = cast("dict[str, object]", value).get("version") if isinstance(value, dict) else None
    if isinstance(version, int) and version > VERSION:
        raise UsageError(f"the checkpoint has offsets of version {version}; this version reads version {VERSION}")
    try:
        top = cast("dict[str, object]", value if version == VERSION else {})
        topics = cast("dict[str, dict[str, object]]", top["topics"])
        return {
            name: TopicOffsets(
                bytes.fromhex(cast("str", topic["id"])),
                {int(partition): int(offset) for partition, offset in cast("dict[str, int]", topic["offsets"]).items()},
            )
            for name, topic in topics.items()
        }
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UsageError(
            f"the checkpoint has offsets that are not Lograft's ({value!r:.200}): use a checkpoint directory of its own for "
            "each query"
        ) from error


def ends_of(topics: Mapping[str, TopicLog]) -> dict[str, TopicOffsets]:
    """Return the ends of the readable offsets."""
    return {
        name: TopicOffsets(
            topic.topic_id, {number: each.high_watermark for number, each in sorted(topic.partitions.items())}
        )
        for name, topic in sorted(topics.items())
    }


def available(
    start: StreamOffset,
    topics: Mapping[str, TopicLog],
    *,
    target: StreamOffset | None = None,
    fail_on_data_loss: bool = True,
) -> Found:
    """Return what can be read from `start` on, of the topics that it names.

    Args:
        start: the offsets that the query has reached.
        topics: the selected topics that exist.
        target: offsets that the query must not pass; None: it may go to the end.
        fail_on_data_loss: False: missing records are told in `losses`, and the ranges begin after them.

    Raises:
        TopicRecreatedError: a topic has another id than in `start`.
        UnknownTopicError: a topic of `start` does not exist any more.
        OffsetOutOfRangeError: the log of a partition begins after its offset, or ends before it.
    """
    losses = _Losses(fail_on_data_loss)
    for name in sorted(set(start) - set(topics)):
        losses.add(
            UnknownTopicError(
                f"topic {name} is in the checkpoint, and is deleted or not subscribed any more. Set failOnDataLoss to false "
                "to go on without it, or begin with a new checkpoint directory"
            )
        )
    ranges: list[OffsetRange] = []
    for name, topic in sorted(topics.items()):
        known = start.get(name)
        if known is None or known.topic_id != topic.topic_id:
            if known is not None:
                losses.add(_recreated(name, known.topic_id, topic.topic_id))
            continue
        limit = None if target is None else target.get(name)
        if target is not None and (limit is None or limit.topic_id != topic.topic_id):
            continue
        for number, readable in sorted(topic.partitions.items()):
            end = (
                readable.high_watermark if limit is None else min(readable.high_watermark, limit.offsets.get(number, 0))
            )
            partition = TopicPartition(name, number)
            begin = _begin(partition, known.offsets.get(number, 0), readable, losses)
            if begin < end:
                ranges.append(
                    OffsetRange(partition=partition, start_offset=begin, end_offset=end, topic_id=topic.topic_id)
                )
    return Found(tuple(ranges), tuple(losses.texts))


def planned(
    start: StreamOffset, end: StreamOffset, topics: Mapping[str, TopicLog], *, fail_on_data_loss: bool = True
) -> Found:
    """Return what a micro-batch reads whose ends are already in the checkpoint.

    Raises:
        TopicRecreatedError: a topic has another id than in `end`.
        UnknownTopicError: a topic of `end` with something to read does not exist any more.
        OffsetOutOfRangeError: a part of the micro-batch is not readable any more.
    """
    losses = _Losses(fail_on_data_loss)
    ranges: list[OffsetRange] = []
    for name, wanted in sorted(end.items()):
        known = start.get(name)
        if known is None or known.topic_id != wanted.topic_id:
            continue  # The topic was new. Its offsets in `end` are where it begins.
        before = known.offsets
        open_partitions = [
            number for number in sorted(wanted.offsets) if before.get(number, 0) < wanted.offsets[number]
        ]
        if not open_partitions:
            continue
        topic = topics.get(name)
        if topic is None:
            losses.add(UnknownTopicError(f"topic {name} is deleted; the micro-batch was to read it. {_ADVICE}"))
            continue
        if topic.topic_id != wanted.topic_id:
            losses.add(_recreated(name, wanted.topic_id, topic.topic_id))
            continue
        for number in open_partitions:
            partition, last = TopicPartition(name, number), wanted.offsets[number]
            readable = topic.partitions.get(number)
            if readable is None:
                losses.add(OffsetOutOfRangeError(f"{partition} does not exist any more. {_ADVICE}"))
                continue
            begin = _begin(partition, before.get(number, 0), readable, losses)
            if readable.high_watermark < last:
                losses.add(
                    OffsetOutOfRangeError(
                        f"{partition} ends at offset {readable.high_watermark} by now; the micro-batch ends at {last}. "
                        f"{_ADVICE}"
                    )
                )
                last = readable.high_watermark
            if begin < last:
                ranges.append(
                    OffsetRange(partition=partition, start_offset=begin, end_offset=last, topic_id=topic.topic_id)
                )
    return Found(tuple(ranges), tuple(losses.texts))


def moved(
    start: StreamOffset, topics: Mapping[str, TopicLog], ranges: Iterable[OffsetRange]
) -> dict[str, TopicOffsets]:
    """Return the end of a micro-batch that reads these ranges from `start` on.

    It names every selected partition. Those that read nothing stay where they are, new topics stand at their log start. Topics that
    are gone are left out.
    """
    ends = {each.partition: each.end_offset for each in ranges}
    found: dict[str, TopicOffsets] = {}
    for name, topic in sorted(topics.items()):
        known = start.get(name)
        offsets: dict[int, int] = {}
        for number, readable in sorted(topic.partitions.items()):
            if known is None or known.topic_id != topic.topic_id:
                offsets[number] = readable.log_start_offset
            else:
                here = min(known.offsets.get(number, 0), readable.high_watermark)
                offsets[number] = ends.get(TopicPartition(name, number), here)
        found[name] = TopicOffsets(topic.topic_id, offsets)
    return found


def offset_count(ranges: Iterable[OffsetRange]) -> int:
    """Return how many offsets ranges have."""
    return sum(each.size for each in ranges)


def limited(ranges: Sequence[OffsetRange], max_records: int, turn: int) -> tuple[OffsetRange, ...]:
    """Return the ranges cut to `max_records` offsets in all; see `shares`. Empty ones are left out."""
    taken = shares(max_records, [each.size for each in ranges], turn)
    return tuple(
        replace(each, end_offset=each.start_offset + count)
        for each, count in zip(ranges, taken, strict=True)
        if count > 0
    )


class _Losses:
    """Missing records: an error at once, or a line for each."""

    def __init__(self, fail_on_data_loss: bool) -> None:
        self.texts: list[str] = []
        self._fail = fail_on_data_loss

    def add(self, error: OffsetOutOfRangeError | UnknownTopicError) -> None:
        """Raise the error, or keep its text."""
        if self._fail:
            raise error
        self.texts.append(error.message)


def _recreated(name: str, before: bytes, now: bytes) -> TopicRecreatedError:
    return TopicRecreatedError(
        f"topic {name} was deleted and created again: the checkpoint has offsets of the topic with id {before.hex()}, and now it "
        f"is {now.hex()}. Begin with a new checkpoint directory, or set failOnDataLoss to false to go on with the new topic from "
        "its beginning"
    )


def _begin(partition: TopicPartition, offset: int, readable: Readable, losses: _Losses) -> int:
    """Return where to read on from an offset; another one if records are missing there."""
    if offset < readable.log_start_offset:
        losses.add(
            OffsetOutOfRangeError(
                f"{partition} starts at offset {readable.log_start_offset} by now; the query is at {offset}. {_ADVICE}",
                log_start_offset=readable.log_start_offset,
                high_watermark=readable.high_watermark,
            )
        )
        return readable.log_start_offset
    if offset > readable.high_watermark:
        losses.add(
            OffsetOutOfRangeError(
                f"{partition} ends at offset {readable.high_watermark}; the query is at {offset} already. {_ADVICE}",
                log_start_offset=readable.log_start_offset,
                high_watermark=readable.high_watermark,
            )
        )
        return readable.high_watermark
    return offset
