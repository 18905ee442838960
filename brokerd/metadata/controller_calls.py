# SPDX-License-Identifier: Apache-2.0
"""Calls to the active controller, wherever it is at the moment.

Owns the search: the leader that the quorum node knows, then the hint of the last refusal, then the configured
addresses in turn. Must not know what is called. Everything runs on the event loop thread. Laws: a call that changes
something is sent again only when it is known not to have been carried out; no call waits long for a leader of old, which
may be frozen or cut off and then answers never; once another leader is known, every call that is not under way goes there
at once, and what is heard of the places asked before says nothing of it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import grpc
import grpc.aio
from lograft.wire.codes import ErrorCode
from lograft.wire.status import LeaderHint, parse_rpc_error

from brokerd.failure import Failure, RefusedError
from brokerd.metadata.observer import MetadataObserver
from brokerd.metadata.peer_channels import PeerChannels, hinted_address, is_ready_within, unary_method

CONNECT_MS: Final = 1_000
"""Milliseconds that one attempt to connect may take."""

RETRY_MS: Final = 25
"""First pause between attempts; doubles up to `RETRY_MS_MAX`."""

RETRY_MS_MAX: Final = 250
"""Longest pause between attempts."""

OLD_LEADER_GRACE_MS: Final = 1_000
"""A leader of old has so long to answer a change once another one is known: it may just be telling that it was committed."""

_NOT_DONE: Final = (ErrorCode.NOT_CONTROLLER, ErrorCode.QUORUM_UNAVAILABLE)
"""Refusals of a node that is not the active controller, or not yet: nothing was done, and another one may do it."""

_UNANSWERED: Final = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)
"""What gRPC itself says of a call whose answer did not come."""


@dataclass(slots=True, eq=False)
class _Asked:
    """A call under way."""

    address: str
    channel: grpc.aio.Channel
    call: grpc.aio.UnaryUnaryCall[bytes, bytes]
    is_read_only: bool
    give_up: asyncio.TimerHandle | None = None
    is_given_up: bool = False

    def end(self) -> None:
        """Wait no longer for the answer."""
        self.is_given_up = True
        self.call.cancel()


class ControllerCalls:
    """Unary calls to the active controller, and the address of it.

    Args:
        observer: knows the quorum leader.
        peers: channels.
        bootstrap_addresses: quorum listeners, to start with.
        own_voter: node id and quorum address of the voter in this process, if there is one. It is reached there even
            when the address in the voters' record is an older one.
    """

    def __init__(
        self,
        observer: MetadataObserver,
        peers: PeerChannels,
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
        # A dictionary for its order: who asked first hears first.
        self._asked: dict[_Asked, None] = {}
        self._pausing: dict[asyncio.Future[None], None] = {}
        observer.on_leader_change(self._take_leader)

    @property
    def peers(self) -> PeerChannels:
        """The channels that the calls go over."""
        return self._peers

    def address(self) -> str | None:
        """Return where to try now, or None when nothing is known."""
        if self._hint is not None:
            return self._hint
        leader_address = self._leader_address()
        if self._own_voter is not None and leader_address == self._own_voter[1]:
            return leader_address
        if not self._bootstrap:
            return leader_address
        if leader_address is None:
            return self._bootstrap[self._failure_count % len(self._bootstrap)]
        # The known leader may have died, or its address be out of date: every second failure asks elsewhere.
        if self._failure_count % 2 == 1:
            return self._bootstrap[self._failure_count // 2 % len(self._bootstrap)]
        return leader_address

    def note_failure(self, address: str, hint: LeaderHint | None) -> None:
        """Learn that an address did not serve; `hint` is where to go instead, if it said so.

        Of calls that went elsewhere meanwhile, or that another one has spoken for already, it is old news; and so is a hint at the
        leader of an older epoch.
        """
        if address != self.address():
            return
        is_news = hint is not None and hint.leader_epoch >= self._observer.leader.quorum_epoch
        self._hint = hinted_address(hint) if is_news else None
        self._failure_count += 1

    def note_silence(self, address: str, channel: grpc.aio.Channel) -> None:
        """Learn that an address did not answer in time over a channel: what is asked next gets a new connection.

        Questions that wait for their answers on the old one are asked again; changes may still be answered there.
        """
        self._peers.give_up(address, channel)
        self.note_failure(address, None)
        for asked in self._asked:
            if asked.channel is channel and asked.is_read_only:
                asked.end()

    def note_success(self) -> None:
        """Learn that the address is that of the active controller."""
        self._failure_count = 0

    def _leader_address(self) -> str | None:
        leader = self._observer.leader
        if self._own_voter is not None and leader.leader_id == self._own_voter[0]:
            return self._own_voter[1]
        return leader.address

    def _take_leader(self) -> None:
        """Forget what was learnt under the leader before, and wait no longer for what others were asked."""
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

    async def call(self, method: str, request: bytes, *, timeout_ms: int, is_read_only: bool = False) -> bytes:
        """Call a unary method with a serialized request.

        Args:
            method: full name, as in `/lograft.v1.AdminService/CreateTopic`.
            request: serialized request.
            timeout_ms: milliseconds for all attempts together.
            is_read_only: True: the call may be sent again whatever became of it.

        Returns:
            The serialized response.

        Raises:
            RefusedError: QUORUM_UNAVAILABLE, no controller took the call in time; OUTCOME_UNKNOWN, the answer was lost.
            grpc.aio.AioRpcError: the controller refused; its status is meant for the caller.
        """
        deadline = time.monotonic() + timeout_ms / 1000
        pause_ms = RETRY_MS
        while True:
            left_ms = int((deadline - time.monotonic()) * 1000)
            if left_ms <= 0:
                raise _no_controller()
            answer = await self._attempt(method, request, left_ms, is_read_only)
            if answer is not None:
                return answer
            is_news = await self._pause(min(pause_ms, left_ms))
            pause_ms = RETRY_MS if is_news else min(pause_ms * 2, RETRY_MS_MAX)

    async def _pause(self, pause_ms: int) -> bool:
        """Wait, at most until a leader is known; whether that was the end of it."""
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

    async def _attempt(self, method: str, request: bytes, left_ms: int, is_read_only: bool) -> bytes | None:
        address = self.address()
        if address is None:
            return None
        async with self._peers.use(address) as channel:
            if not await is_ready_within(channel, min(CONNECT_MS, left_ms)):
                self.note_failure(address, None)
                return None
            call = unary_method(channel, method)(request, timeout=left_ms / 1000)
            asked = _Asked(address, channel, call, is_read_only)
            self._asked[asked] = None
            try:
                answer = await call
                self.note_success()
                return answer
            except asyncio.CancelledError:
                # Either the caller is cancelled, or only the call was, because another node leads.
                task = asyncio.current_task()
                if not asked.is_given_up or task is None or task.cancelling():
                    raise
                if is_read_only:
                    return None
                raise _lost_answer() from None
            except grpc.aio.AioRpcError as error:
                status = parse_rpc_error(error)
                if status.code in _NOT_DONE or (is_read_only and status.code is ErrorCode.SHUTTING_DOWN):
                    self.note_failure(address, status.leader)
                    return None
                if status.code is not None or error.code() not in _UNANSWERED:
                    raise
                # The connection broke under the call, or nobody answered in time.
                if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                    self.note_silence(address, channel)
                else:
                    self.note_failure(address, None)
                if is_read_only:
                    return None
                raise _lost_answer() from error
            finally:
                self._asked.pop(asked, None)
                if asked.give_up is not None:
                    asked.give_up.cancel()


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
