# SPDX-License-Identifier: Apache-2.0
"""Publishes parts at the broker that leads their partition.

`Publisher` owns which parts are under way: one at a time of each coordinator in each partition. A request for a part under way waits
for its end, and a publication goes on when nobody waits for it any more. `_Publication` owns one part: it looks where to go on, plans,
appends, and waits for the high watermark.

Laws
    The log takes the batches of a publication only in the order of their sequences, so no fault here publishes a record twice.
    Nothing is appended in a later leader epoch than the one whose producer state said where to go on.
    No more than `IN_FLIGHT_BYTES` are beyond the high watermark.
    Of the parts that are large, `LARGE_PUBLICATIONS_MAX` append at once, unless their followers are slow.
    A part is answered only when its last record is committed.
    Sequences are left out only where the log has lost them, and only as many as the coordinator has on record as lost.

*Where a part is.* What was just appended is known, and so is what the producer state remembers: the last 16 batches. For a longer part
that was published before, or resumed, the log is searched, from the end down, one segment after another. A part whose begin or end was
deleted in the meantime is answered with `UNKNOWN_OFFSET` there.
Source: docs/ingest.md, section "Publication".
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from lograft.wire.codes import ErrorCode
from lograft.wire.header import iter_batches

from brokerd.failure import Failure, RefusedError, refused
from brokerd.publishing.commits import wait_committed
from brokerd.publishing.led_partitions import LedPartitions
from brokerd.publishing.limits import (
    ACTIVE_PUBLICATIONS_MAX,
    COMMIT_WAIT_MS,
    FLUSH_BYTES,
    FLUSH_HOLD_MS,
    IN_FLIGHT_BYTES,
    KEEP_BYTES,
    LARGE_PUBLICATIONS_MAX,
    PART_BATCHES_MAX,
    PIECE_BYTES,
    PUBLICATIONS_MAX,
    READ_BYTES,
    RETRY_MS,
    RUN_BATCHES_MAX,
    SEQUENCE_COUNT,
    TURN_WAIT_MS,
)
from brokerd.publishing.parts import UNKNOWN_OFFSET, KnownBatch, MissingSlice, Part, PublishedPart, part_problem
from brokerd.publishing.plan import Plan, Planner, Run
from brokerd.publishing.republish import ready_batches
from brokerd.publishing.resumption import Lost, PartSearch, done_records
from brokerd.publishing.staged_reads import StagedReads
from brokerd.replica.replica import Replica
from storage.errors import StorageError
from storage.log.reader import ReadWork
from storage.types import HeadedBatch

logger = logging.getLogger(__name__)


class RecordsLostError(RefusedError):
    """The log lacks records that were published before the part; nothing was appended.

    Attributes:
        records: how many.
    """

    def __init__(self, records: int, partition: str) -> None:
        message = f"{partition} lacks {records} records that were published before this part, by an unclean election for example"
        super().__init__(Failure(code=ErrorCode.DATA_LOSS, message=message, retry_after_ms=RETRY_MS))
        self.records = records


class Publisher:
    """The publications of one broker.

    Args:
        led: finds the partitions that this broker leads.
        staged: reads staged batches.
        is_lost: returns True while another broker may lead this one's partitions, because the controller was not heard for a whole
            session: its log says nothing about losses then.
        on_published: gets topic id and partition of each part that has been published, and whether it was large.
        max_batches: most batches of one plan.
    """

    def __init__(
        self,
        *,
        led: LedPartitions,
        staged: StagedReads,
        is_lost: Callable[[], bool],
        on_published: Callable[[bytes, int, bool], None],
        max_batches: int = PART_BATCHES_MAX,
    ) -> None:
        self._led = led
        self._staged = staged
        self._is_lost = is_lost
        self._on_published = on_published
        self._max_batches = max_batches
        self._running: dict[tuple[bytes, int, int], tuple[Part, asyncio.Task[PublishedPart]]] = {}
        self._waiting_count = 0
        self._active = asyncio.Semaphore(ACTIVE_PUBLICATIONS_MAX)
        self._large = asyncio.Semaphore(LARGE_PUBLICATIONS_MAX)
        # Starts with the first large part.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="publications")
        self._is_closed = False

    def __len__(self) -> int:
        """Return the number of parts under way."""
        return len(self._running)

    async def publish(self, part: Part) -> PublishedPart:
        """Publish a part, or what is left of it; return where it is, also if it was published before.

        Raises:
            RefusedError: INVALID_REQUEST, the part is absurd; UNKNOWN_TOPIC, the topic was deleted; METADATA_NOT_REACHED, the topic is
                not known here yet; NOT_LEADER, LEADER_NOT_AVAILABLE; NOT_ENOUGH_REPLICAS (AFTER_APPEND); STORAGE_FAILED, for example
                because the disk is full; OVERLOADED; TIMED_OUT, not committed in time; INGEST_INCOMPLETE, staged records are
                missing; DATA_LOSS, staged records are damaged. The next request goes on where this one stopped.
            RecordsLostError: the log has lost other published records than the part says.
        """
        problem = part_problem(part)
        if problem is not None:
            raise refused(ErrorCode.INVALID_REQUEST, problem)
        key = (part.topic_id, part.partition, part.producer_id)
        while (running := self._running.get(key)) is not None and running[0] != part:
            if self._waiting_count >= PUBLICATIONS_MAX:
                raise _overloaded()
            self._waiting_count += 1
            try:
                await asyncio.wait((running[1],))
            finally:
                self._waiting_count -= 1
        if running is None:
            if self._is_closed:
                raise refused(ErrorCode.SHUTTING_DOWN, "this broker is stopping")
            if len(self._running) >= PUBLICATIONS_MAX:
                raise _overloaded()
            task = asyncio.create_task(self._run(part), name="publication")
            running = self._running[key] = (part, task)
            task.add_done_callback(lambda done: self._on_done(key, part, done))
        try:
            return await asyncio.shield(running[1])
        except asyncio.CancelledError:
            if running[1].cancelled():
                raise refused(ErrorCode.SHUTTING_DOWN, "this broker is stopping") from None
            raise

    async def close(self) -> None:
        """Publish nothing any more. Idempotent."""
        self._is_closed = True
        tasks = [task for _, task in self._running.values()]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        self._thread.shutdown(wait=False)

    async def _run(self, part: Part) -> PublishedPart:
        async with self._active:
            replica = self._led.replica(part.topic_id, part.partition)
            publication = _Publication(
                part, replica, self._staged, self._is_lost, self._max_batches, self._large, self._thread
            )
            try:
                published = await publication.run()
            finally:
                publication.let_flush()
                publication.end_turn()
            self._on_published(part.topic_id, part.partition, publication.is_large)
            return published

    def _on_done(self, key: tuple[bytes, int, int], part: Part, task: asyncio.Task[PublishedPart]) -> None:
        del self._running[key]
        if task.cancelled():
            return
        error = task.exception()
        if error is None:
            return
        if isinstance(error, RefusedError):
            logger.info("part not published: partition=%s-%d records=%d: %s", key[0].hex(), key[1], part.records, error)
        else:
            logger.error("publication failed: partition=%s-%d", key[0].hex(), key[1], exc_info=error)


def _overloaded() -> RefusedError:
    message = f"{PUBLICATIONS_MAX} parts are being published here"
    return refused(ErrorCode.OVERLOADED, message, retry_after_ms=RETRY_MS)


def known_batches(replica: Replica, producer_id: int) -> list[KnownBatch]:
    """Return the newest batches of a producer, as the log knows them, ascending by offset."""
    state = replica.log.producers.find(producer_id)
    if state is None:
        return []
    return [KnownBatch(each.base_sequence, each.base_offset, each.next_offset) for each in state.batches()]


def _read_in_thread(
    part: Part, partition: str, piece: Sequence[Run], works: Sequence[ReadWork]
) -> list[HeadedBatch] | None:
    """Return the batches of a piece; None if they are not what the plan says. Runs in the publications' thread."""
    ready: list[HeadedBatch] = []
    try:
        for run, work in zip(piece, works, strict=True):
            data = work.run()
            found = [] if data is None else ready_batches(part, partition, data, run.batches)
            if len(found) < len(run.batches):
                return None
            ready += found
    except (RefusedError, StorageError):
        return None
    return ready


