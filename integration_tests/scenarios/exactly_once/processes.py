# SPDX-License-Identifier: Apache-2.0
"""A program under test in its own process: what it says, line by line, and its end with everything that it has started."""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Final

import psutil

from integration_tests.harness.wait import wait_for

READ_BYTES: Final = 65_536
END_TIMEOUT_S: Final = 60.0
LOG_TAIL_BYTES: Final = 4_000

READY: Final = "@ready"
DONE: Final = "@done"
FAILED: Final = "@failed"
"""How the lines begin that a driver says: once it can work, and after each job."""

INGEST: Final = "ingest"
READ: Final = "read"
"""Kinds of jobs."""

ERROR_CHARACTERS_MAX: Final = 6_000
"""Characters of an error that a driver says."""


class Program:
    """A module that runs in a process. Its standard output is for the proof, its standard error is a log. One thread uses it.

    Args:
        module: the module to run.
        arguments: its arguments.
        log_path: where its standard error goes; several programs may share it, one after the other.
        environment: its environment; None: that of this process.

    Attributes:
        words: the lines that were read so far.
    """

    def __init__(
        self,
        module: str,
        arguments: Sequence[str],
        log_path: Path,
        *,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.words: list[str] = []
        self.log_path = log_path
        self._rest = b""
        with log_path.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", module, *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=environment,
            )

    @property
    def is_running(self) -> bool:
        """True while the process runs."""
        return self.process.poll() is None

    def tell(self, line: str) -> None:
        """Write a line to its standard input."""
        _stream(self.process.stdin).write(line.encode() + b"\n")
        _stream(self.process.stdin).flush()

    def end_input(self) -> None:
        """Close its standard input, which ends a program that reads to the end."""
        with suppress(BrokenPipeError):
            _stream(self.process.stdin).close()

    def hear(self, timeout_s: float) -> str | None:
        """Return the next line that it says; None if none comes in time, or it has ended and said everything."""
        deadline_s = time.monotonic() + timeout_s
        output = _stream(self.process.stdout)
        if output.closed:
            return None
        with selectors.DefaultSelector() as selector:
            selector.register(output, selectors.EVENT_READ)
            while b"\n" not in self._rest:
                if not selector.select(max(0.0, deadline_s - time.monotonic())):
                    return None
                data = os.read(output.fileno(), READ_BYTES)
                if not data:
                    return None
                self._rest += data
        line, self._rest = self._rest.split(b"\n", 1)
        self.words.append(line.decode(errors="replace"))
        return self.words[-1]

    def hear_rest(self) -> None:
        """Read everything that it has said. It must have ended."""
        while self.hear(END_TIMEOUT_S) is not None:
            pass

    def tree(self) -> list[psutil.Process]:
        """Return the process and everything below it."""
        try:
            root = psutil.Process(self.process.pid)
            return [root, *root.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []

    def stop_all(self) -> None:
        """Stop (SIGSTOP) the process and everything below it, and wait until they stand: nothing of it moves any more."""
        tree = self.tree()
        for each in tree:
            with suppress(psutil.NoSuchProcess):
                each.suspend()
        wait_for(lambda: all(map(_stands, tree)), timeout_s=END_TIMEOUT_S, what="processes to stand still")

    def go_on(self) -> None:
        """Let the process and everything below it go on (SIGCONT)."""
        for each in self.tree():
            with suppress(psutil.NoSuchProcess):
                each.resume()

    def kill(self) -> None:
        """Kill the process and everything below it (SIGKILL), unless it has ended, and read what it has said."""
        tree = self.tree()
        for each in tree:
            with suppress(psutil.NoSuchProcess):
                each.kill()
        self.process.wait(END_TIMEOUT_S)
        # Not the process itself: whoever waits for a child first has its status.
        psutil.wait_procs([each for each in tree if each.pid != self.process.pid], timeout=END_TIMEOUT_S)
        self.hear_rest()
        self.end_input()
        _stream(self.process.stdout).close()

    def wait(self, timeout_s: float) -> int:
        """Wait for its end, and return the exit status (negative: the signal that ended it).

        Raises:
            TimeoutError: it did not end in time. It is killed then.
        """
        deadline_s = time.monotonic() + timeout_s
        while self.hear(max(0.0, deadline_s - time.monotonic())) is not None:
            pass
        try:
            return self.process.wait(max(0.0, deadline_s - time.monotonic()))
        except subprocess.TimeoutExpired:
            tail = self.log_tail()
            self.kill()
            raise TimeoutError(f"a program did not end within {timeout_s:.0f} s: {self.words[-3:]} {tail}") from None

    def ask_to_stop(self) -> None:
        """Ask for a clean end (SIGTERM)."""
        if self.is_running:
            self.process.send_signal(signal.SIGTERM)

    def log_tail(self) -> str:
        """Return the end of its log."""
        return self.log_path.read_bytes()[-LOG_TAIL_BYTES:].decode(errors="replace")


def _stands(process: psutil.Process) -> bool:
    try:
        return process.status() in (psutil.STATUS_STOPPED, psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


def say(line: str) -> None:
    """Tell the proof something: one line, at once, so that a kill cannot keep it back."""
    os.write(sys.stdout.fileno(), line.encode() + b"\n")


def _stream(stream: IO[bytes] | None) -> IO[bytes]:
    assert stream is not None, "standard input and output are pipes"
    return stream
