# SPDX-License-Identifier: Apache-2.0
"""Faults of a disk with real files: power losses within calls, refused calls, flipped bits.

Owns names and numbers. `sim_store` applies them; `sim_faults` decides when bits flip.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

from storage.testing.sim_tree import Crash

CALLS_BEFORE_POWER_LOSS: Final = 14
"""The power is lost within this many calls of the disk, unless the operation ends before."""

OFTEN_SHARE: Final = 0.01
"""Factor for the faults of appends, flushes and votes, which are much more frequent than truncations and installs."""

APPEND_CALLS: Final = ("append", "append", "create_file")
"""Calls of the disk that may be refused in an append."""

FLUSH_CALLS: Final = ("sync", "sync", "create_file", "rename", "sync_directory")
"""Calls that may be refused in a flush."""

VOTE_CALLS: Final = ("create_file", "append", "sync", "rename", "sync_directory")
"""Calls that may be refused in a write of the vote."""

CUT_CALLS: Final = ("write", "sync", "truncate", "remove", "rename", "sync_directory")
"""Calls that may be refused when a log is truncated or trimmed."""


CRASHES: Final = (*Crash, Crash.TEAR, Crash.PREFIX)
"""Ways to lose a process; the more instructive ones occur twice."""

EPOCH_BYTES: Final = range(12, 16)
"""Bytes of a batch with its leader epoch, which no checksum covers."""


class Damage(Enum):
    """What a bit flip hits."""

    BATCH = "a flushed batch"
    EPOCH = "the epoch of a flushed batch"
    VOTE_COPY = "one copy of the vote file"
    VOTES = "both copies of the vote file"
    OTHER_FILE = "another file of the log"


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """How often a disk fails, as chances from 0 to 1.

    Attributes:
        power_loss: the power is lost during a truncation, a trim, an install or a start (`OFTEN_SHARE` of it: during any other call).
        refusal: a truncation, a trim or an install is refused (`OFTEN_SHARE` of it: any other call).
    """

    power_loss: float = 0.0
    refusal: float = 0.0
