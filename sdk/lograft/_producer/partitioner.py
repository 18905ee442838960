# SPDX-License-Identifier: Apache-2.0
"""Chooses the partition of a record.

This module has the rules for keys. Records without a key stick to one partition until its batch is sealed; see
`TopicBuffers.sticky`. With the rule "sticky", records with a key do the same, and `quietest` chooses the next partition.

Source: for "crc32c" librdkafka's `consistent_random`, but with CRC-32C as the checksum, which hardware computes; a broker's
Append call uses the same rule. For "murmur2" `BuiltInPartitioner.partitionForKey` and `Utils.murmur2` of Kafka's Java client.
For "sticky" KIP-794, by unacknowledged bytes instead of queue lengths.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any, Final, TypeAlias

from crc32c import crc32c

from lograft.errors import UsageError

PartitionFunction: TypeAlias = Callable[[str, bytes, int], int]
"""Returns the partition of a record with a key, from topic, key and partition count."""

MIN_VECTOR_KEYS: Final = 32
"""Keys of one length from which numpy hashes them faster than Python does."""
_SEED: Final = 0x9747B28C
_MIX: Final = 0x5BD1E995
_WORD: Final = 0xFFFF_FFFF
_POSITIVE: Final = 0x7FFF_FFFF


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyRule:
    """How the key decides. Without `hash` and `function` it does not.

    Attributes:
        hash: returns a number, 0 or more, for a key; the partition is this number modulo the partition count.
        hash_many: does the same for many keys, None among them for records without a key, whose numbers mean nothing.
        function: the program's own rule. It is asked for every record, because it need not be a rule for keys.
    """

    hash: Callable[[bytes], int] | None = None
    hash_many: Callable[[Sequence[bytes | None]], Sequence[int]] | None = None
    function: PartitionFunction | None = None

    @property
    def ignores_keys(self) -> bool:
        """True for the rule "sticky"."""
        return self.hash is None and self.function is None

    def decides_nothing(self, partition_count: int) -> bool:
        """Return True if no key needs to be looked at. The program's function is always asked, because it may refuse a key."""
        return self.ignores_keys or (partition_count == 1 and self.function is None)


def ask_function(function: PartitionFunction, topic: str, key: bytes, partition_count: int) -> int:
    """Return the partition that the program's function chooses.

    Raises:
        UsageError: the function failed, or its result is no partition of the topic.
    """
    try:
        partition: object = function(topic, key, partition_count)
    except Exception as error:
        raise UsageError(f"the partitioner failed for topic {topic!r}: {type(error).__name__}: {error}") from error
    if type(partition) is not int or not 0 <= partition < partition_count:
        raise UsageError(
            f"the partitioner returned {partition!r} for topic {topic!r}; it must return a whole number from 0 to "
            f"{partition_count - 1}"
        )
    return partition


def partition_by_keys(
    keys: Sequence[bytes | None], partition_count: int, *, keyless: int, rule: KeyRule | None = None, topic: str = ""
) -> list[int]:
    """Return the partition of each key, and `keyless` for None and where the rule ignores keys.

    Raises:
        TypeError: a key is not bytes.
        UsageError: the program's function failed.
    """
    rule = CRC32C if rule is None else rule
    function, hash_many, hash_one = rule.function, rule.hash_many, rule.hash
    if function is not None:
        return [
            keyless if key is None else ask_function(function, topic, _to_bytes(key), partition_count) for key in keys
        ]
    if hash_many is not None:
        return [
            keyless if key is None else number % partition_count
            for key, number in zip(keys, hash_many(keys), strict=True)
        ]
    if hash_one is None:
        return [keyless] * len(keys)
    return [keyless if key is None else hash_one(key) % partition_count for key in keys]


def _to_bytes(key: object) -> bytes:
    if isinstance(key, bytes | bytearray):
        return bytes(key)
    if isinstance(key, memoryview):
        return key.tobytes()
    raise TypeError(f"a key is bytes, not {type(key).__name__}")


def murmur2(key: bytes) -> int:
    """Return the 32-bit MurmurHash2 of a key as Kafka's Java client computes it, as a signed number."""
    number = _murmur2(key)
    return number - (1 << 32) if number > _POSITIVE else number


