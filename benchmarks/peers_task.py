# SPDX-License-Identifier: Apache-2.0
"""What every client process of `make bench-peers` shares: its task, the values, the clock with the CPU times, and the pace.

A client process is told one task as JSON, does it, and prints one line of JSON. It also runs in a checkout of an older Lograft and
in an environment that has no Lograft at all, so nothing but the standard library is imported here.
"""

from __future__ import annotations

import json
import os
import random
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

VALUE_COUNT = 1_000
"""Different values, and different keys. They are sent again and again."""
KEYS = tuple(b"key-%04d" % number for number in range(VALUE_COUNT))
WARM_UP_SHARE = 10
WARM_UP_RECORDS_MIN = 1_000
PACED_WARM_UP_SHARE = 3
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_STAT_TIMES = slice(11, 15)
"""User and system time of a process and of its children that have ended, behind the name in `/proc/<pid>/stat`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What a client process does.

    Attributes:
        do: the name of the work.
        bootstrap: bootstrap addresses.
        topic: topic to write, read, create or delete.
        records: records that count.
        value_bytes: size of each value.
        partitions: partitions of the topic.
        replicas: replicas of each partition.
        is_flushed: whether an acknowledgement waits for an fsync.
        rate: records per second of paced work.
        pids: processes of the servers.
    """

    do: str
    bootstrap: str = ""
    topic: str = ""
    records: int = 0
    value_bytes: int = 100
    partitions: int = 1
    replicas: int = 1
    is_flushed: bool = False
    rate: int = 0
    pids: tuple[int, ...] = ()

    @classmethod
    def of_command_line(cls) -> Task:
        """Return the task in the first argument of this process."""
        given: dict[str, Any] = json.loads(sys.argv[1])
        given["pids"] = tuple(given["pids"])
        return cls(**given)

    def argument(self) -> str:
        """Return the argument that `of_command_line` reads."""
        return json.dumps(asdict(self))

    @property
    def warm_up(self) -> int:
        """Records that are sent before those that count."""
        return max(WARM_UP_RECORDS_MIN, self.records // WARM_UP_SHARE)

    @property
    def paced_warm_up(self) -> int:
        """The same of work at a steady rate."""
        return self.records // PACED_WARM_UP_SHARE


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """What one client process measured. CPU times are those of all threads, user and system.

    Attributes:
        records: records that count.
        seconds: from the first of them to the last acknowledgement, or to the last value in hand.
        client_s: CPU seconds of the client.
        server_s: CPU seconds of the servers.
        p50_ms: median latency, where latencies are measured.
        p99_ms: 99th percentile of them.
        load: load of the machine before, over one minute.
        others: what was busy before, in cores.
    """

    records: int
    seconds: float
    client_s: float
    server_s: float
    p50_ms: float | None = None
    p99_ms: float | None = None
    load: float = 0.0
    others: float = 0.0

    @property
    def rate(self) -> float:
        """Thousands of records per second."""
        return self.records / self.seconds / 1e3

    @property
    def client_us(self) -> float:
        """CPU microseconds of the client for a record."""
        return self.client_s / self.records * 1e6

    @property
    def server_us(self) -> float:
        """CPU microseconds of the servers for a record."""
        return self.server_s / self.records * 1e6


class Meter:
    """Clock and CPU times between `start` and `stop`, or of a `with` block."""

    def __init__(self, pids: Sequence[int]) -> None:
        self._pids = pids
        self._seconds = self._client_s = self._server_s = 0.0

    def start(self) -> None:
        """Begin to measure."""
        self._server_s = cpu_s(self._pids)
        self._client_s = time.process_time()
        self._seconds = time.perf_counter()

    def stop(self) -> None:
        """End the measurement."""
        self._seconds = time.perf_counter() - self._seconds
        self._client_s = time.process_time() - self._client_s
        self._server_s = cpu_s(self._pids) - self._server_s

    def __enter__(self) -> Meter:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def sample(self, records: int, latencies_ms: Sequence[float] = ()) -> Sample:
        """Return what was measured."""
        p50_ms, p99_ms = percentiles_ms(latencies_ms) if latencies_ms else (None, None)
        return Sample(
            records=records,
            seconds=self._seconds,
            client_s=self._client_s,
            server_s=self._server_s,
            p50_ms=p50_ms,
            p99_ms=p99_ms,
        )


class Pace:
    """Waits for the moments of a steady rate. The wait is one call of C, without the interpreter lock, for all clients alike."""

    def __init__(self, rate: float) -> None:
        self._interval_s = 1 / rate
        self._started = time.perf_counter()
        self._never = threading.Lock()
        self._never.acquire()

    def delay_s(self, index: int) -> float:
        """Return the seconds until the moment of a record; zero or less if it has come."""
        return self._started + index * self._interval_s - time.perf_counter()

    def wait(self, index: int) -> None:
        """Wait for the moment of a record."""
        delay_s = self.delay_s(index)
        if delay_s > 0:
            self._never.acquire(timeout=delay_s)


class Latencies:
    """Milliseconds from the sending of each record to its value in the consumer's hand, in order. The meter runs after the warm-up.

    Args:
        meter: started with the first record that counts.
        warm_up: records that do not count.
        records: records that count.
    """

    def __init__(self, meter: Meter, *, warm_up: int, records: int) -> None:
        self._meter, self._warm_up = meter, warm_up
        self.total = warm_up + records
        self._sent_s: list[float] = []
        self._found_ms: list[float] = []

    @property
    def is_complete(self) -> bool:
        """True once every record has come."""
        return len(self._found_ms) >= self.total

    @property
    def counted_ms(self) -> Sequence[float]:
        """The latencies that count."""
        return self._found_ms[self._warm_up : self.total]

    def send(self) -> None:
        """Note that a record is sent now."""
        if len(self._sent_s) == self._warm_up:
            self._meter.start()
        self._sent_s.append(time.perf_counter())

    def receive(self, count: int) -> None:
        """Note that `count` values came."""
        now = time.perf_counter()
        for _ in range(count):
            self._found_ms.append((now - self._sent_s[len(self._found_ms)]) * 1e3)


def percentiles_ms(latencies_ms: Sequence[float]) -> tuple[float, float]:
    """Return the median and the 99th percentile."""
    ordered = sorted(latencies_ms)
    return ordered[len(ordered) // 2], ordered[len(ordered) * 99 // 100]


def cpu_s(pids: Sequence[int]) -> float:
    """Return the CPU seconds that processes, and their children that have ended, have used."""
    ticks = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += sum(map(int, fields[_STAT_TIMES]))
    return ticks / _TICKS_PER_S


@cache
def values_of(value_bytes: int) -> list[bytes]:
    """Return values of random letters, the same in every process."""
    chosen = random.Random(VALUE_COUNT)
    return [bytes(chosen.choices(range(65, 91), k=value_bytes)) for _ in range(VALUE_COUNT)]


def do_task(works: Mapping[str, Callable[[Task], Sample | None]]) -> int:
    """Do the task of the command line, and print what was measured for the process that started this one. Return 0."""
    task = Task.of_command_line()
    sample = works[task.do](task)
    if sample is not None:
        print(json.dumps(asdict(sample)), flush=True)
    return 0
