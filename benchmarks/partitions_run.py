# SPDX-License-Identifier: Apache-2.0
"""`make bench-partitions`: brokers with very many idle partitions: creation, stop, start.

Two set-ups, real processes on loopback: `lograft dev` (voter and broker in one process), and one voter with one broker. Two shapes:
topics of one partition, made by one call of `Admin.create_topics`, and few topics of up to 10,000 partitions. Times are of the wall
clock. The processor time of the servers stands beside them, for they have the machine for themselves only where nothing else runs: the
load average is in the table. `--code` runs servers from another directory with this project, so that versions can be compared; where
they do not know CreateTopics, topics are made by 32 calls at a time.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, Self

import psutil
from lograft import Admin, aio
from lograft.errors import LograftError
from lograft.types import NewTopic

from metaquorum.testing.ports import free_port

SIZES: Final = (1_000, 20_000, 100_000)
SETUPS: Final = ("dev", "split")
SHAPES: Final = ("topics of one", "few topics")
HERE: Final = Path(__file__).parent.parent
RESULTS: Final = Path(__file__).parent / "results"

MOST_PARTITIONS: Final = 10_000
"""Partitions that one request creates."""

SINGLE_TOPICS: Final = 100
"""Topics created one call after the other, before and after the many."""

PARALLEL_CALLS: Final = 32
REQUEST_TIMEOUT_MS: Final = 1_800_000
PHASE_TIMEOUT_S: Final = 1_800.0
LOOK_S: Final = 0.02
IDLE_S: Final = 0.5
IDLE_SHARE: Final = 0.1
"""Share of a core below which servers count as idle, if they stay below it for `IDLE_S`."""

PAUSE: Final = threading.Event()
"""Never set: a wait for it is a pause."""


@dataclass(slots=True, kw_only=True)
class Row:
    """One case. Times are in seconds, `_cpu_s` of all servers (of the stopped one after `stop_`), memory in bytes of all servers."""

    setup: str
    shape: str
    partitions: int
    version: str
    single_per_s: float = 0.0
    create_per_s: float = 0.0
    create_s: float = 0.0
    create_cpu_s: float = 0.0
    open_s: float = 0.0
    open_cpu_s: float = 0.0
    memory_empty: int = 0
    memory_full: int = 0
    stop_s: float = 0.0
    stop_cpu_s: float = 0.0
    stop_log_lines: int = 0
    start_s: float = 0.0
    start_cpu_s: float = 0.0
    second_stop_s: float = 0.0
    load_before: float = 0.0
    load_after: float = 0.0


class Server:
    """One process, run as `python -m <arguments>` with the code in a directory. Its output goes to one file."""

    def __init__(self, arguments: Sequence[str], log_path: Path, code: Path, *, ready: bytes = b"ready on") -> None:
        self._command = [sys.executable, "-m", *arguments]
        self._log_path = log_path
        self._code = code
        self._ready = ready
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> float:
        """Start the process, wait until it says that it is ready, and return the seconds until then."""
        seen = self.log_bytes()
        begun_s = time.monotonic()
        environment = {**os.environ, "PYTHONPATH": f"{self._code}:{self._code / 'sdk'}"}
        with self._log_path.open("ab") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log, cwd=self._code, env=environment)
        while self._ready not in self._read(seen):
            assert self._process.poll() is None, f"{self._command} ended: {self._log_path.read_text()[-2_000:]}"
            assert time.monotonic() - begun_s < PHASE_TIMEOUT_S, f"{self._command} is not ready"
            PAUSE.wait(LOOK_S)
        return time.monotonic() - begun_s

    @property
    def pid(self) -> int:
        """Process id."""
        assert self._process is not None, "not started"
        return self._process.pid

    def cpu_s(self) -> float:
        """Return the seconds of processor time that it has used."""
        times = psutil.Process(self.pid).cpu_times()
        return times.user + times.system

    def memory(self) -> int:
        """Return its resident bytes."""
        return int(psutil.Process(self.pid).memory_info().rss)

    def log_bytes(self) -> int:
        """Return the size of its output."""
        return self._log_path.stat().st_size if self._log_path.exists() else 0

    def log_lines(self, start: int) -> int:
        """Return the number of lines of its output from a byte on."""
        return self._read(start).count(b"\n")

    def stop(self) -> tuple[float, float]:
        """Send SIGTERM, wait for the end, and return the seconds and the seconds of processor time."""
        assert self._process is not None, "not started"
        cpu_s, children_s = self.cpu_s(), _children_cpu_s()
        begun_s = time.monotonic()
        self._process.send_signal(signal.SIGTERM)
        status = self._process.wait(PHASE_TIMEOUT_S)
        took_s = time.monotonic() - begun_s
        assert status == 0, f"{self._command} ended with {status}"
        self._process = None
        return took_s, _children_cpu_s() - children_s - cpu_s

    def kill(self) -> None:
        """Kill the process if it was started."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def _read(self, start: int) -> bytes:
        with self._log_path.open("rb") as log:
            log.seek(start)
            return log.read()


