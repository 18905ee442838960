# SPDX-License-Identifier: Apache-2.0
"""The snapshot file: what is read is what was written, damage is found, and a crash leaves the old or the new one."""

from __future__ import annotations

import random
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lograft.wire.checksum import crc32c

from brokerd.coordinator import snapshot_format
from brokerd.coordinator.core import Record
from brokerd.coordinator.limits import SNAPSHOT_CHUNK_BYTES
from brokerd.coordinator.prefix import SnapshotId
from brokerd.coordinator.snapshot_files import SNAPSHOT_FILE, AbandonedError, SnapshotFile
from brokerd.coordinator.snapshot_format import END_BYTES, HEAD_BYTES, DamagedSnapshotError
from storage.errors import DiskFullError
from storage.files.names import PartitionIdentity
from storage.testing.sim_disk import Crash, Refusal, SimDisk

DIRECTORY = "/data"
IDENTITY = PartitionIdentity(bytes(range(16)), 3)
SNAPSHOT = SnapshotId(700, 5)
RECORDS = [Record(b"k%d" % at, bytes(at % 50)) for at in range(40)]
PATH = f"{DIRECTORY}/{SNAPSHOT_FILE}"


def a_disk() -> SimDisk:
    disk = SimDisk()
    disk.make_directory(DIRECTORY)
    disk.sync_directory("/")
    return disk


def write(disk: SimDisk, records: list[Record], snapshot: SnapshotId = SNAPSHOT) -> None:
    file = SnapshotFile(disk, DIRECTORY, IDENTITY)
    assert file.write(snapshot, records, is_wanted=lambda: True) == disk.size_bytes(PATH + ".tmp")
    file.put_in_place()


def read(disk: SimDisk, identity: PartitionIdentity = IDENTITY) -> tuple[SnapshotId, list[Record]] | None:
    reader = SnapshotFile(disk, DIRECTORY, identity).open()
    if reader is None:
        return None
    try:
        records = list(reader.records())
        assert len(records) == reader.record_count
        return reader.snapshot, records
    finally:
        reader.close()


names = st.lists(
    st.tuples(st.binary(max_size=8), st.sampled_from((0, 1, 1_000, SNAPSHOT_CHUNK_BYTES))),
    unique_by=lambda each: each[0],
    max_size=30,
)


@settings(max_examples=40)
@given(names)
def test_what_is_read_is_what_was_written(sizes: list[tuple[bytes, int]]) -> None:
    """Any keys, empty ones too, and values of any size, in their order."""
    disk = a_disk()
    records = [Record(name, name[:1] * size_bytes) for name, size_bytes in sizes]
    write(disk, records)
    assert read(disk) == (SNAPSHOT, records)


def test_many_records_make_several_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks are bounded in records and bytes."""
    monkeypatch.setattr(snapshot_format, "SNAPSHOT_CHUNK_RECORDS", 7)
    disk = a_disk()
    write(disk, RECORDS)
    assert read(disk) == (SNAPSHOT, RECORDS)
    (reader,) = [SnapshotFile(disk, DIRECTORY, IDENTITY).open()]
    assert reader is not None
    assert [len(chunk) for chunk in iter(reader.next_chunk, None)] == [7, 7, 7, 7, 7, 5]
    reader.close()


def test_no_file_is_no_snapshot() -> None:
    """A missing file is no damage."""
    assert read(a_disk()) is None


def test_every_changed_byte_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each byte of the file, changed alone, makes it damaged."""
    monkeypatch.setattr(snapshot_format, "SNAPSHOT_CHUNK_RECORDS", 16)
    disk = a_disk()
    write(disk, RECORDS)
    content = disk.read_file(PATH)
    found = 0
    for position in range(len(content)):
        disk.corrupt(PATH, position, bytes([content[position] ^ 0x41]))
        with pytest.raises(DamagedSnapshotError):
            read(disk)
        disk.corrupt(PATH, position, content[position : position + 1])
        found += 1
    assert found == len(content) > 1_000
    assert read(disk) == (SNAPSHOT, RECORDS)


def test_every_cut_is_found() -> None:
    """A file that lost its end at any byte is damaged."""
    disk = a_disk()
    write(disk, RECORDS[:10])
    content = disk.read_file(PATH)
    for size_bytes in range(len(content) - 1, -1, -1):
        disk.cut(PATH, size_bytes)
        with pytest.raises(DamagedSnapshotError):
            read(disk)


