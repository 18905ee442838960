# SPDX-License-Identifier: Apache-2.0
"""Server processes of the benchmarks: started for a run, measured by their CPU time, ended with it."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import psutil

READY_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 20.0


class ServerProcess:
    """A server that prints a line with its port at the end when it is ready.

    Args:
        arguments: arguments of Python.
        log_path: file for standard error.
        python: the interpreter; None: that of this process.
        environment: environment of the server; None: that of this process.
        directory: its working directory; None: that of this process.
    """

    def __init__(
        self,
        arguments: list[str],
        log_path: Path,
        *,
        python: Path | None = None,
        environment: Mapping[str, str] | None = None,
        directory: Path | None = None,
    ) -> None:
        self._log = log_path.open("wb")
        self._process = subprocess.Popen(
            [str(python or sys.executable), *arguments],
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            env=environment,
            cwd=directory,
        )
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if "ready" in line:
                self.port = int(line.rsplit(":", 1)[-1].split()[-1])
                break
        else:
            raise RuntimeError(f"{arguments} did not start; see {log_path}")
        self._usage = psutil.Process(self._process.pid)

    @property
    def address(self) -> str:
        """Loopback address of the server."""
        return f"127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    def cpu_s(self) -> float:
        """CPU seconds (user and system) that the process has used."""
        times = self._usage.cpu_times()
        return times.user + times.system

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Stop the server (SIGSTOP) while the block runs."""
        self._process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._process.send_signal(signal.SIGCONT)

    def stop(self) -> None:
        """Ask the process to stop, and kill it if it does not."""
        self._process.terminate()
        try:
            self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()


@contextmanager
def ceiling_server(directory: Path) -> Iterator[ServerProcess]:
    """Run the bare server on a fresh file."""
    server = ServerProcess(
        ["-m", "benchmarks.ceiling_server", "--file", str(directory / "ceiling.log")], directory / "ceiling.err"
    )
    try:
        yield server
    finally:
        server.stop()


@contextmanager
def lograft_server(directory: Path) -> Iterator[ServerProcess]:
    """Run `lograft dev` on a fresh directory."""
    server = ServerProcess(
        ["-m", "brokerd", "dev", "--port", "0", "--data-dir", str(directory / "lograft")], directory / "lograft.err"
    )
    try:
        yield server
    finally:
        server.stop()
