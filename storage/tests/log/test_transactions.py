# SPDX-License-Identifier: Apache-2.0
"""Open and aborted transactions: from headers, through snapshots, restarts and truncations."""

from __future__ import annotations

import random
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lograft.wire.checksum import crc32c
from lograft.wire.header import ABORT_BIT, CONTROL_BIT, TRANSACTIONAL_BIT, read_header

from storage.errors import CoordinatorFencedError, ProducerFencedError
from storage.log.partition_log import PartitionLog
from storage.log.producer_snapshots import decode_snapshot, encode_snapshot
from storage.log.producers import ProducerWindows
from storage.log.transactions import AbortedTransaction, Transactions
from storage.testing.builders import ProducerStamp, append, make_batch, open_log
from storage.testing.sim_disk import Crash, SimDisk


def transactional(batch: bytearray, bits: int) -> bytearray:
    """Set attribute bits of a batch, and its CRC."""
    (attributes,) = struct.unpack_from(">h", batch, 21)
    struct.pack_into(">h", batch, 21, attributes | TRANSACTIONAL_BIT | bits)
    struct.pack_into(">I", batch, 17, crc32c(memoryview(batch)[21:]))
    return batch


def send(log: PartitionLog, producer_id: int, sequence: int, *, epoch: int = 0, count: int = 2) -> int:
    """Append records inside a transaction; returns the first offset."""
    stamp = ProducerStamp(producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence)
    batch = transactional(make_batch([b"v"] * count, producer=stamp), 0)
    return log.append_as_leader(batch, read_header(batch), leader_epoch=0, now_ms=1).base_offset


def end(log: PartitionLog, producer_id: int, *, abort: bool, epoch: int = 0, coordinator_epoch: int = -1) -> int:
    """Append the end of a transaction; returns its offset."""
    stamp = ProducerStamp(producer_id=producer_id, producer_epoch=epoch, base_sequence=coordinator_epoch)
    batch = transactional(make_batch([b"end"], producer=stamp, control=True), CONTROL_BIT | (ABORT_BIT if abort else 0))
    return log.append_as_leader(batch, read_header(batch), leader_epoch=0, now_ms=1).base_offset


def state(log: PartitionLog) -> tuple[int, list[AbortedTransaction]]:
    """Return what readers of committed records see: (last stable offset, aborted transactions)."""
    return log.producers.last_stable_offset(log.log_end_offset), log.producers.transactions.aborted_between(
        0, log.log_end_offset
    )


@pytest.fixture
def disk() -> SimDisk:
    """A disk with a parent directory."""
    disk = SimDisk()
    disk.make_directory("/data")
    disk.sync_directory("/")
    return disk


def test_open_transaction_holds_back_committed_readers_until_it_ends(disk: SimDisk) -> None:
    """The last stable offset is the first record of the oldest open transaction; after its end, that of the next one."""
    log = open_log(disk, "/data/log").log
    append(log, [b"plain"])
    assert state(log) == (1, [])
    first = send(log, 7, 0)
    second = send(log, 8, 0)
    send(log, 7, 2)
    assert state(log) == (first, [])
    assert log.producers.last_stable_offset(0) == 0
    end(log, 7, abort=False)
    assert state(log) == (second, [])
    marker = end(log, 8, abort=True)
    assert state(log) == (log.log_end_offset, [AbortedTransaction(8, second, marker)])


def test_aborted_transactions_are_listed_for_the_range_that_is_read(disk: SimDisk) -> None:
    """Every aborted transaction with a record in the range, even if it began long before; no others."""
    log = open_log(disk, "/data/log").log
    long_first = send(log, 1, 0)
    short: list[AbortedTransaction] = []
    for number in range(5):
        first = send(log, 2, number * 2)
        short.append(AbortedTransaction(2, first, end(log, 2, abort=True)))
    long = AbortedTransaction(1, long_first, end(log, 1, abort=True))
    assert log.producers.transactions.aborted_between(0, log.log_end_offset) == [*short, long]
    assert log.producers.transactions.aborted_between(short[2].first_offset, short[2].last_offset + 1) == [
        short[2],
        long,
    ]
    assert log.producers.transactions.aborted_between(short[2].last_offset + 1, short[3].first_offset) == [long]
    assert log.producers.transactions.aborted_between(long.last_offset + 1, 10**6) == []
    assert log.producers.transactions.aborted_between(0, 0) == []


@pytest.mark.parametrize("how", ["clean", *Crash])
def test_transactions_survive_a_restart(disk: SimDisk, how: Crash | str) -> None:
    """After a clean close or a crash, with and without rolls in between, flushed transactions are known again."""
    log = open_log(disk, "/data/log").log
    for number in range(12):
        send(log, 1, number * 2)
        end(log, 1, abort=number % 2 == 0)
        append(log, [b"filling" * 30])
    open_first = send(log, 2, 0)
    log.flush()
    before = state(log)
    assert before[0] == open_first
    assert len(before[1]) == 6
    assert log.segment_count > 2
    if isinstance(how, Crash):
        disk.crash(how, random.Random(3))
    else:
        log.close()
    assert state(open_log(disk, "/data/log").log) == before


