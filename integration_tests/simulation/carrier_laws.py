# SPDX-License-Identifier: Apache-2.0
"""Laws of the connections between servers that no server checks itself.

Owns what is watched while a world runs. Laws: no server sends a message that the state of the connection forbids and for which the
other one ends it. Every request gets an outcome within its time limit, whatever the other side does.
Source: docs/net.md.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any
from unittest import mock
from weakref import WeakKeyDictionary

from metaquorum.net.connection import Connection, Happening, _Role
from metaquorum.net.frames import BadFrameError, Frame


class CarrierLaws:
    """Watches every connection of every server.

    Args:
        on_broken: called with the law that was broken, and where.
    """

    def __init__(self, on_broken: Callable[[str], None]) -> None:
        self._on_broken = on_broken
        # For each request, the time until which it must have an outcome.
        self._due_ms: WeakKeyDictionary[Connection, dict[int, int]] = WeakKeyDictionary()

    @contextmanager
    def watching(self) -> Generator[None]:
        """Watch while the context runs."""
        request, tick, take = Connection.request, Connection.tick, Connection._take

        def watched_request(core: Connection, method: int, message: bytes, *, timeout_ms: int, now_ms: int) -> int:
            call_id = request(core, method, message, timeout_ms=timeout_ms, now_ms=now_ms)
            self._due_ms.setdefault(core, {})[call_id] = now_ms + max(1, timeout_ms)
            return call_id

        def watched_tick(core: Connection, now_ms: int) -> list[Happening]:
            happenings = tick(core, now_ms)
            self._check_times(core, now_ms)
            return happenings

        def watched_take(core: Connection, frame: Frame, happenings: list[Happening]) -> None:
            try:
                take(core, frame, happenings)
            except BadFrameError as error:
                self._on_broken(f"a server said what it must not: {error}")
                raise

        changes: dict[str, Any] = {"request": watched_request, "tick": watched_tick, "_take": watched_take}
        with mock.patch.multiple(Connection, **changes):
            yield

    def _check_times(self, core: Connection, now_ms: int) -> None:
        due_ms = self._due_ms.get(core, {})
        for call_id, until_ms in list(due_ms.items()):
            call = core._calls.get(call_id)
            if call is None or call.role is not _Role.ASKED:
                del due_ms[call_id]
            elif until_ms <= now_ms:
                self._on_broken(f"a request waits {now_ms - until_ms} ms longer than it may")
