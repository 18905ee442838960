# SPDX-License-Identifier: Apache-2.0
"""Packed partitions: a table of any history equals the plain list, and equal tables are equal bytes; damage is refused."""

from __future__ import annotations

import struct

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from metaquorum.metadata import partition_blocks
from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.partition_blocks import BLOCK_PARTITIONS
from metaquorum.metadata.records import TopicRecord
from metaquorum.metadata.state import PartitionCounts, PartitionImage, Partitions, TopicImage, example

TOPIC = b"t" * 16


def image(number: int, *replicas: int, leader_epoch: int = 0, partition_epoch: int = 0) -> PartitionImage:
    """A partition that its first replica leads, all in sync."""
    return PartitionImage(number, replicas, replicas, replicas[0], leader_epoch, partition_epoch)


def put(table: Partitions, state: PartitionImage) -> None:
    """Change a partition, as the replay of a record does."""
    block, place = table.open(state.partition // BLOCK_PARTITIONS), state.partition % BLOCK_PARTITIONS
    block.members[place] = partition_blocks.encode_members(
        state.leader_id,
        state.replicas,
        state.isr,
        state.elr,
        state.last_known_elr,
        state.adding,
        state.removing,
    )
    block.leader_epochs[place] = state.leader_epoch
    block.partition_epochs[place] = state.partition_epoch


@st.composite
def states(draw: st.DrawFn) -> PartitionImage:
    """A possible partition, numbered 0."""
    ids = st.integers(min_value=0, max_value=2**31 - 1)
    replicas = tuple(draw(st.lists(ids, min_size=1, max_size=5, unique=True)))
    isr = replicas[: draw(st.integers(1, len(replicas)))]
    out = replicas[len(isr) :]
    return PartitionImage(
        0,
        replicas,
        isr,
        draw(st.sampled_from((None, *isr))),
        draw(st.integers(0, 2**32 - 1)),
        draw(st.integers(0, 2**32 - 1)),
        out[: draw(st.integers(0, len(out)))],
        tuple(draw(st.lists(ids, max_size=2))),
        replicas[:1] if draw(st.booleans()) else (),
        replicas[1:] if draw(st.booleans()) else (),
    )


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 400), states()), max_size=300), st.integers(0, 300))
def test_table_equals_the_plain_list_whatever_its_history(
    steps: list[tuple[bool, int, PartitionImage]], start: int
) -> None:
    """Property: appends and replacements in any order; reads by number, slice, walk; counts; equal bytes."""
    table, plain = Partitions(), [image(number, 1, 2) for number in range(start)]
    for each in plain:
        table.append(each)
    for grows, number, state in steps:
        if grows or not plain:
            plain.append(state._replace(partition=len(plain)))
            table.append(plain[-1])
        else:
            number %= len(plain)
            plain[number] = state._replace(partition=number)
            put(table, plain[number])
            assert table[number] == plain[number]
    assert len(table) == len(plain)
    assert list(table) == plain
    assert [table[number] for number in range(len(plain))] == plain
    assert table[5:200] == plain[5:200]
    chosen = table.chosen(start, len(plain), partition_blocks.decode_members)
    assert [(number, members.isr) for number, members in chosen] == [
        (each.partition, each.isr) for each in plain[start:]
    ]
    again = Partitions(plain)
    assert again.blocks() == table.blocks()
    assert again == table
    counted, tallied = PartitionCounts(), PartitionCounts()
    loaded = Partitions()
    for each in plain:
        counted.add(each)
    for number, data in enumerate(table.blocks()):
        for members, count in loaded.add_block(number, data):
            tallied.move(members, count)
    assert tallied == counted
    assert list(loaded) == plain


def test_block_has_the_layout_that_is_written_down() -> None:
    """Byte for byte: the format is persistent, and nodes compare these bytes."""
    table = Partitions([image(0, 7, 8), image(1, 9), image(2, 7, 8)._replace(leader_epoch=1, partition_epoch=2)])
    first = struct.pack(">iBHHiiii", 7, 2, 2, 2, 7, 8, 7, 8)
    second = struct.pack(">iBHHii", 9, 2, 1, 1, 9, 9)
    columns = struct.pack(">HH3B3I3I2I", 3, 2, 0, 1, 0, 0, 0, 1, 0, 0, 2, len(first), len(first) + len(second))
    assert table.blocks() == [columns + first + second]


def test_partition_costs_few_bytes() -> None:
    """At most 300 bytes for a partition, with three replicas each and no two alike in a block."""
    table = Partitions([image(number, number, number + 1, number + 2) for number in range(1_000)])
    assert sum(map(len, table.blocks())) / 1_000 < 60


def test_partitions_for_which_nothing_is_chosen_are_passed_over() -> None:
    """The predicate runs once for each distinct set of members of a block; the partitions come by number, with its result."""
    table = Partitions([image(number, number % 3) for number in range(BLOCK_PARTITIONS + 10)])
    put(table, image(0, 2))
    asked: list[int | None] = []

    def choose(members: bytes) -> str | None:
        asked.append(partition_blocks.decode_members(members).leader_id)
        return "" if asked[-1] == 1 else None

    end = BLOCK_PARTITIONS + 9
    assert list(table.chosen(2, end, choose)) == [(number, "") for number in range(4, end, 3)]
    assert sorted(each for each in asked if each is not None) == [0, 0, 1, 1, 2, 2]
    assert list(table.chosen(0, end, lambda _: None)) == []


