# SPDX-License-Identifier: Apache-2.0
"""Verify finds nothing wrong in logs of random work, whatever a crash leaves, also during compaction and scrubs."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest

from storage.files.rate_limit import RateLimit
from storage.inspect.log_check import check_log
from storage.log.partition_log import PartitionLog
from storage.maintenance.scrub import LogScrub
from storage.testing.builders import SMALL, ProducerStamp, append, open_log
from storage.testing.sim_disk import Crash, SimDisk
from storage.tests.compaction.support import COMPACT, compact, put, roll


def export(disk: SimDisk, directory: str, target: Path) -> None:
    """Write the content of a simulated disk to the real file system."""
    target.mkdir(exist_ok=True)
    for path in target.iterdir():
        path.unlink()
    for name in disk.list_directory(directory):
        (target / name).write_bytes(disk.read_file(f"{directory}/{name}"))


def write_at_random(log: PartitionLog, rng: random.Random, epoch: int) -> int:
    """Append, flush and truncate at random; return the last leader epoch."""
    sequences: dict[int, int] = {}
    for _ in range(rng.randint(0, 40)):
        action = rng.random()
        epoch += action < 0.08
        if action < 0.75:
            count, producer_id = rng.randint(1, 4), rng.randint(0, 4) + (log.log_end_offset + 1) * 8
            producer_id = next(iter(sequences), producer_id) if rng.random() < 0.7 else producer_id
            stamp = ProducerStamp(producer_id=producer_id, base_sequence=sequences.get(producer_id, 0))
            sequences[producer_id] = stamp.base_sequence + count
            values = [rng.randbytes(rng.choice([5, 20, 200])) for _ in range(count)]
            append(log, values, leader_epoch=epoch, timestamp_ms=rng.randint(0, 5_000), producer=stamp)
        elif action < 0.9:
            log.flush()
        elif action < 0.94:
            log.truncate_suffix(rng.randint(log.log_start_offset, log.log_end_offset))
            sequences.clear()
    return epoch


@pytest.mark.parametrize("how", list(Crash), ids=lambda how: how.name)
@pytest.mark.parametrize("seed", range(12))
def test_whatever_a_crash_leaves_behind_is_no_finding(tmp_path: Path, how: Crash, seed: int) -> None:
    """After random work and a random power failure, verify finds nothing wrong, and expects the same log end as the opening."""
    rng = random.Random(f"{how.name}-{seed}")
    disk = SimDisk()
    disk.make_directory("/data")
    disk.sync_directory("/")
    settings = replace(SMALL, max_producers=rng.choice([2, 3, 100]))
    epoch = 0
    for _ in range(3):
        log = open_log(disk, "/data/log", settings).log
        epoch = write_at_random(log, rng, epoch)
        if rng.random() < 0.3:
            log.close()
        disk.crash(how, rng)
        if not disk.exists("/data/log"):
            return
        export(disk, "/data/log", tmp_path / "copy")
        report = check_log(str(tmp_path / "copy"))
        assert report.failures(strict=False) == []
        opened = open_log(disk, "/data/log", settings).log
        assert (opened.log_start_offset, opened.log_end_offset) == (report.log_start_offset, report.log_end_offset)
        epoch = max(epoch, opened.last_epoch or 0)
        opened.close(clean=False)


@pytest.mark.parametrize("how", [None, *Crash], ids=lambda how: "running" if how is None else how.name)
@pytest.mark.parametrize("seed", range(4))
def test_compacted_logs_are_healthy(tmp_path: Path, how: Crash | None, seed: int) -> None:
    """Fillers, batches with gaps, tombstones with horizons, fillers of producers; killed during compaction and after it."""
    rng = random.Random(f"{seed}-{how}")
    disk = SimDisk()
    disk.make_directory("/data")
    disk.sync_directory("/")
    sequences = [0, 0]
    for turn in range(4):
        log = open_log(disk, "/data/log", replace(COMPACT, segment_bytes=500)).log
        end_offset = log.log_end_offset
        for _ in range(rng.randint(10, 40)):
            producer, count = rng.randrange(3), rng.randint(1, 4)
            pairs = [(b"k%d" % rng.randrange(6), rng.choice([b"v" * 9, None])) for _ in range(count)]
            stamp = None
            if producer < 2:
                producer_id = 2 * end_offset + producer
                stamp = ProducerStamp(producer_id=producer_id, base_sequence=sequences[producer])
                sequences[producer] += count
            put(log, pairs, producer=stamp, timestamp_ms=rng.randrange(1_000), leader_epoch=turn)
        sequences = [0, 0]
        roll(log)
        compact(log, now_ms=rng.choice([100, 5_000]))
        if how is None:
            scrub_on(disk, log)
        else:
            disk.crash(how, rng)
        export(disk, "/data/log", tmp_path / "copy")
        report = check_log(str(tmp_path / "copy"))
        assert report.failures(strict=False) == []
        assert report.batch_count > 0
        if how is None:
            log.close(clean=False)


def scrub_on(disk: SimDisk, log: PartitionLog) -> None:
    """Seal the compacted segments."""
    scrub = LogScrub(log)
    rate = RateLimit(10**9, now_ms=lambda: 0, wait_ms=lambda wait_ms: False)
    while (work := scrub.begin(flushed_offset=log.flushed_offset, now_ms=0, interval_ms=1)) is not None:
        work.run(rate)
        assert scrub.end(work, flushed_offset=log.flushed_offset, now_ms=0).damaged == ()
