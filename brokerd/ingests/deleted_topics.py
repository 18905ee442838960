# SPDX-License-Identifier: Apache-2.0
"""Tells the cores of the active coordinators which topics are deleted: those that they have decided something for.

Owns for each coordinator what it has not been told yet. Law: a deletion is told only if the metadata knows the topic as deleted.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from brokerd.coordinator.unserved import UnservedError, UnservedReason
from brokerd.ingests.commands import TopicsDeleted
from brokerd.ingests.core import IngestCore
from brokerd.ingests.limits import DELETED_RETRY_MS
from metaquorum.metadata.changes import MetadataChange
from metaquorum.metadata.loader import MetadataLoader

logger = logging.getLogger(__name__)

_ENDED = (UnservedReason.MOVED, UnservedReason.NO_COORDINATOR, UnservedReason.LOADING)
"""Reasons that end a line: when the coordinator is active again, another one begins."""


@dataclass(slots=True, eq=False)
class _Line:
    """What one active coordinator has not been told yet."""

    partition: int
    topic_ids: dict[bytes, None] = field(default_factory=dict[bytes, None])
    task: asyncio.Task[None] | None = None


class DeletedTopicsFeed:
    """The feed of all coordinators of a broker. Belongs to one event loop; only its own methods write its state.

    Args:
        observer: the metadata of this broker.
        submit: submits a command to the coordinator of a partition; raises `UnservedError`.
        core: returns the core of an active coordinator, for reading.
    """

    def __init__(
        self,
        observer: MetadataLoader,
        *,
        submit: Callable[[int, TopicsDeleted], Awaitable[object]],
        core: Callable[[int], IngestCore | None],
    ) -> None:
        self._observer = observer
        self._submit = submit
        self._core = core
        self._lines: dict[int, _Line] = {}
        self._stop_following: Callable[[], None] | None = None

    def start(self) -> None:
        """Follow the metadata."""
        self._stop_following = self._observer.on_change(self._on_change)

    async def stop(self) -> None:
        """End all lines. Idempotent."""
        if self._stop_following is not None:
            self._stop_following()
            self._stop_following = None
        tasks = [line.task for line in self._lines.values() if line.task is not None]
        self._lines.clear()
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def begin(self, partition: int) -> None:
        """Look which topics of a new core are deleted: the coordinator of a partition is active."""
        self.end(partition)
        self._lines[partition] = _Line(partition)
        self._tell(partition, None)

    def end(self, partition: int) -> None:
        """Hand in nothing more: the coordinator is no longer active."""
        line = self._lines.pop(partition, None)
        if line is not None and line.task is not None:
            line.task.cancel()

    def _on_change(self, change: MetadataChange) -> None:
        image = self._observer.image
        gone = {each for each in change.topic_ids if image.topic_by_id(each) is None}
        if gone:
            for partition in tuple(self._lines):
                self._tell(partition, gone)

    def _tell(self, partition: int, changed: set[bytes] | None) -> None:
        """Hand in the deleted topics that a core knows; `changed` limits the look to some."""
        core, line = self._core(partition), self._lines[partition]
        known = () if core is None else core.topics()
        if changed is not None:
            known = tuple(each for each in known if each in changed)
        if not known:
            return
        deleted = self._observer.image.deleted_topics.ids()
        line.topic_ids.update(dict.fromkeys(each for each in known if each in deleted))
        if line.topic_ids and line.task is None:
            line.task = asyncio.create_task(self._hand_in(line), name=f"deleted-topics-{partition}")

    async def _hand_in(self, line: _Line) -> None:
        try:
            while line.topic_ids:
                topic_ids = tuple(line.topic_ids)
                try:
                    await self._submit(line.partition, TopicsDeleted(topic_ids=topic_ids))
                except UnservedError as error:
                    if error.unserved.reason in _ENDED:
                        return
                    logger.warning("deleted topics not handed in yet: partition=%d: %s", line.partition, error)
                    await asyncio.sleep(DELETED_RETRY_MS / 1000)
                    continue
                for topic_id in topic_ids:
                    line.topic_ids.pop(topic_id, None)
        finally:
            line.task = None
