# SPDX-License-Identifier: Apache-2.0
"""The accumulator against a plain model: every accepted record in exactly one batch, order in each partition, bounds."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from lograft._producer.accumulator import AddResult
from lograft._producer.batches import SealedBatch
from lograft.types import Headers
from tests.producer.builders import Encoder, append_fast, make_accumulator

Row = tuple[bytes | None, bytes | None]

values = st.none() | st.binary(max_size=40) | st.integers(0, 900).map(bytes)
keys = st.none() | st.binary(max_size=8)
partitions = st.integers(0, 2)


class AccumulatorMachine(RuleBasedStateMachine):
    """Sends, seals, resolves and advances the time at random, and compares with lists."""

    @initialize(
        batch_bytes=st.integers(300, 2_000),
        buffer_bytes=st.integers(2_000, 8_000),
        linger_ms=st.integers(0, 20),
        max_in_flight=st.integers(1, 3),
    )
    def start(self, batch_bytes: int, buffer_bytes: int, linger_ms: int, max_in_flight: int) -> None:
        """Make the accumulator and the model."""
        self.encoder = Encoder()
        self.buffer_bytes = buffer_bytes
        self.batch_bytes = batch_bytes
        self.linger_ms = linger_ms
        self.accumulator = make_accumulator(
            self.encoder,
            batch_bytes=batch_bytes,
            buffer_bytes=buffer_bytes,
            linger_ms=linger_ms,
            max_in_flight=max_in_flight,
            max_record_bytes=3_000,
        )
        self.parts = self.accumulator.add_topic("t", 3, first_sticky=0).parts
        self.accepted: list[list[Row]] = [[], [], []]
        self.seen_calls = 0
        self.batched: list[list[Row]] = [[], [], []]
        self.taken = 0
        self.now_ms = 0
        self.under_way: list[SealedBatch] = []

    @rule(partition=partitions, value=values, key=keys, own_time=st.none() | st.integers(0, 9), tag=st.booleans())
    def send(self, partition: int, value: bytes | None, key: bytes | None, own_time: int | None, tag: bool) -> None:
        """Send one record: on the fast path if possible, else through `add`."""
        part = self.parts[partition]
        headers: Headers | None = [("h", b"1")] if tag else None
        is_plain = value is not None and own_time is None and headers is None
        if is_plain and append_fast(self.accumulator, part, value, key):
            self.accepted[partition].append((value, key))
            return
        result = self.accumulator.add(part, value, key, own_time, headers, now_ms=self.now_ms, wall_ms=self.now_ms)
        if result is AddResult.ADDED:
            self.accepted[partition].append((value, key))

    @rule(partition=partitions, value=st.binary(max_size=90), key=keys, count=st.integers(1, 20))
    def send_alike(self, partition: int, value: bytes, key: bytes | None, count: int) -> None:
        """Send several records of the same lengths, one by one."""
        for _ in range(count):
            self.send(partition, value, key, None, False)

    @rule(partition=partitions, rows=st.lists(st.tuples(st.binary(max_size=50), keys), min_size=1, max_size=8))
    def send_many(self, partition: int, rows: list[tuple[bytes, bytes | None]]) -> None:
        """Send several records at once."""
        some = [row[0] for row in rows]
        some_keys = [row[1] for row in rows]
        result = self.accumulator.extend(
            self.parts[partition], some, some_keys, None, now_ms=self.now_ms, wall_ms=self.now_ms
        )
        if result is AddResult.ADDED:
            self.accepted[partition] += rows

    @rule(elapsed_ms=st.integers(0, 30))
    def pass_time(self, elapsed_ms: int) -> None:
        """Advance the time and check lingering batches."""
        self.now_ms += elapsed_ms
        self.accumulator.expire(now_ms=self.now_ms, wall_ms=self.now_ms)

    @rule()
    def flush(self) -> None:
        """Seal everything."""
        self.accumulator.flush_mark()

    @rule(which=st.integers(0, 5))
    def resolve(self, which: int) -> None:
        """A batch is acknowledged, in any order over the partitions."""
        self.take()
        if self.under_way:
            batch = self.under_way.pop(which % len(self.under_way))
            self.accumulator.release(batch, self.parts[batch.partition], now_ms=self.now_ms)

    def take(self) -> None:
        """Take the sealed batches, as the engine does, and put their records beside the accepted ones."""
        for batch in self.accumulator.sealed:
            row_values, row_keys, _, _ = self.encoder.calls[self.taken]
            self.taken += 1
            assert batch.record_count == len(row_values)
            self.batched[batch.partition] += list(zip(row_values, row_keys or [None] * len(row_values), strict=True))
            self.under_way.append(batch)
        self.accumulator.sealed.clear()

    @invariant()
    def nothing_is_lost_repeated_or_reordered(self) -> None:
        """The batches so far and the open batch together hold the accepted records."""
        self.take()
        for partition, part in enumerate(self.parts):
            flat = part.open if part.rich is None else part.rich
            open_rows = list(zip(flat[::2], flat[1::2], strict=True))
            assert self.batched[partition] + open_rows == self.accepted[partition]

    @invariant()
    def memory_is_bounded_and_accounted_for(self) -> None:
        """Reserved bytes are those of open and unresolved batches, and never exceed the bound."""
        self.take()
        held = sum(batch.reserved_bytes for batch in self.under_way) + sum(part.granted for part in self.parts)
        assert self.accumulator.reserved_bytes == held
        assert held <= self.buffer_bytes
        assert set(self.accumulator.outstanding.values()) == set(self.under_way)

    @invariant()
    def a_lone_open_batch_has_a_deadline(self) -> None:
        """No open batch is forgotten: a time for its next check exists."""
        if any(part.is_open for part in self.parts):
            assert self.accumulator.deadline_ms() is not None


AccumulatorMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestAccumulatorModel = AccumulatorMachine.TestCase
