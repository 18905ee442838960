# SPDX-License-Identifier: Apache-2.0
"""Up to 128 partitions of a topic as one piece of bytes: the form in which they are kept, stored and sent.

Owns the layout and its checks. A *block* holds the partitions from a multiple of 128 on. Its *members* are what few
partitions have of their own: who leads, and the lists of node ids. Each distinct one stands once in a block, and a partition
is one byte that says which, and two epochs. Equal partitions give equal bytes, whatever their history was. Persistent
format, all integers big-endian:

    | field             | size             |                                                                        |
    |-------------------|------------------|------------------------------------------------------------------------|
    | partition count   | 2                | 1 to 128                                                               |
    | member count      | 2                | distinct members                                                       |
    | index             | 1 per partition  | which members; numbered as they first occur                            |
    | leader epochs     | 4 per partition  |                                                                        |
    | partition epochs  | 4 per partition  |                                                                        |
    | ends              | 4 per members    | end (exclusive) of each, from the begin of the first                   |
    | members           | up to the end    | leader id or -1 (4), list count (1), length of each list (2), ids (4)  |

Lists in order: replicas, isr, elr, last known elr, adding, removing, awaited; empty ones at the end are left out.
Source: `docs/image.md`.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import accumulate
from typing import Final

from metaquorum.metadata.awaited import awaited_brokers

BLOCK_PARTITIONS: Final = 128
"""Partitions in a full block; a row of the image of about 2 KiB. Only the last block of a topic has fewer."""

CACHED_MEMBERS: Final = 16_384
"""Members kept decoded, and encoded: some 500 bytes each. Most clusters have fewer different ones; others decode again."""

CACHED_CHANGES: Final = 4_096
"""Changes of members kept: some 500 bytes each. Those of a lost broker's partitions are few; others are worked out again."""

_LISTS: Final = 7
_NO_LEADER: Final = -1
_COUNTS: Final = struct.Struct(">HH")
_MEMBERS: Final = struct.Struct(">iB")
_COLUMNS: Final[tuple[struct.Struct, ...]] = tuple(struct.Struct(f">{count}I") for count in range(BLOCK_PARTITIONS + 1))

NodeIds = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Members:
    """What a partition has besides its number and its epochs; see `PartitionImage` for the fields."""

    leader_id: int | None
    replicas: NodeIds
    isr: NodeIds
    elr: NodeIds = ()
    last_known_elr: NodeIds = ()
    adding: NodeIds = ()
    removing: NodeIds = ()
    awaited: NodeIds = ()


def is_possible(
    leader_id: int | None,
    replicas: NodeIds,
    isr: NodeIds,
    elr: NodeIds,
    adding: NodeIds,
    removing: NodeIds,
    awaited: NodeIds = (),
) -> bool:
    """False for what no record may say: no in-sync replica, lists beyond the replicas, a leader out of sync or beside awaited ones."""
    in_sync = isr is replicas or all(node_id in replicas for node_id in isr)
    led = leader_id is None or leader_id in isr
    eligible = all(node_id in replicas and node_id not in isr for node_id in elr)
    moving = all(node_id in replicas for node_id in (*adding, *removing))
    awaiting = not awaited or (leader_id is None and all(node_id in isr for node_id in awaited_brokers(awaited)))
    return bool(isr) and in_sync and led and eligible and moving and awaiting


@lru_cache(maxsize=CACHED_MEMBERS)
def encode_members(
    leader_id: int | None,
    replicas: NodeIds,
    isr: NodeIds,
    elr: NodeIds,
    last_known_elr: NodeIds,
    adding: NodeIds,
    removing: NodeIds,
    awaited: NodeIds = (),
) -> bytes:
    """Return the bytes of members."""
    lists = [replicas, isr, elr, last_known_elr, adding, removing, awaited]
    while not lists[-1]:
        lists.pop()
    ids = [node_id for each in lists for node_id in each]
    head = _MEMBERS.pack(_NO_LEADER if leader_id is None else leader_id, len(lists))
    return head + struct.pack(f">{len(lists)}H{len(ids)}i", *map(len, lists), *ids)


@lru_cache(maxsize=CACHED_MEMBERS)
def decode_members(data: bytes) -> Members:
    """Return the members behind the bytes; equal bytes give one object.

    Raises:
        AssertionError: they are not what `encode_members` makes, or impossible.
        struct.error: they are too short.
    """
    leader, list_count = _MEMBERS.unpack_from(data)
    assert list_count <= _LISTS, f"{list_count} lists of node ids"
    lengths: NodeIds = struct.unpack_from(f">{list_count}H", data, _MEMBERS.size)
    ids: NodeIds = struct.unpack_from(f">{sum(lengths)}i", data, _MEMBERS.size + 2 * list_count)
    lists = [ids[end - length : end] for end, length in zip(accumulate(lengths), lengths, strict=True)]
    lists.extend(() for _ in range(_LISTS - len(lists)))
    replicas, isr, elr, last_known_elr, adding, removing, awaited = lists
    leader_id = None if leader == _NO_LEADER else leader
    assert is_possible(leader_id, replicas, isr, elr, adding, removing, awaited), (
        f"impossible members {leader_id}, {lists}"
    )
    assert encode_members(leader_id, *lists) == data, f"members {leader_id}, {lists} in other bytes than theirs"
    in_sync = replicas if isr == replicas else isr
    return Members(leader_id, replicas, in_sync, elr, last_known_elr, adding, removing, awaited)


@dataclass(frozen=True, slots=True, eq=False)
class MembersChange:
    """What a change makes of members, told apart by identity: there is one object for equal changes of equal members.

    Attributes:
        before: members before it.
        after: members after it.
        data: the latter as bytes.
    """

    before: Members
    after: Members
    data: bytes


