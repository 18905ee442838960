# SPDX-License-Identifier: Apache-2.0
"""What parents and children of `make forks` do with clients, and the environment that names the cluster for other programs.

Owns the clients of a parent, idle or under load, and the check in a child: the clients of its parent refuse, its own work.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final, Protocol

from lograft import Admin, Consumer, Producer, TopicPartition, aio
from lograft.errors import ForkedClientError

from integration_tests.harness.background import Repeated

KINDS: Final = ("blocking", "asyncio", "admin")
PACE_S: Final = 0.002
"""Seconds between two bursts of a parent under load."""
BURST_RECORDS: Final = 50
BUSY_VALUE: Final = bytes(100)
START_TIMEOUT_S: Final = 60
STOP_TIMEOUT_S: Final = 120.0
"""Maximum seconds of the last burst of a load."""
OWN_VALUE: Final = b"of a child"


class Clients(Protocol):
    """The clients of a parent."""

    def check_refused(self) -> None:
        """Check in a child that every call of each client is refused."""
        ...

    def stop(self) -> int:
        """Stop in the parent: end the load, deliver everything, close. Return the number of records sent."""
        ...


def _start_load(burst: Callable[[], None]) -> Repeated:
    """Repeat a burst in a thread."""
    load = Repeated("load", burst, PACE_S, join_timeout_s=STOP_TIMEOUT_S)
    load.start()
    return load


class BlockingClients:
    """A producer and a consumer."""

    def __init__(self, bootstrap: str, topic: str, *, is_busy: bool) -> None:
        self._topic = topic
        self._sent = 0
        self._producer, self._consumer = Producer(bootstrap), Consumer(bootstrap)
        self._consumer.assign([TopicPartition(topic, 0)])
        self._burst()
        self._producer.flush()
        self._load = _start_load(self._burst) if is_busy else None

    def _burst(self) -> None:
        for _ in range(BURST_RECORDS):
            self._producer.send(self._topic, BUSY_VALUE)
        self._sent += BURST_RECORDS
        self._consumer.poll(timeout_ms=1)

    def check_refused(self) -> None:
        """Check in a child that the clients refuse."""
        check_refused(lambda: self._producer.send(self._topic, b""), self._producer.flush, self._consumer.poll)

    def stop(self) -> int:
        """Stop in the parent (see `Clients`)."""
        if self._load is not None:
            self._load.join()
        self._producer.close()
        self._consumer.close()
        return self._sent


class AdminClients:
    """An admin client."""

    def __init__(self, bootstrap: str, topic: str, *, is_busy: bool) -> None:
        self._topic = topic
        self._admin = Admin(bootstrap)
        self._burst()
        self._load = _start_load(self._burst) if is_busy else None

    def _burst(self) -> None:
        self._admin.describe_topic(self._topic)

    def check_refused(self) -> None:
        """Check in a child that the client refuses."""
        check_refused(self._admin.list_topics)

    def stop(self) -> int:
        """Stop in the parent (see `Clients`)."""
        if self._load is not None:
            self._load.join()
        self._admin.close()
        return 0


class AsyncioClients:
    """The clients of `lograft.aio`, in the event loop of a thread."""

    def __init__(self, bootstrap: str, topic: str, *, is_busy: bool) -> None:
        self._bootstrap, self._topic, self._is_busy = bootstrap, topic, is_busy
        self._sent = 0
        self._started = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ending: asyncio.Event | None = None
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        if not self._started.wait(START_TIMEOUT_S) or self._failure is not None:
            raise RuntimeError("the clients did not start") from self._failure

    def _run(self) -> None:
        try:
            asyncio.run(self._main())
        except BaseException as error:
            self._failure = error
        finally:
            self._started.set()

    async def _main(self) -> None:
        self._loop, self._ending = asyncio.get_running_loop(), asyncio.Event()
        self._producer, self._consumer = aio.Producer(self._bootstrap), aio.Consumer(self._bootstrap)
        self._admin = aio.Admin(self._bootstrap)
        async with self._producer, self._consumer, self._admin:
            await self._consumer.assign([TopicPartition(self._topic, 0)])
            await self._burst()
            await self._producer.flush()
            self._started.set()
            while self._is_busy and not self._ending.is_set():
                await asyncio.sleep(PACE_S)
                await self._burst()
            await self._ending.wait()

    async def _burst(self) -> None:
        for _ in range(BURST_RECORDS):
            await self._producer.send(self._topic, BUSY_VALUE)
        self._sent += BURST_RECORDS
        await self._consumer.poll(timeout_ms=1)
        await self._admin.describe_topic(self._topic)

    def check_refused(self) -> None:
        """Check in a child that the clients refuse."""

        def run(call: Callable[[], Awaitable[object]]) -> Callable[[], object]:
            async def main() -> None:
                await call()

            return lambda: asyncio.run(main())

        producer = self._producer
        check_refused(
            *map(run, (lambda: producer.send(self._topic, b""), self._consumer.poll, self._admin.list_topics))
        )

    def stop(self) -> int:
        """Stop in the parent (see `Clients`)."""
        assert self._loop is not None
        assert self._ending is not None
        self._loop.call_soon_threadsafe(self._ending.set)
        self._thread.join()
        if self._failure is not None:
            raise self._failure
        return self._sent


def environment_of(*, bootstrap: str, topic: str, load: str, directory: Path) -> dict[str, str]:
    """Return the environment of another project's program: that of this process, and what the functions below read."""
    return {
        **os.environ,
        "FORKS_BOOTSTRAP": bootstrap,
        "FORKS_TOPIC": topic,
        "FORKS_LOAD": load,
        "FORKS_STATUSES": str(directory / "statuses"),
        "FORKS_QUEUE": str(directory / "queue"),
    }


