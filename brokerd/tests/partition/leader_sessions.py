# SPDX-License-Identifier: Apache-2.0
"""Builders for tests of the core of a stream at the leader."""

from __future__ import annotations

from typing import Final

from lograft.wire.codes import ErrorCode

from brokerd.partition.leader_stream import LeaderSession, Rebinding
from brokerd.partition.reconciliation import SubscriptionError
from brokerd.partition.replication_rates import ReplicationRates, Traffic
from brokerd.partition.stream_limits import StreamLimits
from brokerd.partition.stream_messages import Credit, Ended, Opened, RouteAck, Subscription

LIMITS: Final = StreamLimits()
TOPIC_ID: Final = b"t" * 16
OPENED: Final = Opened(broker_epoch=10, idle_ms=1, silence_ms=2, lag_max_ms=3)
"""The answer to an opening, which the test passes in."""


def subscription(
    route: int,
    *,
    partition: int = 0,
    session: int = 1,
    leader_epoch: int = 5,
    end: int = 0,
    flushed: int | None = None,
    last_epoch: int | None = None,
) -> Subscription:
    """Return a follower's subscription."""
    return Subscription(
        route=route,
        topic_id=TOPIC_ID,
        partition=partition,
        session=session,
        leader_epoch=leader_epoch,
        log_end_offset=end,
        flushed_offset=end if flushed is None else flushed,
        last_epoch=last_epoch,
    )


def new_session(*, rates: ReplicationRates | None = None, now_ms: int = 0) -> LeaderSession:
    """Return a stream that is not open yet."""
    return LeaderSession(LIMITS, rates or ReplicationRates(), now_ms)


def opened_session(
    *,
    in_sync_bytes: int = 1_000_000,
    catch_up_bytes: int = 1_000_000,
    rates: ReplicationRates | None = None,
    now_ms: int = 0,
) -> LeaderSession:
    """Return a stream that is open, its first answer taken."""
    session = new_session(rates=rates, now_ms=now_ms)
    session.open(Credit(in_sync_bytes, catch_up_bytes), OPENED, now_ms)
    assert session.take_answers(now_ms) == [OPENED]
    return session


def accept(
    session: LeaderSession,
    route: int,
    *,
    end: int = 0,
    high_watermark: int = 0,
    log_start_offset: int = 0,
    traffic: Traffic = Traffic.IN_SYNC,
) -> None:
    """Make the replica of a route accept."""
    session.accept(
        route,
        high_watermark=high_watermark,
        log_start_offset=log_start_offset,
        log_end_offset=end,
        traffic=traffic,
    )


def subscribe(
    session: LeaderSession,
    route: int,
    *,
    partition: int = 0,
    log_end: int = 0,
    high_watermark: int = 0,
    traffic: Traffic = Traffic.IN_SYNC,
    now_ms: int = 0,
) -> None:
    """Subscribe a follower with an empty log, accept it, and take the answer."""
    wanted = subscription(route, partition=partition)
    assert session.subscribe((wanted,), now_ms) == [Rebinding(None, wanted)]
    accept(session, route, end=log_end, high_watermark=high_watermark, traffic=traffic)
    assert len(session.take_answers(now_ms)) == 1


def read(session: LeaderSession, next_offset: int, *, size_bytes: int = 1_000, now_ms: int = 0) -> tuple[int, int]:
    """Make the next read return everything below an offset. Return the route and the start of the read."""
    wanted = session.next_read(now_ms)
    assert wanted is not None
    assert session.note_read(wanted.route, next_offset=next_offset, size_bytes=size_bytes, now_ms=now_ms)
    return wanted.route, wanted.offset


def acked(route: int, appended: int, flushed: int | None = None) -> tuple[RouteAck, ...]:
    """Return the acknowledgement of one route."""
    return (RouteAck(route, appended, appended if flushed is None else flushed),)


def refusal(session: LeaderSession) -> str:
    """Return why the stream ends through the follower's fault."""
    assert session.is_over
    assert session.failure is not None
    assert session.failure.code is ErrorCode.INVALID_REQUEST
    return session.failure.message


def is_timed_out(session: LeaderSession) -> bool:
    """Return True if the stream ends because of a time limit."""
    return session.is_over and session.failure is not None and session.failure.code is ErrorCode.TIMED_OUT


def ended(route: int, error: SubscriptionError, log_start_offset: int = 0) -> Ended:
    """Return the answer that ends a route."""
    return Ended(route=route, error=error, log_start_offset=log_start_offset, message=error.value)
