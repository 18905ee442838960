# SPDX-License-Identifier: Apache-2.0
"""Children forked while clients of their parent are at work: they end as they wish, and the clients of their parent refuse to work."""

from __future__ import annotations

import subprocess
import sys

import pytest

CHILDREN = 60
"""Children of a program; of as many some ended by SIGSEGV each time."""

PROGRAM = """
import os, sys
from multiprocessing import get_context
from lograft import Admin, Consumer, Producer
from lograft.errors import ForkedClientError

bootstrap, way, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
TOPIC = f"fork-{way}"


def use(producer, consumer, admin):
    refused = 0
    for call in (lambda: producer.send(TOPIC, b"child"), consumer.poll, admin.list_topics):
        try:
            call()
        except ForkedClientError:
            refused += 1
    return refused == 3


def child(*clients):
    sys.exit(0 if use(*clients) else 3)


def forked(clients):
    pid = os.fork()
    if pid == 0:
        is_right = use(*clients)
        if way == "os._exit":
            os._exit(0 if is_right else 3)
        # As a normal exit, with the interpreter taken down.
        sys.exit(0 if is_right else 3)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def started(clients):
    process = get_context("fork").Process(target=child, args=clients)
    process.start()
    process.join()
    return process.exitcode


if __name__ == "__main__":
    with Admin(bootstrap) as admin, Producer(bootstrap) as producer, Consumer(bootstrap) as consumer:
        admin.create_topic(TOPIC)
        consumer.assign([(TOPIC, 0)])
        codes = {}
        for number in range(count):
            for _ in range(20):
                producer.send(TOPIC, b"parent")
            code = started((producer, consumer, admin)) if way == "multiprocessing" else forked((producer, consumer, admin))
            codes[code] = codes.get(code, 0) + 1
        producer.flush()
        got = 0
        while got < 20 * count:
            got += len(consumer.poll())
        print(codes, got)
"""


@pytest.mark.parametrize("way", ["multiprocessing", "os._exit", "sys.exit"])
def test_forked_children_end_as_they_wish(bootstrap: str, way: str) -> None:
    """None ends by a signal or hangs, each call of a client of the parent is refused; the parent loses nothing."""
    arguments = [sys.executable, "-W", "ignore", "-c", PROGRAM, bootstrap, way, str(CHILDREN)]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{{0: {CHILDREN}}} {20 * CHILDREN}\n", done.stderr
