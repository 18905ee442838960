# SPDX-License-Identifier: Apache-2.0
"""The fast path of the blocking producer with many threads: nothing lost, nothing doubled, order in each thread."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator

import pytest
from lograft import Producer
from lograft._producer.accumulator import Accumulator
from lograft._producer.buffers import OpenBatch
from lograft.errors import ClientClosedError
from lograft.types import BatchReceipt, Durability
from lograft.wire.batch import RecordBatch

THREADS = 4
RECORDS = 10_000


@pytest.fixture
def nervous() -> Iterator[None]:
    """The interpreter switches threads as often as it can."""
    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval_s)


@pytest.mark.usefixtures("nervous")
def test_threads_lose_and_double_nothing_while_batches_are_sealed_under_them() -> None:
    """While one thread seals all the time, every record of the others is in exactly one batch, in the order of sending."""
    producer = Producer("127.0.0.1:1", batch_bytes=4_096)
    producer._deliveries.open_topic("t", 2)  # pyright: ignore[reportPrivateUsage]
    accumulator: Accumulator = producer._deliveries.accumulator  # pyright: ignore[reportPrivateUsage]
    parts = producer._deliveries.topics["t"].parts  # pyright: ignore[reportPrivateUsage]
    found: dict[bytes | None, list[bytes | None]] = {b"%d" % number: [] for number in range(THREADS)}
    done = threading.Event()

    def work(number: int) -> None:
        key = b"%d" % number
        for index in range(RECORDS):
            # Values of one length and of others in turns: batches stay uniform, or end being it while others append.
            value = b"%d" % index if index // 500 % 2 else b"%05d" % index
            if index % 1_000 == 7:
                producer.send("t", value, key=key, headers=[("h", None)])
            else:
                producer.send("t", value, key=key)

    def take(*, seal: bool) -> None:
        with producer._lock:  # pyright: ignore[reportPrivateUsage]
            if seal:
                accumulator.seal_all()
            while accumulator.sealed:
                batch = accumulator.sealed.popleft()
                content = RecordBatch(batch.body.join())
                for key, value in zip(content.keys(), content.values(), strict=True):
                    found[key].append(value)
                accumulator.release(batch, parts[batch.partition], now_ms=0)
            producer._on_progress()  # pyright: ignore[reportPrivateUsage]

    def seal() -> None:
        while not done.is_set():
            take(seal=True)

    sealer = threading.Thread(target=seal)
    threads = [threading.Thread(target=work, args=(number,)) for number in range(THREADS)]
    for thread in (sealer, *threads):
        thread.start()
    for thread in threads:
        thread.join()
    done.set()
    sealer.join()
    take(seal=True)
    expected = list(range(RECORDS))
    assert all([int(value or b"") for value in values] == expected for values in found.values())
    assert accumulator.reserved_bytes == 0


class ClosingBatch(OpenBatch):
    """Simulates another thread that seals the batch just before the fast path appends to it."""

    def __init__(self, producer: Producer, batch: OpenBatch) -> None:
        super().__init__(batch.outcome)
        self.grant(10_000)
        value, key = batch
        assert value is not None
        self.begin(value, key)
        self._producer = producer

    def __iadd__(self, items: object) -> ClosingBatch:  # pyright: ignore[reportIncompatibleMethodOverride]
        if not self:
            self.extend(items)  # pyright: ignore[reportArgumentType]
            return self  # the first record
        with self._producer._lock:  # pyright: ignore[reportPrivateUsage]
            self._producer._deliveries.accumulator.seal_all()  # pyright: ignore[reportPrivateUsage]
        self.extend(items)  # pyright: ignore[reportArgumentType]
        return self


@pytest.mark.parametrize("is_counted", [False, True])
@pytest.mark.parametrize("key", [b"k", None])
def test_record_that_meets_a_seal_is_in_the_next_batch(key: bytes | None, is_counted: bool) -> None:
    """If the open batch is sealed between the check of its room and the append, the record is not lost."""
    producer = Producer("127.0.0.1:1")
    producer._deliveries.open_topic("t", 1)  # pyright: ignore[reportPrivateUsage]
    accumulator: Accumulator = producer._deliveries.accumulator  # pyright: ignore[reportPrivateUsage]
    part = producer._deliveries.topics["t"].parts[0]  # pyright: ignore[reportPrivateUsage]
    producer.send("t", b"1", key=key)
    part.open = ClosingBatch(producer, part.open)
    if is_counted:
        part.open.count_bytes()
    second = producer.send("t", b"2", key=key)
    third = producer.send("t", b"3", key=key)
    accumulator.seal_all()
    contents = [RecordBatch(batch.body.join()).values() for batch in accumulator.sealed]
    assert contents == [[b"1"], [b"2", b"3"]]
    outcome = accumulator.sealed[1].outcome
    assert outcome is not None
    receipt = BatchReceipt(topic="t", partition=0, base_offset=7, record_count=2, durability=Durability.APPENDED)
    outcome.resolve(0, receipt)
    assert [second.result(0).offset, third.result(0).offset] == [7, 8]


class EndingBatch(ClosingBatch):
    """Simulates another thread that closes the producer just before the fast path appends to the batch."""

    def __iadd__(self, items: object) -> EndingBatch:  # pyright: ignore[reportIncompatibleMethodOverride]
        if not self:
            self.extend(items)  # pyright: ignore[reportArgumentType]
            return self  # the first record
        self._producer._shut()  # pyright: ignore[reportPrivateUsage]
        self.extend(items)  # pyright: ignore[reportArgumentType]
        return self


@pytest.mark.parametrize("key", [b"k", None])
def test_record_that_meets_the_end_of_the_producer_is_refused(key: bytes | None) -> None:
    """It comes after the last seal, so it would never be sent, and no error would say so."""
    producer = Producer("127.0.0.1:1")
    producer._deliveries.open_topic("t", 1)  # pyright: ignore[reportPrivateUsage]
    part = producer._deliveries.topics["t"].parts[0]  # pyright: ignore[reportPrivateUsage]
    producer.send("t", b"1", key=key)
    part.open = EndingBatch(producer, part.open)
    with pytest.raises(ClientClosedError):
        producer.send("t", b"2", key=key)
