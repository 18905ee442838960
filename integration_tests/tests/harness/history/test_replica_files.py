# SPDX-License-Identifier: Apache-2.0
"""Files of replicas are compared batch by batch."""

from __future__ import annotations

from pathlib import Path

from lograft.wire.batch import encode_batch
from lograft.wire.header import stamp

from integration_tests.harness.history.replica_files import compare_replicas
from storage.files.names import PartitionIdentity, offset_file_name, partition_directory_name


def write_replica(broker: Path, values: list[bytes], *, per_segment: int, partition: int = 0) -> None:
    """Write a partition directory by hand: one batch for each value, with a fixed number of batches in a segment."""
    directory = broker / "partitions" / partition_directory_name(PartitionIdentity(bytes(16), partition))
    directory.mkdir(parents=True)
    for start in range(0, len(values), per_segment):
        data = bytearray()
        for offset, value in enumerate(values[start : start + per_segment], start):
            batch = encode_batch([value], timestamps_ms=1)
            stamp(batch, base_offset=offset, leader_epoch=1)
            data += batch
        (directory / offset_file_name(start, ".log")).write_bytes(data)


def test_replicas_are_compared_batch_by_batch(tmp_path: Path) -> None:
    """Equal logs with different segments are equal. Another value, a shorter log and a missing replica are found."""
    values = [b"a", b"b", b"c", b"d"]
    one, two, other, short = (tmp_path / name for name in ("one", "two", "other", "short"))
    write_replica(one, values, per_segment=4)
    write_replica(two, values, per_segment=3)
    write_replica(other, [b"a", b"b", b"x", b"d"], per_segment=4)
    write_replica(short, values[:3], per_segment=4)
    assert compare_replicas([one, two], replicas=2, partitions=1) == []
    assert "differ at offset 2" in compare_replicas([one, two, other], replicas=3, partitions=1)[0]
    assert "differ in their ends: 4 and 3" in compare_replicas([one, short], replicas=2, partitions=1)[0]
    assert "not 1" in compare_replicas([one, two], replicas=3, partitions=1)[0]
