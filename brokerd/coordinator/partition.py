# SPDX-License-Identifier: Apache-2.0
"""The shell of one coordinator partition: a machine over a replica.

Owns the futures of callers, the task that loads, and the timer. The machine decides; this class reads the log, appends, and hears of
the high watermark and of the end of the service. Everything runs on the event loop.

Laws
    A turn and its append are one step of the event loop: nothing comes between a decision and the log.
    Inside `on_high_watermark` nothing is appended: a turn begins in a later step.
    Callers are answered in the step in which the machine answers.
Source: `docs/coordinator.md`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Generic

from lograft.wire.batch import read_header
from lograft.wire.codes import ErrorCode
from lograft.wire.errors import BatchError

from brokerd.clock import monotonic_ms, wall_ms
from brokerd.coordinator.core import Command, Rec, Record, Response
from brokerd.coordinator.limits import (
    COMMAND_WAIT_MS,
    HELD_UP_GRACE_MS,
    HELD_UP_MS,
    LOAD_KEEP_RECORDS,
    LOAD_READ_BYTES,
    LOAD_SLICE_MS,
    LOAD_SLICE_RECORDS,
)
from brokerd.coordinator.log_pieces import encode_append, read_pieces
from brokerd.coordinator.machine import PartitionMachine, State
from brokerd.coordinator.snapshot_files import SnapshotReader
from brokerd.coordinator.snapshot_format import DamagedSnapshotError
from brokerd.coordinator.snapshotting import PartitionSnapshots
from brokerd.coordinator.unserved import UnservedError, moved, no_coordinator
from brokerd.failure import Failure, RefusedError
from brokerd.partition.events import AckLevel
from brokerd.replica.replica import Replica
from storage.errors import StorageError

logger = logging.getLogger(__name__)


class CoordinatorPartition(Generic[Command, Response, Rec]):
    """One partition of an internal topic, as long as its replica is open. Belongs to the event loop in which it was made.

    Args:
        replica: the open replica.
        machine: its machine, inactive.
        on_tick: gets the responses of ticks once they are committed.
        on_active: called with True when the coordinator has become active, in a later step of the event loop and before anything
            that it answers then; and with False in the step in which it is active no longer.
        on_gone: called once when the replica is closed or its log has failed.
        keep_loaded: called after each `LOAD_KEEP_RECORDS` records that were loaded; None: nobody is interested.

    Attributes:
        replica: as above.
        machine: as above; only this object calls it.
        snapshots: the snapshots of the replica.
        load_ms: milliseconds that the last loading took, without the wait for the high watermark; None: none yet.
        loaded_records: records that the last loading replayed.
        longest_slice_ms: longest step of the event loop while loading, in milliseconds.
        is_last_load_from_snapshot: True if the last loading used a snapshot.
    """

    def __init__(
        self,
        replica: Replica,
        machine: PartitionMachine[Command, Response, Rec],
        *,
        on_tick: Callable[[int, Response], None] | None,
        on_active: Callable[[int, bool], None] | None = None,
        on_gone: Callable[[CoordinatorPartition[Command, Response, Rec]], None],
        keep_loaded: Callable[[], None] | None = None,
    ) -> None:
        self.replica = replica
        self.machine = machine
        self.snapshots = PartitionSnapshots(replica)
        self.load_ms: int | None = None
        self.loaded_records = 0
        self.longest_slice_ms = 0
        self.is_last_load_from_snapshot = False
        self._on_tick = on_tick
        self._on_active = on_active
        self._was_active = False
        self._on_gone = on_gone
        self._keep_loaded = keep_loaded
        # Records that were loaded since `keep_loaded` was called.
        self._new_records = 0
        self._loop = asyncio.get_running_loop()
        self._futures: dict[int, asyncio.Future[Response]] = {}
        self._next_token = 0
        self._loading: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._turn: asyncio.Handle | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_due_ms = 0
        self._retry: asyncio.TimerHandle | None = None
        self._slice_began_ms = 0
        self._is_closed = False

    def __str__(self) -> str:
        return str(self.replica)

    # ------------------------------------------------------------------------------------------------------------------
    # Commands.

    async def submit(self, command: Command, *, size_bytes: int = 0, timeout_ms: int = COMMAND_WAIT_MS) -> Response:
        """Carry out a command, and return the response once everything that it depends on is committed.

        Args:
            command: the command.
            size_bytes: bytes that it holds, about.
            timeout_ms: longest wait in milliseconds.

        Raises:
            UnservedError: it got no response; the reason says whether it may have taken effect. A cancelled caller does not know.
        """
        machine = self.machine
        if machine.state is State.INACTIVE:
            raise UnservedError(moved(str(self), self.replica.refusal()))
        self._next_token += 1
        token = self._next_token
        unserved = machine.submit(token, command, size_bytes=size_bytes)
        if unserved is not None:
            raise UnservedError(unserved)
        future: asyncio.Future[Response] = self._loop.create_future()
        self._futures[token] = future
        self._begin_turn_soon()
        timer = self._loop.call_later(timeout_ms / 1000, self._give_up, token)
        try:
            return await future
        finally:
            timer.cancel()
            if self._futures.pop(token, None) is not None:
                machine.drop(token)

    def _give_up(self, token: int) -> None:
        future = self._futures.pop(token, None)
        unserved = self.machine.drop(token)
        if future is not None and unserved is not None and not future.done():
            future.set_exception(UnservedError(unserved))

    def _deliver(self) -> None:
        """Pass on what the machine has for others, and set the timers."""
        machine = self.machine
        self._tell_active()
        for fault in machine.take_faults():
            logger.error("coordinator: partition=%s %s", self, fault.what, exc_info=fault.error)
        for token, response, unserved in machine.take_answers():
            if token is None:
                if self._on_tick is not None and response is not None:
                    self._loop.call_soon(self._on_tick, self.replica.partition, response)
                continue
            future = self._futures.pop(token, None)
            if future is None or future.done():
                continue
            if unserved is not None:
                future.set_exception(UnservedError(unserved))
            else:
                future.set_result(response)  # type: ignore[arg-type]
        if machine.state is State.FAILED and self._retry is None and not self._is_closed:
            self._retry = self._loop.call_later(machine.retry_ms / 1000, self._load_again)
        if machine.has_work:
            self._begin_turn_soon()
        self._set_timer()

    def _tell_active(self) -> None:
        is_active = self.machine.state is State.ACTIVE
        if is_active == self._was_active:
            return
        self._was_active = is_active
        if self._on_active is None:
            return
        if is_active:
            # Not in this step: it may be amid a move of the high watermark, and a user submits commands then.
            self._loop.call_soon(self._on_active, self.replica.partition, True)
        else:
            self._on_active(self.replica.partition, False)

    # ------------------------------------------------------------------------------------------------------------------
    # Turns and ticks.

    def _begin_turn_soon(self) -> None:
        # In a later step, so that the commands of one step of the event loop share an append.
        if self._turn is None:
            self._turn = self._loop.call_soon(self._take_turn)

    def _take_turn(self) -> None:
        self._turn = None
        machine, replica = self.machine, self.replica
        if machine.state is State.ACTIVE:
            now_ms = monotonic_ms()
            records = machine.begin_turn(now_ms)
            if records:
                assert replica.leader_epoch == machine.leader_epoch, f"{self}: the end of an epoch was not heard"
                self._append(records, now_ms)
        self._deliver()

    def _append(self, records: Sequence[Record], now_ms: int) -> None:
        machine, replica = self.machine, self.replica
        try:
            batch = encode_append(records, timestamp_ms=wall_ms())
            if len(batch) > replica.max_message_bytes:
                message = f"{replica} takes batches of {replica.max_message_bytes} bytes, not of {len(batch)}: nothing was appended"
                machine.refuse_turn(Failure(code=ErrorCode.MESSAGE_TOO_LARGE, message=message), now_ms)
                return
            appended = replica.append(memoryview(batch), read_header(batch), level=AckLevel.ALL)
        except RefusedError as error:
            machine.refuse_turn(error.failure, now_ms)
        except BatchError as error:
            machine.refuse_turn(Failure(code=error.code, message=str(error)), now_ms)
        else:
            machine.accept_turn(appended.base_offset)

    def _set_timer(self) -> None:
        now_ms = monotonic_ms()
        due_ms = self.machine.tick_due_ms(now_ms)
        if self._timer is not None:
            if due_ms == self._timer_due_ms:
                return
            self._timer.cancel()
            self._timer = None
        if due_ms is not None:
            self._timer_due_ms = due_ms
            self._timer = self._loop.call_later(max(due_ms - now_ms, 0) / 1000, self._on_timer, max(due_ms, now_ms))

    def _on_timer(self, planned_ms: int) -> None:
        self._timer = None
        now_ms = monotonic_ms()
        if now_ms - planned_ms >= HELD_UP_MS:
            logger.warning("coordinator: partition=%s late_ms=%d, the tick waits", self, now_ms - planned_ms)
            self.machine.hold_tick(now_ms + HELD_UP_GRACE_MS)
        self._begin_turn_soon()

    # ------------------------------------------------------------------------------------------------------------------
    # Leadership.

    def note_role(self) -> None:
        """Note that the role or the leader epoch of the replica may have changed. Not for use inside `on_high_watermark`."""
        if self._is_closed:
            return
        machine, replica = self.machine, self.replica
        if not replica.is_writable:
            self.close(Failure(code=ErrorCode.STORAGE_FAILED, message="the replica is closed or its log has failed"))
            self._on_gone(self)
            return
        replica.listeners.add_read(self)
        is_present = replica.is_leader and machine.leader_epoch == replica.leader_epoch
        if machine.state is not State.INACTIVE and not is_present:
            self._resign(replica.refusal() if not replica.is_leader else no_coordinator(str(self)).failure)
        if replica.is_leader and machine.state is State.INACTIVE:
            machine.lead(
                leader_epoch=replica.leader_epoch,
                log_end_offset=replica.log_end_offset,
                high_watermark=replica.high_watermark,
            )
            self._begin_load()

    def on_high_watermark(self, high_watermark: int) -> None:
        """Note that everything below is committed."""
        if self.machine.state is State.INACTIVE:
            return
        self.machine.advance(high_watermark)
        self._deliver()

    def on_service_end(self, failure: Failure) -> None:
        """Note that the replica no longer leads in this epoch, or no longer serves."""
        self._resign(failure)
        self._loop.call_soon(self.note_role)

    def close(self, failure: Failure) -> None:
        """End everything; waiting commands get typed answers. Idempotent."""
        self._is_closed = True
        self.replica.listeners.remove(self)
        self._resign(failure)
        if self._turn is not None:
            self._turn.cancel()
            self._turn = None

    def _resign(self, failure: Failure) -> None:
        if self._loading is not None:
            self._loading.cancel()
            self._loading = None
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None
        self.machine.resign(moved(str(self), failure))
        self._deliver()

    # ------------------------------------------------------------------------------------------------------------------
    # Loading.

    @property
    def may_take_snapshot(self) -> bool:
        """True while the replica is open and nothing is being loaded."""
        return not self._is_closed and self.machine.state is not State.LOADING

    def _begin_load(self) -> None:
        assert self._loading is None, f"{self} is loading already"
        self._loading = self._loop.create_task(self._load(), name=f"coordinator-load-{self}")
        self._tasks.add(self._loading)
        self._loading.add_done_callback(self._tasks.discard)

    def _load_again(self) -> None:
        self._retry = None
        if self.machine.state is State.FAILED:
            replica = self.replica
            self.machine.reload(log_end_offset=replica.log_end_offset, high_watermark=replica.high_watermark)
            self._begin_load()

    async def _load(self) -> None:
        began_ms = monotonic_ms()
        self._slice_began_ms = began_ms
        self.loaded_records = self.longest_slice_ms = 0
        try:
            is_from_snapshot = await self._load_with_snapshot()
            if not is_from_snapshot:
                self.loaded_records = 0
                await self._load_log(None)
        except Exception as error:
            if self._loading is not asyncio.current_task():
                return
            is_unreadable = isinstance(error, RefusedError | StorageError | BatchError)
            self.machine.fail("could not read its log" if is_unreadable else "could not load its state", error)
        else:
            self.load_ms = monotonic_ms() - began_ms
            self.is_last_load_from_snapshot = is_from_snapshot
            if self.machine.state is not State.FAILED:
                logger.info(
                    "coordinator loaded: partition=%s leader_epoch=%d records=%d from_snapshot=%s ms=%d longest_slice_ms=%d",
                    self,
                    self.machine.leader_epoch,
                    self.loaded_records,
                    is_from_snapshot,
                    self.load_ms,
                    self.longest_slice_ms,
                )
        self._loading = None
        self._deliver()

    async def _load_with_snapshot(self) -> bool:
        """Load from the snapshot and the log above it; False: there is no usable one, and nothing of it counts."""
        reader = await self.snapshots.open_usable(self.machine.load_end)
        if reader is None:
            return False
        try:
            return await self._load_log(reader)
        except (DamagedSnapshotError, StorageError) as error:
            self.snapshots.ignore(str(error))
            return False
        finally:
            reader.close()

    async def _load_log(self, reader: SnapshotReader | None) -> bool:
        """Replay a snapshot, if there is one, and the log above it; False: the log has a gap there."""
        machine, replica = self.machine, self.replica
        start_offset = replica.log_start_offset if reader is None else reader.snapshot.end_offset
        machine.begin_load(start_offset, is_snapshot=reader is not None)
        self._begin_slice()
        while reader is not None and (chunk := await asyncio.to_thread(reader.next_chunk)) is not None:
            self._begin_slice()
            if not await self._replay(chunk):
                return True
        machine.note_loaded(start_offset)
        while machine.replayed_end < machine.load_end:
            read = replica.read(machine.replayed_end, LOAD_READ_BYTES, end_offset=machine.load_end)
            if not read.data:
                raise RuntimeError(f"the log has nothing at {machine.replayed_end}, below {machine.load_end}")
            for piece in read_pieces(read.data):
                if not machine.takes(piece):
                    self.snapshots.ignore(f"the log above it has a gap at {piece.base_offset}")
                    return False
                if not await self._replay(piece.records[piece.count_below(machine.replayed_end) :]):
                    return True
                machine.note_loaded(piece.next_offset)
            await self._end_slice_if_due()
        return True

    async def _replay(self, records: Sequence[Record]) -> bool:
        """Replay records in slices; False: the partition has failed."""
        for begin in range(0, len(records), LOAD_SLICE_RECORDS):
            if not self.machine.load(records[begin : begin + LOAD_SLICE_RECORDS]):
                return False
            await self._end_slice_if_due()
        self.loaded_records += len(records)
        self._new_records += len(records)
        if self._keep_loaded is not None and self._new_records >= LOAD_KEEP_RECORDS:
            self._new_records = 0
            self._keep_loaded()
        return True

    def _begin_slice(self) -> None:
        self._slice_began_ms = monotonic_ms()

    async def _end_slice_if_due(self) -> None:
        """Let the event loop serve others once the slice has taken its time."""
        spent_ms = monotonic_ms() - self._slice_began_ms
        self.longest_slice_ms = max(self.longest_slice_ms, spent_ms)
        if spent_ms >= LOAD_SLICE_MS:
            await asyncio.sleep(0)
            self._begin_slice()

    async def wait_idle(self) -> None:
        """Wait until no loading is under way, also none that was cancelled."""
        while self._tasks:
            await asyncio.wait(self._tasks)
