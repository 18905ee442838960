# SPDX-License-Identifier: Apache-2.0
"""What a broker does with the offset at which a reader wants to begin, as the leader of the partition or as a follower in sync.

Pure. Law: only the leader says that an offset is beyond the end of the log; a follower may just not have heard of it.
Source: docs/replication.md, R15; KIP-392 section "Out of range handling".
"""

from __future__ import annotations

from enum import Enum


class Verdict(Enum):
    """What becomes of a reader."""

    SERVED = "served"
    """It reads, or waits here for what is to come."""
    BELOW_ZERO = "below zero"
    """No log has such an offset."""
    OUT_OF_RANGE = "out of range"
    """The log here does not have the offset."""
    ASK_LEADER = "ask the leader"
    """The log here does not reach up to it: the leader knows whether there is such an offset."""


def judge_offset(offset: int, *, log_start_offset: int, log_end_offset: int, is_leader: bool) -> Verdict:
    """Say what becomes of a reader that wants to begin at an offset; the log end itself waits for the next record.

    Args:
        offset: what it wants (inclusive).
        log_start_offset: first offset of the log here (inclusive).
        log_end_offset: end of the log here (exclusive).
        is_leader: True at the leader, False at a follower whose log is a prefix of the leader's.
    """
    if offset < 0:
        return Verdict.BELOW_ZERO
    if log_start_offset <= offset <= log_end_offset:
        return Verdict.SERVED
    if offset > log_end_offset and not is_leader:
        return Verdict.ASK_LEADER
    return Verdict.OUT_OF_RANGE
