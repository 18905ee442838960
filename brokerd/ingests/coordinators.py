# SPDX-License-Identifier: Apache-2.0
"""The ingest coordinators of one broker: the runtime over `__ingests`, and what their cores ask the shell for.

Owns the publications and the words to groups that are under way, the calls that wait for decisions, and the totals. It makes the topic
on first use, and tells cores which topics are deleted. It knows no gRPC.

Laws
    A command goes to the coordinator here or is refused with the one to ask; nothing is forwarded.
    What a later coordinator may contradict is answered only while this broker cannot have been replaced.
    A part is asked for once at a time. What fails is asked for again by its core, so the shell repeats nothing.
    The effects of a tick are carried out once it is committed, in order.
Source: `docs/ingest.md` section "Shell".
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, NamedTuple, assert_never

from lograft.wire.codes import ErrorCode

from brokerd.clock import monotonic_ms, wall_ms
from brokerd.controller_client.controller_calls import ControllerCalls
from brokerd.coordinator.internal_topics import INGESTS
from brokerd.coordinator.limits import COMMAND_WAIT_MS
from brokerd.coordinator.runtime import CoordinatorRuntime
from brokerd.coordinator.topic_creation import TopicCreation
from brokerd.coordinator.unserved import UnservedError, UnservedReason, client_failure
from brokerd.failure import Failure, LeaderPlace, RefusedError, refused
from brokerd.ingests.answers import (
    Answer,
    IngestDescription,
    IngestList,
    Outcome,
    OutcomeKnown,
    Refused,
    Watermark,
)
from brokerd.ingests.codec import IngestCodec
from brokerd.ingests.commands import (
    Command,
    GroupOffset,
    NoteLostRecords,
    OffsetsResolved,
    PartPublished,
    scope_of,
)
from brokerd.ingests.core import IngestCore
from brokerd.ingests.deleted_topics import DeletedTopicsFeed
from brokerd.ingests.effects import (
    Effect,
    IngestCompleted,
    IngestExpired,
    IngestResult,
    Publish,
    RecordsLost,
    ResolveOffsets,
)
from brokerd.ingests.figures import FIGURES_MS, IngestFigures, IngestTotals, count_ingests
from brokerd.ingests.limits import ASKED_PARTS_MAX, COMMITS_MAX, TOLD_GROUPS_MAX
from brokerd.ingests.records import NO_OFFSET, IngestLogRecord
from brokerd.publishing.calls import PublicationCalls
from brokerd.publishing.parts import Part, Slice
from brokerd.publishing.publisher import RecordsLostError
from brokerd.replica.manager import ReplicaManager
from brokerd.replica.replica import Replica
from metaquorum.metadata.loader import MetadataLoader
from metaquorum.net.sparse_log import SparseLog

logger = logging.getLogger(__name__)

REPEAT_MS: Final = 250
"""Retry advice, in milliseconds, for a command whose answer was lost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetsToPrepare:
    """Offsets of a group that a commit carries, for the group to check and to keep pending.

    Attributes:
        group_id: group.
        ingest_id: ingest.
        ingest_epoch: its epoch.
        round: round that is to be committed.
        offsets: offsets, each partition once.
        offsets_digest: digest of group and offsets, by which the outcome names them.
        member_id: member that commits; empty: the group has no members.
        member_epoch: epoch of the member.
        instance_id: name of a static member; empty: none.
        commit_number: number of the commit among all of the member; 0: not numbered.
    """

    group_id: str
    ingest_id: str
    ingest_epoch: int
    round: int
    offsets: tuple[GroupOffset, ...]
    offsets_digest: bytes
    member_id: str
    member_epoch: int
    instance_id: str
    commit_number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupOffsetsCalls:
    """How groups are reached. Both calls may be repeated, and raise `RefusedError`.

    Attributes:
        prepare: returns once the offsets are pending at their group.
        resolve: returns once the group knows what became of them.
    """

    prepare: Callable[[OffsetsToPrepare], Awaitable[None]]
    resolve: Callable[[ResolveOffsets], Awaitable[None]]


