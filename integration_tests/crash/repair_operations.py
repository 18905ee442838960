# SPDX-License-Identifier: Apache-2.0
"""Repairs of damaged segments, as operations of the crash enumeration.

Source: docs/storage.md section 6a.
"""

from __future__ import annotations

from integration_tests.crash.operations import LogOperation, damaged, flushed
from integration_tests.crash.stage import Stage


def repair(stage: Stage) -> None:
    """Detect and repair the damage; then append, shut down cleanly and scrub."""
    stage.notice()
    stage.repair()
    stage.append(epoch=2)
    stage.flush()
    stage.close(clean=True)
    stage.open()
    stage.scrub()
    stage.append(epoch=2)


def sealed_and_damaged(stage: Stage) -> None:
    """Damage a flushed batch of a segment with a seal, snapshots and indexes, not yet detected."""
    flushed(stage)
    stage.seal()
    stage.scrub()
    stage.close(clean=True)
    stage.open()
    stage.damage(stage.history.sent[5])


def repair_and_change(stage: Stage) -> None:
    """Detect and repair the damage; then move the log start into the segment, truncate its end, and append."""
    stage.notice()
    stage.repair()
    stage.remove(stage.log.log_start_offset + 3)
    stage.truncate(14)
    stage.fill(4, epoch=2)
    stage.flush()


def active_and_damaged(stage: Stage) -> None:
    """Damage a flushed batch of the active segment, not yet detected."""
    flushed(stage)
    stage.flush()
    stage.close(clean=True)
    stage.open()
    stage.damage(stage.history.sent[-2])


def repair_active(stage: Stage) -> None:
    """Detect the damage, roll and repair the segment; then append records that were not flushed before."""
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
"""All repairs. A new operation is added here."""
