# SPDX-License-Identifier: Apache-2.0
"""The proof of the demo itself: the differences that it detects."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from integration_tests.scenarios.demo.facts import (
    MODULUS,
    Comparison,
    SourceFacts,
    SourceRecord,
    Tally,
    compare,
    hash_record,
    partition_of,
)

PARTITION_COUNT = 3
RECORDS = [
    SourceRecord(key=f"key {number % 7}".encode(), value=f"value {number}".encode(), timestamp_ms=1000 + number)
    for number in range(50)
]


def tallies(records: Sequence[SourceRecord]) -> dict[int, Tally]:
    facts = SourceFacts(PARTITION_COUNT)
    for record in records:
        facts.add(record)
    return facts.tally()


def differs(records: Sequence[SourceRecord]) -> bool:
    return not all(line.is_equal for line in compare(tallies(RECORDS), tallies(records), PARTITION_COUNT))


def test_order_does_not_matter() -> None:
    """The same records in another order give the same tallies."""
    assert not differs(RECORDS[::-1])


@pytest.mark.parametrize(
    ("what", "tampered"),
    [
        ("lost", RECORDS[1:]),
        ("doubled", [*RECORDS, RECORDS[0]]),
        ("all lost", []),
        ("lost and another doubled", [*RECORDS[1:], RECORDS[7]]),
        ("value changed", [SourceRecord(key=RECORDS[0].key, value=b"x", timestamp_ms=1000), *RECORDS[1:]]),
        ("key changed", [SourceRecord(key=b"x", value=RECORDS[0].value, timestamp_ms=1000), *RECORDS[1:]]),
        ("key dropped", [SourceRecord(key=None, value=RECORDS[0].value, timestamp_ms=1000), *RECORDS[1:]]),
        ("time changed", [SourceRecord(key=RECORDS[0].key, value=RECORDS[0].value, timestamp_ms=999), *RECORDS[1:]]),
    ],
)
def test_tampering_is_noticed(what: str, tampered: list[SourceRecord]) -> None:
    """A lost, doubled or changed record makes a difference."""
    assert differs(tampered), what


def test_record_in_another_partition_is_noticed() -> None:
    """Sums over all partitions would be the same; each partition is compared by itself."""
    wanted = tallies(RECORDS)
    moved = dict(wanted)
    one = Tally(count=1, checksum=hash_record(RECORDS[0].key, RECORDS[0].value, RECORDS[0].timestamp_ms))
    home = partition_of(b"key 0", PARTITION_COUNT)
    away = next(place for place in wanted if place != home)
    moved[home] = Tally(count=wanted[home].count - 1, checksum=(wanted[home].checksum - one.checksum) % MODULUS)
    moved[away] = wanted[away] + one
    assert sum(moved.values(), Tally()) == sum(wanted.values(), Tally())
    assert not all(line.is_equal for line in compare(wanted, moved, PARTITION_COUNT))


def test_bytes_cannot_move_between_key_and_value() -> None:
    """Lengths are part of the hash, and an empty key is not a missing one."""
    hashes = {
        hash_record(b"ab", b"c", 0),
        hash_record(b"a", b"bc", 0),
        hash_record(b"", b"abc", 0),
        hash_record(None, b"abc", 0),
        hash_record(b"abc", b"", 0),
        hash_record(b"abc", None, 0),
    }
    assert len(hashes) == 6


def test_unknown_partition_is_compared_too() -> None:
    """Records in a partition that the topic should not have are a difference."""
    found = {**tallies(RECORDS), 99: Tally(count=1, checksum=1)}
    lines = compare(tallies(RECORDS), found, PARTITION_COUNT)
    assert lines[-1] == Comparison(partition=99, wanted=Tally(), found=Tally(count=1, checksum=1))
    assert not lines[-1].is_equal


def test_known_partitions_of_keys() -> None:
    """CRC-32C of "123456789" is the check value 0xE3069283; records without a key are spread."""
    assert partition_of(b"123456789", 1000) == 0xE3069283 % 1000
    facts = SourceFacts(PARTITION_COUNT)
    keyless = SourceRecord(key=None, value=b"v", timestamp_ms=0)
    assert [facts.add(keyless) for _ in range(5)] == [0, 1, 2, 0, 1]
    assert facts.keyless_count == 5


def test_time_range_is_half_open_and_not_empty() -> None:
    """Tallies of adjacent ranges add up to the whole, and the middle range holds records."""
    facts = SourceFacts(PARTITION_COUNT)
    for record in RECORDS:
        facts.add(record)
    start_ms, end_ms = facts.middle_range()
    parts = [facts.tally(None, start_ms), facts.tally(start_ms, end_ms), facts.tally(end_ms, None)]
    counts = [sum(part.count for part in tally.values()) for tally in parts]
    assert counts == [16, 17, 17]
    for place, whole in facts.tally().items():
        assert sum((tally.get(place, Tally()) for tally in parts), Tally()) == whole


def test_middle_range_of_one_moment_holds_it() -> None:
    """A source whose records all have one time is replayed as a whole."""
    facts = SourceFacts(PARTITION_COUNT)
    facts.add(RECORDS[0])
    start_ms, end_ms = facts.middle_range()
    assert facts.tally(start_ms, end_ms) == facts.tally()
