# SPDX-License-Identifier: Apache-2.0
"""`lograft log dump`: its output for data directories, logs, segments, caches and checkpoints."""

from __future__ import annotations

from pathlib import Path

import pytest
from lograft.wire.batch import check_batch, encode_batch
from lograft.wire.limits import MAX_BATCH_BYTES

from storage.files.checkpoints import encode_lines
from storage.files.names import CLEANER_FILE, DAMAGE_FILE, EPOCH_FILE, PARTITION_FILE, RECOVERY_POINT_FILE
from storage.files.posix import PosixDisk
from storage.testing.builders import append, open_log
from storage.tests.inspect.command import rows, run
from storage.tests.inspect.logs import change_batch, flip, places, segment_path, segments
from storage.tests.inspect.test_formats import COORDINATORS, IDLE, PRODUCER, TRANSACTIONS, snapshot


@pytest.fixture
def directory(sealed_directory: Path) -> Path:
    return sealed_directory


def test_dump_of_a_data_directory_lists_its_logs(data: Path) -> None:
    """The owner of the directory, and one row for each log."""
    found = rows("dump", data)
    assert [row["log"].split("/")[0] for row in found if row["type"] == "log"] == ["metadata", "partitions"]
    (partition,) = [row for row in found if row["type"] == "log" and row["partition"] is not None]
    assert (partition["partition"], partition["clean"]) == (3, True)
    assert [row["type"] for row in found if row["type"] == "set_aside"] == ["set_aside"]
    assert '"cluster_id": "c"' in next(row["value"] for row in found if row["name"] == "meta.json")
    assert run("dump", data)[0] == 0


def test_dump_of_a_log_shows_what_is_there(directory: Path) -> None:
    """Facts, segments with their files, epochs, damage, snapshots."""
    (directory / DAMAGE_FILE).write_bytes(encode_lines(["0 0 1 0 99"]))
    (directory / "notes.txt").write_text("x")
    found = rows("dump", directory)
    assert [row["base_offset"] for row in found if row["type"] == "segment"] == [
        int(path.stem) for path in segments(directory)
    ]
    assert next(row["files"] for row in found if row["type"] == "segment") == ".index .log .seal .timeindex"
    assert [row["leader_epoch"] for row in found if row["type"] == "epoch"] == [0, 1, 2]
    assert [row["end_position"] for row in found if row["type"] == "damaged_range"] == [99]
    assert "notes.txt" in [row["name"] for row in found if row["type"] == "file"]
    facts = {row["name"]: row["value"] for row in found if row["type"] == "fact"}
    assert facts["closed cleanly"] is True
    assert facts["flushed offset"] == places(directory)[-1].header.next_offset
    code, out, _ = run("dump", directory)
    assert code == 0
    assert "leader epochs" in out


def test_dump_of_an_unfinished_log_directory(tmp_path: Path) -> None:
    """A directory with nothing but a bad recovery point."""
    (tmp_path / RECOVERY_POINT_FILE).write_bytes(b"")
    found = rows("dump", tmp_path)
    assert {row["type"] for row in found} == {"fact"}


def test_dump_of_batches(directory: Path) -> None:
    """One row for each batch: of a segment file, of a log, of a range of offsets."""
    everything = places(directory)
    assert [row["base_offset"] for row in rows("dump", directory, "--batches")] == [
        place.header.base_offset for place in everything
    ]
    first = rows("dump", segments(directory)[0])
    assert [row["position"] for row in first] == [
        place.position for place in everything if not place.segment_base_offset
    ]
    assert {row["codec"] for row in first} == {"none"}
    assert first[0]["producer_id"] == 0
    assert first[2]["producer_id"] is None
    middle = everything[20].header
    found = rows("dump", directory, "--offset", middle.base_offset, "--end", middle.base_offset + 1)
    assert [row["base_offset"] for row in found] == [middle.base_offset]
    assert found[0]["max_timestamp_ms"] == middle.max_timestamp_ms
    code, out, _ = run("dump", segments(directory)[0], "--limit", "2")
    assert code == 0
    assert "more than 2 rows" in out


def test_dump_of_records(tmp_path: Path) -> None:
    """One row for each record: keys, values and headers as text or base64, only the requested offsets."""
    log = open_log(PosixDisk(), f"{tmp_path}/log").log
    batch = encode_batch(
        [b"v0", None, b"\xff"],
        keys=[b"k0", b"\xfe", None],
        headers=[[("h", b"1"), ("n", None)], [], [("b", b"\xff")]],
        timestamps_ms=[1, 2, 3],
    )
    log.append_as_leader(batch, check_batch(batch, max_bytes=MAX_BATCH_BYTES), leader_epoch=4, now_ms=0)
    log.close()
    found = rows("dump", log.directory, "--records")
    assert [row["offset"] for row in found] == [0, 1, 2]
    assert found[0]["headers"] == [{"key": "h", "value": "1"}, {"key": "n", "value": None}]
    assert (found[0]["key"], found[0]["value"], found[0]["leader_epoch"]) == ("k0", "v0", 4)
    assert found[1]["key_base64"] == "/g=="
    assert found[1]["value"] is None
    assert found[2]["value_base64"] == "/w=="
    assert found[2]["headers"] == [{"key": "b", "value_base64": "/w=="}]
    assert [row["offset"] for row in rows("dump", log.directory, "--records", "--offset", 1, "--end", 2)] == [1]
    code, out, _ = run("dump", log.directory, "--records")
    assert code == 0
    assert "h=1, n=null" in out
    assert "\\xff" in out


