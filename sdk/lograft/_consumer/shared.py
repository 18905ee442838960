# SPDX-License-Identifier: Apache-2.0
"""What the blocking and the asyncio consumer have in common: everything but the waits of the caller.

It owns the assignment, the membership in the group and its news, commits, look-ups, and deserializers. It runs on one event loop.
The blocking consumer takes records in the caller's thread: what it calls there is marked "under the lock", and the two sides
share the collector alone.

Theory of operation. The members of a group hear news at any time, but the application hears of them only while it polls (`catch_up`).
So whatever was handed out before a poll counts as processed in the poll, and a rebalance callback never runs beside the
application's own work. `has_news` tells a poll that there is something to catch up with.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from copy import copy
from datetime import timedelta
from typing import Any, Final

from lograft._client.clock import monotonic_ms, wall_clock_ms
from lograft._client.immortal import keep_for_ever
from lograft._client.usable import unusable_error
from lograft._consumer.arguments import check_commit, check_offset, check_topics
from lograft._consumer.asker import PublishedAsker
from lograft._consumer.collector import Deserializer, FetchCollector, OffsetsToCommit
from lograft._consumer.fetch_buffer import Arrival, Cursor
from lograft._consumer.fetcher import Fetcher
from lograft._consumer.holding_collector import HoldingCollector
from lograft._groups.carrier import GroupCarrier, borrow_carrier, return_carrier
from lograft._groups.member import Assigned, GroupMember, Start
from lograft._groups.membership import Phase, Subscription
from lograft._groups.messages import Identity
from lograft._groups.offsets import NO_MEMBER, GroupOffsets, OffsetsForDecision
from lograft._groups.steps import Ended, Left, Lost, Partition, Revoked
from lograft.errors import (
    DeserializationError,
    LograftError,
    MembershipLostError,
    NoCommittedOffsetError,
    UnreachableError,
    UsageError,
    error_for,
)
from lograft.fetched import FetchedBatch
from lograft.settings import DEFAULT_CLIENT_ID, ClientSettings, ConsumerSettings, GroupSettings
from lograft.types import (
    ConsumerHealth,
    ConsumerRecord,
    GroupMembership,
    Lag,
    OffsetAndMetadata,
    Position,
    RebalanceListener,
    TopicPartition,
)

logger = logging.getLogger(__name__)

REVOCATION_COMMIT_MS: Final = 5_000
"""Milliseconds for the automatic commit before partitions are given up, and at the end of the consumer."""

LEAVE_TIMEOUT_MS: Final = 5_000
"""Milliseconds that a consumer waits at its end until the coordinator knows that it has left."""

ASKED_AGAIN_MS: Final = 1_000
"""Milliseconds without a poll after which the next one wakes the member: it may have waited for the application."""

Handed = list[ConsumerRecord] | FetchedBatch | ConsumerRecord | None
"""What a poll hands to the application."""

Caller = Callable[..., Awaitable[None]]
"""Calls a function of the application, where its poll runs, and waits for its end."""


async def call_here(function: Callable[..., object], *arguments: object) -> None:
    """Call a function, and await what it returns if that can be awaited."""
    result = function(*arguments)
    if isinstance(result, Awaitable):
        await result


class SharedConsumer:
    """One consumer without its caller. Belongs to the event loop that first uses it.

    Attributes:
        collector: positions and records.
        lock: held by whoever touches the collector, the blocking consumer's lock; nothing for asyncio.
        wake: called when something has arrived, on the loop and without the lock.
        on_loop: runs a function on the loop, from wherever a poll runs.
        call_application: how to call callbacks.
        has_news: True if the next poll has to `catch_up` before it hands out anything.
        has_group_news: True if some of it comes from the group, so that partitions may be given up.
    """

    def __init__(
        self,
        client: ClientSettings,
        settings: ConsumerSettings,
        group: GroupSettings | None,
        *,
        key_deserializer: Deserializer | None = None,
        value_deserializer: Deserializer | None = None,
        on_partition_end: Callable[[TopicPartition, int], object] | None = None,
        on_caught_up: Callable[[], object] | None = None,
    ) -> None:
        self.settings = settings
        self.group = group
        if settings.isolation == "committed-together":
            self.collector: FetchCollector = HoldingCollector(settings, self._give_back, self._on_hold)
        else:
            self.collector = FetchCollector(settings, self._give_back)
        self.lock: AbstractContextManager[object] = nullcontext()
        self.wake: Callable[[], None] = _nothing
        self.on_loop: Callable[..., object] = _call_now
        self.call_application: Caller = call_here
        self.has_news = False
        self.has_group_news = False
        self.is_closed = False
        self.is_forked = False
        self._client = client
        self._key_deserializer = key_deserializer
        self._value_deserializer = value_deserializer
        self._on_partition_end = on_partition_end
        self._on_caught_up = on_caught_up
        self._fetcher: Fetcher | None = None
        self._asker: PublishedAsker | None = None
        self._carrier: GroupCarrier | None = None
        self._offsets: GroupOffsets | None = None
        self._member: GroupMember | None = None
        self._ended: LograftError | None = None
        self._callback_began_ms: int | None = None
        self._listener = RebalanceListener()
        self._keys: dict[TopicPartition, Partition] = {}
        self._is_catching_up = False
        self._is_asking = False
        self._asked_ms = monotonic_ms()
        self._last: Handed = None
        self._auto_timer: asyncio.TimerHandle | None = None
        self._is_commit_due = False
        self._auto_commit: asyncio.Task[None] | None = None
        self._auto_committed: dict[TopicPartition, int] = {}
        self._done: list[tuple[Callable[..., object], Mapping[TopicPartition, OffsetAndMetadata], LograftError | None]]
        self._done = []
        self._commit_tasks: set[asyncio.Task[None]] = set()
        self._ended_at: dict[TopicPartition, int] = {}
        self._is_caught_up_told = False

    # -- use

    def check_usable(self) -> None:
        """Raise an error if the consumer is closed or belongs to the parent of this forked process."""
        # The last callback about revoked partitions comes while the consumer is being closed, and may commit.
        if (self.is_closed and self._callback_began_ms is None) or self.is_forked:
            raise unusable_error("consumer", is_forked=self.is_forked)

    def fetcher(self) -> Fetcher:
        """Return the loop's part of fetching, which the first use starts."""
        if self._fetcher is None:
            self.check_usable()
            self._fetcher = Fetcher(self._client, self.settings, self._deliver, self._report)
            if isinstance(self.collector, HoldingCollector):
                self._asker = PublishedAsker(
                    self.collector,
                    lock=lambda: self.lock,
                    fetcher=self._fetcher,
                    fetch=self._fetch,
                    wake=lambda: self.wake(),
                )
        return self._fetcher

    def after_fork(self) -> None:
        """Leave everything that belongs to the parent untouched. Runs in the forked child."""
        self.is_forked = True
        # Iterations have to look.
        self.has_news = True
        keep_for_ever((self._fetcher, self._asker, self._carrier, self._offsets, self._member))
        keep_for_ever((self._auto_timer, self._auto_commit))
        keep_for_ever(list(self._commit_tasks))
        self._fetcher = self._asker = self._carrier = self._offsets = self._member = None
        self._auto_timer = self._auto_commit = None

    # -- the assignment of the application

    async def assign(
        self,
        tps: Sequence[TopicPartition],
        offsets: Mapping[TopicPartition, int],
        start: Position | None,
        topic_ids: Mapping[str, bytes] | None = None,
    ) -> None:
        """Read exactly these partitions. `start` None: from the committed offsets if there is a group, else from the earliest."""
        if self._member is not None:
            raise UsageError("this consumer is subscribed: call unsubscribe() before assign()")
        fetcher = self.fetcher()
        if self.group is not None and self.group.auto_commit:
            # Before the new positions are looked up, because a partition may be among the old ones too.
            self._last = None
            await self._commit_quietly(list(self.collector.cursors))
        given = {tp: offset for tp, offset in offsets.items() if tp in set(tps)}
        positions: Mapping[TopicPartition, Start]
        if start is None and self.group is not None:
            await fetcher.check(tps)
            for tp, offset in given.items():
                check_offset(offset, f"the offset of {tp}")
            missing = [tp for tp in tps if tp not in given]
            committed = await self.committed(missing)
            found: dict[TopicPartition, Start] = {tp: each.offset for tp, each in committed.items() if each is not None}
            found |= await self._find_start([tp for tp in missing if tp not in found])
            positions = {tp: found[tp] if tp in found else given[tp] for tp in tps}
        else:
            positions = await fetcher.resolve(tps, given, start or Position.EARLIEST)
        with self.lock:
            old = list(self.collector.cursors)
            cursors = self.collector.assign(
                {tp: 0 if isinstance(at, LograftError) else at for tp, at in positions.items()}, topic_ids
            )
            for cursor in cursors:
                at = positions[cursor.tp]
                cursor.error = at if isinstance(at, LograftError) else None
            self.collector.add(cursors)
        self._forget_ends(old)
        for tp in old:
            fetcher.engine.stop(tp)
        self._fetch(cursors)
        self._arm_auto_commit()

    async def seek(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Continue from offsets."""
        self.check_usable()
        with self.lock:
            for tp, offset in offsets.items():
                self.collector.cursor(tp)
                check_offset(offset, "an offset")
            cursors = [self.collector.seek(TopicPartition(*tp), offset) for tp, offset in offsets.items()]
        self._forget_ends(offsets)
        self._fetch(cursors)

    async def seek_to_times(self, times_ms: Mapping[TopicPartition, int]) -> None:
        """Continue from the first records with timestamps or later ones, else from the ends."""
        for tp in times_ms:
            self.collector.cursor(tp)
        await self.seek(await self.fetcher().find_times_or_ends(times_ms))

    async def pause(self, tps: Iterable[TopicPartition]) -> None:
        """Hand out nothing of these partitions until `resume`."""
        fetcher = self.fetcher()
        with self.lock:
            cursors = [self.collector.cursor(tp) for tp in tps]
            for cursor in cursors:
                cursor.is_paused = True
            self.collector.retire([cursor.tp for cursor in cursors])
        for cursor in cursors:
            fetcher.engine.stop(cursor.tp)

    async def resume(self, tps: Iterable[TopicPartition]) -> None:
        """Read these partitions again, from their positions."""
        with self.lock:
            cursors = [cursor for cursor in map(self.collector.cursor, tps) if cursor.is_paused]
            for cursor in cursors:
                cursor.is_paused = False
        self._fetch(cursors)

    def paused(self) -> list[TopicPartition]:
        """Return the paused partitions. Under the lock."""
        return [tp for tp, cursor in self.collector.cursors.items() if cursor.is_paused]

    def lag(self, tps: Iterable[TopicPartition]) -> dict[TopicPartition, Lag]:
        """Return how far the consumer is behind. Under the lock."""
        at_ms = wall_clock_ms()
        found: dict[TopicPartition, Lag] = {}
        for cursor in map(self.collector.cursor, tps):
            if cursor.log_end is None:
                records, seconds = None, None
            else:
                records = max(0, cursor.log_end - cursor.position)
                age_ms = None if cursor.handed_ms is None else max(0, at_ms - cursor.handed_ms)
                seconds = 0.0 if records == 0 else None if age_ms is None else age_ms / 1000
            found[cursor.tp] = Lag(records, seconds)
        return found

    def health(self, cursors: Sequence[Cursor]) -> ConsumerHealth:
        """Return the state of partitions."""
        if self._fetcher is None:
            return ConsumerHealth(partitions={}, unreachable_ms=None)
        return self._fetcher.health(cursors, self.collector.held_ms())

    # -- the group

    def need_group(self) -> GroupSettings:
        """Return the settings of the group, or raise `UsageError`."""
        if self.group is None:
            raise UsageError('this consumer has no group: make it with Consumer(bootstrap, group="...")')
        return self.group

    async def subscribe(self, topics: object, pattern: str | None, listener: RebalanceListener | None) -> None:
        """Join the group, or want other topics as a member."""
        group = self.need_group()
        self.check_usable()
        wanted = Subscription(check_topics(() if topics is None else topics), _check_pattern(pattern))
        if not wanted.topics and not wanted.pattern:
            raise UsageError("subscribe to at least one topic, or to a pattern; unsubscribe() ends a subscription")
        self._listener = listener or RebalanceListener()
        if self._member is not None and self._member.phase is not Phase.ENDED:
            self._member.subscribe(wanted)
            return
        if self._member is None and self.collector.cursors:
            raise UsageError("this consumer has assigned partitions: call assign([]) before subscribe()")
        if self._member is not None:
            await self._stop_member()
        # Partitions are read with the consumer's own connections from the first moment on.
        self.fetcher()
        offsets = self._group_offsets()
        assert self._carrier is not None
        identity = Identity(
            group_id=group.group,
            member_id=str(uuid.uuid4()),
            instance_id=group.instance_id,
            rack=self.settings.client_rack,
            client_id=self._client.client_id or DEFAULT_CLIENT_ID,
            assignor=group.assignor,
            processing_limit_ms=group.processing_limit_ms,
        )
        self._asked_ms = monotonic_ms()
        self._member = GroupMember(
            self._carrier,
            identity,
            wanted,
            offsets=offsets,
            find_start=self._find_start,
            idle_ms=self._idle_ms,
            on_news=self._on_group_news,
        )
        self._arm_auto_commit()

    async def unsubscribe(self) -> None:
        """Give everything up and leave the group for good; without a subscription, read nothing any more."""
        self.check_usable()
        if self._member is None:
            await self.assign([], {}, Position.EARLIEST)
            return
        # As at a close: the application has all that was handed out, and will not poll for more of it.
        self._last = None
        await self._leave(will_be_back=False, is_quiet=False)

    @property
    def subscription(self) -> Subscription | None:
        """What the consumer is subscribed to; None without a subscription."""
        return None if self._member is None else self._member.subscription

    def membership(self) -> GroupMembership | None:
        """Return where the consumer is in its group; None without a subscription."""
        member = self._member
        if member is None or self._carrier is None:
            return None
        return GroupMembership(
            group=member.group_id,
            member_id=member.identity.member_id,
            instance_id=member.identity.instance_id,
            state=member.phase.value,
            epoch=member.epoch,
            coordinator=self._carrier.coordinator(member.group_id),
        )

    def to_commit(self, given: OffsetsToCommit | None) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return the offsets of a commit: the given ones, or all positions. Under the lock."""
        self.need_group()
        if given is None:
            return self._positions()
        if isinstance(given, ConsumerRecord):
            return {TopicPartition(given.topic, given.partition): OffsetAndMetadata(given.offset + 1)}
        if isinstance(given, FetchedBatch):
            return {TopicPartition(given.topic, given.partition): OffsetAndMetadata(given.next_offset)}
        return check_commit(given)

    async def commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata], timeout_ms: int | None = None) -> None:
        """Commit offsets, and wait for the answer."""
        if offsets:
            await self._take_commit(offsets, timeout_ms)

    def _take_commit(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata], timeout_ms: int | None = None
    ) -> Coroutine[Any, Any, None]:
        """Take offsets to commit. The coroutine ends with the answer.

        Offsets of partitions that the group gave are under way at once: if the partitions are lost before a task awaits the coroutine,
        the commit ends with them.
        """
        store = self._group_offsets()
        order = store.order()
        limit_ms = self._client.request_timeout_ms if timeout_ms is None else timeout_ms
        stored: Coroutine[Any, Any, None] | None = None
        if offsets and all(tp in self._keys for tp in offsets):
            by_key = {self._keys[tp]: offset for tp, offset in offsets.items()}
            stored = store.commit(by_key, timeout_ms=limit_ms, order=order)

        async def answered() -> None:
            if stored is not None:
                await stored
            elif offsets:
                keys = await self._keys_of(list(offsets))
                by_key = {keys[tp]: offset for tp, offset in offsets.items()}
                await store.commit(by_key, timeout_ms=limit_ms, order=order)
            self._auto_committed |= {tp: offset.offset for tp, offset in offsets.items()}

        return answered()

    async def for_decision(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> OffsetsForDecision:
        """Return offsets that count with the decision of an ingest.

        Raises:
            UsageError: the consumer commits by itself, or a commit is under way.
        """
        group = self.need_group()
        if group.auto_commit:
            raise UsageError(
                "this consumer commits by itself: make it with auto_commit=False, so that only transactions do"
            )
        keys = await self._keys_of(list(offsets))
        wanted = {keys[tp]: offset for tp, offset in offsets.items()}
        return self._group_offsets().for_decision(wanted, instance_id=group.instance_id)

    def commit_soon(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        on_done: Callable[[Mapping[TopicPartition, OffsetAndMetadata], LograftError | None], object] | None,
    ) -> None:
        """Commit offsets in the background. A later poll calls `on_done`. On the loop."""
        answered = self._take_commit(offsets)

        async def run() -> None:
            error: LograftError | None = None
            try:
                await answered
            except LograftError as cause:
                error = cause
                logger.warning("group %s: offsets were not committed: %s", self.need_group().group, cause)
            if on_done is not None:
                self._done.append((on_done, offsets, error))
                self._on_news()

        task = asyncio.get_running_loop().create_task(run())
        self._commit_tasks.add(task)
        task.add_done_callback(self._commit_tasks.discard)

    async def committed(self, tps: Collection[TopicPartition]) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """Look up committed offsets. None: positively none."""
        self.need_group()
        if not tps:
            return {}
        store = self._group_offsets()
        keys = await self._keys_of(list(tps))
        found = await store.fetch(list(keys.values()), timeout_ms=self._client.request_timeout_ms)
        return {tp: found[key] for tp, key in keys.items()}

    async def topic_ids(self, tps: Sequence[TopicPartition]) -> dict[TopicPartition, bytes]:
        """Return the ids of the topics of partitions."""
        return {tp: topic_id for tp, (topic_id, _) in (await self._keys_of(tps)).items()}

    # -- polls

    def begin_poll(self) -> None:
        """Note that the application asks for records. What it got before counts as processed.

        Raises:
            UsageError: another poll is calling the application.
        """
        if self._is_catching_up:
            raise UsageError("a callback must not poll, and one thread or task at a time polls")
        if self._member is not None:
            if monotonic_ms() - self._asked_ms >= ASKED_AGAIN_MS and not self._is_asking:
                self._is_asking = True
                self.on_loop(self._member.asked)
            self._is_asking = True
        self._last = None

    def hold(self, got: list[ConsumerRecord]) -> None:
        """Note records that the present call will hand to the application. They are not processed yet."""
        self._last = got

    def end_poll(self, got: Handed) -> None:
        """Note what a poll hands to the application."""
        if self._member is not None:
            self._asked_ms = monotonic_ms()
            self._is_asking = False
        self._last = got or None

    def take_batch(self) -> FetchedBatch | None:
        """Take the next batch. Under the lock."""
        if self._has_news_first():
            return None
        batch = self.collector.next_batch()
        if batch is None:
            self.look_for_ends()
        return batch

    def take_records(self, max_records: int) -> list[ConsumerRecord]:
        """Take the next records, with their values deserialized. Under the lock."""
        if self._has_news_first():
            return []
        records = self.collector.next_records(max_records)
        if not records:
            self.look_for_ends()
        return self._deserialize(records)

    def take_record(self) -> ConsumerRecord | None:
        """Take the next record, with its value deserialized. Under the lock."""
        if self._has_news_first():
            return None
        record = self.collector.next_record()
        if record is None:
            self.look_for_ends()
        elif self._key_deserializer is not None or self._value_deserializer is not None:
            self._deserialize([record])
        return record

    def step(self) -> ConsumerRecord | None:
        """Do one whole poll of an iteration in the fast way; None: nothing is there, or a poll is needed. Under the lock."""
        if self._has_news_first():
            return None
        if self._member is not None:
            at_ms = monotonic_ms()
            if at_ms - self._asked_ms >= ASKED_AGAIN_MS:
                return None
            self._asked_ms = at_ms
        self._last = None
        record = self.collector.next_record()
        if record is not None and (self._key_deserializer is not None or self._value_deserializer is not None):
            self._deserialize([record])
        self._last = record
        return record

    def _has_news_first(self) -> bool:
        """Return True if a poll has to catch up before it hands out anything. Under the lock.

        The end of the lease is news too. A process that was stopped for longer polls before its timers have noticed.
        """
        member = self._member
        if member is not None and not self.has_news and monotonic_ms() >= member.lease_end_ms:
            self.has_news = self.has_group_news = True
        return self.has_news

    def look_for_ends(self) -> None:
        """Note whether there is an end of a partition to tell. Under the lock."""
        if self._on_partition_end is None and self._on_caught_up is None:
            return
        if self._new_ends() or (self._on_caught_up is not None and not self._is_caught_up_told and self.is_caught_up):
            self.has_news = True

    @property
    def is_caught_up(self) -> bool:
        """True if every assigned partition that is not paused is at its end, and there is one. Under the lock."""
        cursors = [cursor for cursor in self.collector.cursors.values() if not cursor.is_paused]
        return bool(cursors) and all(cursor.is_at_end for cursor in cursors)

    async def catch_up(self) -> None:
        """Do for the group what is due, and call the application. To be called in a poll when `has_news`.

        Raises:
            LograftError: the coordinator has refused the member for good.
            Exception: what a callback raises.
        """
        self._is_catching_up = True
        try:
            self.has_news = self.has_group_news = False
            self._commit_if_due()
            await self._rebalance(is_quiet=False)
            await self._tell_ends()
            while self._done:
                await self._call(*self._done.pop(0))
        except BaseException:
            # What is left is looked at again in the next poll.
            self.has_news = self.has_group_news = True
            raise
        finally:
            self._is_catching_up = False

    # -- the end

    async def close(self, *, is_failed: bool = False, is_quiet: bool = False) -> None:
        """Commit, leave the group, and close all connections.

        Args:
            is_failed: True if the application ends with an error. What the last poll gave does not count as processed then.
            is_quiet: True at the end of the process: no callbacks.
        """
        self.is_closed = True
        if not is_failed:
            self._last = None
        try:
            if self._member is not None:
                await self._leave(will_be_back=True, is_quiet=is_quiet)
            elif self.group is not None and self.group.auto_commit and self.collector.cursors:
                await self._commit_quietly(list(self.collector.cursors))
        finally:
            await self._stop()

    async def _stop(self) -> None:
        if self._auto_timer is not None:
            self._auto_timer.cancel()
            self._auto_timer = None
        offsets, self._offsets = self._offsets, None
        if offsets is not None:
            await offsets.close()
        tasks = [*self._commit_tasks, *([] if self._auto_commit is None else [self._auto_commit])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        carrier, self._carrier = self._carrier, None
        if carrier is not None:
            await return_carrier(self._client, carrier)
        asker, self._asker = self._asker, None
        if asker is not None:
            await asker.close()
        fetcher, self._fetcher = self._fetcher, None
        if fetcher is not None:
            await fetcher.close()

    # -- inside: the group

    def _group_offsets(self) -> GroupOffsets:
        group = self.need_group()
        if self._offsets is None:
            self._carrier = borrow_carrier(self._client)
            self._offsets = GroupOffsets(self._carrier, group.group, self._identity)
        return self._offsets

    def _identity(self) -> tuple[str, int]:
        member = self._member
        return NO_MEMBER if member is None else (member.identity.member_id, member.epoch)

    def _idle_ms(self) -> int:
        since_ms = self._callback_began_ms
        if since_ms is None:
            if self._is_asking:
                return 0
            since_ms = self._asked_ms
        return monotonic_ms() - since_ms

    def _on_news(self) -> None:
        self.has_news = True
        self.wake()

    def _on_group_news(self) -> None:
        self.has_group_news = True
        self._on_news()

    async def _keys_of(self, tps: Sequence[TopicPartition]) -> dict[TopicPartition, Partition]:
        """Return partitions by topic id: of those that the group gave, the id that the coordinator said."""
        others = [tp for tp in tps if tp not in self._keys]
        ids = {} if not others else await self.fetcher().topic_ids(others)
        return {tp: self._keys[tp] if tp in self._keys else (ids[tp], tp.partition) for tp in tps}

    async def _find_start(self, tps: Sequence[TopicPartition]) -> dict[TopicPartition, Start]:
        """The reset policy."""
        group, fetcher = self.need_group(), self.fetcher()
        if not tps:
            return {}
        if group.reset is None:
            text = f'group {group.group!r} has no committed offset of it, and reset is "none": seek to where it should begin'
            return {tp: NoCommittedOffsetError(f"{tp}: {text}") for tp in tps}
        if isinstance(group.reset, timedelta):
            since_ms = max(0, wall_clock_ms() - round(group.reset.total_seconds() * 1000))
            return dict(await fetcher.find_times_or_ends(dict.fromkeys(tps, since_ms)))
        return dict(await fetcher.find_position(tps, group.reset))

    async def _rebalance(self, *, is_quiet: bool) -> None:
        """Carry out the steps of the membership, one after the other."""
        member = self._member
        while member is not None and (step := member.next_step()) is not None:
            match step:
                case Lost():
                    tps = self._retire(step.partitions)
                    logger.warning("group %s: lost %s: %s", member.group_id, _named(tps), step.message)
                    try:
                        await self._tell(self._listener.on_lost, tps, is_quiet=is_quiet)
                    finally:
                        self._remove(tps)
                case Revoked():
                    tps = self._retire(step.partitions)
                    try:
                        if self.need_group().auto_commit:
                            await self._commit_quietly(tps)
                        await self._tell(self._listener.on_revoked, tps, is_quiet=is_quiet)
                    finally:
                        try:
                            await self._group_offsets().give_up(step.partitions, timeout_ms=REVOCATION_COMMIT_MS)
                        finally:
                            self._remove(tps)
                            member.gave_up(step)
                case Assigned():
                    tps = self._add(member, step)
                    await self._tell(self._listener.on_assigned, tps, is_quiet=is_quiet)
                case Ended():
                    raise self._ended_error(step)
                case Left():
                    return
        if member is not None and member.phase is Phase.ENDED and not is_quiet and not self.is_closed and self._ended:
            self.has_news = True
            raise copy(self._ended)

    def _ended_error(self, step: Ended) -> LograftError:
        self._ended = error_for(step.code, step.message)
        return self._ended

    async def _tell(
        self, function: Callable[[list[TopicPartition]], object], tps: list[TopicPartition], *, is_quiet: bool
    ) -> None:
        if tps and not is_quiet:
            await self._call(function, list(tps))

    async def _call(self, function: Callable[..., object], *arguments: object) -> None:
        """Call a callback of the application. Its time counts against the processing limit."""
        self._callback_began_ms = monotonic_ms()
        try:
            await self.call_application(function, *arguments)
        finally:
            self._callback_began_ms = None

    def _retire(self, partitions: Sequence[Partition]) -> list[TopicPartition]:
        """Stop partitions. They keep their positions until `_remove`."""
        wanted = set(partitions)
        tps = [tp for tp, key in self._keys.items() if key in wanted]
        with self.lock:
            self.collector.retire([tp for tp in tps if tp in self.collector.cursors])
        if self._fetcher is not None:
            for tp in tps:
                self._fetcher.engine.stop(tp)
        return tps

    def _remove(self, tps: Sequence[TopicPartition]) -> None:
        with self.lock:
            self.collector.remove([tp for tp in tps if tp in self.collector.cursors])
        if self._fetcher is not None:
            for tp in tps:
                # A callback may have sought in it.
                self._fetcher.engine.stop(tp)
        self._forget_ends(tps)
        for tp in tps:
            self._keys.pop(tp, None)
            self._auto_committed.pop(tp, None)

    def _add(self, member: GroupMember, step: Assigned) -> list[TopicPartition]:
        cursors: list[Cursor] = []
        for key, start in step.starts.items():
            tp = TopicPartition(member.name(key[0]), key[1])
            cursor = Cursor(tp, 0 if isinstance(start, LograftError) else start, key[0], is_from_group=True)
            cursor.error = start if isinstance(start, LograftError) else None
            self._keys[tp] = key
            cursors.append(cursor)
        with self.lock:
            self.collector.add(cursors)
        self._is_caught_up_told = False
        self.fetcher().cluster.watch(dict.fromkeys(cursor.tp.topic for cursor in cursors))
        self._fetch(cursors)
        return [cursor.tp for cursor in cursors]

    async def _leave(self, *, will_be_back: bool, is_quiet: bool) -> None:
        member = self._member
        assert member is not None
        member.begin_leave(will_be_back=will_be_back)
        try:
            if member.phase is not Phase.ENDED:
                await self._rebalance(is_quiet=is_quiet)
        finally:
            if not await member.leave(will_be_back=will_be_back, timeout_ms=LEAVE_TIMEOUT_MS):
                logger.warning("group %s: the coordinator did not answer the leave", member.group_id)
            await self._stop_member()

    async def _stop_member(self) -> None:
        member, self._member = self._member, None
        self._ended = None
        if member is not None:
            self._remove(list(self._keys))
            await member.close()

    # -- inside: commits

    def _positions(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return what may be committed: the next offsets of all partitions whose position is known. Under the lock."""
        return {
            tp: OffsetAndMetadata(cursor.position, leader_epoch=cursor.leader_epoch)
            for tp, cursor in self.collector.cursors.items()
            if cursor.error is None or not isinstance(cursor.error, NoCommittedOffsetError)
        }

    def _processed(self, tps: Sequence[TopicPartition]) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return the processed positions that have moved since the last commit."""
        with self.lock:
            positions = self._positions()
        for tp, offset in _first_offsets(self._last).items():
            if tp in positions:
                positions[tp] = OffsetAndMetadata(offset)
        return {
            tp: positions[tp] for tp in tps if tp in positions and self._auto_committed.get(tp) != positions[tp].offset
        }

    def _arm_auto_commit(self) -> None:
        if self.group is None or not self.group.auto_commit or self._auto_timer is not None or self.is_closed:
            return
        loop = asyncio.get_running_loop()
        self._auto_timer = loop.call_later(self.group.auto_commit_interval_ms / 1000, self._on_auto_commit)

    def _on_auto_commit(self) -> None:
        self._auto_timer = None
        if self.collector.cursors:
            # The next poll commits, because only then what was handed out is processed.
            self._is_commit_due = True
            self._on_news()
        self._arm_auto_commit()

    def _commit_if_due(self) -> None:
        if not self._is_commit_due or (self._auto_commit is not None and not self._auto_commit.done()):
            return
        self._is_commit_due = False
        offsets = self._processed(list(self.collector.cursors))
        if offsets:
            answered = self._take_commit(offsets)
            self._auto_commit = asyncio.get_running_loop().create_task(self._await_quietly(answered))

    async def _commit_quietly(self, tps: Sequence[TopicPartition]) -> None:
        offsets = self._processed(tps)
        if offsets:
            await self._await_quietly(self._take_commit(offsets, REVOCATION_COMMIT_MS))

    async def _await_quietly(self, answered: Coroutine[Any, Any, None]) -> None:
        try:
            await answered
        except MembershipLostError as error:
            logger.warning("group %s: positions were not committed: %s", self.need_group().group, error)
        except LograftError as error:
            logger.warning("group %s: no automatic commit: %s", self.need_group().group, error)

    # -- inside: events

    def _new_ends(self) -> list[TopicPartition]:
        return [
            tp
            for tp, cursor in self.collector.cursors.items()
            if cursor.is_at_end and not cursor.is_paused and self._ended_at.get(tp) != cursor.position
        ]

    async def _tell_ends(self) -> None:
        if self._on_partition_end is None and self._on_caught_up is None:
            return
        with self.lock:
            ends = {tp: self.collector.cursors[tp].position for tp in self._new_ends()}
            is_caught_up = self.is_caught_up
        self._ended_at |= ends
        if ends:
            self._is_caught_up_told = False
        if self._on_partition_end is not None:
            for tp, offset in ends.items():
                await self._call(self._on_partition_end, tp, offset)
        if is_caught_up and self._on_caught_up is not None and not self._is_caught_up_told:
            self._is_caught_up_told = True
            await self._call(self._on_caught_up)

    def _forget_ends(self, tps: Iterable[TopicPartition]) -> None:
        for tp in tps:
            self._ended_at.pop(tp, None)
        self._is_caught_up_told = False

    # -- inside: records

    def _deserialize(self, records: list[ConsumerRecord]) -> list[ConsumerRecord]:
        """Apply the deserializers in place. At the first failure, what follows is fetched again.

        Raises:
            DeserializationError: the first record fails.
        """
        of_key, of_value = self._key_deserializer, self._value_deserializer
        if of_key is None and of_value is None:
            return records
        for index, record in enumerate(records):
            key, value = record.key, record.value
            try:
                if of_key is not None and key is not None:
                    record.key = of_key(key)
                if of_value is not None and value is not None:
                    record.value = of_value(value)
            except Exception as cause:
                self._rewind(records[index:])
                if index:
                    return records[:index]
                where = f"{record.topic}-{record.partition} at offset {record.offset}"
                raise DeserializationError(
                    f"the record of {where} could not be deserialized ({cause!r}); seek past it to skip it",
                    topic=record.topic,
                    partition=record.partition,
                    offset=record.offset,
                    key=key,
                    value=value,
                ) from cause
        return records

    def _rewind(self, records: list[ConsumerRecord]) -> None:
        """Move positions back to the first of these records of each partition. Under the lock."""
        cursors = [self.collector.seek(tp, offset) for tp, offset in _first_offsets(records).items()]
        self.on_loop(self._fetch, cursors)

    # -- inside: fetching

    def _fetch(self, cursors: Sequence[Cursor]) -> None:
        engine = self.fetcher().engine
        for cursor in cursors:
            if not cursor.is_paused and cursor.error is None and self.collector.cursors.get(cursor.tp) is cursor:
                engine.start(cursor, cursor.generation, cursor.position)

    def _deliver(self, arrival: Arrival) -> None:
        with self.lock:
            self.collector.put(arrival)
        self.wake()

    def _report(self, outage: UnreachableError | None) -> None:
        with self.lock:
            self.collector.outage = outage
        self.wake()

    def _on_hold(self) -> None:
        """Have the asker look. Under the lock, and wherever a poll or the engine runs."""
        asker = self._asker
        if asker is not None:
            self.on_loop(asker.soon)

    def _give_back(self, source: object, size_bytes: int) -> None:
        fetcher = self._fetcher
        if fetcher is not None:
            self.on_loop(fetcher.engine.give_back, source, size_bytes)


def _check_pattern(pattern: object) -> str:
    if pattern is None:
        return ""
    if not isinstance(pattern, str):
        # A compiled pattern of `re` is Python's own dialect, and RE2 at the coordinator decides.
        raise UsageError(f"a pattern is the text of an RE2 expression, not {pattern!r}")
    return pattern


def _first_offsets(got: Handed) -> dict[TopicPartition, int]:
    """Return the first offset of each partition in what a poll gave."""
    if got is None:
        return {}
    if isinstance(got, FetchedBatch):
        return {TopicPartition(got.topic, got.partition): got.base_offset}
    if isinstance(got, ConsumerRecord):
        return {TopicPartition(got.topic, got.partition): got.offset}
    first: dict[TopicPartition, int] = {}
    for record in got:
        first.setdefault(TopicPartition(record.topic, record.partition), record.offset)
    return first


def _named(tps: Sequence[TopicPartition]) -> str:
    return ", ".join(map(str, tps[:10])) + (f" and {len(tps) - 10} more" if len(tps) > 10 else "")


def _call_now(function: Callable[..., object], *arguments: object) -> None:
    function(*arguments)


def _nothing() -> None:
    """Nobody waits."""
