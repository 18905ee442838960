# SPDX-License-Identifier: Apache-2.0
"""Damage reports from reads to repairs, and the segments that cannot be repaired for now.

Everything runs on the event loop thread.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress


class DamageReports:
    """Known damage in the logs of one broker. A segment is named by the directory of its log and its base offset.

    `Replica` notes that a read met damage; `DamageRepairs` notes segments that cannot be repaired for now.
    """

    def __init__(self) -> None:
        self._found = asyncio.Event()
        self._due_ms: dict[tuple[str, int], int] = {}

    def note_damage(self) -> None:
        """Note that a read met damage."""
        self._found.set()

    async def wait(self, *, timeout_ms: int) -> None:
        """Wait until a read has met damage since the last call, for at most `timeout_ms` milliseconds."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_ms / 1000):
                await self._found.wait()
        self._found.clear()

    def give_up(self, directory: str, base_offset: int, *, due_ms: int) -> None:
        """Note that a segment cannot be repaired before `due_ms`, a time of the monotonic clock."""
        self._due_ms[directory, base_offset] = due_ms

    def forget_due(self, now_ms: int) -> None:
        """Forget the segments that are due, so that they are tried again."""
        self._due_ms = {place: due_ms for place, due_ms in self._due_ms.items() if due_ms > now_ms}

    def given_up(self, directory: str) -> list[int]:
        """Return the base offsets of the segments of a log that cannot be repaired now."""
        return [base_offset for place, base_offset in self._due_ms if place == directory]
