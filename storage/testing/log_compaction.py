# SPDX-License-Identifier: Apache-2.0
"""Compaction as operations of the model test: a whole pass at once, or step by step with other operations in between.

`model_compaction` judges what a reader sees after each swap. A power failure may come at any call of a pass. A pass
gets a high watermark, and from then on nothing below its end is truncated, as a high watermark guarantees.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from lograft.wire.limits import MAX_RECORDS_PER_BATCH

from storage.compaction.owner import LogCompaction
from storage.compaction.pass_ import CompactionPass
from storage.compaction.plan import find_range
from storage.errors import DiskFullError, StorageError
from storage.testing.log_model import LogModel, take_run
from storage.testing.log_world import Operation, World
from storage.testing.model_batch import CompactionRule
from storage.testing.sim_disk import Refusal

FULL_PLACES = (
    ("create_file", ".cleaned"),
    ("append", ".cleaned"),
    ("rename", ".cleaned"),
    ("create_file", "cleaner-checkpoint"),
)
"""Calls of a pass that find no space."""


class Passed(NamedTuple):
    """The result of a step of a pass: the end of the pass (None: nothing is due), all bytes of the log, and an error."""

    end_offset: int | None
    found: bytes
    error: type[StorageError] | None


def _no_pace(size_bytes: int) -> None:
    """No rate limit."""
    assert size_bytes > 0, "a read of nothing"


def draw_rule(world: World, rng: random.Random) -> CompactionRule:
    """Return the rule for a pass that begins now."""
    model = world.model
    high_watermark = model.flushed_offset
    if rng.randrange(3) == 0:
        high_watermark = rng.randint(min(model.compacted_to, model.flushed_offset), model.flushed_offset)
    transactions = model.transactions()
    for batch in model.batches:
        header = batch.header
        first_offset = transactions.open.get(header.producer_id) if header.is_transactional else None
        if first_offset is not None and header.base_offset >= first_offset and not header.is_control:
            high_watermark = min(high_watermark, header.base_offset)
    return CompactionRule(
        now_ms=world.now_ms,
        end_offset=high_watermark,
        retention_ms=world.settings.delete_retention_ms,
        min_lag_ms=world.settings.min_compaction_lag_ms,
        aborted=frozenset(batch.header.base_offset for batch in model.batches if transactions.is_aborted(batch.header)),
        producers=frozenset(model.producers),
        known=tuple(header for window in model.producers.values() for header in window.batches),
    )


def begin_pass(world: World, rule: CompactionRule) -> tuple[CompactionPass, int] | None:
    """Begin a pass if the log is due; return it and its end."""
    compaction = LogCompaction(world.log)
    rules = compaction.rules
    assert rules is not None, "the log is not compacted"
    chosen = find_range(compaction.facts(rule.end_offset), rules, rule.now_ms)
    if chosen is None:
        return None
    task = compaction.begin(chosen, now_ms=rule.now_ms, max_keys=MAX_RECORDS_PER_BATCH)
    return CompactionPass(world.log.disk, task, _no_pace), chosen.end_offset


def steps_of(world: World, work: CompactionPass) -> Iterator[CompactionPass]:
    """Run a pass, with a break after each step between which other calls may come."""
    work.build()
    yield work
    for group in work.groups():
        cleaned = work.clean(group)
        if cleaned is None:
            continue
        yield work
        if not world.log.swap(cleaned, now_ms=world.now_ms):
            return
        yield work
    LogCompaction(world.log).end(work.outcome())


def follow_swaps(model: LogModel, outcome: object, rule: CompactionRule) -> None:
    """Judge the content of the log after swaps, and adopt it.

    Raises:
        AssertionError: the log breaks a law.
    """
    assert isinstance(outcome, Passed), f"{outcome}"
    model.compacting = None
    model.batches = take_run(model.compacted(model.batches, outcome.found, rule), outcome.found)
    if outcome.end_offset is not None:
        assert outcome.end_offset <= rule.end_offset, f"the pass goes to {outcome.end_offset}, beyond {rule.end_offset}"
        model.compacted_to = max(model.compacted_to, outcome.end_offset)


@dataclass(frozen=True, slots=True, kw_only=True)
class Compact(Operation):
    """A whole pass, if one is due; sometimes the disk is full."""

    weight = 5
    crash_weight = 5
    rule: CompactionRule
    refused: tuple[str, str, Refusal] | None = None

    @classmethod
    def is_possible(cls, world: World) -> bool:
        """See `Operation`: one pass at a time."""
        return world.is_writable and world.settings.compact and world.pass_steps is None

    @classmethod
    def draw(cls, world: World, rng: random.Random) -> Compact:
        """See `Operation`."""
        refused = (*rng.choice(FULL_PLACES), Refusal.FULL) if rng.randrange(8) == 0 else None
        return cls(rule=draw_rule(world, rng), refused=refused)

    def announce(self, model: LogModel) -> None:
        """See `Operation`."""
        model.compacting = self.rule

    def apply_to_log(self, world: World) -> object:
        """See `Operation`."""
        begun = begin_pass(world, self.rule)
        error: type[StorageError] | None = None
        if begun is not None:
            if self.refused is not None:
                world.disk.refuse(*self.refused)
            try:
                for _ in steps_of(world, begun[0]):
                    pass
            except StorageError as raised:
                error = type(raised)
            world.disk.forgive()
        return Passed(None if begun is None else begun[1], world.read_bytes(), error)

    def apply_to_model(self, model: LogModel, outcome: object) -> None:
        """See `Operation`."""
        follow_swaps(model, outcome, self.rule)
        assert isinstance(outcome, Passed), f"{outcome}"
        expected = DiskFullError if self.refused is not None else None
        assert outcome.error in (None, expected), f"the pass fails with {outcome.error}"

    def after(self, world: World, rng: random.Random) -> None:
        """Check that look-ups by time and the producer state match the present content."""
        world.check_in_depth()


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactStep(Operation):
    """One step of a pass: begin, build the map, write a group, or swap it in."""

    weight = 8
    crash_weight = 4
    rule: CompactionRule

    @classmethod
    def is_possible(cls, world: World) -> bool:
        """See `Operation`."""
        return world.is_writable and world.settings.compact

    @classmethod
    def draw(cls, world: World, rng: random.Random) -> CompactStep:
        """See `Operation`; a pass under way keeps the rule from its beginning."""
        return cls(rule=draw_rule(world, rng) if world.pass_rule is None else world.pass_rule)

    def announce(self, model: LogModel) -> None:
        """See `Operation`."""
        model.compacting = self.rule

    def apply_to_log(self, world: World) -> object:
        """See `Operation`."""
        end_offset: int | None = None
        error: type[StorageError] | None = None
        if world.pass_steps is None:
            begun = begin_pass(world, self.rule)
            if begun is not None:
                work, end_offset = begun
                # Beyond the chosen end the log may be truncated and grow again during the pass.
                world.pass_steps = steps_of(world, work)
                world.pass_rule = replace(self.rule, end_offset=end_offset)
        else:
            try:
                is_over = next(world.pass_steps, None) is None
            except StorageError as raised:
                # The segment that it read was removed; the cleaner reports that and tries again later.
                error, is_over = type(raised), True
            if is_over:
                world.pass_steps = world.pass_rule = None
        return Passed(end_offset, world.read_bytes(), error)

    def apply_to_model(self, model: LogModel, outcome: object) -> None:
        """See `Operation`."""
        follow_swaps(model, outcome, self.rule)

    def after(self, world: World, rng: random.Random) -> None:
        """Check that look-ups by time and the producer state match the present content."""
        assert world.is_writable, "no fault was injected"
        world.check_in_depth()


COMPACTION_OPERATIONS: tuple[type[Operation], ...] = (Compact, CompactStep)
"""The operations of a cleaner."""