def statuses_path() -> Path:
    """Return the path of the file with the exit status of each child, from the environment."""
    return Path(os.environ["FORKS_STATUSES"])


def queue_path() -> str:
    """Return the directory of Celery's queue, from the environment."""
    return os.environ["FORKS_QUEUE"]


def start_clients_by_environment() -> Clients:
    """Create blocking clients of a parent, as the environment says, and use them."""
    is_busy = os.environ["FORKS_LOAD"] == "busy"
    return start_clients("blocking", os.environ["FORKS_BOOTSTRAP"], os.environ["FORKS_TOPIC"], is_busy=is_busy)


def work_by_environment() -> None:
    """Work in a child with its own clients, as the environment says."""
    work("blocking", os.environ["FORKS_BOOTSTRAP"], os.environ["FORKS_TOPIC"])


def start_clients(kind: str, bootstrap: str, topic: str, *, is_busy: bool) -> Clients:
    """Create the clients of a parent and use them."""
    kinds: dict[str, Callable[..., Clients]] = {
        "blocking": BlockingClients,
        "asyncio": AsyncioClients,
        "admin": AdminClients,
    }
    return kinds[kind](bootstrap, topic, is_busy=is_busy)


def check_refused(*calls: Callable[[], object]) -> None:
    """Call inherited clients.

    Raises:
        AssertionError: a call was not refused.
    """
    for number, call in enumerate(calls):
        try:
            call()
        except ForkedClientError:
            continue
        raise AssertionError(f"call {number} of an inherited client was not refused")


def work(kind: str, bootstrap: str, topic: str) -> None:
    """Work with the process's own clients: send one record. The kind `admin` also describes the topic."""
    if kind == "asyncio":
        asyncio.run(_work_in_a_loop(bootstrap, topic))
        return
    with Producer(bootstrap) as producer:
        producer.send(topic, OWN_VALUE)
        producer.flush()
    if kind == "admin":
        with Admin(bootstrap) as admin:
            admin.describe_topic(topic)


async def _work_in_a_loop(bootstrap: str, topic: str) -> None:
    async with aio.Producer(bootstrap) as producer:
        await producer.send(topic, OWN_VALUE)
        await producer.flush()
