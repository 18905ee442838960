# SPDX-License-Identifier: Apache-2.0
"""One member of a group on the event loop: timers, messages, and the first offsets of what it gets.

It owns the clock of the membership and the look-ups of first offsets. `membership` decides; `carrier` brings messages to the
coordinator. It does not call the application: the consumer asks for steps when the application polls.

Law: a partition is handed out with the offset that the coordinator named after the partition had come, or, if it said positively
that it has none, with the one that the reset policy finds. Any other answer is asked for again.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from lograft._client.clock import monotonic_ms
from lograft._groups.carrier import GroupCarrier
from lograft._groups.membership import RETRY_FLOOR_MS, Membership, Phase, Refused, Subscription
from lograft._groups.messages import Identity, decode_told, encode_beat
from lograft._groups.offsets import GroupOffsets
from lograft._groups.steps import Ended, Left, Lost, Partition, Revoked, Unassigned
from lograft.errors import LograftError, MembershipLostError
from lograft.types import TopicPartition
from lograft.v1 import group_pb2
from lograft.wire.codes import ErrorCode

logger = logging.getLogger(__name__)

LOOK_UP_TIMEOUT_MS: Final = 30_000
"""Milliseconds for one look-up of first offsets. After it the member looks up again what it wants by then."""

LOOK_UP_PAUSE_MS: Final = 500
"""Milliseconds between two look-ups of first offsets, if one has failed."""

Start = int | LograftError
"""First offset of a partition, or why there is none."""

FindStart = Callable[[Sequence[TopicPartition]], Awaitable[Mapping[TopicPartition, Start]]]
"""The reset policy: returns first offsets of partitions for which positively none is committed."""


@dataclass(frozen=True, slots=True)
class Assigned:
    """Read these partitions from these offsets on, then call the application."""

    starts: Mapping[Partition, Start]


MemberStep = Revoked | Lost | Assigned | Left | Ended
"""What the consumer has to do next for the group."""


class GroupMember:
    """A member that joins at once. Belongs to one event loop."""

    def __init__(
        self,
        carrier: GroupCarrier,
        identity: Identity,
        subscription: Subscription,
        *,
        offsets: GroupOffsets,
        find_start: FindStart,
        idle_ms: Callable[[], int],
        on_news: Callable[[], None],
    ) -> None:
        """Join.

        Args:
            carrier: the way to the coordinator.
            identity: what the member says about itself.
            subscription: what it wants.
            offsets: the offsets of the group.
            find_start: the reset policy.
            idle_ms: returns the milliseconds since the application last asked for records.
            on_news: called when `next_step` may have something.
        """
        self.identity = identity
        self._carrier = carrier
        self._offsets = offsets
        self._find_start = find_start
        self._idle_ms = idle_ms
        self._on_news = on_news
        self._core = Membership(
            subscription,
            rng=random.Random(),
            processing_limit_ms=identity.processing_limit_ms,
            is_static=identity.instance_id is not None,
        )
        self._names: dict[bytes, str] = {}
        # First offsets, each with the mark at which its look-up began.
        self._starts: dict[Partition, tuple[int, Start]] = {}
        self._look_up: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._ended = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        carrier.add(self)
        self._arm()

    # -- what the consumer sees

    @property
    def group_id(self) -> str:
        """Its group."""
        return self.identity.group_id

    @property
    def phase(self) -> Phase:
        """Where it is."""
        return self._core.phase

    @property
    def epoch(self) -> int:
        """Its epoch; 0 while it joins."""
        return self._core.epoch

    @property
    def subscription(self) -> Subscription:
        """What it wants."""
        return self._core.subscription

    @property
    def held(self) -> tuple[Partition, ...]:
        """Partitions that the consumer holds."""
        return self._core.held

    @property
    def lease_end_ms(self) -> int:
        """Monotonic time from which nothing may be handed out any more, until the coordinator has answered. Any thread may ask."""
        return self._core.lease_end_ms

    def name(self, topic_id: bytes) -> str:
        """Return the name of a topic of which a partition was assigned."""
        return self._names[topic_id]

    def subscribe(self, subscription: Subscription) -> None:
        """Want other topics."""
        self._core.subscribe(subscription)
        self._changed()

    @property
    def has_news(self) -> bool:
        """True if `next_step` returns something."""
        return self._core.has_step or any(
            self._core.is_fresh(partition, mark) for partition, (mark, _) in self._starts.items()
        )

    def next_step(self) -> MemberStep | None:
        """Return what the consumer must do next; None: nothing at the moment."""
        if monotonic_ms() >= self._core.lease_end_ms:
            # The process was stopped, or its loop blocked: no timer has noticed yet.
            self._changed()
        step = self._core.next_step()
        if isinstance(step, Revoked | Lost):
            if isinstance(step, Lost):
                code = step.code or ErrorCode.UNKNOWN_MEMBER
                self._offsets.fail(MembershipLostError(step.message, code=code))
            return step
        if isinstance(step, Unassigned):
            ready, self._starts = self._starts, {}
            starts: dict[Partition, Start] = {}
            for partition in step.partitions:
                mark, start = ready.get(partition, (-1, 0))
                if self._core.is_fresh(partition, mark) and self._core.take(partition):
                    starts[partition] = start
            self._changed()
            return Assigned(starts) if starts else None
        return step

    def gave_up(self, step: Revoked) -> None:
        """Note that the application has given up what was revoked."""
        self._core.gave_up(step.partitions)
        self._changed()

    def asked(self) -> None:
        """Note that the application asks for records again after a long time."""
        self._changed()

    async def leave(self, *, will_be_back: bool, timeout_ms: int) -> bool:
        """Leave, after the consumer has given everything up. Return False if the coordinator did not answer in time."""
        self._core.leave(will_be_back=will_be_back)
        while (step := self._core.next_step()) is not None and isinstance(step, Revoked):
            self._core.gave_up(step.partitions)
        self._changed()
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await self._ended.wait()
        except TimeoutError:
            return False
        return True

    def begin_leave(self, *, will_be_back: bool) -> None:
        """Want nothing any more. `next_step` says what must be given up before `leave`."""
        self._core.leave(will_be_back=will_be_back)
        self._changed()

    async def close(self) -> None:
        """Stop without a word to the coordinator."""
        self._carrier.remove(self)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        look_up, self._look_up = self._look_up, None
        if look_up is not None:
            look_up.cancel()
            await asyncio.gather(look_up, return_exceptions=True)

    # -- what the carrier sees

    def take_beat(self) -> group_pb2.MemberBeat | None:
        """See `CarriedMember`."""
        request = self._core.request(monotonic_ms(), self._idle_ms())
        if request is None:
            return None
        self._arm()
        return encode_beat(self.identity, request)

    def hear(self, state: group_pb2.GroupMemberState) -> None:
        """See `CarriedMember`."""
        told, names = decode_told(state)
        self._names |= names
        if isinstance(told, Refused):
            logger.info("group %s: %s: %s", self.group_id, told.code.name, told.message)
        self._core.hear(state.beat_number, told, monotonic_ms())
        self._changed()

    def disconnected(self) -> None:
        """See `CarriedMember`."""
        self._core.disconnected()
        self._arm()

    def fail(self, error: LograftError) -> None:
        """See `CarriedMember`."""
        self._core.fail(Refused(code=error.code, message=error.message))
        self._changed()

    # -- inside

    def _changed(self) -> None:
        """Look at everything that a change of the core may lead to."""
        self._core.tick(monotonic_ms(), self._idle_ms())
        wanted = self._core.wanted
        if any(each not in self._starts or not self._is_ready(each) for each in wanted) and self._look_up is None:
            self._look_up = self._loop.create_task(self._find_starts())
        if self._core.phase is Phase.ENDED:
            self._ended.set()
        self._arm()
        self._carrier.wake(self)
        if self.has_news:
            self._on_news()

    def _is_ready(self, partition: Partition) -> bool:
        return partition in self._starts and self._core.is_fresh(partition, self._starts[partition][0])

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        at_ms = monotonic_ms()
        due_ms = self._core.deadline_ms(self._idle_ms(), at_ms)
        if due_ms is not None:
            # A request that is due waits for its stream, which wakes the member itself.
            delay_ms = max(due_ms - at_ms, RETRY_FLOOR_MS if due_ms <= at_ms else 1)
            self._timer = self._loop.call_later(delay_ms / 1000, self._on_time)

    def _on_time(self) -> None:
        self._timer = None
        self._changed()

    async def _find_starts(self) -> None:
        """Find the first offsets of everything that is wanted, until nothing is missing."""
        try:
            while missing := [each for each in self._core.wanted if not self._is_ready(each)]:
                mark = self._core.mark()
                try:
                    starts = await self._starts_of(missing)
                except LograftError as error:
                    # An error is never "no offset": the same question again, for as long as the partitions are wanted.
                    logger.info("group %s: no first offsets: %s", self.group_id, error)
                    await asyncio.sleep(LOOK_UP_PAUSE_MS / 1000)
                    continue
                self._starts |= {partition: (mark, start) for partition, start in starts.items()}
                if self.has_news:
                    self._on_news()
                if len(starts) < len(missing):
                    await asyncio.sleep(LOOK_UP_PAUSE_MS / 1000)
        finally:
            self._look_up = None

    async def _starts_of(self, partitions: Sequence[Partition]) -> dict[Partition, Start]:
        """Return where partitions begin, without those of which the coordinator cannot say it yet."""
        found = await self._offsets.fetch_known(partitions, timeout_ms=LOOK_UP_TIMEOUT_MS)
        for (topic_id, number), error in found.errors.items():
            logger.info("group %s: no first offset of %s-%d: %s", self.group_id, topic_id.hex(), number, error)
        starts: dict[Partition, Start] = {}
        without: dict[TopicPartition, Partition] = {}
        for partition, offset in found.offsets.items():
            if offset is not None:
                starts[partition] = offset.offset
            else:
                without[TopicPartition(self._names[partition[0]], partition[1])] = partition
        if without:
            reset = await self._find_start(list(without))
            starts |= {without[tp]: start for tp, start in reset.items()}
        return starts
