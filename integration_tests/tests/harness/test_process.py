# SPDX-License-Identifier: Apache-2.0
"""Processes of the harness: logs over restarts, exit statuses, a process that does not end, and free ports."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from integration_tests.harness.cluster import stop_in_order
from integration_tests.harness.process import Process
from integration_tests.harness.wait import wait_for
from metaquorum.testing.ports import free_port

WAIT_S = 300.0
BLOCK = "import signal; signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM}); print('ready', flush=True); "
WAITS = BLOCK + "signal.sigwait({signal.SIGTERM}); raise SystemExit(3)"
DEAF = BLOCK + "signal.pause()"


def started(path: Path, program: str, *, stop_timeout_s: float = WAIT_S) -> Process:
    """Start a program with its own log, and wait until it reports that it is ready."""
    log_path = path / f"{len(list(path.iterdir()))}.log"
    process = Process("program", ["-c", program], log_path, stop_timeout_s=stop_timeout_s)
    process.start()
    wait_for(lambda: "ready" in process.log_text(), timeout_s=WAIT_S, what="the program")
    return process


def test_log_goes_on_over_restarts(tmp_path: Path) -> None:
    """The same command runs twice, with its own environment. Both outputs are in one log."""
    environment = {**os.environ, "WORD": "hello"}
    program = "import os; print(os.environ['WORD'])"
    process = Process("program", ["-c", program], tmp_path / "log", environment=environment)
    assert process.log_text() == process.log_tail() == ""
    for _ in range(2):
        process.start()
        assert process.wait(WAIT_S) == 0
    assert process.log_text() == "hello\nhello\n"


def test_orderly_stop_gives_the_exit_status(tmp_path: Path) -> None:
    """SIGTERM reaches the program, and its exit status is returned; also for several programs."""
    process = started(tmp_path, WAITS)
    assert process.running
    assert process.rss_bytes > 0
    assert process.stop() == 3
    assert not process.running
    (problem,) = stop_in_order([started(tmp_path, WAITS)])
    assert problem.startswith("program ended with 3: ready")


def test_program_that_does_not_stop_is_killed(tmp_path: Path) -> None:
    """The stop raises with the end of the log, and leaves no process."""
    process = started(tmp_path, DEAF, stop_timeout_s=0.05)
    with pytest.raises(TimeoutError, match=r"program did not end within 0\.05 s: ready"):
        process.stop()
    assert not process.running


def test_paused_program_is_killed(tmp_path: Path) -> None:
    """SIGKILL needs no SIGCONT before it."""
    process = started(tmp_path, DEAF)
    process.pause()
    process.kill()
    assert not process.running


def test_ports_are_free_on_every_host_and_given_once() -> None:
    """The ports can be bound on all addresses, and no two calls return the same."""
    hosts = ("127.0.0.1", "127.0.0.2")
    ports = [free_port(*hosts) for _ in range(20)]
    assert len(set(ports)) == len(ports)
    for host in hosts:
        with socket.socket() as probe:
            probe.bind((host, ports[0]))
