# SPDX-License-Identifier: Apache-2.0
"""Runs one Raft core: passes it events one at a time, carries out its effects in order, and keeps its timer.

Owns the core; only the event loop thread touches it. Flushes and writes of the vote run in one disk thread, so the disk does not
block the event loop. Decides nothing. A failure of the log, the vote file or the core ends the node: it must not tell others what may
not be on disk, and a core in an impossible state must not continue.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from metaquorum.metadata.listener import QuorumLeader
from metaquorum.net.sparse_log import SparseLog
from metaquorum.raft.effects import (
    Activate,
    AdvanceCommit,
    AnnounceLeader,
    AnswerTransfer,
    AnswerVoterChange,
    AppendAsFollower,
    AppendAsLeader,
    Deactivate,
    DiscardSnapshot,
    DownloadSnapshot,
    Effect,
    FinishShutdown,
    FlushLog,
    InstallSnapshot,
    LeaderChange,
    PersistElectionState,
    Proposal,
    ReadReady,
    Rejection,
    RejectProposal,
    RejectRead,
    Reply,
    ReplyWithBatches,
    ReportViolation,
    Send,
    TrimLog,
    TruncateLog,
    VotersChange,
)
from metaquorum.raft.events import (
    ElectionStatePersisted,
    Event,
    Failure,
    LogFlushed,
    ProposalReceived,
    ReadRequested,
    RequestFailed,
    RequestReceived,
    ResponseReceived,
    ShutdownRequested,
    SnapshotFailed,
    Started,
    Tick,
)
from metaquorum.raft.messages import Request, Response
from metaquorum.raft.node import RaftNode
from metaquorum.raft.roles import Role
from metaquorum.raft.types import QuorumEpoch
from metaquorum.replica.delivery import ListenerFeed
from metaquorum.replica.disk_thread import DiskThread
from metaquorum.replica.election_store import ElectionStore
from metaquorum.replica.log_flusher import LogFlusher
from metaquorum.replica.log_store import LogStore, encode_control
from metaquorum.replica.operator_requests import OperatorRequests
from metaquorum.replica.quorum_metrics import QuorumMeter
from metaquorum.replica.quorum_transport import PeerFailureError, QuorumTransport
from metaquorum.replica.snapshot_shell import SnapshotShell

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Answer to a peer's request: a response, and the batches for a fetch."""

    response: Response
    batches: bytes = b""


class StoppedError(Exception):
    """The node is stopping; it did not handle the request."""


