# SPDX-License-Identifier: Apache-2.0
"""One real server process: start, kill, pause, restart with the same arguments, and its log."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

STOP_TIMEOUT_S = 20.0
LOG_TAIL_BYTES = 4_000


class Process:
    """A server of this project, run as `python -m <arguments>`; its output goes to one log file over all restarts.

    `prefix` is a command that runs another one in its own process, as `ip netns exec` does.
    """

    def __init__(self, name: str, arguments: list[str], log_path: Path, *, prefix: Sequence[str] = ()) -> None:
        self.name = name
        self.arguments = arguments
        self.log_path = log_path
        self.prefix = tuple(prefix)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def running(self) -> bool:
        """True while the process lives."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """Process id; the process must have been started."""
        assert self._process is not None, f"{self.name} was never started"
        return self._process.pid

    def start(self) -> None:
        """Start the process; it must not be running."""
        assert not self.running, f"{self.name} runs already"
        with self.log_path.open("ab") as log:
            command = [*self.prefix, sys.executable, "-m", *self.arguments]
            self._process = subprocess.Popen(command, stdout=log, stderr=log)

    def kill(self) -> None:
        """Kill with SIGKILL and wait for the end."""
        self._signal(signal.SIGKILL)
        assert self._process is not None
        self._process.wait(STOP_TIMEOUT_S)

    def stop(self) -> int:
        """Ask for an orderly stop; return the exit status.

        Raises:
            TimeoutError: the process did not stop in time; it is then killed.
        """
        self._signal(signal.SIGTERM)
        assert self._process is not None
        try:
            return self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.kill()
            raise TimeoutError(f"{self.name} did not stop within {STOP_TIMEOUT_S} s: {self.log_tail()}") from None

    def pause(self) -> None:
        """Stop the process's time (SIGSTOP)."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let the process go on (SIGCONT)."""
        self._signal(signal.SIGCONT)

    def log_tail(self) -> str:
        """Return the end of the log."""
        data = self.log_path.read_bytes() if self.log_path.exists() else b""
        return data[-LOG_TAIL_BYTES:].decode(errors="replace")

    def _signal(self, number: signal.Signals) -> None:
        if self.running:
            assert self._process is not None
            self._process.send_signal(number)
