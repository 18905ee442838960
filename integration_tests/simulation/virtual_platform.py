# SPDX-License-Identifier: Apache-2.0
"""The simulated platform of a process: clocks, chance, threads, sockets, RocksDB.

Owns the places at which Lograft's code meets the platform, and their replacements while a world runs. All other code is the real code.
Only one world may run in a Python process at a time.

Not simulated: the cleaner and the scrub (threads of their own), metrics.
"""

from __future__ import annotations

import asyncio
import os
import random
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final
from unittest import mock

import lograft._client.probe
import lograft._client.python_channel
from lograft.internal.v1 import quorum_pb2

import brokerd.controller_client.lifecycle
import brokerd.process.quorum
import brokerd.process.server
import brokerd.publishing.publisher
import brokerd.replica.cleaning
import brokerd.replica.manager
import brokerd.replica.scrubbing
import metaquorum.controller_service.controller_service
import metaquorum.grpc_server.server
import metaquorum.net.carrier
import metaquorum.process.server
import metaquorum.replica.driver
from integration_tests.simulation.options import SNAPSHOT_NEVER_MS
from integration_tests.simulation.process import current_process
from integration_tests.simulation.two_disks import open_log_directories
from integration_tests.simulation.virtual_groups import groups_in_place
from integration_tests.simulation.virtual_loop import RIGHT_CLOCK, VirtualLoop, current_loop
from integration_tests.simulation.virtual_network import Network
from integration_tests.simulation.virtual_rocksdb import Databases, in_place
from integration_tests.simulation.virtual_tcp import VirtualSocket, VirtualTcp
from metaquorum.metadata.metadata_files import MetadataFiles, open_metadata
from metaquorum.replica import quorum_transport
from metaquorum.replica.quorum_settings import QuorumSettings, SnapshotSettings
from metaquorum.testing.scheduler import Scheduler
from storage.directory.data_directory import DataDirectory
from storage.log.flush import FlushWork
from storage.log.partition_log import PartitionLog
from storage.maintenance.flusher import OnDone

EPOCH_S: Final = 1_700_000_000
"""Wall clock at the beginning of a world, seconds since 1970."""

NO_SNAPSHOTS: Final = SnapshotSettings(interval_ms=SNAPSHOT_NEVER_MS)
"""Settings that make no snapshots within any run."""

QUORUM_ANSWERS: Final = {
    "_fetched": quorum_pb2.FetchQuorumResponse,
    "_voted": quorum_pb2.VoteResponse,
    "_begun": quorum_pb2.BeginQuorumEpochResponse,
    "_ended": quorum_pb2.EndQuorumEpochResponse,
    "_updated": quorum_pb2.UpdateVoterResponse,
}
"""The methods with which a quorum node receives answers, and the types of these answers."""

LARGE_PART_LIMITS: Final = {"KEEP_BYTES": 1, "PIECE_BYTES": 2, "FLUSH_BYTES": 2, "IN_FLIGHT_BYTES": 8}
"""Limits of publications that are made smaller together, as multiples of the first."""

DATA_PATH: Final = "/data"
"""Data directory of every server on its disk."""


class VirtualFlusher:
    """Replaces `GroupFlusher`. A flush takes a moment, and chance decides whether it takes effect at its beginning or its end."""

    def __init__(self, _thread_count: int = 1) -> None:
        self._process = current_process()

    def submit(self, log: PartitionLog, on_done: OnDone) -> FlushWork | None:
        """Run a flush of a log (see `GroupFlusher.submit`)."""
        work = log.begin_flush()
        if work is not None:
            self._process.flush(work.run, lambda error: on_done(work, error))
        return work

    def close(self) -> None:
        """Do nothing: there are no threads to end."""


class _Once:
    """Work that runs once, at the first call. Further calls get the same failure."""

    def __init__(self, work: Callable[[], None]) -> None:
        self._work: Callable[[], None] | None = work
        self._error: Exception | None = None

    def __call__(self) -> None:
        work, self._work = self._work, None
        if work is not None:
            try:
                work()
            except Exception as error:
                self._error = error
        if self._error is not None:
            raise self._error


