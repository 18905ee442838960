# SPDX-License-Identifier: Apache-2.0
"""Calls to the active controller, wherever it is at the moment.

Owns the search for it: first the hint of the last refusal, then the leader that the quorum node knows, then the configured addresses
in turn. Does not know what it calls. Everything runs on the thread of the event loop.

Laws
    A call that changes something is sent again only if it certainly was not carried out.
    No call waits long for an old leader, which may be frozen or isolated and never answer.
    Once another leader is known, every call that is not under way goes there at once. Results from earlier addresses do not count
    against it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field
from typing import Final

from lograft.v1.errors_pb2 import LeaderHint
from lograft.wire.codes import ErrorCode

from brokerd.failure import Failure, LeaderPlace, RefusedError
from metaquorum.metadata.loader import MetadataLoader
from metaquorum.net.connection import BusyError
from metaquorum.net.link import CallError, Link, Outcome, RefusedByPeerError
from metaquorum.net.methods import Method
from metaquorum.net.peers import NotSentError, Peers
from metaquorum.net.service import RefusalError, decode_refusal
from metaquorum.process.settings import Address

CONNECT_MS: Final = 1_000
"""Milliseconds of one attempt to connect."""

RETRY_MS: Final = 25
"""First pause between attempts; doubles up to `RETRY_MS_MAX`."""

RETRY_MS_MAX: Final = 250
"""Maximum pause between attempts."""

OLD_LEADER_GRACE_MS: Final = 1_000
"""Milliseconds that an old leader has left to answer a change once another leader is known: its answer may be on the way."""

_NOT_DONE: Final = (ErrorCode.NOT_CONTROLLER, ErrorCode.QUORUM_UNAVAILABLE)
"""Refusals of a node that is not the active controller, or not yet. It did nothing, and another node may do it."""


class ControllerRefusedError(RefusedError):
    """The active controller refuses. Its refusal is for the caller."""


def hinted_address(hint: LeaderHint | None) -> str | None:
    """Return the leader's address from a refusal; None if it names none."""
    return str(Address(host=hint.host, port=hint.port)) if hint is not None and hint.host else None


class _GivenUpError(CallError):
    """Another node leads, so this call no longer waits for the old leader's answer."""


@dataclass(slots=True, eq=False)
class _Asked:
    """A call under way."""

    address: str
    is_read_only: bool
    outcome: asyncio.Future[Outcome] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    give_up: asyncio.TimerHandle | None = None

    def end(self) -> None:
        """Stop waiting for the answer."""
        self.tell(_GivenUpError("another node leads"))

    def tell(self, outcome: Outcome) -> None:
        """Set the outcome: an answer, or why there will be none."""
        if not self.outcome.done():
            self.outcome.set_result(outcome)


