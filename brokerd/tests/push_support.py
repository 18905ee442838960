# SPDX-License-Identifier: Apache-2.0
"""Builders for tests of the core of a stream at the leader."""

from __future__ import annotations

from brokerd.failure import Failure
from brokerd.partition.leader_stream import PushSession
from brokerd.partition.leader_stream_events import (
    AbortPush,
    AcksReceived,
    ChunkRead,
    Ended,
    Opened,
    PushEffect,
    PushOpened,
    RouteAccepted,
    RouteAck,
    SubscribeReplica,
    Subscription,
    SubscriptionsReceived,
)
from brokerd.partition.leader_stream_rate import PushRates
from brokerd.partition.leader_stream_traffic import Traffic
from brokerd.partition.reconciliation import SubscriptionError

TOPIC_ID = b"t" * 16


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
    """Return what a follower asks for."""
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


def opened_session(
    *,
    in_sync_bytes: int = 1_000_000,
    catch_up_bytes: int = 1_000_000,
    rates: PushRates | None = None,
    now_ms: int = 0,
) -> PushSession:
    """Return a stream that is open, its first answer taken."""
    session = PushSession(rates or PushRates(), now_ms)
    assert session.step(PushOpened(in_sync_bytes=in_sync_bytes, catch_up_bytes=catch_up_bytes), now_ms) == []
    assert session.take_answers(now_ms) == [Opened()]
    return session


def accept(
    session: PushSession,
    route: int,
    *,
    end: int = 0,
    high_watermark: int = 0,
    log_start_offset: int = 0,
    traffic: Traffic = Traffic.IN_SYNC,
    now_ms: int = 0,
) -> None:
    """Let the replica of a route accept."""
    accepted = RouteAccepted(
        route=route,
        high_watermark=high_watermark,
        log_start_offset=log_start_offset,
        log_end_offset=end,
        traffic=traffic,
    )
    assert session.step(accepted, now_ms) == []


def subscribe(
    session: PushSession,
    route: int,
    *,
    partition: int = 0,
    log_end: int = 0,
    high_watermark: int = 0,
    traffic: Traffic = Traffic.IN_SYNC,
    now_ms: int = 0,
) -> None:
    """Let a follower with an empty log subscribe, the replica accept, and the answer be written."""
    wanted = subscription(route, partition=partition)
    effects = session.step(SubscriptionsReceived(subscriptions=(wanted,)), now_ms)
    assert effects == [SubscribeReplica(subscription=wanted)]
    accept(session, route, end=log_end, high_watermark=high_watermark, traffic=traffic, now_ms=now_ms)
    assert len(session.take_answers(now_ms)) == 1


def read(session: PushSession, next_offset: int, *, size_bytes: int = 1_000, now_ms: int = 0) -> tuple[int, int]:
    """Let the next read give everything below an offset; return the route and where it began."""
    wanted = session.next_read(now_ms)
    assert wanted is not None
    assert session.step(ChunkRead(route=wanted.route, next_offset=next_offset, size_bytes=size_bytes), now_ms) == []
    return wanted.route, wanted.offset


def acked(route: int, appended: int, flushed: int | None = None) -> AcksReceived:
    """Return the acknowledgement of one route."""
    ack = RouteAck(route=route, appended_offset=appended, flushed_offset=appended if flushed is None else flushed)
    return AcksReceived(acks=(ack,))


def only_abort(effects: list[PushEffect]) -> Failure:
    """Return why the stream ends."""
    assert len(effects) == 1
    assert isinstance(effects[0], AbortPush)
    return effects[0].failure


def ended(route: int, error: SubscriptionError, log_start_offset: int = 0) -> Ended:
    """Return the answer that ends a route."""
    return Ended(route=route, error=error, log_start_offset=log_start_offset, message=error.value)