class VirtualDiskThread:
    """Replaces `DiskThread`: it runs one piece of work after the other."""

    def __init__(self, name: str) -> None:
        self._process = current_process()
        self._queue: list[tuple[_Once, Callable[[BaseException | None], None]]] = []
        self._under_way: _Once | None = None
        self._closing: list[asyncio.Future[None]] = []
        self.name = name

    def submit(self, work: Callable[[], None], done: Callable[[BaseException | None], None]) -> None:
        """Queue work (see `DiskThread.submit`)."""
        self._queue.append((_Once(work), done))
        self._next()

    def settle(self) -> None:
        """Run everything now. The `done` callbacks come later."""
        for work in (self._under_way, *(work for work, _ in self._queue)):
            if work is not None:
                # The `done` callback gets the failure.
                with suppress(Exception):
                    work()

    async def close(self) -> None:
        """Wait until all work is done (see `DiskThread.close`)."""
        while self._under_way is not None or self._queue:
            idle = self._process.loop.create_future()
            self._closing.append(idle)
            await idle

    def _next(self) -> None:
        if self._under_way is not None or not self._queue:
            return
        self._under_way, done = self._queue.pop(0)

        def over(error: BaseException | None) -> None:
            self._under_way = None
            self._process.loop.call_soon(done, error)
            self._next()
            for idle in self._closing:
                if not idle.done():
                    idle.set_result(None)
            self._closing.clear()

        self._process.flush(self._under_way, over)


class _InertThread:
    """Replaces a thread that is left out."""

    def __init__(self, **_arguments: object) -> None:
        pass

    def start(self) -> None:
        """Do nothing."""

    def is_alive(self) -> bool:
        """Return False: the thread never ran."""
        return False

    def join(self) -> None:
        """Return at once: the thread never ran."""


async def _resolve_at_once(host: str, _port: int) -> tuple[str, ...]:
    """Return the name: the simulated network has no other addresses."""
    return (host,)


async def _resolve(host: str, _port: int) -> tuple[str, ...]:
    """Fail at once. Replaces the lookup of a name in a thread, which would take real time."""
    raise socket.gaierror(f"{host} is known to the simulated network alone")


def _is_formatted(_path: object) -> bool:
    return True


def _open_directory(settings: Any) -> DataDirectory:
    disk: Any = current_process().disk
    return DataDirectory.open(disk, DATA_PATH, cluster_id=settings.cluster_id, node_id=settings.node_id)


@contextmanager
def _clocks(scheduler: Scheduler) -> Generator[None]:
    """Make the clock functions return the time of the calling process's machine."""

    def monotonic_ms() -> float:
        loop = current_loop()
        return scheduler.now_ms if loop is None else loop.clock.local_ms(scheduler.now_ms)

    def wall_ns() -> int:
        loop = current_loop()
        clock = RIGHT_CLOCK if loop is None else loop.clock
        return EPOCH_S * 10**9 + clock.wall_offset_ms * 10**6 + int(scheduler.now_ms * clock.rate * 10**6)

    def monotonic() -> float:
        return monotonic_ms() / 1000

    def monotonic_ns() -> int:
        return int(monotonic_ms() * 10**6)

    def wall() -> float:
        return wall_ns() / 10**9

    with (
        mock.patch.object(time, "monotonic", monotonic),
        mock.patch.object(time, "monotonic_ns", monotonic_ns),
        mock.patch.object(time, "time", wall),
        mock.patch.object(time, "time_ns", wall_ns),
    ):
        yield


@contextmanager
def _chance(scheduler: Scheduler) -> Generator[None]:
    """Make random numbers come from the seed."""
    rng = scheduler.rng("platform")
    real_random, state = random.Random, random.getstate()

    def urandom(size: int) -> bytes:
        return rng.randbytes(size)

    def new_random(x: Any = None) -> random.Random:
        return real_random(rng.random() if x is None else x)

    random.seed(scheduler.seed)
    with (
        mock.patch.object(os, "urandom", urandom),
        mock.patch.object(random, "_urandom", urandom),
        mock.patch.object(random, "Random", new_random),
    ):
        try:
            yield
        finally:
            random.setstate(state)


