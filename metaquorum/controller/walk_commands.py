# SPDX-License-Identifier: Apache-2.0
"""Commands that go over all partitions, a slice at a time: the controller gives them to itself.

Owns their shapes, and which of them may wait for others.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepCursor:
    """Where a walk over all partitions goes on.

    Attributes:
        after_topic: name of the last topic that was looked at wholly; None: none yet.
        cut_topic_id: id of the topic that was cut, if any.
        next_partition: its first partition that was not looked at.
    """

    after_topic: str | None = None
    cut_topic_id: bytes | None = None
    next_partition: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepPartitions:
    """Elects leaders where the leader may not lead any more, or where there is none and one could.

    Attributes:
        cursor: where it goes on; the default starts over.
        unclean: epochs of the brokers, ascending, that were unclean when the sweep started over: at its end they have left
            all in-sync replicas where they may lack records. Set by the first slice.
    """

    cursor: SweepCursor = SweepCursor()
    unclean: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ElectPreferredLeaders:
    """Makes first replicas leaders again where they can. `cursor` is where it goes on; the default starts over."""

    cursor: SweepCursor = SweepCursor()


@dataclass(frozen=True, slots=True, kw_only=True)
class ElectUncleanLeaders:
    """Elects leaders where there is none and lacking records is allowed. `cursor` is where it goes on; the default starts over."""

    cursor: SweepCursor = SweepCursor()


PERIODIC_COMMANDS: Final = (ElectPreferredLeaders, ElectUncleanLeaders)
"""Begun at intervals. Nothing waits for them: a sweep, which gives partitions leaders, goes first."""
