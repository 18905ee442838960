# SPDX-License-Identifier: Apache-2.0
"""Appends as operations of the model test: by a leader, by a follower, to a full disk; and the batches for them."""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import partial

from lograft.wire.batch import check_batch, encode_batch, read_header
from lograft.wire.limits import MAX_BATCH_BYTES

from storage.errors import DiskFullError, OutOfOrderOffsetError, OutOfOrderSequenceError, ProducerFencedError
from storage.testing.builders import ProducerStamp, headed
from storage.testing.log_model import SEQUENCE_COUNT, LogModel, ModelBatch, Refused
from storage.testing.log_world import Operation, World, attempt
from storage.testing.sim_disk import Refusal
from storage.types import Appended

PRODUCER_IDS = (1, 2, 3)
KEYS = (b"", b"a", b"b", b"c", b"d", b"long" * 20)
VALUE_BYTES = (0, 3, 10, 10, 40, 450, 1_300)
"""Sizes of values: many in one sector, one over several sectors."""
REFUSALS = {Refused.FENCED: ProducerFencedError, Refused.OUT_OF_ORDER: OutOfOrderSequenceError}
FULL_PLACES = (("append", ".log"), ("create_file", ".log"), ("append", ".tmp"), ("create_file", ".index.tmp"))
"""Disk calls that find no space."""


class SentBatch(bytes):
    """A client's batch with a short `repr`."""

    def __repr__(self) -> str:
        header = read_header(self)
        producer = f"{header.producer_id}/{header.producer_epoch}/{header.base_sequence}"
        return f"<{header.record_count} records, {len(self)} bytes, producer {producer}>"


def draw_batch(model: LogModel, rng: random.Random) -> bytes:
    """Return a client's batch with any producer, and its next sequence, an old one or a wrong one."""
    count = rng.choice((1, 1, 2, 3))
    values: list[bytes | None] = [rng.randbytes(1) * rng.choice(VALUE_BYTES) for _ in range(count)]
    keys = draw_keys(values, rng)
    base_ms = max(model.now_ms, 1_000 + 10 * model.end_offset) + rng.choice((0, 0, 0, -300, 400))
    timestamps_ms = [max(0, base_ms + rng.randrange(20)) for _ in range(count)]
    kind = rng.randrange(20)
    if kind < 6:
        return SentBatch(encode_batch(values, keys=keys, timestamps_ms=timestamps_ms))
    if kind == 6:
        return SentBatch(encode_batch(values[:1], timestamps_ms=timestamps_ms[:1], control=True))
    producer_id = rng.choice(PRODUCER_IDS)
    window = model.producers.get(producer_id)
    known = [batch for batch in model.history if batch.header.producer_id == producer_id]
    if known and kind < 10:
        return SentBatch(rng.choice(known[-20:]).data)
    producer_epoch = window.producer_epoch if window is not None else rng.randrange(2)
    base_sequence = window.next_sequence if window is not None else rng.choice((0, 0, 7, SEQUENCE_COUNT - 2))
    if kind == 10:
        producer_epoch = max(0, producer_epoch + rng.choice((-1, 1)))
        base_sequence = rng.choice((0, base_sequence))
    elif kind == 11:
        base_sequence = (base_sequence + rng.choice((-1, 1, 5))) % SEQUENCE_COUNT
    return SentBatch(
        encode_batch(
            values,
            keys=keys,
            timestamps_ms=timestamps_ms,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=base_sequence,
        )
    )


def draw_like_truncated(model: LogModel, rng: random.Random) -> bytes | None:
    """Return a batch as large as the one that was truncated at the log end, most of the time; None: another one.

    So a segment often gets its old size and end again, with other bytes. What describes the old ones must not count.
    """
    truncated = model.appended.get(model.end_offset)
    if truncated is None or truncated.header.is_control or truncated.header.is_filler or rng.randrange(4) == 0:
        return None
    later_ms = rng.choice((0, 0, 300))
    return SentBatch(
        encode_batch(
            [None if each.value is None else rng.randbytes(1) * len(each.value) for each in truncated.records],
            keys=[each.key for each in truncated.records],
            timestamps_ms=[each.timestamp_ms + later_ms for each in truncated.records],
        )
    )


def draw_keys(values: list[bytes | None], rng: random.Random) -> list[bytes | None] | None:
    """Return a key for each record, sometimes None for one of them or for all; some values become tombstones."""
    if rng.randrange(4) == 0:
        return None
    for at in range(len(values)):
        if rng.randrange(4) == 0:
            values[at] = None
    return [rng.choice(KEYS) if rng.randrange(12) else None for _ in values]