async def _prepare_nothing(_asked: OffsetsToPrepare) -> None:
    raise refused(ErrorCode.INVALID_REQUEST, "this broker takes no offsets of groups with a commit: leave them out")


async def _resolve_nothing(asked: ResolveOffsets) -> None:
    # What was never prepared is resolved, if it does not count.
    if asked.is_committed:
        message = "offsets of a group count, and this broker reaches no groups"
        raise refused(ErrorCode.COORDINATOR_LOADING, message, retry_after_ms=REPEAT_MS)


WITHOUT_GROUPS: Final = GroupOffsetsCalls(prepare=_prepare_nothing, resolve=_resolve_nothing)
"""Refuses all offsets."""

_LEASED: Final = (Refused, IngestDescription, IngestList, OutcomeKnown, Watermark)
"""Outcomes that a later coordinator may contradict. All others are on record, or stay true for ever."""


class _PartKey(NamedTuple):
    """A part that is asked for; see `PartIdentity`."""

    ingest_id: str
    round: int
    topic_id: bytes
    partition: int
    base_sequence: int


class IngestCoordinators:
    """The coordinators of one broker. Belongs to one event loop; only its own methods write its state.

    Args:
        node_id: this broker.
        observer: the metadata.
        manager: the replicas.
        calls: calls to the controller.
        publications: asks the leaders of partitions.
        is_lost: returns True while another broker may have taken over, because the controller was not heard for a whole session.
        group_offsets: how groups are reached.
        keep_loaded: see `CoordinatorRuntime`.

    Attributes:
        totals: totals since the start.
        figures: the last look at the ingests.
    """

    def __init__(
        self,
        *,
        node_id: int,
        observer: MetadataLoader,
        manager: ReplicaManager,
        calls: ControllerCalls,
        publications: PublicationCalls,
        is_lost: Callable[[], bool],
        group_offsets: GroupOffsetsCalls = WITHOUT_GROUPS,
        keep_loaded: Callable[[], None] | None = None,
    ) -> None:
        self.group_offsets = group_offsets
        self._manager = manager
        self._publications = publications
        self._is_lost = is_lost
        self._creation = TopicCreation(INGESTS, observer, calls)
        self._runtime: CoordinatorRuntime[Command, Answer, IngestLogRecord] = CoordinatorRuntime(
            INGESTS.name,
            node_id=node_id,
            new_core=lambda partition: IngestCore(partition, unix_offset_ms=wall_ms() - monotonic_ms()),
            codec=IngestCodec(),
            leader_place=self.leader_place,
            scope_of=scope_of,
            on_tick=self._on_tick,
            on_active=self._on_active,
        )
        self._runtime.keep_loaded = keep_loaded
        self._deleted = DeletedTopicsFeed(observer, submit=self._runtime.submit, core=self.core)
        self._waiting: dict[str, list[asyncio.Future[IngestResult | None]]] = {}
        self._waiting_count = 0
        self._parts: dict[_PartKey, None] = {}
        self._groups: dict[ResolveOffsets, None] = {}
        self._lines = SparseLog()
        self._tasks: set[asyncio.Task[None]] = set()
        self._looking: asyncio.Task[None] | None = None
        self._is_stopped = False
        self.totals = IngestTotals()
        self.figures = IngestFigures()

    # Start and stop.

    def start(self) -> None:
        """Begin to follow the metadata, to make snapshots and to count. Roles may come before."""
        self._runtime.start()
        self._deleted.start()
        self._looking = asyncio.create_task(self._look(), name="ingest-figures")

    async def stop(self) -> None:
        """Stop coordinating: every waiting command gets its answer. Before the replicas are closed. Idempotent."""
        if self._is_stopped:
            return
        self._is_stopped = True
        await self._deleted.stop()
        await self._runtime.stop()
        await self._creation.close()
        tasks = [*self._tasks, *([] if self._looking is None else [self._looking])]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def note_role(self, replica: Replica) -> None:
        """Note that the role or the leader epoch of a replica has changed; replicas of other topics are ignored."""
        self._runtime.note_role(replica)

    def _on_active(self, partition: int, is_active: bool) -> None:
        if not is_active:
            self._deleted.end(partition)
            self._wake_waiting(partition)
            return
        if self.core(partition) is None:
            return
        found = self._runtime.find(partition)
        if found is not None and found.load_ms is not None:
            self.totals.loads += 1
            self.totals.load_ms += found.load_ms
            self.totals.last_load_ms = found.load_ms
        self._deleted.begin(partition)

    # Who coordinates.

    def leader_place(self, partition: int) -> LeaderPlace | None:
        """Return the leader of a partition of `__ingests`; None: none is known, or the topic does not exist."""
        topic = self._creation.image
        return None if topic is None else self._manager.leader_place(topic.topic_id, partition)

    async def ensure_topic(self, *, timeout_ms: int) -> None:
        """Return once `__ingests` exists; make it if need be.

        Raises:
            RefusedError: COORDINATOR_LOADING.
        """
        await self._creation.ensure(timeout_ms=timeout_ms)

    @property
    def leaders(self) -> tuple[LeaderPlace | None, ...]:
        """The leader of each partition of `__ingests`; empty while the topic does not exist."""
        topic = self._creation.image
        if topic is None:
            return ()
        return tuple(self._manager.leader_place(topic.topic_id, each.partition) for each in topic.partitions)

    def core(self, partition: int) -> IngestCore | None:
        """Return the core of an active coordinator, for reading."""
        found = self._runtime.find(partition)
        core = None if found is None else found.machine.core
        return core if isinstance(core, IngestCore) else None

    def cores(self) -> Iterator[IngestCore]:
        """Yield the cores of the active coordinators, for reading."""
        for each in self._runtime.partitions:
            if isinstance(each.machine.core, IngestCore):
                yield each.machine.core

    # Commands.

    async def submit(
        self, ingest_id: str, command: Command, *, size_bytes: int = 0, timeout_ms: int = COMMAND_WAIT_MS
    ) -> Outcome:
        """Carry out a command about one ingest.

        Returns:
            The outcome, which may be `Refused`.

        Raises:
            RefusedError: it got no outcome: NOT_COORDINATOR with a leader hint, COORDINATOR_LOADING, OVERLOADED, TIMED_OUT and others.
                Every command may be repeated.
        """
        if self._creation.image is None:
            await self._creation.ensure(timeout_ms=timeout_ms)
        return await self.submit_to(
            INGESTS.partition_of(ingest_id), command, size_bytes=size_bytes, timeout_ms=timeout_ms
        )

    async def submit_to(
        self, partition: int, command: Command, *, size_bytes: int = 0, timeout_ms: int = COMMAND_WAIT_MS
    ) -> Outcome:
        """Carry out a command at the coordinator of a partition of `__ingests`. Raises as `submit`."""
        kind = type(command).__name__
        try:
            answer = await self._runtime.submit(partition, command, size_bytes=size_bytes, timeout_ms=timeout_ms)
        except UnservedError as error:
            failure = _failure_of(error)
            self.totals.count_command(kind, failure.code.name)
            raise RefusedError(failure) from error
        outcome = answer.outcome
        self.totals.count_command(kind, outcome.code.value if isinstance(outcome, Refused) else "ok")
        self._carry_out(partition, answer.effects)
        if isinstance(outcome, _LEASED) and self._is_lost():
            # Looked at after the decision, so that it was made while this was true.
            message = (
                "this broker has not heard from the controller for a whole session: another may coordinate the ingest"
            )
            raise refused(ErrorCode.NOT_COORDINATOR, message, retry_after_ms=REPEAT_MS)
        return outcome

    # Calls that wait for a decision to be published.

    @contextmanager
    def completion(self, ingest_id: str) -> Generator[asyncio.Future[IngestResult | None]]:
        """Yield a future that gets the result of the next decision of an ingest that is complete, if it is heard of here.

        It gets None when this broker does not coordinate the ingest any more.

        Raises:
            RefusedError: OVERLOADED, too many calls wait.
        """
        if self._waiting_count >= COMMITS_MAX:
            message = f"{COMMITS_MAX} commits are being carried out here: try again"
            raise refused(ErrorCode.OVERLOADED, message, retry_after_ms=REPEAT_MS)
        future: asyncio.Future[IngestResult | None] = asyncio.get_running_loop().create_future()
        waiting = self._waiting.setdefault(ingest_id, [])
        waiting.append(future)
        self._waiting_count += 1
        try:
            yield future
        finally:
            self._waiting_count -= 1
            waiting.remove(future)
            future.cancel()
            if not waiting and self._waiting.get(ingest_id) is waiting:
                del self._waiting[ingest_id]

    def _complete(self, effect: IngestCompleted) -> None:
        self.totals.completed_decisions += 1
        self._wake(effect.ingest_id, effect.result)

    def _wake_waiting(self, partition: int) -> None:
        """Wake the calls about the ingests of a partition: when they ask again, they hear who coordinates them now."""
        for ingest_id in tuple(self._waiting):
            if INGESTS.partition_of(ingest_id) == partition:
                self._wake(ingest_id, None)

    def _wake(self, ingest_id: str, result: IngestResult | None) -> None:
        for future in self._waiting.get(ingest_id, ()):
            if not future.done():
                future.set_result(result)

    # Effects.

    def _on_tick(self, partition: int, answer: Answer) -> None:
        self._carry_out(partition, answer.effects)

    def _carry_out(self, partition: int, effects: Iterable[Effect]) -> None:
        for effect in effects:
            match effect:
                case Publish():
                    self._begin_part(partition, effect)
                case ResolveOffsets():
                    self._begin_group(partition, effect)
                case IngestCompleted():
                    self._complete(effect)
                case IngestExpired():
                    self.totals.expired_ingests += 1
                    logger.info(
                        "ingest expired: ingest=%s epoch=%d round=%d: nobody touched it, and it is aborted",
                        effect.ingest_id,
                        effect.ingest_epoch,
                        effect.round,
                    )
                case RecordsLost():
                    self.totals.lost_records += effect.records
                    logger.error(
                        "published records are lost: topic=%s partition=%d records=%d: the log had them and has them no more, by an "
                        "unclean election for example; what is decided goes on after them: ingest=%s round=%d",
                        effect.topic_id.hex(),
                        effect.partition,
                        effect.records,
                        effect.ingest_id,
                        effect.round,
                    )
                case _:
                    assert_never(effect)

    def _begin_part(self, partition: int, effect: Publish) -> None:
        part = effect.part
        key = _PartKey(effect.ingest_id, effect.round, part.topic_id, part.partition, part.base_sequence)
        if key in self._parts or self._is_stopped:
            return
        if len(self._parts) >= ASKED_PARTS_MAX:
            self.totals.left_out_parts += 1
            return
        self._parts[key] = None
        task = self._spawn(self._publish(partition, effect), f"publication-{effect.ingest_id}")
        task.add_done_callback(lambda _: self._parts.pop(key, None))

    async def _publish(self, partition: int, effect: Publish) -> None:
        """Have a part published and tell its core. After a failure the core asks again."""
        part, is_topic_gone = _part_of(effect), False
        first_offset = end_offset = NO_OFFSET
        try:
            first_offset, end_offset = await self._publications.publish(part)
        except RecordsLostError as error:
            self.totals.failed_parts += 1
            lost = NoteLostRecords(
                ingest_id=effect.ingest_id,
                round=effect.round,
                topic_id=part.topic_id,
                partition=part.partition,
                base_sequence=part.base_sequence,
                records=error.records,
            )
            await self._report(partition, lost, effect.ingest_id)
            return
        except RefusedError as error:
            if error.failure.code is not ErrorCode.UNKNOWN_TOPIC:
                self.totals.failed_parts += 1
                self._log(f"part not published yet: code={error.failure.code.name}", effect.ingest_id, error)
                return
            is_topic_gone = True
            self.totals.ended_parts += 1
            logger.warning(
                "topic of a decision was deleted: ingest=%s round=%d topic=%s partition=%d records=%d are dropped",
                effect.ingest_id,
                effect.round,
                part.topic_id.hex(),
                part.partition,
                part.records,
            )
        else:
            self.totals.published_parts += 1
        command = PartPublished(
            ingest_id=effect.ingest_id,
            round=effect.round,
            topic_id=part.topic_id,
            partition=part.partition,
            base_sequence=part.base_sequence,
            first_offset=first_offset,
            end_offset=end_offset,
            is_topic_gone=is_topic_gone,
        )
        await self._report(partition, command, effect.ingest_id)

    def _begin_group(self, partition: int, effect: ResolveOffsets) -> None:
        if effect in self._groups or len(self._groups) >= TOLD_GROUPS_MAX or self._is_stopped:
            return
        self._groups[effect] = None
        task = self._spawn(self._resolve(partition, effect), f"offsets-{effect.group_id}")
        task.add_done_callback(lambda _: self._groups.pop(effect, None))

    async def _resolve(self, partition: int, effect: ResolveOffsets) -> None:
        """Tell a group an outcome, and the core that it has heard it. After a failure the core asks again."""
        try:
            await self.group_offsets.resolve(effect)
        except RefusedError as error:
            self.totals.failed_groups += 1
            self._log(f"group not told yet: code={error.failure.code.name}", effect.ingest_id, error)
            return
        self.totals.told_groups += 1
        command = OffsetsResolved(ingest_id=effect.ingest_id, ingest_epoch=effect.ingest_epoch, round=effect.round)
        await self._report(partition, command, effect.ingest_id)

    async def _report(
        self, partition: int, command: PartPublished | NoteLostRecords | OffsetsResolved, ingest_id: str
    ) -> None:
        try:
            outcome = await self.submit_to(partition, command)
        except RefusedError as error:
            self._log(f"{type(command).__name__} not noted: code={error.failure.code.name}", ingest_id, error)
            return
        if isinstance(outcome, Refused):
            logger.error("%s refused: ingest=%s: %s", type(command).__name__, ingest_id, outcome.message)

    def _log(self, what: str, ingest_id: str, error: RefusedError) -> None:
        """Write at most a line a second of each kind: everything that fails is asked for again each second."""
        count = self._lines.note(what, monotonic_ms() / 1000)
        if count and not self._is_stopped:
            logger.warning("%s ingest=%s count=%d: %s", what, ingest_id, count, error.failure.message)

    # Tasks.

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(FIGURES_MS / 1000)
            await self.look()

    async def look(self) -> None:
        """Count the ingests anew."""
        self.figures = await count_ingests(tuple(self.cores()))

    def _spawn(self, work: Coroutine[None, None, None], name: str) -> asyncio.Task[None]:
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._on_done)
        return task

    def _on_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            logger.error("work for an ingest failed: %s", task.get_name(), exc_info=error)


def _failure_of(error: UnservedError) -> Failure:
    """Return why a command got no outcome. Commands of ingests may be repeated, so a lost answer is no unknown outcome."""
    failure = client_failure(error.unserved)
    if error.unserved.reason is not UnservedReason.OUTCOME_UNKNOWN:
        return failure
    message = f"{failure.message} (a repeated call gets the answer of the first)"
    return Failure(
        code=ErrorCode.TIMED_OUT,
        message=message,
        retry_after_ms=failure.retry_after_ms or REPEAT_MS,
        leader=failure.leader,
    )


def _part_of(effect: Publish) -> Part:
    """Return the part of an effect as leaders take it."""
    part = effect.part
    return Part(
        topic_id=part.topic_id,
        partition=part.partition,
        producer_id=effect.producer_id,
        base_sequence=part.base_sequence,
        records=part.records,
        slices=tuple(
            Slice(each.producer_id, each.first_sequence, each.records, each.first_offset, each.end_offset)
            for each in part.slices
        ),
        lost_records=part.lost_records,
    )
