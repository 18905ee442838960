# SPDX-License-Identifier: Apache-2.0
"""Scrubs as operations of the model test: they find no damage in an undamaged log, change nothing for a reader, and seal.

Law: after a scrub whose segment has not changed, the segment has a seal of exactly its bytes, whatever seal it had
before.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

from lograft.wire.checksum import crc32c

from storage.files.names import LOG_SUFFIX, SEAL_SUFFIX
from storage.files.rate_limit import RateLimit
from storage.maintenance.scrub import ScrubOutcome, ScrubWork
from storage.segment.seal import SEAL_CHUNK_BYTES, MalformedSealError, decode_seal, encode_seal
from storage.testing.log_model import LogModel
from storage.testing.log_world import DIRECTORY, Operation, World

INTERVAL_MS = 200
"""Milliseconds after which a segment is scrubbed again."""


def _no_rate() -> RateLimit:
    return RateLimit(10**9, now_ms=lambda: 0, wait_ms=lambda _: False)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunScrub(Operation):
    """A sealed segment is checked beside the log; the result waits for its owner."""

    weight = 4
    crash_weight = 0

    @classmethod
    def is_possible(cls, world: World) -> bool:
        """See `Operation`."""
        return world.is_writable and world.scrubbed is None

    @classmethod
    def draw(cls, world: World, rng: random.Random) -> RunScrub:
        """See `Operation`."""
        return cls()

    def apply_to_log(self, world: World) -> object:
        """See `Operation`."""
        work = world.scrub.begin(flushed_offset=world.log.flushed_offset, now_ms=world.now_ms, interval_ms=INTERVAL_MS)
        if work is not None:
            work.run(_no_rate())
            world.scrubbed = work
        return work

    def apply_to_model(self, model: LogModel, outcome: object) -> None:
        """See `Operation`."""
        if isinstance(outcome, ScrubWork):
            assert outcome.error is None, f"the scrub fails with {outcome.error}"
            assert outcome.result is not None, "the scrub did not end"
            assert not outcome.result.found, f"damage was invented: {outcome.result.found}"


@dataclass(frozen=True, slots=True, kw_only=True)
class EndScrub(Operation):
    """A scrub result is given back, even if the segment was removed or changed since."""

    weight = 8

    @classmethod
    def is_possible(cls, world: World) -> bool:
        """See `Operation`."""
        return world.is_writable and world.scrubbed is not None

    @classmethod
    def draw(cls, world: World, rng: random.Random) -> EndScrub:
        """See `Operation`."""
        return cls()

    def apply_to_log(self, world: World) -> object:
        """See `Operation`."""
        work, world.scrubbed = world.scrubbed, None
        assert work is not None, "no scrub ran"
        outcome = world.scrub.end(work, flushed_offset=world.log.flushed_offset, now_ms=world.now_ms)
        if not outcome.stale:
            check_seal(world, work)
        return outcome

    def apply_to_model(self, model: LogModel, outcome: object) -> None:
        """See `Operation`."""
        assert isinstance(outcome, ScrubOutcome), f"{outcome}"
        assert not outcome.damaged, f"damage was invented: {outcome.damaged}"

    def after(self, world: World, rng: random.Random) -> None:
        """Check that a reader sees no difference."""
        world.check_in_depth()


def check_seal(world: World, work: ScrubWork) -> None:
    """Compare the seal of a scrubbed segment with its bytes.

    Raises:
        AssertionError: it is a seal of other bytes.
    """
    content = world.disk.read_file(work.task.path)
    seal = decode_seal(world.disk.read_file(work.task.seal_path))
    assert seal.fits(log_bytes=len(content), end_offset=work.task.end_offset), f"a stale seal stands: {seal}"
    found = tuple(crc32c(content[at : at + SEAL_CHUNK_BYTES]) for at in range(0, len(content), SEAL_CHUNK_BYTES))
    assert (seal.log_bytes, seal.end_offset, seal.chunk_crcs) == (len(content), work.task.end_offset, found), f"{seal}"


@dataclass(frozen=True, slots=True, kw_only=True)
class StaleSeal(Operation):
    """The device brings back the seal of an older segment of the same name. It is a cache, so it must have no effect."""

    weight = 6
    crash_weight = 0
    base: int
    less_bytes: int

    @classmethod
    def is_possible(cls, world: World) -> bool:
        """See `Operation`; there must be a seal."""
        return world.is_writable and world.scrubbed is None and bool(_sealed(world))

    @classmethod
    def draw(cls, world: World, rng: random.Random) -> StaleSeal:
        """See `Operation`."""
        return cls(base=rng.choice(_sealed(world)), less_bytes=rng.choice((1, 30)))

    def apply_to_log(self, world: World) -> object:
        """See `Operation`; the log does not notice the call."""
        path = f"{DIRECTORY}/{self.base:020d}{SEAL_SUFFIX}"
        try:
            seal = decode_seal(world.disk.read_file(path))
        except MalformedSealError:
            return
        shorter = replace(seal, log_bytes=max(1, seal.log_bytes - self.less_bytes))
        world.disk.corrupt(path, 0, encode_seal(shorter))

    def apply_to_model(self, model: LogModel, outcome: object) -> None:
        """See `Operation`."""


def _sealed(world: World) -> list[int]:
    """Return the base offsets of the segments with a seal."""
    names = world.names()
    bases = {name[: -len(LOG_SUFFIX)] for name in names if name.endswith(LOG_SUFFIX)}
    return [
        int(name[: -len(SEAL_SUFFIX)])
        for name in names
        if name.endswith(SEAL_SUFFIX) and name[: -len(SEAL_SUFFIX)] in bases
    ]


SCRUB_OPERATIONS: tuple[type[Operation], ...] = (RunScrub, EndScrub, StaleSeal)
"""The operations of a scrub."""
