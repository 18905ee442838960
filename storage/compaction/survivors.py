# SPDX-License-Identifier: Apache-2.0
"""Which records of a batch stay, and until when its tombstones do. Pure.

Rules
    A record stays if no newer record of its key is known; so does one without a key.
    A tombstone (a key, a null value) is kept for `retention_ms` after the pass that first removed everything older of its key:
    that pass writes the delete horizon into the batch, and a pass at or after the horizon removes the tombstone.
    Where something older may have been left, because the key map did not reach so far or a segment had to be passed over, no
    horizon is given and no tombstone goes: else what it deleted would come back.

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
    """When tombstones go.

    Attributes:
        now_ms: wall clock of the pass, in milliseconds since 1970.
        retention_ms: milliseconds that a tombstone stays after everything older of its key is gone.
        end_offset: nothing older is left of the keys of batches that end at or below this (exclusive).
    """

    now_ms: int
    retention_ms: int
    end_offset: int


class Survivors(NamedTuple):
    """What stays of a batch.

    Attributes:
        stays: 1 for each record that stays, 0 for each other.
        delete_horizon_ms: time from which the tombstones that stay may go; None: none stays, or it is not decided yet.
    """

    stays: bytearray
    delete_horizon_ms: int | None


def find_survivors(header: BatchHeader, payload: Payload, key_map: KeyMap, rule: TombstoneRule) -> Survivors:
    """Decide about the records of one batch, which has at least one."""
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
