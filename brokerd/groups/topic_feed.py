# SPDX-License-Identifier: Apache-2.0
"""Hands the topics and the configs of groups to the cores of the active coordinators: all of them first, then what changes.

Owns the topics as the cores see them, and for each coordinator what it has not been told yet. A change of leaders or in-sync replicas
changes nothing for a group, so it is not handed in. A core takes a later state of a topic for an earlier one that it never saw: what
waits is a set of names, never a queue of states.

Laws
    A deletion is told only if the metadata knows the topic as deleted.
    Configs come before topics: a core that has topics knows how long it keeps offsets.
Source: `docs/groups.md` sections "Border" and "Service".
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from brokerd.coordinator.internal_topics import GROUPS
from brokerd.coordinator.unserved import UnservedError, UnservedReason
from brokerd.groups.commands import ConfigChanged, DefaultsChanged, TopicsChanged
from brokerd.groups.core import GroupCore
from brokerd.groups.settings import config_of
from brokerd.groups.subscriptions import Topic
from brokerd.wake import Wake
from metaquorum.metadata.changes import MetadataChange
from metaquorum.metadata.image import TopicImage
from metaquorum.metadata.loader import MetadataLoader
from metaquorum.metadata.records import ConfigResource
from metaquorum.metadata.topic_configs import GROUP_CONFIGS
from metaquorum.metadata.topic_names import is_internal

logger = logging.getLogger(__name__)

Command = TopicsChanged | ConfigChanged | DefaultsChanged
"""What is handed in."""

FEED_RETRY_MS: Final = 250
"""Milliseconds before topics are handed in again after a coordinator took no command."""

CATCH_UP_MS: Final = 60_000
"""Milliseconds after which a coordinator whose groups have seen newer metadata gets all topics again, whatever the metadata has."""

_ENDED: Final = (UnservedReason.MOVED, UnservedReason.NO_COORDINATOR, UnservedReason.LOADING)
"""Reasons that end a line: when the coordinator is active again, another one begins."""


@dataclass(slots=True, eq=False)
class _Line:
    """What one active coordinator has not been told yet."""

    partition: int
    wake: Wake = field(default_factory=Wake)
    is_complete_due: bool = True
    are_topics_due: bool = True
    are_defaults_due: bool = False
    configured: dict[str, None] = field(default_factory=dict[str, None])
    changed: dict[bytes, None] = field(default_factory=dict[bytes, None])
    deleted: dict[bytes, None] = field(default_factory=dict[bytes, None])
    task: asyncio.Task[None] | None = None
    catching_up: asyncio.Task[None] | None = None

    def end(self) -> list[asyncio.Task[None]]:
        """Cancel its tasks, and return them."""
        tasks = [each for each in (self.task, self.catching_up) if each is not None]
        for task in tasks:
            task.cancel()
        return tasks


class TopicFeed:
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
        submit: Callable[[int, Command], Awaitable[object]],
        core: Callable[[int], GroupCore | None],
    ) -> None:
        self._observer = observer
        self._submit = submit
        self._core = core
        # None until a coordinator is active here for the first time: a broker without groups pays nothing.
        self._topics: dict[bytes, Topic] | None = None
        self._racks: dict[int, str] = {}
        self._inherited: Mapping[str, str] = {}
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
        tasks = [task for line in self._lines.values() for task in line.end()]
        self._lines.clear()
        if tasks:
            await asyncio.wait(tasks)

    def begin(self, partition: int) -> None:
        """Hand in all configs and topics: the coordinator of a partition is active, with a new core."""
        self.end(partition)
        if self._topics is None:
            self._topics = {}
            self._look_at_racks()
            self._look_at_inherited()
            for topic in self._observer.image.topics():
                self._topics[topic.topic_id] = self._topic(topic)
        line = self._lines[partition] = _Line(partition, are_defaults_due=bool(self._inherited))
        self._note_configured(line, self._observer.image.configured_groups())
        line.wake.set()
        line.task = asyncio.create_task(self._run(line), name=f"topic-feed-{partition}")
        line.task.add_done_callback(_log_fault)

    def end(self, partition: int) -> None:
        """Hand in nothing more: the coordinator is no longer active."""
        line = self._lines.pop(partition, None)
        if line is not None:
            line.end()

    # Changes.

    def _on_change(self, change: MetadataChange) -> None:
        topics = self._topics
        if topics is None:
            return
        image = self._observer.image
        topic_ids = sorted(change.topic_ids)
        if change.broker_ids and self._look_at_racks():
            topic_ids = sorted({*topics, *change.topic_ids})
        changed: dict[bytes, None] = {}
        deleted: dict[bytes, None] = {}
        for topic_id in topic_ids:
            now = image.topic_by_id(topic_id)
            if now is None:
                topics.pop(topic_id, None)
                deleted[topic_id] = None
                continue
            topic = self._topic(now)
            if topics.get(topic_id) != topic:
                topics[topic_id] = topic
                changed[topic_id] = None
        are_defaults_due = self._look_at_inherited()
        # What a group has itself counts together with what it inherits.
        configured = image.configured_groups() if are_defaults_due else change.group_ids
        for line in self._lines.values():
            line.changed.update(changed)
            line.deleted.update(deleted)
            line.are_topics_due |= bool(changed or deleted)
            line.are_defaults_due |= are_defaults_due
            self._note_configured(line, (*configured, *change.group_ids))
            if line.are_topics_due or line.are_defaults_due or line.configured:
                line.wake.set()

    def _look_at_inherited(self) -> bool:
        """Look at what the cluster has for groups; return True if it has changed."""
        configs = self._observer.image.configs_of(ConfigResource.CLUSTER, "")
        inherited = {name: configs[name] for name in sorted(configs) if name in GROUP_CONFIGS}
        is_changed, self._inherited = inherited != self._inherited, inherited
        return is_changed

    def _note_configured(self, line: _Line, group_ids: Iterable[str]) -> None:
        line.configured.update(
            (group_id, None) for group_id in sorted(group_ids) if GROUPS.partition_of(group_id) == line.partition
        )

    def _look_at_racks(self) -> bool:
        """Look at the racks of the brokers; return True if one has changed."""
        brokers = self._observer.image.brokers
        racks = {broker_id: brokers[broker_id].rack or "" for broker_id in sorted(brokers)}
        racks = {broker_id: rack for broker_id, rack in racks.items() if rack}
        is_changed, self._racks = racks != self._racks, racks
        return is_changed

    def _topic(self, image: TopicImage) -> Topic:
        racks: tuple[frozenset[str], ...] = ()
        if self._racks:
            known = self._racks
            racks = tuple(
                [frozenset([known[node] for node in each.replicas if node in known]) for each in image.partitions]
            )
        return Topic(
            topic_id=image.topic_id,
            name=image.topic,
            partition_count=len(image.partitions),
            racks=racks,
            is_internal=is_internal(image.topic),
        )

    # Lines.

    async def _run(self, line: _Line) -> None:
        while True:
            await line.wake.wait()
            while line.are_defaults_due or line.configured:
                if not await self._hand_in(line, self._take_config(line)):
                    return
            if not line.are_topics_due:
                continue
            command = self._take_topics(line)
            if not await self._hand_in(line, command):
                return
            if command.is_complete:
                self._catch_up(line, command.metadata_offset)

    def _take_config(self, line: _Line) -> ConfigChanged | DefaultsChanged:
        if line.are_defaults_due:
            line.are_defaults_due = False
            return DefaultsChanged(config=config_of(self._inherited))
        group_id = next(iter(line.configured))
        del line.configured[group_id]
        own = self._observer.image.configs_of(ConfigResource.GROUP, group_id)
        return ConfigChanged(group_id=group_id, config=config_of({**self._inherited, **own}) if own else None)

    def _take_topics(self, line: _Line) -> TopicsChanged:
        topics, image = self._topics, self._observer.image
        assert topics is not None, "a line begins with topics"
        if line.is_complete_due:
            line.is_complete_due = False
            core = self._core(line.partition)
            held = () if core is None else core.topics_with_offsets()
            gone = image.deleted_topics.ids() if held else ()
            command = TopicsChanged(
                metadata_offset=image.metadata_offset,
                topics=tuple(topics.values()),
                deleted=tuple(dict.fromkeys((*(each for each in held if each in gone), *line.deleted))),
                is_complete=True,
            )
        else:
            command = TopicsChanged(
                metadata_offset=image.metadata_offset,
                topics=tuple(topics[each] for each in line.changed if each in topics),
                deleted=tuple(line.deleted),
            )
        line.are_topics_due = False
        line.changed.clear()
        line.deleted.clear()
        return command

    async def _hand_in(self, line: _Line, command: Command) -> bool:
        """Submit until the coordinator has taken it; False: it is no longer active."""
        while True:
            try:
                await self._submit(line.partition, command)
            except UnservedError as error:
                if error.unserved.reason in _ENDED:
                    return False
                logger.warning("%s not handed in yet: partition=%d: %s", type(command).__name__, line.partition, error)
                await asyncio.sleep(FEED_RETRY_MS / 1000)
            else:
                return True

    def _catch_up(self, line: _Line, metadata_offset: int) -> None:
        """If a group of this coordinator has seen newer metadata at another one, let all topics be handed in again once it is here.

        Such a group gets no assignment before, and no later change may come to end that.
        """
        core = self._core(line.partition)
        seen = [] if core is None else [each.value.metadata_offset for each in core.state.groups.values() if each.value]
        newest = max(seen, default=0)
        if newest <= metadata_offset:
            return

        async def wait() -> None:
            await self._observer.wait_for(newest, timeout_ms=CATCH_UP_MS)
            line.is_complete_due = line.are_topics_due = True
            line.wake.set()

        line.catching_up = asyncio.create_task(wait(), name=f"topic-feed-catch-up-{line.partition}")
        line.catching_up.add_done_callback(_log_fault)


def _log_fault(task: asyncio.Task[None]) -> None:
    error = None if task.cancelled() else task.exception()
    if error is not None:
        logger.error("topics and configs are no longer handed in: %s", task.get_name(), exc_info=error)
