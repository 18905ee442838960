# SPDX-License-Identifier: Apache-2.0
"""One parent with clients, and its children: `python -m integration_tests.scenarios.forks.parent BOOTSTRAP TOPIC WAY KIND LOAD COUNT`.

Prints one line of JSON: how many children ended with which status, and the records that the parent sent.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

from integration_tests.scenarios.forks.work import Clients, start_clients, work

WAYS: Final = ("fork", "forkserver", "spawn", "os._exit", "exit")
AT_ONCE: Final = 4
"""Children of one parent that run at the same time."""
CHILD_TIMEOUT_S: Final = 120
"""Seconds after which a child counts as hanging."""
POLL_S: Final = 0.002

_inherited: Clients | None = None


def child(kind: str, bootstrap: str, topic: str) -> None:
    """Do the work of a child."""
    if _inherited is not None:
        _inherited.check_refused()
    work(kind, bootstrap, topic)


def fork(way: str, kind: str, bootstrap: str, topic: str) -> int:
    """Fork a child with `os.fork` and return its id."""
    pid = os.fork()
    if pid != 0:
        return pid
    if way == "exit":
        child(kind, bootstrap, topic)
        # The interpreter shuts down, with everything that the child inherited.
        sys.exit(0)
    status = 1
    try:
        child(kind, bootstrap, topic)
        status = 0
    finally:
        os._exit(status)


def take_turns(
    count: int, start: Callable[[], Any], status_of: Callable[[Any], int | None], kill: Callable[[Any], None]
) -> Counter[str]:
    """Start children, a few at a time, and return how many ended with which status."""
    seen: Counter[str] = Counter()
    running: dict[Any, float] = {}
    while count > 0 or running:
        while count > 0 and len(running) < AT_ONCE:
            running[start()] = time.monotonic()
            count -= 1
        for each, started_s in list(running.items()):
            status = status_of(each)
            if status is None and time.monotonic() - started_s < CHILD_TIMEOUT_S:
                continue
            if status is None:
                kill(each)
            seen["hangs" if status is None else str(status)] += 1
            del running[each]
        threading.Event().wait(POLL_S)
    return seen


def exit_status(pid: int) -> int | None:
    """Return the exit status of a child, below zero for a signal; None while it runs."""
    done, status = os.waitpid(pid, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if done else None


def end(pid: int) -> None:
    """Kill a child that hangs."""
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def main() -> int:
    """Run a parent."""
    global _inherited
    bootstrap, topic, way, kind, load, count = sys.argv[1:]
    clients = start_clients(kind, bootstrap, topic, is_busy=load == "busy")
    arguments = (kind, bootstrap, topic)
    if way in ("fork", "forkserver", "spawn"):
        context = multiprocessing.get_context(way)

        def start() -> Any:
            process = context.Process(target=child, args=arguments)
            process.start()
            return process

        _inherited = clients
        seen = take_turns(int(count), start, lambda process: process.exitcode, lambda process: process.kill())
    else:
        _inherited = clients
        seen = take_turns(int(count), lambda: fork(way, *arguments), exit_status, end)
    print(json.dumps({"statuses": dict(seen), "sent": clients.stop()}))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
