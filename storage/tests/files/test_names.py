# SPDX-License-Identifier: Apache-2.0
"""File and directory names: formatting and parsing."""

from __future__ import annotations

import pytest

from storage.files.names import (
    INDEX_SUFFIX,
    LOG_SUFFIX,
    SEAL_SUFFIX,
    SNAPSHOT_SUFFIX,
    TIME_INDEX_SUFFIX,
    OffsetFile,
    PartitionIdentity,
    offset_file_name,
    parse_offset_file_name,
    parse_partition_directory_name,
    partition_directory_name,
)


@pytest.mark.parametrize("suffix", [LOG_SUFFIX, INDEX_SUFFIX, TIME_INDEX_SUFFIX, SNAPSHOT_SUFFIX, SEAL_SUFFIX])
@pytest.mark.parametrize("offset", [0, 1, 2**63 - 1])
def test_offset_file_name_round_trip(suffix: str, offset: int) -> None:
    """A name made from an offset gives the offset back and has 20 digits."""
    name = offset_file_name(offset, suffix)
    assert len(name) == 20 + len(suffix)
    assert parse_offset_file_name(name) == OffsetFile(offset, suffix)


@pytest.mark.parametrize(
    "name", ["", "1.log", f"{2**63:020d}.log", f"{0:020d}.txt", f"{0:020d}.log.tmp", f"{0:021d}.log", "recovery-point"]
)
def test_other_names_are_no_offset_files(name: str) -> None:
    """Names that `offset_file_name` did not make are not parsed."""
    assert parse_offset_file_name(name) is None


def test_offset_file_names_sort_as_offsets() -> None:
    """Sorting names sorts offsets."""
    offsets = [0, 9, 10, 99, 100, 2**40, 2**63 - 1]
    assert sorted(offset_file_name(offset, LOG_SUFFIX) for offset in reversed(offsets)) == [
        offset_file_name(offset, LOG_SUFFIX) for offset in offsets
    ]


@pytest.mark.parametrize("partition", [0, 7, 2**31 - 1])
def test_partition_directory_name_round_trip(partition: int) -> None:
    """A partition directory's name gives topic id and partition back."""
    identity = PartitionIdentity(bytes(range(16)), partition)
    assert parse_partition_directory_name(partition_directory_name(identity)) == identity


@pytest.mark.parametrize(
    "name",
    ["", "metadata", "ab-1", "0" * 32, "0" * 32 + "-01", "0" * 32 + "-2147483648", "G" * 32 + "-1", "a" * 32 + "--1"],
)
def test_other_names_are_no_partition_directories(name: str) -> None:
    """A foreign or malformed directory name is not parsed as a partition."""
    assert parse_partition_directory_name(name) is None


@pytest.mark.parametrize("identity", [PartitionIdentity(b"short", 0), PartitionIdentity(bytes(16), -1)])
def test_impossible_identity_is_a_programmer_error(identity: PartitionIdentity) -> None:
    """Ids of another size and negative partitions never reach a path."""
    with pytest.raises(AssertionError):
        partition_directory_name(identity)
