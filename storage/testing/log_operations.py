# SPDX-License-Identifier: Apache-2.0
"""Operations of the model test on a log, except crashes (`log_faults`): one small class for each.

A new feature of the log is proven by one more class here, or in a module beside this one (`log_prefix`,
`log_compaction`, `log_scrub`, `log_transactions`). It needs `draw` for its arguments, `announce` for what a power
failure inside it may leave, `apply_to_log`, `apply_to_model`, and an entry in `OPERATIONS`.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import partial

from lograft.wire.batch import read_batches

from storage.errors import DiskFailedError, DiskFullError, OffsetOutOfRangeError
from storage.testing.log_appends import Append, AppendAsFollower, AppendRun, AppendToFullDisk, draw_epoch
from storage.testing.log_compaction import COMPACTION_OPERATIONS
from storage.testing.log_model import LogModel
from storage.testing.log_prefix import PREFIX_OPERATIONS
from storage.testing.log_restart import RestartAt
from storage.testing.log_scrub import SCRUB_OPERATIONS
from storage.testing.log_transactions import TRANSACTION_OPERATIONS
from storage.testing.log_world import Operation, World, attempt
from storage.testing.sim_disk import Refusal
from storage.types import LogRead


@dataclass(frozen=True, slots=True, kw_only=True)
class BeginFlush(Operation):
    """The first half of a flush: collect everything dirty."""

    weight = 6
    crash_weight = 0

    @classmethod
    def draw(cls, world: World, rng: random.Random) -> BeginFlush:
        """See `Operation`."""
        return cls()

    def apply_to_log(self, world: World) -> object:
        """See `Operation`."""
        begun = world.log.begin_flush()
        if begun is not None:
            world.work = begun
        return begun is not None

    def apply_to_model(self, model: LogModel, outcome: object) -> None:
        """See `Operation`."""
        is_due = model.flush_target is None and model.flushed_offset < model.end_offset
        assert outcome == is_due, f"begin_flush begins one: {outcome}, but it is due: {is_due}"
        if outcome:
            model.flush_target = model.end_offset


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFlush(Operation):
    """The part of a flush for another thread; sometimes the device fails, or has no space for the checkpoint."""

    weight = 6
    refused: tuple[str, str, Refusal] | None = None

    @classmethod
    def is_possible(cls, world: World) -> bool:
        """See `Operation`."""
        return world.work is not None and not world.work.is_done and world.work.error is None

    @classmethod
    def draw(cls, world: World, rng: random.Random) -> RunFlush:
        """See `Operation`."""
        match rng.randrange(14):
            case 0:
                return cls(refused=("sync", ".log", Refusal.IO_ERROR))
            case 1:
                return cls(refused=("sync_directory", "", Refusal.IO_ERROR))
            case 2 | 3:
                return cls(refused=("create_file", "leader-epoch", Refusal.FULL))
            case _:
                return cls()

    def apply_to_log(self, world: World) -> object:
        """See `Operation`."""
        assert world.work is not None, "no group is in flight"
        if self.refused is not None:
            world.disk.refuse(*self.refused)
        outcome = attempt(world.work.run)
        world.disk.forgive()
        return outcome

    def apply_to_model(self, model: LogModel, outcome: object) -> None:
        """See `Operation`; nothing counts as flushed yet."""
        if self.refused is None:
            assert outcome is None, f"the group fails with {outcome}"
        else:
            assert outcome in (None, DiskFailedError, DiskFullError), f"the group answers {outcome}"


@dataclass(frozen=True, slots=True, kw_only=True)
class EndFlush(Operation):
    """The second half of a flush: the group's records count as flushed, unless it failed or the log was truncated since."""

    weight = 8

    @classmethod
    def is_possible(cls, world: World) -> bool:
        """See `Operation`."""
        return world.work is not None and (world.work.is_done or world.work.error is not None)

    @classmethod
    def draw(cls, world: World, rng: random.Random) -> EndFlush:
        """See `Operation`."""
        return cls()

    def apply_to_log(self, world: World) -> object:
        """See `Operation`."""
        work = world.work
        assert work is not None, "no group is in flight"
        failure = None if work.error is None else type(work.error)
        outcome = attempt(partial(world.log.end_flush, work))
        world.work = None
        assert failure is None or outcome is failure, f"a group that failed with {failure} is answered with {outcome}"
        return outcome

    def apply_to_model(self, model: LogModel, outcome: object) -> None:
        """See `Operation`."""
        target, model.flush_target = model.flush_target, None
        assert target is not None, "no group is in flight"
        if outcome is DiskFailedError or outcome is DiskFullError:
            return
        model.flushed_offset = max(model.flushed_offset, target)
        assert outcome == model.flushed_offset, f"end_flush answers {outcome}, not {model.flushed_offset}"