def test_example_has_the_members_and_nothing_else() -> None:
    """A predicate sees one example for all partitions with the same members."""
    table = Partitions([image(0, 7, 8, leader_epoch=3, partition_epoch=4)])
    (members,) = partition_blocks.distinct_members(table.blocks()[0])
    assert example(members) == image(0, 7, 8)


def test_copy_and_original_change_apart() -> None:
    """They share blocks and no changes; a walk that has begun sees none of them either."""
    table = Partitions([image(0, 1), image(1, 1)])
    other = table.copy()
    put(other, image(0, 2))
    table.append(image(2, 3))
    assert [each.leader_id for each in other] == [2, 1]
    assert [each.leader_id for each in table] == [1, 1, 3]
    assert table != other
    assert table != [image(0, 1)]
    assert "PartitionImage" in repr(other)
    assert other[-1] == other[1]


def test_number_of_another_partition_is_refused() -> None:
    """Out of range, or out of turn."""
    table = Partitions([image(0, 1)])
    for number in (1, -2):
        with pytest.raises(IndexError):
            table[number]
    with pytest.raises(AssertionError, match="partition 5 after 1"):
        table.append(image(5, 1))
    with pytest.raises(AssertionError, match="block 1 after 0"):
        Partitions().add_block(1, table.blocks()[0])
    with pytest.raises(AssertionError, match="block 1 after 1"):
        table.add_block(1, table.blocks()[0])


def _packed(*members: bytes) -> bytes:
    return partition_blocks.OpenBlock(list(members), [0] * len(members), [0] * len(members)).pack()


GOOD = partition_blocks.encode_members(1, (1, 2), (1,), (), (), (), ())


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"\x00\x00\x00\x00", id="no partitions"),
        pytest.param(_packed(GOOD)[:-1], id="cut"),
        pytest.param(_packed(GOOD) + b"\x00", id="longer"),
        pytest.param(b"\x00\x81" + _packed(GOOD)[2:], id="129 partitions"),
        pytest.param(_packed(GOOD)[:4] + b"\x01" + _packed(GOOD)[5:], id="index beyond the members"),
        pytest.param(_packed(struct.pack(">iB", 1, 0)), id="no lists"),
        pytest.param(_packed(struct.pack(">iB7H", 1, 7, *[0] * 7)), id="seven lists"),
        pytest.param(_packed(struct.pack(">iBHHii", 2, 2, 1, 1, 1, 1)), id="led by another"),
        pytest.param(_packed(struct.pack(">iBHi", 1, 1, 1, 1)), id="nobody in sync"),
        pytest.param(_packed(struct.pack(">iBHHii", 1, 2, 1, 1, 1, 3)), id="in sync without being a replica"),
        pytest.param(_packed(struct.pack(">iBHHHiii", 1, 3, 1, 1, 1, 1, 1, 1)), id="eligible and in sync"),
        pytest.param(_packed(struct.pack(">iBHHHHHii", 1, 5, 1, 1, 0, 0, 0, 1, 1)), id="empty lists at the end"),
        pytest.param(_packed(struct.pack(">iBHHHHHiii", 1, 5, 1, 1, 0, 0, 1, 1, 1, 9)), id="adding a stranger"),
    ],
)
def test_damaged_block_is_refused(data: bytes) -> None:
    """Only bytes that `pack` makes of valid partitions get into an image."""
    with pytest.raises((AssertionError, IndexError, struct.error)):
        Partitions().add_block(0, data)


def test_members_that_stand_twice_are_another_form() -> None:
    """Two numbers for the same members."""
    data = struct.pack(">HH2B4I2I", 2, 2, 0, 1, 0, 0, 0, 0, len(GOOD), 2 * len(GOOD)) + GOOD + GOOD
    with pytest.raises(AssertionError, match="one form"):
        Partitions().add_block(0, data)


def test_members_in_another_order_are_another_form() -> None:
    """A block has one form; otherwise digests of equal images would differ."""
    other = partition_blocks.encode_members(None, (1, 2), (1,), (), (), (), ())
    data = bytearray(_packed(GOOD, other))
    data[4:6] = b"\x01\x00"
    with pytest.raises(AssertionError, match="one form"):
        Partitions().add_block(0, bytes(data))


def test_image_takes_blocks_for_topics_that_it_has() -> None:
    """Counts follow; a block without its topic is a contradiction."""
    table = Partitions([image(number, number % 2, 5) for number in range(BLOCK_PARTITIONS + 1)])
    full, rest = table.blocks()
    committed = MetadataImage()
    with pytest.raises(AssertionError, match="unknown topic"):
        committed.put_block(TOPIC, 0, full)
    committed.replay(TopicRecord(topic="t", topic_id=TOPIC), 0)
    committed.put_block(TOPIC, 0, full)
    committed.put_block(TOPIC, 1, rest)
    assert committed.counts.leaders == {0: 65, 1: 64}
    assert committed.counts.replicas == {0: 65, 1: 64, 5: 129}
    topic = committed.topic_by_name("t")
    assert topic == TopicImage("t", TOPIC, table, {})


def test_open_block_is_a_copy_of_its_own() -> None:
    """A read of an open block returns the last value written to it."""
    table = Partitions([image(0, 1)])
    put(table, image(0, 1, partition_epoch=1))
    walk = iter(table)
    table.seal()
    assert next(walk).partition_epoch == 1
    assert table[0].partition_epoch == 1
