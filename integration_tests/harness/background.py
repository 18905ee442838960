# SPDX-License-Identifier: Apache-2.0
"""Work in a thread of its own until it is asked to stop; what breaks it is kept, and raised where it is waited for."""

from __future__ import annotations

import threading
from collections.abc import Callable


class Background:
    """One thread. `broken` is written by it, and by callbacks of its work; it stays.

    Args:
        name: of the thread, for messages.
        work: what it does; it is to return soon after `stopping` is set.
        join_timeout_s: seconds from the order to stop to the end.

    Attributes:
        stopping: set by `ask_to_stop`.
        broken: what ended the work, if something did.
    """

    def __init__(self, name: str, work: Callable[[], None], *, join_timeout_s: float) -> None:
        self.name = name
        self.stopping = threading.Event()
        self.broken: BaseException | None = None
        self._work = work
        self._join_timeout_s = join_timeout_s
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    @property
    def is_alive(self) -> bool:
        """True from the start to the end of the work."""
        return self._thread.is_alive()

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def ask_to_stop(self) -> None:
        """Have the work end soon."""
        self.stopping.set()

    def join(self) -> None:
        """Ask to stop and wait for the end.

        Raises:
            TimeoutError: it did not end in time.
            RuntimeError: the work broke; the cause says how.
        """
        self.ask_to_stop()
        self._thread.join(self._join_timeout_s)
        if self._thread.is_alive():
            raise TimeoutError(f"{self.name} did not end within {self._join_timeout_s} s")
        self.check()

    def check(self) -> None:
        """Raise what broke the work, if something did."""
        if self.broken is not None:
            raise RuntimeError(f"{self.name} broke") from self.broken

    def _run(self) -> None:
        try:
            self._work()
        except BaseException as error:
            self.broken = error


class Repeated(Background):
    """Does one step at intervals.

    Args:
        name: of the thread.
        step: what is done again and again.
        interval_s: seconds between two steps, and before the first.
        join_timeout_s: seconds that the last step may take.
    """

    def __init__(self, name: str, step: Callable[[], None], interval_s: float, *, join_timeout_s: float = 30.0) -> None:
        super().__init__(name, self._repeat, join_timeout_s=join_timeout_s)
        self._step = step
        self._interval_s = interval_s

    def _repeat(self) -> None:
        while not self.stopping.wait(self._interval_s):
            self._step()
