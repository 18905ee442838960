# SPDX-License-Identifier: Apache-2.0
"""Watches the room of one log directory: who may write now, and the ballast.

`admit` stands before every append, `check_room` before what nobody waits for: moves and compaction. `admit` asks the disk
itself, at most once in `LOOK_INTERVAL_MS` and once in `LOOK_SHARE` of the soft limit that was admitted since, so that neither a
quiet nor a busy directory is judged by an old number. `tend` does what the ballast needs and may block for as long as the disk
takes.

Threads: `admit`, `check_room` and `state` may be called from any thread, `tend` from one at a time; the lock is not held
over a call to the disk.
Law: a disk that does not tell how much is free changes no state; its writes tell more.
Source: docs/storage.md section 8.
"""

from __future__ import annotations

import logging
import threading

from storage.errors import DiskError, DiskSpaceLowError
from storage.files.disk import Disk
from storage.files.names import BALLAST_FILE

from .ballast import Ballast
from .space import BallastMove, SpaceLimits, SpaceState, SpaceWatch

LOOK_INTERVAL_MS = 1_000
"""Milliseconds between two questions to the disk, while little is written."""

LOOK_SHARE = 16
"""After a soft limit divided by this was admitted, the disk is asked again at once."""

logger = logging.getLogger(__name__)


class SpaceGuard:
    """The guard of one log directory.

    Args:
        disk: its disk.
        directory: absolute path of the directory.
        limits: its limits.

    Raises:
        DiskAccessError: the directory cannot be used.
    """

    def __init__(self, disk: Disk, directory: str, limits: SpaceLimits) -> None:
        self._disk = disk
        self._directory = directory
        self._ballast = Ballast(disk, f"{directory}/{BALLAST_FILE}", limits.ballast_bytes)
        self._watch = SpaceWatch(limits, has_ballast=limits.ballast_bytes > 0 and self._ballast.is_there())
        self._lock = threading.Lock()
        self._looked_ms: int | None = None
        self._admitted_bytes = 0
        self._free_bytes: int | None = None

    @property
    def state(self) -> SpaceState:
        """The state at the last look."""
        return self._watch.state

    @property
    def free_bytes(self) -> int | None:
        """Free bytes at the last look; None before it."""
        return self._free_bytes

    def admit(self, size_bytes: int, *, now_ms: int, is_client: bool = True) -> None:
        """Let somebody write, or refuse.

        Args:
            size_bytes: how much it is.
            now_ms: a clock that does not go back, in milliseconds.
            is_client: a client's append; False for replication, which goes on while the directory is tight.

        Raises:
            DiskSpaceLowError: nothing may be written; free space, and try again.
        """
        self._admitted_bytes += size_bytes
        looked_ms = self._looked_ms
        if (
            looked_ms is None
            or now_ms - looked_ms >= LOOK_INTERVAL_MS
            or self._admitted_bytes * LOOK_SHARE >= self._watch.limits.soft_bytes > 0
        ):
            self.look(now_ms)
        state = self._watch.state
        if state is SpaceState.FULL or (state is SpaceState.TIGHT and is_client):
            raise self._refusal()

    def check_room(self, size_bytes: int, *, now_ms: int, is_freeing: bool = False) -> None:
        """Let somebody begin to write something large that nobody waits for.

        Args:
            size_bytes: how much it may become.
            now_ms: a clock that does not go back, in milliseconds.
            is_freeing: it gives back more than it takes, a little later, as compaction does: it may use what lies between the
                limits. False, as for a move: the directory has to be free, and to stay so.

        Raises:
            DiskSpaceLowError: there is too little room; nothing was begun.
        """
        state = self.look(now_ms)
        limits, free_bytes = self._watch.limits, self._free_bytes
        if free_bytes is None:
            # The disk does not tell; what is written will.
            return
        is_barred = state is SpaceState.FULL if is_freeing else state is not SpaceState.FREE
        reserve_bytes = limits.hard_bytes if is_freeing else limits.soft_bytes
        if is_barred or size_bytes > self._watch.room_bytes(free_bytes, reserve_bytes=reserve_bytes):
            raise DiskSpaceLowError(
                self._directory, free_bytes=free_bytes, needed_bytes=reserve_bytes, size_bytes=size_bytes
            )

    def look(self, now_ms: int) -> SpaceState:
        """Ask the disk how much is free, and return the state."""
        self._looked_ms = now_ms
        self._admitted_bytes = 0
        try:
            free_bytes = self._disk.free_bytes(self._directory)
        except DiskError as error:
            logger.error("directory=%s action=ask-free-space error=%r", self._directory, str(error))
            return self._watch.state
        with self._lock:
            before = self._watch.state
            self._free_bytes = free_bytes
            self._watch.note_free(free_bytes)
            state = self._watch.state
        if state is not before:
            level = logging.INFO if state is SpaceState.FREE else logging.CRITICAL
            logger.log(
                level,
                "log directory is %s: directory=%s free_bytes=%d soft_bytes=%d hard_bytes=%d",
                state.value,
                self._directory,
                free_bytes,
                self._watch.limits.soft_bytes,
                self._watch.limits.hard_bytes,
            )
        return state

    def tend(self, now_ms: int) -> BallastMove:
        """Look, and do what the ballast needs; blocks. Return what was done.

        Raises:
            DiskFailedError, DiskAccessError: the disk.
        """
        self.look(now_ms)
        move = self._watch.ballast_move()
        if move is BallastMove.TAKE and self._ballast.take():
            self._note_ballast(has_ballast=True)
        elif move is BallastMove.GIVE_BACK:
            self.give_back()
        return move

    def give_back(self) -> bool:
        """Remove the ballast; False: it was not there. Blocks.

        Raises:
            DiskFailedError, DiskAccessError: the disk.
        """
        if not self._watch.has_ballast:
            return False
        self._ballast.give_back()
        self._note_ballast(has_ballast=False)
        return True

    def _note_ballast(self, *, has_ballast: bool) -> None:
        with self._lock:
            self._watch.has_ballast = has_ballast
        logger.info("directory=%s ballast_bytes=%d is_held=%s", self._directory, self._ballast.size_bytes, has_ballast)

    def _refusal(self) -> DiskSpaceLowError:
        return DiskSpaceLowError(
            self._directory, free_bytes=self._free_bytes or 0, needed_bytes=self._watch.limits.soft_bytes
        )


def make_room(disk: Disk, directory: str, limits: SpaceLimits) -> bool:
    """Give the ballast of a full directory back before a start, which has small files of its own to write; True: it was there.

    Raises:
        DiskFailedError, DiskAccessError: the disk.
    """
    guard = SpaceGuard(disk, directory, limits)
    return guard.look(0) is SpaceState.FULL and guard.give_back()
