# SPDX-License-Identifier: Apache-2.0
"""Delayed answers of the controller: each waits for a commit.

Owns the limit of waiting answers, and the error that callers get. Does not know the controller or the quorum. Law: after any error
except OUTCOME_UNKNOWN, the caller knows whether the command took effect.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from lograft.wire.codes import ErrorCode

from metaquorum.controller.commands import Refusal, Response
from metaquorum.metadata.listener import QuorumLeader

MAX_PARKED_COMMANDS: Final = 10_000
"""Commands that may wait for their commit at the same time. Further ones are refused with OVERLOADED."""

RETRY_AFTER_MS: Final = 100
"""Milliseconds after which a caller should retry when a leader, room or time was missing."""


class CommandError(Exception):
    """A command or read was not carried out, or it is unknown whether it was.

    Attributes:
        code: why; only OUTCOME_UNKNOWN leaves open whether the command took effect.
        message: text for people.
        leader: the quorum leader, if the caller should ask another node.
        retry_after_ms: milliseconds to wait before a retry, or None.
    """

    def __init__(
        self,
        code: ErrorCode,
        message: str,
        *,
        leader: QuorumLeader | None = None,
        retry_after_ms: int | None = None,
    ) -> None:
        super().__init__(f"{code.name}: {message}")
        self.code = code
        self.message = message
        self.leader = leader
        self.retry_after_ms = retry_after_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """A command was carried out and committed.

    Attributes:
        response: answer of the core.
        base_offset: offset of its first record; None without records.
        metadata_offset: offset (exclusive) of a committed state that contains it.
    """

    response: Response
    base_offset: int | None
    metadata_offset: int


@dataclass(slots=True)
class _Parked:
    wait_offset: int
    base_offset: int | None
    response: Response | Refusal
    future: asyncio.Future[Outcome]


class ParkedAnswers:
    """Answers that wait until everything below an offset is committed. The offsets of successive answers never go back."""

    def __init__(self) -> None:
        self._parked: deque[_Parked] = deque()

    @cached_property
    def _loop(self) -> asyncio.AbstractEventLoop:
        """The event loop of this object. Cached, because Python 3.11 makes a system call for each look-up."""
        return asyncio.get_running_loop()

    def __len__(self) -> int:
        return len(self._parked)

    def require_room(self) -> None:
        """Return if one more answer may wait.

        Raises:
            CommandError: OVERLOADED.
        """
        if len(self._parked) >= MAX_PARKED_COMMANDS:
            raise CommandError(
                ErrorCode.OVERLOADED,
                f"{MAX_PARKED_COMMANDS} commands wait for their commit; try again",
                retry_after_ms=RETRY_AFTER_MS,
            )

    def park(
        self, response: Response | Refusal, *, wait_offset: int, base_offset: int | None, committed_offset: int
    ) -> asyncio.Future[Outcome]:
        """Return the future of an answer that may be given once `wait_offset` (exclusive) is committed.

        Args:
            response: the answer; a refusal becomes a CommandError.
            wait_offset: end of the log when the answer was decided.
            base_offset: offset of the command's first record; None without records.
            committed_offset: end of what is committed now; the answer may be ready at once.
        """
        future: asyncio.Future[Outcome] = self._loop.create_future()
        parked = _Parked(wait_offset, base_offset, response, future)
        if wait_offset <= committed_offset:
            _complete(parked, committed_offset)
        else:
            self._parked.append(parked)
        return future

    def committed(self, next_offset: int) -> None:
        """Give the answers for which everything below `next_offset` (exclusive) is enough."""
        while self._parked and self._parked[0].wait_offset <= next_offset:
            _complete(self._parked.popleft(), next_offset)

    def fail_all(self, leader: QuorumLeader) -> None:
        """Fail every waiting answer because the leadership ended; `leader` is the new leader as far as known."""
        for parked in self._parked:
            if parked.future.done():
                continue
            if parked.base_offset is not None:
                error = unconfirmed_change()
            else:
                error = CommandError(
                    ErrorCode.NOT_CONTROLLER,
                    "the leadership ended before the answer was certain; nothing was changed",
                    leader=leader,
                    retry_after_ms=RETRY_AFTER_MS,
                )
            parked.future.set_exception(error)
        self._parked.clear()


def unconfirmed_change() -> CommandError:
    """Return the error of a change whose leadership ended after the append: the next leader may have it or not."""
    message = "the leadership ended before the change was confirmed; look before you repeat it"
    return CommandError(ErrorCode.OUTCOME_UNKNOWN, message)


def _complete(parked: _Parked, committed_offset: int) -> None:
    if parked.future.done():
        return
    if isinstance(parked.response, Refusal):
        parked.future.set_exception(CommandError(parked.response.code, parked.response.message))
        return
    parked.future.set_result(
        Outcome(response=parked.response, base_offset=parked.base_offset, metadata_offset=committed_offset)
    )


def give_up(future: asyncio.Future[Outcome], appended: bool, timeout_ms: int) -> None:
    """Fail an answer whose time is up."""
    if future.done():
        return
    if appended:
        error = CommandError(
            ErrorCode.OUTCOME_UNKNOWN,
            f"the change was not confirmed by the quorum within {timeout_ms} ms; look before you repeat it",
        )
    else:
        error = CommandError(
            ErrorCode.TIMED_OUT,
            f"the quorum confirmed nothing for {timeout_ms} ms; nothing was changed",
            retry_after_ms=RETRY_AFTER_MS,
        )
    future.set_exception(error)


def unconfirmed(timeout_ms: int) -> CommandError:
    """Return the error of a read for which no majority confirmed in time that this node leads."""
    return CommandError(
        ErrorCode.QUORUM_UNAVAILABLE,
        f"no majority of the voters confirmed within {timeout_ms} ms that this node still leads; try again",
        retry_after_ms=RETRY_AFTER_MS,
    )
