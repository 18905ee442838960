# SPDX-License-Identifier: Apache-2.0
"""Publications across power failures, on real logs over a simulated disk; and staged records that are damaged there."""

from __future__ import annotations

import random
from pathlib import PurePosixPath

import pytest
from lograft.wire.codes import ErrorCode

from brokerd.failure import RefusedError
from brokerd.publishing.parts import Part, PublishedPart
from brokerd.tests.publishing.publishing_broker import SEQUENCES, PublishingBroker, append_foreign, part, values_of
from brokerd.tests.replica.lone_broker import TOPIC_ID
from storage.testing.sim_disk import SimDisk
from storage.testing.sim_tree import Crash

CRASHES = 3
"""Power failures of one publication."""


async def staged_parts(broker: PublishingBroker, rng: random.Random) -> tuple[list[Part], list[bytes]]:
    """Stage three parts of two attempts each, near the end of all sequences; return them and their values in order."""
    attempts = [await broker.attempt(number, sequence=SEQUENCES - rng.randint(1, 30)) for number in (0, 1)]
    sequence, parts, values = SEQUENCES - rng.randint(1, 40), list[Part](), list[bytes]()
    for number in range(3):
        for at in range(rng.randint(2, 12)):
            for attempt in attempts:
                attempt.stage(*(b"%d-%d-%d-%d" % (attempt.producer_id, number, at, each) for each in range(3)))
        sealed = [await attempt.seal() for attempt in attempts]
        rng.shuffle(sealed)
        parts.append(part(*(each for each, _ in sealed), base_sequence=sequence))
        values += [value for _, each in sealed for value in each]
        sequence = (sequence + parts[-1].records) % SEQUENCES
    return parts, values


async def publish_all(broker: PublishingBroker, parts: list[Part]) -> list[PublishedPart]:
    """Publish the parts one after another, as their coordinator does; others write in between."""
    target = await broker.target()
    found: list[PublishedPart] = []
    for each in parts:
        found.append(await broker.new_publisher(max_batches=5).publish(each))
        append_foreign(target, b"other")
    return found


class PowerFailure:
    """Copies a disk at one of its calls, as a power failure would find it.

    Attributes:
        disk: the copy; None: the call did not come yet.
    """

    def __init__(self, disk: SimDisk, at_call: int) -> None:
        self.disk: SimDisk | None = None
        self._source = disk
        self._left = at_call
        disk.on_call = self._on_call

    def _on_call(self, _call: object) -> None:
        self._left -= 1
        if self._left == 0:
            self.disk = self._source.fork()


@pytest.mark.parametrize("seed", range(12))
async def test_power_failures_double_and_lose_nothing(seed: int) -> None:
    """Whatever a failure leaves of what was not synced: each record is there once and in order, and answers that were given hold."""
    rng = random.Random(seed)
    broker = PublishingBroker()
    await broker.start(segment_bytes="2048")
    parts, values = await staged_parts(broker, rng)
    answered: list[PublishedPart] = []
    for _ in range(CRASHES):
        # The coordinator notes each answer and does not ask for that part again, but for the last one it may.
        left = parts[max(len(answered) - rng.randint(0, 1), 0) :]
        failure = PowerFailure(broker.disk, rng.randint(1, 150))
        target, given = await broker.target(), len(parts) - len(left)
        for each in left:
            found = await broker.new_publisher(max_batches=5).publish(each)
            if given < len(answered):
                assert found == answered[given], "the second answer is another one"
            given += 1
            if failure.disk is None:
                answered = [*answered[: given - 1], found]
            append_foreign(target, b"other")
        broker.disk.on_call = None
        await broker.manager.stop()
        disk = failure.disk or broker.disk.fork()
        disk.crash(rng.choice(list(Crash)), rng)
        broker = PublishingBroker(disk)
        await broker.start(segment_bytes="2048")
    left = parts[max(len(answered) - 1, 0) :]
    last = await publish_all(broker, left)
    target = await broker.target()
    assert [each for each in values_of(target, end_offset=target.log_end_offset) if each != b"other"] == values
    for each, found in zip(parts, [*answered[: len(parts) - len(left)], *last], strict=True):
        assert found.end_offset - found.first_offset >= each.records
        inside = values_of(target, found.first_offset, found.end_offset)
        assert [value for value in inside if value != b"other"] == values[: each.records]
        del values[: each.records]
    await broker.manager.stop()


async def test_damaged_staged_batch_is_not_published() -> None:
    """Its new CRC would hide the damage. What comes before it is published, and nothing else."""
    broker = PublishingBroker()
    await broker.start()
    attempt = await broker.attempt(0)
    for number in range(5):
        attempt.stage(b"value %d" % number)
    made, _ = await attempt.seal()
    staging, target = await broker.staging(), await broker.target()
    path = str(PurePosixPath(staging.log.directory) / f"{0:020d}.log")
    content = broker.disk.read_file(path)
    at = content.index(b"value 3")
    broker.disk.corrupt(path, at, b"VALUE")
    for _ in range(2):
        with pytest.raises(RefusedError) as caught:
            await broker.publisher.publish(part(made))
        assert caught.value.failure.code is ErrorCode.DATA_LOSS
    assert target.log_end_offset == 3
    broker.disk.corrupt(path, at, b"value")
    assert await broker.publisher.publish(part(made)) == PublishedPart(0, 5)
    assert values_of(target) == [b"value %d" % number for number in range(5)]
    assert TOPIC_ID.hex() in target.log.directory
    await broker.manager.stop()
