# SPDX-License-Identifier: Apache-2.0
"""The thread that waits for the disk, and the flushes in it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator

import pytest

from metaquorum.raft.effects import AppendAsLeader, Proposal
from metaquorum.raft.types import Offset, QuorumEpoch
from metaquorum.replica.disk_thread import DiskThread
from metaquorum.replica.log_flusher import LogFlusher
from metaquorum.replica.log_store import LogStore
from storage.errors import DiskFailedError
from storage.testing.sim_disk import Refusal, SimDisk


@pytest.fixture
async def thread() -> AsyncIterator[DiskThread]:
    """A thread that is closed at the end."""
    made = DiskThread("test-disk")
    yield made
    await made.close()


class Store:
    """A log on a simulated disk, its flusher, and the reports of the flusher."""

    def __init__(self, thread: DiskThread) -> None:
        self.disk = SimDisk()
        self.disk.make_directory("/data")
        self.disk.sync_directory("/")
        self.log = LogStore.open(self.disk, "/data/log")
        self.flushed: list[tuple[int, int]] = []
        self.failures: list[BaseException] = []
        self.news = asyncio.Event()
        self.flusher = LogFlusher(self.log, thread, on_flushed=self._on_flushed, on_failure=self._on_failure)

    def append(self, count: int) -> None:
        """Append records."""
        for _ in range(count):
            offset = Offset(self.log.view().log_end_offset)
            effect = AppendAsLeader(
                base_offset=offset,
                next_offset=Offset(offset + 1),
                quorum_epoch=QuorumEpoch(1),
                content=Proposal(proposal_id=offset),
            )
            self.log.gather(effect, [b"record"])
            self.log.read(0, 1)

    def _on_flushed(self, flush_id: int) -> None:
        self.flushed.append((flush_id, self.log.view().flushed_offset))
        self.news.set()

    def _on_failure(self, error: BaseException) -> None:
        self.failures.append(error)
        self.news.set()


async def test_work_runs_in_order_in_one_thread(thread: DiskThread) -> None:
    """Each piece runs after the one before; its end, or its failure, is reported on the loop."""
    ran: list[tuple[int, str]] = []
    ends: list[tuple[int, str]] = []
    last = asyncio.Event()

    def work(number: int) -> None:
        ran.append((number, threading.current_thread().name))
        if number == 2:
            raise OSError("broken")

    def done(number: int, error: BaseException | None) -> None:
        assert threading.current_thread() is threading.main_thread()
        ends.append((number, repr(error)))
        if number == 3:
            last.set()

    for number in (1, 2, 3):
        thread.submit(lambda number=number: work(number), lambda error, number=number: done(number, error))
    await last.wait()
    assert ran == [(1, "test-disk"), (2, "test-disk"), (3, "test-disk")]
    assert ends == [(1, "None"), (2, "OSError('broken')"), (3, "None")]


async def test_close_finishes_everything_first() -> None:
    """All submitted work is done and reported; a second close does nothing."""
    thread = DiskThread("test-disk")
    ends: list[BaseException | None] = []
    for _ in range(3):
        thread.submit(lambda: None, ends.append)
    await thread.close()
    assert ends == [None, None, None]
    await thread.close()
    with pytest.raises(AssertionError, match="closed"):
        thread.submit(lambda: None, ends.append)


async def test_settle_waits_for_the_work_and_not_for_its_report(thread: DiskThread) -> None:
    """The loop is blocked, so that no report can arrive."""
    ran: list[int] = []
    ends: list[BaseException | None] = []
    thread.submit(lambda: ran.append(1), ends.append)
    thread.settle()
    assert (ran, ends) == ([1], [])


async def test_flush_is_reported_when_it_is_done(thread: DiskThread) -> None:
    """The log learns of it first."""
    store = Store(thread)
    store.append(3)
    store.flusher.flush(7)
    assert store.flushed == []
    await store.news.wait()
    assert store.flushed == [(7, 3)]


async def test_nothing_to_flush_is_reported_too(thread: DiskThread) -> None:
    """The caller may wait for the report."""
    store = Store(thread)
    store.flusher.flush(1)
    assert store.flushed == [(1, 0)]


async def test_flush_that_is_asked_for_meanwhile_follows(thread: DiskThread) -> None:
    """A truncation makes the core ask again while a flush is under way; each is reported once, in order."""
    store = Store(thread)
    store.append(3)
    store.flusher.flush(1)
    store.log.truncate_suffix(Offset(1))
    store.append(1)
    store.flusher.flush(2)
    while len(store.flushed) < 2:
        store.news.clear()
        await store.news.wait()
    assert store.flushed == [(1, 1), (2, 2)]


async def test_stopped_flusher_begins_no_more(thread: DiskThread) -> None:
    """The flush under way is reported, and no other one begins."""
    store = Store(thread)
    store.append(1)
    store.flusher.flush(1)
    store.flusher.flush(2)
    store.flusher.stop()
    await thread.close()
    assert store.flushed == [(1, 1)]


async def test_failed_flush_is_never_reported_as_done(thread: DiskThread) -> None:
    """A record that is not on stable storage must not be acknowledged."""
    store = Store(thread)
    store.append(1)
    store.disk.refuse("sync", ".log", Refusal.IO_ERROR)
    store.flusher.flush(1)
    await store.news.wait()
    assert store.flushed == []
    assert [type(failure) for failure in store.failures] == [DiskFailedError]