@contextmanager
def platform(
    scheduler: Scheduler,
    network: Network,
    databases: Databases | None = None,
    snapshots: SnapshotSettings = NO_SNAPSHOTS,
    coordinator_count: int = 1,
    ingest_coordinator_count: int = 1,
    broker_count: int = 1,
    large_part_bytes: int | None = None,
) -> Generator[None]:
    """Replace the platform for all code that runs inside the context.

    Args:
        scheduler: virtual time.
        network: network between the machines.
        databases: images and snapshots of the metadata; None: new ones.
        snapshots: when brokers make snapshots. Voters have their own settings.
        coordinator_count: partitions of `__groups`.
        ingest_coordinator_count: partitions of `__ingests`.
        broker_count: brokers of the cluster.
        large_part_bytes: bytes from which parts of ingests count as large, with pieces and flushes to match; None: as in production.
    """

    async def is_gone(host: str, port: int) -> bool:
        process = current_process()
        await asyncio.sleep(network.delay_ms() / 1000)
        address = f"{host}:{port}"
        return not network.is_cut_off(process.machine, host) and not network.is_listening(address)

    def changing(decode: Callable[[bytes], Any], answer_type: Any) -> Callable[[bytes], Any]:
        """Return a decoder of voters' answers that lets the network change an answer now and then."""

        def take(answer: bytes) -> Any:
            if network.change_answer is not None:
                changed = network.change_answer(answer_type.FromString(answer), current_process().machine)
                answer = changed.SerializeToString()
            return decode(answer)

        return take

    def open_machine_metadata(_directory: Path) -> MetadataFiles:
        return open_metadata(kept.directory(current_process().machine))

    def quorum_settings(**settings: Any) -> QuorumSettings:
        return QuorumSettings(snapshots=snapshots, **settings)

    kept = databases or Databases(scheduler.rng("databases"))
    inert: Any = SimpleNamespace(Event=threading.Event, Thread=_InertThread)
    with ExitStack() as stack:
        kept.begin(Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="lograft-world-"))))
        stack.enter_context(in_place(kept))
        stack.enter_context(_clocks(scheduler))
        stack.enter_context(_chance(scheduler))
        stack.enter_context(groups_in_place(coordinator_count, ingest_coordinator_count, broker_count))

        def put(target: Any, name: str, value: Any) -> None:
            stack.enter_context(mock.patch.object(target, name, value))

        tcp = VirtualTcp(network)

        async def create_server(_loop: VirtualLoop, factory: Any, *, sock: VirtualSocket, backlog: int = 0) -> Any:
            del backlog
            return await tcp.create_server(factory, sock=sock)

        async def create_connection(_loop: VirtualLoop, factory: Any, host: str, port: int) -> Any:
            return await tcp.create_connection(factory, host, port)

        put(VirtualLoop, "create_server", create_server)
        put(VirtualLoop, "create_connection", create_connection)
        put(metaquorum.net.carrier, "listening_socket", VirtualSocket)
        for name, answer_type in QUORUM_ANSWERS.items():
            put(quorum_transport, name, changing(getattr(quorum_transport, name), answer_type))
        put(metaquorum.grpc_server.server, "listening_sockets", lambda host, port: [VirtualSocket(host, port)])
        put(lograft._client.python_channel, "resolve", _resolve_at_once)
        put(lograft._client.probe, "resolve", _resolve)
        put(brokerd.replica.manager, "GroupFlusher", VirtualFlusher)
        if large_part_bytes is not None:
            for name, factor in LARGE_PART_LIMITS.items():
                put(brokerd.publishing.publisher, name, factor * large_part_bytes)
        put(metaquorum.replica.driver, "DiskThread", VirtualDiskThread)
        put(brokerd.replica.cleaning, "threading", inert)
        put(brokerd.replica.scrubbing, "threading", inert)
        put(brokerd.controller_client.lifecycle, "is_gone", is_gone)
        put(metaquorum.controller_service.controller_service, "is_gone", is_gone)
        put(brokerd.process.server, "open_log_directories", open_log_directories)
        put(brokerd.process.quorum, "open_metadata", open_machine_metadata)
        put(metaquorum.process.server, "open_metadata", open_machine_metadata)
        put(brokerd.process.quorum, "QuorumSettings", quorum_settings)
        put(brokerd.process.quorum, "is_formatted", _is_formatted)
        put(brokerd.process.quorum, "_open_directory", _open_directory)
        yield
