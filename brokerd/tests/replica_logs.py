# SPDX-License-Identifier: Apache-2.0
"""Real logs on a simulated disk, made equal by the rules of a leader and its follower: answer, truncation, copy."""

from __future__ import annotations

from brokerd.partition.reconciliation import EpochEnd, SubscriptionError, compared, truncation_offset
from storage.log.partition_log import PartitionLog
from storage.testing.builders import append, open_log, read_all
from storage.testing.sim_disk import SimDisk

Run = tuple[int, int, str]
"""Leader epoch, number of records, and their writer."""


def open_logs(disk: SimDisk, *names: str) -> list[PartitionLog]:
    """Open logs on a disk."""
    return [open_log(disk, f"/data/{name}").log for name in names]


def write(log: PartitionLog, *runs: Run) -> None:
    """Append records as the leaders of epochs."""
    for epoch, count, who in runs:
        for _ in range(count):
            append(log, [f"{log.log_end_offset} by {who}".encode()], leader_epoch=epoch)


def answer(leader: PartitionLog, *, last_epoch: int | None, end: int) -> EpochEnd | SubscriptionError | None:
    """Return a leader's answer to a follower with this log end; None: the follower's log is a prefix."""
    found = None if last_epoch is None else leader.end_offset_for_epoch(last_epoch)
    return compared(
        last_epoch=last_epoch,
        follower_end_offset=end,
        epoch_end=None if found is None else EpochEnd(found.epoch, found.end_offset),
        hidden_from=None if found is None else leader.hidden_from(found.end_offset),
        log_start_offset=leader.log_start_offset,
        log_end_offset=leader.log_end_offset,
    )


def reconcile(leader: PartitionLog, follower: PartitionLog) -> list[tuple[EpochEnd, int]]:
    """Let a follower subscribe and truncate until its log is a prefix. Return each answer with the log end after it."""
    rounds: list[tuple[EpochEnd, int]] = []
    while True:
        told = answer(leader, last_epoch=follower.last_record_epoch, end=follower.log_end_offset)
        if told is None:
            return rounds
        assert isinstance(told, EpochEnd), told
        own = None if told.epoch is None else follower.end_offset_for_epoch(told.epoch)
        own_end = None if own is None else EpochEnd(own.epoch, own.end_offset)
        to_offset = truncation_offset(leader_end=told, own_end=own_end, log_end_offset=follower.log_end_offset)
        follower.truncate_suffix(to_offset)
        rounds.append((told, follower.log_end_offset))


def copy(leader: PartitionLog, follower: PartitionLog) -> None:
    """Append at the follower everything that the leader has beyond its end."""
    while follower.log_end_offset < leader.log_end_offset:
        follower.append_as_follower(leader.read(follower.log_end_offset, 1_000).data, now_ms=0)


def content(log: PartitionLog) -> list[tuple[int, bytes | None]]:
    """The leader epoch and the value of every record."""
    return [(batch.header.leader_epoch, value) for batch in read_all(log) for value in batch.values()]
