# SPDX-License-Identifier: Apache-2.0
"""Moves the logs of replicas between the log directories of this broker, while they are used.

Theory of operation. A task on the event loop carries out one move after the other; reads, writes and syncs run in
threads. Rounds copy the difference between the log and its copy (`storage.directory.move_plan`). The first round runs
at a limited rate. Later rounds only follow the appends, as fast as they can. When little is left, the replica is
locked. It refuses appends and advises clients to retry in 50 ms. Everything is flushed, the rest is copied, the copy
becomes the log (`storage.directory.move_switch`), and the replica continues with it. Readers notice nothing.

Laws
    A move never brings its target below the soft limit.
    A move that ends before its switch leaves the replica as it was. A failed directory is reported to the replica
    manager.
    A replica is not compacted while it moves, and is not closed before its move has ended.

Source: docs/storage.md section 11; KIP-113.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from lograft.wire.codes import ErrorCode

from brokerd.clock import monotonic_ms
from brokerd.failure import refused
from brokerd.replica.log_opening import LogOpening
from brokerd.replica.replica import Replica
from storage.directory.directories import LogDirectories, LogDirectory
from storage.directory.move_future import MoveFuture
from storage.directory.move_plan import CopyRound, plan_round
from storage.directory.move_source import MoveSource
from storage.directory.move_switch import clean_up, give_up, switch
from storage.errors import DiskAccessError, DiskFailedError, MoveInDoubtError, StorageError
from storage.files.names import MOVED_FROM_FILE, TOPIC_ID_BYTES, PartitionIdentity, partition_directory_name
from storage.files.rate_limit import RateLimit, WorkStopped
from storage.log.partition_log import PartitionLog

MOVE_BYTES_PER_S: Final = 64 * 1024 * 1024
"""Most bytes of a log that a move copies in a second, without what is appended in the meantime."""

MAX_MOVES: Final = 1_000
"""Most moves that wait or are under way; further ones are refused."""

MAX_ENDED_MOVES: Final = 1_000
"""Most ended moves that are still reported; the oldest is forgotten."""

MAX_LARGER_ROUNDS: Final = 16
"""Rounds that may leave more to copy than the round before. Then the appends are faster than the target, and the move ends."""

logger = logging.getLogger(__name__)


class MoveState(Enum):
    """Progress of a move."""

    WAITING = "waiting"
    COPYING = "copying"
    SWITCHING = "switching"
    DONE = "done"
    FAILED = "failed"


@dataclass(slots=True, kw_only=True)
class Move:
    """One move.

    Attributes:
        topic: topic name.
        partition: partition number, from 0.
        source: log directory at its start.
        target: log directory to move to.
        state: its progress.
        size_bytes: size of the log at its start.
        copied_bytes: bytes copied so far; may exceed `size_bytes`, because the log grows.
        error: why it failed.
        stopping: set once the move must end.
        task: the task that carries it out.
    """

    topic: str
    partition: int
    source: LogDirectory
    target: LogDirectory
    state: MoveState = MoveState.WAITING
    size_bytes: int = 0
    copied_bytes: int = 0
    error: str | None = None
    stopping: threading.Event = field(default_factory=threading.Event)
    task: asyncio.Task[None] | None = None

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"

    @property
    def has_ended(self) -> bool:
        """True if nothing more happens."""
        return self.state in (MoveState.DONE, MoveState.FAILED)


class _MoveEnded(Exception):
    """The move cannot continue; the message says why."""


class ReplicaMoves:
    """The moves of one broker; only the methods here write a `Move`, and `Replica.is_moving`.

    Args:
        directories: the log directories.
        opening: opens the log in the target.
        on_disk_failed: called when a log directory has failed.
        bytes_per_s: most bytes copied in a second.
    """

    def __init__(
        self,
        directories: LogDirectories,
        opening: LogOpening,
        on_disk_failed: Callable[[LogDirectory, DiskFailedError], None],
        *,
        bytes_per_s: int = MOVE_BYTES_PER_S,
    ) -> None:
        self._directories = directories
        self._opening = opening
        self._on_disk_failed = on_disk_failed
        self._bytes_per_s = bytes_per_s
        self._turn = asyncio.Semaphore(1)
        self._moves: dict[Replica, Move] = {}
        self._ended: list[Move] = []

    def report(self) -> list[Move]:
        """Return the moves that wait or are under way, then the ended ones, oldest first."""
        return [*self._moves.values(), *self._ended]

    def start(self, replica: Replica, target: LogDirectory) -> Move | None:
        """Begin a move; None if the log already is in the target.

        Raises:
            RefusedError: the state of the replica or the directory does not allow it, or too many moves wait.
        """
        source = replica.directory
        if not replica.is_writable:
            raise refused(ErrorCode.STORAGE_FAILED, "the log of this replica is not open: nothing can be moved")
        known = self._moves.get(replica)
        if known is not None and known.target is target:
            return known
        if known is not None:
            message = f"{replica} is being moved to another directory: wait for the end of that move"
            raise refused(ErrorCode.OVERLOADED, message, retry_after_ms=1_000)
        if target is source:
            return None
        if target.failure is not None:
            raise refused(ErrorCode.STORAGE_FAILED, "this log directory has failed: name another one")
        if len(self._moves) >= MAX_MOVES:
            raise refused(ErrorCode.OVERLOADED, f"{MAX_MOVES} moves wait: try again later", retry_after_ms=1_000)
        move = Move(topic=replica.topic, partition=replica.partition, source=source, target=target)
        self._moves[replica] = move
        move.task = asyncio.create_task(self._run(replica, move), name=f"move of {replica}")
        return move

    async def end(self, replica: Replica) -> None:
        """End the move of a replica, if there is one: at once before its switch, else after it."""
        move = self._moves.get(replica)
        if move is not None and move.task is not None:
            move.stopping.set()
            await asyncio.wait([move.task])

    async def stop(self) -> None:
        """End all moves. Idempotent."""
        await asyncio.gather(*(self.end(replica) for replica in list(self._moves)))

    async def _run(self, replica: Replica, move: Move) -> None:
        try:
            async with self._turn:
                await self._move(replica, move)
        except Exception as error:
            # Whatever the error is, it concerns only this move.
            move.state = MoveState.FAILED
            move.error = "it was told to end" if isinstance(error, WorkStopped) else str(error)
            logger.error("move ended: partition=%s from=%s to=%s: %r", move, move.source, move.target, error)
            self._note_failures(move)
        finally:
            replica.is_moving = False
            del self._moves[replica]
            self._ended = [*self._ended, move][-MAX_ENDED_MOVES:]

    def _note_failures(self, move: Move) -> None:
        for directory in (move.source, move.target):
            failure = directory.disk.failure
            if failure is not None:
                self._on_disk_failed(directory, failure)

    async def _move(self, replica: Replica, move: Move) -> None:
        _check_goes_on(replica, move)
        replica.is_moving = True
        move.state = MoveState.COPYING
        source = replica.run_step(lambda log, _: MoveSource(log))
        move.size_bytes = source.size_bytes
        identity = PartitionIdentity(replica.topic_id, replica.partition)
        name = partition_directory_name(identity)
        future = MoveFuture(
            move.source.move_end, move.target.move_end, partition_name=name, move_id=secrets.token_bytes(TOPIC_ID_BYTES)
        )
        await asyncio.to_thread(_check_begin, source, move, name)
        try:
            await asyncio.to_thread(future.create)
            last = await self._copy(replica, move, source, future)
            move.state = MoveState.SWITCHING
            old = await self._switch(replica, move, source, future, last)
        except Exception as error:
            # In doubt or after the switch, the copy is (or may be) the log.
            if not move.has_ended and not isinstance(error, MoveInDoubtError):
                await asyncio.to_thread(_give_up, future, move)
            raise
        self._directories.relocate(name, move.target)
        logger.info(
            "moved: partition=%s from=%s to=%s copied_bytes=%d", move, move.source, move.target, move.copied_bytes
        )
        await asyncio.to_thread(_close_and_clean_up, old, move, future)
        self._note_failures(move)

    async def _copy(self, replica: Replica, move: Move, source: MoveSource, future: MoveFuture) -> CopyRound:
        """Copy until little is left; return the last round."""
        rate = RateLimit(
            self._bytes_per_s,
            now_ms=monotonic_ms,
            wait_ms=lambda timeout_ms: move.stopping.wait(timeout_ms / 1000),
        )
        wait: Callable[[int], None] = rate.take
        larger_rounds = 0
        work = plan_round(replica.run_step(lambda _log, _high_watermark: source.view()), future.copied)
        while True:
            await asyncio.to_thread(future.carry_out, work, _pace(move, wait))
            await asyncio.to_thread(future.copy_caches, _pace(move, wait))
            _check_goes_on(replica, move)
            left = plan_round(replica.run_step(lambda _log, _high_watermark: source.view()), future.copied)
            if left.may_switch:
                return left
            larger_rounds += left.size_bytes >= work.size_bytes
            if larger_rounds >= MAX_LARGER_ROUNDS:
                raise _MoveEnded("records are appended faster than the target can take them: try it at a quieter time")
            work, wait = left, _no_wait

    async def _switch(
        self,
        replica: Replica,
        move: Move,
        source: MoveSource,
        future: MoveFuture,
        left: CopyRound,
    ) -> PartitionLog:
        """Make the copy the log; return the old log, which the caller closes."""
        target = move.target

        def open_log(path: str) -> PartitionLog:
            identity = PartitionIdentity(replica.topic_id, replica.partition)
            return self._opening.open_at(identity, target, path, replica.settings).log

        async with replica.locked_and_flushed():
            last = plan_round(source.view(), future.copied)
            move.copied_bytes += last.size_bytes
            try:
                log = await asyncio.to_thread(
                    switch,
                    source,
                    future,
                    target.move_end,
                    last=last,
                    end_offset=replica.log_end_offset,
                    open_log=open_log,
                )
            except MoveInDoubtError as error:
                # Before anything can be appended again.
                replica.fail(str(error))
                raise
            move.state = MoveState.DONE
            return replica.switch_log(log, target)


def _pace(move: Move, wait: Callable[[int], None]) -> Callable[[int], None]:
    """Return the function that a thread calls before it copies bytes."""

    def pace(size_bytes: int) -> None:
        if move.stopping.is_set():
            raise WorkStopped
        wait(size_bytes)
        # Like a client's append: a move must not make the target tight.
        move.target.space.admit(size_bytes, now_ms=monotonic_ms())
        move.copied_bytes += size_bytes

    return pace


def _no_wait(_size_bytes: int) -> None:
    """Do not wait: what was appended in the meantime is copied at full speed, or a move would never end."""


def _check_goes_on(replica: Replica, move: Move) -> None:
    if move.stopping.is_set():
        raise WorkStopped
    if not replica.is_writable:
        raise _MoveEnded("the replica serves no more")
    if move.target.failure is not None:
        raise _MoveEnded(f"the target has failed: {move.target.failure}")


def _check_begin(source: MoveSource, move: Move, name: str) -> None:
    """Refuse a move without space, or one that would mix with remains of an earlier move. Runs in a thread."""
    move.target.space.check_room(source.size_bytes, now_ms=monotonic_ms())
    if source.disk.exists(f"{source.directory}/{MOVED_FROM_FILE}"):
        raise DiskAccessError(
            source.directory, "an earlier move is not cleaned up: repair its source, restart the broker"
        )
    path = f"{move.target.partitions_path}/{name}"
    if move.target.disk.exists(path):
        raise DiskAccessError(path, "an earlier move left this directory: restart the broker, which removes it")


def _give_up(future: MoveFuture, move: Move) -> None:
    if move.target.disk.failure is not None:
        return
    try:
        give_up(future, move.target.move_end)
    except StorageError as error:
        logger.error("what is left of a move is removed by the next start: %s", error)


def _close_and_clean_up(old: PartitionLog, move: Move, future: MoveFuture) -> None:
    try:
        old.close(clean=False)
        clean_up(
            move.source.move_end,
            move.target.move_end,
            partition_name=future.partition_name,
            move_id=future.move_id,
        )
    except StorageError as error:
        logger.error("what is left of a move is removed by the next start: %s", error)
