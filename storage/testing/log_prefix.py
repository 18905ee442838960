# SPDX-License-Identifier: Apache-2.0
"""The head of a log as operations of the model test: DeleteRecords, retention, rolls by age, `.deleted` files, idle producers.

Law: retention may remove what `model_retention` says. The log reports its start afterwards, and the model judges it.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from storage.errors import DiskFailedError, DiskFullError, OffsetOutOfRangeError
from storage.testing.log_model import LogModel
from storage.testing.log_world import FAR_OFFSET, Operation, World, attempt
from storage.testing.model_retention import RetentionRule, is_too_large, is_too_old, removable_ends
from storage.testing.sim_disk import Refusal

FULL_PLACES = (("create_file", "log-start"), ("create_file", ".log"), ("write", "log-start"), ("append", "log-start"))
"""Calls of a removal that find no space."""
CLOCK_STEPS_MS = (100, 300, 1_000, 4_000, 20_000)


class Moved(NamedTuple):
    """The answer of a call, and the log start after it."""

    answer: object
    start_offset: int


class Expired(NamedTuple):
    """How many producers a log has forgotten, which it still knows, and whether the clock ever went back."""

    gone_count: int
    left: frozenset[int]
    clock_went_back: bool


def follow(model: LogModel, moved: Moved) -> None:
    """Adopt the log start after a removal that succeeded or failed.

    Raises:
        AssertionError: it is neither the old nor a legal new one.
    """
    found, asked = moved.start_offset, model.legal_starts
    assert found in {model.start_offset, *asked}, f"the log starts at {found}, not at one of {sorted(asked)}"
    if moved.answer is DiskFullError or moved.answer is DiskFailedError:
        # The requested log start may be on the device, or get there later.
        model.failed_starts |= asked
    model.begin_at(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class TruncatePrefix(Operation):
    """A truncation of the prefix (DeleteRecords); sometimes the disk is full."""

    weight = 2
    crash_weight = 2
    to_offset: int
    refused: tuple[str, str, Refusal] | None = None

    @classmethod
    def is_possible(cls, world: World) -> bool:
        """See `Operation`; one removal at a time."""
        return world.is_writable and world.prefix is None

    @classmethod
    def draw(cls, world: World, rng: random.Random) -> TruncatePrefix:
        """See `Operation`; most remove little, also inside a batch; some remove everything, or go beyond the end."""
        start, end = world.model.start_offset, world.model.end_offset
        refused = (*rng.choice(FULL_PLACES), Refusal.FULL) if rng.randrange(8) == 0 else None
        if world.work is None and rng.randrange(40) == 0:
            refused = ("sync", "log-start", Refusal.IO_ERROR)
        to_offset = start + rng.randrange(6)
        if rng.randrange(4) == 0:
            to_offset = rng.choice((rng.randint(max(0, start - 2), end + 1), end))
        return cls(to_offset=to_offset, refused=refused)

    def announce(self, model: LogModel) -> None:
        """See `Operation`."""
        if model.start_offset < self.to_offset <= model.end_offset:
            model.legal_starts = frozenset({self.to_offset})

    def apply_to_log(self, world: World) -> object:
        """See `Operation`."""
        if self.refused is not None:
            world.disk.refuse(*self.refused)
        answer = attempt(partial(world.log.truncate_prefix, self.to_offset, world.now_ms))
        world.disk.forgive()
        return Moved(answer, world.log.log_start_offset)

    def apply_to_model(self, model: LogModel, outcome: object) -> None:
        """See `Operation`."""
        assert isinstance(outcome, Moved), f"{outcome}"
        if self.to_offset > model.end_offset:
            assert outcome.answer is OffsetOutOfRangeError, f"a removal beyond the end is answered with {outcome}"
        elif outcome.answer is DiskFullError or outcome.answer is DiskFailedError:
            assert self.refused is not None, f"no fault was injected, it answers {outcome}"
        else:
            expected = max(self.to_offset, model.start_offset)
            assert outcome == (expected, expected), f"the log begins at {outcome}, not at {expected}"
        follow(model, outcome)

    def after(self, world: World, rng: random.Random) -> None:
        """Check that no look-up finds anything below the log start."""
        world.check_in_depth()


@dataclass(frozen=True, slots=True, kw_only=True)
class BeginPrefix(Operation):
    """The first part of a removal that waits for the device in another thread."""

    weight = 2
    crash_weight = 0
    to_offset: int

    @classmethod
    def is_possible(cls, world: World) -> bool:
        """See `Operation`; one removal at a time."""
        return world.is_writable and world.prefix is None

    @classmethod
    def draw(cls, world: World, rng: random.Random) -> BeginPrefix:
        """See `Operation`."""
        model = world.model
        return cls(to_offset=rng.randint(model.start_offset, min(model.end_offset, model.start_offset + 8)))

    def apply_to_log(self, world: World) -> object:
        """See `Operation`."""
        world.prefix = world.log.begin_prefix(self.to_offset)
        return world.prefix.to_offset

    def apply_to_model(self, model: LogModel, outcome: object) -> None:
        """See `Operation`; nothing moves yet."""
        assert outcome == self.to_offset, f"the removal goes to {outcome}"
        model.prefix_target = self.to_offset


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPrefix(Operation):
    """The part of a removal for another thread; afterwards the new log start is on the device."""

    weight = 4
    crash_weight = 2

    @classmethod
    def is_possible(cls, world: World) -> bool:
        """See `Operation`."""
        return world.is_writable and world.prefix is not None and not world.prefix.is_done

    @classmethod
    def draw(cls, world: World, rng: random.Random) -> RunPrefix:
        """See `Operation`."""
        return cls()

    def announce(self, model: LogModel) -> None:
        """See `Operation`."""
        if model.prefix_target is not None:
            model.legal_starts = frozenset({model.prefix_target})

    def apply_to_log(self, world: World) -> object:
        """See `Operation`."""
        assert world.prefix is not None, "no removal is in flight"
        return attempt(world.prefix.run)

    def apply_to_model(self, model: LogModel, outcome: object) -> None:
        """See `Operation`."""
        assert outcome is None, f"the removal fails with {outcome}"
        assert model.prefix_target is not None, "no removal is in flight"
        model.durable_start = model.prefix_target


@dataclass(frozen=True, slots=True, kw_only=True)
class EndPrefix(Operation):
    """The last part of a removal: segments wholly below the new log start are removed, even if the log was truncated since."""

    weight = 4
    crash_weight = 2

    @classmethod
    def is_possible(cls, world: World) -> bool:
        """See `Operation`."""
        return world.is_writable and world.prefix is not None and world.prefix.is_done

    @classmethod
    def draw(cls, world: World, rng: random.Random) -> EndPrefix:
        """See `Operation`."""
        return cls()

    def apply_to_log(self, world: World) -> object:
        """See `Operation`."""
        work, world.prefix = world.prefix, None
        assert work is not None, "no removal is in flight"
        answer = attempt(partial(world.log.end_prefix, work, world.now_ms))
        return Moved(answer, world.log.log_start_offset)

    def apply_to_model(self, model: LogModel, outcome: object) -> None:
        """See `Operation`."""
        assert isinstance(outcome, Moved), f"{outcome}"
        target, model.prefix_target = model.prefix_target, None
        assert isinstance(outcome.answer, int), f"the removal answers {outcome}"
        assert target is not None, "no removal is in flight"
        assert outcome.start_offset == target, f"the log starts at {outcome}, not at {target}"
        model.begin_at(target)

    def after(self, world: World, rng: random.Random) -> None:
        """Check that no look-up finds anything below the log start."""
        world.model.settle_producers(world.seen_producers())
        world.check_in_depth()


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplyRetention(Operation):
    """Segments that are old enough, or too many, are removed, but none beyond the high watermark."""

    weight = 4
    crash_weight = 2
    high_watermark: int
    rule: RetentionRule
    segment_bytes: int

    @classmethod
    def is_possible(cls, world: World) -> bool:
        """See `Operation`; one removal at a time."""
        return world.is_writable and world.prefix is None

    @classmethod
    def draw(cls, world: World, rng: random.Random) -> ApplyRetention:
        """See `Operation`."""
        model, settings = world.model, world.settings
        high_watermark = rng.choice((model.end_offset, model.flushed_offset, rng.randint(0, model.end_offset)))
        rule = RetentionRule(
            high_watermark=high_watermark,
            first_base=world.log.segments[0].base_offset,
            active_base=world.active_base,
            now_ms=world.now_ms,
            retention_ms=settings.retention_ms,
            retention_bytes=settings.retention_bytes,
        )
        return cls(high_watermark=high_watermark, rule=rule, segment_bytes=settings.segment_bytes)

    def announce(self, model: LogModel) -> None:
        """See `Operation`."""
        model.legal_starts = frozenset(removable_ends(model.batches, self.rule))

    def apply_to_log(self, world: World) -> object:
        """See `Operation`."""
        answer = attempt(partial(world.log.apply_retention, self.high_watermark, self.rule.now_ms))
        return Moved(answer, world.log.log_start_offset)

    def apply_to_model(self, model: LogModel, outcome: object) -> None:
        """See `Operation`."""
        assert isinstance(outcome, Moved), f"{outcome}"
        assert isinstance(outcome.answer, int), f"retention answers {outcome}"
        moves = outcome.start_offset > model.start_offset
        assert moves <= (outcome.answer > 0), f"{outcome.answer} segments went, the log starts at {outcome}"
        follow(model, outcome)
        too_large = is_too_large(model.batches, self.rule, segment_bytes=self.segment_bytes)
        assert not too_large, f"retention left {sum(len(each.data) for each in model.batches)} bytes"
        assert not is_too_old(model.batches, self.rule), "retention left records that are all too old"

    def after(self, world: World, rng: random.Random) -> None:
        """Check that no look-up finds anything below the log start."""
        world.check_in_depth()


@dataclass(frozen=True, slots=True, kw_only=True)
class RollIfDue(Operation):
    """An old segment is sealed without an append; readers see no difference."""

    weight = 4

    @classmethod
    def draw(cls, world: World, rng: random.Random) -> RollIfDue:
        """See `Operation`."""
        return cls()

    def apply_to_log(self, world: World) -> object:
        """See `Operation`."""
        return attempt(partial(world.log.roll_if_due, world.now_ms))

    def apply_to_model(self, model: LogModel, outcome: object) -> None:
        """See `Operation`."""
        assert isinstance(outcome, bool), f"{outcome}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveDeleted(Operation):
    """Removed files are deleted after their delay, and not before (`World` checks that)."""

    weight = 3

    @classmethod
    def draw(cls, world: World, rng: random.Random) -> RemoveDeleted:
        """See `Operation`."""
        return cls()

    def apply_to_log(self, world: World) -> object:
        """See `Operation`."""
        return attempt(partial(world.log.remove_deleted, world.now_ms))

    def apply_to_model(self, model: LogModel, outcome: object) -> None:
        """See `Operation`."""
        assert isinstance(outcome, int), f"{outcome}"

    def after(self, world: World, rng: random.Random) -> None:
        """Check that all files whose delay is over are gone."""
        delay_ms = world.settings.file_delete_delay_ms
        late = [path for path, since_ms in world.deleted_ms.items() if world.now_ms - since_ms >= delay_ms]
        assert not late or world.clock_went_back, f"not removed after {delay_ms} ms: {late}"


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveClock(Operation):
    """Time passes, or the wall clock is set back."""

    weight = 4
    crash_weight = 0
    step_ms: int

    @classmethod
    def is_possible(cls, world: World) -> bool:
        """See `Operation`."""
        return True

    @classmethod
    def draw(cls, world: World, rng: random.Random) -> MoveClock:
        """See `Operation`."""
        return cls(step_ms=rng.choice(CLOCK_STEPS_MS) if rng.randrange(25) else -rng.choice(CLOCK_STEPS_MS[:3]))

    def apply_to_log(self, world: World) -> object:
        """See `Operation`."""
        world.now_ms = max(1, world.now_ms + self.step_ms)
        world.clock_went_back = world.clock_went_back or self.step_ms < 0

    def apply_to_model(self, model: LogModel, outcome: object) -> None:
        """See `Operation`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpireProducers(Operation):
    """Idle producers are forgotten, except those in a transaction."""

    weight = 2
    crash_weight = 0
    expiration_ms: int

    @classmethod
    def draw(cls, world: World, rng: random.Random) -> ExpireProducers:
        """See `Operation`."""
        return cls(expiration_ms=rng.choice((500, 5_000, 50_000)))

    def apply_to_log(self, world: World) -> object:
        """See `Operation`."""
        count = world.log.producers.expire(world.now_ms, self.expiration_ms)
        return Expired(count, frozenset(world.seen_producers()), world.clock_went_back)

    def apply_to_model(self, model: LogModel, outcome: object) -> None:
        """See `Operation`."""
        assert isinstance(outcome, Expired), f"{outcome}"
        gone = model.producers.keys() - outcome.left
        assert len(gone) == outcome.gone_count, f"{outcome}, before: {model.producers.keys()}"
        assert outcome.left <= model.producers.keys(), f"{outcome}, before: {model.producers.keys()}"
        transactions = model.transactions()
        # A filler does not count: its records were aborted, and a crash may have lost the end that says so.
        waiting = {
            batch.header.producer_id
            for batch in model.batches
            if batch.header.is_transactional
            and batch.header.base_offset >= transactions.open.get(batch.header.producer_id, FAR_OFFSET)
        }
        assert not gone & waiting, f"producers {gone & waiting} are forgotten in a transaction"
        for producer_id in gone:
            known = {header.base_offset for header in model.producers[producer_id].batches}
            times_ms = [each.appended_ms for each in model.history if each.header.base_offset in known]
            idle_ms = model.now_ms - max(times_ms, default=0)
            assert idle_ms > self.expiration_ms or outcome.clock_went_back, (
                f"producer {producer_id} was idle for {idle_ms} ms"
            )
            del model.producers[producer_id]
            model.forgotten_at[producer_id] = model.end_offset


PREFIX_OPERATIONS: tuple[type[Operation], ...] = (
    TruncatePrefix,
    BeginPrefix,
    RunPrefix,
    EndPrefix,
    ApplyRetention,
    RollIfDue,
    RemoveDeleted,
    MoveClock,
    ExpireProducers,
)
"""The operations on the head of a log."""
