# SPDX-License-Identifier: Apache-2.0
"""How long a coordinator partition takes to load, by keys: from the bare log and from a snapshot, in one process on a real disk.

    python -m benchmarks.coordinator_load [--keys 100000] [--updates 4] [--out benchmarks/results]

A real log holds `updates` records of each key, in batches as the runtime appends them, by a key order that changes from round to
round. A follower's replica of it makes the snapshot; then the replica leads and loads. The core is the one of the tests: a dictionary
with a text decoder, some 3 us a record. While it loads, another task counts how long the event loop is away.

Ceiling of loading: decoding and replaying the same records in one loop, without log, slices or snapshot.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import platform
import random
import shutil
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from lograft.wire.batch import read_header

from brokerd.coordinator.core import Record
from brokerd.coordinator.limits import MAX_TURN_BYTES
from brokerd.coordinator.log_pieces import encode_append
from brokerd.coordinator.machine import PartitionMachine, State
from brokerd.coordinator.partition import CoordinatorPartition
from brokerd.failure import LeaderPlace
from brokerd.partition.events import PartitionChanged
from brokerd.partition.replica import PartitionReplica
from brokerd.replica.replica import Replica, ReplicaContext
from brokerd.replica.role_log import RoleLog
from brokerd.tests.coordinator.register_core import RegisterCodec, RegisterCore
from metaquorum.collector import freeze_started
from metaquorum.metadata.state import PartitionImage
from metaquorum.metadata.topic_configs import FlushPolicy, effective
from storage.directory.directories import LogDirectory
from storage.directory.space import SpaceLimits
from storage.files.posix import PosixDisk
from storage.log.partition_log import PartitionLog
from storage.maintenance.flusher import GroupFlusher
from storage.types import LogSettings

VALUE_BYTES = 100
"""Bytes of padding in each value."""

ROUNDS = 5
"""Runs of each loading; the median counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One result, in milliseconds if its name does not say otherwise."""

    name: str
    value: float
    unit: str
    note: str = ""


def batches(keys: int, updates: int, rng: random.Random) -> list[bytearray]:
    """Return the log: each key `updates` times."""
    made: list[bytearray] = []
    records: list[Record] = []
    size_bytes = 0
    for update in range(1, updates + 1):
        order = list(range(keys))
        rng.shuffle(order)
        for key in order:
            record = Record(b"group-%08d" % key, b"%d 0 bench " % update + bytes(VALUE_BYTES))
            records.append(record)
            size_bytes += len(record.key) + len(record.value or b"")
            if size_bytes >= MAX_TURN_BYTES // 4:
                made.append(encode_append(records, timestamp_ms=1_700_000_000_000))
                records, size_bytes = [], 0
    if records:
        made.append(encode_append(records, timestamp_ms=1_700_000_000_000))
    return made


class LoopWatch:
    """Measures how long the event loop is away from a task that wants nothing but its turn.

    Attributes:
        away_ms: longest absence by the clock, in milliseconds; it includes what other processes took.
        busy_ms: longest processor time of the event loop's thread between two turns of the task, in milliseconds.
    """

    def __init__(self) -> None:
        self.away_ms = self.busy_ms = 0.0
        self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        while True:
            began, used = time.perf_counter(), time.thread_time()
            await asyncio.sleep(0.001)
            self.away_ms = max(self.away_ms, (time.perf_counter() - began) * 1000 - 1)
            self.busy_ms = max(self.busy_ms, (time.thread_time() - used) * 1000)

    async def end(self) -> None:
        """End the watch."""
        self._task.cancel()
        await asyncio.wait((self._task,))


class Bench:
    """A partition with one replica, whose log is on a real disk."""

    def __init__(self, directory: Path, log: PartitionLog) -> None:
        self._flusher = GroupFlusher(1)
        disk = PosixDisk()

        def no_leader(topic_id: bytes, partition: int) -> LeaderPlace | None:
            return None

        core = PartitionReplica(
            node_id=1,
            log_end_offset=log.log_end_offset,
            flushed_offset=log.flush(),
            flush_policy=FlushPolicy.ACK,
            flush_interval_ms=100,
            last_epoch=log.last_record_epoch,
        )
        self.replica = Replica(
            topic="t",
            topic_id=b"t" * 16,
            partition=0,
            core=core,
            log=log,
            directory=LogDirectory(disk, str(directory), limits=SpaceLimits.from_soft(0)),
            settings=effective({}),
            context=ReplicaContext(
                flusher=self._flusher,
                leader_place=no_leader,
                on_disk_failed=lambda _, error: print(error),
                on_no_room=lambda _: None,
                roles=RoleLog(),
            ),
        )
        self._epoch = 0

    def lead(self) -> CoordinatorPartition[object, int, object]:
        """Lead in the next epoch, and begin to load."""
        self._epoch += 1
        image = PartitionImage(0, (1,), (1,), 1, self._epoch, self._epoch)
        self.replica.take_partition(PartitionChanged(partition=image, min_isr=1, brokers=()))
        machine: PartitionMachine[object, int, object] = PartitionMachine(
            "t-0",
            new_core=RegisterCore,  # type: ignore[arg-type]
            codec=RegisterCodec(),  # type: ignore[arg-type]
        )
        partition = CoordinatorPartition(self.replica, machine, on_tick=None, on_gone=lambda _: None)
        partition.note_role()
        return partition

    async def load(self) -> tuple[float, float, LoopWatch, CoordinatorPartition[object, int, object]]:
        """Load once: milliseconds of the processor and of the clock, what the event loop did meanwhile, and the partition."""
        # As in a server that has started: the collector does not look at what stays.
        freeze_started()
        watch = LoopWatch()
        began, used = time.perf_counter(), time.process_time()
        partition = self.lead()
        await partition.wait_idle()
        spent_ms, used_ms = (time.perf_counter() - began) * 1000, (time.process_time() - used) * 1000
        assert partition.machine.state is State.ACTIVE, partition.machine.state
        await watch.end()
        self.replica.listeners.remove(partition)
        return used_ms, spent_ms, watch, partition

    async def close(self) -> None:
        """Close the log."""
        await self.replica.close("done")
        self._flusher.close()


def watched(name: str, watches: list[LoopWatch]) -> list[Row]:
    """Return what the event loop did in several runs: in the least disturbed one, and in the notes in the worst one."""
    busy, away = [each.busy_ms for each in watches], [each.away_ms for each in watches]
    return [
        Row(
            name=f"{name}: longest step of the event loop",
            value=round(min(busy), 1),
            unit="ms",
            note=f"processor time; worst run {max(busy):.1f}",
        ),
        Row(
            name=f"{name}: event loop away",
            value=round(min(away), 1),
            unit="ms",
            note=f"by the clock; worst run {max(away):.1f}",
        ),
    ]


def ceiling_ms(keys: int, updates: int) -> float:
    """Decode and replay the records alone."""
    codec, core = RegisterCodec(), RegisterCore()
    records = [
        Record(b"group-%08d" % key, b"%d 0 bench " % update + bytes(VALUE_BYTES))
        for update in range(1, updates + 1)
        for key in range(keys)
    ]
    used = time.process_time()
    for record in records:
        core.replay(codec.decode(record))
    return (time.process_time() - used) * 1000


async def measure(directory: Path, keys: int, updates: int) -> list[Row]:
    """Measure all rows."""
    log_settings = LogSettings(segment_bytes=64 * 1024 * 1024)
    log = PartitionLog.open(PosixDisk(), str(directory / "log"), settings=log_settings, now_ms=0).log
    log_bytes = 0
    for batch in batches(keys, updates, random.Random(1)):
        log.append_as_leader(batch, read_header(batch), leader_epoch=0, now_ms=0)
        log_bytes += len(batch)
    log.flush()
    bench = Bench(directory, log)
    per = 100_000
    rows = [
        Row(name="keys", value=keys, unit="", note=f"{updates} records of each, {VALUE_BYTES} B of padding"),
        Row(name="log", value=round(log_bytes / 1e6, 1), unit="MB"),
    ]

    async def several(name: str, records: int) -> None:
        runs = sorted([await bench.load() for _ in range(ROUNDS)], key=lambda run: run[0])
        used_ms, _, _, partition = runs[ROUNDS // 2]
        spent_ms = sorted(run[1] for run in runs)[ROUNDS // 2]
        assert partition.loaded_records == records, (partition.loaded_records, records)
        name = f"load {name}"
        rows.append(
            Row(
                name=f"{name}, for 100,000 keys",
                value=round(used_ms * per / keys),
                unit="ms",
                note=f"processor time; by the clock {spent_ms * per / keys:.0f}; {records} records",
            )
        )
        rows.extend(watched(name, [run[2] for run in runs]))

    await several("from the bare log", keys * updates)
    partition = bench.lead()
    await partition.wait_idle()
    watch = LoopWatch()
    began, used = time.perf_counter(), time.process_time()
    assert await partition.snapshots.take(lambda: True)
    spent_ms, used_ms = (time.perf_counter() - began) * 1000, (time.process_time() - used) * 1000
    await watch.end()
    last = partition.snapshots._last
    assert last is not None
    rows += [
        Row(
            name="make a snapshot from the bare log",
            value=round(used_ms),
            unit="ms",
            note=f"processor time; by the clock {spent_ms:.0f}",
        ),
        *watched("make a snapshot", [watch]),
        Row(name="snapshot", value=round(last.size_bytes / 1e6, 1), unit="MB"),
    ]
    bench.replica.listeners.remove(partition)
    await several("from a snapshot", keys)
    rows.append(
        Row(name="decode and replay alone, one record of each key", value=round(ceiling_ms(keys, 1)), unit="ms")
    )
    await bench.close()
    return rows


def write(rows: list[Row], out: Path) -> None:
    """Write the results as a table and as JSON."""
    lines = [
        "# Loading a coordinator partition",
        "",
        f"`python -m benchmarks.coordinator_load` on {platform.machine()}, Python {platform.python_version()}. "
        "The core is that of the tests: a dictionary, and a decoder of text.",
        "Times are medians of five runs. The machine was shared with other work: processor time is what to compare, times by the clock",
        "are upper bounds. Steps of the event loop are seen by a task that a timer wakes: it waits for two slices of loading.",
        "",
        "| | | |",
        "|---|---:|---|",
        *(f"| {row.name} | {row.value:g} {row.unit} | {row.note} |" for row in rows),
        "",
    ]
    out.mkdir(parents=True, exist_ok=True)
    (out / "coordinator.md").write_text("\n".join(lines))
    (out / "coordinator.json").write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")
    print("\n".join(lines))


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keys", type=int, default=100_000)
    parser.add_argument("--updates", type=int, default=4)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    arguments = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="coordinator-"))
    try:
        rows = asyncio.run(measure(directory, arguments.keys, arguments.updates))
    finally:
        shutil.rmtree(directory)
    write(rows, arguments.out)


if __name__ == "__main__":
    main()
