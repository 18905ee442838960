# SPDX-License-Identifier: Apache-2.0
"""The rules for keys: Kafka's MurmurHash2, the program's own function, and the quietest partition."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from lograft._producer import partitioner
from lograft._producer.buffers import PartitionBuffer, TopicBuffers
from lograft._producer.partitioner import (
    CRC32C,
    MIN_VECTOR_KEYS,
    MURMUR2,
    STICKY,
    KeyRule,
    ask_function,
    murmur2,
    murmur2_many,
    partition_by_keys,
    quietest,
)
from lograft.errors import UsageError
from tests.producer.builders import make_accumulator

KAFKA_VECTORS = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}
"""From `UtilsTest.testMurmur2` of Kafka."""


@pytest.mark.parametrize(("key", "number"), KAFKA_VECTORS.items())
def test_murmur2_is_that_of_kafka(key: bytes, number: int) -> None:
    """The vectors of Kafka's own test."""
    assert murmur2(key) == number


@pytest.fixture
def without_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    """The module finds no numpy."""

    def nothing() -> None:
        return None

    monkeypatch.setattr(partitioner, "load_numpy", nothing)


def _mixed_keys() -> list[bytes | None]:
    source = random.Random(24)
    keys: list[bytes | None] = [None, b""]
    for length in range(21):
        keys += [source.randbytes(length) for _ in range(MIN_VECTOR_KEYS + 5 if length % 3 else 3)]
    keys += list(KAFKA_VECTORS) * MIN_VECTOR_KEYS
    source.shuffle(keys)
    return keys


def _check_bulk() -> None:
    keys = _mixed_keys()
    expected = [-1 if key is None else (murmur2(key) & 0x7FFF_FFFF) % 7 for key in keys]
    assert partition_by_keys(keys, 7, keyless=-1, rule=MURMUR2) == expected


def test_many_keys_hash_as_single_ones_with_numpy() -> None:
    """Groups of one length, small groups, empty keys and records without a key."""
    pytest.importorskip("numpy")
    _check_bulk()


@pytest.mark.usefixtures("without_numpy")
def test_many_keys_hash_as_single_ones_without_numpy() -> None:
    """The same keys in pure Python."""
    _check_bulk()


@pytest.mark.parametrize("count", [1, MIN_VECTOR_KEYS])
@pytest.mark.parametrize("key", ["text", 5])
def test_keys_of_another_type_are_refused_in_bulk(key: object, count: int) -> None:
    """A TypeError makes the producer look for the key record by record. A key that Python can hash otherwise must raise it too."""
    keys: list[bytes | None] = [key] * count  # pyright: ignore[reportAssignmentType]
    with pytest.raises(TypeError):
        murmur2_many(keys)
    with pytest.raises(TypeError):
        partition_by_keys(keys, 7, keyless=-1, rule=KeyRule(function=lambda *_: 0))


def _buffers(rule: KeyRule, partition_count: int = 3) -> TopicBuffers:
    buffers = TopicBuffers("t", rule)
    buffers.grow(
        [PartitionBuffer(buffers, at, size_limit=1_000, max_record_bytes=1_000) for at in range(partition_count)]
    )
    return buffers


def _look_up(buffers: TopicBuffers, key: bytes) -> int:
    """Do what the fast path does."""
    try:
        return buffers.by_key[key].partition
    except KeyError:
        return buffers.of_key(key).partition


@pytest.mark.parametrize("rule", [CRC32C, MURMUR2])
def test_kept_and_new_keys_get_the_partition_of_the_rule(rule: KeyRule) -> None:
    """Also after partitions were added."""
    buffers = _buffers(rule)
    keys = [b"%d" % index for index in range(200)] * 2
    assert [_look_up(buffers, key) for key in keys] == partition_by_keys(keys, 3, keyless=-1, rule=rule)
    buffers.grow([PartitionBuffer(buffers, 3, size_limit=1_000, max_record_bytes=1_000)])
    assert [_look_up(buffers, key) for key in keys] == partition_by_keys(keys, 4, keyless=-1, rule=rule)


@pytest.mark.parametrize("result", [3, -1, 1.0, "1", None, True])
def test_results_that_are_no_partition_are_refused(result: object) -> None:
    """The error shows the result and the range."""
    function: Callable[..., int] = lambda *_: result  # noqa: E731 # pyright: ignore[reportAssignmentType]
    with pytest.raises(UsageError, match=r"topic 't'.*from 0 to 2"):
        ask_function(function, "t", b"k", 3)


def test_a_failure_of_the_function_names_the_topic() -> None:
    """The cause stays with the error."""

    def fail(topic: str, key: bytes, partition_count: int) -> int:
        raise KeyError(key)

    with pytest.raises(UsageError, match="topic 't': KeyError") as caught:
        ask_function(fail, "t", b"k", 3)
    assert isinstance(caught.value.__cause__, KeyError)


def test_quietest_prefers_leaders_that_answer() -> None:
    """First the leader's bytes, then those of the partition; a partition without a leader comes last, equal ones take turns."""
    assert [quietest([(1, 0)] * 3, after) for after in range(3)] == [1, 2, 0]
    # Leader 1 owes bytes for its partition 0, so its partition 1 gets none either.
    assert quietest([(1, 100), (1, 0), (2, 10), (2, 20)], 0) == 2
    assert quietest([(-1, 0), (1, 500)], 1) == 1
    assert quietest([(-1, 0), (-1, 0)], 0) == 1
    assert quietest([(1, 0)], 0) == 0


def test_sticky_topic_moves_off_a_leader_that_does_not_answer() -> None:
    """Records with keys go the same way. The bytes count until the batch is resolved."""
    accumulator = make_accumulator()
    buffers = accumulator.add_topic("t", 4, first_sticky=0, rule=STICKY)
    for part, leader in zip(buffers.parts, (1, 1, 2, 2), strict=True):
        part.leader = leader
    went: list[int] = []
    for number in range(6):
        part = buffers.parts[buffers.sticky]
        assert _look_up(buffers, b"key-%d" % number) == part.partition
        accumulator.add(part, b"v", b"key-%d" % number, None, None, now_ms=0, wall_ms=0)
        accumulator.seal(part)
        went.append(part.partition)
        batch = accumulator.sealed.popleft()
        if part.leader == 2:  # leader 1 never answers
            accumulator.release(batch, part, now_ms=0)
            accumulator.turn_sticky(buffers)
    assert went[0] == 0
    assert {buffers.parts[partition].leader for partition in went[1:]} == {2}
    assert buffers.parts[0].pending_bytes > 0
    assert buffers.parts[2].pending_bytes == buffers.parts[3].pending_bytes == 0
