# SPDX-License-Identifier: Apache-2.0
"""Whether this broker's metadata can be trusted to be current: it hears from a controller, or has not for a whole session.

Owns the state and tells those who follow it. A broker that is cut off serves its partitions as long as it can, but must not be
the one from which clients learn who leads, for it would never hear that others do; nor where a partition ends, for others may
lead that by now and have gone on.
"""

from __future__ import annotations

from collections.abc import Callable


class ControllerTouch:
    """See the module docstring.

    Attributes:
        is_lost: True while no controller has answered for a whole session.
    """

    def __init__(self) -> None:
        self.is_lost = False
        self._callbacks: dict[Callable[[], None], None] = {}
        self._look: Callable[[], bool] | None = None

    @property
    def is_lost_now(self) -> bool:
        """As `is_lost`, but as of this moment: a process that was stopped has not looked at the time since."""
        return self.is_lost or (self._look is not None and self._look())

    def look_with(self, look: Callable[[], bool]) -> None:
        """Learn how to find out at any moment whether the touch is lost."""
        self._look = look

    def on_lost(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call `callback` when the touch is lost; returns the way to stop that. It must not block."""
        self._callbacks[callback] = None
        return lambda: self._callbacks.pop(callback, None)

    def note(self, *, is_lost: bool) -> bool:
        """Learn how it is now; tell whether that is news."""
        if is_lost is self.is_lost:
            return False
        self.is_lost = is_lost
        if is_lost:
            for callback in tuple(self._callbacks):
                callback()
        return True
