# SPDX-License-Identifier: Apache-2.0
"""A development cluster in a separate process that tests kill and restart, and addresses without a listener."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from types import TracebackType

from metaquorum.testing.ports import free_port

START_TIMEOUT_S = 30
"""Seconds in which a process must begin to serve."""


def unused_address() -> str:
    """Return a loopback address without a listener."""
    return f"127.0.0.1:{free_port()}"


class DevProcess:
    """`brokerd dev` on a fixed port and directory. Tests may call start() and kill() any number of times."""

    def __init__(self, data_directory: Path) -> None:
        self._data_directory = data_directory
        self._port = free_port()
        self._process: subprocess.Popen[str] | None = None

    @property
    def bootstrap(self) -> str:
        """Address for clients."""
        return f"127.0.0.1:{self._port}"

    def start(self) -> None:
        """Start the process and wait until it serves."""
        command = [sys.executable, "-m", "brokerd", "dev"]
        self._process = subprocess.Popen(
            [*command, "--data-dir", str(self._data_directory), "--port", str(self._port)],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if "ready on" in line:
                return
        raise AssertionError(f"the cluster ended with {self._process.wait()} before it served")

    def kill(self) -> None:
        """Kill -9."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """Ask the process to shut down cleanly, and wait for it."""
        self._end(signal.SIGTERM)

    def _end(self, number: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(number)
            process.wait(START_TIMEOUT_S)
            if process.stdout is not None:
                process.stdout.close()

    def __enter__(self) -> DevProcess:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
