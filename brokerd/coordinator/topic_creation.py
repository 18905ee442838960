# SPDX-License-Identifier: Apache-2.0
"""Makes an internal topic on first use: asks the controller, and waits until this broker's metadata has the topic.

Owns the one request under way, and the pause after a refusal. All callers share both.
Source: `docs/coordinator.md` section "Internal topics".
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import Final

from lograft.internal.v1 import controller_pb2 as pb
from lograft.v1 import admin_pb2
from lograft.wire.codes import ErrorCode

from brokerd.clock import monotonic_ms
from brokerd.controller_client.controller_calls import ControllerCalls
from brokerd.coordinator.internal_topics import InternalTopic, creation_plan
from brokerd.failure import Failure, RefusedError
from metaquorum.metadata.image import TopicImage
from metaquorum.metadata.loader import MetadataLoader
from metaquorum.net.methods import Method

logger = logging.getLogger(__name__)

CREATE_WAIT_MS: Final = 10_000
"""Milliseconds that the controller has to create the topic, all attempts together."""

APPLY_WAIT_MS: Final = 5_000
"""Milliseconds until this broker's metadata must have the topic that the controller has created."""

CREATE_RETRY_MS: Final = 500
"""Milliseconds after a refusal before the controller is asked again; commands get the refusal until then."""


class TopicCreation:
    """Makes one internal topic. Belongs to one event loop.

    Args:
        topic: the topic.
        observer: the metadata of this broker.
        calls: calls to the controller.
    """

    def __init__(self, topic: InternalTopic, observer: MetadataLoader, calls: ControllerCalls) -> None:
        self._topic = topic
        self._observer = observer
        self._calls = calls
        self._creating: asyncio.Task[None] | None = None
        self._refusal: RefusedError | None = None
        self._not_before_ms = 0

    @property
    def image(self) -> TopicImage | None:
        """The topic in this broker's metadata; None: it does not exist there."""
        return self._observer.image.topic_by_name(self._topic.name)

    async def ensure(self, *, timeout_ms: int) -> None:
        """Return once this broker's metadata has the topic; create it if need be.

        Args:
            timeout_ms: longest wait in milliseconds.

        Raises:
            RefusedError: COORDINATOR_LOADING: it does not exist yet; the text says why. Come back.
        """
        if self.image is not None:
            return
        if self._creating is None:
            if monotonic_ms() < self._not_before_ms and self._refusal is not None:
                raise _fresh(self._refusal)
            self._creating = asyncio.create_task(self._create(), name=f"create-{self._topic.name}")
            self._creating.add_done_callback(self._on_created)
        creating = self._creating
        await asyncio.wait((creating,), timeout=timeout_ms / 1000)
        if self.image is not None:
            return
        if creating.done() and self._refusal is not None:
            raise _fresh(self._refusal)
        raise _not_there(f"topic {self._topic.name} is being created: try again")

    async def _create(self) -> None:
        observer = self._observer
        plan = creation_plan(self._topic, broker_count=len(observer.image.brokers))
        request = admin_pb2.CreateTopicRequest(
            topic=plan.topic,
            partition_count=plan.partition_count,
            replication_factor=plan.replication_factor,
            configs=dict(plan.configs),
        )
        call = pb.AdminCall(method="CreateTopic", request=request.SerializeToString())
        try:
            answer = await self._calls.call(Method.ADMIN, call.SerializeToString(), timeout_ms=CREATE_WAIT_MS)
        except RefusedError as error:
            if error.failure.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
                raise
            # Another broker was faster. This one hears of the topic in a moment.
            await self._wait_seen()
            return
        response = admin_pb2.CreateTopicResponse.FromString(pb.AdminAnswer.FromString(answer).response)
        logger.info("internal topic created: topic=%s replication_factor=%d", plan.topic, plan.replication_factor)
        await observer.wait_for(response.metadata_offset, timeout_ms=APPLY_WAIT_MS)

    async def _wait_seen(self) -> None:
        seen = asyncio.Event()
        stop = self._observer.on_change(lambda change: seen.set() if self._topic.name in change.topics else None)
        try:
            if self.image is None:
                with suppress(TimeoutError):
                    async with asyncio.timeout(APPLY_WAIT_MS / 1000):
                        await seen.wait()
        finally:
            stop()

    def _on_created(self, task: asyncio.Task[None]) -> None:
        self._creating = None
        self._refusal = None
        error = None if task.cancelled() else task.exception()
        if error is None:
            return
        self._not_before_ms = monotonic_ms() + CREATE_RETRY_MS
        if isinstance(error, RefusedError):
            logger.warning("internal topic not created: topic=%s: %s", self._topic.name, error)
            self._refusal = _not_there(f"topic {self._topic.name} cannot be created yet: {error.failure.message}")
        else:
            logger.error("internal topic not created: topic=%s", self._topic.name, exc_info=error)
            self._refusal = _not_there(f"topic {self._topic.name} cannot be created; the broker's log says why")

    async def close(self) -> None:
        """End the request under way. Idempotent."""
        creating = self._creating
        if creating is not None:
            creating.cancel()
            await asyncio.wait((creating,))


def _not_there(message: str) -> RefusedError:
    return RefusedError(Failure(code=ErrorCode.COORDINATOR_LOADING, message=message, retry_after_ms=CREATE_RETRY_MS))


def _fresh(error: RefusedError) -> RefusedError:
    """Return a refusal for one more caller: an exception that is raised twice collects tracebacks."""
    return RefusedError(error.failure)
