# SPDX-License-Identifier: Apache-2.0
"""The judges alone, for cases that the engine does not leave behind, or only with features of other modules."""

from __future__ import annotations

import pytest
from lograft.wire.header import CONTROL_BIT, TRANSACTIONAL_BIT, BatchHeader, read_header

from storage.inspect.cache_judges import OffsetIndexJudge, TimeIndexJudge
from storage.inspect.findings import LogReport
from storage.inspect.formats import (
    NO_TRANSACTIONS,
    AbortedTransaction,
    CoordinatorEpoch,
    OpenTransaction,
    SnapshotFile,
    TransactionsView,
    WindowBatch,
    WindowEntry,
    parse_offset_index,
    parse_time_index,
)
from storage.inspect.producer_judge import ProducerReplay
from storage.inspect.record_judges import EpochJudge
from storage.log.epochs import EpochStart, LeaderEpochs, epoch_fits
from storage.segment.offset_index import OffsetIndex
from storage.segment.time_index import TimeIndex
from storage.testing.builders import make_batch
from storage.types import Boundary


def header(offset: int, *, count: int = 1, epoch: int = 0, **changes: int) -> BatchHeader:
    made = read_header(make_batch([b"x"] * count))
    return made._replace(base_offset=offset, leader_epoch=epoch, **changes)


def produced(
    offset: int, sequence: int, *, producer_id: int = 1, producer_epoch: int = 0, count: int = 1
) -> BatchHeader:
    return header(offset, count=count, producer_id=producer_id, producer_epoch=producer_epoch, base_sequence=sequence)


def entry(*batches: tuple[int, int, int], producer_epoch: int = 0) -> SnapshotFile:
    window = WindowEntry(
        producer_id=1, producer_epoch=producer_epoch, newest_ms=0, batches=tuple(map(WindowBatch._make, batches))
    )
    return SnapshotFile((window,), NO_TRANSACTIONS)


def test_snapshot_that_agrees() -> None:
    """Equal producer state; a forgotten producer, or forgotten older batches, are no contradiction."""
    replay = ProducerReplay(0)
    for offset in range(4):
        replay.batch(produced(offset, offset))
    assert replay.contradiction(entry((0, 0, 0), (1, 1, 0), (2, 2, 0), (3, 3, 0)), 4) is None
    assert replay.contradiction(entry((2, 2, 0), (3, 3, 0)), 4) is None
    assert replay.contradiction(SnapshotFile((), NO_TRANSACTIONS), 4) is None


@pytest.mark.parametrize(
    ("snapshot", "word"),
    [
        (entry((0, 0, 0), (1, 1, 0)), "the log has"),
        (entry((1, 3, 0)), "the log has"),
        (entry((3, 3, 1)), "beyond the snapshot"),
        (entry((3, 3, 0), producer_epoch=1), "epoch 1"),
        (entry(), "is missing"),
        (
            SnapshotFile(
                (WindowEntry(producer_id=9, producer_epoch=0, newest_ms=0, batches=(WindowBatch(0, 1, 0),)),),
                NO_TRANSACTIONS,
            ),
            "none of it",
        ),
    ],
)
def test_snapshot_that_contradicts(snapshot: SnapshotFile, word: str) -> None:
    """Batches that do not exist, are not the newest, have another epoch, or are missing."""
    replay = ProducerReplay(0)
    for offset in range(4):
        replay.batch(produced(offset, offset))
    assert word in (replay.contradiction(snapshot, 4) or "")


def test_batches_that_cannot_be_seen_are_not_held_against_a_snapshot() -> None:
    """Below the first segment, in damage, and in fillers without a producer, the judge cannot decide."""
    replay = ProducerReplay(10)
    replay.batch(produced(10, 5))
    replay.opaque(11, 13)
    replay.batch(header(13, count=1, record_count=0, last_offset_delta=4))
    assert [replay.hides(offset) for offset in (9, 10, 11, 12, 13, 17, 18)] == [
        True,
        False,
        True,
        True,
        True,
        True,
        False,
    ]
    assert replay.contradiction(entry((4, 9, 0), (5, 10, 0), (6, 12, 0), (7, 14, 0)), 18) is None
    assert replay.contradiction(entry((0, 12, 0), producer_epoch=1), 18) is None
    assert replay.contradiction(entry((0, 15, 0)), 18) is None
    assert replay.contradiction(entry((4, 10, 0)), 18) is not None


def test_filler_with_a_producer_is_a_batch_of_its_window() -> None:
    """Compaction keeps the sequence numbers of a live producer in a filler."""
    replay = ProducerReplay(0)
    replay.batch(produced(0, 0, count=1)._replace(record_count=0, last_offset_delta=2))
    assert replay.contradiction(entry((0, 0, 2)), 3) is None


def test_end_of_a_transaction_fences_older_epochs() -> None:
    """A control batch of a higher epoch empties the producer's state; one outside a transaction changes nothing."""
    replay = ProducerReplay(0)
    replay.batch(produced(0, 0))
    replay.batch(produced(1, -1, producer_epoch=9)._replace(attributes=CONTROL_BIT))
    assert replay.contradiction(entry((0, 0, 0)), 2) is None
    replay.batch(produced(2, -1, producer_epoch=2)._replace(attributes=CONTROL_BIT | TRANSACTIONAL_BIT))
    assert replay.contradiction(entry(producer_epoch=2), 3) is None


