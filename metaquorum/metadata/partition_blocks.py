# SPDX-License-Identifier: Apache-2.0
"""Blocks: up to 128 partitions of a topic packed into bytes, the form in which they are kept in memory, stored and sent.

Owns the layout and its checks. A *block* starts at a partition number that is a multiple of 128. The *members* of a partition are its
leader and its lists of node ids. A block stores each distinct set of members once; a partition is one byte that names its members,
and two epochs. Equal partitions give equal bytes, whatever their history. Persistent format, all integers big-endian:

    | field             | size             |                                                                        |
    |-------------------|------------------|------------------------------------------------------------------------|
    | partition count   | 2                | 1 to 128                                                               |
    | member count      | 2                | distinct members                                                       |
    | index             | 1 per partition  | which members; numbered as they first occur                            |
    | leader epochs     | 4 per partition  |                                                                        |
    | partition epochs  | 4 per partition  |                                                                        |
    | ends              | 4 per members    | end (exclusive) of each, from the begin of the first                   |
    | members           | up to the end    | leader id or -1 (4), list count (1), length of each list (2), ids (4)  |

Lists in order: replicas, isr, elr, last known elr, adding, removing, awaited; empty lists at the end are left out.
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
"""Partitions in a full block. A full block is a row of about 2 KiB. Only the last block of a topic has fewer."""

CACHED_MEMBERS: Final = 16_384
"""Distinct members that are cached, decoded and encoded: some 500 bytes each. Most clusters have fewer."""

CACHED_CHANGES: Final = 4_096
"""Changes of members that are cached: some 500 bytes each. The partitions of a lost broker need few distinct ones."""

_LISTS: Final = 7
_NO_LEADER: Final = -1
_COUNTS: Final = struct.Struct(">HH")
_MEMBERS: Final = struct.Struct(">iB")
_COLUMNS: Final[tuple[struct.Struct, ...]] = tuple(struct.Struct(f">{count}I") for count in range(BLOCK_PARTITIONS + 1))

NodeIds = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Members:
    """Leader and lists of node ids of a partition; see `PartitionImage` for the fields."""

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
    """Return whether a record may describe this state.

    Illegal are an empty ISR, node ids that are not among the replicas, a leader that is not in sync, and a leader despite awaited
    replicas.
    """
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
    """Return members as bytes."""
    lists = [replicas, isr, elr, last_known_elr, adding, removing, awaited]
    while not lists[-1]:
        lists.pop()
    ids = [node_id for each in lists for node_id in each]
    head = _MEMBERS.pack(_NO_LEADER if leader_id is None else leader_id, len(lists))
    return head + struct.pack(f">{len(lists)}H{len(ids)}i", *map(len, lists), *ids)


@lru_cache(maxsize=CACHED_MEMBERS)
def decode_members(data: bytes) -> Members:
    """Return the members that the bytes encode. Equal bytes give the same object while it is cached.

    Raises:
        AssertionError: the bytes are not what `encode_members` returns, or the members are illegal.
        struct.error: the bytes are too short.
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
    """The effect of a change on members. Equal changes of equal members share one object, so callers compare by identity.

    Attributes:
        before: members before the change.
        after: members after the change.
        data: `after` as bytes.
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
    """Apply a change to encoded members. A list that is None stays as it is; `leader_id` counts only with `changes_leader`.

    Raises:
        AssertionError: the result is illegal.
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
    """An unpacked block, for adding and replacing partitions. The three lists have equal length."""

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
    """Unpack a block."""
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
    """Return the number of partitions in a block."""
    return _counts(data)[0]


def _counts(data: bytes) -> tuple[int, int]:
    count, kind_count = _COUNTS.unpack_from(data)
    return count, kind_count


def entry(data: bytes, place: int) -> tuple[bytes, int, int]:
    """Return members, leader epoch and partition epoch of the partition at index `place` of a block."""
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
    """Return the distinct members of a block, in the order of their numbers."""
    count, kind_count = _counts(data)
    position = _COUNTS.size + 9 * count
    ends = _COLUMNS[kind_count].unpack_from(data, position)
    first = position + 4 * kind_count
    return [data[first + begin : first + end] for begin, end in zip((0, *ends), ends, strict=False)]


def index_of(data: bytes) -> bytes:
    """Return the index column of a block: for each partition, the number of its members."""
    return data[_COUNTS.size : _COUNTS.size + partition_count(data)]


def tally(blocks: Iterable[bytes]) -> Iterator[tuple[Members, int]]:
    """Yield the distinct members of each block with the number of partitions that have them."""
    for data in blocks:
        kinds = distinct_members(data)
        for kind, count in Counter(index_of(data)).items():
            yield decode_members(kinds[kind]), count


def check(data: bytes) -> None:
    """Check a block from disk or from a peer. It runs for each block of a load, so it creates no object for a single partition.

    Raises:
        AssertionError: the block is not what `OpenBlock.pack` returns, or a partition in it is illegal.
        struct.error, IndexError: the block is too short, or its numbers point outside it.
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
    """Yield members, leader epoch and partition epoch of each partition of a block."""
    block = open_block(data)
    return zip(block.members, block.leader_epochs, block.partition_epochs, strict=True)
