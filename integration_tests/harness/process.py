# SPDX-License-Identifier: Apache-2.0
"""One real process: start, kill, pause, stop, restart with the same command, its memory and its log."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil

STOP_TIMEOUT_S = 20.0
LOG_TAIL_BYTES = 4_000


class Process:
    """A Python program that runs as `python <arguments>`. All its runs write to one log file.

    Args:
        name: name for messages.
        arguments: arguments of Python, such as `-m brokerd run ...`.
        log_path: log file, which may not exist yet.
        prefix: a command that runs another command in its own process, such as `ip netns exec`.
        environment: environment of the process; None: that of this process.
        stop_timeout_s: maximum seconds of a clean shutdown.
    """

    def __init__(
        self,
        name: str,
        arguments: Sequence[str],
        log_path: Path,
        *,
        prefix: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        stop_timeout_s: float = STOP_TIMEOUT_S,
    ) -> None:
        self.name = name
        self.arguments = list(arguments)
        self.log_path = log_path
        self.prefix = tuple(prefix)
        self.stop_timeout_s = stop_timeout_s
        self._environment = environment
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def running(self) -> bool:
        """True while the process runs."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """Process id. The process must have been started."""
        return self._started().pid

    @property
    def rss_bytes(self) -> int:
        """Resident memory now, in bytes. The process must run."""
        return psutil.Process(self.pid).memory_info().rss

    def start(self) -> None:
        """Start the process, which must not be running."""
        assert not self.running, f"{self.name} runs already"
        with self.log_path.open("ab") as log:
            command = [*self.prefix, sys.executable, *self.arguments]
            self._process = subprocess.Popen(command, stdout=log, stderr=log, env=self._environment)

    def wait(self, timeout_s: float) -> int:
        """Wait until the process ends by itself, and return the exit status.

        Raises:
            TimeoutError: it did not end in time.
        """
        try:
            return self._started().wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise TimeoutError(f"{self.name} did not end within {timeout_s} s: {self.log_tail()}") from None

    def kill(self) -> None:
        """Kill the process with SIGKILL and wait for its end."""
        self._signal(signal.SIGKILL)
        self.wait(STOP_TIMEOUT_S)

    def ask_to_stop(self) -> None:
        """Ask for a clean shutdown (SIGTERM); `wait` waits for it."""
        self._signal(signal.SIGTERM)

    def stop(self) -> int:
        """Shut the process down cleanly and return the exit status.

        Raises:
            TimeoutError: the process did not stop in time. It is then killed.
        """
        self.ask_to_stop()
        try:
            return self.wait(self.stop_timeout_s)
        except TimeoutError:
            self.kill()
            raise

    def pause(self) -> None:
        """Pause the process (SIGSTOP)."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Resume the process (SIGCONT)."""
        self._signal(signal.SIGCONT)

    def log_text(self) -> str:
        """Return the whole log."""
        return self.log_path.read_text(errors="replace") if self.log_path.exists() else ""

    def log_tail(self) -> str:
        """Return the end of the log."""
        data = self.log_path.read_bytes() if self.log_path.exists() else b""
        return data[-LOG_TAIL_BYTES:].decode(errors="replace")

    def _started(self) -> subprocess.Popen[bytes]:
        assert self._process is not None, f"{self.name} was never started"
        return self._process

    def _signal(self, number: signal.Signals) -> None:
        if self.running:
            self._started().send_signal(number)
