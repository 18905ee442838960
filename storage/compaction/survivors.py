# SPDX-License-Identifier: Apache-2.0
"""Decides which records of a batch stay, and how long its tombstones do. Pure.

Rules
    A record stays if no newer record of its key is known. A record without a key stays.
    The first pass that has removed all older records of a tombstone's key writes the delete horizon into the batch:
    `retention_ms` after that pass. A pass at or after the horizon removes the tombstone. (A tombstone is a record with
    a key and a null value.)
    Where an older record may be left, the pass sets no horizon and removes no tombstone; otherwise deleted records
    would come back. This is so beyond the key map and behind a skipped segment.

Source: KIP-534; Kafka, Cleaner.shouldRetainRecord.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from lograft.wire.columns import Payload
from lograft.wire.header import BatchHeader
from lograft.wire.limits import MAX_TIMESTAMP_MS

from .key_map import KeyMap


@dataclass(frozen=True, slots=True, kw_only=True)
class TombstoneRule:
    """When a pass removes tombstones.

    Attributes:
        now_ms: wall clock of the pass, in milliseconds since 1970.
        retention_ms: milliseconds that a tombstone stays after all older records of its key are gone.
        end_offset: in batches that end at or below this, no key has an older record left (exclusive).
    """

    now_ms: int
    retention_ms: int
    end_offset: int


class Survivors(NamedTuple):
    """The records of a batch that stay.

    Attributes:
        stays: 1 for each record that stays, 0 for each other.
        delete_horizon_ms: time from which the remaining tombstones may be removed; None: none remains, or no horizon is
            set yet.
    """

    stays: bytearray
    delete_horizon_ms: int | None


def find_survivors(header: BatchHeader, payload: Payload, key_map: KeyMap, rule: TombstoneRule) -> Survivors:
    """Decide which records of a batch stay; the batch has at least one record."""
    if payload.keys is None:
        return Survivors(bytearray(b"\1") * header.record_count, header.delete_horizon_ms)
    stays = key_map.stays(payload.keys, header.base_offset, header.next_offset)
    no_keys = set(payload.keys.nulls)
    tombstones = [at for at in payload.values.nulls if stays[at] and at not in no_keys]
    if not tombstones:
        return Survivors(stays, None)
    horizon_ms = header.delete_horizon_ms
    if header.next_offset > rule.end_offset:
        return Survivors(stays, horizon_ms)
    if horizon_ms is None:
        return Survivors(stays, min(rule.now_ms + rule.retention_ms, MAX_TIMESTAMP_MS))
    if rule.now_ms < horizon_ms:
        return Survivors(stays, horizon_ms)
    for at in tombstones:
        stays[at] = 0
    return Survivors(stays, None)
