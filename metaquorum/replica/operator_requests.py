# SPDX-License-Identifier: Apache-2.0
"""Operators that wait for the core: for changes of the voters, leadership transfers, or the next leader.

Owns their futures; the core owns the outcomes. Law: each request is answered once. A node that stops answers UNKNOWN for a change
that it may have started.
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
"""Operators that may wait at the same time. The core does one thing at a time and refuses the rest."""

T = TypeVar("T")


class OperatorRequests:
    """The waiting operators.

    Args:
        submit: passes an event to the core.
    """

    def __init__(self, submit: Callable[[Event], None]) -> None:
        self._submit = submit
        self._next_token = 1
        self._changes: dict[int, asyncio.Future[ChangeOutcome]] = {}
        self._transfers: dict[int, asyncio.Future[TransferOutcome]] = {}
        self._leader_waits: dict[asyncio.Future[QuorumLeader], int] = {}
        self._is_closed = False

    async def change_voters(self, change: VoterChange) -> ChangeOutcome:
        """Ask the core to change the voters, and return the outcome. The caller bounds the wait."""
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
        """Ask the core to hand the leadership over, and return the outcome. The core bounds the wait."""
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
        """Wait until a leader of a higher epoch is known. The caller bounds the wait.

        Args:
            known: the currently known leader.
            above_epoch: the leader's epoch must be above it.

        Returns:
            That leader; one without an id if this node stops before.
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
        """Pass an answer of the core to the operator that waits for it, if it still does."""
        match effect:
            case AnswerVoterChange(token=token, outcome=outcome):
                _settle(self._changes.get(token), outcome)
            case AnswerTransfer(token=token, outcome=outcome):
                _settle(self._transfers.get(token), outcome)

    def announce(self, leader: QuorumLeader) -> None:
        """Wake the operators that wait for this leader."""
        for future, above_epoch in list(self._leader_waits.items()):
            if leader.leader_id is not None and leader.quorum_epoch > above_epoch:
                _settle(future, leader)

    def close(self) -> None:
        """Answer every operator: the core takes no more events."""
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
