# SPDX-License-Identifier: Apache-2.0
"""What all calls to the controller share: deadlines, the cluster check, failures as refusals.

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
"""Longest time that a call may wait inside this server, whatever its deadline; also the time of a call without one."""

DEADLINE_MARGIN_MS: Final = 250
"""Milliseconds before the caller's deadline, at most, at which a waiting call gives its typed answer; an eighth of a short time."""

RequestT = TypeVar("RequestT", bound=Message)
ResponseT = TypeVar("ResponseT", bound=Message)


def wait_ms(left_ms: int | None) -> int:
    """Return how long a call may wait, in milliseconds: within the server's limit and its caller's deadline; None: it has none."""
    if left_ms is None:
        return MAX_WAIT_MS
    return max(1, min(MAX_WAIT_MS, left_ms - min(DEADLINE_MARGIN_MS, left_ms // 8)))


def refusing(
    answer: Callable[[RequestT, int], Awaitable[ResponseT]],
) -> Callable[[RequestT, ServedCall], Awaitable[ResponseT]]:
    """Return what a `ServiceTable` takes: `answer` gets the milliseconds that it may wait, and its `CommandError` is the refusal."""

    async def serve(request: RequestT, call: ServedCall) -> ResponseT:
        try:
            return await answer(request, wait_ms(call.timeout_ms))
        except CommandError as error:
            raise refusal(error) from error

    return serve


def refusal(error: CommandError) -> RefusalError:
    """Return a failure as another server is told of it."""
    leader = None if error.leader is None else leader_hint(error.leader)
    return RefusalError(error.code, error.message, retry_after_ms=error.retry_after_ms or 0, leader=leader)


def not_started() -> CommandError:
    """Return the refusal of a server whose controller is not there yet, or not any more."""
    return CommandError(
        ErrorCode.QUORUM_UNAVAILABLE, "this node is starting or stopping", retry_after_ms=RETRY_AFTER_MS
    )


def check_cluster(named: str, own: str, *, required: bool) -> None:
    """Return when a request may be meant for this cluster.

    Args:
        named: cluster id in the request; empty when it names none.
        own: cluster id of this server.
        required: True when the request must name one (internal traffic).

    Raises:
        CommandError: WRONG_CLUSTER.
    """
    if named == own or (not named and not required):
        return
    raise CommandError(
        ErrorCode.WRONG_CLUSTER, f"this is cluster {own!r}, the request is for {named[:100]!r}; check the address"
    )


def leader_hint(leader: QuorumLeader) -> LeaderHint | None:
    """Return where the leader's internal port is, or None when leader or address are not known."""
    if leader.leader_id is None or leader.address is None:
        return None
    host, _, port = leader.address.rpartition(":")
    return LeaderHint(
        leader_id=leader.leader_id, leader_epoch=leader.quorum_epoch, host=host.strip("[]"), port=int(port)
    )