@lru_cache(maxsize=CACHED_CHANGES)
def change_members(
    data: bytes,
    changes_leader: bool,
    leader_id: int | None,
    isr: NodeIds | None,
    replicas: NodeIds | None,
    elr: NodeIds | None,
    last_known_elr: NodeIds | None,
    adding: NodeIds | None,
    removing: NodeIds | None,
    awaited: NodeIds | None = None,
) -> MembersChange:
    """Change the members behind the bytes; a list that is None stays, and so does the leader unless told otherwise.

    Raises:
        AssertionError: the result is impossible.
    """
    before = decode_members(data)
    leader = leader_id if changes_leader else before.leader_id
    lists = (
        before.replicas if replicas is None else replicas,
        before.isr if isr is None else isr,
        before.elr if elr is None else elr,
        before.last_known_elr if last_known_elr is None else last_known_elr,
        before.adding if adding is None else adding,
        before.removing if removing is None else removing,
        before.awaited if awaited is None else awaited,
    )
    new_replicas, new_isr, new_elr, _, new_adding, new_removing, new_awaited = lists
    possible = is_possible(leader, new_replicas, new_isr, new_elr, new_adding, new_removing, new_awaited)
    assert possible, f"impossible members {leader}, {lists}"
    changed = encode_members(leader, *lists)
    return MembersChange(before, decode_members(changed), changed)


@dataclass(slots=True)
class OpenBlock:
    """A block taken apart, so that partitions can be added and replaced; the three lists are equally long."""

    members: list[bytes] = field(default_factory=list[bytes])
    leader_epochs: list[int] = field(default_factory=list[int])
    partition_epochs: list[int] = field(default_factory=list[int])

    def pack(self) -> bytes:
        """Return the bytes of the block."""
        kinds: dict[bytes, int] = {}
        index = bytes([kinds.setdefault(each, len(kinds)) for each in self.members])
        column = _COLUMNS[len(index)]
        return b"".join(
            (
                _COUNTS.pack(len(index), len(kinds)),
                index,
                column.pack(*self.leader_epochs),
                column.pack(*self.partition_epochs),
                _COLUMNS[len(kinds)].pack(*accumulate(map(len, kinds))),
                *kinds,
            )
        )


def open_block(data: bytes) -> OpenBlock:
    """Take a block apart."""
    count, _ = _counts(data)
    kinds = distinct_members(data)
    begin = _COUNTS.size + count
    column = _COLUMNS[count]
    return OpenBlock(
        [kinds[each] for each in data[_COUNTS.size : begin]],
        list(column.unpack_from(data, begin)),
        list(column.unpack_from(data, begin + column.size)),
    )


def partition_count(data: bytes) -> int:
    """Number of partitions in a block."""
    return _counts(data)[0]


def _counts(data: bytes) -> tuple[int, int]:
    count, kind_count = _COUNTS.unpack_from(data)
    return count, kind_count


def entry(data: bytes, place: int) -> tuple[bytes, int, int]:
    """Members, leader epoch and partition epoch of the partition at `place` of a block."""
    count, kind_count = _counts(data)
    epochs = _COUNTS.size + count
    kind = data[_COUNTS.size + place]
    ends = epochs + 8 * count
    first = ends + 4 * kind_count
    begin = _u32(data, ends + 4 * kind - 4) if kind else 0
    return (
        data[first + begin : first + _u32(data, ends + 4 * kind)],
        _u32(data, epochs + 4 * place),
        _u32(data, epochs + 4 * (count + place)),
    )


def _u32(data: bytes, position: int) -> int:
    return int.from_bytes(data[position : position + 4], "big")


def distinct_members(data: bytes) -> list[bytes]:
    """The distinct members of a block, by their number in its index."""
    count, kind_count = _counts(data)
    position = _COUNTS.size + 9 * count
    ends = _COLUMNS[kind_count].unpack_from(data, position)
    first = position + 4 * kind_count
    return [data[first + begin : first + end] for begin, end in zip((0, *ends), ends, strict=False)]


def index_of(data: bytes) -> bytes:
    """The index column of a block: for each partition, which of the distinct members it has."""
    return data[_COUNTS.size : _COUNTS.size + partition_count(data)]


def tally(blocks: Iterable[bytes]) -> Iterator[tuple[Members, int]]:
    """For the distinct members of each block: how many partitions have them."""
    for data in blocks:
        kinds = distinct_members(data)
        for kind, count in Counter(index_of(data)).items():
            yield decode_members(kinds[kind]), count


def check(data: bytes) -> None:
    """Check a block from outside; done for each block of a load, so it makes nothing for single partitions.

    Raises:
        AssertionError: it is not one that `OpenBlock.pack` makes, or a partition in it is impossible.
        struct.error, IndexError: it is too short, or says so much of itself that it cannot be read.
    """
    count, kind_count = _counts(data)
    kinds = distinct_members(data)
    for each in kinds:
        decode_members(each)
    size_bytes = _COUNTS.size + 9 * count + 4 * kind_count + sum(map(len, kinds))
    in_order = list(dict.fromkeys(index_of(data))) == list(range(kind_count))
    is_one_form = in_order and len(set(kinds)) == kind_count and size_bytes == len(data)
    assert 1 <= count <= BLOCK_PARTITIONS, f"a block of {count} partitions"
    assert is_one_form, f"a block of {len(data)} bytes is not in its one form"


def entries(data: bytes) -> Iterator[tuple[bytes, int, int]]:
    """Members, leader epoch and partition epoch of each partition of a block."""
    block = open_block(data)
    return zip(block.members, block.leader_epochs, block.partition_epochs, strict=True)
