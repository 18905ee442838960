# SPDX-License-Identifier: Apache-2.0
"""Group commit over many logs: the waiting groups of one disk share a sync of the file system."""

from __future__ import annotations

import queue
import random
import threading
from pathlib import Path

import pytest

from storage.errors import DiskFailedError, DiskFullError
from storage.files.disk import Disk
from storage.files.posix import PosixDisk
from storage.files.sync_choice import SyncChoice
from storage.log.flush import FlushWork
from storage.log.partition_log import PartitionLog
from storage.maintenance.flusher import GroupFlusher, run_groups
from storage.testing.builders import append, open_log, read_values
from storage.testing.sim_disk import Crash, Refusal, SimDisk

DEADLINE_S = 20.0
MANY = 16
"""Number of groups in a shared sync in these tests."""


def make_logs(count: int) -> tuple[SimDisk, list[PartitionLog]]:
    """Make logs with one flushed batch (so that their leader epoch is saved) and one unflushed batch."""
    disk = SimDisk()
    disk.make_directory("/data")
    disk.sync_directory("/")
    logs = fill_logs(disk, "/data", count)
    disk.calls.clear()
    return disk, logs


def fill_logs(disk: Disk, directory: str, count: int) -> list[PartitionLog]:
    """See `make_logs`; on any disk."""
    logs = [open_log(disk, f"{directory}/{number}").log for number in range(count)]
    for log in logs:
        append(log, [b"old"])
        log.flush()
        append(log, [b"new"])
    return logs


def run(logs: list[PartitionLog]) -> list[tuple[FlushWork, BaseException | None]]:
    """Flush logs like a thread of the flusher."""
    works = [log.begin_flush() for log in logs]
    items = [(work, lambda work, error: None) for work in works if work is not None]
    return [(work, error) for work, _, error in run_groups(items).done]


def synced(disk: SimDisk) -> list[str]:
    """Return the sync operations so far."""
    return [call.operation for call in disk.calls if call.operation.startswith("sync")]


def test_many_groups_are_synced_at_once_and_survive_a_crash() -> None:
    """One call covers the batches of all logs: afterwards each log may claim them, and no power failure loses any."""
    disk, logs = make_logs(MANY)
    for log, (work, error) in zip(logs, run(logs), strict=True):
        assert error is None
        assert log.end_flush(work) == log.log_end_offset == 2
    assert synced(disk).count("sync_filesystem") == 1
    assert "sync" not in synced(disk)
    survivor = disk.fork()
    survivor.crash(Crash.LOSE_ALL, random.Random(1))
    for number in range(MANY):
        assert read_values(open_log(survivor, f"/data/{number}").log) == [b"old", b"new"]


def test_a_group_alone_syncs_its_own_file() -> None:
    """Dirty data of others on the same file system is not synced."""
    disk, logs = make_logs(1)
    assert all(error is None for _, error in run(logs))
    assert synced(disk) == ["sync"]


def test_new_leader_epochs_of_many_logs_cost_one_sync_more() -> None:
    """The checkpoints are written, synced, renamed and synced: two syncs for all of them, and nothing is lost."""
    disk, logs = make_logs(MANY)
    for log in logs[3:9]:
        append(log, [b"newer"], leader_epoch=5)
    disk.calls.clear()
    for log, (work, error) in zip(logs, run(logs), strict=True):
        assert error is None
        log.end_flush(work)
    assert synced(disk) == ["sync_filesystem", "sync_filesystem"]
    survivor = disk.fork()
    survivor.crash(Crash.LOSE_ALL, random.Random(1))
    reopened = open_log(survivor, "/data/3").log
    assert reopened.last_epoch == 5
    assert read_values(reopened) == [b"old", b"new", b"newer"]


