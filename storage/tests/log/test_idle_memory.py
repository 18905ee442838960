# SPDX-License-Identifier: Apache-2.0
"""The cost of an idle partition: memory, descriptors, and disk calls of an opening."""

from __future__ import annotations

import gc
import os
import shutil
import tracemalloc
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from storage.files.descriptor_cache import FileBudget
from storage.files.disk import File
from storage.files.names import PartitionIdentity
from storage.files.posix import PosixDisk
from storage.log.partition_log import PartitionLog
from storage.testing.builders import ProducerStamp, append
from storage.testing.sim_disk import SimDisk, SimFile
from storage.types import LogSettings

LOG_COUNT = 2_000
"""Number of logs that are open at the same time."""

IDLE_LOG_BYTES = 3_300
"""Most bytes of memory that an idle log may take (exclusive), as Python counts them: resident memory is about a tenth more,
and must stay below 4 KiB (`benchmarks.storage_scale` measures it over 100,000 logs)."""

SETTINGS = LogSettings()
IDENTITY = PartitionIdentity(bytes(range(16)), 3)


def write_template(directory: Path, *, batches: int) -> None:
    """Write one log, closed cleanly, to be copied."""
    log = PartitionLog.open(PosixDisk(), str(directory), settings=SETTINGS, now_ms=0).log
    for number in range(batches):
        producer = ProducerStamp(producer_id=7, base_sequence=number)
        append(log, [b"x" * 50], leader_epoch=1, producer=producer)
    log.close()


@pytest.fixture(params=[0, 3], ids=["empty", "small"])
def copies(request: pytest.FixtureRequest, tmp_path: Path) -> list[str]:
    """Directories of 2,000 logs that were closed cleanly: empty ones, or with three batches."""
    write_template(tmp_path / "template", batches=request.param)
    files = list((tmp_path / "template").iterdir())
    directories: list[str] = []
    for number in range(LOG_COUNT):
        directory = tmp_path / str(number)
        directory.mkdir()
        for file in files:
            # Links, which are fast to make: the logs are only opened and read.
            os.link(file, directory / file.name)
        directories.append(str(directory))
    return directories


@pytest.fixture
def traced() -> Iterator[None]:
    """Trace allocations for one test."""
    gc.collect()
    tracemalloc.start()
    yield
    tracemalloc.stop()


@pytest.mark.usefixtures("traced")
def test_idle_log_takes_less_than_four_kibibytes_and_no_descriptor(
    copies: list[str], record_property: pytest.RecordProperty
) -> None:
    """2,000 open, unused logs; the test report contains the bytes of each."""
    disk, budget = PosixDisk(), FileBudget(16)
    before_bytes, _ = tracemalloc.get_traced_memory()
    logs = [PartitionLog.open(disk, directory, settings=SETTINGS, now_ms=0, files=budget).log for directory in copies]
    gc.collect()
    taken_bytes = (tracemalloc.get_traced_memory()[0] - before_bytes) / len(logs)
    record_property("bytes_per_idle_log", round(taken_bytes))
    assert taken_bytes < IDLE_LOG_BYTES, f"{taken_bytes:.0f} bytes for each idle log"
    assert open_below(Path(copies[0]).parent) == []
    assert budget.open_count == 0


def open_below(directory: Path) -> list[str]:
    """Return the files below a directory that this process has open; those of other tests may close at any time."""
    paths: list[str] = []
    for descriptor in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):
            paths.append(os.readlink(f"/proc/self/fd/{descriptor}"))
    return [path for path in paths if path.startswith(f"{directory}/")]


