# SPDX-License-Identifier: Apache-2.0
"""Lines of the server's log about the changes that a controller appends, one for each up to a limit.

Owns the limit. A line costs as much as a twelfth of a small change, and no operator reads thousands of lines a second. The metadata
log has every change, and `lograft metadata export` shows the result.
"""

from __future__ import annotations

import logging
from typing import Final

from metaquorum.controller.commands import Command, Heartbeat

logger = logging.getLogger(__name__)

MAX_LINES_PER_S: Final = 100
"""Changes that get a line of their own in each second of the clock. The others are counted, and logged at DEBUG level."""


class CommandLog:
    """Logs appended changes within the limit."""

    def __init__(self) -> None:
        self._second: int = 0
        self._line_count = 0
        self._left_out = 0
        self._last_offset = 0

    def note(self, command: Command, *, base_offset: int, last_offset: int, now_ms: int) -> None:
        """Log a command that was appended at these offsets, both inclusive."""
        self.settle(now_ms)
        self._line_count += 1
        is_left_out = self._line_count > MAX_LINES_PER_S
        level = logging.DEBUG if is_left_out else logging.INFO
        if is_left_out:
            self._left_out += 1
            self._last_offset = last_offset
        if logger.isEnabledFor(level):
            logger.log(
                level,
                "event=command command=%s %s base_offset=%d last_offset=%d",
                type(command).__name__,
                _subject(command),
                base_offset,
                last_offset,
            )

    def settle(self, now_ms: int) -> None:
        """Log how many lines a past second left out. Runs from time to time, and before each change."""
        second = now_ms // 1_000
        if second == self._second:
            return
        if self._left_out > 0:
            logger.info("event=commands_not_listed count=%d last_offset=%d", self._left_out, self._last_offset)
        self._second, self._line_count, self._left_out = second, 0, 0


def _subject(command: Command) -> str:
    """Return the subject of a command as `key=value`."""
    topic: str | None = getattr(command, "topic", None)
    broker_id: int | None = getattr(command, "broker_id", None)
    if topic is not None:
        return f"topic={topic}"
    if broker_id is not None:
        wanted = " want_shutdown=true" if isinstance(command, Heartbeat) and command.want_shutdown else ""
        return f"broker_id={broker_id}{wanted}"
    return "subject=cluster"