def test_truncation_opens_transactions_again(disk: SimDisk) -> None:
    """A truncated end never existed; transactions that began behind the new end are gone."""
    log = open_log(disk, "/data/log").log
    first = send(log, 1, 0)
    committed = send(log, 2, 0)
    commit = end(log, 2, abort=False)
    abort = end(log, 1, abort=True)
    send(log, 3, 0)
    log.flush()
    log.truncate_suffix(abort)
    assert state(log) == (first, [])
    log.truncate_suffix(commit)
    assert state(log) == (first, [])
    assert log.producers.last_stable_offset(log.log_end_offset) == first
    log.truncate_suffix(committed)
    log.truncate_suffix(first)
    assert state(log) == (first, [])


def test_end_with_a_higher_epoch_fences_the_older_ones(disk: SimDisk) -> None:
    """A producer whose transaction was ended cannot write into a later one; the new epoch starts with sequence 0."""
    log = open_log(disk, "/data/log").log
    send(log, 1, 0, epoch=3)
    end(log, 1, abort=True, epoch=4)
    with pytest.raises(ProducerFencedError):
        send(log, 1, 2, epoch=3)
    with pytest.raises(ProducerFencedError):
        end(log, 1, abort=True, epoch=3)
    log.close()
    log = open_log(disk, "/data/log").log
    with pytest.raises(ProducerFencedError):
        send(log, 1, 2, epoch=3)
    send(log, 1, 0, epoch=4)
    end(log, 1, abort=False, epoch=4)


@pytest.mark.parametrize("how", ["clean", *Crash, "no snapshot", "truncated"])
def test_replaced_coordinator_stays_fenced_after_a_restart(disk: SimDisk, how: Crash | str) -> None:
    """Its epoch comes back from the snapshot, or from headers alone; an end without an epoch is older than any with one."""
    log = open_log(disk, "/data/log").log
    send(log, 1, 0)
    end(log, 1, abort=False, coordinator_epoch=2)
    send(log, 1, 2)
    log.flush()
    if isinstance(how, Crash):
        disk.crash(how, random.Random(3))
    elif how == "truncated":
        send(log, 1, 4)
        end(log, 1, abort=False, coordinator_epoch=9)
        log.truncate_suffix(5)
        log.close()
    else:
        log.close()
    if how == "no snapshot":
        for name in disk.list_directory("/data/log"):
            if name.endswith(".snapshot"):
                disk.remove(f"/data/log/{name}")
    log = open_log(disk, "/data/log").log
    before = state(log), log.log_end_offset
    for old_epoch in (1, 0, -1):
        with pytest.raises(CoordinatorFencedError) as caught:
            end(log, 1, abort=True, coordinator_epoch=old_epoch)
        assert (caught.value.current_epoch, caught.value.coordinator_epoch) == (2, old_epoch)
        assert (state(log), log.log_end_offset) == before
    end(log, 1, abort=True, coordinator_epoch=2)
    # A coordinator is fenced only for the producers that its successor took over.
    send(log, 2, 0)
    end(log, 2, abort=False, coordinator_epoch=1)
    end(log, 1, abort=False, coordinator_epoch=3)
    with pytest.raises(CoordinatorFencedError):
        end(log, 1, abort=False, coordinator_epoch=2)


def test_end_of_a_transaction_is_no_batch_of_the_window(disk: SimDisk) -> None:
    """Its sequence field holds a coordinator epoch, and the producer's sequences continue as if it did not exist."""
    log = open_log(disk, "/data/log").log
    first = send(log, 1, 0)
    marker = end(log, 1, abort=False, coordinator_epoch=7)
    assert send(log, 1, 0) == first
    assert send(log, 1, 2) == marker + 1
    (_, producer), *_ = log.producers.states()
    assert [batch.base_offset for batch in producer.batches()] == [first, marker + 1]


def test_first_end_of_a_known_producer_is_taken() -> None:
    """A log without transactions has no coordinator to fence."""
    producers = ProducerWindows()
    producers.update(read_header(make_batch([b"v"], producer=ProducerStamp(producer_id=1))), 0, now_ms=1)
    stamp = ProducerStamp(producer_id=1, base_sequence=0)
    marker = transactional(make_batch([b"end"], producer=stamp, control=True), CONTROL_BIT)
    assert producers.check(read_header(marker)) is None
    assert not producers.has_transactions


def test_forgotten_producer_takes_its_coordinator_along() -> None:
    """Otherwise there would be a coordinator for each producer that ever existed."""
    producers = ProducerWindows()
    for producer_id in range(3):
        stamp = ProducerStamp(producer_id=producer_id, base_sequence=4)
        batch = transactional(make_batch([b"end"], producer=stamp, control=True), CONTROL_BIT)
        producers.update(read_header(batch), producer_id, now_ms=1 + producer_id)
    assert producers.transactions.coordinator_epochs() == [(0, 4), (1, 4), (2, 4)]
    assert producers.expire(12, 10) == 1
    assert producers.transactions.coordinator_epochs() == [(1, 4), (2, 4)]
    assert producers.evict_idlest(1) == 1
    assert len(producers.transactions.coordinator_epochs()) == 1


