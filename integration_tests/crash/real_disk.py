# SPDX-License-Identifier: Apache-2.0
"""`make realdisk ROUNDS=n`: real devices and real processes: a disk that becomes full, an fsync that fails, and kill -9 in a loop.

    python -m integration_tests.crash.real_disk --rounds 200

Only the full disk needs root; it says NOT RUN if it cannot mount. The loop is in `kill_loop`.
"""

from __future__ import annotations

import argparse
import os
import random
import tempfile
import time
from pathlib import Path

from lograft.wire.batch import encode_batch, read_header

from integration_tests.crash import worker
from integration_tests.crash.kill_loop import END_S, kill_loop, read_values, start_worker
from integration_tests.crash.ledger import Ledger
from integration_tests.harness.faults.disks import small_disk
from storage.errors import DiskFullError
from storage.files.posix import PosixDisk
from storage.log.partition_log import PartitionLog
from storage.types import LogSettings

DEFAULT_ROUNDS = 200
TMPFS_BYTES = 2 * 1024 * 1024
FILLER_BYTES = 256 * 1024
FSYNC_THAT_FAILS = 9
STRACE = "/usr/bin/strace"
TRACED = "fdatasync,fsync,syncfs,pwritev,pwrite64,rename,renameat,unlink,unlinkat"
"""System calls that change files. None may come after the failure."""
MOUNT_SETTINGS = LogSettings(segment_bytes=100_000, index_interval_bytes=1_000)


def failing_fsync(root: Path, *, seed: int = 0) -> list[str]:
    """Let one fdatasync of a worker fail with EIO, and return the problems with its behaviour and its files. Needs strace."""
    directory, trace = root / "failing", root / "trace"
    inject = f"inject=fdatasync:error=EIO:when={FSYNC_THAT_FAILS}"
    prefix = (
        STRACE,
        "-f",
        "-qq",
        "-o",
        str(trace),
        "-e",
        f"trace={TRACED}",
        "-e",
        inject,
    )
    ledger, said = Ledger(), list[str]()
    process = start_worker(directory, seed, 0, *prefix)
    assert process.stdout is not None, "its output is a pipe"
    with process.stdout as output:
        for line in output:
            ledger.take(line, 0)
            said.append(line.strip())
    problems: list[str] = []
    code = process.wait(END_S)
    if code != worker.EXIT_AFTER_FAILURE or said[-4:] != ["failed", "refused", "refused", "readable"]:
        problems.append(f"the worker ended with {code}, its last words: {said[-5:]}")
    calls = trace.read_text().splitlines()
    failed = [number for number, call in enumerate(calls) if "EIO" in call]
    if not failed or len(failed) > 1:
        problems.append(f"{len(failed)} calls failed")
    problems += [f"after the failed fsync: {call}" for call in calls[failed[0] + 1 :] if "exited" not in call]
    path = str(directory / worker.LIST_DIRECTORY)
    log = PartitionLog.open(PosixDisk(), path, settings=worker.settings_of(0), now_ms=worker.now_ms_of(1)).log
    problems += ledger.compare(read_values(log), 0, worker.RECORDS_MAX, start_offset=log.log_start_offset)
    log.close()
    return problems


def fill_up(path: Path, *, seed: int = 0, times: int = 5) -> tuple[int, list[str]]:
    """Fill a small disk with one log repeatedly. Return the number of calls without space, and the problems."""
    rng = random.Random(seed)
    filler = path / "filler"
    values: list[bytes] = []
    problems: list[str] = []
    refused = 0
    log = PartitionLog.open(PosixDisk(), f"{path}/log", settings=MOUNT_SETTINGS, now_ms=0).log
    for time_number in range(times):
        filler.write_bytes(bytes(FILLER_BYTES if time_number < times - 1 else 0))
        refused_before = refused
        while refused < refused_before + 3:
            value = b"%d/" % log.log_end_offset + b"v" * rng.choice((10, 3_000, 40_000))
            batch = encode_batch([value], timestamps_ms=1)
            try:
                log.append_as_leader(batch, read_header(batch), leader_epoch=time_number, now_ms=0)
                values.append(value)
                if rng.randrange(4) == 0:
                    log.flush()
            except DiskFullError:
                refused += 1
            if log.log_end_offset != len(values) or log.failure is not None:
                return refused, [f"the log ends at {log.log_end_offset}, not {len(values)}: {log.failure}"]
        if read_values(log) != values:
            problems.append("a full disk changed what is read")
        # Space comes back from a removed file and from the tail of the log.
        filler.unlink()
        cut = log.truncate_suffix(max(0, len(values) - rng.randrange(40)))
        del values[cut:]
        log.flush()
        log.close(clean=time_number % 2 == 0)
        opened = PartitionLog.open(PosixDisk(), f"{path}/log", settings=MOUNT_SETTINGS, now_ms=0)
        log = opened.log
        if read_values(log) != values or opened.report.damaged:
            problems.append(f"time {time_number}: after an open {len(read_values(log))} records, not {len(values)}")
    log.close()
    return refused, problems


def main() -> int:
    """Run all three and print. Return 1 if one failed."""
    parser = argparse.ArgumentParser(description="real devices and processes under the log engine")
    parser.add_argument("--rounds", type=int, default=DEFAULT_ROUNDS, help="kills")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    problems: list[str] = []
    with tempfile.TemporaryDirectory(prefix="lograft-real-disk-") as name:
        root = Path(name)
        with small_disk(root / "small", size_bytes=TMPFS_BYTES) as is_mounted:
            if not is_mounted:
                print("full disk: NOT RUN, mounting a tmpfs is not permitted")
            else:
                refused, found = fill_up(root / "small", seed=arguments.seed)
                print(
                    f"full disk: tmpfs of {TMPFS_BYTES} bytes, {refused} calls found no space: {found or 'as it must'}"
                )
                problems += found
        if os.access(STRACE, os.X_OK):
            found = failing_fsync(root, seed=arguments.seed)
            print(f"failing fsync: fdatasync number {FSYNC_THAT_FAILS} gives EIO: {found or 'as it must'}")
            problems += found
        else:
            print("failing fsync: NOT RUN, there is no strace")
        started_s = time.monotonic()
        kills = kill_loop(root, arguments.rounds, seed=arguments.seed)
        print(
            f"kill -9: {kills.rounds} rounds, {kills.lines} lines of ledger, {kills.removals} removals at the front, "
            f"{kills.passes} compaction passes; kills left {kills.torn_tails} torn tails, {kills.swaps} swaps to complete, "
            f"{kills.deleted} times renamed files; {time.monotonic() - started_s:.1f} s: {kills.problems or 'nothing lost'}"
        )
        problems += kills.problems
    return int(bool(problems))


if __name__ == "__main__":
    raise SystemExit(main())