class Driver:
    """One running core.

    Args:
        node: the core.
        log: the open log whose view the core got.
        elections: the vote file whose state the core got.
        transport: sends requests to peers.
        snapshots: carries out effects on snapshots; None: this node has no image, so it makes and installs no snapshots.
    """

    def __init__(
        self,
        *,
        node: RaftNode,
        log: LogStore,
        elections: ElectionStore,
        transport: QuorumTransport,
        snapshots: SnapshotShell | None = None,
    ) -> None:
        self._node = node
        self._log = log
        self._elections = elections
        self._transport = transport
        self._snapshots = snapshots
        self._feeds: tuple[ListenerFeed, ...] = ()
        self._loop = asyncio.get_running_loop()
        self.meter = QuorumMeter(self._loop.time, quorum_epoch=node.state.quorum_epoch)
        self._disk = DiskThread("quorum-disk")
        self._flusher = LogFlusher(log, self._disk, on_flushed=self._flushed, on_failure=self.fail)
        self._pending: dict[int, Callable[[Answer | StoppedError], None]] = {}
        self._reads: dict[int, asyncio.Future[int | Rejection]] = {}
        self._next_token = 1
        self._events: deque[Event] = deque()
        self._is_stepping = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = 0
        self._proposal: bytearray | Sequence[bytes] | None = None
        self._rejection: Rejection | None = None
        self._last_role = ""
        self._noted_role: Role | None = None
        self._noted_epoch = node.state.quorum_epoch
        self._violations = SparseLog()
        self._is_closed = False
        self._shutdown_done = asyncio.Event()
        self.operators = OperatorRequests(self.submit)
        self.leader = QuorumLeader(leader_id=None, quorum_epoch=node.state.quorum_epoch, address=None)
        self.failure: asyncio.Future[None] = self._loop.create_future()
        # Retrieve the exception, which is in the server's log already: perhaps no task waits for this future.
        self.failure.add_done_callback(lambda future: future.cancelled() or future.exception())

    def now_ms(self) -> int:
        """Return the core's time: monotonic milliseconds of the event loop."""
        return int(self._loop.time() * 1_000)

    def start(self, feeds: Sequence[ListenerFeed]) -> None:
        """Start the core, which takes its first role."""
        self._feeds = tuple(feeds)
        if self._snapshots is not None:
            self._snapshots.start(self.submit, self._feeds, settle_flush=self._disk.settle)
        self.submit(Started())

    async def shut_down(self, *, grace_ms: int) -> None:
        """Stop in an orderly way: hand the leadership over, flush, stop. Bounded by `grace_ms` and one flush."""
        if not self._is_closed:
            self.submit(ShutdownRequested())
            waits = [asyncio.ensure_future(self._shutdown_done.wait()), self.failure]
            # The core bounds its shutdown itself; the longer limit here is for a disk that hangs.
            await asyncio.wait(waits, timeout=2 * grace_ms / 1_000, return_when=asyncio.FIRST_COMPLETED)
            waits[0].cancel()
            for feed in self._feeds:
                feed.finish_leadership()
        await self._close()

    async def abandon(self) -> None:
        """Stop like a crash: hand nothing over and flush nothing."""
        await self._close()

    async def _close(self) -> None:
        self._stop_taking_events()
        if self._snapshots is not None:
            await self._snapshots.close()
        # Work in the disk thread cannot be stopped, and the log may be closed only after it.
        await self._disk.close()

    def _stop_taking_events(self) -> None:
        self._is_closed = True
        self._flusher.stop()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        pending, self._pending = self._pending, {}
        for on_answer in pending.values():
            on_answer(StoppedError("this node is stopping"))
        for read in self._reads.values():
            if not read.done():
                read.set_result(Rejection.NOT_LEADER)
        self._reads.clear()
        self.operators.close()
        for feed in self._feeds:
            feed.close()

    # Events.

    def submit(self, event: Event) -> None:
        """Pass an event to the core, now or after the event that it is handling."""
        if self._is_closed:
            return
        self._events.append(event)
        if self._is_stepping:
            return
        self._is_stepping = True
        try:
            while self._events and not self._is_closed:
                for effect in self._node.step(self._events.popleft(), self.now_ms()):
                    self.meter.note(effect)
                    self._execute(effect)
            self._note_role()
            self._set_timer()
        except Exception as error:
            self.fail(error)
        finally:
            self._is_stepping = False

    async def ask(self, request: Request) -> Answer:
        """Pass a peer's request to the core and wait for its answer.

        Raises:
            StoppedError: the node is stopping.
        """
        future: asyncio.Future[Answer] = self._loop.create_future()
        token = self.take(request, partial(_settle, future))
        try:
            return await future
        finally:
            self._pending.pop(token, None)

    def take(self, request: Request, on_answer: Callable[[Answer | StoppedError], None]) -> int:
        """Pass a peer's request to the core. `on_answer` runs once, perhaps before this method returns, and must not raise.

        Returns:
            Token by which the core knows the request.

        Raises:
            StoppedError: the node is stopping; `on_answer` will not run.
        """
        if self._is_closed:
            raise StoppedError("this node is stopping")
        token = self._next_token
        self._next_token += 1
        self._pending[token] = on_answer
        self.submit(RequestReceived(token=token, request=request))
        return token

    def propose(
        self, proposal: bytearray | Sequence[bytes], record_count: int, size_bytes: int, *, quorum_epoch: QuorumEpoch
    ) -> int | Rejection:
        """Append an encoded batch, or records that may share one, as leader. Return the base offset, or why nothing was appended."""
        if self._is_closed:
            return Rejection.NOT_LEADER
        assert not self._is_stepping, "append from inside a step; listeners are called outside of it"
        base_offset = self._node.state.log.log_end_offset
        self._proposal, self._rejection = proposal, None
        self.submit(
            ProposalReceived(
                proposal_id=base_offset, quorum_epoch=quorum_epoch, record_count=record_count, size_bytes=size_bytes
            )
        )
        self._proposal = None
        if self._is_closed:
            return Rejection.NOT_LEADER
        return base_offset if self._rejection is None else self._rejection

    async def read_offset(self) -> int | Rejection:
        """Return the end (exclusive) of what is committed now, or why this node cannot know it. A leader confirms its leadership first.

        Waits while the leadership is in doubt, which the check of the majority bounds. The caller may stop waiting at any time.
        """
        if self._is_closed:
            return Rejection.NOT_LEADER
        read_id = self._next_token
        self._next_token += 1
        future: asyncio.Future[int | Rejection] = self._loop.create_future()
        self._reads[read_id] = future
        try:
            self.submit(ReadRequested(read_id=read_id))
            return await future
        finally:
            self._reads.pop(read_id, None)

    def fail(self, error: BaseException) -> None:
        """Stop for good after an error: nothing is sent, answered or delivered any more."""
        if not self.failure.done():
            logger.critical("event=quorum_node_failed error=%s", error, exc_info=error)
            self.failure.set_exception(error)
        self._stop_taking_events()
        self._shutdown_done.set()

    # Effects.

    def _execute(self, effect: Effect) -> None:
        match effect:
            case Send():
                told = partial(self._told, effect.request_id)
                self._transport.send(effect.address, effect.request, timeout_ms=effect.timeout_ms, on_answer=told)
            case Reply(token=token, response=response):
                self._answer(token, Answer(response=response))
            case ReplyWithBatches():
                batches = self._log.read(effect.fetch_offset, effect.max_bytes)
                self._answer(effect.token, Answer(response=effect.response, batches=batches))
            case AppendAsLeader(content=content):
                self._append_as_leader(effect, content)
            case AppendAsFollower():
                self._log.append_as_follower(effect)
            case TruncateLog(to_offset=to_offset):
                logger.warning("event=log_truncated to_offset=%d", to_offset)
                self._log.truncate_suffix(to_offset)
            case FlushLog(flush_id=flush_id):
                self._flusher.flush(flush_id)
            case DownloadSnapshot() | DiscardSnapshot() | InstallSnapshot() | TrimLog():
                self._execute_snapshot(effect)
            case PersistElectionState():
                save = partial(self._elections.save, effect.state)
                self._disk.submit(save, partial(self._persisted, effect.sequence))
            case _:
                self._execute_local(effect)

    def _execute_snapshot(self, effect: DownloadSnapshot | DiscardSnapshot | InstallSnapshot | TrimLog) -> None:
        if self._snapshots is not None:
            self._snapshots.execute(effect)
        elif isinstance(effect, DownloadSnapshot):
            logger.error("event=snapshot_refused reason=%r", "this node keeps no image that a snapshot could replace")
            self.submit(SnapshotFailed(download_id=effect.download_id, failure=Failure.TIMED_OUT))

    def _append_as_leader(self, effect: AppendAsLeader, content: Proposal | LeaderChange | VotersChange) -> None:
        proposal = self._proposal
        if not isinstance(content, Proposal):
            self._log.append_as_leader(effect, encode_control(content))
        elif isinstance(proposal, bytearray):
            self._log.append_as_leader(effect, proposal)
        else:
            assert proposal is not None, "the core appends what was proposed in this step"
            self._log.gather(effect, proposal)

    def _execute_local(
        self,
        effect: RejectProposal
        | ReadReady
        | RejectRead
        | AdvanceCommit
        | AnnounceLeader
        | Activate
        | Deactivate
        | AnswerVoterChange
        | AnswerTransfer
        | ReportViolation
        | FinishShutdown,
    ) -> None:
        match effect:
            case RejectProposal(reason=reason):
                self._rejection = reason
            case ReadReady(read_id=read_id, read_offset=read_offset):
                self._end_read(read_id, read_offset)
            case RejectRead(read_id=read_id, reason=reason):
                self._end_read(read_id, reason)
            case AdvanceCommit(commit_offset=commit_offset):
                for feed in self._feeds:
                    feed.advance(commit_offset)
            case AnnounceLeader():
                self._announce(effect)
            case Activate(quorum_epoch=epoch, start_offset=start_offset):
                for feed in self._feeds:
                    feed.activate(epoch, start_offset)
            case Deactivate():
                for feed in self._feeds:
                    feed.deactivate()
            case AnswerVoterChange() | AnswerTransfer():
                logger.info("event=operator_answered answer=%s", effect)
                self.operators.answer(effect)
            case ReportViolation(kind=kind, text=text):
                if count := self._violations.note(kind.value, self._loop.time()):
                    logger.error("event=protocol_violation kind=%s text=%.500s count=%d", kind.value, text, count)
            case FinishShutdown():
                self._shutdown_done.set()

    def _announce(self, effect: AnnounceLeader) -> None:
        self.leader = QuorumLeader(leader_id=effect.leader_id, quorum_epoch=effect.quorum_epoch, address=effect.address)
        logger.info(
            "event=leader_known leader=%s epoch=%d address=%s", effect.leader_id, effect.quorum_epoch, effect.address
        )
        self.operators.announce(self.leader)
        for feed in self._feeds:
            # Outside of the step, so that a listener may append or ask.
            self._loop.call_soon(feed.announce, self.leader)

    def _told(self, request_id: int, outcome: Response | PeerFailureError) -> None:
        """Pass the outcome of a request to a peer to the core."""
        if isinstance(outcome, PeerFailureError):
            logger.debug("event=request_failed error=%s", outcome)
            self.submit(RequestFailed(request_id=request_id, failure=outcome.failure))
        else:
            self.submit(ResponseReceived(request_id=request_id, response=outcome))

    def _answer(self, token: int, answer: Answer) -> None:
        # A request whose caller stopped waiting is no longer in the table.
        on_answer = self._pending.pop(token, None)
        if on_answer is not None:
            on_answer(answer)

    def _end_read(self, read_id: int, outcome: int | Rejection) -> None:
        # A read whose caller stopped waiting is no longer in the table.
        future = self._reads.get(read_id)
        if future is not None and not future.done():
            future.set_result(outcome)

    def _flushed(self, flush_id: int) -> None:
        self.submit(LogFlushed(flush_id=flush_id))

    def _persisted(self, sequence: int, error: BaseException | None) -> None:
        if error is not None:
            self.fail(error)
        else:
            self.submit(ElectionStatePersisted(sequence=sequence))

    def _set_timer(self) -> None:
        deadline_ms = None if self._is_closed else self._node.deadline_ms()
        # A timer that fires too early is set again then: most events move the deadline back, so most steps need no new timer.
        if deadline_ms is None or (self._timer is not None and self._timer_ms <= deadline_ms):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_ms = deadline_ms
        # Half a millisecond late rather than early, so that the clock has certainly reached the deadline.
        self._timer = self._loop.call_at((deadline_ms + 0.5) / 1_000, self._tick)

    def _tick(self) -> None:
        self._timer = None
        if (self._node.deadline_ms() or 0) > self.now_ms():
            self._set_timer()
        else:
            self.submit(Tick())

    def _note_role(self) -> None:
        state = self._node.state
        if state.role is self._noted_role and state.quorum_epoch == self._noted_epoch:
            return
        self._noted_role, self._noted_epoch = state.role, state.quorum_epoch
        self.meter.settled(state)
        role = type(state.role).__name__.lower()
        if role != self._last_role:
            self._last_role = role
            logger.info(
                "event=role_changed node=%d role=%s epoch=%d log_end_offset=%d high_watermark=%s",
                state.key.node_id,
                role,
                state.quorum_epoch,
                state.log.log_end_offset,
                state.high_watermark,
            )


def _settle(future: asyncio.Future[Answer], answer: Answer | StoppedError) -> None:
    """Set the answer of a future that is still awaited."""
    if future.done():
        return
    if isinstance(answer, StoppedError):
        future.set_exception(answer)
    else:
        future.set_result(answer)
