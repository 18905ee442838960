# SPDX-License-Identifier: Apache-2.0
"""The creation of an internal topic on first use, with a scripted controller over real connections."""

from __future__ import annotations

import asyncio

import pytest
from lograft.internal.v1 import controller_pb2 as pb
from lograft.v1 import admin_pb2
from lograft.wire.codes import ErrorCode

from brokerd.coordinator import topic_creation
from brokerd.coordinator.internal_topics import GROUPS
from brokerd.coordinator.topic_creation import TopicCreation
from brokerd.failure import RefusedError
from brokerd.tests.committed_records import broker, commit, topic
from brokerd.tests.controller_client.scripted_controller import ScriptedController, calls_to, controller_of
from brokerd.tests.support import WAIT_S
from metaquorum.metadata.loader import MetadataLoader
from metaquorum.net.methods import Method
from metaquorum.net.service import RefusalError


def answered(observer: MetadataLoader) -> bytes:
    """Commit the topic, and return the controller's answer."""
    commit(observer, *topic(GROUPS.name, b"g" * 16, 2))
    response = admin_pb2.CreateTopicResponse(metadata_offset=observer.metadata_offset)
    return pb.AdminAnswer(response=response.SerializeToString()).SerializeToString()


async def test_callers_share_one_request() -> None:
    """Three callers at once ask once, with as many replicas as there are brokers."""
    observer = MetadataLoader()
    commit(observer, broker(1), broker(2))
    requests: list[admin_pb2.CreateTopicRequest] = []

    async def script(method: Method, data: bytes) -> bytes:
        call = pb.AdminCall.FromString(data)
        assert (method, call.method) == (Method.ADMIN, "CreateTopic")
        requests.append(admin_pb2.CreateTopicRequest.FromString(call.request))
        return answered(observer)

    async with (
        controller_of(ScriptedController(script)) as controller,
        calls_to(controller, observer=observer) as calls,
    ):
        creation = TopicCreation(GROUPS, observer, calls)
        await asyncio.gather(*(creation.ensure(timeout_ms=10_000) for _ in range(3)))
        assert [(each.topic, each.replication_factor) for each in requests] == [(GROUPS.name, 2)]
        await creation.ensure(timeout_ms=0)


async def test_topic_that_exists_is_awaited() -> None:
    """Another broker was faster: success, as soon as this broker's metadata has the topic."""
    observer = MetadataLoader()

    async def script(_method: Method, _data: bytes) -> bytes:
        raise RefusalError(ErrorCode.TOPIC_ALREADY_EXISTS, "it exists")

    async with (
        controller_of(ScriptedController(script)) as controller,
        calls_to(controller, observer=observer) as calls,
    ):
        creation = TopicCreation(GROUPS, observer, calls)
        waiting = asyncio.create_task(creation.ensure(timeout_ms=10_000))
        async with asyncio.timeout(WAIT_S):
            while not controller.asked:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
        await asyncio.sleep(0.05)
        assert not waiting.done()
        answered(observer)
        await waiting


async def test_refusal_is_told_and_the_controller_is_not_pressed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Too few brokers: COORDINATOR_LOADING with the reason, at most one request in each pause, and success once there are enough."""
    monkeypatch.setattr(topic_creation, "CREATE_RETRY_MS", 200)
    observer = MetadataLoader()

    attempts = 0

    async def script(_method: Method, _data: bytes) -> bytes:
        nonlocal attempts
        attempts += 1
        if attempts > 1:
            return answered(observer)
        raise RefusalError(ErrorCode.NOT_ENOUGH_BROKERS, "two of three are there")

    async with (
        controller_of(ScriptedController(script)) as controller,
        calls_to(controller, observer=observer) as calls,
    ):
        creation = TopicCreation(GROUPS, observer, calls)
        for _ in range(20):
            with pytest.raises(RefusedError, match="two of three are there") as caught:
                await creation.ensure(timeout_ms=10_000)
            assert caught.value.failure.code is ErrorCode.COORDINATOR_LOADING
        assert len(controller.asked) == 1
        await asyncio.sleep(0.25)
        await creation.ensure(timeout_ms=10_000)
        assert len(controller.asked) == 2


async def test_caller_waits_no_longer_than_it_wants() -> None:
    """The request goes on without it."""
    observer = MetadataLoader()
    go_on = asyncio.Event()

    async def script(_method: Method, _data: bytes) -> bytes:
        await go_on.wait()
        return answered(observer)

    async with (
        controller_of(ScriptedController(script)) as controller,
        calls_to(controller, observer=observer) as calls,
    ):
        creation = TopicCreation(GROUPS, observer, calls)
        with pytest.raises(RefusedError) as caught:
            await creation.ensure(timeout_ms=10)
        assert caught.value.failure.code is ErrorCode.COORDINATOR_LOADING
        go_on.set()
        await creation.ensure(timeout_ms=10_000)
        assert len(controller.asked) == 1
        await creation.close()
