# SPDX-License-Identifier: Apache-2.0
"""A `PartitionLog` on a simulated disk beside its model, and everything that can be compared between the two.

Owns the life of the log (open, crash, power failure inside a call) and the laws that are checked; what is *done* to the log
are the small objects of `storage.testing.log_operations`. A power failure inside a call is a `PowerFailure` that the simulated
disk raises before its n-th call: it passes through the engine as the end of a process does.
Source: docs/storage.md section 9.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TypeVar

from lograft.wire.header import BatchHeader

from storage.errors import StorageError
from storage.log import Appended, FlushWork, LogSettings, PartitionLog, RecoveryReport
from storage.testing.builders import SMALL
from storage.testing.log_model import LogModel
from storage.testing.sim_disk import SimCall, SimDisk
from storage.testing.sim_tree import Crash

DIRECTORY = "/data/log"
RECOVERY_CALLS = 12
"""A power failure inside a recovery comes before one of so many calls."""

ResultT = TypeVar("ResultT")


class PowerFailure(BaseException):
    """The machine stops before a call of the disk takes effect. No `Exception`: nothing in a dead machine handles it."""


class Operation:
    """One call on a log, with its arguments. Make one with `draw`, or by hand in a scenario."""

    weight = 1
    """How often it is drawn, beside the others."""

    @classmethod
    def is_possible(cls, world: World) -> bool:
        """Tell whether it can be called now."""
        return world.is_writable

    @classmethod
    def draw(cls, world: World, rng: random.Random) -> Operation:
        """Choose arguments."""
        raise NotImplementedError(cls.__name__)

    def announce(self, model: LogModel) -> None:
        """Tell the model what a power failure inside the call may leave, before it is made."""

    def apply_to_log(self, world: World) -> object:
        """Make the call; return its result, or the type of the `StorageError` that it raised."""
        raise NotImplementedError(type(self).__name__)

    def apply_to_model(self, model: LogModel, outcome: object) -> None:
        """Do the same to the model and compare the outcome.

        Raises:
            AssertionError: the log answered something else.
        """
        raise NotImplementedError(type(self).__name__)

    def after(self, world: World, rng: random.Random) -> None:
        """Do what needs both log and model, after them: crash, compare in depth."""


def attempt(call: Callable[[], ResultT]) -> ResultT | type[StorageError]:
    """Return what a call returns, or the type of the storage error that it raises."""
    try:
        return call()
    except StorageError as error:
        return type(error)


class World:
    """One log, one model.

    Attributes:
        settings: settings of the log.
        disk: the simulated disk.
        model: what the log must be.
        log: the open log.
        report: what its last opening found.
        work: the flush group in flight.
        now_ms: the clock that the log is given.
        observer: sees each call of the disk before it takes effect.
    """

    log: PartitionLog
    report: RecoveryReport

    def __init__(self, settings: LogSettings = SMALL, observer: Callable[[World, SimCall], None] | None = None) -> None:
        self.settings = settings
        self.model = LogModel()
        self.work: FlushWork | None = None
        self.now_ms = 1_000
        self.doing = "create"
        self.observer = observer
        self._fuse: int | None = None
        self.disk = SimDisk()
        self.disk.make_directory("/data")
        self.disk.sync_directory("/")
        self.disk.on_call = self._on_call
        self.log, self.report = self._open()

    @classmethod
    def drawn(cls, rng: random.Random) -> World:
        """Return a world with settings that make segments, indexes and rolls of several sizes."""
        return cls(
            replace(
                SMALL,
                segment_bytes=rng.choice((400, 1_000, 1_000, 3_000)),
                index_interval_bytes=rng.choice((1, 100, 400)),
                index_bytes=rng.choice((24, 60, 10_000)),
                segment_ms=rng.choice((300, 10**15)),
            )
        )

    @classmethod
    def of_crashed(cls, settings: LogSettings, disk: SimDisk, model: LogModel) -> World:
        """Return a world on a disk that has crashed; call `recover` before anything else."""
        world = cls.__new__(cls)
        world.settings = settings
        world.model = model
        world.work = None
        world.now_ms = 1_000
        world.doing = "recovery"
        world.observer = None
        world._fuse = None
        world.disk = disk
        disk.on_call = world._on_call
        return world

    def _on_call(self, call: SimCall) -> None:
        if self.observer is not None:
            self.observer(self, call)
        if self._fuse is not None:
            self._fuse -= 1
            if self._fuse < 0:
                self._fuse = None
                raise PowerFailure

    def _open(self) -> tuple[PartitionLog, RecoveryReport]:
        opened = PartitionLog.open(self.disk, DIRECTORY, settings=self.settings, now_ms=self.now_ms)
        return opened.log, opened.report

    @property
    def is_writable(self) -> bool:
        """False after the disk failed: then only reads, and a crash, are left."""
        return self.log.failure is None and self.disk.failure is None

    def perform(self, operation: Operation, rng: random.Random) -> None:
        """Do an operation to log and model, and compare."""
        self.doing = type(operation).__name__
        operation.announce(self.model)
        outcome = operation.apply_to_log(self)
        operation.apply_to_model(self.model, outcome)
        operation.after(self, rng)
        self.check_ends()

    def perform_with_power_failure(
        self, operation: Operation, rng: random.Random, *, before_call: int, how: Crash
    ) -> None:
        """Begin an operation; before its n-th call of the disk the power fails. One with fewer calls succeeds."""
        self._fuse = before_call
        try:
            self.perform(operation, rng)
        except PowerFailure:
            self.crash(how, rng)
        self._fuse = None

    def crash(self, how: Crash, rng: random.Random, *, inside_recovery: Sequence[Crash] = ()) -> None:
        """Lose power and open again; before that, begin so many recoveries and lose power inside them."""
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
        """Open the log and check that it is a legal one.

        Args:
            everything_kept: nothing may be missing.
            clean: the last stop was clean: the open must have seen that.

        Raises:
            AssertionError: a law is broken.
            StorageError: the log does not open, or does not answer.
        """
        self.doing = "recovery" if not clean else "clean open"
        least = self.model.least_after_crash(everything_kept=everything_kept)
        self.work = None
        self.log, self.report = self._open()
        assert not self.report.damaged, f"a crash is no damage: {self.report.damaged}"
        assert self.report.clean or not clean, "a clean stop was taken for an unclean one"
        assert self.log.log_start_offset == self.model.start_offset, f"log start {self.log.log_start_offset}"
        assert self.log.log_end_offset >= least, f"the log ends at {self.log.log_end_offset}, {least} was promised"
        self.model.settle(self.read_bytes())
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

    def check_ends(self) -> None:
        """Compare what costs nothing."""
        log, model = self.log, self.model
        assert log.log_end_offset == model.end_offset, f"log end {log.log_end_offset}, not {model.end_offset}"
        assert log.flushed_offset == model.flushed_offset, f"flushed {log.flushed_offset}, not {model.flushed_offset}"
        assert log.last_epoch == model.last_epoch, f"last epoch {log.last_epoch}, not {model.last_epoch}"
        assert not log.damaged, f"damage was invented: {log.damaged}"

    def check_in_depth(self) -> None:
        """Compare all bytes, leader epochs, look-ups by time and idempotence windows."""
        log, model = self.log, self.model
        assert self.read_bytes() == b"".join(batch.data for batch in model.batches), "other bytes"
        for epoch, start_offset in model.epochs():
            assert log.epoch_at(start_offset) == epoch, f"epoch {epoch} does not begin at {start_offset}"
            for asked in (epoch - 1, epoch, epoch + 1):
                assert log.end_offset_for_epoch(asked) == model.end_offset_for_epoch(asked), f"end of epoch {asked}"
        for timestamp_ms in {0, *(batch.timestamps_ms[0] for batch in model.batches[-3:])}:
            found = log.find_timestamp(timestamp_ms, end_offset=log.log_end_offset)
            assert found == model.find_timestamp(timestamp_ms, end_offset=model.end_offset), f"time {timestamp_ms}"
        if self.is_writable:
            self._check_windows()

    def _check_windows(self) -> None:
        """Send every batch of every window again: each is known, with its offsets, and nothing is appended."""
        model = self.model
        data = {batch.header.base_offset: batch.data for batch in model.batches}
        for window in model.windows().values():
            for header in window.batches:
                self._check_duplicate(data[header.base_offset], header)

    def _check_duplicate(self, data: bytes, header: BatchHeader) -> None:
        epoch = self.model.last_epoch or 0
        appended = self.log.append_as_leader(data, header, leader_epoch=epoch, now_ms=self.now_ms)
        expected = Appended(header.base_offset, header.next_offset, True)
        assert appended == expected, f"producer {header.producer_id} sends {header.base_sequence} again: {appended}"
