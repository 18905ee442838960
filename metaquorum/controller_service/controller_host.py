# SPDX-License-Identifier: Apache-2.0
"""The shell of the controller: runs the controller core on the committed image of this process while its node leads.

Owns the core of the current leadership, and the callers that wait for a commit. Everything runs on the event loop thread. It awaits
nothing between `decide` and `replay`, so commands are serial without a lock. It decides nothing itself. Laws:

* An answer is given only when everything appended before its decision is committed.
* A caller that gets NOT_CONTROLLER, OVERLOADED or TIMED_OUT knows that nothing was appended. If something was appended and its commit
  was not seen, the answer is OUTCOME_UNKNOWN. Source: `docs/controller.md` section "Shell".
"""

from __future__ import annotations

import asyncio
import logging
from functools import cached_property
from typing import Final

from lograft.wire.codes import ErrorCode

from metaquorum.controller.commands import (
    Bootstrap,
    Command,
    Decision,
    ExpireSessions,
    Refusal,
)
from metaquorum.controller.controller import Controller
from metaquorum.controller.features import current_level
from metaquorum.controller.sessions import BrokerSession
from metaquorum.controller.settings import ControllerSettings
from metaquorum.controller_service.command_log import CommandLog
from metaquorum.controller_service.commit_waiters import (
    RETRY_AFTER_MS,
    CommandError,
    Outcome,
    ParkedAnswers,
    give_up,
    unconfirmed,
    unconfirmed_change,
)
from metaquorum.controller_service.long_work import LongWork
from metaquorum.metadata import record_codec
from metaquorum.metadata.image import BrokerImage, MetadataImage
from metaquorum.metadata.loader import MetadataLoader
from metaquorum.metadata.runs import runs
from metaquorum.replica.quorum_node import BusyError, NotLeaderError, QuorumNode

logger = logging.getLogger(__name__)

MIN_TICK_MS: Final = 20
"""Shortest time in milliseconds between two searches for expired sessions and due periodic work."""