class Stage:
    """The servers of one case; a context manager that ends all processes."""

    def __init__(self, setup: str, directory: Path, code: Path) -> None:
        self.bootstrap = f"127.0.0.1:{free_port()}"
        self._logs = directory / ("dev" if setup == "dev" else "broker") / "partitions"
        if setup == "dev":
            port = self.bootstrap.rpartition(":")[2]
            arguments = ["brokerd", "dev", "--port", port, "--data-dir", str(directory / "dev")]
            self.broker = Server(arguments, directory / "dev.log", code)
            self.servers = (self.broker,)
            return
        voter_address = f"127.0.0.1:{free_port()}"
        common = ["--cluster-id", "bench"]
        voter = ["metaquorum", "run", "--first-start", "--voters", f"1@{voter_address}", "--node-id", "1"]
        voter += ["--listen", voter_address, "--data-dir", str(directory / "voter"), *common]
        broker = ["brokerd", "run", "--quorum", voter_address, "--node-id", "101", "--listen", self.bootstrap]
        broker += ["--data-dir", str(directory / "broker"), *common]
        self.broker = Server(broker, directory / "broker.log", code)
        self.servers = (Server(voter, directory / "voter.log", code, ready=b"event=controller_active"), self.broker)

    def __enter__(self) -> Self:
        for server in self.servers:
            server.start()
        return self

    def __exit__(self, *error: object) -> None:
        for server in self.servers:
            server.kill()

    def cpu_s(self) -> float:
        """Return the processor time of all servers."""
        return sum(server.cpu_s() for server in self.servers)

    def memory(self) -> int:
        """Return the resident bytes of all servers."""
        return sum(server.memory() for server in self.servers)

    def wait_logs(self, count: int) -> None:
        """Wait until that many logs exist in the broker's directory and the servers are idle."""
        give_up_s = time.monotonic() + PHASE_TIMEOUT_S
        while len(os.listdir(self._logs)) < count:
            assert time.monotonic() < give_up_s, "the logs do not come"
            PAUSE.wait(LOOK_S)
        self.wait_idle()

    def wait_idle(self) -> None:
        """Wait until the servers are idle."""
        give_up_s = time.monotonic() + PHASE_TIMEOUT_S
        used_s = self.cpu_s()
        while True:
            PAUSE.wait(IDLE_S)
            before_s, used_s = used_s, self.cpu_s()
            if used_s - before_s < IDLE_SHARE * IDLE_S:
                return
            assert time.monotonic() < give_up_s, "the servers are never idle"


