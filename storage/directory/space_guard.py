# SPDX-License-Identifier: Apache-2.0
"""Watches the space of one log directory: who may write now, and the ballast.

Every append first calls `admit`; a move or a compaction calls `check_room`. `admit` asks the disk at most once in
`LOOK_INTERVAL_MS`, and again after the soft limit divided by `LOOK_SHARE` was admitted. So the number is never old,
whether the directory is quiet or busy. `tend` writes or removes the ballast and may block for as long as the disk
takes. The quorum removes it too, by `DataDirectory.release_ballast`, if it cannot wait for `tend`, which notices that.

Threads: any thread may call `admit`, `check_room` and `state`, and one at a time `tend`. The lock is not held over a
call to the disk.
Law: if the disk does not answer, the state stays; the next write will show what is wrong.
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
"""Milliseconds between two questions to the disk while little is written."""

LOOK_SHARE = 16
"""The guard asks the disk again after it has admitted the soft limit divided by this."""

logger = logging.getLogger(__name__)


class SpaceGuard:
    """The space guard of one log directory.

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
        """Free bytes at the last look; None before the first one."""
        return self._free_bytes

    def admit(self, size_bytes: int, *, now_ms: int, is_client: bool = True) -> None:
        """Admit a write, or refuse it.

        Args:
            size_bytes: size of the write.
            now_ms: monotonic clock in milliseconds.
            is_client: True for an append of a client. False for replication, which continues while the directory is
                tight.

        Raises:
            DiskSpaceLowError: the write is refused; free space and try again.
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
        """Check the space for a large background write, before it begins.

        Args:
            size_bytes: most bytes that it may write.
            now_ms: monotonic clock in milliseconds.
            is_freeing: True if the work frees more than it takes, a little later, as compaction does. It may use the
                space between the limits. False, as for a move: the directory must be free and stay free.

        Raises:
            DiskSpaceLowError: there is too little space.
        """
        state = self.look(now_ms)
        limits, free_bytes = self._watch.limits, self._free_bytes
        if free_bytes is None:
            # The disk does not answer; the write itself will show what is wrong.
            return
        is_barred = state is SpaceState.FULL if is_freeing else state is not SpaceState.FREE
        reserve_bytes = limits.hard_bytes if is_freeing else limits.soft_bytes
        if is_barred or size_bytes > self._watch.room_bytes(free_bytes, reserve_bytes=reserve_bytes):
            raise DiskSpaceLowError(
                self._directory, free_bytes=free_bytes, needed_bytes=reserve_bytes, size_bytes=size_bytes
            )

    def look(self, now_ms: int) -> SpaceState:
        """Ask the disk for its free bytes, and return the state."""
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
        """Measure, and write or remove the ballast as needed. Blocks. Return the action.

        Raises:
            DiskFailedError, DiskAccessError: the disk.
        """
        if self._watch.has_ballast and not self._ballast.is_there():
            # A write of the quorum could not wait (`DataDirectory.release_ballast`).
            self._note_ballast(has_ballast=False)
        self.look(now_ms)
        move = self._watch.ballast_move()
        if move is BallastMove.TAKE and self._ballast.take():
            self._note_ballast(has_ballast=True)
        elif move is BallastMove.GIVE_BACK:
            self.give_back()
        return move

    def give_back(self) -> bool:
        """Remove the ballast; False if it did not exist. Blocks.

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
    """Remove the ballast of a full directory before a start, which must write small files; True if it existed.

    Raises:
        DiskFailedError, DiskAccessError: the disk.
    """
    guard = SpaceGuard(disk, directory, limits)
    return guard.look(0) is SpaceState.FULL and guard.give_back()
