# SPDX-License-Identifier: Apache-2.0
"""The crowd of `make bench-peers`: 60 processes send one record each at the same moment, again and again, beside 60 idle readers."""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace

from benchmarks.peers_crowd_member import READY, Member
from benchmarks.peers_sides import System
from benchmarks.peers_task import Meter, Sample, Task

PROCESSES = 60
CROWD_TIMEOUT_S = 600.0
"""A crowd that takes longer hangs, and is killed."""
READER = "crowd reader"


def measure_crowd(system: System, writing: Task, quiet_topic: str) -> Sample:
    """Return the latencies of all writers, and the CPU times of writers and servers while they send.

    Raises:
        RuntimeError: a process ended before it was ready or done.
    """
    reading = replace(writing, do=READER, topic=quiet_topic)
    with ExitStack() as stack:
        crowd = _Crowd(stack, system)
        crowd.start(reading)
        writers = crowd.start(writing)
        with Meter(writing.pids) as meter:
            for writer in writers:
                assert writer.stdin is not None
                # Each begins when it hears it; all are told without a pause.
                writer.stdin.write("\n")
                writer.stdin.flush()
            members = [Member(**json.loads(_line(writer))) for writer in writers]
    latencies_ms = [each for member in members for each in member.latencies_ms]
    client_s = sum(member.client_s for member in members)
    return replace(meter.sample(len(latencies_ms), latencies_ms), client_s=client_s)


class _Crowd:
    """The processes, all of which end with the stack, or after `CROWD_TIMEOUT_S`."""

    def __init__(self, stack: ExitStack, system: System) -> None:
        self._stack, self._system = stack, system
        self._processes: list[subprocess.Popen[str]] = []
        watch = threading.Timer(CROWD_TIMEOUT_S, self._kill)
        watch.start()
        stack.callback(watch.cancel)

    def start(self, task: Task) -> Sequence[subprocess.Popen[str]]:
        """Start a process for each member, and wait until all are ready."""
        started: list[subprocess.Popen[str]] = []
        for _ in range(PROCESSES):
            process = self._stack.enter_context(self._system.client.start(task))
            # Callbacks run in reverse order, so each process is killed before it is waited for.
            self._stack.callback(process.kill)
            self._processes.append(process)
            started.append(process)
        for process in started:
            if (said := _line(process)) != READY:
                raise RuntimeError(f"process {process.pid} of the crowd said {said!r} before it was ready")
        return started

    def _kill(self) -> None:
        for process in self._processes:
            process.kill()


def _line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    line = process.stdout.readline().strip()
    if not line:
        raise RuntimeError(f"process {process.pid} of the crowd ended, or was killed as it hung")
    return line
