# SPDX-License-Identifier: Apache-2.0
"""Deadlines, and questions to others that are repeated until their answer is on record.

Both are soft: they are lost with the leadership, and begin anew from the records.
"""

from __future__ import annotations

import heapq
from typing import Generic, TypeVar

from brokerd.ingests.limits import PUBLISH_RETRY_MS, PUBLISHING_MAX

Key = TypeVar("Key")
Identity = TypeVar("Identity")


class Deadlines:
    """Deadlines of ingests; setting one again moves it."""

    def __init__(self) -> None:
        self._deadlines: dict[str, int] = {}
        self._heap: list[tuple[int, str]] = []

    def set(self, ingest_id: str, deadline_ms: int | None) -> None:
        """Set or move a deadline; None removes it."""
        if deadline_ms is None:
            self._deadlines.pop(ingest_id, None)
            return
        if self._deadlines.get(ingest_id) == deadline_ms:
            return
        self._deadlines[ingest_id] = deadline_ms
        heapq.heappush(self._heap, (deadline_ms, ingest_id))
        if len(self._heap) > 4 * len(self._deadlines) + 64:
            self._heap = [(each_ms, each) for each, each_ms in self._deadlines.items()]
            heapq.heapify(self._heap)

    def next_ms(self) -> int | None:
        """Return when the first deadline is, in milliseconds."""
        while self._heap:
            deadline_ms, ingest_id = self._heap[0]
            if self._deadlines.get(ingest_id) == deadline_ms:
                return deadline_ms
            heapq.heappop(self._heap)
        return None

    def due(self, now_ms: int, limit: int) -> list[str]:
        """Return up to `limit` ingests whose deadline has come, by deadline. They stay due until they are moved."""
        found: dict[tuple[int, str], None] = {}
        while len(found) < limit and (first_ms := self.next_ms()) is not None and first_ms <= now_ms:
            found[heapq.heappop(self._heap)] = None
        for entry in found:
            heapq.heappush(self._heap, entry)
        return [ingest_id for _, ingest_id in found]


class Asks(Generic[Key, Identity]):
    """Questions by key. At most one for each key, and `PUBLISHING_MAX` in all, are asked within `PUBLISH_RETRY_MS`.

    Keys take turns, so that those without an answer do not hold up the others. The identity tells what a key is asked about: with
    another one it is asked at once.
    """

    def __init__(self) -> None:
        self._ready: dict[Key, None] = {}
        self._asked: dict[Key, tuple[Identity, int]] = {}

    def expect(self, key: Key, identity: Identity | None) -> None:
        """Note what a key has to be asked about; None: nothing."""
        asked = self._asked.get(key)
        if identity is None:
            self._ready.pop(key, None)
            self._asked.pop(key, None)
        elif asked is None or asked[0] != identity:
            self._asked.pop(key, None)
            self._ready[key] = None

    @property
    def has_room(self) -> bool:
        """True if one more may be asked."""
        return len(self._asked) < PUBLISHING_MAX

    def note_asked(self, key: Key, identity: Identity, now_ms: int) -> None:
        """Note that a key is asked now."""
        self._ready.pop(key, None)
        self._asked.pop(key, None)
        self._asked[key] = (identity, now_ms)

    def next_key(self, now_ms: int) -> Key | None:
        """Return a key that is to be asked now; None: there is none, or no room."""
        while self._asked:
            key = next(iter(self._asked))
            if self._asked[key][1] + PUBLISH_RETRY_MS > now_ms:
                break
            del self._asked[key]
            self._ready[key] = None
        return next(iter(self._ready), None) if self.has_room else None

    def next_ms(self, now_ms: int) -> int | None:
        """Return when a key is to be asked, in milliseconds; None: never."""
        if self._ready and self.has_room:
            return now_ms
        return next((asked_ms + PUBLISH_RETRY_MS for _, asked_ms in self._asked.values()), None)
