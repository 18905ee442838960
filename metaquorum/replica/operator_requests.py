# SPDX-License-Identifier: Apache-2.0
"""Operators who wait for the core: changes of the voters, transfers of the leadership, the next leader.

Owns the futures of those who wait; the core owns the outcome. Law: each is answered once; a node that stops says
UNKNOWN of a change that it may have begun.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from metaquorum.metadata.listener import QuorumLeader
from metaquorum.raft.effects import AnswerTransfer, AnswerVoterChange
from metaquorum.raft.events import Event, TransferRequested, VoterChangeRequested
from metaquorum.raft.types import NodeId
from metaquorum.raft.voter_changes import (
    ChangeOutcome,
    ChangeRefusal,
    ChangeRefused,
    ChangeUnknown,
    TransferOutcome,
    VoterChange,
)

MAX_REQUESTS = 100
"""Operators that may wait at once; the core does one thing at a time and refuses the rest."""

T = TypeVar("T")


class OperatorRequests:
    """Who waits for what.

    Args:
        submit: takes an event to the core.
    """

    def __init__(self, submit: Callable[[Event], None]) -> None:
        self._submit = submit
        self._next_token = 1
        self._changes: dict[int, asyncio.Future[ChangeOutcome]] = {}
        self._transfers: dict[int, asyncio.Future[TransferOutcome]] = {}
        self._leader_waits: dict[asyncio.Future[QuorumLeader], int] = {}
        self._is_closed = False

    async def change_voters(self, change: VoterChange) -> ChangeOutcome:
        """Ask the core for a change of the voters and wait for its end; the caller bounds the wait."""
        if self._is_full:
            return ChangeRefused(reason=ChangeRefusal.CHANGE_PENDING)
        token = self._token()
        future: asyncio.Future[ChangeOutcome] = asyncio.get_running_loop().create_future()
        self._changes[token] = future
        self._submit(VoterChangeRequested(token=token, change=change))
        try:
            return await future
        finally:
            self._changes.pop(token, None)

    async def transfer_leadership(self, to: NodeId | None) -> TransferOutcome:
        """Ask the core to hand the leadership over; the core bounds the wait."""
        if self._is_full:
            return ChangeRefused(reason=ChangeRefusal.TRANSFER_PENDING)
        token = self._token()
        future: asyncio.Future[TransferOutcome] = asyncio.get_running_loop().create_future()
        self._transfers[token] = future
        self._submit(TransferRequested(token=token, to=to))
        try:
            return await future
        finally:
            self._transfers.pop(token, None)

    async def next_leader(self, known: QuorumLeader, *, above_epoch: int) -> QuorumLeader:
        """Wait until a leader of a higher epoch is known; the caller bounds the wait.

        Args:
            known: who leads as far as known now.
            above_epoch: epoch that the leader must be above.

        Returns:
            That leader; one without an id when this node stops before it is known.
        """
        if known.leader_id is not None and known.quorum_epoch > above_epoch:
            return known
        future: asyncio.Future[QuorumLeader] = asyncio.get_running_loop().create_future()
        self._leader_waits[future] = above_epoch
        try:
            return await future
        finally:
            self._leader_waits.pop(future, None)

    @property
    def _is_full(self) -> bool:
        assert not self._is_closed, "a closed node takes no requests"
        return len(self._changes) + len(self._transfers) >= MAX_REQUESTS

    def _token(self) -> int:
        token = self._next_token
        self._next_token += 1
        return token

    def answer(self, effect: AnswerVoterChange | AnswerTransfer) -> None:
        """Hand an answer of the core to who waits for it; one who went away is not looked for."""
        match effect:
            case AnswerVoterChange(token=token, outcome=outcome):
                _settle(self._changes.get(token), outcome)
            case AnswerTransfer(token=token, outcome=outcome):
                _settle(self._transfers.get(token), outcome)

    def announce(self, leader: QuorumLeader) -> None:
        """Wake those who wait for this leader."""
        for future, above_epoch in list(self._leader_waits.items()):
            if leader.leader_id is not None and leader.quorum_epoch > above_epoch:
                _settle(future, leader)

    def close(self) -> None:
        """The core takes no more events: nobody learns any more than is known now."""
        self._is_closed = True
        for change in self._changes.values():
            _settle(change, ChangeUnknown())
        for transfer in self._transfers.values():
            _settle(transfer, ChangeRefused(reason=ChangeRefusal.NOT_LEADER))
        for wait in self._leader_waits:
            _settle(wait, QuorumLeader(leader_id=None, quorum_epoch=0, address=None))


def _settle(future: asyncio.Future[T] | None, outcome: T) -> None:
    if future is not None and not future.done():
        future.set_result(outcome)
