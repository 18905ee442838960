# SPDX-License-Identifier: Apache-2.0
"""Snapshot files of the idempotence window: `%020d.snapshot`, named by the offset that they reach (exclusive).

Written at each roll and at a clean close, without a sync: a bad one is dropped, an older one and the batches after
it give the same state.

    0   2  int16   version, 1
    2   4  uint32  CRC-32C of everything after it
    6   4  int32   producer count
    then for each producer, ascending by id:
    0   8  int64   producer id
    8   2  int16   producer epoch
    10  2  int16   batch count, 1 to 16
    12  8  int64   largest timestamp of its batches in milliseconds
    then for each batch, oldest first:
    0   4  int32   base sequence
    4   8  int64   base offset
    12  4  int32   last offset delta

Source: Kafka, ProducerStateManager (which keeps one batch a producer).
"""

from __future__ import annotations

import struct

from lograft.wire.checksum import crc32c
from lograft.wire.limits import DEDUP_WINDOW_BATCHES

from .checkpoints import remove_if_exists, replace_file
from .env import Disk
from .errors import DiskFullError, FileMissingError
from .names import SNAPSHOT_SUFFIX, offset_file_name
from .producers import ProducerState, ProducerWindows

SNAPSHOTS_KEPT = 4
"""Snapshots of one log; truncation below the oldest replays batch headers from the log start instead."""

_HEAD = struct.Struct(">hI")
_COUNT = struct.Struct(">i")
_PRODUCER = struct.Struct(">qhhq")
_BATCH = struct.Struct(">iqi")
_VERSION = 1


def encode_snapshot(producers: ProducerWindows) -> bytes:
    """Return the content of a snapshot file."""
    pieces = [_COUNT.pack(len(producers))]
    for producer_id, state in producers.states():
        batches = state.batches()
        pieces.append(_PRODUCER.pack(producer_id, state.producer_epoch, len(batches), state.max_timestamp_ms))
        pieces.extend(_BATCH.pack(*batch) for batch in batches)
    body = b"".join(pieces)
    return _HEAD.pack(_VERSION, crc32c(body)) + body


def decode_snapshot(content: bytes) -> ProducerWindows | None:
    """Read a snapshot file; None unless it is whole."""
    if len(content) < _HEAD.size + _COUNT.size:
        return None
    version, crc = _HEAD.unpack_from(content)
    body = memoryview(content)[_HEAD.size :]
    if version != _VERSION or crc32c(body) != crc:
        return None
    producers = ProducerWindows()
    try:
        (count,) = _COUNT.unpack_from(body)
        position = _COUNT.size
        for _ in range(count):
            position = _decode_producer(body, position, producers)
    except (struct.error, ValueError):
        return None
    return producers if position == len(body) else None


def _decode_producer(body: memoryview, position: int, producers: ProducerWindows) -> int:
    """Read one producer at a position; return the position after it."""
    producer_id, producer_epoch, batch_count, max_timestamp_ms = _PRODUCER.unpack_from(body, position)
    if not 1 <= batch_count <= DEDUP_WINDOW_BATCHES:
        raise ValueError(f"{batch_count} batches")
    position += _PRODUCER.size
    state = ProducerState(producer_epoch)
    state.max_timestamp_ms = max_timestamp_ms
    for _ in range(batch_count):
        state.add(*_BATCH.unpack_from(body, position))
        position += _BATCH.size
    producers.restore(producer_id, state)
    return position


class ProducerSnapshots:
    """The snapshot files of one log directory."""

    def __init__(self, disk: Disk, directory: str, offsets: list[int]) -> None:
        self._disk = disk
        self._directory = directory
        self._offsets = sorted(offsets)

    @property
    def offsets(self) -> list[int]:
        """Offsets of the files that are there, ascending."""
        return list(self._offsets)

    def take(self, producers: ProducerWindows, offset: int) -> None:
        """Write the state at `offset` and drop the oldest file if there are too many.

        A full disk only means that the next recovery replays more.

        Raises:
            DiskFailedError: the disk is failed for good.
        """
        try:
            replace_file(self._disk, self._path(offset), encode_snapshot(producers), durable=False)
        except DiskFullError:
            return
        if offset not in self._offsets:
            self._offsets.append(offset)
            self._offsets.sort()
        while len(self._offsets) > SNAPSHOTS_KEPT:
            remove_if_exists(self._disk, self._path(self._offsets.pop(0)))

    def newest(self, at_or_below: int) -> tuple[int, ProducerWindows] | None:
        """Return the newest valid snapshot at or below an offset; removes bad ones on the way."""
        for offset in [offset for offset in reversed(self._offsets) if offset <= at_or_below]:
            try:
                producers = decode_snapshot(self._disk.read_file(self._path(offset)))
            except FileMissingError:
                producers = None
            if producers is not None:
                return offset, producers
            self._remove(offset)
        return None

    def remove_above(self, offset: int) -> bool:
        """Remove the files that reach beyond `offset`; tell whether there were any. The caller syncs the directory."""
        above = [snapshot for snapshot in self._offsets if snapshot > offset]
        for snapshot in above:
            self._remove(snapshot)
        return bool(above)

    def _remove(self, offset: int) -> None:
        remove_if_exists(self._disk, self._path(offset))
        self._offsets.remove(offset)

    def _path(self, offset: int) -> str:
        return f"{self._directory}/{offset_file_name(offset, SNAPSHOT_SUFFIX)}"
