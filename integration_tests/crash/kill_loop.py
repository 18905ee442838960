# SPDX-License-Identifier: Apache-2.0
"""kill -9 in a loop under load, with rolls, flushes, truncations, retention, DeleteRecords, scrubs and compaction.

A kill keeps the page cache, so this proves nothing about fsync; the simulated disk does. It proves two things. No step of the engine,
ended anywhere, leaves files that the next opening cannot read. And every answer was true: what was acknowledged exists, what was
removed stays away, and the compacted log has the newest value of each key.
"""

from __future__ import annotations

import itertools
import os
import random
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from lograft.wire.batch import read_batches

from integration_tests.crash import worker
from integration_tests.crash.keyed_ledger import Found, KeyedLedger
from integration_tests.crash.keyed_worker import KEYED_SETTINGS
from integration_tests.crash.ledger import Ledger
from storage.files.posix import PosixDisk
from storage.log.partition_log import OpenedLog, PartitionLog

ROOT = Path(__file__).resolve().parents[2]
ROUNDS_PER_LOG = 20
"""Number of kills after which new logs begin, so that reading all of them stays short."""
LINES_BEFORE_KILL_MAX = 800
EXTRA_S_MAX = 0.02
"""Maximum seconds between the chosen line and the kill."""
END_S = 60.0
LEFTOVERS = (".swap", ".cleaned", ".deleted", ".tmp")
"""Suffixes of files that an interrupted step leaves. None may exist after an opening."""


def read_values(log: PartitionLog) -> list[bytes]:
    """Return all values from the log start on."""
    values: list[bytes] = []
    position = log.log_start_offset
    while position < log.log_end_offset:
        chunk = log.read(position, 1_000_000)
        for batch in read_batches(chunk.data):
            skipped = max(0, log.log_start_offset - batch.base_offset)
            values += [value or b"" for value in batch.values()][skipped:]
        position = chunk.next_offset
    return values


def read_records(log: PartitionLog) -> tuple[dict[int, Found], list[str]]:
    """Return all records of a compacted log by offset, from the log start on, and the gaps between its batches."""
    found: dict[int, Found] = {}
    gaps: list[str] = []
    position = log.log_start_offset
    while position < log.log_end_offset:
        chunk = log.read(position, 1_000_000)
        for batch in read_batches(chunk.data):
            if not batch.base_offset <= position < batch.next_offset:
                gaps.append(f"keyed: {position} is followed by {batch.base_offset}")
            position = batch.next_offset
            for record in batch.records():
                if record.offset >= log.log_start_offset:
                    found[record.offset] = Found(record.key or b"", record.value)
    return found, gaps


def start_worker(
    directory: Path, seed: int, generation: int, *prefix: str, mode: str = "list"
) -> subprocess.Popen[str]:
    """Start a worker, behind another command if one is given."""
    command = [*prefix, sys.executable, "-m", worker.__name__, str(directory), str(seed), str(generation), mode]
    return subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT}/sdk"}
    )


@dataclass(slots=True, kw_only=True)
class Kills:
    """The result of a kill loop.

    Attributes:
        rounds: kills.
        lines: lines that the workers wrote.
        torn_tails: openings that removed a torn tail.
        removals: answers that moved a log start.
        passes: successful compaction passes.
        swaps: kills that left a swap to complete.
        deleted: kills that left renamed files to remove.
        problems: broken laws.
    """

    rounds: int = 0
    lines: int = 0
    torn_tails: int = 0
    removals: int = 0
    passes: int = 0
    swaps: int = 0
    deleted: int = 0
    problems: tuple[str, ...] = ()


def kill_loop(root: Path, rounds: int, *, seed: int = 0) -> Kills:
    """Kill a worker with SIGKILL `rounds` times, each time at another point; open its logs and compare them with the ledgers."""
    done = Kills()
    ledger, keyed = Ledger(), KeyedLedger()
    for number in range(rounds):
        if number % ROUNDS_PER_LOG == 0:
            ledger, keyed = Ledger(), KeyedLedger()
        directory = root / f"killed-{number // ROUNDS_PER_LOG}"
        rng = random.Random(f"{seed}/{number}")
        _kill_one(directory, number, rng, (ledger.take, keyed.take))
        _count_leftovers(directory, done)
        problems = [
            *_compare_list(directory / worker.LIST_DIRECTORY, number, rng, ledger, done),
            *_compare_keyed(directory / worker.KEYED_DIRECTORY, number, rng, keyed),
        ]
        done.rounds += 1
        done.lines += ledger.lines
        done.removals += ledger.removals
        done.passes += keyed.passes
        ledger.lines = ledger.removals = keyed.passes = 0
        done.problems += tuple(f"round {number}, seed {seed}: {problem}" for problem in problems)
        if problems:
            # After a problem the ledger no longer knows the content of the log.
            return done
    return done


def _kill_one(directory: Path, number: int, rng: random.Random, takers: tuple[Callable[[str, int], None], ...]) -> None:
    """Let one worker write for a while, kill it, and note every line that it wrote."""
    process = start_worker(directory, rng.randrange(2**31), number, mode="all")
    assert process.stdout is not None, "its output is a pipe"
    with process.stdout as output:
        for line in itertools.islice(output, rng.randint(1, LINES_BEFORE_KILL_MAX)):
            for take in takers:
                take(line, number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(rng.random() * EXTRA_S_MAX)
        process.kill()
        for line in output:
            for take in takers:
                take(line, number)
    code = process.wait(END_S)
    assert code == -9, f"the worker ended by itself with {code}"


def _count_leftovers(directory: Path, done: Kills) -> None:
    names = [file.name for file in directory.glob("*/*")]
    done.swaps += any(name.endswith(".swap") for name in names)
    done.deleted += any(name.endswith(".deleted") for name in names)


def _compare_list(path: Path, number: int, rng: random.Random, ledger: Ledger, done: Kills) -> list[str]:
    now_ms = worker.now_ms_of(number + 1) - 1
    opened = PartitionLog.open(PosixDisk(), str(path), settings=worker.settings_of(number), now_ms=now_ms)
    log = opened.log
    values = read_values(log)
    problems = ledger.compare(values, number, worker.RECORDS_MAX, start_offset=log.log_start_offset)
    done.torn_tails += opened.report.cut_offset is not None
    ledger.settle(values, start_offset=log.log_start_offset)
    return problems + _close(opened, path, rng)


def _compare_keyed(path: Path, number: int, rng: random.Random, keyed: KeyedLedger) -> list[str]:
    now_ms = worker.now_ms_of(number + 1) - 1
    opened = PartitionLog.open(PosixDisk(), str(path), settings=KEYED_SETTINGS, now_ms=now_ms)
    log = opened.log
    found, problems = read_records(log)
    problems += keyed.compare(found, start_offset=log.log_start_offset, end_offset=log.log_end_offset)
    keyed.settle(start_offset=log.log_start_offset, end_offset=log.log_end_offset)
    return problems + _close(opened, path, rng)


def _close(opened: OpenedLog, path: Path, rng: random.Random) -> list[str]:
    """Close a log, cleanly or not. Return damage that its opening invented, and files that it left."""
    opened.log.close(clean=rng.randrange(2) == 0)
    left = [file.name for file in path.iterdir() if file.name.endswith(LEFTOVERS)]
    damage = (
        [f"{path.name}: after a kill the log reports damage: {opened.report.damaged}"] if opened.report.damaged else []
    )
    return damage + ([f"{path.name}: after an open {left} is there"] if left else [])
