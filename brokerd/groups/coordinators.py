# SPDX-License-Identifier: Apache-2.0
"""The group coordinators of one broker: the runtime over `__groups`, and what their cores ask the shell for.

Owns the numbers of heartbeat streams, the computations under way, and the totals. It makes the topic on first use, hands in the topics
of the metadata, runs assignors, and passes pushes on to the streams. It knows no gRPC: a stream is a `MemberStream`.

Laws
    A command goes to the coordinator here or is refused with the one to ask; nothing is forwarded.
    What a later coordinator may contradict is answered only while this broker cannot have been replaced. Beats are the exception.
    A stream that has ended gets no push, and its number is not used again.
    The effects of a tick are carried out once it is committed, in order.
Source: `docs/groups.md` section "Service".
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Iterator
from typing import Final, Protocol, assert_never

from lograft.wire.codes import ErrorCode

from brokerd.assignment_worker.worker import AssignmentFailedError, AssignmentSupersededError, AssignmentWorker
from brokerd.clock import monotonic_ms, wall_ms
from brokerd.controller_client.controller_calls import ControllerCalls
from brokerd.coordinator.internal_topics import GROUPS
from brokerd.coordinator.limits import COMMAND_WAIT_MS
from brokerd.coordinator.runtime import CoordinatorRuntime
from brokerd.coordinator.topic_creation import TopicCreation
from brokerd.coordinator.unserved import UnservedError, UnservedReason, client_failure
from brokerd.failure import LeaderPlace, RefusedError, refused
from brokerd.groups import patterns
from brokerd.groups.answers import (
    Answer,
    FetchedOffsets,
    GroupDescription,
    GroupList,
    OffsetResults,
    OffsetsResolved,
    Outcome,
    Refused,
)
from brokerd.groups.assignment.specs import AssignmentError
from brokerd.groups.codec import GroupCodec
from brokerd.groups.commands import AssignmentComputed, Command, StreamClosed, scope_of
from brokerd.groups.core import GroupCore
from brokerd.groups.effects import (
    AskOutcome,
    ComputeAssignment,
    Effect,
    GroupExpired,
    MemberRemoved,
    OffsetsExpired,
    PushAssignment,
)
from brokerd.groups.figures import FIGURES_MS, GroupFigures, GroupTotals, count_groups
from brokerd.groups.records import GroupLogRecord
from brokerd.groups.settings import GroupConfig
from brokerd.groups.topic_feed import TopicFeed
from brokerd.replica.manager import ReplicaManager
from brokerd.replica.replica import Replica
from metaquorum.metadata.loader import MetadataLoader

logger = logging.getLogger(__name__)

CLOSE_ATTEMPTS: Final = 20
"""Attempts to tell a coordinator that a stream has ended. Without success a static member there is replaced after its session."""

CLOSE_RETRY_MS: Final = 100
"""Milliseconds between two such attempts."""

REPLACED_RETRY_MS: Final = 250
"""Retry advice, in milliseconds, of a broker that may have been replaced."""

LOGGED_OFFSETS: Final = 20
"""Expired offsets that one log line names; the others are counted."""


class MemberStream(Protocol):
    """A heartbeat stream, as the coordinators see it. Its methods must not block."""

    def push_assignment(self, push: PushAssignment) -> None:
        """Send a member its assignment."""
        ...

    def tell_removed(self, removed: MemberRemoved) -> None:
        """Tell a member that it was removed."""
        ...

    def tell_moved(self, partition: int) -> None:
        """Tell the members whose groups a partition of `__groups` holds that this broker does not coordinate them any more."""
        ...


class GroupCoordinators:
    """The coordinators of one broker. Belongs to one event loop; only its own methods write its state.

    Args:
        node_id: this broker.
        observer: the metadata.
        manager: the replicas.
        calls: calls to the controller.
        is_lost: returns True while another broker may have taken over, because the controller was not heard for a whole session.
        defaults: config of groups that have none.
        keep_loaded: see `CoordinatorRuntime`.
        ask_outcome: asks the coordinator of an ingest what becomes of pending offsets, and submits `ResolveOffsets`. It must not block.
            None: nobody can be asked, and they stay pending.

    Attributes:
        totals: totals since the start.
        figures: the last look at the groups.
    """

    def __init__(
        self,
        *,
        node_id: int,
        observer: MetadataLoader,
        manager: ReplicaManager,
        calls: ControllerCalls,
        is_lost: Callable[[], bool],
        defaults: GroupConfig | None = None,
        keep_loaded: Callable[[], None] | None = None,
        ask_outcome: Callable[[AskOutcome], None] | None = None,
    ) -> None:
        self._observer = observer
        self._manager = manager
        self._is_lost = is_lost
        self._defaults = defaults
        self._ask_outcome = ask_outcome
        self._is_unasked_logged = False
        self._creation = TopicCreation(GROUPS, observer, calls)
        self._worker = AssignmentWorker()
        self._runtime: CoordinatorRuntime[Command, Answer, GroupLogRecord] = CoordinatorRuntime(
            GROUPS.name,
            node_id=node_id,
            new_core=self._new_core,
            codec=GroupCodec(),
            leader_place=self.leader_place,
            scope_of=scope_of,
            on_tick=self._on_tick,
            on_active=self._on_active,
        )
        self._runtime.keep_loaded = keep_loaded
        self._feed = TopicFeed(observer, submit=self._runtime.submit, core=self.core)
        self._streams: dict[int, MemberStream] = {}
        self._last_stream = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._looking: asyncio.Task[None] | None = None
        self._is_stopped = False
        self.totals = GroupTotals()
        self.figures = GroupFigures()

    # Start and stop.

    def start(self) -> None:
        """Begin to follow the metadata, to make snapshots and to count. Roles may come before."""
        self._runtime.start()
        self._feed.start()
        self._looking = asyncio.create_task(self._look(), name="group-figures")

    async def stop(self) -> None:
        """Stop coordinating: every waiting command gets its answer. Before the replicas are closed. Idempotent."""
        if self._is_stopped:
            return
        self._is_stopped = True
        await self._feed.stop()
        await self._runtime.stop()
        await self._creation.close()
        await self._worker.close()
        tasks = [*self._tasks, *([] if self._looking is None else [self._looking])]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def note_role(self, replica: Replica) -> None:
        """Note that the role or the leader epoch of a replica has changed; replicas of other topics are ignored."""
        self._runtime.note_role(replica)

    def _new_core(self, _partition: int) -> GroupCore:
        return GroupCore(patterns.compile_pattern, defaults=self._defaults, unix_offset_ms=wall_ms() - monotonic_ms())

    def _on_active(self, partition: int, is_active: bool) -> None:
        if is_active and self.core(partition) is not None:
            found = self._runtime.find(partition)
            if found is not None and found.load_ms is not None:
                totals = self.totals
                totals.loads += 1
                totals.load_ms += found.load_ms
                totals.last_load_ms = found.load_ms
            self._feed.begin(partition)
        elif not is_active:
            self._feed.end(partition)
            for stream in tuple(self._streams.values()):
                stream.tell_moved(partition)

    # Who coordinates.

    def leader_place(self, partition: int) -> LeaderPlace | None:
        """Return the leader of a partition of `__groups`; None: none is known, or the topic does not exist."""
        topic = self._creation.image
        return None if topic is None else self._manager.leader_place(topic.topic_id, partition)

    async def ensure_topic(self, *, timeout_ms: int) -> None:
        """Return once `__groups` exists; make it if need be.

        Raises:
            RefusedError: COORDINATOR_LOADING.
        """
        await self._creation.ensure(timeout_ms=timeout_ms)

    @property
    def leaders(self) -> tuple[LeaderPlace | None, ...]:
        """The leader of each partition of `__groups`; empty while the topic does not exist."""
        topic = self._creation.image
        if topic is None:
            return ()
        return tuple(self._manager.leader_place(topic.topic_id, each.partition) for each in topic.partitions)

    def core(self, partition: int) -> GroupCore | None:
        """Return the core of an active coordinator, for reading."""
        found = self._runtime.find(partition)
        core = None if found is None else found.machine.core
        return core if isinstance(core, GroupCore) else None

    def cores(self) -> Iterator[GroupCore]:
        """Yield the cores of the active coordinators, for reading."""
        for each in self._runtime.partitions:
            if isinstance(each.machine.core, GroupCore):
                yield each.machine.core

    # Commands.

    async def submit(
        self, group_id: str, command: Command, *, size_bytes: int = 0, timeout_ms: int = COMMAND_WAIT_MS
    ) -> Outcome:
        """Carry out a command about one group.

        Returns:
            The outcome, which may be `Refused`.

        Raises:
            RefusedError: it got no outcome: NOT_COORDINATOR with a leader hint, or without one (this broker may have been replaced);
                COORDINATOR_LOADING, OVERLOADED and others.
        """
        if self._creation.image is None:
            await self._creation.ensure(timeout_ms=timeout_ms)
        return await self.submit_to(
            GROUPS.partition_of(group_id), command, size_bytes=size_bytes, timeout_ms=timeout_ms
        )

    async def submit_to(
        self, partition: int, command: Command, *, size_bytes: int = 0, timeout_ms: int = COMMAND_WAIT_MS
    ) -> Outcome:
        """Carry out a command at the coordinator of a partition of `__groups`. Raises as `submit`."""
        kind = type(command).__name__
        try:
            answer = await self._runtime.submit(partition, command, size_bytes=size_bytes, timeout_ms=timeout_ms)
        except UnservedError as error:
            failure = client_failure(error.unserved)
            self.totals.count_command(kind, failure.code.name)
            raise RefusedError(failure) from error
        outcome = answer.outcome
        self.totals.count_command(kind, outcome.code.value if isinstance(outcome, Refused) else "ok")
        self._carry_out(partition, answer.effects)
        if _may_be_contradicted(outcome) and self._is_lost():
            # Looked at after the decision, so that it was made while this was true.
            message = (
                "this broker has not heard from the controller for a whole session: another may coordinate the group"
            )
            raise refused(ErrorCode.NOT_COORDINATOR, message, retry_after_ms=REPLACED_RETRY_MS)
        return outcome

    # Streams.

    def open_stream(self, stream: MemberStream) -> int:
        """Return the number of a new heartbeat stream, for joins and beats."""
        self._last_stream += 1
        self._streams[self._last_stream] = stream
        return self._last_stream

    def close_stream(self, number: int, partitions: Iterable[int]) -> None:
        """Note that a stream has ended; nothing more is submitted for it.

        Args:
            number: its number.
            partitions: partitions of `__groups` to which its joins and beats went.
        """
        del self._streams[number]
        for partition in partitions:
            self._spawn(self._tell_closed(partition, StreamClosed(stream=number)), f"stream-closed-{number}")

    async def _tell_closed(self, partition: int, command: StreamClosed) -> None:
        for _ in range(CLOSE_ATTEMPTS):
            try:
                await self._runtime.submit(partition, command)
            except UnservedError as error:
                if error.unserved.reason not in (UnservedReason.OVERLOADED, UnservedReason.TIMED_OUT):
                    # The next leadership knows no stream.
                    return
                await asyncio.sleep(CLOSE_RETRY_MS / 1000)
            else:
                return

    # Effects.

    def _on_tick(self, partition: int, answer: Answer) -> None:
        self._carry_out(partition, answer.effects)

    def _carry_out(self, partition: int, effects: Iterable[Effect]) -> None:
        for effect in effects:
            match effect:
                case ComputeAssignment():
                    self._spawn(self._compute(partition, effect), f"assignment-{effect.group_id}")
                case PushAssignment():
                    stream = self._streams.get(effect.stream)
                    if stream is not None:
                        stream.push_assignment(effect)
                case MemberRemoved():
                    self._note_removed(effect)
                case OffsetsExpired():
                    self._note_expired(effect)
                case AskOutcome():
                    self._ask(effect)
                case GroupExpired():
                    self.totals.expired_groups += 1
                    logger.info("group expired: group=%s: it had no members and no offsets", effect.group_id)
                case _:
                    assert_never(effect)

    def _ask(self, effect: AskOutcome) -> None:
        if self._ask_outcome is not None:
            self._ask_outcome(effect)
        elif not self._is_unasked_logged:
            self._is_unasked_logged = True
            logger.warning(
                "offsets stay pending, because nobody can be asked for the outcome: group=%s ingest=%s round=%d",
                effect.group_id,
                effect.ingest_id,
                effect.round,
            )

    def _note_removed(self, effect: MemberRemoved) -> None:
        reasons = self.totals.removed_members
        reasons[effect.reason.name] = reasons.get(effect.reason.name, 0) + 1
        logger.info(
            "member removed: group=%s member=%s reason=%s", effect.group_id, effect.member_id, effect.reason.value
        )
        stream = None if effect.stream is None else self._streams.get(effect.stream)
        if stream is not None:
            stream.tell_removed(effect)

    def _note_expired(self, effect: OffsetsExpired) -> None:
        self.totals.expired_offsets += len(effect.offsets)
        named = ", ".join(
            f"{topic_id.hex()}-{number}@{offset}" for topic_id, number, offset in effect.offsets[:LOGGED_OFFSETS]
        )
        logger.info("offsets expired: group=%s count=%d: %s", effect.group_id, len(effect.offsets), named)

    async def _compute(self, partition: int, effect: ComputeAssignment) -> None:
        """Compute a target assignment and give it back. After a failure the core asks again."""
        group_id = effect.group_id
        try:
            assignment = await self._worker.assign(group_id, effect.assignor, effect.members, effect.topics)
        except AssignmentSupersededError:
            return
        except (AssignmentError, AssignmentFailedError) as error:
            self.totals.failed_assignments += 1
            if not self._is_stopped:
                logger.error("assignment not computed: group=%s assignor=%s: %s", group_id, effect.assignor, error)
            return
        self.totals.computed_assignments += 1
        command = AssignmentComputed(group_id=group_id, group_epoch=effect.group_epoch, assignment=assignment)
        try:
            outcome = await self.submit_to(partition, command)
        except RefusedError as error:
            logger.warning("assignment not stored: group=%s: %s", group_id, error)
            return
        if isinstance(outcome, Refused):
            logger.warning("assignment not stored: group=%s: %s: %s", group_id, outcome.code.value, outcome.message)

    # Tasks.

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(FIGURES_MS / 1000)
            await self.look()

    async def look(self) -> None:
        """Count the groups anew."""
        self.figures = await count_groups(tuple(self.cores()))

    def _spawn(self, work: Coroutine[None, None, None], name: str) -> None:
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._on_done)

    def _on_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            logger.error("work for a group failed: %s", task.get_name(), exc_info=error)


def _may_be_contradicted(outcome: Outcome) -> bool:
    """Return True for what a later coordinator may know better: everything else is on record, stays true for ever, or is a beat."""
    match outcome:
        case Refused() | FetchedOffsets() | GroupList() | GroupDescription():
            return True
        case OffsetResults():
            return all(each.refused is not None for each in outcome.results)
        case OffsetsResolved():
            return not outcome.was_pending
        case _:
            return False