@dataclass(frozen=True, slots=True, kw_only=True)
class FlushAll(Operation):
    """A flush at once, as at a close; when it returns, everything is on stable storage."""

    weight = 8

    @classmethod
    def is_possible(cls, world: World) -> bool:
        """See `Operation`: no group may be in flight."""
        return world.is_writable and world.work is None

    @classmethod
    def draw(cls, world: World, rng: random.Random) -> FlushAll:
        """See `Operation`."""
        return cls()

    def apply_to_log(self, world: World) -> object:
        """See `Operation`."""
        return attempt(world.log.flush)

    def apply_to_model(self, model: LogModel, outcome: object) -> None:
        """See `Operation`."""
        assert outcome == model.end_offset, f"flush answers {outcome}, not {model.end_offset}"
        model.flushed_offset = model.end_offset


@dataclass(frozen=True, slots=True, kw_only=True)
class TruncateSuffix(Operation):
    """The tail is dropped, even with a flush in flight, and even below the flushed offset."""

    weight = 3
    crash_weight = 3
    to_offset: int

    @classmethod
    def draw(cls, world: World, rng: random.Random) -> TruncateSuffix:
        """See `Operation`; most truncations are near the end, none in the compacted part, some below the log start."""
        model = world.model
        if rng.randrange(6) == 0:
            return cls(to_offset=model.end_offset)
        lowest = max(model.floor_offset, model.compacted_to)
        if lowest == model.prefix_target and rng.randrange(4) == 0:
            return cls(to_offset=rng.randint(max(0, lowest - 4), lowest))
        if rng.randrange(4):
            lowest = max(lowest, model.end_offset - 12)
        elif lowest == model.floor_offset:
            lowest = max(0, lowest - rng.choice((0, 0, 3)))
        return cls(to_offset=rng.randint(min(lowest, model.end_offset), model.end_offset + 1))

    def announce(self, model: LogModel) -> None:
        """See `Operation`."""
        if model.floor_offset <= self.to_offset < model.end_offset:
            model.announce_truncation(self.to_offset)

    def apply_to_log(self, world: World) -> object:
        """See `Operation`."""
        return attempt(partial(world.log.truncate_suffix, self.to_offset))

    def apply_to_model(self, model: LogModel, outcome: object) -> None:
        """See `Operation`."""
        if self.to_offset < model.floor_offset:
            assert outcome is OffsetOutOfRangeError, f"a cut below the log start is answered with {outcome}"
            return
        if model.truncating_to is not None:
            model.truncate()
        else:
            # Only a leader epoch that was assigned at the log end and has no record.
            model.forget_epochs(self.to_offset)
        assert outcome == model.end_offset, f"the log ends at {outcome}, not at {model.end_offset}"

    def after(self, world: World, rng: random.Random) -> None:
        """Check that no look-up finds anything of the tail."""
        world.model.settle_producers(world.seen_producers())
        world.check_in_depth()


@dataclass(frozen=True, slots=True, kw_only=True)
class Read(Operation):
    """A read by offset: whole batches byte for byte, from the one that holds the offset on."""

    weight = 6
    crash_weight = 0
    offset: int
    max_bytes: int
    end_offset: int

    @classmethod
    def is_possible(cls, world: World) -> bool:
        """See `Operation`; a failed disk can still be read."""
        return True

    @classmethod
    def draw(cls, world: World, rng: random.Random) -> Read:
        """See `Operation`."""
        model = world.model
        return cls(
            offset=rng.randint(max(0, model.start_offset - rng.choice((0, 0, 0, 2))), model.end_offset),
            max_bytes=rng.choice((1, 100, 700, 10_000)),
            end_offset=rng.choice((model.end_offset, model.flushed_offset, rng.randint(0, model.end_offset + 1))),
        )

    def apply_to_log(self, world: World) -> object:
        """See `Operation`."""
        return attempt(partial(world.log.read, self.offset, self.max_bytes, end_offset=self.end_offset))

    def apply_to_model(self, model: LogModel, outcome: object) -> None:
        """See `Operation`; the model does not know where a segment ends."""
        if self.offset < model.start_offset:
            assert outcome is OffsetOutOfRangeError, f"a read below the log start is answered with {outcome}"
            return
        assert isinstance(outcome, LogRead), f"{outcome}"
        expected = model.readable_from(self.offset, end_offset=self.end_offset)
        if not outcome.data:
            assert not expected, f"nothing is read at {self.offset}, but {expected[0].header} stands there"
            return
        got = list(read_batches(outcome.data))
        assert outcome.data == b"".join(batch.data for batch in expected[: len(got)]), "other bytes"
        assert outcome.next_offset == got[-1].next_offset, f"a read goes on at {outcome.next_offset}"
        assert len(got) == 1 or len(outcome.data) <= self.max_bytes, f"{len(outcome.data)} bytes"


