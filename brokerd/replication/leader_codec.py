# SPDX-License-Identifier: Apache-2.0
"""Protobuf of the `Replicate` stream <-> values of the core at the leader. Pure translation; batches have their own frame."""

from __future__ import annotations

from typing import Final, assert_never

from lograft.internal.v1 import replication_pb2 as pb
from lograft.wire.codes import ErrorCode

from brokerd.failure import refused
from brokerd.limits import REPLICA_LAG_MAX_MS, REPLICATE_IDLE_MS, REPLICATE_SILENCE_MS
from brokerd.partition.leader_stream_events import (
    Accepted,
    AcksReceived,
    CreditReceived,
    Diverged,
    Ended,
    GoAway,
    Heartbeat,
    HeartbeatReceived,
    Marks,
    Opened,
    PushAnswer,
    PushEvent,
    PushOpened,
    RouteAck,
    RoutesUnwanted,
    Subscription,
    SubscriptionsReceived,
)
from brokerd.partition.reconciliation import SubscriptionError

ROUTE_ERRORS: Final = {
    SubscriptionError.NOT_LEADER: pb.ROUTE_ERROR_NOT_LEADER,
    SubscriptionError.FENCED_LEADER_EPOCH: pb.ROUTE_ERROR_FENCED_LEADER_EPOCH,
    SubscriptionError.UNKNOWN_LEADER_EPOCH: pb.ROUTE_ERROR_UNKNOWN_LEADER_EPOCH,
    SubscriptionError.STALE_BROKER_EPOCH: pb.ROUTE_ERROR_STALE_BROKER_EPOCH,
    SubscriptionError.SUPERSEDED: pb.ROUTE_ERROR_SUPERSEDED,
    SubscriptionError.NOT_A_REPLICA: pb.ROUTE_ERROR_NOT_A_REPLICA,
    SubscriptionError.LOG_AHEAD: pb.ROUTE_ERROR_LOG_AHEAD,
    SubscriptionError.BELOW_LOG_START: pb.ROUTE_ERROR_BELOW_LOG_START,
    SubscriptionError.INVALID_ACK: pb.ROUTE_ERROR_INVALID_ACK,
    SubscriptionError.STORAGE_FAILED: pb.ROUTE_ERROR_STORAGE_FAILED,
    SubscriptionError.OVERLOADED: pb.ROUTE_ERROR_OVERLOADED,
    SubscriptionError.UNKNOWN_BROKER_EPOCH: pb.ROUTE_ERROR_UNKNOWN_BROKER_EPOCH,
}
"""What a leader may say of a route. The two that are missing are the follower's own."""


def read_open(request: pb.ReplicateOpen) -> PushOpened:
    """Read the credit of an opening; the rest of it is the handshake's."""
    credit = request.credit
    return PushOpened(in_sync_bytes=credit.in_sync_bytes, catch_up_bytes=credit.catch_up_bytes)


def read_request(request: pb.ReplicateRequest) -> PushEvent:
    """Read any message but the opening.

    Raises:
        RefusedError: INVALID_REQUEST.
    """
    match request.WhichOneof("part"):
        case "acks":
            acks = tuple(
                RouteAck(route=ack.route, appended_offset=ack.appended_offset, flushed_offset=ack.flushed_offset)
                for ack in request.acks.acks
            )
            return AcksReceived(acks=acks)
        case "credit":
            credit = request.credit
            return CreditReceived(in_sync_bytes=credit.in_sync_bytes, catch_up_bytes=credit.catch_up_bytes)
        case "heartbeat":
            return HeartbeatReceived()
        case "subscriptions":
            wanted = tuple(_subscription(subscription) for subscription in request.subscriptions.subscriptions)
            return SubscriptionsReceived(subscriptions=wanted)
        case "unsubscriptions":
            return RoutesUnwanted(routes=tuple(request.unsubscriptions.routes))
        case _:
            message = "a message to a leader must be open, subscriptions, unsubscriptions, acks, credit or heartbeat"
            raise refused(ErrorCode.INVALID_REQUEST, message)


def encode_push_answer(answer: PushAnswer, *, broker_epoch: int) -> bytes:
    """Return the serialized ReplicateResponse.

    Args:
        answer: what to say.
        broker_epoch: of the leader's registration, for `Opened`.
    """
    match answer:
        case Marks():
            marks = [
                pb.LeaderMark(
                    route=mark.route, high_watermark=mark.high_watermark, log_start_offset=mark.log_start_offset
                )
                for mark in answer.marks
            ]
            response = pb.ReplicateResponse(marks=pb.LeaderMarks(marks=marks))
        case Accepted():
            response = pb.ReplicateResponse(
                accepted=pb.SubscriptionAccepted(
                    route=answer.route,
                    high_watermark=answer.high_watermark,
                    log_start_offset=answer.log_start_offset,
                )
            )
        case Diverged():
            diverged = pb.SubscriptionDiverged(route=answer.route, end_offset=answer.leader_end.end_offset)
            if answer.leader_end.epoch is not None:
                diverged.epoch = answer.leader_end.epoch
            response = pb.ReplicateResponse(diverged=diverged)
        case Ended():
            response = pb.ReplicateResponse(
                ended=pb.RouteEnded(
                    route=answer.route,
                    error=ROUTE_ERRORS[answer.error],
                    log_start_offset=answer.log_start_offset,
                    message=answer.message,
                )
            )
        case Heartbeat():
            response = pb.ReplicateResponse(heartbeat=pb.LeaderHeartbeat())
        case Opened():
            response = pb.ReplicateResponse(
                opened=pb.ReplicateOpened(
                    broker_epoch=broker_epoch,
                    idle_ms=REPLICATE_IDLE_MS,
                    silence_ms=REPLICATE_SILENCE_MS,
                    lag_max_ms=REPLICA_LAG_MAX_MS,
                )
            )
        case GoAway():
            response = pb.ReplicateResponse(go_away=pb.ReplicateGoAway(drain_ms=answer.drain_ms))
        case _:
            assert_never(answer)
    return response.SerializeToString()


def _subscription(subscription: pb.ReplicaSubscription) -> Subscription:
    return Subscription(
        route=subscription.route,
        topic_id=subscription.topic_id,
        partition=subscription.partition,
        session=subscription.session,
        leader_epoch=subscription.leader_epoch,
        log_end_offset=subscription.log_end_offset,
        flushed_offset=subscription.flushed_offset,
        last_epoch=subscription.last_epoch if subscription.HasField("last_epoch") else None,
    )
