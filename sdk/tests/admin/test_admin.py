# SPDX-License-Identifier: Apache-2.0
"""The blocking admin client against a real broker: what works, and every bad input as a typed error."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest
from lograft import Admin, ErrorCode
from lograft._admin import topics as topic_calls
from lograft.errors import (
    ClientClosedError,
    InvalidRequestError,
    InvalidSettingError,
    LograftError,
    NoBrokerError,
    TopicAlreadyExistsError,
    UnknownTopicError,
    UsageError,
    WrongClusterError,
)
from lograft.types import NewTopic
from tests.client.processes import unused_address

from metaquorum.controller_service import topics
from metaquorum.controller_service.admin_operations import OPERATIONS
from metaquorum.controller_service.commit_waiters import CommandError
from metaquorum.controller_service.operation import Call

WAIT_S = 30.0
"""Seconds after which a wait fails."""


@pytest.mark.parametrize("topic", ["", ".", "..", "x" * 250, "a/b", "a\0b", "a b", "ü"])
def test_bad_topic_names_are_refused(admin: Admin, topic: str) -> None:
    """Topic names outside the rule are refused with their own code."""
    with pytest.raises(InvalidRequestError) as caught:
        admin.create_topic(topic)
    assert caught.value.code is ErrorCode.INVALID_TOPIC_NAME


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"partition_count": -1}, ErrorCode.INVALID_PARTITION_COUNT),
        ({"replication_factor": 3}, ErrorCode.NOT_ENOUGH_BROKERS),
        ({"replication_factor": 101}, ErrorCode.INVALID_REPLICATION_FACTOR),
        ({"configs": {"no.such.config": "1"}}, ErrorCode.INVALID_CONFIG),
        ({"configs": {"max.message.bytes": "many"}}, ErrorCode.INVALID_CONFIG),
        ({"partition_count": 2**40}, ErrorCode.INVALID_REQUEST),
    ],
    ids=str,
)
def test_bad_fields_are_refused_with_their_code(admin: Admin, fields: dict[str, object], code: ErrorCode) -> None:
    """Invalid counts, factors and configs are refused, each with its own code. No topic is created."""
    with pytest.raises(LograftError) as caught:
        admin.create_topic("bad-fields", **fields)  # pyright: ignore[reportArgumentType]
    assert caught.value.code is code
    with pytest.raises(UnknownTopicError):
        admin.describe_topic("bad-fields")


def test_topic_can_be_used_and_seen_at_once_and_not_made_twice(admin: Admin) -> None:
    """A created topic is described, listed, and refused a second time. A validated one is not created."""
    checked = admin.create_topic("seen-at-once", partition_count=3, validate_only=True)
    assert checked.topic == "seen-at-once"
    created = admin.create_topic("seen-at-once", partition_count=3)
    assert [part.partition for part in created.partitions] == [0, 1, 2]
    assert all(part.leader_id is not None and part.replicas == part.isr for part in created.partitions)
    assert admin.describe_topic("seen-at-once") == created
    summary = next(topic for topic in admin.list_topics() if topic.topic == "seen-at-once")
    assert (summary.partition_count, summary.replication_factor, summary.topic_id) == (3, 1, created.topic_id)
    with pytest.raises(TopicAlreadyExistsError):
        admin.create_topic("seen-at-once")
    admin.delete_topic("seen-at-once")
    with pytest.raises(UnknownTopicError):
        admin.delete_topic("seen-at-once")


def test_wrong_cluster_and_closed_client_are_refused(bootstrap: str) -> None:
    """The server refuses the id of another cluster. A closed client refuses by itself."""
    with Admin(bootstrap, cluster_id="another") as client, pytest.raises(WrongClusterError):
        client.list_topics()
    client.close()
    with pytest.raises(ClientClosedError):
        client.list_topics()
    with pytest.raises(InvalidSettingError):
        Admin(bootstrap, request_timeout_ms=0)
    with pytest.raises(UsageError):
        Admin("")


def test_silence_ends_with_the_timeout_and_another_address_helps(bootstrap: str) -> None:
    """Without a broker, the call ends within its time with a typed error. One of several addresses is enough."""
    with Admin(unused_address(), request_timeout_ms=300) as client, pytest.raises(NoBrokerError, match="300 ms"):
        client.describe_cluster()
    with Admin([unused_address(), bootstrap]) as client:
        assert client.describe_cluster().brokers


def test_many_topics_are_created_in_one_call(admin: Admin) -> None:
    """Any number of topics go in several requests. Each has its own result and is visible at once."""
    admin.create_topic("many-there")
    topics = [NewTopic(f"many-{number}", partition_count=1 + number % 3) for number in range(1_100)]
    results = admin.create_topics([*topics, NewTopic("many-there"), NewTopic("many bad", configs={})])
    assert [each.topic for each in results] == [*(each.topic for each in topics), "many-there", "many bad"]
    assert [each.error for each in results[:-2]] == [None] * 1_100
    assert [each.partition_count for each in results[:3]] == [1, 2, 3]
    assert isinstance(results[-2].error, TopicAlreadyExistsError)
    assert results[-1].error is not None
    assert results[-1].error.code is ErrorCode.INVALID_TOPIC_NAME
    assert {each.topic for each in topics} <= {each.topic for each in admin.list_topics()}
    assert admin.describe_topic("many-1099").topic_id == results[1_099].topic_id
    assert admin.create_topics([]) == []
    checked = admin.create_topics([NewTopic("many-checked")], validate_only=True)
    assert checked[0].error is None
    with pytest.raises(UnknownTopicError):
        admin.describe_topic("many-checked")


def test_requests_for_many_topics_overlap_and_none_follows_a_failure(
    admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the topics of one request are committed, the controller decides about the next. A failed request ends the call."""
    create_topics = topics.create_topics
    under_way: list[int] = []
    asked: list[list[str]] = []
    last_name = "overlap-40"
    both = asyncio.Event()

    async def create_and_note(request: Any, member: Any, timeout_ms: int) -> Any:
        asked.append([each.topic for each in request.topics])
        under_way.append(under_way[-1] + 1 if under_way else 1)
        if under_way[-1] == topic_calls.MAX_REQUESTS:
            both.set()
        try:
            async with asyncio.timeout(WAIT_S):
                await both.wait()  # else one may be done before the next comes
            if request.topics[0].topic == "fails-20":
                raise CommandError(ErrorCode.INVALID_REQUEST, "not this one")
            return await create_topics(request, member, timeout_ms)
        finally:
            under_way.append(under_way[-1] - 1)

    monkeypatch.setitem(cast("dict[str, Any]", OPERATIONS), "CreateTopics", Call(create_and_note, changes=True))
    monkeypatch.setattr(topic_calls, "MAX_TOPICS", 10)
    results = admin.create_topics([NewTopic(f"overlap-{number}") for number in range(41)])
    assert all(each.error is None for each in results)
    assert admin.describe_topic(last_name).topic == last_name
    assert max(under_way) == topic_calls.MAX_REQUESTS
    asked.clear()
    with pytest.raises(LograftError, match="not this one"):
        admin.create_topics([NewTopic(f"fails-{number}") for number in range(60)])
    assert [names[0] for names in asked] == ["fails-0", "fails-10", "fails-20", "fails-30"]
    assert admin.describe_topic("fails-39").topic == "fails-39"


@pytest.mark.parametrize(
    "topics",
    [["a"], [NewTopic("a"), NewTopic("a")], [NewTopic("a", 0)], [NewTopic("a", 1, 0)], [NewTopic(5)]],  # pyright: ignore[reportArgumentType]
    ids=str,
)
def test_what_is_no_new_topic_is_a_usage_error(admin: Admin, topics: list[NewTopic]) -> None:
    """The client finds these errors before it sends anything."""
    with pytest.raises(UsageError):
        admin.create_topics([NewTopic("never-made"), *topics])
    with pytest.raises(UnknownTopicError):
        admin.describe_topic("never-made")