def test_missing_swapped_and_foreign_chunks_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole chunks with right CRCs are still the wrong file if they are others, or in another order."""
    monkeypatch.setattr(snapshot_format, "SNAPSHOT_CHUNK_RECORDS", 10)
    disk = a_disk()
    write(disk, [Record(b"%02d" % at, b"v") for at in range(30)])
    content = disk.read_file(PATH)
    body = content[HEAD_BYTES:-END_BYTES]
    size = len(body) // 3
    chunks = [body[at * size : (at + 1) * size] for at in range(3)]
    for wrong in (
        chunks[:2],
        [chunks[1], chunks[0], chunks[2]],
        [chunks[0], chunks[0], chunks[2]],
        [*chunks, chunks[2]],
    ):
        bad = a_disk()
        file = bad.create_file(PATH)
        file.append([content[:HEAD_BYTES], *wrong, content[-END_BYTES:]])
        file.close()
        with pytest.raises(DamagedSnapshotError):
            read(bad)


@pytest.mark.parametrize("identity", [IDENTITY._replace(partition=4), IDENTITY._replace(topic_id=bytes(16))])
def test_snapshot_of_another_partition_is_refused(identity: PartitionIdentity) -> None:
    """A file that was copied by mistake says so."""
    disk = a_disk()
    write(disk, RECORDS)
    with pytest.raises(DamagedSnapshotError, match="of partition 3"):
        read(disk, identity)


def test_other_version_is_refused() -> None:
    """A newer broker may have written it."""
    disk = a_disk()
    write(disk, RECORDS)
    head = bytearray(disk.read_file(PATH)[: HEAD_BYTES - 4])
    struct.pack_into(">H", head, 8, 2)
    disk.corrupt(PATH, 0, bytes(head) + struct.pack(">I", crc32c(head)))
    with pytest.raises(DamagedSnapshotError, match="version 2"):
        read(disk)


def test_abandoned_snapshot_leaves_nothing() -> None:
    """Neither a temporary file, nor a change of the last snapshot."""
    disk = a_disk()
    write(disk, RECORDS)
    with pytest.raises(AbandonedError):
        SnapshotFile(disk, DIRECTORY, IDENTITY).write(SNAPSHOT, RECORDS, is_wanted=lambda: False)
    assert disk.list_directory(DIRECTORY) == [SNAPSHOT_FILE]
    assert read(disk) == (SNAPSHOT, RECORDS)


def test_full_disk_leaves_the_last_snapshot() -> None:
    """No temporary file takes the space that is left."""
    disk = a_disk()
    write(disk, RECORDS)
    disk.refuse("append", ".tmp", Refusal.FULL)
    with pytest.raises(DiskFullError):
        write(disk, RECORDS[:3], SnapshotId(800, 5))
    assert disk.list_directory(DIRECTORY) == [SNAPSHOT_FILE]
    assert read(disk) == (SNAPSHOT, RECORDS)


def test_open_reader_sees_the_file_that_it_opened() -> None:
    """A loading that is under way is not disturbed by a newer snapshot."""
    disk = a_disk()
    write(disk, RECORDS)
    reader = SnapshotFile(disk, DIRECTORY, IDENTITY).open()
    assert reader is not None
    write(disk, [], SnapshotId(800, 5))
    assert list(reader.records()) == RECORDS
    reader.close()
    assert read(disk) == (SnapshotId(800, 5), [])


@pytest.mark.parametrize("how", list(Crash))
def test_crash_at_any_step_leaves_the_old_or_the_new_snapshot(how: Crash) -> None:
    """After a power failure before any call of a replacement the file is whole, and one of both."""
    old = (SNAPSHOT, RECORDS)
    new = (SnapshotId(800, 6), RECORDS[10:])
    steps = 0
    outcomes: set[int] = set()
    disk = a_disk()
    write(disk, RECORDS)
    forks: list[SimDisk] = []
    disk.on_call = lambda _: forks.append(disk.fork())
    write(disk, RECORDS[10:], new[0])
    disk.on_call = None
    forks.append(disk.fork())
    for fork in forks:
        for seed in range(20):
            crashed = fork.fork()
            crashed.crash(how, random.Random(seed))
            found = read(crashed)
            assert found in (old, new)
            outcomes.add(0 if found == old else 1)
            steps += 1
    assert read(disk) == new
    assert outcomes == {0, 1}
    assert steps == 20 * len(forks) >= 100
