# SPDX-License-Identifier: Apache-2.0
"""What all services of the quorum listener share: deadlines, the cluster check, failures as gRPC status.

Owns the rules for one call. Law: a call always ends, with an answer or a typed status, before its caller's deadline.
"""

from __future__ import annotations

import logging
from types import TracebackType
from typing import Any, Final, cast

import grpc.aio
from lograft.v1.errors_pb2 import LeaderHint
from lograft.wire.codes import ErrorCode
from lograft.wire.status import RichStatus, abort_status

from metaquorum.runtime.commit_waiters import CommandError
from metaquorum.runtime.listener import QuorumLeader

logger = logging.getLogger(__name__)

MAX_WAIT_MS: Final = 30_000
"""Longest time that a call may wait inside this server, whatever its deadline; also the time of a call without one."""

DEADLINE_MARGIN_MS: Final = 250
"""Milliseconds before the caller's deadline, at most, at which a waiting call gives its typed answer; an eighth of a short time."""

ServicerContext = grpc.aio.ServicerContext[Any, Any]


def timeout_ms(context: ServicerContext) -> int:
    """Return how long a call may wait, in milliseconds: within its deadline and within the server's limit."""
    # The type stubs leave out that a call may have no deadline.
    remaining_s = cast("float | None", context.time_remaining())
    if remaining_s is None:
        return MAX_WAIT_MS
    left_ms = int(remaining_s * 1000)
    return max(1, min(MAX_WAIT_MS, left_ms - min(DEADLINE_MARGIN_MS, left_ms // 8)))


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


def to_status(error: CommandError) -> RichStatus:
    """Return the gRPC status of a failure."""
    return abort_status(
        error.code,
        error.message,
        retry_after_ms=error.retry_after_ms,
        leader=None if error.leader is None else leader_hint(error.leader),
    )


def leader_hint(leader: QuorumLeader) -> LeaderHint | None:
    """Return where the leader's quorum listener is, or None when leader or address are not known."""
    if leader.leader_id is None or leader.address is None:
        return None
    host, _, port = leader.address.rpartition(":")
    return LeaderHint(
        leader_id=leader.leader_id, leader_epoch=leader.quorum_epoch, host=host.strip("[]"), port=int(port)
    )


class Answering:
    """Around the body of a handler: turns whatever it raises into a typed status.

    A class, for it is around every call, and a generator as context manager costs four times as much.

    Args:
        context: of the call.
    """

    __slots__ = ("_context",)

    def __init__(self, context: ServicerContext) -> None:
        self._context = context

    async def __aenter__(self) -> None:
        return None

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, CommandError):
            await self._context.abort_with_status(to_status(error))
        elif isinstance(error, Exception):
            logger.error("event=call_failed", exc_info=error)
            await self._context.abort_with_status(internal_error())


def internal_error() -> RichStatus:
    """Return the status of a fault of this server; details stay in its log."""
    return abort_status(ErrorCode.INTERNAL, "a fault of the server; its log says more")