def test_snapshot_without_coordinators_is_what_it_was() -> None:
    """The part exists only if a coordinator is known, so that logs without transactions pay nothing; truncated, the file is refused."""
    producers = ProducerWindows()
    stamp = ProducerStamp(producer_id=1, base_sequence=-1)
    marker = transactional(make_batch([b"end"], producer=stamp, control=True), CONTROL_BIT)
    producers.update(read_header(marker), 0)
    without = encode_snapshot(producers)
    producers.transactions.note_coordinator(1, 6)
    content = encode_snapshot(producers)
    assert len(content) == len(without) + 4 + 12
    restored = decode_snapshot(content)
    assert restored is not None
    assert restored.transactions.coordinator_epoch(1) == 6
    older = decode_snapshot(without)
    assert older is not None
    assert older.transactions.coordinator_epoch(1) == -1
    cut = content[6:-5]
    assert decode_snapshot(content[:2] + crc32c(cut).to_bytes(4, "big") + cut) is None


def test_producer_in_a_transaction_is_not_forgotten() -> None:
    """Neither expiry nor the limit of producers forgets the epoch that fences its older incarnations."""
    producers = ProducerWindows()
    for producer_id in range(4):
        stamp = ProducerStamp(producer_id=producer_id, base_sequence=0)
        batch = make_batch([b"v"], producer=stamp)
        header = read_header(transactional(batch, 0) if producer_id == 0 else batch)
        producers.update(header, producer_id, now_ms=1)
    assert producers.evict_idlest(2) == 2
    assert [producer_id for producer_id, _ in producers.states()] == [0, 3]
    assert producers.expire(10**9, 5) == 1
    assert [producer_id for producer_id, _ in producers.states()] == [0]


def test_aborted_transactions_below_the_log_start_are_forgotten() -> None:
    """Those that end at it or behind it stay, even if they began before."""
    transactions = Transactions()
    for number in range(5):
        transactions.restore_aborted(AbortedTransaction(1, number * 10, number * 10 + 5))
    assert transactions.forget_below(25) == 2
    assert [aborted.last_offset for aborted in transactions.aborted_transactions()] == [25, 35, 45]
    assert transactions.forget_below(25) == 0
    with pytest.raises(ValueError, match="after one at 45"):
        transactions.restore_aborted(AbortedTransaction(1, 0, 45))


def test_removed_records_take_their_aborted_transactions_along(disk: SimDisk) -> None:
    """Transactions that ended below the log start are not listed, now and after a restart; those that reach beyond are."""
    log = open_log(disk, "/data/log").log
    log.truncate_prefix(0, 1)
    for number in range(3):
        send(log, 1, number * 2)
        end(log, 1, abort=True)
    last = state(log)[1][-1]
    log.truncate_prefix(last.first_offset + 1, 1)
    assert state(log)[1] == [last]
    log.close()
    assert state(open_log(disk, "/data/log").log)[1] == [last]


@given(
    steps=st.lists(
        st.tuples(st.integers(0, 3), st.sampled_from(["send", "commit", "abort", "plain"]), st.integers(1, 3))
    )
)
def test_transactions_are_what_a_plain_list_says(steps: list[tuple[int, str, int]]) -> None:
    """For any interleaving of producers, open and aborted ones are those of a model, also after a snapshot."""
    producers = ProducerWindows()
    model_open: dict[int, int] = {}
    model_aborted: list[AbortedTransaction] = []
    offset = 0
    for producer_id, what, count in steps:
        if what == "plain":
            header = read_header(make_batch([b"v"] * count))
        elif what == "send":
            stamp = ProducerStamp(producer_id=producer_id, base_sequence=offset)
            header = read_header(transactional(make_batch([b"v"] * count, producer=stamp), 0))
            model_open.setdefault(producer_id, offset)
        else:
            stamp = ProducerStamp(producer_id=producer_id, base_sequence=-1)
            bits = CONTROL_BIT | (ABORT_BIT if what == "abort" else 0)
            count = 1
            header = read_header(transactional(make_batch([b"e"], producer=stamp, control=True), bits))
            first = model_open.pop(producer_id, None)
            if first is not None and what == "abort":
                model_aborted.append(AbortedTransaction(producer_id, first, offset))
        if header.has_producer:
            producers.update(header, offset)
        offset += count
    restored = decode_snapshot(encode_snapshot(producers))
    assert restored is not None
    for found in (producers, restored):
        assert found.last_stable_offset(offset) == min(model_open.values(), default=offset)
        assert found.transactions.aborted_between(0, offset) == model_aborted
        assert dict(found.transactions.open_transactions()) == model_open
