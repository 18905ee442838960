# SPDX-License-Identifier: Apache-2.0
"""What goes wrong on the way with FAULTS=1: an executor of Spark and a broker are killed while they are at work.

Owns the gate and the killing. The gate makes sure that the kills hit the middle of the job, on machines of any speed: the first attempt
of each task stops after some of its records, tells which executor it runs on, and goes on when the executor was killed.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import psutil
import pyarrow as pa
from lograft.testing import Fault, ProcessCluster
from lograft.types import IngestDescription, IngestState

HELD_BATCHES = 12
"""Arrow batches that a task may pass before it waits at the gate."""
GATE_WAIT_S = 120.0
"""Seconds after which a task goes on although nobody opened the gate."""
CHECK_S = 0.05
OPEN = "open"


def hold(batches: Iterable[pa.RecordBatch], gate: Path) -> Iterator[pa.RecordBatch]:
    """Pass the batches of a task, and wait at the gate in the middle. Runs in a Python worker of an executor."""
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None, "this runs in a task"
    is_to_wait = context.attemptNumber() == 0
    for number, batch in enumerate(batches):
        if is_to_wait and number == HELD_BATCHES:
            is_to_wait = False
            _wait_at(gate, context.partitionId())
        yield batch
    if is_to_wait:
        _wait_at(gate, context.partitionId())


def _wait_at(gate: Path, task: int) -> None:
    # Worker, daemon of workers, executor.
    executor = psutil.Process(os.getppid()).ppid()
    # Whoever sees the file sees all of it.
    unseen = gate / f"new-{task}"
    unseen.write_text(str(executor))
    unseen.rename(gate / f"task-{task}")
    pause = threading.Event()
    end_s = time.monotonic() + GATE_WAIT_S
    while not (gate / OPEN).exists() and time.monotonic() < end_s:
        pause.wait(CHECK_S)


class Killer:
    """Kills an executor while tasks stage, and a broker after the first task has sealed. Its thread writes everything here.

    Args:
        cluster: the brokers.
        topic: the broker that leads this topic's partition 0 is killed.
        gate: directory of the gate.

    Attributes:
        told: what was done, one line each.
        fault: the dead broker; None: none was killed.
        has_killed_executor: True if an executor was killed.
    """

    def __init__(self, cluster: ProcessCluster, topic: str, gate: Path) -> None:
        self._cluster = cluster
        self._topic = topic
        self._gate = gate
        self._status: IngestDescription | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="killer", daemon=True)
        self.told: list[str] = []
        self.fault: Fault | None = None
        self.has_killed_executor = False

    def __enter__(self) -> Killer:
        self._gate.mkdir()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def see(self, status: IngestDescription) -> None:
        """Take a new status of the ingest."""
        self._status = status

    def _run(self) -> None:
        if self._until(lambda: self._staging() and bool(list(self._gate.glob("task-*")))):
            self._kill_executor()
        (self._gate / OPEN).touch()
        if self._until(lambda: self._status is not None and self._status.sealed_attempts > 0):
            self._kill_broker()

    def _kill_executor(self) -> None:
        task = min(self._gate.glob("task-*"))
        pid = int(task.read_text())
        name = " ".join(psutil.Process(pid).cmdline())
        # Only what this demo has started may die.
        if "CoarseGrainedExecutorBackend" not in name:
            self.told.append(f"process {pid} of {task.name} is no executor; nothing was killed")
            return
        os.kill(pid, signal.SIGKILL)
        self.has_killed_executor = True
        attempts = 0 if self._status is None else self._status.open_attempts
        self.told.append(f"executor with pid {pid} killed; attempts that were staging: {attempts}")

    def _kill_broker(self) -> None:
        status = self._status
        if status is None or status.state is not IngestState.OPEN:
            return
        node = self._cluster.leader_of(self._topic)
        pid = self._cluster.process_ids()[node]
        self.fault = self._cluster.kill(node)
        self.told.append(
            f"broker {node} with pid {pid} killed, the leader of partition 0; attempts that were sealed: {status.sealed_attempts}"
        )

    def _staging(self) -> bool:
        return self._status is not None and self._status.open_attempts > 0

    def _until(self, condition: Callable[[], bool]) -> bool:
        """Wait for a condition. Return False if the ingest has ended before."""
        while not condition():
            if self._ended.wait(CHECK_S):
                return False
        return True
