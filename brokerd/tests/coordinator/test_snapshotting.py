# SPDX-License-Identifier: Apache-2.0
"""Snapshots of a real replica, as leader and as follower, and loading from them: also where the log was compacted or truncated."""

from __future__ import annotations

import asyncio
import logging

import pytest
from lograft.wire.batch import read_batches

from brokerd.coordinator import prefix, snapshotting
from brokerd.coordinator.core import Record
from brokerd.coordinator.machine import State
from brokerd.coordinator.prefix import SnapshotId
from brokerd.coordinator.snapshot_files import SNAPSHOT_FILE
from brokerd.replica.replica import Replica
from brokerd.tests.coordinator.coordinating_broker import CoordinatingBroker, until
from brokerd.tests.coordinator.register_core import Fill, Increment, Read, RegisterCodec, Remove
from storage.testing.sim_disk import Refusal

CODEC = RegisterCodec()
SMALL_SEGMENTS = {"segment_bytes": str(16 * 1024), "cleanup_policy": "compact", "min_cleanable_dirty_ratio": "0.01"}


@pytest.fixture(autouse=True)
def small_snapshots(monkeypatch: pytest.MonkeyPatch) -> None:
    """A snapshot is due after 500 bytes of log."""
    monkeypatch.setattr(prefix, "SNAPSHOT_LOG_BYTES", 500)


async def taken(here: CoordinatingBroker) -> SnapshotId:
    """Make the snapshot that is due, and return which one it is."""
    assert await here.runtime.take_due_snapshots() == 1
    last = here.partition.snapshots._last
    assert last is not None
    assert last.snapshot.end_offset == here.replica.high_watermark
    return last.snapshot


def path_of(here: CoordinatingBroker) -> str:
    return f"{here.replica.log.directory}/{SNAPSHOT_FILE}"


async def test_load_from_a_snapshot_and_the_log_above_it(here: CoordinatingBroker) -> None:
    """The state is that of the whole log; only the live records of the snapshot and the log above it are replayed."""
    await here.start()
    for _ in range(5):
        await here.submit(Fill("x", 100))
    await here.submit(Increment("x0"), Remove("x1"))
    await taken(here)
    assert await here.runtime.take_due_snapshots() == 0
    await here.submit(Increment("y"), Remove("x2"))
    before = here.registers
    await here.lead_again()
    assert here.registers == before
    assert here.partition.is_last_load_from_snapshot
    assert here.partition.loaded_records == 99 + 2
    assert await here.submit(Increment("x0"), Read("x1"), Read("x2")) == [3, 0, 0]


async def test_next_snapshot_is_made_from_the_last_one(here: CoordinatingBroker) -> None:
    """The log below the last snapshot is not read again."""
    await here.start()
    await here.submit(Fill("x", 100))
    await taken(here)
    read_from: list[int] = []
    read = type(here.replica).read

    def noted(self: object, offset: int, *args: object, **rest: object) -> object:
        read_from.append(offset)
        return read(self, offset, *args, **rest)  # type: ignore[arg-type]

    await here.submit(Fill("y", 100))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(here.replica), "read", noted)
        await taken(here)
    assert min(read_from) == 100
    await here.lead_again()
    assert len(here.registers) == 200
    assert here.partition.loaded_records == 200


