# SPDX-License-Identifier: Apache-2.0
"""Repairs of damaged segments among the named operations of the crash enumeration.

Source: docs/storage.md section 6a.
"""

from __future__ import annotations

from integration_tests.crash.operations import LogOperation, damaged, flushed
from integration_tests.crash.stage import Stage


def repair(stage: Stage) -> None:
    """The damage is found and repaired; appends, a clean stop and a scrub follow."""
    stage.notice()
    stage.repair()
    stage.append(epoch=2)
    stage.flush()
    stage.close(clean=True)
    stage.open()
    stage.scrub()
    stage.append(epoch=2)


def sealed_and_damaged(stage: Stage) -> None:
    """A flushed batch of a segment with a seal, snapshots and indexes has changed; that is not known yet."""
    flushed(stage)
    stage.seal()
    stage.scrub()
    stage.close(clean=True)
    stage.open()
    stage.damage(stage.history.sent[5])


def repair_and_change(stage: Stage) -> None:
    """The damage is found and repaired; the log start moves into the segment, then a cut takes its end; others follow."""
    stage.notice()
    stage.repair()
    stage.remove(stage.log.log_start_offset + 3)
    stage.truncate(14)
    stage.fill(4, epoch=2)
    stage.flush()


def active_and_damaged(stage: Stage) -> None:
    """A flushed batch of the segment that is appended to has changed; that is not known yet."""
    flushed(stage)
    stage.flush()
    stage.close(clean=True)
    stage.open()
    stage.damage(stage.history.sent[-2])


def repair_active(stage: Stage) -> None:
    """The damage is found, the segment rolled and repaired; appends follow, none of which was flushed before."""
    stage.notice()
    stage.repair()
    stage.fill(3, epoch=2)
    stage.flush()
    stage.append(epoch=2)


REPAIR_OPERATIONS: tuple[LogOperation, ...] = (
    LogOperation(name="repair", prepare=damaged, act=repair),
    LogOperation(name="repair of a sealed segment", prepare=sealed_and_damaged, act=repair_and_change),
    LogOperation(name="repair of the active segment", prepare=active_and_damaged, act=repair_active),
)
"""All of them; a new one is added here."""