def _murmur2(key: bytes) -> int:
    length = len(key)
    number = _SEED ^ length
    for word in struct.unpack_from(f"<{length >> 2}I", key):
        word = word * _MIX & _WORD
        word ^= word >> 24
        number = number * _MIX & _WORD ^ word * _MIX & _WORD
    tail = key[length & ~3 :]
    if tail:
        number = (number ^ int.from_bytes(tail, "little")) * _MIX & _WORD
    number = (number ^ number >> 13) * _MIX & _WORD
    return number ^ number >> 15


def _positive_murmur2(key: bytes) -> int:
    return _murmur2(key) & _POSITIVE


@cache
def load_numpy() -> Any:
    """Return numpy, or None where it is not installed."""
    try:
        return import_module("numpy")
    except ImportError:
        return None


def murmur2_many(keys: Sequence[bytes | None]) -> list[int]:
    """Return `toPositive(murmur2(key))` for each key, and any number for None. With numpy, it hashes keys of one length together.

    Raises:
        TypeError: a key is not bytes.
    """
    numpy = load_numpy()
    if numpy is None:
        return [0 if key is None else _positive_murmur2(key) for key in keys]
    by_length: dict[int, list[int]] = {}
    for index, key in enumerate(keys):
        if key is not None:
            by_length.setdefault(len(key), []).append(index)
    numbers = [0] * len(keys)
    for length, indexes in by_length.items():
        group = [keys[index] or b"" for index in indexes]
        hashed = (
            _murmur2_vector(numpy, group, length)
            if len(group) >= MIN_VECTOR_KEYS
            else [_positive_murmur2(key) for key in group]
        )
        for index, number in zip(indexes, hashed, strict=True):
            numbers[index] = number
    return numbers


def _murmur2_vector(numpy: Any, keys: Sequence[bytes], length: int) -> list[int]:
    """Hash keys of one length. The arithmetic of 32-bit columns wraps as Java's does."""
    rows = numpy.frombuffer(b"".join(keys), numpy.uint8).reshape(len(keys), length)
    whole = length & ~3
    words = numpy.ascontiguousarray(rows[:, :whole]).view("<u4")
    mix = numpy.uint32(_MIX)
    number = numpy.full(len(keys), _SEED ^ length, numpy.uint32)
    for column in range(whole >> 2):
        word = words[:, column] * mix
        word ^= word >> numpy.uint32(24)
        number = number * mix ^ word * mix
    if whole < length:
        for offset in range(length - whole):
            number ^= rows[:, whole + offset].astype(numpy.uint32) << numpy.uint32(8 * offset)
        number *= mix
    number = (number ^ number >> numpy.uint32(13)) * mix
    number ^= number >> numpy.uint32(15)
    return (number & numpy.uint32(_POSITIVE)).tolist()


CRC32C: Final = KeyRule(hash=crc32c)
"""CRC-32C modulo the partition count."""
MURMUR2: Final = KeyRule(hash=_positive_murmur2, hash_many=murmur2_many)
"""The rule of Kafka's Java client."""
STICKY: Final = KeyRule()
"""Keys do not matter."""

RULES: Final = {"crc32c": CRC32C, "murmur2": MURMUR2, "sticky": STICKY}
"""The rules that a setting names."""


def quietest(loads: Sequence[tuple[int, int]], after: int) -> int:
    """Return the partition for the next records of a sticky topic.

    The leader with the fewest unacknowledged bytes comes first, and among its partitions the one with the fewest. So a leader
    that does not answer gets no more while others do. Equal ones take turns.

    Args:
        loads: for each partition the node id of its leader, -1 without one, and its unacknowledged bytes.
        after: the partition before.
    """
    by_leader: dict[int, int] = {}
    for leader, load_bytes in loads:
        by_leader[leader] = by_leader.get(leader, 0) + load_bytes
    count = len(loads)

    def rank(partition: int) -> tuple[bool, int, int]:
        leader, load_bytes = loads[partition]
        return leader < 0, by_leader[leader], load_bytes

    return min(((after + step) % count for step in range(1, count + 1)), key=rank)


def group_by_partition(partitions: Sequence[int]) -> dict[int, list[int]]:
    """Return the indexes of each partition's records, ascending. The partitions are in the order of their first record."""
    groups: dict[int, list[int]] = {}
    for index, partition in enumerate(partitions):
        group = groups.get(partition)
        if group is None:
            groups[partition] = [index]
        else:
            group.append(index)
    return groups