def draw_epoch(model: LogModel, rng: random.Random) -> int:
    """Return the log's leader epoch, most of the time. An empty log may have forgotten it, but a cluster never does."""
    known = (
        [batch.header.leader_epoch for batch in model.history[-1:]] if model.last_epoch is None else [model.last_epoch]
    )
    return max(known, default=0) + rng.choice((0, 0, 0, 0, 0, 0, 1, 2))


def plain_batch(count: int, *, size_bytes: int, timestamp_ms: int, producer: ProducerStamp | None) -> bytes:
    """Return a batch for a scenario."""
    return SentBatch(
        encode_batch(
            [b"v" * size_bytes] * count,
            timestamps_ms=timestamp_ms,
            producer_id=producer.producer_id if producer is not None else -1,
            producer_epoch=producer.producer_epoch if producer is not None else -1,
            base_sequence=producer.base_sequence if producer is not None else -1,
        )
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Append(Operation):
    """A leader appends one batch of a client."""

    weight = 24
    batch: bytes
    leader_epoch: int

    @classmethod
    def draw(cls, world: World, rng: random.Random) -> Append:
        """See `Operation`; sometimes the leader epoch goes back."""
        epoch = draw_epoch(world.model, rng)
        if epoch > 0 and rng.randrange(20) == 0 and world.model.last_epoch is not None:
            epoch -= 1
        batch = draw_like_truncated(world.model, rng) or draw_batch(world.model, rng)
        return cls(batch=batch, leader_epoch=epoch)

    def expected(self, model: LogModel) -> tuple[object, list[ModelBatch]]:
        """Return the required answer of the log, and the batches that it must append."""
        if model.last_epoch is not None and self.leader_epoch < model.last_epoch:
            return OutOfOrderOffsetError, []
        header = read_header(self.batch)
        verdict = model.judge(header)
        if isinstance(verdict, Refused):
            return REFUSALS[verdict], []
        if verdict is not None:
            return verdict, []
        stamped = ModelBatch.stamped(
            self.batch, base_offset=model.end_offset, leader_epoch=self.leader_epoch, appended_ms=model.now_ms
        )
        return Appended(stamped.header.base_offset, stamped.header.next_offset, False), [stamped]

    def announce(self, model: LogModel) -> None:
        """See `Operation`."""
        model.announced = self.expected(model)[1]

    def apply_to_log(self, world: World) -> object:
        """See `Operation`."""
        header = check_batch(bytearray(self.batch), max_bytes=MAX_BATCH_BYTES, allow_control=True)
        append = partial(world.log.append_as_leader, bytearray(self.batch), header, leader_epoch=self.leader_epoch)
        return attempt(partial(append, now_ms=world.now_ms))

    def apply_to_model(self, model: LogModel, outcome: object) -> None:
        """See `Operation`."""
        answer, appended = self.expected(model)
        assert outcome == answer, f"the log answers {outcome}, not {answer}"
        if appended:
            model.append(appended)


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendRun(Operation):
    """A leader appends batches of one producer that continue each other; a wrong one ends the run before it."""

    weight = 5
    batches: tuple[bytes, ...]
    leader_epoch: int

    @classmethod
    def draw(cls, world: World, rng: random.Random) -> AppendRun:
        """See `Operation`; the run may begin with batches that the log has, and sometimes a sequence in it is wrong."""
        model = world.model
        producer_id = rng.choice(PRODUCER_IDS)
        window = model.producers.get(producer_id)
        known = window.batches if window is not None else []
        again = known[-rng.randrange(3) :] if known and rng.randrange(4) == 0 else []
        sequence = 0 if window is None else again[0].base_sequence if again else window.next_sequence
        batches: list[bytes] = []
        for number in range(rng.randint(1, 6)):
            count = again[number].last_offset_delta + 1 if number < len(again) else rng.choice((1, 1, 2, 3))
            if rng.randrange(25) == 0:
                sequence = (sequence + rng.choice((-1, 1, 5))) % SEQUENCE_COUNT
            stamp = ProducerStamp(
                producer_id=producer_id,
                producer_epoch=0 if window is None else window.producer_epoch,
                base_sequence=sequence,
            )
            timestamp_ms = max(model.now_ms, 1_000 + 10 * model.end_offset) + rng.choice((0, 0, 0, 400))
            batches.append(
                plain_batch(count, size_bytes=rng.choice(VALUE_BYTES), timestamp_ms=timestamp_ms, producer=stamp)
            )
            sequence = (sequence + count) % SEQUENCE_COUNT
        return cls(batches=tuple(batches), leader_epoch=draw_epoch(model, rng))

    def expected(self, model: LogModel) -> tuple[list[object], list[ModelBatch]]:
        """Return the required answers of the log, up to a refusal, and the batches that it must append."""
        leader = model.copy()
        answers: list[object] = []
        appended: list[ModelBatch] = []
        for batch in self.batches:
            verdict = leader.judge(read_header(batch))
            if isinstance(verdict, Refused):
                return [*answers, REFUSALS[verdict]], appended
            if verdict is None:
                stamped = ModelBatch.stamped(
                    batch,
                    base_offset=leader.end_offset,
                    leader_epoch=self.leader_epoch,
                    appended_ms=model.now_ms,
                )
                leader.append([stamped])
                appended.append(stamped)
                verdict = Appended(stamped.header.base_offset, stamped.header.next_offset, False)
            answers.append(verdict)
        return answers, appended

    def announce(self, model: LogModel) -> None:
        """See `Operation`."""
        model.announced = self.expected(model)[1]

    def apply_to_log(self, world: World) -> object:
        """See `Operation`."""
        left = [headed(batch) for batch in self.batches]
        answers: list[object] = []
        while left:
            append = partial(world.log.append_run_as_leader, left, leader_epoch=self.leader_epoch)
            outcome = attempt(partial(append, now_ms=world.now_ms))
            if not isinstance(outcome, list):
                return [*answers, outcome]
            answers += outcome
            left = left[len(outcome) :]
        return answers

    def apply_to_model(self, model: LogModel, outcome: object) -> None:
        """See `Operation`."""
        answers, appended = self.expected(model)
        assert outcome == answers, f"the log answers {outcome}, not {answers}"
        if appended:
            model.append(appended)


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendToFullDisk(Operation):
    """An append whose first call of one kind finds no space: it is accepted as a whole, or refused without a change."""

    weight = 2
    append: Append
    place: tuple[str, str]

    @classmethod
    def draw(cls, world: World, rng: random.Random) -> AppendToFullDisk:
        """See `Operation`."""
        return cls(append=Append.draw(world, rng), place=rng.choice(FULL_PLACES))

    def announce(self, model: LogModel) -> None:
        """See `Operation`."""
        self.append.announce(model)

    def apply_to_log(self, world: World) -> object:
        """See `Operation`."""
        world.disk.refuse(*self.place, Refusal.FULL)
        outcome = self.append.apply_to_log(world)
        world.disk.forgive()
        return outcome

    def apply_to_model(self, model: LogModel, outcome: object) -> None:
        """See `Operation`."""
        if outcome is DiskFullError:
            model.announced = []
        else:
            self.append.apply_to_model(model, outcome)


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendAsFollower(Operation):
    """A follower appends a region of batches byte for byte; a region that does not continue the log is refused as a whole."""

    weight = 6
    batches: tuple[bytes, ...]
    leader_epochs: tuple[int, ...]
    skipped_offsets: int = 0

    @classmethod
    def draw(cls, world: World, rng: random.Random) -> AppendAsFollower:
        """See `Operation`; only batches that a leader appends can reach a follower."""
        leader = world.model.copy()
        batches: list[bytes] = []
        epochs: list[int] = []
        for _ in range(rng.randint(1, 5)):
            batch, epoch = draw_batch(leader, rng), draw_epoch(leader, rng)
            if leader.judge(read_header(batch)) is None:
                leader.append([ModelBatch.stamped(batch, base_offset=leader.end_offset, leader_epoch=epoch)])
                batches.append(batch)
                epochs.append(epoch)
        return cls(batches=tuple(batches), leader_epochs=tuple(epochs), skipped_offsets=int(rng.randrange(10) == 0))

    def stamped(self, model: LogModel) -> list[ModelBatch]:
        """Return the region as the leader has it."""
        offset = model.end_offset + self.skipped_offsets
        region: list[ModelBatch] = []
        for batch, epoch in zip(self.batches, self.leader_epochs, strict=True):
            region.append(ModelBatch.stamped(batch, base_offset=offset, leader_epoch=epoch, appended_ms=model.now_ms))
            offset = region[-1].header.next_offset
        return region

    def announce(self, model: LogModel) -> None:
        """See `Operation`."""
        model.announced = [] if self.skipped_offsets else self.stamped(model)

    def apply_to_log(self, world: World) -> object:
        """See `Operation`."""
        region = b"".join(batch.data for batch in self.stamped(world.model))
        return attempt(partial(world.log.append_as_follower, region, now_ms=world.now_ms))

    def apply_to_model(self, model: LogModel, outcome: object) -> None:
        """See `Operation`."""
        region = self.stamped(model)
        if self.skipped_offsets and region:
            assert outcome is OutOfOrderOffsetError, f"a region with a gap before it is answered with {outcome}"
            return
        next_offset = region[-1].header.next_offset if region else model.end_offset
        expected = Appended(model.end_offset, next_offset, False)
        assert outcome == expected, f"the log answers {outcome}, not {expected}"
        if region:
            model.append(region)
