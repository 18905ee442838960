# SPDX-License-Identifier: Apache-2.0
"""Who waits for a commit: callers with an answer ready.

Owns the bounded waiting room of the controller's shell and the error that callers get. Must not know the controller or
the quorum. Law: whoever is told anything but OUTCOME_UNKNOWN knows whether the command took effect.
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
"""Commands that wait for their commit at once; more are refused with OVERLOADED."""

RETRY_AFTER_MS: Final = 100
"""Advice to a caller that was refused for lack of a leader, of room or of time."""


class CommandError(Exception):
    """A command (or read) was not carried out, or it is unknown whether it was.

    Attributes:
        code: why; OUTCOME_UNKNOWN alone leaves open whether the command took effect.
        message: text for people.
        leader: who leads, when another node is to be asked.
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
    """A command was carried out, and that is committed.

    Attributes:
        response: answer of the core.
        base_offset: offset of the first record, or None without records.
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
    """Answers that wait until everything below an offset is committed; offsets never go back from one to the next."""

    def __init__(self) -> None:
        self._parked: deque[_Parked] = deque()

    @cached_property
    def _loop(self) -> asyncio.AbstractEventLoop:
        """The loop that this object lives on. Taken once: Python 3.11 makes a system call whenever it is asked for it."""
        return asyncio.get_running_loop()

    def __len__(self) -> int:
        return len(self._parked)

    def require_room(self) -> None:
        """Return while one more answer can be parked.

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
        """Return the future of an answer that may be given when `wait_offset` (exclusive) is committed.

        Args:
            response: the answer; a refusal becomes a CommandError.
            wait_offset: end of what was appended when the answer was decided.
            base_offset: offset of the command's first record, or None without records.
            committed_offset: what is committed now; the answer may be ready at once.
        """
        future: asyncio.Future[Outcome] = self._loop.create_future()
        parked = _Parked(wait_offset, base_offset, response, future)
        if wait_offset <= committed_offset:
            _complete(parked, committed_offset)
        else:
            self._parked.append(parked)
        return future

    def committed(self, next_offset: int) -> None:
        """Give the answers that `next_offset` (exclusive) makes certain."""
        while self._parked and self._parked[0].wait_offset <= next_offset:
            _complete(self._parked.popleft(), next_offset)

    def fail_all(self, leader: QuorumLeader) -> None:
        """Tell everybody that the leadership ended; `leader` is who leads now, as far as known."""
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
    """Make the error of a change that was appended by a leadership that has ended: the next leader has it, or not."""
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
    """End the wait for a commit."""
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
    """Return the error of a reader to whom nobody could show that this node still leads."""
    return CommandError(
        ErrorCode.QUORUM_UNAVAILABLE,
        f"no majority of the voters confirmed within {timeout_ms} ms that this node still leads; try again",
        retry_after_ms=RETRY_AFTER_MS,
    )
