# SPDX-License-Identifier: Apache-2.0
"""Drivers as processes of their own, with Spark or the SDK alone, and a standalone Spark cluster on loopback."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import psutil
from lograft.spark import ensure_java

from integration_tests.harness.wait import wait_for
from integration_tests.scenarios.exactly_once.processes import DONE, END_TIMEOUT_S, FAILED, READY, Program
from integration_tests.scenarios.exactly_once.spark_program import DIRECTORY
from metaquorum.testing.ports import LOOPBACK, free_port

SPARK: Final = "integration_tests.scenarios.exactly_once.spark_program"
SDK: Final = "integration_tests.scenarios.exactly_once.ingest_program"
ROOT: Final = Path(__file__).resolve().parents[3]
START_TIMEOUT_S: Final = 600.0
WORKER_HOSTS: Final = ("127.0.0.2", "127.0.0.3", "127.0.0.4", "127.0.0.5", "127.0.0.6")
WORKERS: Final = 2
"""Workers of a row that does not need more."""
WORKER_CORES: Final = 4
APPLICATION_CORES: Final = 4
"""Cores of an application, spread over the workers."""
EXECUTOR: Final = "CoarseGrainedExecutorBackend"
COMMIT_WORKER: Final = "commit_data_source_write"
TASK_ATTEMPTS: Final = 4

COMMON: Final = {
    # Each piece of a task comes by itself, so that the sink has some of them when a task waits.
    "spark.sql.execution.arrow.maxRecordsPerBatch": "250",
    # A commit has a new process, which is killed in some rows.
    "spark.python.worker.reuse": "false",
}


@dataclass(frozen=True, slots=True)
class Answer:
    """What a driver says about a job.

    Attributes:
        error: why the job has failed; None: it has not.
        found: what it has found, as JSON; empty: a job that finds nothing.
    """

    error: str | None
    found: str = ""


class Driver:
    """A driver with a session. One thread uses it.

    Args:
        directory: directory for its files; its log is beside it.
        name: name of its log.
        settings: settings of Spark.
        module: the program.
    """

    def __init__(self, directory: Path, name: str, settings: Mapping[str, str], *, module: str = SPARK) -> None:
        self.name = name
        self._module = module
        self._own = {**COMMON, **settings, DIRECTORY: str(directory / name)}
        self._log_path = directory / f"{name}.log"
        self._program: Program | None = None
        self._jvm: psutil.Process | None = None

    @property
    def program(self) -> Program:
        """The process."""
        assert self._program is not None, f"driver {self.name} was never started"
        return self._program

    @property
    def is_running(self) -> bool:
        """True while it runs."""
        return self._program is not None and self._program.is_running

    def start(self) -> None:
        """Start it, unless it runs, and wait until its session is ready."""
        if self.is_running:
            return
        self._program = Program(self._module, [json.dumps(self._own)], self._log_path)
        if self._hear(START_TIMEOUT_S, READY) is None:
            tail = self._program.log_tail()
            self.kill()
            raise TimeoutError(f"driver {self.name} was not ready within {START_TIMEOUT_S:.0f} s: {tail}")
        self._jvm = next((each for each in self._program.tree() if each.name() == "java"), None)

    def submit(self, job: Mapping[str, Any]) -> None:
        """Begin a job."""
        self.program.tell(json.dumps(job))

    def answer(self, timeout_s: float) -> Answer | None:
        """Wait for the end of a job; None: it has not ended in time, or the driver has."""
        line = self._hear(timeout_s, DONE, FAILED)
        if line is None:
            return None
        if line.startswith(FAILED):
            return Answer(json.loads(line.removeprefix(FAILED)))
        return Answer(None, line.removeprefix(DONE).strip())

    def stop_all(self) -> None:
        """Stop (SIGSTOP) the driver, at once what carries out its jobs, so that nothing of it moves."""
        self.program.process.send_signal(signal.SIGSTOP)
        if self._jvm is not None:
            self._jvm.suspend()
        self.program.stop_all()

    def go_on(self) -> None:
        """Let it go on (SIGCONT)."""
        self.program.go_on()

    def kill_commit(self) -> int:
        """Kill the processes that carry out the commit of a job, and return their number."""
        killed = 0
        for each in self.program.tree():
            with suppress(psutil.NoSuchProcess):
                if any(COMMIT_WORKER in word for word in each.cmdline()):
                    each.kill()
                    killed += 1
        return killed

    def kill(self) -> None:
        """Kill it with everything that it has started."""
        if self._program is not None:
            self._program.kill()

    def close(self) -> None:
        """End it cleanly, or kill it."""
        if self.is_running:
            self.program.end_input()
            with suppress(TimeoutError):
                self.program.wait(END_TIMEOUT_S)
        self.kill()

    def _hear(self, timeout_s: float, *beginnings: str) -> str | None:
        """Return the next line that begins so; whatever else its JVM prints is passed over."""
        deadline_s = time.monotonic() + timeout_s
        while True:
            line = self.program.hear(max(0.0, deadline_s - time.monotonic()))
            if line is None or line.startswith(beginnings):
                return line


def local_driver(directory: Path, name: str, *, tasks: int) -> Driver:
    """Return a driver whose tasks run in its own JVM, each up to four times."""
    return Driver(directory, name, {"spark.master": f"local[{tasks},{TASK_ATTEMPTS}]"})


def sdk_driver(directory: Path, name: str) -> Driver:
    """Return a driver without Spark."""
    return Driver(directory, name, {}, module=SDK)


class Standalone:
    """A master and workers of Spark, each worker at its own loopback address.

    Args:
        directory: directory for logs and the files of the workers.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._worker_count = 0
        self._environment: dict[str, str] = {}
        self._processes: list[subprocess.Popen[bytes]] = []
        self.master = ""

    def start(self) -> None:
        """Start the master."""
        import pyspark

        ensure_java()
        home = Path(pyspark.__file__).parent
        self._environment = {
            **os.environ,
            "SPARK_HOME": str(home),
            "SPARK_LOCAL_DIRS": str(self._directory / "spark"),
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_NO_DAEMONIZE": "1",
        }
        port = free_port()
        self.master = f"spark://{LOOPBACK}:{port}"
        master = ["master.Master", "--host", LOOPBACK, "--port", str(port), "--webui-port", str(free_port())]
        self._run(master, self._directory / "spark-master.log")

    def start_workers(self, count: int) -> None:
        """Start workers until there are so many, and wait until they are registered."""
        logs: list[Path] = []
        for host in WORKER_HOSTS[self._worker_count : count]:
            logs.append(self._directory / f"spark-worker-{host}.log")
            worker = ["worker.Worker", "--host", host, "--cores", str(WORKER_CORES), "--memory", "2g"]
            worker += ["--webui-port", str(free_port(host)), "--work-dir", str(self._directory / f"work-{host}")]
            self._run([*worker, self.master], logs[-1])
        self._worker_count = max(self._worker_count, count)
        wait_for(
            lambda: all("Successfully registered with master" in each.read_text(errors="replace") for each in logs),
            timeout_s=START_TIMEOUT_S,
            what="workers of Spark",
            interval_s=0.2,
        )

    def driver(self, name: str, settings: Mapping[str, str] | None = None) -> Driver:
        """Return a driver whose tasks run in executors of the workers."""
        path = os.pathsep.join((str(ROOT), str(ROOT / "sdk")))
        return Driver(
            self._directory,
            name,
            {
                "spark.master": self.master,
                "spark.cores.max": str(APPLICATION_CORES),
                "spark.executor.memory": "512m",
                "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
                "spark.executorEnv.PYTHONPATH": path,
                **(settings or {}),
            },
        )

    def stop(self) -> None:
        """End the servers with everything that they have started."""
        for process in self._processes:
            with suppress(psutil.NoSuchProcess):
                tree = [*psutil.Process(process.pid).children(recursive=True), psutil.Process(process.pid)]
                for each in tree:
                    with suppress(psutil.NoSuchProcess):
                        each.kill()
            process.wait(END_TIMEOUT_S)
        self._processes.clear()
        self._worker_count = 0

    def _run(self, words: list[str], log_path: Path) -> None:
        home = Path(self._environment["SPARK_HOME"])
        command = [str(home / "bin" / "spark-class"), f"org.apache.spark.deploy.{words[0]}", *words[1:]]
        with log_path.open("ab") as log:
            self._processes.append(subprocess.Popen(command, stdout=log, stderr=log, env=self._environment))


def executor_of(process_id: int) -> psutil.Process:
    """Return the JVM of the executor in which a Python process works."""
    for each in psutil.Process(process_id).parents():
        if any(EXECUTOR in word for word in each.cmdline()):
            return each
    raise ProcessLookupError(f"process {process_id} works in no executor")


def kill_process(process: psutil.Process) -> None:
    """Kill a process (SIGKILL)."""
    process.send_signal(signal.SIGKILL)
