# SPDX-License-Identifier: Apache-2.0
"""Ordinary programs in real processes: for every use of the clients and every end, they print only their own output.

gRPC delivers the events of all event loops of a process through one queue. An event for a closed loop shows as "Event loop is
closed" in another loop. A task that is left shows as "Task was destroyed but it is pending!".
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import pytest

from metaquorum.testing.ports import free_port

MakeTopic = Callable[..., str]

RUNS = 3
"""Runs of each program, all of which must be quiet, because each run is a race between threads."""

HEAD = """
import asyncio, gc, os, signal, sys, threading, time
from lograft import Admin, Consumer, Producer, TopicPartition, aio
from lograft.errors import LograftError
# A test run in the background may ignore SIGINT and hand that down: the program gets Python's own handler back.
signal.signal(signal.SIGINT, signal.default_int_handler)
bootstrap, dead, topic = sys.argv[1:]
tp = TopicPartition(topic, 0)

def use(kind, where=bootstrap, dead_ms=60):
    time_ms = 30_000 if where == bootstrap else dead_ms
    try:
        if kind == 0:
            with Admin(where, request_timeout_ms=time_ms) as admin:
                admin.list_topics()
        elif kind == 1:
            with Producer(where, delivery_timeout_ms=time_ms) as producer:
                producer.send(topic, b"v")
                producer.flush()
        else:
            with Consumer(where, request_timeout_ms=time_ms) as consumer:
                consumer.assign([tp], offsets={tp: 0})
                consumer.poll(10, 200)
    except LograftError:
        assert where == dead

async def ause(kind, where=bootstrap, dead_ms=60):
    time_ms = 30_000 if where == bootstrap else dead_ms
    try:
        if kind == 0:
            async with aio.Admin(where, request_timeout_ms=time_ms) as admin:
                await admin.list_topics()
        elif kind == 1:
            async with aio.Producer(where, delivery_timeout_ms=time_ms) as producer:
                await producer.send(topic, b"v")
                await producer.flush()
        else:
            async with aio.Consumer(where, request_timeout_ms=time_ms) as consumer:
                await consumer.assign([tp], offsets={tp: 0})
                await consumer.poll(10, 200)
    except LograftError:
        assert where == dead

async def leave_open():
    admin, producer, consumer = aio.Admin(bootstrap), aio.Producer(bootstrap), aio.Consumer(bootstrap)
    await admin.list_topics()
    await producer.send(topic, b"v")
    await producer.flush()
    await consumer.assign([tp])
    await consumer.poll()
    return admin, producer, consumer

