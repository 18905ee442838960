# SPDX-License-Identifier: Apache-2.0
"""Work in its own thread until it is asked to stop. An error that ends the work is kept, and raised by `join` and `check`."""

from __future__ import annotations

import threading
from collections.abc import Callable


class Background:
    """One thread. The thread and callbacks of its work write `broken`; it is never cleared.

    Args:
        name: name of the thread, for messages.
        work: the work. It must return soon after `stopping` is set.
        join_timeout_s: maximum seconds from the request to stop until the end.

    Attributes:
        stopping: set by `ask_to_stop`.
        broken: the error that ended the work, if any.
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
        """Start the work."""
        self._thread.start()

    def ask_to_stop(self) -> None:
        """Ask the work to end soon."""
        self.stopping.set()

    def join(self) -> None:
        """Ask the work to stop and wait for its end.

        Raises:
            TimeoutError: it did not end in time.
            RuntimeError: an error ended the work; it is the cause.
        """
        self.ask_to_stop()
        self._thread.join(self._join_timeout_s)
        if self._thread.is_alive():
            raise TimeoutError(f"{self.name} did not end within {self._join_timeout_s} s")
        self.check()

    def check(self) -> None:
        """Raise the error that ended the work, if any."""
        if self.broken is not None:
            raise RuntimeError(f"{self.name} broke") from self.broken

    def _run(self) -> None:
        try:
            self._work()
        except BaseException as error:
            self.broken = error


class Repeated(Background):
    """Repeats one step at intervals.

    Args:
        name: name of the thread.
        step: the step.
        interval_s: seconds between two steps, and before the first.
        join_timeout_s: maximum seconds of the last step.
    """

    def __init__(self, name: str, step: Callable[[], None], interval_s: float, *, join_timeout_s: float = 30.0) -> None:
        super().__init__(name, self._repeat, join_timeout_s=join_timeout_s)
        self._step = step
        self._interval_s = interval_s

    def _repeat(self) -> None:
        while not self.stopping.wait(self._interval_s):
            self._step()