def test_used_logs_keep_to_the_budget(tmp_path: Path) -> None:
    """Written and read logs leave no more descriptors open than the budget allows."""
    write_template(tmp_path / "template", batches=0)
    disk, budget = PosixDisk(), FileBudget(4)
    logs: list[PartitionLog] = []
    for number in range(20):
        shutil.copytree(tmp_path / "template", tmp_path / str(number))
        logs.append(PartitionLog.open(disk, str(tmp_path / str(number)), settings=SETTINGS, now_ms=0, files=budget).log)
    for log in logs:
        append(log, [b"x"])
        log.flush()
        assert log.read(0, 100).next_offset == 1
    assert 1 <= len(open_below(tmp_path)) <= 4
    for log in logs:
        log.close()
    assert open_below(tmp_path) == []


def test_new_log_needs_no_descriptor_either() -> None:
    """A created log without an append releases its files."""
    disk, budget = SimDisk(), FileBudget(1)
    for number in range(3):
        PartitionLog.open(disk, f"/{number}", settings=SETTINGS, now_ms=0, files=budget)
        assert budget.open_count <= 1


class CountingDisk(SimDisk):
    """A simulated disk that notes every call, including reads."""

    def __init__(self) -> None:
        super().__init__()
        self.noted: list[str] = []

    def note(self, operation: str, path: str) -> None:
        """Note a call: its name and the last part of the path."""
        self.noted.append(f"{operation} {path.rpartition('/')[2]}")

    def open_file(self, path: str) -> SimFile:
        """See `Disk.open_file`."""
        self.note("open_file", path)
        return super().open_file(path)

    def create_file(self, path: str) -> SimFile:
        """See `Disk.create_file`."""
        self.note("create_file", path)
        return super().create_file(path)

    def read_file(self, path: str) -> bytes:
        """See `Disk.read_file`."""
        self.note("read_file", path)
        return super().read_file(path)

    def list_directory(self, path: str) -> list[str]:
        """See `Disk.list_directory`."""
        self.note("list_directory", path)
        return super().list_directory(path)

    def exists(self, path: str) -> bool:
        """See `Disk.exists`."""
        self.note("exists", path)
        return super().exists(path)

    def size_bytes(self, path: str) -> int:
        """See `Disk.size_bytes`."""
        self.note("size_bytes", path)
        return super().size_bytes(path)


def open_counted(disk: CountingDisk) -> PartitionLog:
    disk.noted.clear()
    disk.calls.clear()
    return PartitionLog.open(disk, "/log", settings=SETTINGS, now_ms=0, identity=IDENTITY).log


@pytest.mark.parametrize("batches", [0, 3])
def test_clean_open_calls_the_disk_only_for_what_is_there(batches: int) -> None:
    """Each file is read once, nothing is written, no file stays open, and missing files are not requested."""
    disk = CountingDisk()
    log = open_counted(disk)
    for number in range(batches):
        append(log, [b"x"], leader_epoch=1, producer=ProducerStamp(producer_id=7, base_sequence=number))
    log.close()
    opened = open_counted(disk)
    assert opened.log_end_offset == batches
    zero = f"{0:020d}"
    end = f"{batches:020d}"
    indexes = [f"read_file {zero}.index", f"read_file {zero}.timeindex"] if batches else []
    epochs = ["read_file leader-epoch-checkpoint"] if batches else []
    snapshots = [f"read_file {end}.snapshot"] if batches else []
    assert sorted(disk.noted) == sorted(
        [
            "list_directory log",
            "read_file partition.metadata",
            "read_file recovery-point",
            f"size_bytes {zero}.log",
            *indexes,
            *epochs,
            *snapshots,
        ]
    )
    assert disk.calls == []


def test_first_use_opens_the_files(tmp_path: Path) -> None:
    """A log that was opened without a descriptor reads and appends like any other."""
    write_template(tmp_path / "log", batches=3)
    disk = PosixDisk()
    log = PartitionLog.open(disk, str(tmp_path / "log"), settings=SETTINGS, now_ms=0).log
    file: File = log.segments.active.file
    assert file.size == log.segments.active.size_bytes
    assert log.read(0, 1).next_offset == 1
    assert append(log, [b"y"], leader_epoch=1).base_offset == 3
    assert log.flush() == 4
    log.close()


