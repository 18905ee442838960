# SPDX-License-Identifier: Apache-2.0
"""Offsets of a streaming query, and how far each micro-batch goes, against a model of topics. No Spark session is needed."""

from __future__ import annotations

import json
from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lograft.errors import OffsetOutOfRangeError, UnknownTopicError, UsageError
from lograft.spark.ranges import OffsetRange, Readable
from lograft.spark.stream_offsets import (
    Found,
    StreamOffset,
    TopicLog,
    TopicOffsets,
    TopicRecreatedError,
    available,
    ends_of,
    from_json,
    limited,
    moved,
    offset_count,
    planned,
    to_json,
)
from lograft.types import TopicPartition

ONE, TWO = b"1" * 16, b"2" * 16


def log(*limits: tuple[int, int], topic_id: bytes = ONE) -> TopicLog:
    return TopicLog(
        topic_id,
        {number: Readable(log_start_offset=start, high_watermark=end) for number, (start, end) in enumerate(limits)},
    )


def at(*offsets: int, topic_id: bytes = ONE) -> TopicOffsets:
    return TopicOffsets(topic_id, dict(enumerate(offsets)))


def piece(partition: int, start: int, end: int, topic_id: bytes = ONE) -> OffsetRange:
    return OffsetRange(partition=TopicPartition("t", partition), start_offset=start, end_offset=end, topic_id=topic_id)


def test_checkpoint_form_is_stable() -> None:
    """Checkpoints outlive versions: this text is a format. Keys of objects are text, in order."""
    offset = {"u": TopicOffsets(TWO, {10: 5, 2: 7}), "t": at(3)}
    text = json.dumps(to_json(offset))
    assert text == (
        '{"version": 1, "topics": {"t": {"id": "31313131313131313131313131313131", "offsets": {"0": 3}}, '
        '"u": {"id": "32323232323232323232323232323232", "offsets": {"2": 7, "10": 5}}}}'
    )
    assert from_json(json.loads(text)) == offset


@pytest.mark.parametrize(
    "value", [{}, None, 3, {"orders": {"0": 4}}, {"version": 1}, {"version": 1, "topics": {"t": {"id": "zz"}}}]
)
def test_foreign_checkpoint_is_refused(value: object) -> None:
    """The checkpoint of another source, Kafka's for example, is no start for this one."""
    with pytest.raises(UsageError, match="checkpoint has offsets that are not Lograft's"):
        from_json(value)


def test_newer_checkpoint_is_refused() -> None:
    """An older version of Lograft does not guess what a newer one means."""
    with pytest.raises(UsageError, match="offsets of version 2; this version reads version 1"):
        from_json({"version": 2})


def test_everything_between_the_start_and_the_ends_is_available() -> None:
    """A partition that has nothing new gives no range."""
    topics = {"t": log((0, 9), (0, 4), (0, 0))}
    found = available({"t": at(5, 4, 0)}, topics)
    assert found == Found(ranges=(piece(0, 5, 9),), losses=())
    assert moved({"t": at(5, 4, 0)}, topics, found.ranges) == {"t": at(9, 4, 0)} == ends_of(topics)


def test_new_partitions_are_read_from_their_first_record() -> None:
    """A topic that grew has partitions that the checkpoint does not know."""
    topics = {"t": log((0, 9), (0, 4))}
    found = available({"t": at(9)}, topics)
    assert found.ranges == (piece(1, 0, 4),)
    assert planned({"t": at(9)}, moved({"t": at(9)}, topics, found.ranges), topics).ranges == (piece(1, 0, 4),)


def test_lost_records_of_a_new_partition_are_lost() -> None:
    """Retention was faster than the query."""
    with pytest.raises(OffsetOutOfRangeError, match="t-1 starts at offset 2 by now; the query is at 0"):
        available({"t": at(9)}, {"t": log((0, 9), (2, 4))})


def test_new_topics_stand_at_their_log_start_first() -> None:
    """The first end that names a topic fixes where it begins, so that every micro-batch can be planned again."""
    topics = {"t": log((3, 9))}
    assert available({}, topics).ranges == ()
    begun = moved({}, topics, ())
    assert begun == {"t": at(3)}
    assert planned({}, begun, topics).ranges == ()
    assert available(begun, topics).ranges == (piece(0, 3, 9),)


def test_recreated_topic_is_an_error_that_says_what_to_do() -> None:
    """Offsets of the old topic mean nothing in the new one. With failOnDataLoss=false the new one is read whole."""
    topics = {"t": log((2, 9), topic_id=TWO)}
    start = {"t": at(5)}
    advice = "t was deleted and created again.*new checkpoint directory, or set failOnDataLoss to false"
    with pytest.raises(TopicRecreatedError, match=advice):
        available(start, topics)
    with pytest.raises(TopicRecreatedError, match=advice):
        planned(start, {"t": at(7)}, topics)
    found = available(start, topics, fail_on_data_loss=False)
    assert found.ranges == ()
    assert "deleted and created again" in found.losses[0]
    begun = moved(start, topics, found.ranges)
    assert begun == {"t": at(2, topic_id=TWO)}
    assert planned(start, {"t": at(7)}, topics, fail_on_data_loss=False).ranges == ()
    assert planned(start, begun, topics).ranges == ()
    assert available(begun, topics).ranges == (piece(0, 2, 9, TWO),)


