# SPDX-License-Identifier: Apache-2.0
"""A member of the crowd of `make bench-peers`: many processes that send one record each at the same moment, beside idle readers.

A member says that it is ready. A writer begins with the next line that it reads, and in the end prints the milliseconds to each
acknowledgement with the CPU seconds that it used. A reader ends when its standard input does.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

from benchmarks.peers_task import Task

READY = "ready"


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """What a writer measured.

    Attributes:
        latencies_ms: from each send to its acknowledgement.
        client_s: CPU seconds of the process in that time.
    """

    latencies_ms: list[float]
    client_s: float


def crowd_sends(task: Task, send: Callable[[], None]) -> None:
    """Send a first record, say so, and send `records` more at `rate` per second from the moment in which it is told to."""
    send()
    print(READY, flush=True)
    sys.stdin.readline()
    never = threading.Lock()
    never.acquire()
    latencies_ms: list[float] = []
    begin_s, client_s = time.monotonic(), time.process_time()
    for index in range(task.records):
        delay_s = begin_s + index / task.rate - time.monotonic()
        if delay_s > 0:
            never.acquire(timeout=delay_s)
        started = time.perf_counter()
        send()
        latencies_ms.append((time.perf_counter() - started) * 1e3)
    member = Member(latencies_ms=latencies_ms, client_s=time.process_time() - client_s)
    print(json.dumps(asdict(member)), flush=True)


def crowd_reads(poll: Callable[[], object]) -> None:
    """Poll until the process that started this one lets go of it."""
    poll()
    threading.Thread(target=_end_with_input, daemon=True).start()
    print(READY, flush=True)
    while True:
        poll()


def _end_with_input() -> None:
    sys.stdin.read()
    os._exit(0)
