# SPDX-License-Identifier: Apache-2.0
"""Awaited directories: in-sync replicas whose log directory is gone, and the directories that would bring back their logs.

Owns the encoding of this fact. The last in-sync replica of a partition cannot leave the ISR, because no other replica has everything
that is committed. When its broker comes back without a log directory, the partition *awaits* the directories that the broker had when
the replica was last in sync. The replica cannot lead until one of them is back with the log, or an operator elects a leader
uncleanly.

An image stores the replicas of a partition as lists of 32-bit integers (`partition_blocks.py`), and awaited replicas in the same way.
The packed form of one replica: node id, number of directories, and four integers (16 bytes, big-endian) for each directory id.
Source: `docs/controller.md` section "Awaited directories"; ADR 11.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

_ID: Final = struct.Struct(">4i")
CACHED_LISTS: Final = 1_024
"""Unpacked lists that are cached. Few partitions await a directory, and those of one broker await the same ones."""

Packed = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class AwaitedReplica:
    """A replica, and the log directories that its broker had when the replica was last in sync (16 bytes each, ascending)."""

    broker_id: int
    directory_ids: tuple[bytes, ...]


def pack(replicas: Iterable[AwaitedReplica]) -> Packed:
    """Return replicas in packed form."""
    packed: list[int] = []
    for replica in replicas:
        packed += (replica.broker_id, len(replica.directory_ids))
        for directory_id in replica.directory_ids:
            packed += _ID.unpack(directory_id)
    return tuple(packed)


@lru_cache(maxsize=CACHED_LISTS)
def unpack(packed: Packed) -> tuple[AwaitedReplica, ...]:
    """Return the replicas of a packed list.

    Raises:
        AssertionError: the list is not a packed form.
    """
    replicas: list[AwaitedReplica] = []
    place = 0
    while place < len(packed):
        assert place + 2 <= len(packed), f"{packed} ends in the middle of a replica"
        broker_id, count = packed[place : place + 2]
        end = place + 2 + 4 * count
        assert count > 0, f"broker {broker_id} awaits {count} directories"
        assert end <= len(packed), f"{packed} does not have the {count} directories of broker {broker_id}"
        ids = tuple(_ID.pack(*packed[begin : begin + 4]) for begin in range(place + 2, end, 4))
        replicas.append(AwaitedReplica(broker_id, ids))
        place = end
    return tuple(replicas)


def awaited_directories(packed: Packed, broker_id: int) -> tuple[bytes, ...]:
    """Return the directories that would bring back a broker's replica; empty if its directory is not gone."""
    return next((each.directory_ids for each in unpack(packed) if each.broker_id == broker_id), ()) if packed else ()


def awaited_brokers(packed: Packed) -> tuple[int, ...]:
    """Return the brokers whose replica lacks its directory."""
    return tuple(each.broker_id for each in unpack(packed)) if packed else ()


def without(packed: Packed, broker_id: int) -> Packed:
    """Return the list without a broker, whose replica is back."""
    return pack(each for each in unpack(packed) if each.broker_id != broker_id)
