# SPDX-License-Identifier: Apache-2.0
"""Compaction of a log with transactions: aborted records do not count, open ones delay the pass, ends stay."""

from __future__ import annotations

import random
import struct
from dataclasses import replace

import pytest
from lograft.wire.batch import encode_batch, read_header
from lograft.wire.checksum import crc32c
from lograft.wire.header import ABORT_BIT, CONTROL_BIT, TRANSACTIONAL_BIT
from lograft.wire.limits import HEADER_BYTES

from storage.compaction.owner import LogCompaction
from storage.compaction.pass_ import CompactionPass
from storage.errors import CorruptLogError
from storage.log.partition_log import PartitionLog
from storage.testing.builders import open_log, read_all
from storage.testing.sim_disk import Crash, SimDisk
from storage.tests.compaction.support import COMPACT, LOG, Pair, begin, compact, no_pace, pairs, put, roll

SEQUENCE_POSITION = 56
"""Position of the last byte of a header's base sequence."""


def append_with(log: PartitionLog, batch: bytearray, bits: int) -> int:
    """Append a batch with attribute bits set."""
    (attributes,) = struct.unpack_from(">h", batch, 21)
    struct.pack_into(">h", batch, 21, attributes | TRANSACTIONAL_BIT | bits)
    struct.pack_into(">I", batch, 17, crc32c(memoryview(batch)[21:]))
    return log.append_as_leader(batch, read_header(batch), leader_epoch=0, now_ms=1).base_offset


def send(log: PartitionLog, producer_id: int, sequence: int, some: list[Pair]) -> int:
    """Append records inside a transaction."""
    batch = encode_batch(
        [value for _, value in some],
        keys=[key for key, _ in some],
        timestamps_ms=10,
        producer_id=producer_id,
        producer_epoch=0,
        base_sequence=sequence,
    )
    return append_with(log, batch, 0)


def end(log: PartitionLog, producer_id: int, *, abort: bool) -> int:
    """Append the end of a transaction."""
    batch = encode_batch([b"end"], timestamps_ms=10, producer_id=producer_id, producer_epoch=0, base_sequence=-1)
    return append_with(log, batch, CONTROL_BIT | (ABORT_BIT if abort else 0))


def new_log(disk: SimDisk) -> PartitionLog:
    disk.make_directory("/data")
    return open_log(disk, LOG, COMPACT).log


def records_of_users(log: PartitionLog) -> dict[int, Pair]:
    """Return all records except the ends of transactions."""
    ends = {batch.base_offset for batch in read_all(log) if batch.header.is_control}
    return {offset: pair for offset, pair in pairs(log).items() if offset not in ends}


def test_an_aborted_record_replaces_nothing_and_goes() -> None:
    """The committed value before it stays, its space is freed, and the same holds after a restart."""
    disk = SimDisk()
    log = new_log(disk)
    put(log, [(b"k", b"committed"), (b"other", b"x")])
    send(log, 1, 0, [(b"k", b"aborted"), (b"k", None)])
    send(log, 2, 0, [(b"other", b"newer")])
    end(log, 1, abort=True)
    end(log, 2, abort=False)
    send(log, 1, 2, [(b"later", b"1")])
    end(log, 1, abort=False)
    roll(log)
    compact(log)
    expected = {0: (b"k", b"committed"), 4: (b"other", b"newer"), 7: (b"later", b"1")}
    assert records_of_users(log) == expected
    assert [batch.base_offset for batch in read_all(log) if batch.header.is_control] == [5, 6, 8]
    put(log, [(b"k", b"again")])
    roll(log)
    compact(log)
    del expected[0]
    expected[9] = (b"k", b"again")
    assert records_of_users(log) == expected
    log.close(clean=False)
    disk.crash(Crash.KEEP_ALL, random.Random(0))
    for name in disk.list_directory(LOG):
        if name.endswith(".snapshot"):
            disk.remove(f"{LOG}/{name}")
    log = open_log(disk, LOG, COMPACT).log
    assert records_of_users(log) == expected
    duplicate = encode_batch([b"", b""], producer_id=1, producer_epoch=0, base_sequence=0)
    assert log.append_as_leader(duplicate, read_header(duplicate), leader_epoch=0, now_ms=0).duplicate


def test_the_memory_of_a_producer_is_not_taken_from_a_header_that_went_bad() -> None:
    """A batch of which only the sequences stay is checked again, so a bit that flipped since the map was built is found."""
    disk = SimDisk()
    log = new_log(disk)
    batch = encode_batch([b"old"], keys=[b"k"], producer_id=1, producer_epoch=0, base_sequence=0)
    log.append_as_leader(batch, read_header(batch), leader_epoch=0, now_ms=0)
    put(log, [(b"k", b"new")])
    roll(log)
    one = begin(log)
    assert one is not None
    one.build()
    disk.corrupt(f"{LOG}/{0:020d}.log", SEQUENCE_POSITION, b"\x07")
    (group,) = one.groups()
    with pytest.raises(CorruptLogError, match="the CRC does not match"):
        one.clean(group)


def test_an_aborted_batch_below_the_map_is_checked_before_it_goes() -> None:
    """This pass may not have read it, and the damage itself may be what marks it as aborted."""
    disk = SimDisk()
    log = new_log(disk)
    send(log, 1, 0, [(b"k", b"aborted")])
    end(log, 1, abort=True)
    put(log, [(b"k", b"new")])
    roll(log)
    found = begin(log)
    assert found is not None
    one = CompactionPass(disk, replace(found._task, map_offset=2, dirty_offset=2), no_pace)
    one.build()
    disk.corrupt(f"{LOG}/{0:020d}.log", HEADER_BYTES, b"\xff")
    (group,) = one.groups()
    with pytest.raises(CorruptLogError, match="the CRC does not match"):
        one.clean(group)


def test_an_open_transaction_is_waited_for() -> None:
    """Records that may still be aborted must not replace anything; the pass touches nothing from the first of them on."""
    log = new_log(SimDisk())
    for number in range(12):
        put(log, [(b"k", b"%d" % number)])
    first = send(log, 1, 0, [(b"k", b"open")])
    roll(log)
    put(log, [(b"x", b"active")])
    log.flush()
    assert LogCompaction(log).facts(log.log_end_offset).stable_end_offset == first
    compact(log)
    left = [value for key, value in pairs(log).values() if key == b"k"]
    assert left[-1] == b"open"
    assert b"11" in left
    end(log, 1, abort=True)
    roll(log)
    compact(log)
    assert records_of_users(log) == {11: (b"k", b"11"), 13: (b"x", b"active")}
