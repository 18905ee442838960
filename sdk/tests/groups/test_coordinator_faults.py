# SPDX-License-Identifier: Apache-2.0
"""Consumers in groups whose way to the coordinator fails: nothing is lost that need not be, and nothing spins."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator

import pytest
from lograft import Consumer, Producer, TopicPartition
from lograft._groups.membership import RETRY_FLOOR_MS
from lograft.errors import CoordinatorNotAvailableError, LograftError
from lograft.wire.codes import ErrorCode
from tests.groups.group_relay import GroupRelay

MakeTopic = Callable[..., str]
DEADLINE_S = 60
_numbers = itertools.count()


@pytest.fixture
def relay(bootstrap: str) -> Iterator[GroupRelay]:
    """A relay that works."""
    with GroupRelay(bootstrap) as made:
        yield made


@pytest.fixture
def group() -> str:
    """A group that no other test uses."""
    return f"faulty-{next(_numbers)}"


def until(is_done: Callable[[], bool], step: Callable[[], object]) -> None:
    """Repeat a step until something is true."""
    end_s = time.monotonic() + DEADLINE_S
    while not is_done():
        assert time.monotonic() < end_s, "it did not happen"
        step()


def fill(bootstrap: str, topic: str, count: int) -> None:
    """Write records to partition 0."""
    with Producer(bootstrap) as producer:
        for number in range(count):
            producer.send(topic, b"%d" % number, partition=0)


def subscribed(relay: GroupRelay, topic: str, group: str, seen: list[str]) -> Consumer:
    """Return a consumer that has its partitions."""
    consumer = Consumer(relay.bootstrap, group=group)
    consumer.subscribe(
        [topic],
        on_assigned=lambda _: seen.append("assigned"),
        on_revoked=lambda _: seen.append("revoked"),
        on_lost=lambda _: seen.append("lost"),
    )
    until(lambda: bool(consumer.assignment), lambda: consumer.poll(max_records=1, timeout_ms=50))
    return consumer


def test_streams_that_break_again_and_again_are_no_loss(
    relay: GroupRelay, bootstrap: str, make_topic: MakeTopic, group: str
) -> None:
    """The member resumes by its id and epoch; the application hears nothing and reads on."""
    topic = make_topic(1)
    fill(bootstrap, topic, 40)
    seen: list[str] = []
    with subscribed(relay, topic, group, seen) as consumer:
        before = relay.calls["Groups"]
        for _ in range(6):
            until(lambda: relay.stream_count == 1, lambda: consumer.poll(max_records=1, timeout_ms=20))
            relay.break_streams()
            until(lambda: relay.stream_count == 0, lambda: None)
        until(
            lambda: consumer.position(TopicPartition(topic, 0)) == 40,
            lambda: consumer.poll(max_records=1, timeout_ms=20),
        )
        assert relay.calls["Groups"] >= before + 5
        consumer.commit()
        assert seen == ["assigned"]
    assert seen == ["assigned", "revoked"]


def test_coordinator_that_falls_silent_is_left_for_another_stream(
    relay: GroupRelay, make_topic: MakeTopic, group: str
) -> None:
    """The stream neither ends nor answers. The client notices by the missing signs of life and opens another one."""
    seen: list[str] = []
    with subscribed(relay, make_topic(1), group, seen) as consumer:
        before = relay.calls["Groups"]
        relay.is_silent = True
        until(lambda: relay.calls["Groups"] > before, lambda: consumer.poll(timeout_ms=50))
        relay.is_silent = False
        member = consumer.membership
        assert member is not None
        assert (member.state, seen) == ("member", ["assigned"])


@pytest.mark.parametrize("announce", [True, False])
def test_group_that_moves_is_followed(
    relay: GroupRelay, bootstrap: str, make_topic: MakeTopic, group: str, announce: bool
) -> None:
    """By the announcement on the stream, and by the hint of the refusal. Commits follow too, and nothing is lost."""
    topic = make_topic(1)
    tp = TopicPartition(topic, 0)
    seen: list[str] = []
    with GroupRelay(bootstrap) as other, subscribed(relay, topic, group, seen) as consumer:
        relay.move_to(other, announce=announce)
        consumer.commit({tp: 3})
        until(lambda: other.stream_count == 1, lambda: consumer.poll(timeout_ms=50))
        member = consumer.membership
        assert member is not None
        assert member.coordinator == other.bootstrap
        stored = consumer.committed(tp)
        assert stored is not None
        assert stored.offset == 3
        assert other.calls["CommitOffsets"] >= 1
        assert seen == ["assigned"]


def test_failed_look_up_of_an_offset_is_never_no_offset(
    relay: GroupRelay, bootstrap: str, make_topic: MakeTopic, group: str
) -> None:
    """Whatever error comes, the consumer asks again, and begins at the committed offset; the reset policy would be the end."""
    topic = make_topic(1)
    tp = TopicPartition(topic, 0)
    fill(bootstrap, topic, 20)
    with Consumer(bootstrap, group=group) as consumer:
        consumer.commit({tp: 7})
    codes = [
        ErrorCode.COORDINATOR_LOADING,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.TIMED_OUT,
        ErrorCode.INTERNAL,
        ErrorCode.FENCED_MEMBER_EPOCH,
        ErrorCode.UNKNOWN_MEMBER,
    ]
    relay.refusals["FetchOffsets"] = list(codes)
    starts: list[int] = []
    with Consumer(relay.bootstrap, group=group, reset="latest", auto_commit=False) as consumer:
        consumer.subscribe([topic], on_assigned=lambda tps: starts.extend(consumer.position(each) for each in tps))
        until(lambda: bool(starts), lambda: consumer.poll(max_records=1, timeout_ms=50))
    assert starts == [7]
    assert relay.calls["FetchOffsets"] == len(codes) + 1


def test_commit_is_repeated_until_it_is_answered(relay: GroupRelay, make_topic: MakeTopic, group: str) -> None:
    """A commit whose coordinator loads or is unreachable returns when it is stored, and not before."""
    topic = make_topic(1)
    tp = TopicPartition(topic, 0)
    with Consumer(relay.bootstrap, group=group) as consumer:
        relay.refusals["CommitOffsets"] = [
            ErrorCode.COORDINATOR_LOADING,
            ErrorCode.NOT_COORDINATOR,
            ErrorCode.TIMED_OUT,
        ]
        consumer.commit({tp: 5})
        assert relay.calls["CommitOffsets"] == 4
        stored = consumer.committed(tp)
        assert stored is not None
        assert stored.offset == 5


def test_calls_end_in_time_while_there_is_no_coordinator(relay: GroupRelay, make_topic: MakeTopic, group: str) -> None:
    """They raise a retriable error that says so; attempts have a floor; and closing takes no longer than its limits."""
    tp = TopicPartition(make_topic(1), 0)
    relay.refusals["FindCoordinator"] = [ErrorCode.COORDINATOR_LOADING] * 10_000
    consumer = Consumer(relay.bootstrap, group=group, request_timeout_ms=2_000)
    consumer.subscribe([tp.topic])
    began_s = time.monotonic()
    with pytest.raises(CoordinatorNotAvailableError):
        consumer.committed(tp)
    with pytest.raises(LograftError):
        consumer.commit({tp: 1})
    assert time.monotonic() - began_s < 10
    assert consumer.poll(timeout_ms=100) == []
    took_s = time.monotonic() - began_s
    # Three searches at a time: the member's, the look-up's and the commit's, each with the floor of every client's retries.
    assert relay.calls["FindCoordinator"] <= 3 * (took_s * 1000 / (RETRY_FLOOR_MS / 4) + 10)
    began_s = time.monotonic()
    consumer.close()
    assert time.monotonic() - began_s < 12


def test_consumers_of_a_process_share_one_stream(relay: GroupRelay, make_topic: MakeTopic, group: str) -> None:
    """However many groups they are in, there is one stream to the coordinator, and it ends with the last of them."""
    topic = make_topic(1)
    before = relay.calls.get("Groups", 0)
    consumers = [subscribed(relay, topic, f"{group}-{number}", []) for number in range(4)]
    try:
        assert relay.calls["Groups"] - before == 1
        consumers.pop().close()
        assert relay.stream_count == 1
    finally:
        for consumer in consumers:
            consumer.close()
    until(lambda: relay.stream_count == 0, lambda: None)
