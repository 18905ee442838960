# SPDX-License-Identifier: Apache-2.0
"""Rules of all calls to the controller: deadlines, the cluster check, failures as refusals.

Owns the rules for one call. Law: a call always ends, with an answer or a typed refusal, before its caller's deadline.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from google.protobuf.message import Message
from lograft.v1.errors_pb2 import LeaderHint
from lograft.wire.codes import ErrorCode

from metaquorum.controller_service.commit_waiters import RETRY_AFTER_MS, CommandError
from metaquorum.metadata.listener import QuorumLeader
from metaquorum.net.link import ServedCall
from metaquorum.net.service import RefusalError

MAX_WAIT_MS: Final = 30_000
"""Longest time in milliseconds that a call may wait inside this server; also the limit of a call without a deadline."""

DEADLINE_MARGIN_MS: Final = 250
"""Milliseconds before the caller's deadline at which a waiting call answers; with less than 2 s left, an eighth of that time."""

RequestT = TypeVar("RequestT", bound=Message)
ResponseT = TypeVar("ResponseT", bound=Message)


def wait_ms(left_ms: int | None) -> int:
    """Return how many milliseconds a call may wait, within the server's limit and the caller's deadline (None: no deadline)."""
    if left_ms is None:
        return MAX_WAIT_MS
    return max(1, min(MAX_WAIT_MS, left_ms - min(DEADLINE_MARGIN_MS, left_ms // 8)))


def refusing(
    answer: Callable[[RequestT, int], Awaitable[ResponseT]],
) -> Callable[[RequestT, ServedCall], Awaitable[ResponseT]]:
    """Adapt a handler for a `ServiceTable`: it gets the milliseconds that it may wait, and its `CommandError` becomes a refusal."""

    async def serve(request: RequestT, call: ServedCall) -> ResponseT:
        try:
            return await answer(request, wait_ms(call.timeout_ms))
        except CommandError as error:
            raise refusal(error) from error

    return serve


def refusal(error: CommandError) -> RefusalError:
    """Return the error in the form that another server gets."""
    leader = None if error.leader is None else leader_hint(error.leader)
    return RefusalError(error.code, error.message, retry_after_ms=error.retry_after_ms or 0, leader=leader)


def not_started() -> CommandError:
    """Return the refusal of a server whose controller has not started, or has stopped."""
    return CommandError(
        ErrorCode.QUORUM_UNAVAILABLE, "this node is starting or stopping", retry_after_ms=RETRY_AFTER_MS
    )


def check_cluster(named: str, own: str, *, required: bool) -> None:
    """Return if a request names this cluster.

    Args:
        named: cluster id in the request; empty if it names none.
        own: cluster id of this server.
        required: True if the request must name a cluster (calls between servers).

    Raises:
        CommandError: WRONG_CLUSTER.
    """
    if named == own or (not named and not required):
        return
    raise CommandError(
        ErrorCode.WRONG_CLUSTER, f"this is cluster {own!r}, the request is for {named[:100]!r}; check the address"
    )


def leader_hint(leader: QuorumLeader) -> LeaderHint | None:
    """Return the address of the leader's internal port; None if leader or address are unknown."""
    if leader.leader_id is None or leader.address is None:
        return None
    host, _, port = leader.address.rpartition(":")
    return LeaderHint(
        leader_id=leader.leader_id, leader_epoch=leader.quorum_epoch, host=host.strip("[]"), port=int(port)
    )