def test_long_and_unprintable_values_stay_on_the_table(tmp_path: Path) -> None:
    """A table shortens long cells and prints no control characters."""
    log = open_log(PosixDisk(), f"{tmp_path}/log").log
    append(log, [b"a" * 1_000 + b"end", b"\x1b[31mred"])
    log.close()
    out = run("dump", log.directory, "--records")[1]
    assert "end" not in out
    assert "..." in out
    assert "\x1b[31m" not in out


def test_dump_reads_on_behind_damage(directory: Path) -> None:
    """Bad bytes get a row of their own, in batches and in records."""
    place = places(directory)[2]
    flip(segments(directory)[0], place.position + 65)
    batches = rows("dump", segments(directory)[0])
    (bad,) = [row for row in batches if row["problem"]]
    assert (bad["base_offset"], bad["position"], bad["size_bytes"]) == (
        place.header.base_offset,
        place.position,
        place.header.size_bytes,
    )
    records = rows("dump", directory, "--records")
    assert len([row for row in records if row["problem"]]) == 1
    assert records[-1]["offset"] == places_end(directory) - 1
    assert run("dump", segments(directory)[0])[0] == 0


def places_end(directory: Path) -> int:
    return rows("verify", directory)[0]["log_end_offset"]


def test_dump_shows_a_torn_end(directory: Path) -> None:
    """Bytes behind the last complete batch of a file are shown, even if there is nothing else at an offset."""
    last = segments(directory)[-1]
    with last.open("ab") as file:
        file.write(b"torn")
    assert rows("dump", last)[-1]["size_bytes"] == 4
    end = places_end(directory)
    assert [row["size_bytes"] for row in rows("dump", directory, "--offset", end)] == [4]


def test_dump_shows_bytes_behind_the_last_record(directory: Path) -> None:
    """Bytes between two segments that belong to no record get a row too."""
    path = segments(directory)[0]
    size_bytes = path.stat().st_size
    with path.open("ab") as file:
        file.write(b"z" * 70)
    (bad,) = [row for row in rows("dump", directory, "--batches") if row["problem"]]
    assert (bad["position"], bad["size_bytes"], bad["base_offset"]) == (
        size_bytes,
        70,
        int(segments(directory)[1].stem),
    )


def test_dump_of_a_batch_whose_payload_cannot_be_read(directory: Path) -> None:
    """The CRC matches but the payload is invalid, and the row says so."""
    place = places(directory)[0]
    change_batch(segments(directory)[0], 0, 61, b"\xff\xff", place.header.size_bytes)
    found = rows("dump", segments(directory)[0], "--records")
    assert found[0]["problem"]
    assert found[1]["problem"] is None


def test_dump_names_what_is_special_about_a_batch(tmp_path: Path) -> None:
    """Control batches are named."""
    log = open_log(PosixDisk(), f"{tmp_path}/log").log
    append(log, [b"x"], control=True)
    log.close()
    assert [row["attributes"] for row in rows("dump", log.directory, "--batches")] == ["control"]


def test_dump_of_caches_and_checkpoints(directory: Path) -> None:
    """Every other file of a log: entries, producer state, chunks, slots, epochs, identity."""
    cleaner = ["dirty_offset 9", "map_offset 0", "leader_epoch 0", "next_horizon_ms -1", "0 77"]
    (directory / CLEANER_FILE).write_bytes(encode_lines(cleaner))
    (directory / DAMAGE_FILE).write_bytes(encode_lines(["0 0 1 0 99"]))
    kinds = {
        ".index": {"fact", "entry"},
        ".timeindex": {"fact", "entry"},
        ".seal": {"fact", "chunk"},
        ".snapshot": {"window_batch"},
        RECOVERY_POINT_FILE: {"slot"},
        EPOCH_FILE: {"epoch"},
        DAMAGE_FILE: {"damaged_range"},
        CLEANER_FILE: {"fact", "segment"},
        PARTITION_FILE: {"partition"},
    }
    for suffix, expected in kinds.items():
        path = max(path for path in directory.iterdir() if path.name.endswith(suffix) and path.stat().st_size)
        assert {row["type"] for row in rows("dump", path)} == expected, path
        assert run("dump", path)[0] == 0
        flip(path, 10)
        code, _, err = run("dump", path)
        if suffix == RECOVERY_POINT_FILE:
            assert code == 0
        else:
            assert code == 1
            assert "damaged" in err
        flip(path, 10)
    entries = rows("dump", segment_path(directory, int(segments(directory)[1].stem), ".index"))
    starts = {(place.header.base_offset, place.position) for place in places(directory)}
    assert {(row["base_offset"], row["position"]) for row in entries if row["type"] == "entry"} <= starts


def test_dump_of_a_snapshot_with_transactions(tmp_path: Path) -> None:
    """Producers without batches, open and aborted transactions."""
    path = tmp_path / f"{70:020d}.snapshot"
    path.write_bytes(snapshot(b"\0\0\0\2" + PRODUCER + IDLE + TRANSACTIONS))
    found = rows("dump", path)
    assert [row["base_offset"] for row in found if row["type"] == "window_batch"] == [40, None]
    assert [row["state"] for row in found if row["type"] == "transaction"] == ["open", "aborted"]
    path.write_bytes(snapshot(b"\0\0\0\1" + PRODUCER + TRANSACTIONS + COORDINATORS))
    coordinators = [row for row in rows("dump", path) if row["type"] == "coordinator"]
    assert [(row["producer_id"], row["coordinator_epoch"]) for row in coordinators] == [(7, 2), (9, 3)]
