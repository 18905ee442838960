# SPDX-License-Identifier: Apache-2.0
"""A whole cluster inside another program, on its own thread.

Owns the thread and its event loop. Any thread may use it, with or without an event loop of its own (a Spark driver, a notebook, a
test). Two instances in one process are two clusters.
"""

from __future__ import annotations

import asyncio
import tempfile
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from lograft.wire.malloc import tune_allocator

from brokerd.errors import BrokerError
from brokerd.process.event_loop import new_event_loop
from brokerd.process.server import BrokerServer
from brokerd.process.standalone import standalone_settings

START_WAIT_MS: Final = 30_000
"""Maximum milliseconds that `start` waits until the cluster serves."""

STOP_WAIT_MS: Final = 30_000
"""Maximum milliseconds that `stop` waits until the thread ends."""


class EmbeddedCluster:
    """A cluster of one node in this process; a context manager.

    Args:
        data_dir: data directory, which `stop` keeps. None: a temporary directory, which `stop` deletes.
        port: public port on the loopback address. 0: any free port.
        more_data_dirs: further log directories, which `stop` keeps.
    """

    def __init__(
        self, data_dir: str | Path | None = None, *, port: int = 0, more_data_dirs: Sequence[str | Path] = ()
    ) -> None:
        self._given_directory = None if data_dir is None else Path(data_dir)
        self._more_directories = tuple(map(Path, more_data_dirs))
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        self._port = port
        self._thread: threading.Thread | None = None
        self._started = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop_asked: asyncio.Event | None = None
        self._bootstrap: str | None = None
        self._failure: BaseException | None = None

    @property
    def bootstrap(self) -> str:
        """Bootstrap address for clients, `127.0.0.1:port`. Raises BrokerError before `start` and after `stop`."""
        if self._bootstrap is None:
            raise BrokerError("the embedded cluster is not running: call start() or use it as a context manager")
        return self._bootstrap

    def start(self) -> Self:
        """Start the cluster and wait until it serves.

        Raises:
            BrokerError, StorageError: the cluster could not start. No part of it keeps running.
        """
        if self._thread is not None:
            raise BrokerError("an embedded cluster starts once: make another one")
        tune_allocator()
        directory = self._given_directory
        if directory is None:
            self._temporary = tempfile.TemporaryDirectory(prefix="lograft-embedded-")
            directory = Path(self._temporary.name)
        self._thread = threading.Thread(target=self._run, args=(directory,), name="lograft-embedded", daemon=True)
        self._thread.start()
        if not self._started.wait(START_WAIT_MS / 1000):
            self.stop()
            raise BrokerError(f"the embedded cluster does not serve after {START_WAIT_MS} ms")
        if self._bootstrap is None:
            failure = self._failure
            self.stop()
            raise failure if failure is not None else BrokerError("the embedded cluster ended while it started")
        return self

    def stop(self) -> None:
        """Stop the cluster cleanly and wait until its thread has ended. Idempotent.

        Raises:
            BrokerError: the cluster had failed before this call, or its thread does not end in time.
        """
        thread, loop, stop_asked = self._thread, self._loop, self._stop_asked
        if thread is None:
            return
        if loop is not None and stop_asked is not None and thread.is_alive():
            # The loop may close between the check and the call. The thread is about to end by itself then.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(stop_asked.set)
        thread.join(STOP_WAIT_MS / 1000)
        was_running, self._bootstrap = self._bootstrap is not None, None
        if thread.is_alive():
            raise BrokerError(f"the embedded cluster does not end after {STOP_WAIT_MS} ms")
        if self._temporary is not None:
            self._temporary.cleanup()
            self._temporary = None
        failure, self._failure = self._failure, None
        if was_running and failure is not None:
            raise BrokerError(f"the embedded cluster had failed: {failure}") from failure

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _run(self, directory: Path) -> None:
        try:
            with asyncio.Runner(loop_factory=new_event_loop) as runner:
                runner.run(self._serve(directory))
        except BaseException as error:
            # `start` or `stop` raises this in its caller's thread: no other code sees how this thread ends.
            self._failure = error
        finally:
            self._started.set()

    async def _serve(self, directory: Path) -> None:
        self._stop_asked = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        server = BrokerServer(
            standalone_settings(directory, port=self._port, more_data_directories=self._more_directories)
        )
        try:
            await server.start()
            await server.wait_serving(timeout_ms=START_WAIT_MS)
            self._bootstrap = str(server.address)
            self._started.set()
            failed = asyncio.create_task(server.wait_failed())
            stopping = asyncio.create_task(self._stop_asked.wait())
            try:
                await asyncio.wait((failed, stopping), return_when=asyncio.FIRST_COMPLETED)
                if failed.done():
                    failed.result()
            finally:
                for task in (failed, stopping):
                    task.cancel()
                await asyncio.gather(failed, stopping, return_exceptions=True)
        finally:
            await server.stop()
