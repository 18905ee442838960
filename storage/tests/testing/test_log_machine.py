# SPDX-License-Identifier: Apache-2.0
"""A log against a plain list, through appends, flushes, truncations, crashes and restarts in any order."""

from __future__ import annotations

import random
from dataclasses import dataclass

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from lograft.wire.limits import DEDUP_WINDOW_BATCHES

from storage.log.flush import FlushWork
from storage.log.partition_log import PartitionLog
from storage.testing.builders import ProducerStamp, append, open_log, read_all
from storage.testing.sim_disk import Crash, SimDisk
from storage.types import Appended, LogSettings, TimestampAndOffset

DIRECTORY = "/data/log"
PRODUCERS = 3


@dataclass(frozen=True)
class ModelBatch:
    """One batch of the list."""

    base_offset: int
    values: tuple[bytes, ...]
    timestamp_ms: int
    epoch: int
    producer: ProducerStamp | None

    @property
    def next_offset(self) -> int:
        return self.base_offset + len(self.values)


class LogMachine(RuleBasedStateMachine):
    """Rules act on the log and on the list; invariants compare them."""

    @initialize(
        segment_bytes=st.sampled_from([300, 1_000, 5_000]),
        interval_bytes=st.sampled_from([1, 200]),
        segment_ms=st.sampled_from([50, 10**12]),
    )
    def begin(self, segment_bytes: int, interval_bytes: int, segment_ms: int) -> None:
        self.settings = LogSettings(
            segment_bytes=segment_bytes, index_interval_bytes=interval_bytes, segment_ms=segment_ms, index_bytes=120
        )
        self.disk = SimDisk()
        self.disk.make_directory("/data")
        self.disk.sync_directory("/")
        self.batches: list[ModelBatch] = []
        self.flushed_offset = 0
        self.epoch = 0
        self.serial = 0
        self.work: FlushWork | None = None
        self.log: PartitionLog = open_log(self.disk, DIRECTORY, self.settings).log

    @property
    def end_offset(self) -> int:
        return self.batches[-1].next_offset if self.batches else 0

    def next_sequence(self, producer_id: int) -> int:
        own = [b for b in self.batches if b.producer is not None and b.producer.producer_id == producer_id]
        if not own:
            return 0
        assert own[-1].producer is not None
        return own[-1].producer.base_sequence + len(own[-1].values)

    @rule(
        count=st.integers(1, 4),
        size_bytes=st.sampled_from([0, 5, 300, 700]),
        timestamp_ms=st.integers(0, 200),
        producer_id=st.none() | st.integers(0, PRODUCERS - 1),
        new_epoch=st.booleans(),
    )
    def append_batch(
        self, count: int, size_bytes: int, timestamp_ms: int, producer_id: int | None, new_epoch: bool
    ) -> None:
        self.epoch += new_epoch
        values = tuple(f"{self.serial}/{n}".encode().ljust(size_bytes, b".") for n in range(count))
        self.serial += 1
        stamp = None
        if producer_id is not None:
            stamp = ProducerStamp(producer_id=producer_id, base_sequence=self.next_sequence(producer_id))
        appended = append(self.log, values, leader_epoch=self.epoch, timestamp_ms=timestamp_ms, producer=stamp)
        batch = ModelBatch(self.end_offset, values, timestamp_ms, self.epoch, stamp)
        assert appended == Appended(batch.base_offset, batch.next_offset, False)
        self.batches.append(batch)

    @precondition(lambda self: any(batch.producer is not None for batch in self.batches))
    @rule(data=st.data())
    def resend(self, data: st.DataObject) -> None:
        """A batch in its producer's state is found again at its own offsets."""
        producer_id = data.draw(st.sampled_from(sorted({b.producer.producer_id for b in self.batches if b.producer})))
        own = [b for b in self.batches if b.producer is not None and b.producer.producer_id == producer_id]
        batch = data.draw(st.sampled_from(own[-DEDUP_WINDOW_BATCHES:]))
        appended = append(
            self.log, batch.values, leader_epoch=self.epoch, timestamp_ms=batch.timestamp_ms, producer=batch.producer
        )
        assert appended == Appended(batch.base_offset, batch.next_offset, True)

    @precondition(lambda self: self.work is None)
    @rule()
    def begin_flush(self) -> None:
        self.work = self.log.begin_flush()
        assert (self.work is None) == (self.flushed_offset == self.end_offset)

    @precondition(lambda self: self.work is not None)
    @rule()
    def end_flush(self) -> None:
        assert self.work is not None
        self.work.run()
        flushed_offset = self.log.end_flush(self.work)
        self.work = None
        assert self.flushed_offset <= flushed_offset <= self.end_offset
        self.flushed_offset = flushed_offset

    @precondition(lambda self: self.batches)
    @rule(data=st.data())
    def truncate(self, data: st.DataObject) -> None:
        to_offset = data.draw(st.integers(max(0, self.end_offset - 12), self.end_offset))
        while self.batches and self.batches[-1].next_offset > to_offset:
            self.batches.pop()
        assert self.log.truncate_suffix(to_offset) == self.end_offset
        self.flushed_offset = min(self.flushed_offset, self.end_offset)

    @precondition(lambda self: self.batches)
    @rule(data=st.data(), max_bytes=st.sampled_from([1, 250, 2_000]))
    def read_somewhere(self, data: st.DataObject, max_bytes: int) -> None:
        offset = data.draw(st.integers(0, self.end_offset))
        end_offset = data.draw(st.none() | st.integers(0, self.end_offset))
        chunk = self.log.read(offset, max_bytes, end_offset=end_offset)
        limit = self.end_offset if end_offset is None else end_offset
        wanted = [b for b in self.batches if b.next_offset > offset and b.next_offset <= limit]
        assert bool(chunk.data) == bool(wanted)
        assert chunk.next_offset <= max(limit, offset)
        if wanted:
            first = read_all(self.log, offset=offset, max_bytes=max_bytes, end_offset=end_offset)[0]
            assert (first.base_offset, tuple(first.values())) == (wanted[0].base_offset, wanted[0].values)

    @rule(timestamp_ms=st.integers(0, 210), data=st.data())
    def find_time(self, timestamp_ms: int, data: st.DataObject) -> None:
        end_offset = data.draw(st.integers(0, self.end_offset))
        late = next((b for b in self.batches if b.timestamp_ms >= timestamp_ms), None)
        expected = None
        if late is not None and late.base_offset < end_offset:
            expected = TimestampAndOffset(late.timestamp_ms, late.base_offset)
        assert self.log.find_timestamp(timestamp_ms, end_offset=end_offset) == expected

    @precondition(lambda self: self.work is None)
    @rule()
    def restart_cleanly(self) -> None:
        self.log.close()
        opened = open_log(self.disk, DIRECTORY, self.settings)
        assert opened.report.clean
        self.log = opened.log
        self.flushed_offset = self.end_offset

    @rule(how=st.sampled_from(Crash), seed=st.integers(0, 10**6))
    def crash(self, how: Crash, seed: int) -> None:
        self.work = None
        self.disk.crash(how, random.Random(seed))
        opened = open_log(self.disk, DIRECTORY, self.settings)
        self.log = opened.log
        assert opened.report.damaged == ()
        end_offset = self.log.log_end_offset
        assert self.flushed_offset <= end_offset <= self.end_offset
        if how is Crash.KEEP_ALL:
            assert end_offset == self.end_offset
        while self.end_offset > end_offset:
            self.batches.pop()
        assert self.end_offset == end_offset, "recovery cut inside a batch"
        self.flushed_offset = end_offset

    @invariant()
    def offsets_agree(self) -> None:
        if not hasattr(self, "log"):
            return
        assert self.log.log_end_offset == self.end_offset
        assert self.log.flushed_offset == self.flushed_offset
        assert self.log.log_start_offset == 0

    @invariant()
    def content_agrees(self) -> None:
        if not hasattr(self, "log"):
            return
        stored = read_all(self.log, max_bytes=10**6)
        assert [(b.base_offset, tuple(b.values())) for b in stored] == [(b.base_offset, b.values) for b in self.batches]
        for batch in self.batches:
            assert self.log.epoch_at(batch.base_offset) == batch.epoch

    @invariant()
    def epoch_ends_agree(self) -> None:
        if not hasattr(self, "log"):
            return
        for epoch in {batch.epoch for batch in self.batches}:
            end = self.log.end_offset_for_epoch(epoch)
            assert end is not None
            assert end == (epoch, max(b.next_offset for b in self.batches if b.epoch == epoch))


LogMachine.TestCase.settings = settings(derandomize=True, deadline=None, max_examples=50, stateful_step_count=30)
TestLogMachine = LogMachine.TestCase