class _Publication:
    """One part under way.

    Attributes:
        is_large: True once so much was to be appended that it waited for a turn.
    """

    def __init__(
        self,
        part: Part,
        replica: Replica,
        staged: StagedReads,
        is_lost: Callable[[], bool],
        max_batches: int,
        large: asyncio.Semaphore,
        thread: ThreadPoolExecutor,
    ) -> None:
        self._part = part
        self._replica = replica
        self._staged = staged
        self._is_lost = is_lost
        self._max_batches = max_batches
        self._large = large
        self._thread = thread
        self._has_turn = False
        self.is_large = False
        self._leader_epoch = replica.leader_epoch
        self._search = PartSearch(part.base_sequence, part.records)
        # Appended and not known to be committed: end offset (exclusive) and bytes of each batch.
        self._in_flight: deque[tuple[int, int]] = deque()
        self._in_flight_bytes = 0
        # Set while this publication holds back the flushes of the log: what it appended since, and when the hold ends by itself.
        self._held_bytes = 0
        self._hold_end: asyncio.TimerHandle | None = None

    async def run(self) -> PublishedPart:
        part, replica = self._part, self._replica
        window = known_batches(replica, part.producer_id)
        next_sequence = None
        if window:
            last = window[-1]
            next_sequence = (last.base_sequence + last.next_offset - last.base_offset) % SEQUENCE_COUNT
        done = done_records(part.base_sequence, part.records, next_sequence)
        if isinstance(done, Lost):
            self._check_loss(done)
            done = 0
        self._search.add(window)
        while done < part.records:
            plan, kept = await self._plan(done)
            if not kept:
                self.is_large = True
                await self._take_turn()
            await self._publish_plan(plan, kept)
            done = plan.end_record
        # The next large part appends while the disk and the followers take the end of this one.
        self.let_flush()
        self.end_turn()
        if self._search.found is None:
            await self._search_log(window[0].base_offset if window else replica.log_end_offset)
        end_offset = self._search.end_offset
        if end_offset is not None:
            await self._wait_committed(end_offset)
        first_offset = self._search.first_offset
        return PublishedPart(
            UNKNOWN_OFFSET if first_offset is None else first_offset,
            UNKNOWN_OFFSET if end_offset is None else end_offset,
        )

    # Turns of large parts.

    async def _take_turn(self) -> None:
        if not self._has_turn:
            await self._large.acquire()
            self._has_turn = True

    def end_turn(self) -> None:
        """Let another large part go on, if this one has a turn."""
        if self._has_turn:
            self._has_turn = False
            self._large.release()

    def _check_loss(self, lost: Lost) -> None:
        """Return if the coordinator knows of the loss: the part is published all the same.

        Raises:
            RecordsLostError: it has to note the loss first.
            RefusedError: LEADER_NOT_AVAILABLE, another broker may lead, whose log is whole.
        """
        if self._is_lost():
            message = (
                f"this broker has not heard from the controller for a whole session: another may lead {self._replica}"
            )
            raise refused(ErrorCode.LEADER_NOT_AVAILABLE, message, retry_after_ms=RETRY_MS)
        if lost.records != self._part.lost_records:
            raise RecordsLostError(lost.records, str(self._replica))

    # Plan and append.

    async def _plan(self, done: int) -> tuple[Plan, dict[int, memoryview]]:
        """Return the next plan and, if what it looked at is little, the batches of it by base offset."""
        part = self._part
        planner = Planner(part.slices, done_records=done, max_batches=self._max_batches)
        kept: dict[int, memoryview] = {}
        kept_bytes = 0
        async for piece in self._staged.look(part.topic_id, part.partition, planner.ranges):
            for batch, data in piece:
                planner.add(batch)
                kept_bytes += batch.size_bytes
                if data is not None and kept_bytes <= KEEP_BYTES:
                    kept[batch.base_offset] = data
        found = planner.plan()
        if isinstance(found, MissingSlice):
            raise refused(ErrorCode.INGEST_INCOMPLETE, f"{self._replica} cannot be published: {found}")
        return found, kept if kept_bytes <= KEEP_BYTES else {}

    async def _publish_plan(self, plan: Plan, kept: dict[int, memoryview]) -> None:
        """Append the batches of a plan, a piece at a time. A large part reads the next piece meanwhile."""
        pieces = plan.pieces(max_bytes=PIECE_BYTES)
        piece = next(pieces, None)
        ahead = self._read_ahead(piece)
        while piece is not None:
            ready = None if ahead is None else await ahead
            following = next(pieces, None)
            ahead = self._read_ahead(following)
            if ready is not None:
                await self._append(ready)
            else:
                async for some in self._read(piece, kept):
                    await self._append(some)
            await asyncio.sleep(0)
            piece = following

    def _read_ahead(self, piece: Sequence[Run] | None) -> asyncio.Future[list[HeadedBatch] | None] | None:
        """Begin to read a piece of a large part in the publications' thread; None if that is not possible, or not worth it.

        The result is None where `_read` has to look what is wrong.
        """
        if piece is None or not self._has_turn:
            return None
        works: list[ReadWork] = []
        for run in piece:
            work = self._staged.begin(self._part.topic_id, self._part.partition, run.base_offset, run.end_offset)
            if work is None:
                return None
            works.append(work)
        read = partial(_read_in_thread, self._part, str(self._replica), piece, works)
        return asyncio.get_running_loop().run_in_executor(self._thread, read)

    async def _read(self, piece: Sequence[Run], kept: dict[int, memoryview]) -> AsyncGenerator[list[HeadedBatch], None]:
        """Yield the batches of a piece: those that are kept, and the others from where they can be read."""
        part, name = self._part, str(self._replica)
        for run in piece:
            position = 0
            while position < len(run.batches):
                planned = run.batches[position:]
                data: bytes | memoryview | None = kept.get(planned[0].base_offset)
                if data is None:
                    data = await self._staged.read(
                        part.topic_id, part.partition, planned[0].base_offset, run.end_offset
                    )
                ready = ready_batches(part, name, data, planned)
                yield ready
                position += len(ready)

    async def _append(self, run: Sequence[HeadedBatch]) -> None:
        """Append batches that continue each other, under their publishing sequences."""
        part, replica = self._part, self._replica
        while run:
            await self._wait_room(run[0].header.size_bytes)
            if not replica.is_leader:
                raise RefusedError(replica.refusal())
            if replica.leader_epoch != self._leader_epoch:
                message = f"{replica} has another leader epoch than when the publication began"
                raise refused(ErrorCode.LEADER_NOT_AVAILABLE, message, retry_after_ms=RETRY_MS)
            if self._has_turn and self._hold_end is None:
                replica.hold_flushes()
                self._hold_end = asyncio.get_running_loop().call_later(FLUSH_HOLD_MS / 1000, self.let_flush)
            may_skip = part.lost_records > 0 and run[0].header.base_sequence == part.base_sequence
            appended = replica.append_decided(self._first_that_fit(run), may_skip=may_skip)
            for (_, header, _), (base_offset, next_offset, _) in zip(run, appended, strict=False):
                self._search.add((KnownBatch(header.base_sequence, base_offset, next_offset),))
                self._in_flight.append((next_offset, header.size_bytes))
                self._in_flight_bytes += header.size_bytes
                self._held_bytes += header.size_bytes
            if self._held_bytes >= FLUSH_BYTES:
                self.let_flush()
            run = run[len(appended) :]

    def _first_that_fit(self, run: Sequence[HeadedBatch]) -> Sequence[HeadedBatch]:
        """Return the first batches of a run that may be in flight, and unflushed, beside the others; at least one."""
        left_bytes = min(IN_FLIGHT_BYTES - self._in_flight_bytes, FLUSH_BYTES - self._held_bytes)
        for count, (_, header, _) in enumerate(run[:RUN_BATCHES_MAX]):
            left_bytes -= header.size_bytes
            if count and left_bytes < 0:
                return run[:count]
        return run[:RUN_BATCHES_MAX]

    def let_flush(self) -> None:
        """Let the log flush what was appended, if this publication holds its flushes back."""
        self._held_bytes = 0
        if self._hold_end is not None:
            self._hold_end.cancel()
            self._hold_end = None
            self._replica.release_flushes()

    async def _wait_room(self, size_bytes: int) -> None:
        is_large = self._has_turn
        while self._in_flight:
            end_offset, committed_bytes = self._in_flight[0]
            if end_offset > self._replica.high_watermark:
                if self._in_flight_bytes + size_bytes <= IN_FLIGHT_BYTES:
                    break
                await self._wait_committed(end_offset)
            self._in_flight.popleft()
            self._in_flight_bytes -= committed_bytes
        if is_large:
            await self._take_turn()

    async def _wait_committed(self, end_offset: int) -> None:
        self.let_flush()
        if not self._has_turn:
            await wait_committed(self._replica, end_offset, leader_epoch=self._leader_epoch, timeout_ms=COMMIT_WAIT_MS)
            return
        # A partition whose followers are slow keeps no other waiting.
        handle = asyncio.get_running_loop().call_later(TURN_WAIT_MS / 1000, self.end_turn)
        try:
            await wait_committed(self._replica, end_offset, leader_epoch=self._leader_epoch, timeout_ms=COMMIT_WAIT_MS)
        finally:
            handle.cancel()

    # Where a part is that was published before.

    async def _search_log(self, end_offset: int) -> None:
        """Look for the ends of the part in the log below an offset (exclusive), the newest segment first."""
        for first_offset in self._segment_starts(end_offset):
            try:
                await self._search_segment(first_offset, end_offset)
            except RefusedError as error:
                if error.failure.code is ErrorCode.OFFSET_OUT_OF_RANGE:
                    # Retention was faster.
                    return
                if error.failure.code is not ErrorCode.DATA_LOSS:
                    raise
                logger.warning("offsets of a published part not found: partition=%s: %s", self._replica, error)
            if self._search.first_offset is not None:
                return
            end_offset = first_offset

    def _segment_starts(self, end_offset: int) -> Iterator[int]:
        replica = self._replica
        starts = [each.base_offset for each in replica.log.segments if each.base_offset < end_offset]
        for start in reversed(starts):
            first_offset = max(start, replica.log_start_offset)
            if first_offset < end_offset:
                yield first_offset

    async def _search_segment(self, offset: int, end_offset: int) -> None:
        producer_id = self._part.producer_id
        while offset < end_offset:
            found = self._replica.read(offset, READ_BYTES, end_offset=end_offset)
            if not found.data:
                return
            self._search.add(
                KnownBatch(header.base_sequence, header.base_offset, header.next_offset)
                for _, header in iter_batches(found.data)
                if header.producer_id == producer_id and header.base_sequence >= 0
            )
            offset = found.next_offset
            await asyncio.sleep(0)