class ControllerCalls:
    """Sends requests to the active controller, and keeps its address.

    Args:
        observer: knows the quorum leader.
        peers: connections of this process to other servers.
        bootstrap_addresses: internal ports of voters at which the search starts.
        own_voter: node id and address of the voter in this process, if any. It is reached at this address even if the voters
            record has an older one.
    """

    def __init__(
        self,
        observer: MetadataLoader,
        peers: Peers,
        bootstrap_addresses: Sequence[str],
        *,
        own_voter: tuple[int, str] | None = None,
    ) -> None:
        self._own_voter = own_voter
        self._observer = observer
        self._peers = peers
        self._bootstrap = tuple(bootstrap_addresses)
        self._hint: str | None = None
        self._failure_count = 0
        # A dictionary for its order: calls end in the order in which they were made.
        self._asked: dict[_Asked, None] = {}
        self._pausing: dict[asyncio.Future[None], None] = {}
        observer.on_leader_change(self._take_leader)

    def address(self) -> str | None:
        """Return the address to try now; None if no address is known."""
        if self._hint is not None:
            return self._hint
        leader_address = self._leader_address()
        if self._own_voter is not None and leader_address == self._own_voter[1]:
            return leader_address
        if not self._bootstrap:
            return leader_address
        if leader_address is None:
            return self._bootstrap[self._failure_count % len(self._bootstrap)]
        # The known leader may have died, or its address may be outdated. So every second failure tries another address.
        if self._failure_count % 2 == 1:
            return self._bootstrap[self._failure_count // 2 % len(self._bootstrap)]
        return leader_address

    def note_failure(self, address: str, hint: LeaderHint | None) -> None:
        """Note that an address did not serve. `hint` is the leader in its refusal, if any.

        The failure is ignored if the current address is another one: then another call has already moved on. A hint at a leader of an
        older epoch is ignored too.
        """
        if address != self.address():
            return
        is_news = hint is not None and hint.leader_epoch >= self._observer.leader.quorum_epoch
        self._hint = hinted_address(hint) if is_news else None
        self._failure_count += 1

    def note_success(self) -> None:
        """Note that the current address is that of the active controller."""
        self._failure_count = 0

    def _leader_address(self) -> str | None:
        leader = self._observer.leader
        if self._own_voter is not None and leader.leader_id == self._own_voter[0]:
            return self._own_voter[1]
        return leader.address

    def _take_leader(self) -> None:
        """Forget what was learned under the previous leader, and stop waiting for answers from other addresses."""
        self._hint = None
        self._failure_count = 0
        address = self._leader_address()
        if address is None:
            return
        for pausing in self._pausing:
            if not pausing.done():
                pausing.set_result(None)
        for asked in self._asked:
            if asked.address == address or asked.give_up is not None:
                continue
            grace_s = 0.0 if asked.is_read_only else OLD_LEADER_GRACE_MS / 1000
            asked.give_up = asyncio.get_running_loop().call_later(grace_s, asked.end)

    async def call(self, method: Method, request: bytes, *, timeout_ms: int, is_read_only: bool = False) -> bytes:
        """Send a serialized request, with retries.

        Args:
            method: method of the controller.
            request: serialized request.
            timeout_ms: milliseconds for all attempts together.
            is_read_only: True if the request may be sent again whatever happened to it.

        Returns:
            The serialized response.

        Raises:
            ControllerRefusedError: the controller refused.
            RefusedError: QUORUM_UNAVAILABLE, no controller accepted the call in time; OUTCOME_UNKNOWN, the answer was lost.
        """
        deadline = time.monotonic() + timeout_ms / 1000
        pause_ms = RETRY_MS
        while True:
            left_ms = int((deadline - time.monotonic()) * 1000)
            if left_ms <= 0:
                raise _no_controller()
            answer = await self.attempt(method, request, timeout_ms=left_ms, is_read_only=is_read_only)
            if answer is not None:
                return answer
            is_news = await self._pause(min(pause_ms, left_ms))
            pause_ms = RETRY_MS if is_news else min(pause_ms * 2, RETRY_MS_MAX)

    async def _pause(self, pause_ms: int) -> bool:
        """Wait for `pause_ms`. Return True if a new leader ended the wait earlier."""
        pausing = asyncio.get_running_loop().create_future()
        self._pausing[pausing] = None
        try:
            async with asyncio.timeout(pause_ms / 1000):
                await pausing
        except TimeoutError:
            return False
        finally:
            del self._pausing[pausing]
        return True

    async def attempt(
        self, method: Method, request: bytes, *, timeout_ms: int, is_read_only: bool = True
    ) -> bytes | None:
        """Send a request once, to the probable address of the controller. Arguments as for `call`.

        Returns:
            The serialized response; None: no response came, and the request may be sent again.

        Raises:
            ControllerRefusedError: the controller refused.
            RefusedError: OUTCOME_UNKNOWN, the answer was lost.
        """
        address = self.address()
        if address is None:
            return None
        started_s = time.monotonic()
        link = await self._connected(address, timeout_ms)
        if link is None:
            return None
        left_ms = timeout_ms - int((time.monotonic() - started_s) * 1000)
        asked = _Asked(address, is_read_only)
        self._asked[asked] = None
        call_id: int | None = None
        try:
            call_id = link.request(method, request, timeout_ms=left_ms, on_outcome=asked.tell)
            outcome = await asked.outcome
        except BusyError:
            self.note_failure(address, None)
            return None
        finally:
            self._asked.pop(asked, None)
            if asked.give_up is not None:
                asked.give_up.cancel()
            if call_id is not None:
                # Does nothing if the call was answered.
                link.give_up(call_id)
        if isinstance(outcome, bytes):
            self.note_success()
            return outcome
        return self._without_answer(asked, outcome)

    def _without_answer(self, asked: _Asked, error: CallError) -> None:
        if isinstance(error, RefusedByPeerError):
            refusal = decode_refusal(error.failure)
            if refusal.code in _NOT_DONE or (asked.is_read_only and refusal.code is ErrorCode.SHUTTING_DOWN):
                self.note_failure(asked.address, refusal.leader)
                return
            raise _refused_by_controller(refusal) from error
        if not isinstance(error, _GivenUpError):
            self.note_failure(asked.address, None)
        if not asked.is_read_only:
            raise _lost_answer() from error

    async def stream(
        self, method: Method, request: bytes, *, window_bytes: int, timeout_ms: int
    ) -> AsyncGenerator[bytes]:
        """Open a stream once, at the probable address of the controller, and yield its messages. The caller must close the iterator.

        Args:
            method: method of the controller.
            request: serialized message that opens the stream.
            window_bytes: bytes that the controller may send ahead.
            timeout_ms: milliseconds for the connection, at most `CONNECT_MS`.

        Raises:
            ControllerRefusedError: the controller refused.
            RefusedError: QUORUM_UNAVAILABLE, no node is reachable there, or the node is not, or no longer, the active controller.
        """
        address = self.address()
        if address is None:
            raise _no_controller()
        link = await self._connected(address, timeout_ms)
        if link is None:
            raise _no_controller()
        try:
            stream = link.open(method, request, window_bytes=window_bytes)
        except BusyError as error:
            self.note_failure(address, None)
            raise _no_controller() from error
        try:
            while (message := await stream.read()) is not None:
                yield message
        except CallError as error:
            self._without_answer(_Asked(address, is_read_only=True), error)
            raise _no_controller() from error
        finally:
            stream.give_up()
        self.note_success()

    async def _connected(self, address: str, timeout_ms: int) -> Link | None:
        try:
            return await self._peers.connected(address, timeout_ms=min(CONNECT_MS, timeout_ms))
        except NotSentError as error:
            if error.misfit is not None and error.misfit.code is ErrorCode.WRONG_CLUSTER:
                raise ControllerRefusedError(Failure(code=ErrorCode.WRONG_CLUSTER, message=str(error))) from error
            self.note_failure(address, None)
            return None


def _refused_by_controller(refusal: RefusalError) -> ControllerRefusedError:
    hint = refusal.leader
    leader = None
    if hint is not None:
        leader = LeaderPlace(leader_id=hint.leader_id, leader_epoch=hint.leader_epoch, host=hint.host, port=hint.port)
    failure = Failure(code=refusal.code, message=refusal.message, retry_after_ms=refusal.retry_after_ms, leader=leader)
    return ControllerRefusedError(failure)


def _lost_answer() -> RefusedError:
    return RefusedError(
        Failure(
            code=ErrorCode.OUTCOME_UNKNOWN,
            message="the controller was lost before it answered: look whether the change was made",
        )
    )


def _no_controller() -> RefusedError:
    return RefusedError(
        Failure(
            code=ErrorCode.QUORUM_UNAVAILABLE,
            message="no active controller answered in time: the metadata quorum has no leader or cannot be reached",
            retry_after_ms=500,
        )
    )
