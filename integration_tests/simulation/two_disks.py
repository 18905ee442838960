# SPDX-License-Identifier: Apache-2.0
"""The disks of a machine that has two: the first one is the disk of the machine, the second one has a log directory only.

Owns what happens to the second disk. Both lose power together, and their processes end together; only the second one fails alone.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from brokerd.replica.log_directories import OpenedDirectories
from storage.directory.data_directory import DataDirectory
from storage.directory.space import SpaceLimits
from storage.testing.sim_disk import Crash, Refusal, SimDisk

SECOND_PATH: Final = "/second"
"""Log directory on the second disk."""


class TwoDisks(SimDisk):
    """The disk of a machine that has a second one.

    Attributes:
        second: the second disk.
        is_second_failing: True from when it was told to fail until the process that meets it ends.
    """

    def __init__(self) -> None:
        super().__init__()
        self.second = SimDisk()
        self.is_second_failing = False

    def crash(self, how: Crash, rng: random.Random) -> None:
        """See `SimDisk.crash`."""
        super().crash(how, rng)
        self.second.crash(how, rng)
        self.is_second_failing = False

    def has_unsynced(self) -> bool:
        """See `SimDisk.has_unsynced`."""
        return super().has_unsynced() or self.second.has_unsynced()

    def fail_second(self) -> bool:
        """Let the next write or sync of the second disk fail, and everything after it; False if that is so already."""
        if self.is_second_failing:
            return False
        self.is_second_failing = True
        for operation in ("append", "sync"):
            self.second.refuse(operation, SECOND_PATH, Refusal.IO_ERROR)
        return True

    def replace_second(self) -> None:
        """Take another disk, which is empty."""
        self.second = SimDisk()

    def format_second(self, cluster_id: str, node_id: int, directory_id: bytes) -> None:
        """Make a new log directory on the second disk."""
        self.second.make_directory(SECOND_PATH)
        self.second.sync_directory("/")
        DataDirectory.create(
            self.second,
            SECOND_PATH,
            cluster_id=cluster_id,
            node_id=node_id,
            directory_id=directory_id,
            has_metadata=False,
        ).close()


def open_log_directories(first: DataDirectory, paths: Sequence[Path], limits: SpaceLimits) -> OpenedDirectories:
    """In the place of `brokerd.replica.log_directories.open_log_directories`: the further directory lies on the second disk."""
    disk: Any = first.disk
    further = [
        DataDirectory.open(
            disk.second, str(path), cluster_id=first.cluster_id, node_id=first.node_id, has_metadata=False
        )
        for path in paths
    ]
    return OpenedDirectories(first, further, limits)
