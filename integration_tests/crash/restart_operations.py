# SPDX-License-Identifier: Apache-2.0
"""Restarts of a log at an offset, as operations of the crash enumeration: above the log, below it, inside it, for any kind of log.

After a crash during a restart, the log is either the old one, as after any crash, or empty at the offset (`History.settle_restart`).
Source: docs/storage.md section 3a; docs/storage_format.md section 5b.
"""

from __future__ import annotations

from integration_tests.crash.operations import COMPACT, LogOperation, damaged, flushed, keyed_again
from integration_tests.crash.stage import Stage
from storage.compaction.owner import LogCompaction


def restart_above(stage: Stage) -> None:
    """Restart above the log end, with an unflushed tail; then append, also in an older leader epoch."""
    stage.restart(50)
    stage.fill(5, epoch=0)
    stage.flush()
    stage.append(epoch=1)
    stage.close(clean=True)
    stage.open()
    stage.append(epoch=1)


def restart_below(stage: Stage) -> None:
    """Restart below the log start, then at 0; append at the old offsets, flush, truncate and remove."""
    stage.remove(20)
    stage.restart(6)
    stage.fill(12, epoch=2)
    stage.flush()
    stage.truncate(26)
    stage.remove(9)
    stage.restart(0)
    stage.fill(4, epoch=1)
    stage.flush()
    stage.remove(3)


def restart_inside(stage: Stage) -> None:
    """Restart at the base of a segment, at the log start, and at the log end, with indexes, seals and snapshots there."""
    stage.seal()
    stage.scrub()
    stage.restart(20)
    stage.restart(20)
    stage.fill(9, epoch=3)
    stage.seal()
    stage.scrub()
    stage.restart(stage.log.log_end_offset)
    stage.append(epoch=0)
    stage.flush()


def restart_damaged(stage: Stage) -> None:
    """Detect damage; the restart removes it with everything else."""
    stage.notice()
    stage.restart(2)
    stage.fill(3, epoch=1)
    stage.flush()


def restart_compacted(stage: Stage) -> None:
    """Restart a compacted log during another pass: the result of the pass is dropped, and all new records are dirty."""
    work = stage.begin_pass()
    work.build()
    cleaned = work.clean(next(iter(work.groups())))
    assert cleaned is not None
    stage.restart(0)
    for number in range(9):
        stage.put([(b"k%d" % (number % 3), b"new %d" % number), (b"u%d" % number, b"x")], epoch=5)
    stage.seal()
    assert not stage.log.swap(cleaned, now_ms=stage.now_ms)
    LogCompaction(stage.log).end(work.outcome())
    stage.compact()


RESTART_OPERATIONS: tuple[LogOperation, ...] = (
    LogOperation(name="restart above the log end", prepare=flushed, act=restart_above),
    LogOperation(name="restart below the log start", prepare=flushed, act=restart_below),
    LogOperation(name="restart inside", prepare=flushed, act=restart_inside),
    LogOperation(name="restart of a damaged log", prepare=damaged, act=restart_damaged),
    LogOperation(name="restart under a compaction", prepare=keyed_again, act=restart_compacted, settings=COMPACT),
)
"""All restarts. A new operation is added here."""