def test_a_checkpoint_that_finds_no_space_holds_back_its_own_log_only() -> None:
    """Nothing counts as flushed for that log, and its next group tries again; the others are done."""
    disk, logs = make_logs(MANY)
    append(logs[3], [b"newer"], leader_epoch=5)
    disk.refuse("append", "/data/3/leader-epoch", Refusal.FULL)
    for log, (work, error) in zip(logs, run(logs), strict=True):
        if log is not logs[3]:
            assert error is None
            assert log.end_flush(work) == 2
            continue
        assert isinstance(error, DiskFullError)
        with pytest.raises(DiskFullError):
            log.end_flush(work)
        assert log.flushed_offset == 1
    assert logs[3].flush() == 3


@pytest.mark.parametrize("how", Crash)
def test_a_crash_at_any_step_of_a_shared_sync_leaves_legal_logs(how: Crash) -> None:
    """Acknowledged records are there, epochs never contradict the records, and every log opens again."""
    disk, logs = make_logs(MANY)
    for log in logs:
        append(log, [b"newer"], leader_epoch=5)
    forks: list[SimDisk] = []
    disk.on_call = lambda call: forks.append(disk.fork())
    assert all(error is None for _, error in run(logs))
    assert len(forks) > 2 * MANY
    for seed, fork in enumerate(forks[::3]):
        fork.crash(how, random.Random(seed))
        for number in (0, MANY - 1):
            reopened = open_log(fork, f"/data/{number}").log
            values = read_values(reopened)
            assert values == [b"old", b"new", b"newer"][: len(values)]
            assert values[:1] == [b"old"]
            assert reopened.last_epoch == (5 if len(values) == 3 else 0)


def test_a_failed_sync_of_all_fails_every_group_and_is_not_tried_again() -> None:
    """Nothing counts as flushed, and no file is synced afterwards as if nothing had happened."""
    disk, logs = make_logs(MANY)
    disk.refuse("sync_filesystem", "/", Refusal.IO_ERROR)
    for log, (work, error) in zip(logs, run(logs), strict=True):
        assert isinstance(error, DiskFailedError)
        with pytest.raises(DiskFailedError):
            log.end_flush(work)
        assert log.flushed_offset == 1
    assert synced(disk) == ["sync_filesystem"]


def test_a_disk_that_hangs_or_fails_delays_no_other() -> None:
    """Each disk has its own threads, and a failed one affects only its own logs."""
    bad, bad_logs = make_logs(2)
    _, good_logs = make_logs(2)
    bad.refuse("sync_filesystem", "/", Refusal.IO_ERROR)
    bad.refuse("sync", ".log", Refusal.IO_ERROR)
    repaired = threading.Event()
    hung = threading.Event()

    def hang(call: object) -> None:
        hung.set()
        assert repaired.wait(DEADLINE_S)

    bad.on_call = hang
    told: queue.SimpleQueue[tuple[FlushWork, BaseException | None]] = queue.SimpleQueue()
    flusher = GroupFlusher(1)
    for log in bad_logs:
        flusher.submit(log, lambda work, error: told.put((work, error)))
    assert hung.wait(DEADLINE_S)
    for log in good_logs:
        flusher.submit(log, lambda work, error: told.put((work, error)))
    assert [told.get(timeout=DEADLINE_S)[1] for _ in good_logs] == [None, None]
    repaired.set()
    assert all(isinstance(told.get(timeout=DEADLINE_S)[1], DiskFailedError) for _ in bad_logs)
    flusher.close()


def test_where_sharing_is_dear_each_log_waits_for_its_own_file_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """If others write much to the same file system, two threads sync files in parallel, and nothing else."""
    disk, logs = make_logs(4)
    monkeypatch.setattr(SyncChoice, "is_shared", lambda self, group_count, *, now_s: False)
    both = threading.Barrier(2)
    disk.on_call = lambda call: both.wait(DEADLINE_S) and None
    told: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()
    flusher = GroupFlusher(2)
    for log in logs:
        flusher.submit(log, lambda work, error: told.put(error))
    assert [told.get(timeout=DEADLINE_S) for _ in logs] == [None] * 4
    flusher.close()
    assert synced(disk) == ["sync"] * 4


