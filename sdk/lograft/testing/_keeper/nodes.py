# SPDX-License-Identifier: Apache-2.0
"""The server processes of a cluster. Each is a broker and a voter of the quorum: `python -m brokerd run --combined`."""

from __future__ import annotations

import ctypes
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

IS_LINUX: Final = sys.platform == "linux"
LOOPBACK: Final = "127.0.0.1"
FIRST_PORT, LAST_PORT = 20_000, 30_000
"""Ports to choose from, inclusive: below those that the system gives to clients."""

PORT_ATTEMPTS_MAX: Final = 200
KILL_WAIT_S: Final = 20.0
"""Seconds that a killed process may take to be gone."""

PAUSE_WAIT_S: Final = 20.0
"""Seconds that a process may take to stop: the system stops its threads one by one, and one that waits for the disk last."""

PAUSE_LOOK_S: Final = 0.002
"""Seconds between two looks whether it has stopped."""

_PR_SET_PDEATHSIG: Final = 1
"""prctl(2): the signal that a process gets when its parent ends."""


class Node:
    """One server. Its keeper is the only one that starts, signals and ends it.

    Args:
        node_id: id of the node.
        directory: data directory.
        log_path: file for what all its runs print.
        command: arguments of Python.
    """

    def __init__(self, node_id: int, directory: Path, log_path: Path, command: Sequence[str]) -> None:
        self.node_id = node_id
        self.directory = directory
        self._log_path = log_path
        self._command = [sys.executable, *command]
        self._more: list[str] = []
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """Process id; None while it does not run."""
        return None if self._process is None or self._process.poll() is not None else self._process.pid

    @property
    def status(self) -> int | None:
        """Exit status of the last run; None while it runs or before the first."""
        return None if self._process is None else self._process.poll()

    def start(self, more: Sequence[str] | None = None) -> None:
        """Start the process, unless it runs.

        Args:
            more: arguments that replace those of the last start with any; None: as before. The last of an option counts.
        """
        if self.pid is not None:
            return
        if more is not None:
            self._more = list(more)
        with self._log_path.open("ab") as log:
            self._process = subprocess.Popen(
                [*self._command, *self._more],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=server_environment(os.environ),
                start_new_session=True,
                preexec_fn=_end_with_parent(),
            )

    def signal(self, number: signal.Signals) -> None:
        """Send a signal, if the process runs."""
        if self._process is not None and self.pid is not None:
            self._process.send_signal(number)

    def pause(self) -> None:
        """Stop the process (SIGSTOP), if it runs, and return when all its threads stand still.

        Raises:
            OSError: it has not stopped in time.
        """
        pid = self.pid
        if pid is None:
            return
        self.signal(signal.SIGSTOP)
        deadline_s, never = time.monotonic() + PAUSE_WAIT_S, threading.Event()
        # WNOWAIT: how the process ends is for `Popen` to collect.
        while os.waitid(os.P_PID, pid, os.WSTOPPED | os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            if time.monotonic() >= deadline_s:
                raise OSError(f"process {pid} has not stopped within {PAUSE_WAIT_S:g} s")
            never.wait(PAUSE_LOOK_S)

    def kill(self) -> None:
        """Kill the process and wait for its end."""
        self.signal(signal.SIGKILL)
        if self._process is not None:
            self._process.wait(KILL_WAIT_S)


def server_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment without the variables that are options of the servers."""
    return {name: value for name, value in environment.items() if not name.startswith("LOGRAFT_")}


def own_address() -> str:
    """Return a loopback address for the servers of one cluster, which hardly any other process uses (Linux has 16 million)."""
    return f"127.{random.randint(64, 254)}.{random.randint(1, 254)}.{random.randint(1, 254)}"


def free_port() -> int:
    """Return a port of the loopback address at which nothing listens now. Only for systems without `own_address`."""
    for _ in range(PORT_ATTEMPTS_MAX):
        port = random.randint(FIRST_PORT, LAST_PORT)
        with socket.socket() as probe:
            try:
                probe.bind((LOOPBACK, port))
            except OSError:
                continue
        return port
    raise OSError(f"no free port at {LOOPBACK} after {PORT_ATTEMPTS_MAX} attempts")


def _end_with_parent() -> Callable[[], None] | None:
    """Return what makes a child end with the keeper. The keeper has one thread, so code may run between fork and exec."""
    if not IS_LINUX:
        return None
    prctl = ctypes.CDLL(None).prctl

    def ask() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)

    return ask