def test_coordinator_epoch_is_no_sequence() -> None:
    """The end of a transaction has it where data has its sequence, and does not count as a batch of the producer."""
    replay = ProducerReplay(0)
    replay.batch(produced(0, 0))
    replay.batch(produced(1, 7)._replace(attributes=CONTROL_BIT | TRANSACTIONAL_BIT))
    assert replay.contradiction(entry((0, 0, 0)), 2) is None


@pytest.mark.parametrize(
    ("transactions", "word"),
    [
        (TransactionsView(11, (), ()), "beyond"),
        (TransactionsView(9, (OpenTransaction(1, 9),), ()), "open transaction"),
        (TransactionsView(9, (), (AbortedTransaction(1, 1, 5), AbortedTransaction(1, 2, 4))), "do not ascend"),
        (TransactionsView(9, (), (AbortedTransaction(1, 1, 9),)), "do not ascend"),
        (TransactionsView(9, (), (), (CoordinatorEpoch(2, 0), CoordinatorEpoch(1, 0))), "coordinators"),
        (TransactionsView(9, (), (), (CoordinatorEpoch(2, -1),)), "coordinators"),
    ],
)
def test_impossible_transactions_of_a_snapshot(transactions: TransactionsView, word: str) -> None:
    """The transactions in a snapshot lie before it, in order."""
    assert word in (ProducerReplay(0).contradiction(SnapshotFile((), transactions), 10) or "")
    good = TransactionsView(9, (OpenTransaction(1, 8),), (AbortedTransaction(1, 1, 5), AbortedTransaction(1, 2, 6)))
    assert ProducerReplay(0).contradiction(SnapshotFile((), good), 10) is None


def test_filler_may_carry_any_epoch_that_it_covers() -> None:
    """Only a filler of compaction may cover several epochs; below the first known epoch all fit."""
    epochs = LeaderEpochs([EpochStart(2, 10), EpochStart(4, 20)])
    wide = header(15, epoch=4, last_offset_delta=10)
    assert epoch_fits(epochs, wide)
    assert not epoch_fits(epochs, wide._replace(leader_epoch=5))
    assert not epoch_fits(epochs, wide._replace(leader_epoch=1))
    assert epoch_fits(epochs, header(5, epoch=9))
    assert epoch_fits(epochs, header(5, epoch=1, last_offset_delta=5))
    assert not epoch_fits(epochs, header(5, epoch=3, last_offset_delta=5))


def test_epochs_without_a_checkpoint() -> None:
    """The finding names the odd batch: one above both neighbours, or one below them."""
    for numbers, blamed in (
        ([1, 1, 9, 1, 1], [2]),
        ([1, 1, 0, 1, 1], [2]),
        ([9, 1, 1], [0]),
        ([1, 2, 3, 3, 4], []),
        ([5, 5, 1, 1, 5], [2, 3]),
    ):
        report = LogReport(path="")
        judge = EpochJudge(None, believed_below=0, report=report)
        for offset, number in enumerate(numbers):
            judge.batch("f", offset * 61, header(offset, epoch=number)._replace(batch_length=49))
        judge.finish()
        found = [offset for each in report.findings for offset in range(each.base_offset or 0, each.end_offset or 0)]
        assert found == blamed, numbers


def test_entries_inside_damage_are_not_judged() -> None:
    """An index from before the damage may point into it; entries before it that match no batch are reported."""
    index = OffsetIndex(0)
    for offset, position in ((1, 100), (2, 200), (4, 400)):
        index.add(offset, position)
    times = TimeIndex(0)
    for stamp, offset in ((10, 1), (20, 2), (30, 4)):
        times.note(stamp, offset)
    content = (
        index.encode(log_bytes=500, end_offset=5),
        times.encode(log_bytes=500, first_timestamp_ms=5, max_timestamp_ms=30),
    )

    def judge(opaque: tuple[int, int]) -> list[str]:
        report = LogReport(path="")
        judges = (
            OffsetIndexJudge(parse_offset_index(content[0]), base_offset=0),
            TimeIndexJudge(parse_time_index(content[1]), base_offset=0),
        )
        for each in judges:
            each.batch(0, header(0, max_timestamp_ms=5))
            each.opaque(Boundary(opaque[0], opaque[0] * 100), Boundary(opaque[1], opaque[1] * 100))
            each.batch(400, header(4, max_timestamp_ms=30))
            each.end("f", Boundary(5, 500), report)
        return [finding.message for finding in report.findings]

    assert judge((1, 4)) == []
    offsets, stamps = judge((3, 4))
    assert offsets.startswith("2 of 3 entries")
    assert stamps.startswith("2 of 3 entries")


def test_first_batch_needs_no_entry() -> None:
    """Position 0 is known without an index, and the engine writes no entry for it."""
    index = OffsetIndex(0)
    index.add(0, 0)
    report = LogReport(path="")
    judge = OffsetIndexJudge(parse_offset_index(index.encode(log_bytes=100, end_offset=1)), base_offset=0)
    judge.batch(0, header(0))
    judge.end("f", Boundary(1, 100), report)
    assert len(report.findings) == 1