@dataclass(frozen=True, slots=True, kw_only=True)
class FindTimestamp(Operation):
    """A look-up by time."""

    weight = 4
    crash_weight = 0
    timestamp_ms: int
    end_offset: int

    @classmethod
    def is_possible(cls, world: World) -> bool:
        """See `Operation`; a failed disk can still be read."""
        return True

    @classmethod
    def draw(cls, world: World, rng: random.Random) -> FindTimestamp:
        """See `Operation`."""
        end = world.model.end_offset
        timestamp_ms = rng.randint(0, 1_500 + 10 * end)
        if world.model.batches:
            timestamp_ms = rng.choice((timestamp_ms, rng.choice(world.model.batches).header.max_timestamp_ms))
        timestamp_ms = max(0, timestamp_ms + rng.choice((-1, 0, 0, 1)))
        return cls(timestamp_ms=timestamp_ms, end_offset=rng.choice((end, rng.randint(0, end))))

    def apply_to_log(self, world: World) -> object:
        """See `Operation`."""
        return world.log.find_timestamp(self.timestamp_ms, end_offset=self.end_offset)

    def apply_to_model(self, model: LogModel, outcome: object) -> None:
        """See `Operation`."""
        expected = model.find_timestamp(self.timestamp_ms, end_offset=self.end_offset)
        assert outcome == expected, f"found {outcome}, not {expected}"


@dataclass(frozen=True, slots=True, kw_only=True)
class AssignEpoch(Operation):
    """A leader epoch begins at the log end, without a record."""

    weight = 1
    crash_weight = 0
    leader_epoch: int

    @classmethod
    def draw(cls, world: World, rng: random.Random) -> AssignEpoch:
        """See `Operation`."""
        return cls(leader_epoch=draw_epoch(world.model, rng))

    def apply_to_log(self, world: World) -> object:
        """See `Operation`."""
        return world.log.assign_epoch(self.leader_epoch)

    def apply_to_model(self, model: LogModel, outcome: object) -> None:
        """See `Operation`."""
        model.assign_epoch(self.leader_epoch, model.end_offset)


@dataclass(frozen=True, slots=True, kw_only=True)
class LeadInVain(Operation):
    """A leader appends nothing in its epoch, a flush saves the epoch, and as a follower the log forgets it."""

    weight = 2
    leader_epoch: int

    @classmethod
    def is_possible(cls, world: World) -> bool:
        """See `Operation`; no group may be in flight, and no removal, which may go beyond the log end."""
        return world.is_writable and world.work is None and world.prefix is None

    @classmethod
    def draw(cls, world: World, rng: random.Random) -> LeadInVain:
        """See `Operation`."""
        return cls(leader_epoch=draw_epoch(world.model, rng) + 1)

    def apply_to_log(self, world: World) -> object:
        """See `Operation`."""
        world.log.assign_epoch(self.leader_epoch)
        world.log.flush()
        return attempt(partial(world.log.truncate_suffix, world.log.log_end_offset))

    def apply_to_model(self, model: LogModel, outcome: object) -> None:
        """See `Operation`."""
        assert outcome == model.end_offset, f"the log ends at {outcome}, not at {model.end_offset}"
        model.flushed_offset = model.end_offset
        model.forget_epochs(model.end_offset)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckInDepth(Operation):
    """Compare everything."""

    weight = 1
    crash_weight = 0

    @classmethod
    def draw(cls, world: World, rng: random.Random) -> CheckInDepth:
        """See `Operation`."""
        return cls()

    def apply_to_log(self, world: World) -> object:
        """See `Operation`."""
        world.check_in_depth()
        return None

    def apply_to_model(self, model: LogModel, outcome: object) -> None:
        """See `Operation`."""


OPERATIONS: tuple[type[Operation], ...] = (
    Append,
    AppendRun,
    AppendToFullDisk,
    AppendAsFollower,
    BeginFlush,
    RunFlush,
    EndFlush,
    FlushAll,
    TruncateSuffix,
    Read,
    FindTimestamp,
    AssignEpoch,
    LeadInVain,
    CheckInDepth,
    RestartAt,
    *PREFIX_OPERATIONS,
    *COMPACTION_OPERATIONS,
    *SCRUB_OPERATIONS,
    *TRANSACTION_OPERATIONS,
)
"""All operations; add a new one here."""
