# SPDX-License-Identifier: Apache-2.0
"""Topics as they are handed in, and which of them a subscription means.

Owns the topics and the caches of what names and patterns mean. `TopicsChanged` is their only writer, by way of `change`.
A pattern must match the whole name (RE2), and never matches an internal topic. What a subscription means is a function of the topics
alone, so that deleted and new topics are seen by every subscription (KAFKA-18916).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from brokerd.groups.assignment.specs import TopicSpec
from brokerd.groups.records import Subscription

_DIGEST_BYTES: Final = 8

_MAX_MEANINGS: Final = 4_096
"""Subscriptions whose meaning is kept; more, and all are worked out again when they are needed."""


class PatternError(ValueError):
    """A pattern cannot be subscribed to; the text says why and what to do."""


NameMatcher = Callable[[str], bool]
"""Returns True if the whole of a topic name matches."""

PatternCompiler = Callable[[str], NameMatcher]
"""Returns the matcher of a pattern. Raises `PatternError` if there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    """A topic.

    Attributes:
        topic_id: id, 16 bytes.
        name: name.
        partition_count: its partitions are 0 to `partition_count` - 1.
        racks: racks of the replicas, by partition; empty: unknown.
        is_internal: True for a topic of the system, which no pattern matches.
    """

    topic_id: bytes
    name: str
    partition_count: int
    racks: tuple[frozenset[str], ...] = ()
    is_internal: bool = False


@dataclass(frozen=True, slots=True)
class _Known:
    topic: Topic
    spec: TopicSpec
    digest: bytes


class Topics:
    """The topics of the cluster, and the meaning of subscriptions.

    Args:
        compiler: returns the matcher of a pattern.

    Attributes:
        metadata_offset: offset (exclusive) of the metadata that the topics come from; -1 before they were handed in.
    """

    def __init__(self, compiler: PatternCompiler) -> None:
        self.metadata_offset = -1
        self._compiler = compiler
        self._known: dict[bytes, _Known] = {}
        self._ids: dict[str, bytes] = {}
        self._matchers: dict[str, NameMatcher | None] = {}
        self._matched: dict[str, frozenset[bytes]] = {}
        self._meanings: dict[Subscription, frozenset[bytes]] = {}

    @property
    def is_loaded(self) -> bool:
        """True once the topics were handed in."""
        return self.metadata_offset >= 0

    def change(
        self, metadata_offset: int, topics: Iterable[Topic], deleted: Iterable[bytes], *, is_complete: bool
    ) -> bool:
        """Take over a change, unless it is older than what is known. Return True if anything changed."""
        if metadata_offset < self.metadata_offset or (not is_complete and not self.is_loaded):
            return False
        self.metadata_offset = metadata_offset
        named = {topic.topic_id: topic for topic in topics}
        gone = [each for each in self._known if each not in named] if is_complete else []
        is_changed = False
        for topic_id in (*deleted, *gone):
            is_changed |= self._remove(topic_id)
        for topic in named.values():
            is_changed |= self._put(topic)
        if is_changed:
            self._matched.clear()
            self._meanings.clear()
        return is_changed

    def get(self, topic_id: bytes) -> Topic | None:
        """Return a topic, or None."""
        known = self._known.get(topic_id)
        return None if known is None else known.topic

    def spec(self, topic_id: bytes) -> TopicSpec:
        """Return a topic that exists, as an assignor sees it."""
        return self._known[topic_id].spec

    def check_pattern(self, pattern: str) -> None:
        """Check that a pattern can be used.

        Raises:
            PatternError: it cannot.
        """
        if pattern and self._matchers.get(pattern) is None:
            self._matchers[pattern] = self._compiler(pattern)

    def meaning(self, subscription: Subscription) -> frozenset[bytes]:
        """Return the ids of the existing topics that a subscription means."""
        found = self._meanings.get(subscription)
        if found is None:
            named = frozenset(self._ids[name] for name in subscription.names if name in self._ids)
            found = named | self._match(subscription.pattern)
            if len(self._meanings) >= _MAX_MEANINGS:
                self._meanings.clear()
            self._meanings[subscription] = found
        return found

    def digest(self, topic_ids: Iterable[bytes]) -> bytes:
        """Return a digest of existing topics: ids, names, partition counts and racks."""
        whole = hashlib.blake2b(digest_size=_DIGEST_BYTES)
        for topic_id in sorted(topic_ids):
            whole.update(self._known[topic_id].digest)
        return whole.digest()

    def forget_patterns(self, in_use: frozenset[str]) -> None:
        """Drop what is kept for patterns that nobody uses any more."""
        for pattern in [each for each in self._matchers if each not in in_use]:
            del self._matchers[pattern]
            self._matched.pop(pattern, None)

    def _match(self, pattern: str) -> frozenset[bytes]:
        if not pattern:
            return frozenset()
        found = self._matched.get(pattern)
        if found is None:
            matcher = self._matcher(pattern)
            visible = (each.topic for each in self._known.values() if not each.topic.is_internal)
            found = frozenset(topic.topic_id for topic in visible if matcher is not None and matcher(topic.name))
            self._matched[pattern] = found
        return found

    def _matcher(self, pattern: str) -> NameMatcher | None:
        """Return the matcher of a stored pattern; None if this version cannot read it any more: then it means no topic."""
        if pattern not in self._matchers:
            try:
                self._matchers[pattern] = self._compiler(pattern)
            except PatternError:
                self._matchers[pattern] = None
        return self._matchers[pattern]

    def _put(self, topic: Topic) -> bool:
        old = self._known.get(topic.topic_id)
        if old is not None and old.topic == topic:
            return False
        former_id = self._ids.get(topic.name)
        if former_id is not None and former_id != topic.topic_id:
            # A name was given to a new topic, and the deletion of the old one is named later or was missed.
            del self._known[former_id]
        if old is not None and old.topic.name != topic.name:
            self._ids.pop(old.topic.name, None)
        spec = TopicSpec(topic.topic_id, topic.partition_count, topic.racks)
        racks = ";".join(",".join(sorted(each)) for each in topic.racks)
        words = b"%s\0%d\0%s\0" % (topic.name.encode(), topic.partition_count, racks.encode())
        digest = hashlib.blake2b(topic.topic_id + words, digest_size=_DIGEST_BYTES).digest()
        self._known[topic.topic_id] = _Known(topic, spec, digest)
        self._ids[topic.name] = topic.topic_id
        return True

    def _remove(self, topic_id: bytes) -> bool:
        known = self._known.pop(topic_id, None)
        if known is None:
            return False
        if self._ids.get(known.topic.name) == topic_id:
            del self._ids[known.topic.name]
        return True
