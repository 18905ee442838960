# SPDX-License-Identifier: Apache-2.0
"""The disks of a machine with two: the first has the data directory, the second only a log directory.

Owns what happens to the second disk. Both lose power together, and their process ends for both. Only the second one fails alone.
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
    """The first disk of a machine, with its second one.

    Attributes:
        second: the second disk.
        is_second_failing: True from the order to fail until the end of the process that meets the failure.
    """

    def __init__(self) -> None:
        super().__init__()
        self.second = SimDisk()
        self.is_second_failing = False

    def crash(self, how: Crash, rng: random.Random) -> None:
        """Crash both disks (see `SimDisk.crash`)."""
        super().crash(how, rng)
        self.second.crash(how, rng)
        self.is_second_failing = False

    def has_unsynced(self) -> bool:
        """Return True if either disk has unsynced data (see `SimDisk.has_unsynced`)."""
        return super().has_unsynced() or self.second.has_unsynced()

    def fail_second(self) -> bool:
        """Let the next write or sync of the second disk fail, and everything after it. False if it fails already."""
        if self.is_second_failing:
            return False
        self.is_second_failing = True
        for operation in ("append", "sync"):
            self.second.refuse(operation, SECOND_PATH, Refusal.IO_ERROR)
        return True

    def replace_second(self) -> None:
        """Replace the second disk by an empty one."""
        self.second = SimDisk()

    def format_second(self, cluster_id: str, node_id: int, directory_id: bytes) -> None:
        """Create a new log directory on the second disk."""
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
    """Open the further log directory on the second disk. Replaces `brokerd.replica.log_directories.open_log_directories`."""
    disk: Any = first.disk
    further = [
        DataDirectory.open(
            disk.second, str(path), cluster_id=first.cluster_id, node_id=first.node_id, has_metadata=False
        )
        for path in paths
    ]
    return OpenedDirectories(first, further, limits)
