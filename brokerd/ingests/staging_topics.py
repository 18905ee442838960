# SPDX-License-Identifier: Apache-2.0
"""Makes staging topics on first use, through the controller, and waits until this broker's metadata has them.

Owns the requests under way: one for each topic, which all callers share. The controller places staging topics, and lets them grow and
go with their topics.
Source: `docs/ingest.md` section "Staging".
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from lograft.internal.v1 import controller_pb2 as pb
from lograft.v1 import admin_pb2
from lograft.wire.codes import ErrorCode

from brokerd.controller_client.controller_calls import ControllerCalls
from brokerd.failure import RefusedError, refused
from brokerd.ingests.limits import (
    STAGING_APPLY_MS,
    STAGING_ATTEMPTS,
    STAGING_CREATE_MS,
    STAGING_SEGMENT_BYTES,
    STAGING_TOPICS_MAX,
    TOPIC_WAIT_MS,
)
from metaquorum.metadata.image import TopicImage
from metaquorum.metadata.loader import MetadataLoader
from metaquorum.metadata.topic_names import problem as name_problem
from metaquorum.metadata.topic_names import reserved_problem, staging_topic
from metaquorum.net.methods import Method

logger = logging.getLogger(__name__)


class StagingTopics:
    """Topics of ingests, and their staging topics. Belongs to one event loop; only its own methods write its state.

    Args:
        observer: the metadata of this broker.
        calls: calls to the controller.
    """

    def __init__(self, observer: MetadataLoader, calls: ControllerCalls) -> None:
        self._observer = observer
        self._calls = calls
        self._turns = asyncio.Semaphore(STAGING_TOPICS_MAX)
        self._creating: dict[bytes, asyncio.Task[None]] = {}

    async def find(self, names: Sequence[str], *, timeout_ms: int) -> list[TopicImage]:
        """Return topics that an ingest may publish to. Waits a moment for those that are new.

        Args:
            names: their names.
            timeout_ms: longest wait in milliseconds.

        Raises:
            RefusedError: INVALID_TOPIC_NAME, also for topics of the system; UNKNOWN_TOPIC.
        """
        for name in names:
            problem = name_problem(name) or reserved_problem(name)
            if problem is not None:
                raise refused(ErrorCode.INVALID_TOPIC_NAME, problem)
        await self._wait_known(names, min(TOPIC_WAIT_MS, timeout_ms))
        found: list[TopicImage] = []
        for name in names:
            topic = self._observer.image.topic_by_name(name)
            if topic is None:
                raise refused(ErrorCode.UNKNOWN_TOPIC, f"topic {name!r} does not exist")
            found.append(topic)
        return found

    async def _wait_known(self, names: Sequence[str], timeout_ms: int) -> None:
        """Wait until the metadata has topics; another broker may know them already."""
        changed = asyncio.Event()
        stop = self._observer.on_change(lambda _: changed.set())
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                while any(self._observer.image.topic_by_name(name) is None for name in names):
                    changed.clear()
                    await changed.wait()
        except TimeoutError:
            pass
        finally:
            stop()

    async def ensure(self, topics: Sequence[TopicImage], *, timeout_ms: int) -> None:
        """Return once the staging topics of some topics exist; make those that are missing.

        Args:
            topics: the topics.
            timeout_ms: longest wait in milliseconds. What was begun goes on.

        Raises:
            RefusedError: the controller's refusal of one of them; TIMED_OUT, they are being made.
        """
        wanted = [each.topic_id for each in topics if self._image(each.topic_id) is None]
        tasks = [self._creating.get(each) or self._begin(each) for each in wanted]
        if tasks:
            await asyncio.wait(tasks, timeout=timeout_ms / 1000)
        for topic_id, task in zip(wanted, tasks, strict=True):
            if self._image(topic_id) is not None:
                continue
            error = task.exception() if task.done() and not task.cancelled() else None
            if isinstance(error, RefusedError):
                # One more exception for one more caller: one that is raised twice collects tracebacks.
                raise RefusedError(error.failure)
            message = f"the staging topic of topic {topic_id.hex()} is being made: try again"
            raise refused(ErrorCode.TIMED_OUT, message)

    async def close(self) -> None:
        """End the requests under way. Idempotent."""
        tasks = list(self._creating.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def _image(self, topic_id: bytes) -> TopicImage | None:
        return self._observer.image.topic_by_name(staging_topic(topic_id))

    def _begin(self, topic_id: bytes) -> asyncio.Task[None]:
        task = asyncio.create_task(self._create(topic_id), name=f"create-{staging_topic(topic_id)}")
        self._creating[topic_id] = task
        task.add_done_callback(lambda done: self._on_done(topic_id, done))
        return task

    async def _create(self, topic_id: bytes) -> None:
        async with self._turns:
            for _ in range(STAGING_ATTEMPTS):
                topic = self._observer.image.topic_by_id(topic_id)
                if topic is None:
                    raise refused(ErrorCode.UNKNOWN_TOPIC, f"topic {topic_id.hex()} was deleted")
                seen_offset = self._observer.metadata_offset
                try:
                    return await self._ask(topic)
                except RefusedError as error:
                    if error.failure.code is not ErrorCode.INVALID_PARTITION_COUNT:
                        raise
                # The topic has grown, and this broker does not know it yet.
                await self._observer.wait_for(seen_offset + 1, timeout_ms=STAGING_APPLY_MS // STAGING_ATTEMPTS)
            message = f"topic {topic_id.hex()} grows, and this broker does not know it yet"
            raise refused(ErrorCode.METADATA_NOT_REACHED, message)

    async def _ask(self, topic: TopicImage) -> None:
        """Have the controller make a staging topic. It knows where its partitions belong, and its configs."""
        request = admin_pb2.CreateTopicRequest(
            topic=staging_topic(topic.topic_id),
            partition_count=len(topic.partitions),
            replication_factor=topic.replication_factor,
            configs={"segment.bytes": str(STAGING_SEGMENT_BYTES), "file.delete.delay.ms": "0"},
        )
        call = pb.AdminCall(method="CreateTopic", request=request.SerializeToString())
        name = topic.topic
        try:
            answer = await self._calls.call(Method.ADMIN, call.SerializeToString(), timeout_ms=STAGING_CREATE_MS)
        except RefusedError as error:
            if error.failure.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
                raise
            # Another broker was faster. This one hears of the topic in a moment.
            await self._wait_known((request.topic,), STAGING_APPLY_MS)
            return
        response = admin_pb2.CreateTopicResponse.FromString(pb.AdminAnswer.FromString(answer).response)
        logger.info("staging topic created: topic=%s of=%s", request.topic, name)
        await self._observer.wait_for(response.metadata_offset, timeout_ms=STAGING_APPLY_MS)

    def _on_done(self, topic_id: bytes, task: asyncio.Task[None]) -> None:
        del self._creating[topic_id]
        error = None if task.cancelled() else task.exception()
        if isinstance(error, RefusedError):
            logger.warning("staging topic not created: topic=%s: %s", topic_id.hex(), error)
        elif error is not None:
            logger.error("staging topic not created: topic=%s", topic_id.hex(), exc_info=error)