class ControllerHost:
    """The controller of a voter: submits commands to the core and answers when they are committed.

    Args:
        loader: the committed image of this process; the host attaches itself to it.
        settings: times and limits of the controller.
    """

    def __init__(self, loader: MetadataLoader, *, settings: ControllerSettings) -> None:
        self._loader = loader
        self._settings = settings
        self._log: QuorumNode | None = None
        self._controller: Controller | None = None
        self._quorum_epoch = 0
        self._parked = ParkedAnswers()
        self._command_log = CommandLog()
        self._work = LongWork(self._run_own)
        self._tick_handle: asyncio.TimerHandle | None = None
        self._stopping = False
        loader.attach(self)

    @property
    def image(self) -> MetadataImage:
        """The committed image."""
        return self._loader.image

    @property
    def settings(self) -> ControllerSettings:
        """Times and limits of the controller."""
        return self._settings

    @property
    def is_active(self) -> bool:
        """True while this node is the active controller."""
        return self._controller is not None and not self._stopping

    def attach(self, log: QuorumNode) -> None:
        """Set the quorum node, before it starts."""
        self._log = log

    # Methods of `LocalController`, for the loader.

    @property
    def may_lag(self) -> bool:
        """True while this node is a standby controller."""
        return self._controller is None

    def on_applied(self, metadata_offset: int) -> None:
        """Answer the callers whose changes the image now has."""
        if self._controller is not None:
            self._controller.committed(metadata_offset)
        self._parked.committed(metadata_offset)

    def on_activate(self, quorum_epoch: int) -> None:
        """Become the active controller: the image has everything from before this epoch."""
        assert self._controller is None, f"activated for epoch {quorum_epoch} while active for {self._quorum_epoch}"
        self._quorum_epoch = quorum_epoch
        self._controller = Controller(self.image, settings=self._settings, now_ms=self._now_ms())
        logger.info(
            "event=controller_active quorum_epoch=%d metadata_offset=%d brokers=%d topics=%d",
            quorum_epoch,
            self.image.metadata_offset,
            len(self.image.brokers),
            len(self.image.topic_names),
        )
        self._work.add(Bootstrap())
        self._arm()

    def on_deactivate(self) -> None:
        """Become a standby: drop uncommitted state, and answer every waiting caller."""
        logger.info("event=controller_inactive quorum_epoch=%d unanswered=%d", self._quorum_epoch, len(self._parked))
        self._controller = None
        self._work.clear()
        if self._tick_handle is not None:
            self._tick_handle.cancel()
            self._tick_handle = None
        self._parked.fail_all(self._quorum().leader())

    def stop(self) -> None:
        """Refuse everything from here on. Callers that wait for a commit continue to wait until `on_deactivate`."""
        self._stopping = True
        self._loader.stop()

    # Commands and reads.

    async def submit(self, command: Command, *, timeout_ms: int) -> Outcome:
        """Carry out a command and wait until it is committed.

        Args:
            command: the command.
            timeout_ms: longest wait for the commit, in milliseconds.

        Raises:
            CommandError: refused, not the controller, overloaded, or not committed in time.
        """
        future, appended = self._execute(command)
        if future.done():
            return future.result()
        # A timer and the future itself: asyncio.wait() costs twice as much for each command.
        timer = self._loop.call_later(timeout_ms / 1000, give_up, future, appended, timeout_ms)
        try:
            return await future
        finally:
            timer.cancel()
            future.cancel()

    def require_active(self) -> None:
        """Return if this node is the active controller.

        Raises:
            CommandError: it is not; names the active one, if known.
        """
        quorum = self._quorum()
        leader = quorum.leader()
        if self._stopping and leader.leader_id in (None, quorum.node_id):
            raise CommandError(ErrorCode.SHUTTING_DOWN, "this node is stopping; ask another one")
        if self._controller is not None:
            return
        if leader.leader_id is None:
            raise CommandError(
                ErrorCode.QUORUM_UNAVAILABLE,
                "the quorum has no leader at the moment; try again",
                retry_after_ms=RETRY_AFTER_MS,
            )
        if leader.leader_id == quorum.node_id:
            raise CommandError(
                ErrorCode.QUORUM_UNAVAILABLE,
                f"node {leader.leader_id} was just elected and is taking over; try again",
                retry_after_ms=RETRY_AFTER_MS,
            )
        raise CommandError(
            ErrorCode.NOT_CONTROLLER,
            f"node {quorum.node_id} is not the active controller, node {leader.leader_id} is",
            leader=leader,
        )

    def check_applied(self, metadata_offset: int) -> None:
        """Return if a broker can have applied the metadata up to an offset (exclusive).

        Raises:
            CommandError: as `require_active`; INVALID_REQUEST if this controller's log ends before: the offset is wrong, or another
                node leads by now.
        """
        self.require_active()
        end_offset = self._quorum().log_end_offset
        if not 0 <= metadata_offset <= end_offset:
            message = (
                f"metadata offset {metadata_offset}: the log ends at {end_offset}, no broker can have applied more"
            )
            raise CommandError(ErrorCode.INVALID_REQUEST, message)

    def session_of(self, broker: BrokerImage) -> BrokerSession | None:
        """Return the controller's view of a broker's session; None without one, or if this node is not the controller."""
        return None if self._controller is None else self._controller.session_of(broker, self._now_ms())

    def appended_level(self) -> int:
        """Return the cluster's feature level, uncommitted changes included. Raises as `require_active`."""
        self.require_active()
        assert self._controller is not None, "active without a controller"
        return current_level(self._controller.image)

    async def wait_for_offset(self, metadata_offset: int, *, timeout_ms: int) -> None:
        """Wait until the committed image has everything below `metadata_offset` (exclusive).

        Raises:
            CommandError: METADATA_NOT_REACHED after `timeout_ms`, OVERLOADED, SHUTTING_DOWN.
        """
        if metadata_offset <= self.image.metadata_offset:
            return
        if self._loader.is_crowded and not self._stopping:
            message = "too many readers wait already; try again"
            raise CommandError(ErrorCode.OVERLOADED, message, retry_after_ms=RETRY_AFTER_MS)
        self._quorum().hurry()
        if not self._stopping and await self._loader.wait_for(metadata_offset, timeout_ms=timeout_ms):
            return
        if self._stopping:
            raise CommandError(ErrorCode.SHUTTING_DOWN, "this node is stopping; ask another one")
        raise CommandError(
            ErrorCode.METADATA_NOT_REACHED,
            f"metadata offset {metadata_offset} was not reached within {timeout_ms} ms",
            retry_after_ms=RETRY_AFTER_MS,
        )

    async def wait_for_everything(self, *, timeout_ms: int) -> None:
        """Wait until the committed image has everything that was committed when the wait began: a linearizable read.

        Raises:
            CommandError: this node does not lead, or cannot confirm that in time; METADATA_NOT_REACHED, OVERLOADED, SHUTTING_DOWN.
        """
        deadline = self._loop.time() + timeout_ms / 1000
        try:
            async with asyncio.timeout_at(deadline):
                read_offset = await self._quorum().read_offset()
        except NotLeaderError as error:
            if error.leader.leader_id is None:
                raise unconfirmed(timeout_ms) from None
            raise CommandError(
                ErrorCode.NOT_CONTROLLER, "this node has just lost the leadership", leader=error.leader
            ) from error
        except BusyError as error:
            raise CommandError(ErrorCode.OVERLOADED, str(error), retry_after_ms=RETRY_AFTER_MS) from error
        except TimeoutError:
            raise unconfirmed(timeout_ms) from None
        await self.wait_for_offset(read_offset, timeout_ms=int((deadline - self._loop.time()) * 1000))

    @cached_property
    def _loop(self) -> asyncio.AbstractEventLoop:
        """The event loop of this object. Cached, because Python 3.11 makes a system call for each look-up."""
        return asyncio.get_running_loop()

    def _quorum(self) -> QuorumNode:
        assert self._log is not None, "the host has no quorum node"
        return self._log

    def _execute(self, command: Command) -> tuple[asyncio.Future[Outcome], bool]:
        """Decide and append. Return the future of the answer, and whether anything was appended."""
        self.require_active()
        controller = self._controller
        assert controller is not None, "active without a controller"
        self._parked.require_room()
        now_ms = self._now_ms()
        decision = controller.decide(command, now_ms)
        if decision.heard is not None:
            controller.hear(decision.heard, now_ms)
        base_offset = self._append(controller, decision) if decision.records else None
        self._report(command, decision, base_offset, now_ms)
        if decision.then is not None:
            self._work.add(decision.then)
        if self._tick_handle is None:
            self._arm()
        future = self._parked.park(
            decision.response,
            wait_offset=controller.image.next_offset,
            base_offset=base_offset,
            committed_offset=self.image.metadata_offset,
        )
        return future, base_offset is not None

    def _append(self, controller: Controller, decision: Decision) -> int:
        data = [record_codec.encode(record) for record in decision.records]
        try:
            base_offset = self._quorum().append(data, quorum_epoch=self._quorum_epoch)
        except NotLeaderError as error:
            raise CommandError(
                ErrorCode.NOT_CONTROLLER, "this node has just lost the leadership", leader=error.leader
            ) from error
        except BusyError as error:
            raise CommandError(
                ErrorCode.OVERLOADED,
                "too many changes wait for their commit; try again",
                retry_after_ms=RETRY_AFTER_MS,
            ) from error
        if self._controller is not controller:
            # During the append the quorum found that its leadership was over, for example because this process was paused. Whatever
            # another leader commits at this offset is no answer.
            raise unconfirmed_change()
        try:
            for offset, run in runs(decision.records, base_offset):
                controller.replay(run, offset)
        except AssertionError:
            # The overlay is wrong from here on. Decide nothing more; the commit of the record will stop the node.
            self._stopping = True
            logger.critical("event=contradiction base_offset=%d records=%r", base_offset, decision.records[:10])
            raise
        return base_offset

    def _report(self, command: Command, decision: Decision, base_offset: int | None, now_ms: int) -> None:
        if isinstance(decision.response, Refusal):
            # The caller of a refused command gets the refusal, so the log need not show it.
            reason = decision.response.code.name
            logger.debug("event=command_refused command=%s reason=%s", type(command).__name__, reason)
        elif base_offset is not None:
            last_offset = base_offset + len(decision.records) - 1
            self._command_log.note(command, base_offset=base_offset, last_offset=last_offset, now_ms=now_ms)

    # Internal commands: take-over, long work in slices, expired sessions, periodic work.

    def _run_own(self, command: Command) -> asyncio.Future[Outcome] | None:
        try:
            future, _ = self._execute(command)
        except CommandError as error:
            # Either the leadership is ending, which `on_deactivate` will report, or the queues are full at the moment.
            logger.info("event=command_postponed command=%s reason=%s", type(command).__name__, error.code.name)
            return None
        future.add_done_callback(_retrieve)
        return future

    def _arm(self) -> None:
        self._tick_handle = None
        if self._controller is None:
            return
        now_ms = self._now_ms()
        # At most a session timeout, because a broker that registers, or a shorter interval, may bring the deadline forward.
        delay_ms = max(MIN_TICK_MS, min(self._controller.deadline_ms() - now_ms, self._settings.session_timeout_ms))
        planned_ms = now_ms + delay_ms
        self._tick_handle = self._loop.call_later(delay_ms / 1000, self._tick, planned_ms)

    def _tick(self, planned_ms: int) -> None:
        self._tick_handle = None
        self._command_log.settle(self._now_ms())
        controller = self._controller
        if controller is None or self._stopping:
            return
        late_ms = self._now_ms() - planned_ms
        if late_ms > self._settings.session_timeout_ms // 2:
            # This process was paused or swapped out: heartbeats may wait unread in its sockets.
            logger.warning("event=held_up late_ms=%d action=sessions_extended", late_ms)
            controller.grace(self._now_ms())
        else:
            self._run_own(ExpireSessions())
        if self._controller is not controller:
            return
        for work in controller.due(self._now_ms()):
            if not self._work.has(type(work)):
                self._work.add(work)
        if self._tick_handle is None:
            self._arm()

    def _now_ms(self) -> int:
        return int(self._loop.time() * 1000)


def _retrieve(future: asyncio.Future[Outcome]) -> None:
    """Retrieve the result of an internal command, so that asyncio does not log its failure; the end of the leadership is logged."""
    if not future.cancelled():
        future.exception()
