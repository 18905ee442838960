# SPDX-License-Identifier: Apache-2.0
"""Programs that end without closing their clients, in real processes: no silent loss, and no output of Lograft's own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import pytest
from tests.client.reading import read_all

MakeTopic = Callable[..., str]

HEAD = """
import asyncio, os, sys, threading, time
from lograft import Admin, Consumer, Producer, TopicPartition, aio
bootstrap, topic = sys.argv[1:]
"""


def run(program: str, bootstrap: str, topic: str, *, status: int = 0) -> str:
    """Run a program to its end, and return what it wrote to standard error."""
    command = [sys.executable, "-c", HEAD + program, bootstrap, topic]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == status, done.stderr
    return done.stderr


SENDS = "p = Producer(bootstrap, linger_ms=60_000)\nfor n in range(1_000): p.send(topic, b'%d' % n)\n"


@pytest.mark.process
@pytest.mark.parametrize(
    ("end", "status"),
    [
        ("", 0),
        ("del p", 0),
        ("sys.exit(3)", 3),
        ("threading.Thread(target=sys.exit).start()", 0),
        ("second = Producer(bootstrap); second.send(topic, b'1000')", 0),
    ],
)
def test_open_producer_delivers_at_the_end_of_the_process(
    bootstrap: str, make_topic: MakeTopic, end: str, status: int
) -> None:
    """This holds for every way to end. Such a program once exited with 0, stored nothing and printed nothing."""
    topic = make_topic()
    assert run(SENDS + end, bootstrap, topic, status=status) == ""
    values = [record.value for record in read_all(bootstrap, topic)]
    count = 1_000 + end.startswith("second")
    assert sorted(values, key=int) == [b"%d" % number for number in range(count)]


@pytest.mark.process
def test_exception_of_the_program_is_all_that_is_printed(bootstrap: str, make_topic: MakeTopic) -> None:
    """The records are delivered all the same."""
    topic = make_topic()
    error = run(SENDS + "raise ValueError('theirs')", bootstrap, topic, status=1)
    assert error.splitlines()[-1] == "ValueError: theirs"
    assert "lograft:" not in error
    assert len(read_all(bootstrap, topic)) == 1_000


@pytest.mark.process
def test_what_cannot_be_delivered_in_time_is_counted(bootstrap: str, make_topic: MakeTopic) -> None:
    """The loss is one line on standard error, and a ResourceWarning if Python is told to show it."""
    program = """
from brokerd.embedded import EmbeddedCluster
import warnings
warnings.simplefilter("always")
with EmbeddedCluster() as cluster:
    with Admin(cluster.bootstrap) as admin: admin.create_topic(topic)
    p = Producer(cluster.bootstrap, exit_flush_ms=300)
    p.send(topic, b"stored")
    p.flush()
for n in range(7): p.send(topic, b"lost")
"""
    error = run(program, bootstrap, make_topic())
    assert "lograft: 7 records were not delivered: the process ends, and the producer was not closed" in error
    assert "ResourceWarning" in error


@pytest.mark.process
def test_asyncio_producer_that_was_left_says_what_is_lost(bootstrap: str, make_topic: MakeTopic) -> None:
    """Its event loop has ended, so it can send nothing more."""
    topic = make_topic()
    program = """
async def main():
    p = aio.Producer(bootstrap, linger_ms=60_000)
    for n in range(100):
        await p.send(topic, b"v")
asyncio.run(main())
"""
    (line,) = run(program, bootstrap, topic).splitlines()
    assert line.startswith("lograft: 100 records were not delivered: the event loop ended")


@pytest.mark.process
@pytest.mark.parametrize(
    "program",
    [
        "a = Admin(bootstrap); a.list_topics()",
        "c = Consumer(bootstrap); c.assign([TopicPartition(topic, 0)]); c.poll(10, 300)",
        "c = Consumer(bootstrap); c.assign([TopicPartition(topic, 0)])\n"
        "def poll():\n    while True: c.poll_batch(1_000)\n"
        "threading.Thread(target=poll, daemon=True).start()\nc.end_offsets([TopicPartition(topic, 0)])",
        "async def main():\n    async with aio.Admin(bootstrap) as a: await a.list_topics()\nfor _ in range(5): asyncio.run(main())",
        "for _ in range(5):\n    a = Admin(bootstrap); b = Admin(bootstrap); a.list_topics(); b.list_topics(); a.close()",
        "p = Producer(bootstrap); p.send(topic, b'v'); p.flush()",
    ],
)
def test_clients_that_are_left_open_print_nothing(bootstrap: str, make_topic: MakeTopic, program: str) -> None:
    """No "Task was destroyed" and no "Event loop is closed" appears, for any open client."""
    topic = make_topic()
    assert [run(program, bootstrap, topic) for _ in range(2)] == ["", ""]


@pytest.mark.process
def test_daemon_thread_that_makes_its_first_client_at_the_end_waits(bootstrap: str, make_topic: MakeTopic) -> None:
    """It must neither raise nor start threads while the interpreter ends. Loading gRPC makes that moment long."""
    topic = make_topic()
    late = """
import atexit
begun, made = threading.Event(), threading.Event()
def send():
    begun.wait()
    producer = kind(bootstrap)
    producer.send(topic, b"v")
    made.set()
def end():
    begun.set()
    assert not made.wait(2.0), "a client was made while the process ended"
# It runs after what was registered later, as all of Lograft's is.
atexit.register(end)
import lograft
kind = lograft.Producer
threading.Thread(target=send, daemon=True).start()
"""
    command = [sys.executable, "-c", f"import sys, threading; bootstrap, topic = sys.argv[1:]{late}", bootstrap, topic]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert read_all(bootstrap, topic) == []
