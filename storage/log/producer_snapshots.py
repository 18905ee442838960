# SPDX-License-Identifier: Apache-2.0
"""Snapshots of the producer state: files `%020d.snapshot`, named by the offset that they reach (exclusive).

The log writes one at each roll and at a clean close, without a sync. It drops a bad one: an older one and the batches
after it give the same state.

    0   2  int16   version, 2
    2   4  uint32  CRC-32C of everything after it
    6   4  int32   producer count
    then for each producer, ascending by id:
    0   8  int64   producer id
    8   2  int16   producer epoch
    10  2  int16   batch count, 0 to 16
    12  8  int64   when its newest batch was appended, milliseconds since 1970 by the clock of the log's owner; 0:
       unknown
    then for each batch, oldest first:
    0   4  int32   base sequence
    4   8  int64   base offset
    12  4  int32   last offset delta
    then, if there were transactions:
    0   8  int64   offset after the newest transactional batch
    8   4  int32   open transactions
    12  4  int32   aborted transactions
    then for each open one, ascending by producer id:
    0   8  int64   producer id
    8   8  int64   offset of its first record
    then for each aborted one, ascending by its last offset:
    0   8  int64   producer id
    8   8  int64   offset of its first record
    16  8  int64   offset of its end marker
    then, if any end of a transaction named its coordinator's epoch:
    0   4  int32   number of producers with a known coordinator
    then for each, ascending by producer id:
    0   8  int64   producer id
    8   4  int32   largest epoch of a coordinator that ended a transaction of the producer

Source: Kafka, ProducerStateManager (which keeps one batch for each producer).
"""

from __future__ import annotations

import struct

from lograft.wire.checksum import crc32c
from lograft.wire.limits import DEDUP_WINDOW_BATCHES

from storage.errors import DiskFullError, FileMissingError
from storage.files.checkpoints import remove_if_exists, replace_file
from storage.files.disk import Disk
from storage.files.names import SNAPSHOT_SUFFIX, offset_file_name

from .producers import ProducerState, ProducerWindows
from .transactions import AbortedTransaction, Transactions

SNAPSHOTS_KEPT = 4
"""Snapshots that one log keeps. A truncation below the oldest replays batch headers from the log start."""

_HEAD = struct.Struct(">hI")
_COUNT = struct.Struct(">i")
_PRODUCER = struct.Struct(">qhhq")
_BATCH = struct.Struct(">iqi")
_TRANSACTIONS = struct.Struct(">qii")
_OPEN = struct.Struct(">qq")
_ABORTED = struct.Struct(">qqq")
_COORDINATOR = struct.Struct(">qi")
_VERSION = 2


def encode_snapshot(producers: ProducerWindows) -> bytes:
    """Return the content of a snapshot file."""
    pieces = [_COUNT.pack(len(producers))]
    for producer_id, state in producers.states():
        batches = state.batches()
        pieces.append(_PRODUCER.pack(producer_id, state.producer_epoch, len(batches), state.last_append_ms))
        pieces.extend(_BATCH.pack(*batch) for batch in batches)
    if producers.has_transactions:
        pieces += _encode_transactions(producers.transactions)
    body = b"".join(pieces)
    return _HEAD.pack(_VERSION, crc32c(body)) + body


def _encode_transactions(transactions: Transactions) -> list[bytes]:
    still_open, aborted = list(transactions.open_transactions()), list(transactions.aborted_transactions())
    pieces = [_TRANSACTIONS.pack(transactions.next_offset, len(still_open), len(aborted))]
    pieces.extend(_OPEN.pack(*entry) for entry in still_open)
    pieces.extend(_ABORTED.pack(*entry) for entry in aborted)
    coordinators = transactions.coordinator_epochs()
    if coordinators:
        pieces.append(_COUNT.pack(len(coordinators)))
        pieces.extend(_COORDINATOR.pack(*entry) for entry in coordinators)
    return pieces


def decode_snapshot(content: bytes) -> ProducerWindows | None:
    """Decode a snapshot file; None if it is damaged or of another version."""
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
        if position < len(body):
            position = _decode_transactions(body, position, producers.transactions)
        if position < len(body):
            position = _decode_coordinators(body, position, producers.transactions)
    except (struct.error, ValueError):
        return None
    return producers if position == len(body) else None


def _decode_producer(body: memoryview, position: int, producers: ProducerWindows) -> int:
    """Decode one producer at a position; return the position after it."""
    producer_id, producer_epoch, batch_count, last_append_ms = _PRODUCER.unpack_from(body, position)
    if not 0 <= batch_count <= DEDUP_WINDOW_BATCHES:
        raise ValueError(f"{batch_count} batches")
    position += _PRODUCER.size
    state = ProducerState(producer_epoch)
    state.last_append_ms = last_append_ms
    for _ in range(batch_count):
        state.add(*_BATCH.unpack_from(body, position))
        position += _BATCH.size
    producers.restore(producer_id, state)
    return position


def _decode_transactions(body: memoryview, position: int, transactions: Transactions) -> int:
    """Decode the transactions at a position; return the position after them."""
    transactions.next_offset, open_count, aborted_count = _TRANSACTIONS.unpack_from(body, position)
    position += _TRANSACTIONS.size
    for _ in range(open_count):
        transactions.restore_open(*_OPEN.unpack_from(body, position))
        position += _OPEN.size
    for _ in range(aborted_count):
        transactions.restore_aborted(AbortedTransaction(*_ABORTED.unpack_from(body, position)))
        position += _ABORTED.size
    return position


def _decode_coordinators(body: memoryview, position: int, transactions: Transactions) -> int:
    """Decode the coordinator epochs at a position; return the position after them."""
    (count,) = _COUNT.unpack_from(body, position)
    position += _COUNT.size
    for _ in range(count):
        transactions.note_coordinator(*_COORDINATOR.unpack_from(body, position))
        position += _COORDINATOR.size
    return position


class ProducerSnapshots:
    """The snapshot files of one log directory."""

    __slots__ = ("_directory", "_disk", "_offsets")

    def __init__(self, disk: Disk, directory: str, offsets: list[int]) -> None:
        self._disk = disk
        self._directory = directory
        self._offsets = sorted(offsets)

    @property
    def offsets(self) -> list[int]:
        """Offsets of the existing files, ascending."""
        return list(self._offsets)

    def take(self, producers: ProducerWindows, offset: int) -> None:
        """Write the state at `offset`, and remove the oldest files beyond `SNAPSHOTS_KEPT`.

        A full disk is ignored: the next recovery only replays more.

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
        """Return the newest valid snapshot at or below an offset, with its offset; remove the bad ones found before it."""
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

    def remove_below(self, offset: int) -> None:
        """Remove the snapshots below `offset`, where the first segment begins.

        The batches after such a snapshot are gone, so its producers are out of date.
        """
        for snapshot in [snapshot for snapshot in self._offsets if snapshot < offset]:
            self._remove(snapshot)

    def _remove(self, offset: int) -> None:
        remove_if_exists(self._disk, self._path(offset))
        self._offsets.remove(offset)

    def _path(self, offset: int) -> str:
        return f"{self._directory}/{offset_file_name(offset, SNAPSHOT_SUFFIX)}"