def test_deleted_topic_is_an_error_or_left_out() -> None:
    """The same for a topic that is not subscribed any more: its offsets would be forgotten."""
    start = {"t": at(5)}
    with pytest.raises(UnknownTopicError, match="topic t is in the checkpoint, and is deleted or not subscribed"):
        available(start, {})
    with pytest.raises(UnknownTopicError, match="topic t is deleted; the micro-batch was to read it"):
        planned(start, {"t": at(7)}, {})
    assert planned(start, {"t": at(5)}, {}).losses == ()
    found = available(start, {}, fail_on_data_loss=False)
    assert (found.ranges, len(found.losses)) == ((), 1)
    assert moved(start, {}, found.ranges) == {}


@pytest.mark.parametrize(("start", "begin"), [(3, 5), (12, 9)])
def test_lost_records_are_an_error_or_passed_over(start: int, begin: int) -> None:
    """The log begins after the offset of the query, or ends before it."""
    topics = {"t": log((5, 9))}
    with pytest.raises(OffsetOutOfRangeError, match="Set failOnDataLoss to false"):
        available({"t": at(start)}, topics)
    found = available({"t": at(start)}, topics, fail_on_data_loss=False)
    assert len(found.losses) == 1
    assert found.ranges == ((piece(0, begin, 9),) if begin < 9 else ())
    assert moved({"t": at(start)}, topics, found.ranges) == {"t": at(9)}


def test_expired_offset_without_lost_records_is_no_loss() -> None:
    """A query that has read everything goes on, although every record that it has read is deleted."""
    assert available({"t": at(9)}, {"t": log((9, 9))}) == Found(ranges=(), losses=())


def test_micro_batch_that_lost_its_end_is_an_error_or_cut() -> None:
    """A log may end before the end of a micro-batch that is planned again."""
    topics = {"t": log((0, 6))}
    with pytest.raises(OffsetOutOfRangeError, match="t-0 ends at offset 6 by now; the micro-batch ends at 8"):
        planned({"t": at(2)}, {"t": at(8)}, topics)
    found = planned({"t": at(2)}, {"t": at(8)}, topics, fail_on_data_loss=False)
    assert found.ranges == (piece(0, 2, 6),)
    assert planned({"t": at(2)}, {"t": at(4, 1)}, {"t": log((0, 6))}, fail_on_data_loss=False).ranges == (
        piece(0, 2, 4),
    )


def test_target_of_available_now_is_not_passed() -> None:
    """Records, partitions and topics that come after the start of the run wait for the next one."""
    target = {"t": at(6)}
    topics = {"t": log((0, 9), (0, 5)), "u": log((0, 3), topic_id=TWO)}
    found = available({"t": at(4)}, topics, target=target)
    assert found.ranges == (piece(0, 4, 6),)
    assert available({"t": at(6)}, topics, target=target).ranges == ()
    assert available({"t": at(4)}, topics, target={"t": at(6, topic_id=TWO)}).ranges == ()


def test_limit_is_divided_in_proportion() -> None:
    """A partition with more to read advances more, and every one advances."""
    cut = limited((piece(0, 0, 900), piece(1, 50, 150), piece(2, 7, 8)), 101, 0)
    assert cut == (piece(0, 0, 90), piece(1, 50, 60), piece(2, 7, 8))
    assert offset_count(cut) == 101


@settings(deadline=None)
@given(
    steps=st.lists(
        st.one_of(
            st.tuples(st.just("write"), st.integers(0, 3), st.integers(1, 30)),
            st.tuples(st.just("grow"), st.just(0), st.just(0)),
            st.tuples(st.just("trigger"), st.integers(1, 25), st.integers(0, 1)),
        ),
        max_size=40,
    )
)
def test_stream_reads_every_offset_once(steps: list[tuple[str, int, int]]) -> None:
    """However a topic grows and whatever the limits are, micro-batches are disjoint, and in the end all is read.

    Each micro-batch is planned twice, as after a restart, when more was written.
    """
    highs = [0]
    start: dict[str, TopicOffsets] = {"t": at(0)}
    read: list[tuple[int, int]] = []

    def topics() -> Mapping[str, TopicLog]:
        return {"t": log(*((0, high) for high in highs))}

    def trigger(limit: int, start: StreamOffset) -> dict[str, TopicOffsets]:
        ranges = available(start, topics()).ranges
        cut = limited(ranges, limit, sum(start["t"].offsets.values()))
        assert offset_count(cut) == min(limit, offset_count(ranges))
        end = moved(start, topics(), cut)
        again = from_json(json.loads(json.dumps(to_json(end))))
        highs[0] += 1
        assert planned(start, again, topics()).ranges == cut
        read.extend(
            (each.partition.partition, offset) for each in cut for offset in range(each.start_offset, each.end_offset)
        )
        return again

    for kind, first, second in steps:
        if kind == "write":
            highs[first % len(highs)] += second
        elif kind == "grow" and len(highs) < 5:
            highs.append(0)
        elif kind == "trigger":
            start = trigger(first, start)
    ends = list(highs)
    while any(start["t"].offsets.get(number, 0) < end for number, end in enumerate(ends)):
        start = trigger(50, start)
    assert len(set(read)) == len(read)
    assert set(read) >= {(number, offset) for number, end in enumerate(ends) for offset in range(end)}