def test_groups_that_wait_are_taken_in_one_round() -> None:
    """During the sync of one group nothing else is synced; later groups share the next sync."""
    disk, logs = make_logs(6)
    begun, go_on = threading.Event(), threading.Event()

    def hold(call: object) -> None:
        begun.set()
        assert go_on.wait(DEADLINE_S)

    disk.on_call = hold
    told: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()
    flusher = GroupFlusher(3)
    flusher.submit(logs[0], lambda work, error: told.put(error))
    assert begun.wait(DEADLINE_S)
    for log in logs[1:]:
        flusher.submit(log, lambda work, error: told.put(error))
    go_on.set()
    assert [told.get(timeout=DEADLINE_S) for _ in logs] == [None] * 6
    flusher.close()
    assert synced(disk) == ["sync", "sync_filesystem"]


def test_without_such_a_call_files_are_synced_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """An operating system without syncfs is slower, but as safe."""
    disk, logs = make_logs(MANY)
    monkeypatch.setattr(SimDisk, "sync_filesystem", lambda self, path: False)
    assert all(error is None for _, error in run(logs))
    assert synced(disk).count("sync") == MANY


def test_without_such_a_call_the_threads_share_the_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """After the first round that could not be shared, two threads sync in parallel."""
    disk, logs = make_logs(6)
    monkeypatch.setattr(SimDisk, "sync_filesystem", lambda self, path: False)
    told: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()
    flusher = GroupFlusher(2)
    begun, go_on = threading.Event(), threading.Event()

    def hold(call: object) -> None:
        begun.set()
        assert go_on.wait(DEADLINE_S)

    disk.on_call = hold
    flusher.submit(logs[0], lambda work, error: told.put(error))
    assert begun.wait(DEADLINE_S)
    for log in logs[1:3]:
        flusher.submit(log, lambda work, error: told.put(error))
    go_on.set()
    assert [told.get(timeout=DEADLINE_S) for _ in range(3)] == [None] * 3
    both = threading.Barrier(2)
    disk.on_call = lambda call: both.wait(DEADLINE_S) and None
    for log in logs[3:5]:
        flusher.submit(log, lambda work, error: told.put(error))
    assert [told.get(timeout=DEADLINE_S) for _ in range(2)] == [None] * 2
    flusher.close()
    assert synced(disk) == ["sync"] * 5


def test_the_threads_flush_everything_that_was_submitted(tmp_path: Path) -> None:
    """Whatever groups form, each log gets one report, and close waits for all of them."""
    logs = fill_logs(PosixDisk(), str(tmp_path), 3 * MANY)
    told: list[FlushWork] = []
    lock = threading.Lock()

    def note(work: FlushWork, error: BaseException | None) -> None:
        assert error is None
        with lock:
            told.append(work)

    flusher = GroupFlusher(2)
    works = [flusher.submit(log, note) for log in logs]
    flusher.close()
    flusher.close()
    assert sorted(map(id, told)) == sorted(map(id, works))
    for log, work in zip(logs, works, strict=True):
        assert work is not None
        assert log.end_flush(work) == 2


def test_a_broken_listener_does_not_stop_the_thread(tmp_path: Path) -> None:
    """The owner of one log is gone; the others are still flushed and reported."""
    logs = fill_logs(PosixDisk(), str(tmp_path), 4)
    told: list[FlushWork] = []

    def broken(work: FlushWork, error: BaseException | None) -> None:
        raise RuntimeError("the loop is closed")

    flusher = GroupFlusher(1)
    flusher.submit(logs[0], broken)
    for log in logs[1:]:
        flusher.submit(log, lambda work, error: told.append(work))
    flusher.close()
    assert len(told) == 3


def test_the_disk_of_a_work_is_the_one_under_a_budget() -> None:
    """Logs that share descriptors are still on one disk."""
    disk: Disk
    disk, logs = make_logs(2)
    works = [log.begin_flush() for log in logs]
    assert {id(work.disk) for work in works if work is not None} == {id(disk)}
