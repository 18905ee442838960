# SPDX-License-Identifier: Apache-2.0
"""Children forked while clients of the parent work: the parent's clients refuse to work there, the child's own work."""

from __future__ import annotations

import subprocess
import sys

import pytest

CHILDREN = 60
"""Number of children of one program. Out of this many, some once ended by SIGSEGV in every run."""

PROGRAM = """
import asyncio, os, sys
from multiprocessing import get_context
from lograft import Admin, Consumer, Producer, aio
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
    return refused == 3 and own() and asyncio.run(own_in_a_loop())


def own():
    with Producer(bootstrap) as producer, Consumer(bootstrap) as consumer, Admin(bootstrap) as admin:
        producer.send(TOPIC, b"child")
        producer.flush()
        consumer.assign([(TOPIC, 0)])
        return len(consumer.poll(timeout_ms=30_000)) > 0 and TOPIC in [each.topic for each in admin.list_topics()]


async def own_in_a_loop():
    async with aio.Producer(bootstrap) as producer, aio.Consumer(bootstrap) as consumer, aio.Admin(bootstrap) as admin:
        await producer.send(TOPIC, b"child")
        await producer.flush()
        await consumer.assign([(TOPIC, 0)])
        return len(await consumer.poll(timeout_ms=30_000)) > 0 and TOPIC in [each.topic for each in await admin.list_topics()]


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
        while got < 22 * count and (records := consumer.poll(timeout_ms=10_000)):
            got += len(records)
        print(codes, got)
"""


@pytest.mark.parametrize("way", ["multiprocessing", "os._exit", "sys.exit"])
def test_forked_children_end_as_they_wish(bootstrap: str, way: str) -> None:
    """No child ends by a signal or hangs. The parent's clients are refused, the child's work, and nothing is lost or printed."""
    arguments = [sys.executable, "-W", "ignore", "-c", PROGRAM, bootstrap, way, str(CHILDREN)]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stderr
    assert (done.stdout, done.stderr) == (f"{{0: {CHILDREN}}} {22 * CHILDREN}\n", "")


OTHER_USE = """
import os, sys, threading
import grpc
{early}
# A child of a parent that waits in a call of gRPC: its locks and threads are in use.
channel = grpc.insecure_channel("127.0.0.1:1")
# It loads a module of gRPC; in the thread, the fork could come meanwhile, and leave its lock to nobody.
ready = grpc.channel_ready_future(channel)
threading.Thread(target=lambda: ready.result(60), daemon=True).start()
try:
    channel.unary_unary("/a/b")(b"", timeout=1)
except grpc.RpcError:
    pass
child = os.fork()
if child == 0:
    from lograft import Admin
    with Admin(sys.argv[1]) as admin:
        admin.list_topics()
    os._exit(0)
os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.parametrize("early", ["", "import lograft"])
def test_child_of_a_process_that_used_grpc_for_something_else_may_use_clients(bootstrap: str, early: str) -> None:
    """It holds whether Lograft was loaded before the fork or only in the child."""
    program = OTHER_USE.format(early=early)
    subprocess.run([sys.executable, "-W", "ignore", "-c", program, bootstrap], timeout=60, check=True)


PLAIN_USE = """
import os, sys, threading
from lograft import Admin, Consumer, Producer
with Admin(sys.argv[1]) as admin, Producer(sys.argv[1]) as producer, Consumer(sys.argv[1]) as consumer:
    admin.create_topic("plain")
    producer.send("plain", b"record")
    producer.flush()
    print(len(os.listdir("/proc/self/task")) - len(threading.enumerate()))
"""


def test_clients_do_not_start_the_core_of_grpc(bootstrap: str) -> None:
    """The system knows no thread that Python does not know: none that a fork could lose in the middle of its work."""
    command = [sys.executable, "-W", "ignore", "-c", PLAIN_USE, bootstrap]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "0\n"