def test_indexes_rest_until_the_first_append(tmp_path: Path) -> None:
    """The opening reads them and drops them. An append loads them again, and the log is as if they had stayed."""
    write_template(tmp_path / "log", batches=3)
    log = PartitionLog.open(PosixDisk(), str(tmp_path / "log"), settings=SETTINGS, now_ms=0).log
    active = log.segments.active
    assert active._index is None
    assert append(log, [b"y"], leader_epoch=1, timestamp_ms=2_000).base_offset == 3
    assert active._index is not None
    assert active._index.first_timestamp_ms == 1_000
    assert active._index.max_timestamp_ms == 2_000
    log.close()
    opened = PartitionLog.open(PosixDisk(), str(tmp_path / "log"), settings=SETTINGS, now_ms=0)
    assert opened.report.clean
    found = opened.log.find_timestamp(1_500, end_offset=4)
    assert found is not None
    assert found.offset == 3


def test_indexes_rest_in_a_follower_too(tmp_path: Path) -> None:
    """A follower's batches start a new segment by the age of the first one, which only the index knows."""
    leader = PartitionLog.open(PosixDisk(), str(tmp_path / "leader"), settings=SETTINGS, now_ms=0).log
    for timestamp_ms in (1_000, 1_001, 1_000 + SETTINGS.segment_ms, 1_001 + SETTINGS.segment_ms):
        append(leader, [b"x"], timestamp_ms=timestamp_ms)
    batches = leader.read(0, 10_000).data + leader.read(3, 10_000).data
    leader.close()
    write_template(tmp_path / "log", batches=0)
    first_bytes = len(batches) // 4
    for part in (batches[:first_bytes], batches[first_bytes:]):
        log = PartitionLog.open(PosixDisk(), str(tmp_path / "log"), settings=SETTINGS, now_ms=0).log
        log.append_as_follower(part, now_ms=0)
        segments = [segment.base_offset for segment in log.segments]
        log.close()
    assert segments == [0, 3]


def test_resting_index_that_is_lost_meanwhile_is_built_anew(tmp_path: Path) -> None:
    """The files are caches, so they may be removed while the log is open."""
    write_template(tmp_path / "log", batches=3)
    log = PartitionLog.open(PosixDisk(), str(tmp_path / "log"), settings=SETTINGS, now_ms=0).log
    (tmp_path / "log" / f"{0:020d}.index").unlink()
    assert append(log, [b"y"], leader_epoch=1).base_offset == 3
    assert log.flush() == 4
    assert log.read(0, 10_000).next_offset == 4
    log.close()
    assert (tmp_path / "log" / f"{0:020d}.index").exists()


def test_index_that_had_to_be_built_does_not_rest(tmp_path: Path) -> None:
    """No file has it, so it stays in memory, and the next clean close writes it."""
    write_template(tmp_path / "log", batches=3)
    for suffix in ("index", "timeindex"):
        path = tmp_path / "log" / f"{0:020d}.{suffix}"
        path.unlink()
        opened = PartitionLog.open(PosixDisk(), str(tmp_path / "log"), settings=SETTINGS, now_ms=0)
        assert opened.report.clean
        assert opened.log.segments.active._index is not None
        opened.log.close()
        assert path.exists()


def test_idle_log_is_as_old_as_its_first_record(tmp_path: Path) -> None:
    """Its segment rolls by the clock although its indexes are dropped, and an opening does not make it young again."""
    write_template(tmp_path / "log", batches=3)
    due_ms = 1_000 + SETTINGS.segment_ms + 1
    log = PartitionLog.open(PosixDisk(), str(tmp_path / "log"), settings=SETTINGS, now_ms=due_ms).log
    assert not log.roll_if_due(due_ms - 1)
    assert log.roll_if_due(due_ms)
    log.close()
