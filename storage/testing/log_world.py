# SPDX-License-Identifier: Apache-2.0
"""A `PartitionLog` on a simulated disk beside its model, with all comparisons between the two.

Owns the life of the log (open, crash, power failure inside a call) and the checked laws. The classes of
`storage.testing.log_operations` say what is *done* to the log. A power failure inside a call is a `PowerFailure` that
the simulated disk raises before its n-th call. It passes through the engine like the end of a process.
Source: docs/storage.md section 10.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TypeVar

from lograft.wire.header import BatchHeader

from storage.compaction.pass_ import CompactionPass
from storage.errors import StorageError
from storage.files.names import (
    CLEANED_SUFFIX,
    DELETED_SUFFIX,
    INDEX_SUFFIX,
    LOG_SUFFIX,
    RESTART_SUFFIX,
    SEAL_SUFFIX,
    SWAP_SUFFIX,
    TEMPORARY_SUFFIX,
    TIME_INDEX_SUFFIX,
)
from storage.log.flush import FlushWork
from storage.log.log_start import LogStartWork
from storage.log.partition_log import PartitionLog
from storage.maintenance.scrub import LogScrub, ScrubWork
from storage.testing.builders import SMALL
from storage.testing.log_model import LogModel
from storage.testing.model_batch import CompactionRule
from storage.testing.model_producers import SeenWindow
from storage.testing.sim_disk import SimCall, SimDisk
from storage.testing.sim_tree import Crash
from storage.types import Appended, LogSettings, RecoveryReport

DIRECTORY = "/data/log"
FAR_OFFSET = 2**62
RECOVERY_CALLS = 12
"""A power failure inside a recovery comes before one of this many calls."""

SEGMENT_SUFFIXES = (LOG_SUFFIX, INDEX_SUFFIX, TIME_INDEX_SUFFIX, SEAL_SUFFIX)
LEFTOVERS = (DELETED_SUFFIX, CLEANED_SUFFIX, SWAP_SUFFIX, RESTART_SUFFIX, TEMPORARY_SUFFIX)
"""Files that no opening leaves behind."""

ResultT = TypeVar("ResultT")


class PowerFailure(BaseException):
    """The machine stops before a disk call takes effect. Not an `Exception`, because nothing in a dead machine can handle it."""


class Operation:
    """One call on a log, with its arguments. Made by `draw`, or by hand in a scenario."""

    weight = 1
    """How often it is drawn, relative to the others."""

    crash_weight = 1
    """How often a power failure inside it is drawn; 0: it changes nothing on the disk."""

    @classmethod
    def is_possible(cls, world: World) -> bool:
        """Tell whether it can be called now."""
        return world.is_writable

    @classmethod
    def draw(cls, world: World, rng: random.Random) -> Operation:
        """Choose the arguments."""
        raise NotImplementedError(cls.__name__)

    def announce(self, model: LogModel) -> None:
        """Tell the model, before the call, what a power failure inside it may leave."""

    def apply_to_log(self, world: World) -> object:
        """Make the call; return its result, or the type of the `StorageError` that it raised."""
        raise NotImplementedError(type(self).__name__)

    def apply_to_model(self, model: LogModel, outcome: object) -> None:
        """Do the same to the model, and compare the outcome.

        Raises:
            AssertionError: the log gave another answer.
        """
        raise NotImplementedError(type(self).__name__)

    def after(self, world: World, rng: random.Random) -> None:
        """Do what needs both log and model afterwards: crash, compare in depth."""


def attempt(call: Callable[[], ResultT]) -> ResultT | type[StorageError]:
    """Return what a call returns, or the type of the storage error that it raises."""
    try:
        return call()
    except StorageError as error:
        return type(error)


class World:
    """One log and its model.

    Attributes:
        settings: settings of the log.
        disk: the simulated disk.
        model: the expected state of the log.
        log: the open log.
        report: report of its last opening.
        work: the flush group in flight.
        prefix: the removal in flight.
        pass_steps: the remaining steps of a compaction pass under way.
        pass_rule: what that pass may do.
        scrub: the owner's side of the scrub of the open log.
        scrubbed: a scrub that ran and was not given back yet.
        now_ms: the clock that the log gets.
        clock_went_back: True once it did; then ages mean nothing.
        deleted_ms: when each `.deleted` file got its name, by that clock.
        observer: gets each disk call before it takes effect.
    """

    log: PartitionLog
    report: RecoveryReport
    scrub: LogScrub

    def __init__(self, settings: LogSettings = SMALL, observer: Callable[[World, SimCall], None] | None = None) -> None:
        self._begin(settings, SimDisk(), LogModel(), doing="create")
        self.observer = observer
        self.disk.make_directory("/data")
        self.disk.sync_directory("/")
        self._open()

    def _begin(self, settings: LogSettings, disk: SimDisk, model: LogModel, *, doing: str) -> None:
        self.settings = settings
        self.model = model
        self.now_ms = 1_000
        self.clock_went_back = False
        self.doing = doing
        self.observer: Callable[[World, SimCall], None] | None = None
        self._fuse: int | None = None
        self.disk = disk
        disk.on_call = self._on_call
        self._forget_work()

    def _forget_work(self) -> None:
        """Forget all work under way, which ends with its log."""
        self.work: FlushWork | None = None
        self.prefix: LogStartWork | None = None
        self.pass_steps: Iterator[CompactionPass] | None = None
        self.pass_rule: CompactionRule | None = None
        self.scrubbed: ScrubWork | None = None
        self.deleted_ms: dict[str, int] = {}

    @classmethod
    def drawn(cls, rng: random.Random, *, compact: bool | None = None) -> World:
        """Return a world with drawn settings for segments, indexes and rolls of several sizes; `compact` overrides the drawn value."""
        drawn_compact = rng.randrange(3) > 0
        compact = drawn_compact if compact is None else compact
        # Compaction without retention is the common case, and exercises more of compaction.
        has_retention = not compact or rng.randrange(3) == 0
        return cls(
            replace(
                SMALL,
                segment_bytes=rng.choice((400, 1_000, 1_000, 3_000)),
                index_interval_bytes=rng.choice((1, 100, 400)),
                index_bytes=rng.choice((24, 60, 10_000)),
                segment_ms=rng.choice((300, 10**15)),
                retention_ms=rng.choice((None, 200, 3_000, 30_000)) if has_retention else None,
                retention_bytes=rng.choice((None, 0, 1_000, 4_000)) if has_retention else None,
                file_delete_delay_ms=rng.choice((0, 100, 1_000)),
                compact=compact,
                min_compaction_lag_ms=rng.choice((0, 0, 500)),
                max_compaction_lag_ms=rng.choice((100, 2**63 - 1)),
                min_cleanable_dirty_ratio=rng.choice((0.0, 0.0, 0.5)),
                delete_retention_ms=rng.choice((0, 300, 3_000)),
            )
        )

    @classmethod
    def of_crashed(cls, settings: LogSettings, disk: SimDisk, model: LogModel) -> World:
        """Return a world on a disk that has crashed; call `recover` before anything else."""
        world = cls.__new__(cls)
        world._begin(settings, disk, model, doing="recovery")
        return world

    def _on_call(self, call: SimCall) -> None:
        if self.observer is not None:
            self.observer(self, call)
        if self._fuse is not None:
            self._fuse -= 1
            if self._fuse < 0:
                self._fuse = None
                raise PowerFailure
        self._watch_deleted(call)

    def _watch_deleted(self, call: SimCall) -> None:
        """Check that a `.deleted` file stays as long as the settings say, except at an opening."""
        if call.operation == "rename" and call.path.endswith(SEGMENT_SUFFIXES) and self.disk.exists(call.path):
            self.deleted_ms[call.path + DELETED_SUFFIX] = self.now_ms
        elif call.operation == "remove" and call.path in self.deleted_ms:
            age_ms = self.now_ms - self.deleted_ms.pop(call.path)
            is_due = age_ms >= self.settings.file_delete_delay_ms or self.clock_went_back
            assert is_due, f"{call.path} is removed after {age_ms} ms"

    def _open(self) -> None:
        self._forget_work()
        opened = PartitionLog.open(self.disk, DIRECTORY, settings=self.settings, now_ms=self.now_ms)
        self.log, self.report = opened.log, opened.report
        self.scrub = LogScrub(opened.log)

    def names(self) -> list[str]:
        """Return the names of the files of the log."""
        return self.disk.list_directory(DIRECTORY)

    @property
    def active_base(self) -> int:
        """Base offset of the active segment."""
        return max(int(name[: -len(LOG_SUFFIX)]) for name in self.names() if name.endswith(LOG_SUFFIX))

    def seen_producers(self) -> dict[int, SeenWindow]:
        """Return the producer state of the log."""
        return {
            producer_id: SeenWindow(state.producer_epoch, list(state.batches()))
            for producer_id, state in self.log.producers.states()
        }

    @property
    def is_writable(self) -> bool:
        """False after the disk failed; then only reads and a crash are possible."""
        return self.log.failure is None and self.disk.failure is None

    def perform(self, operation: Operation, rng: random.Random) -> None:
        """Apply an operation to log and model, and compare."""
        self.doing = type(operation).__name__
        self.model.now_ms = self.now_ms
        operation.announce(self.model)
        outcome = operation.apply_to_log(self)
        operation.apply_to_model(self.model, outcome)
        operation.after(self, rng)
        self.check_ends()

    def perform_with_power_failure(
        self, operation: Operation, rng: random.Random, *, before_call: int, how: Crash
    ) -> None:
        """Begin an operation; the power fails before its n-th disk call. An operation with fewer calls succeeds."""
        self._fuse = before_call
        try:
            self.perform(operation, rng)
        except PowerFailure:
            self.crash(how, rng)
        self._fuse = None

    def crash(self, how: Crash, rng: random.Random, *, inside_recovery: Sequence[Crash] = ()) -> None:
        """Lose power and open again; before that, begin one recovery for each inner crash and lose power inside it."""
        self.disk.crash(how, rng)
        everything_kept = how is Crash.KEEP_ALL
        for again in inside_recovery:
            self._fuse = rng.randrange(RECOVERY_CALLS)
            with suppress(PowerFailure):
                self.recover(everything_kept=everything_kept)
            self._fuse = None
            self.disk.crash(again, rng)
            everything_kept = everything_kept and again is Crash.KEEP_ALL
        self.recover(everything_kept=everything_kept)

    def recover(self, *, everything_kept: bool, clean: bool = False) -> None:
        """Open the log and check that it is legal.

        Args:
            everything_kept: True: nothing may be missing.
            clean: True: the last stop was clean, and the opening must have noticed.

        Raises:
            AssertionError: the log breaks a law.
            StorageError: the log does not open, or does not answer.
        """
        self.doing = "recovery" if not clean else "clean open"
        self._open()
        start_offset, end_offset = self.log.log_start_offset, self.log.log_end_offset
        self.model.settle_restart(start_offset, end_offset, everything_kept=everything_kept)
        least = self.model.least_after_crash(everything_kept=everything_kept)
        assert not self.report.damaged, f"a crash is no damage: {self.report.damaged}"
        assert self.report.clean or not clean, "a clean stop was taken for an unclean one"
        left = [name for name in self.names() if name.endswith(LEFTOVERS)]
        assert not left, f"the open left {left}"
        assert self.log.log_end_offset >= least, f"the log ends at {self.log.log_end_offset}, {least} was promised"
        self.model.settle(self.read_bytes(), start_offset=self.log.log_start_offset)
        self.model.note_opening(self.now_ms)
        self.model.settle_epoch(self.log.last_epoch)
        self.model.settle_producers(self.seen_producers())
        self.check_ends()
        self.check_in_depth()

    def read_bytes(self, max_bytes: int = 700) -> bytes:
        """Return all bytes of the log, chunk by chunk."""
        chunks: list[bytes] = []
        position = self.log.log_start_offset
        while True:
            chunk = self.log.read(position, max_bytes)
            if not chunk.data:
                assert position == self.log.log_end_offset, f"reading ends at {position}"
                return b"".join(chunks)
            assert chunk.next_offset > position, f"a read at {position} does not go on"
            chunks.append(chunk.data)
            position = chunk.next_offset

    def read_headers(self, max_bytes: int = 700) -> list[BatchHeader]:
        """Return the headers of all batches of the log, chunk by chunk."""
        headers: list[BatchHeader] = []
        position = self.log.log_start_offset
        while True:
            chunk = self.log.read_headers(position, max_bytes)
            if not chunk.headers:
                assert position == self.log.log_end_offset, f"reading ends at {position}"
                return headers
            headers += chunk.headers
            position = chunk.next_offset

    def check_ends(self) -> None:
        """Compare the cheap values."""
        log, model = self.log, self.model
        start_offset = log.log_start_offset
        assert start_offset == model.start_offset, f"log start {start_offset}, not {model.start_offset}"
        assert log.log_end_offset == model.end_offset, f"log end {log.log_end_offset}, not {model.end_offset}"
        assert log.flushed_offset == model.flushed_offset, f"flushed {log.flushed_offset}, not {model.flushed_offset}"
        assert log.last_epoch == model.last_epoch, f"last epoch {log.last_epoch}, not {model.last_epoch}"
        assert not log.damaged, f"damage was invented: {log.damaged}"

    def check_in_depth(self) -> None:
        """Compare all bytes, leader epochs, look-ups by time, transactions and producer state."""
        log, model = self.log, self.model
        assert self.read_bytes() == b"".join(batch.data for batch in model.batches), "other bytes"
        assert self.read_headers() == [batch.header for batch in model.batches], "other headers"
        for epoch, start_offset in model.epochs():
            assert log.epoch_at(start_offset) == epoch, f"epoch {epoch} does not begin at {start_offset}"
            for asked in (epoch - 1, epoch, epoch + 1):
                assert log.end_offset_for_epoch(asked) == model.end_offset_for_epoch(asked), f"end of epoch {asked}"
        for timestamp_ms in {0, *(batch.header.max_timestamp_ms for batch in model.batches[-3:])}:
            found = log.find_timestamp(timestamp_ms, end_offset=log.log_end_offset)
            assert found == model.find_timestamp(timestamp_ms, end_offset=model.end_offset), f"time {timestamp_ms}"
        self._check_transactions()
        if self.is_writable:
            self._check_windows()

    def _check_windows(self) -> None:
        """Send every remembered batch again: each must be a duplicate with its offsets, and nothing may be appended."""
        model = self.model
        data = {batch.header.base_offset: batch.data for batch in model.history}
        for window in model.windows().values():
            for header in window.batches:
                self._check_duplicate(data[header.base_offset], header)

    def _check_duplicate(self, data: bytes, header: BatchHeader) -> None:
        expected = self.model.judge(header)
        if not isinstance(expected, Appended):
            # The producer was forgotten in between, and has reached this sequence again.
            assert self.model.forgotten_at.keys() & {header.producer_id}, f"{header} is no duplicate: {expected}"
            return
        epoch = self.model.last_epoch or 0
        appended = self.log.append_as_leader(data, header, leader_epoch=epoch, now_ms=self.now_ms)
        assert appended == expected, f"producer {header.producer_id} sends {header.base_sequence} again: {appended}"

    def _check_transactions(self) -> None:
        """Check that each transactional batch in the log counts, waits or is left out as it must."""
        producers, truth = self.log.producers, self.model.transactions()
        standing = [batch.header for batch in self.model.batches if batch.header.is_transactional]
        data = [header for header in standing if not header.is_control]
        if not producers.has_transactions:
            assert not data, f"the log knows of no transaction, {data[0]} belongs to one"
            return
        known_open = dict(producers.transactions.open_transactions())
        for producer_id, first_offset in known_open.items():
            assert producer_id in truth.open, f"the transaction of {producer_id} has ended"
            assert truth.open[producer_id] <= first_offset, f"the transaction of {producer_id} begins later"
        for header in data:
            first_offset = known_open.get(header.producer_id)
            if truth.open.get(header.producer_id, FAR_OFFSET) <= header.base_offset:
                assert first_offset is not None, f"the transaction of {header} is open"
                assert first_offset <= header.base_offset, f"the transaction of {header} began before it"
                continue
            found = producers.transactions.aborted_between(header.base_offset, header.next_offset)
            told = any(
                each.producer_id == header.producer_id and each.first_offset <= header.base_offset <= each.last_offset
                for each in found
            )
            assert told == truth.is_aborted(header), f"{header} is aborted: {told}"