async def test_intermediate_snapshots_bound_the_memory(
    here: CoordinatingBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fold that has grown too large is written, and the run continues above it."""
    await here.start()
    for at in range(6):
        await here.submit(Fill(f"r{at % 3}-", 100))
    monkeypatch.setattr(snapshotting, "SNAPSHOT_FOLD_BYTES", 5_000)
    monkeypatch.setattr(snapshotting, "LOAD_READ_BYTES", 1_000)
    await taken(here)
    assert here.partition.snapshots.taken_count > 2
    await here.lead_again()
    assert len(here.registers) == 300
    assert here.partition.loaded_records == 300


async def test_follower_makes_snapshots_and_leads_from_them(here: CoordinatingBroker) -> None:
    """Without a core it folds what its leader has sent and committed."""
    await here.start(leader_id=2)
    here.accept()
    here.send(*(Record(b"a%d" % at, b"1 0  ") for at in range(200)))
    here.send(Record(b"a0", b"2 0  "), Record(b"a1", None))
    await until(lambda: here.replica.high_watermark == 202)
    assert here.partition.machine.state is State.INACTIVE
    assert await taken(here) == SnapshotId(202, 0)
    here.three.lead(1)
    here.subscribe()
    here.commit()
    await here.active()
    assert here.partition.is_last_load_from_snapshot
    assert (len(here.registers), here.registers["a0"], "a1" in here.registers) == (199, 2, False)


async def test_only_what_is_committed_is_in_a_snapshot(here: CoordinatingBroker) -> None:
    """Records above the high watermark may be truncated."""
    await here.start()
    await here.submit(Fill("x", 100))
    task = asyncio.create_task(here.runtime.submit(0, Increment("late")))
    await until(lambda: here.replica.log_end_offset == 101)
    assert (await taken(here)).end_offset == 100
    here.commit()
    assert await task == 1


@pytest.mark.parametrize("share", [0.0, 0.3, 0.5, 0.9, 0.99])
async def test_damaged_snapshot_is_ignored(
    here: CoordinatingBroker, share: float, caplog: pytest.LogCaptureFixture
) -> None:
    """Damage at any place costs time, never state; the log says so, and the next snapshot is made from the log."""
    await here.start()
    await here.submit(Fill("x", 300))
    await taken(here)
    size_bytes = here.three.disk.size_bytes(path_of(here))
    here.three.disk.corrupt(path_of(here), int(share * size_bytes), b"\xa5\x5a")
    await here.submit(Increment("y"))
    with caplog.at_level(logging.WARNING, "brokerd.coordinator"):
        await here.lead_again()
    assert len(here.registers) == 301
    assert not here.partition.is_last_load_from_snapshot
    assert "coordinator snapshot ignored" in caplog.text
    await here.submit(Fill("z", 100))
    await taken(here)
    await here.lead_again()
    assert here.partition.is_last_load_from_snapshot
    assert len(here.registers) == 401


async def test_snapshot_above_a_truncated_log_is_ignored(
    here: CoordinatingBroker, caplog: pytest.LogCaptureFixture
) -> None:
    """After an unclean election the log may be shorter, or have other records in another epoch."""
    await here.start()
    await here.submit(Fill("x", 100))
    snapshot = await taken(here)
    for end_offset, epoch in ((snapshot.end_offset + 1, snapshot.last_epoch), (snapshot.end_offset, 77)):
        wrong = SnapshotId(end_offset, epoch)
        file = here.partition.snapshots._file()
        file.write(wrong, [Record(b"ghost", b"1 0  ")], is_wanted=lambda: True)
        file.put_in_place()
        caplog.clear()
        with caplog.at_level(logging.WARNING, "brokerd.coordinator"):
            await here.lead_again()
        assert "ghost" not in here.registers
        assert not here.partition.is_last_load_from_snapshot
        assert "the log was truncated" in caplog.text


async def test_tombstone_that_was_compacted_above_a_snapshot_is_not_missed(here: CoordinatingBroker) -> None:
    """The cleaner removed the tombstone, and the snapshot still has the key: the gap shows it, and the whole log is read."""
    await here.start()
    here.configure(**SMALL_SEGMENTS, delete_retention_ms="0")
    await here.submit(Fill("x", 100))
    await taken(here)
    await here.submit(*(Remove(f"x{at}") for at in range(50)))
    for at in range(30):
        await here.submit(Increment(f"filler{at}", padding_bytes=2_000))
    before = here.registers
    await here.clean()
    await here.clean()
    sizes = here.batch_sizes()
    assert sum(sizes) < 150, sizes
    await here.lead_again()
    assert not here.partition.is_last_load_from_snapshot
    assert here.registers == before
    assert "x0" not in here.registers
    snapshot = await taken(here)
    await here.lead_again()
    assert here.partition.is_last_load_from_snapshot, snapshot
    assert here.registers == before


async def test_log_compacted_below_a_snapshot_changes_nothing(here: CoordinatingBroker) -> None:
    """What is below the end of the snapshot is not read."""
    await here.start()
    here.configure(**SMALL_SEGMENTS, delete_retention_ms="0")
    for _ in range(40):
        await here.submit(Increment("x", padding_bytes=2_000))
    await here.submit(Increment("y"), Remove("y"))
    await taken(here)
    await here.clean()
    await here.clean()
    await here.submit(Increment("z"))
    await here.lead_again()
    assert here.partition.is_last_load_from_snapshot
    assert here.registers == {"x": 40, "z": 1}


async def test_high_watermark_inside_a_compacted_stretch_ends_the_snapshot_below_it(
    here: CoordinatingBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a restart the high watermark begins low, and may lie inside what compaction has made one batch (found by the world)."""
    await here.start()
    here.configure(**SMALL_SEGMENTS, delete_retention_ms="0")
    await here.submit(Fill("y", 20))
    for _ in range(40):
        await here.submit(Increment("x", padding_bytes=2_000))
    await here.clean()
    await here.clean()
    replica = here.replica
    log_end_offset = replica.log_end_offset
    headers = [each.header for each in read_batches(replica.read(0, 1 << 20, end_offset=log_end_offset).data)]
    long = next(each for each in headers if each.base_offset >= 20 and each.next_offset - each.base_offset > 5)
    monkeypatch.setattr(Replica, "high_watermark", property(lambda _: long.base_offset + 2))
    assert await here.partition.snapshots.take(lambda: True)
    last = here.partition.snapshots._last
    assert last is not None
    assert last.snapshot.end_offset == long.base_offset
    assert not await here.partition.snapshots.take(lambda: True), "there is nothing more below the high watermark"


async def test_sealed_segment_makes_a_snapshot_due(here: CoordinatingBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the cleaner may touch it."""
    monkeypatch.setattr(prefix, "SNAPSHOT_LOG_BYTES", 1 << 30)
    await here.start()
    here.configure(segment_bytes=str(16 * 1024))
    await here.submit(Increment("x", padding_bytes=10_000))
    assert await here.runtime.take_due_snapshots() == 0
    await here.submit(Increment("x", padding_bytes=10_000))
    assert (await taken(here)).end_offset == 2
    assert await here.runtime.take_due_snapshots() == 0


async def test_snapshot_that_cannot_be_written_is_tried_again(here: CoordinatingBroker) -> None:
    """A full disk leaves the last snapshot, and no temporary file."""
    await here.start()
    await here.submit(Fill("x", 100))
    here.three.disk.refuse("append", SNAPSHOT_FILE, Refusal.FULL)
    assert await here.runtime.take_due_snapshots() == 0
    assert not any(name.endswith(".tmp") for name in here.three.disk.list_directory(here.replica.log.directory))
    here.three.disk.forgive()
    await taken(here)


async def test_snapshot_whose_log_changed_meanwhile_gets_no_name(
    here: CoordinatingBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The check before the rename: here the log no longer has the epoch of the last record."""
    await here.start()
    await here.submit(Fill("x", 100))
    snapshots = here.partition.snapshots
    write = snapshotting._write

    def change(*args: object) -> int:
        size_bytes = write(*args)  # type: ignore[arg-type]
        monkeypatch.setattr(snapshots, "_why_unusable", lambda *_: "truncated")
        return size_bytes

    monkeypatch.setattr(snapshotting, "_write", change)
    assert await here.runtime.take_due_snapshots() == 0
    assert not here.three.disk.exists(path_of(here))
    assert not here.three.disk.exists(path_of(here) + ".tmp")


async def test_loading_ends_a_snapshot_under_way(here: CoordinatingBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    """The new leader needs the processor for itself."""
    await here.start()
    await here.submit(Fill("x", 100))
    wanted = here.partition.may_take_snapshot
    assert wanted
    monkeypatch.setattr(snapshotting, "LOAD_READ_BYTES", 1)
    making = asyncio.create_task(here.runtime.take_due_snapshots())
    await asyncio.sleep(0)
    here.three.lead(2)
    here.three.lead(1)
    assert here.partition.machine.state is State.LOADING
    assert await making == 0
    here.subscribe()
    here.commit()
    await here.active()
    await taken(here)


async def test_restarted_broker_loads_from_its_snapshot(here: CoordinatingBroker) -> None:
    """The snapshot is a file: the next process uses it, whatever its log has above."""
    await here.start()
    await here.submit(Fill("x", 200))
    await taken(here)
    await here.submit(Increment("y"))
    await here.stop()
    again = CoordinatingBroker(here.three.disk)
    await again.start()
    assert again.partition.is_last_load_from_snapshot
    assert len(again.registers) == 201
    await again.stop()


async def test_runtime_looks_for_due_snapshots_by_itself(here: CoordinatingBroker) -> None:
    """The task that `start` begins makes them, and `stop` ends it."""
    here.runtime._snapshot_check_ms = 1
    await here.start()
    await here.submit(Fill("x", 100))
    here.runtime.start()
    await until(lambda: here.partition.snapshots.taken_count == 1)
    await here.runtime.stop()
