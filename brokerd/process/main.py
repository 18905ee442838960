# SPDX-License-Identifier: Apache-2.0
"""Runs one broker as the program of a process: event loop, signals, logging, exit code.

Owns what a process may do only once. Another program must not use it: `brokerd.embedded` is for that.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
import sys
from collections.abc import Callable

from lograft.wire.malloc import tune_allocator

from brokerd.errors import BrokerError
from brokerd.memory.process_memory import trim_after_bursts, use_one_arena
from brokerd.process.event_loop import new_event_loop
from brokerd.process.server import BrokerServer
from brokerd.process.settings import BrokerSettings
from metaquorum.collector import freeze_started
from metaquorum.process.server import ServerError
from metaquorum.process.settings import SettingsError
from metaquorum.replica.log_store import DamagedLogError
from metaquorum.replica.quorum_node import QuorumError
from storage.errors import StorageError

logger = logging.getLogger(__name__)

START_ERRORS = (BrokerError, SettingsError, ServerError, QuorumError, DamagedLogError, StorageError, OSError)
"""Errors that the person who starts a broker can fix. They are printed as one line, without a traceback."""

SERVING_WAIT_MS = 60_000
"""Milliseconds without service after which a log line says that clients are not served yet; repeats."""


def run_process(settings: BrokerSettings, *, on_ready: Callable[[BrokerServer], None]) -> int:
    """Run a broker until SIGTERM, SIGINT or a failure.

    Args:
        settings: checked settings.
        on_ready: called once, as soon as the broker serves clients.

    Returns:
        The exit code: 0 after a clean shutdown, 1 after a failure. A failure is one line on stderr.
    """
    if not __debug__:
        sys.stderr.write("brokerd: error: refusing to run under python -O: the assertions protect the log\n")
        return 1
    tune_allocator()
    use_one_arena()
    try:
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            runner.run(_serve(settings, on_ready))
    except START_ERRORS as error:
        sys.stderr.write(f"brokerd: error: {error}\n")
        return 1
    return 0


async def _serve(settings: BrokerSettings, on_ready: Callable[[BrokerServer], None]) -> None:
    stop_asked = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop_asked.set)
    server = BrokerServer(settings)
    server.use_short_turns()
    server.use_frozen_heap()
    starting = asyncio.create_task(server.start(), name="start")
    stopping = asyncio.create_task(stop_asked.wait(), name="stop")
    try:
        # A first start may wait for peers that do not answer. A signal must end that wait too.
        await asyncio.wait((starting, stopping), return_when=asyncio.FIRST_COMPLETED)
        if not starting.done():
            starting.cancel()
            await asyncio.gather(starting, return_exceptions=True)
            return
        starting.result()
        freeze_started()
        ready = asyncio.create_task(_announce(server, on_ready), name="ready")
        failed = asyncio.create_task(server.wait_failed(), name="failed")
        trimming = asyncio.create_task(trim_after_bursts(), name="trim")
        try:
            await asyncio.wait((stopping, failed), return_when=asyncio.FIRST_COMPLETED)
            if failed.done():
                failed.result()
        finally:
            for task in (ready, failed, trimming):
                task.cancel()
            await asyncio.gather(ready, failed, trimming, return_exceptions=True)
    finally:
        stopping.cancel()
        await server.stop()
        # The process ends and frees everything. Without this, the garbage collector would search very many partitions for seconds.
        gc.freeze()


async def _announce(server: BrokerServer, on_ready: Callable[[BrokerServer], None]) -> None:
    while True:
        try:
            await server.wait_serving(timeout_ms=SERVING_WAIT_MS)
        except BrokerError as error:
            logger.warning("%s", error)
        else:
            on_ready(server)
            return
