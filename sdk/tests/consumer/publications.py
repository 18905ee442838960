# SPDX-License-Identifier: Apache-2.0
"""Holds publications up at the embedded cluster, and notes when they are through."""

from __future__ import annotations

import asyncio
import random
import time
from typing import Any

import pytest

STEP_S = 0.005


class Publications:
    """What every coordinator of this process asks leaders to publish, on its way.

    Attributes:
        held: partitions of topics, by topic id, whose publications wait.
        waiting: publications that wait.
        times: for each topic id and partition, (monotonic seconds, first offset, end offset) of what was published.
        delay_s: most seconds by which each publication is delayed, at random.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        # Imported here, because other tests of the SDK must run without an installed server.
        from brokerd.publishing.calls import PublicationCalls

        self.held: set[tuple[bytes, int]] = set()
        self.waiting = 0
        self.times: dict[tuple[bytes, int], list[tuple[float, int, int]]] = {}
        self.delay_s = 0.0
        self._rng = random.Random(7)
        publish = PublicationCalls.publish

        async def later(calls: PublicationCalls, part: Any, **fields: Any) -> Any:
            place = (part.topic_id, part.partition)
            self.waiting += 1
            while place in self.held:  # noqa: ASYNC110 - the test runs on another thread
                await asyncio.sleep(STEP_S)
            self.waiting -= 1
            if self.delay_s:
                await asyncio.sleep(self._rng.random() * self.delay_s)
            found = await publish(calls, part, **fields)
            self.times.setdefault(place, []).append((time.monotonic(), found.first_offset, found.end_offset))
            return found

        monkeypatch.setattr(PublicationCalls, "publish", later)

    def time_of(self, topic_id: bytes, partition: int, offset: int) -> float:
        """Return when the part with this offset was published."""
        return min(at for at, first, end in self.times[topic_id, partition] if first <= offset < end)