def measure(row: Row, directory: Path, code: Path) -> None:
    """Measure the figures of a row."""
    row.load_before = os.getloadavg()[0]
    with Stage(row.setup, directory, code) as stage:
        with Admin(stage.bootstrap, request_timeout_ms=REQUEST_TIMEOUT_MS) as admin:
            has_many_calls = _knows_create_topics(admin)
            stage.wait_idle()
            row.memory_empty = stage.memory()
            singles_s = _singles(admin, "before")
            stage.wait_idle()
            cpu_s, begun_s = stage.cpu_s(), time.monotonic()
            many = min(row.partitions, MOST_PARTITIONS)
            if row.shape == "few topics":
                for number in range(row.partitions // many):
                    admin.create_topic(f"wide-{number}", partition_count=many)
            elif has_many_calls:
                results = admin.create_topics([NewTopic(f"many-{number:06}") for number in range(row.partitions)])
                assert all(each.error is None for each in results), next(each for each in results if each.error)
            else:
                asyncio.run(_create_in_parallel(stage.bootstrap, row.partitions))
            row.create_s, row.create_cpu_s = time.monotonic() - begun_s, stage.cpu_s() - cpu_s
            stage.wait_logs(has_many_calls + SINGLE_TOPICS + row.partitions)
            row.open_s, row.open_cpu_s = time.monotonic() - begun_s - IDLE_S, stage.cpu_s() - cpu_s
            topics = row.partitions if row.shape == "topics of one" else row.partitions // many
            row.create_per_s = topics / row.create_s
            row.single_per_s = 2 * SINGLE_TOPICS / (singles_s + _singles(admin, "after"))
        stage.wait_logs(has_many_calls + 2 * SINGLE_TOPICS + row.partitions)
        row.memory_full = stage.memory()
        before = stage.broker.log_bytes()
        row.stop_s, row.stop_cpu_s = stage.broker.stop()
        row.stop_log_lines = stage.broker.log_lines(before)
        row.start_s = stage.broker.start()
        row.start_cpu_s = stage.broker.cpu_s()
        stage.wait_idle()
        row.second_stop_s, _ = stage.broker.stop()
    row.load_after = os.getloadavg()[0]


def _knows_create_topics(admin: Admin) -> bool:
    try:
        admin.create_topics([NewTopic("first")])
    except LograftError:
        return False
    return True


def _singles(admin: Admin, name: str) -> float:
    begun_s = time.monotonic()
    for number in range(SINGLE_TOPICS):
        admin.create_topic(f"single-{name}-{number}")
    return time.monotonic() - begun_s


async def _create_in_parallel(bootstrap: str, count: int) -> None:
    names = (f"many-{number:06}" for number in range(count))

    async def create(admin: aio.Admin) -> None:
        for name in names:
            await admin.create_topic(name)

    async with aio.Admin(bootstrap, request_timeout_ms=REQUEST_TIMEOUT_MS) as admin:
        await asyncio.gather(*(create(admin) for _ in range(PARALLEL_CALLS)))


def _children_cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def table(rows: Sequence[Row]) -> str:
    """Return the rows as Markdown."""
    lines = [
        "| set-up | shape | partitions | version | one call each, topics/s | all, topics/s | create, s (CPU) | logs open, s (CPU) "
        "| MiB before, after | SIGTERM to exit, s (CPU) | log lines of it | start to ready, s (CPU) | second stop, s | load |",
        "|---|---|---:|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    lines += [
        f"| {row.setup} | {row.shape} | {row.partitions:,} | {row.version} | {row.single_per_s:.0f} | {row.create_per_s:,.0f} "
        f"| {row.create_s:.2f} ({row.create_cpu_s:.2f}) | {row.open_s:.2f} ({row.open_cpu_s:.2f}) "
        f"| {row.memory_empty >> 20}, {row.memory_full >> 20} | {row.stop_s:.2f} ({row.stop_cpu_s:.2f}) | {row.stop_log_lines:,} "
        f"| {row.start_s:.2f} ({row.start_cpu_s:.2f}) | {row.second_stop_s:.2f} | {row.load_before:.1f} to {row.load_after:.1f} |"
        for row in rows
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure and print the table. `--write` also stores it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--partitions", nargs="*", type=int, default=list(SIZES), help="sizes")
    parser.add_argument("--setups", nargs="*", choices=SETUPS, default=list(SETUPS))
    parser.add_argument("--shapes", nargs="*", choices=SHAPES, default=list(SHAPES))
    parser.add_argument("--code", type=Path, default=HERE, help="directory of the version that the servers run")
    parser.add_argument("--version", default="now", help="name of that version in the table")
    parser.add_argument("--write", type=Path, help="directory for partitions.json and partitions.md; rows are added")
    parser.add_argument("--data", type=Path, help="directory for the data; default: a temporary one")
    chosen = parser.parse_args()
    rows: list[Row] = []
    for setup in chosen.setups:
        for partitions in chosen.partitions:
            for shape in chosen.shapes:
                row = Row(setup=setup, shape=shape, partitions=partitions, version=chosen.version)
                with ExitStack() as stack:
                    directory = Path(tempfile.mkdtemp(prefix="bench-partitions-", dir=chosen.data))
                    stack.callback(shutil.rmtree, directory, ignore_errors=True)
                    measure(row, directory, chosen.code.absolute())
                rows.append(row)
                print(table(rows[-1:]).splitlines()[-1], flush=True)
                if chosen.write is not None:
                    _add(row, chosen.write)
    print(table(rows))


def _add(row: Row, directory: Path) -> None:
    """Store a row. It replaces an older one of the same case."""
    path = directory / "partitions.json"
    kept = [Row(**each) for each in json.loads(path.read_text())] if path.exists() else []
    rows = [*(each for each in kept if _case(each) != _case(row)), row]
    rows.sort(key=_case)
    path.write_text(json.dumps([asdict(each) for each in rows], indent=2) + "\n")
    path.with_suffix(".md").write_text(table(rows))


def _case(row: Row) -> tuple[str, str, int, str]:
    return row.setup, row.shape, row.partitions, row.version


if __name__ == "__main__":
    main()