def in_threads(*works):
    threads = [threading.Thread(target=work) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

def in_daemons(*works):
    for work in works:
        threading.Thread(target=work, daemon=True).start()
    time.sleep(0.5)

def for_ever(work):
    while True:
        work()

def interrupt_after(delay_s):
    threading.Timer(delay_s, os.kill, (os.getpid(), signal.SIGINT)).start()
"""

PROGRAMS = {
    "blocking clients in threads": """
in_threads(*[lambda k=k: [use(k) for _ in range(12)] for k in (0, 1, 2, 0)])
""",
    "blocking clients in threads, dead port": """
in_threads(*[lambda k=k: [use(k % 3, dead) for _ in range(5)] for k in range(4)])
""",
    "blocking clients closing beside open ones": """
keep = [Admin(bootstrap), Producer(bootstrap), Consumer(bootstrap)]
keep[0].list_topics(); keep[1].send(topic, b"v"); keep[2].assign([tp])
for n in range(12):
    use(n % 3); asyncio.run(ause(n % 3)); keep[2].poll(5, 10)
""",
    "run again and again, admin": "for _ in range(20): asyncio.run(ause(0))",
    "run again and again, producer": "for _ in range(20): asyncio.run(ause(1))",
    "run again and again, consumer": "for _ in range(20): asyncio.run(ause(2))",
    "run again and again, dead port": """
for n in range(9): asyncio.run(ause(n % 3, dead))
for n in range(3): asyncio.run(ause(n))
""",
    "run in threads": """
in_threads(*[lambda k=k: [asyncio.run(ause((k + n) % 3)) for n in range(6)] for k in range(4)])
""",
    "run in threads, some at a dead port": """
in_threads(*[
    lambda k=k: [asyncio.run(ause((k + n) % 3, dead if n % 2 else bootstrap)) for n in range(8)] for k in range(4)
])
""",
    "run beside a blocking client, dead port": """
admin = Admin(bootstrap)
for n in range(12):
    admin.list_topics(); asyncio.run(ause(n % 3, dead if n % 2 else bootstrap)); use(n % 3)
""",
    "a loop of its own": """
for _ in range(8):
    loop = asyncio.new_event_loop(); loop.run_until_complete(ause(0)); loop.close()
""",
    "a loop of its own, dead port": """
for _ in range(8):
    loop = asyncio.new_event_loop(); loop.run_until_complete(ause(0, dead)); loop.close()
""",
    "a name that nobody knows": """
async def main():
    try: await aio.Admin("no-such-host.invalid", request_timeout_ms=50).list_topics()
    except LograftError: pass
for _ in range(4):
    asyncio.run(main())
    try: Admin("no-such-host.invalid", request_timeout_ms=50).list_topics()
    except LograftError: pass
""",
    "blocking clients left open": """
admin, producer, consumer = Admin(bootstrap), Producer(bootstrap), Consumer(bootstrap)
admin.list_topics(); producer.send(topic, b"v"); consumer.assign([tp]); consumer.poll()
""",
    "asyncio clients left open": "asyncio.run(leave_open())",
    "asyncio clients left open again and again": "for _ in range(10): asyncio.run(leave_open())",
    "asyncio clients left open and kept": "keep = [asyncio.run(leave_open()) for _ in range(10)]",
    "asyncio clients left open at a dead port": """
async def main():
    try: await aio.Admin(dead, request_timeout_ms=40).list_topics()
    except LograftError: pass
for _ in range(10): asyncio.run(main())
""",
    "asyncio clients that are collected": """
async def main():
    for _ in range(5):
        admin = aio.Admin(bootstrap); await admin.list_topics(); del admin; gc.collect(); await asyncio.sleep(0.01)
for _ in range(4): asyncio.run(main())
""",
    "a call that is cancelled": """
async def main():
    async with aio.Admin(bootstrap) as admin:
        await admin.list_topics()
        for n in range(5):
            call = asyncio.create_task(admin.list_topics()); await asyncio.sleep(0.0005 * n); call.cancel()
for _ in range(10): asyncio.run(main())
""",
    "a call that is given up at a dead port": """
async def main():
    try: await asyncio.wait_for(aio.Admin(dead).list_topics(), 0.05)
    except TimeoutError: pass
for _ in range(10): asyncio.run(main())
""",
    "an export that is cancelled": """
async def main():
    async with aio.Admin(bootstrap) as admin:
        await admin.export_metadata()
        call = asyncio.create_task(admin.export_metadata()); await asyncio.sleep(0.001); call.cancel()
for _ in range(8): asyncio.run(main())
""",
    "a loop that ends during calls": """
async def main():
    admin = aio.Admin(bootstrap); await admin.list_topics()
    calls = [asyncio.create_task(admin.list_topics()) for _ in range(3)]; await asyncio.sleep(0)
for _ in range(10): asyncio.run(main())
""",
    "a client that is closed during a call": """
async def main():
    admin = aio.Admin(bootstrap); await admin.list_topics()
    call = asyncio.create_task(admin.list_topics()); await asyncio.sleep(0); await admin.close()
    try: await call
    except LograftError: pass
for _ in range(8): asyncio.run(main())
""",
    "daemon threads that poll": """
def poll():
    consumer = Consumer(bootstrap); consumer.assign([tp])
    for_ever(lambda: consumer.poll_batch(1_000))
in_daemons(poll, poll, poll)
""",
    "daemon threads that iterate": """
def iterate():
    consumer = Consumer(bootstrap); consumer.assign([tp])
    for _ in consumer: pass
in_daemons(iterate, iterate)
""",
    "daemon threads at a dead port": "in_daemons(*[lambda: for_ever(lambda: use(2, dead))] * 3)",
    "daemon threads that call": "in_daemons(*[lambda: for_ever(Admin(bootstrap).list_topics)] * 3)",
    "daemon threads that open and close": "in_daemons(*[lambda: for_ever(lambda: use(0))] * 3)",
    "daemon threads that send": """
def send():
    producer = Producer(bootstrap)
    for_ever(lambda: producer.send(topic, b"v"))
in_daemons(send, send)
""",
    "daemon threads that flush": """
def send():
    producer = Producer(bootstrap)
    for_ever(lambda: (producer.send(topic, b"v"), producer.flush()))
in_daemons(send, send)
""",
    "daemon threads with loops": """
async def main():
    async with aio.Consumer(bootstrap) as consumer, aio.Admin(bootstrap) as admin:
        await consumer.assign([tp])
        while True: await consumer.poll(timeout_ms=20); await admin.list_topics()
in_daemons(lambda: asyncio.run(main()))
""",
    "sys.exit in a coroutine": """
async def main():
    admin = aio.Admin(bootstrap); await admin.list_topics()
    call = asyncio.create_task(admin.list_topics()); await asyncio.sleep(0); sys.exit(0)
asyncio.run(main())
""",
    "sys.exit while a consumer is open": """
with Consumer(bootstrap) as consumer:
    consumer.assign([tp]); consumer.poll(5, 10); sys.exit(0)
""",
    "sys.exit during calls": """
admin = Admin(bootstrap); admin.list_topics()
threading.Thread(target=lambda: for_ever(admin.list_topics), daemon=True).start()
time.sleep(0.02); sys.exit(0)
""",
    "interrupted in a poll": """
interrupt_after(0.4)
try:
    with Consumer(bootstrap) as consumer:
        consumer.assign([tp], start="latest"); for_ever(lambda: consumer.poll(timeout_ms=60_000))
except KeyboardInterrupt: pass
""",
    "interrupted in calls": """
interrupt_after(0.4)
admin = Admin(bootstrap)
try: for_ever(admin.list_topics)
except KeyboardInterrupt: pass
""",
    "interrupted in a call to a dead port": """
interrupt_after(0.2)
try: Admin(dead).list_topics()
except KeyboardInterrupt: pass
""",
    "interrupted in a loop": """
interrupt_after(0.5)
async def main():
    async with aio.Consumer(bootstrap) as consumer, aio.Admin(bootstrap) as admin:
        await consumer.assign([tp])
        while True: await consumer.poll(timeout_ms=20); await admin.list_topics()
try: asyncio.run(main())
except KeyboardInterrupt: pass
""",
}


def run(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a program to its end."""
    command = [sys.executable, "-c", HEAD + program, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.process
@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_print_nothing(bootstrap: str, make_topic: MakeTopic, name: str) -> None:
    """Every run is quiet."""
    topic, dead = make_topic(), f"127.0.0.1:{free_port()}"
    for _ in range(RUNS):
        done = run(PROGRAMS[name], bootstrap, dead, topic)
        assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.process
@pytest.mark.parametrize(
    "program",
    [
        "keep = Admin(bootstrap), Consumer(bootstrap)\nkeep[0].list_topics(); keep[1].assign([tp]); raise ValueError('theirs')",
        "async def main():\n    keep = await leave_open(); raise ValueError('theirs')\nasyncio.run(main())",
        "with Consumer(bootstrap) as consumer:\n    consumer.assign([tp]); raise ValueError('theirs')",
        "interrupt_after(0.5)\nconsumer = Consumer(bootstrap); consumer.assign([tp])\nfor_ever(consumer.poll)",
    ],
)
def test_exception_of_a_program_is_all_that_is_printed(bootstrap: str, make_topic: MakeTopic, program: str) -> None:
    """The output is one traceback, and it ends with the program's exception."""
    topic = make_topic()
    for _ in range(RUNS):
        done = run(program, bootstrap, bootstrap, topic)
        lines = done.stderr.splitlines()
        assert lines[-1] in ("ValueError: theirs", "KeyboardInterrupt"), done.stderr
        assert sum(line.startswith("Traceback") for line in lines) == 1, done.stderr
        assert not any(text in done.stderr for text in ("Task was", "Exception in", "lograft:")), done.stderr
