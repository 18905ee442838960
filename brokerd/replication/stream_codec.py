# SPDX-License-Identifier: Apache-2.0
"""The messages of a `Replicate` stream as bytes: an encoder and a decoder for each direction.

The one bulk message, batches, is encoded and decoded by hand. The bytes are those of the generated code, but the encoder copies the
batches only once, and the decoder slices them off unparsed as a memoryview. The decoder handles the usual layout and leaves every other
layout to the generated parser, so both agree on every byte string. `lograft.wire.frames` does the same for clients.
Source: proto/lograft/internal/v1/replication.proto.
"""

from __future__ import annotations

from typing import Final, assert_never

from google.protobuf.message import DecodeError
from lograft.internal.v1 import replication_pb2 as pb
from lograft.wire.codes import ErrorCode
from lograft.wire.frame_layout import encode_frame, slice_frame

from brokerd.failure import refused
from brokerd.partition.reconciliation import EpochEnd, SubscriptionError
from brokerd.partition.stream_messages import (
    Accepted,
    Acks,
    Batches,
    Credit,
    Diverged,
    Ended,
    FollowerMessage,
    GoAway,
    Heartbeat,
    LeaderMessage,
    Marks,
    Open,
    Opened,
    RouteAck,
    RouteMark,
    Subscription,
    Subscriptions,
    Unsubscriptions,
)

ROUTE_ERRORS: Final = {
    error: pb.RouteError.Value(f"ROUTE_ERROR_{error.name}")
    for error in SubscriptionError
    if error not in (SubscriptionError.BAD_BATCHES, SubscriptionError.STREAM_LOST)
}
"""The reasons with which a leader ends a route. The two missing ones occur only inside a follower."""

_ERRORS: Final = {number: error for error, number in ROUTE_ERRORS.items()}

_FOLLOWER_HEARTBEAT: Final = pb.ReplicateRequest(heartbeat=pb.ReplicaHeartbeat()).SerializeToString()
_LEADER_HEARTBEAT: Final = pb.ReplicateResponse(heartbeat=pb.LeaderHeartbeat()).SerializeToString()

_BATCHES_TAG: Final = b"\x7a"  # ReplicateResponse.batches = 15, length-delimited
_NUMBER_FIELDS: Final = 6
_INT32_FIELDS: Final = (3, 6)  # leader_epoch, traffic
_IN_SYNC: Final = int(pb.REPLICA_TRAFFIC_IN_SYNC)
_CATCH_UP: Final = int(pb.REPLICA_TRAFFIC_CATCH_UP)


# Follower to leader.


def encode_request(message: FollowerMessage) -> bytes:
    """Return a follower's message as a serialized ReplicateRequest."""
    match message:
        case Acks():
            acks = [
                pb.ReplicaAck(route=route, appended_offset=appended_offset, flushed_offset=flushed_offset)
                for route, appended_offset, flushed_offset in message.acks
            ]
            request = pb.ReplicateRequest(acks=pb.ReplicaAcks(acks=acks))
        case Credit():
            request = pb.ReplicateRequest(credit=_pb_credit(message))
        case Heartbeat():
            return _FOLLOWER_HEARTBEAT
        case Subscriptions():
            subscriptions = [
                pb.ReplicaSubscription(
                    route=each.route,
                    topic_id=each.topic_id,
                    partition=each.partition,
                    session=each.session,
                    leader_epoch=each.leader_epoch,
                    log_end_offset=each.log_end_offset,
                    flushed_offset=each.flushed_offset,
                    last_epoch=each.last_epoch,
                )
                for each in message.subscriptions
            ]
            request = pb.ReplicateRequest(subscriptions=pb.ReplicaSubscriptions(subscriptions=subscriptions))
        case Unsubscriptions():
            request = pb.ReplicateRequest(unsubscriptions=pb.ReplicaUnsubscriptions(routes=message.routes))
        case Open():
            request = pb.ReplicateRequest(
                open=pb.ReplicateOpen(
                    cluster_id=message.cluster_id,
                    follower_id=message.follower_id,
                    broker_epoch=message.broker_epoch,
                    incarnation_id=message.incarnation_id,
                    leader_id=message.leader_id,
                    formats=message.formats,
                    credit=_pb_credit(message.credit),
                )
            )
        case _:
            assert_never(message)
    return request.SerializeToString()


def decode_request(data: bytes) -> FollowerMessage:
    """Return a follower's message from its bytes.

    Raises:
        RefusedError: INVALID_REQUEST.
    """
    try:
        return read_request(pb.ReplicateRequest.FromString(data))
    except DecodeError:
        raise refused(ErrorCode.INVALID_REQUEST, "a message to a leader is not a ReplicateRequest") from None


def read_request(request: pb.ReplicateRequest) -> FollowerMessage:
    """Return a follower's message from a parsed request.

    Raises:
        RefusedError: INVALID_REQUEST.
    """
    match request.WhichOneof("part"):
        case "acks":
            return Acks(
                tuple([RouteAck(ack.route, ack.appended_offset, ack.flushed_offset) for ack in request.acks.acks])
            )
        case "credit":
            return _read_credit(request.credit)
        case "heartbeat":
            return Heartbeat()
        case "subscriptions":
            subscriptions = [
                Subscription(
                    route=each.route,
                    topic_id=each.topic_id,
                    partition=each.partition,
                    session=each.session,
                    leader_epoch=each.leader_epoch,
                    log_end_offset=each.log_end_offset,
                    flushed_offset=each.flushed_offset,
                    last_epoch=each.last_epoch if each.HasField("last_epoch") else None,
                )
                for each in request.subscriptions.subscriptions
            ]
            return Subscriptions(tuple(subscriptions))
        case "unsubscriptions":
            return Unsubscriptions(tuple(request.unsubscriptions.routes))
        case "open":
            opening = request.open
            return Open(
                cluster_id=opening.cluster_id,
                follower_id=opening.follower_id,
                broker_epoch=opening.broker_epoch,
                incarnation_id=opening.incarnation_id,
                leader_id=opening.leader_id,
                formats=tuple(opening.formats),
                credit=_read_credit(opening.credit),
            )
        case _:
            message = "a message to a leader must be open, subscriptions, unsubscriptions, acks, credit or heartbeat"
            raise refused(ErrorCode.INVALID_REQUEST, message)


def _pb_credit(credit: Credit) -> pb.ReplicaCredit:
    return pb.ReplicaCredit(in_sync_bytes=credit.in_sync_bytes, catch_up_bytes=credit.catch_up_bytes)


def _read_credit(credit: pb.ReplicaCredit) -> Credit:
    return Credit(credit.in_sync_bytes, credit.catch_up_bytes)


# Leader to follower.


def encode_response(message: LeaderMessage) -> bytes:
    """Return a leader's message other than batches as a serialized ReplicateResponse."""
    match message:
        case Marks():
            marks = [
                pb.LeaderMark(route=route, high_watermark=high_watermark, log_start_offset=log_start_offset)
                for route, high_watermark, log_start_offset in message.marks
            ]
            response = pb.ReplicateResponse(marks=pb.LeaderMarks(marks=marks))
        case Accepted():
            response = pb.ReplicateResponse(
                accepted=pb.SubscriptionAccepted(
                    route=message.route,
                    high_watermark=message.high_watermark,
                    log_start_offset=message.log_start_offset,
                )
            )
        case Diverged():
            leader_end = message.leader_end
            response = pb.ReplicateResponse(
                diverged=pb.SubscriptionDiverged(
                    route=message.route, epoch=leader_end.epoch, end_offset=leader_end.end_offset
                )
            )
        case Ended():
            response = pb.ReplicateResponse(
                ended=pb.RouteEnded(
                    route=message.route,
                    error=ROUTE_ERRORS[message.error],
                    log_start_offset=message.log_start_offset,
                    message=message.message,
                )
            )
        case Heartbeat():
            return _LEADER_HEARTBEAT
        case Opened():
            response = pb.ReplicateResponse(
                opened=pb.ReplicateOpened(
                    broker_epoch=message.broker_epoch,
                    idle_ms=message.idle_ms,
                    silence_ms=message.silence_ms,
                    lag_max_ms=message.lag_max_ms,
                )
            )
        case GoAway():
            response = pb.ReplicateResponse(go_away=pb.ReplicateGoAway(drain_ms=message.drain_ms))
        case _:
            assert_never(message)
    return response.SerializeToString()


def encode_batches(batches: Batches) -> bytes:
    """Return batches as a serialized ReplicateResponse. All numbers must be 0 or more."""
    route, base_offset, leader_epoch, high_watermark, log_start_offset, is_in_sync, body = batches
    traffic = _IN_SYNC if is_in_sync else _CATCH_UP
    numbers = (route, base_offset, leader_epoch, high_watermark, log_start_offset, traffic)
    return encode_frame(_BATCHES_TAG, numbers, (body,))


def decode_response(data: bytes) -> LeaderMessage | Batches | None:
    """Return a leader's message from its bytes; None for a message that this version does not know.

    Raises:
        google.protobuf.message.DecodeError: the bytes are not a ReplicateResponse.
    """
    sliced = slice_frame(data, _BATCHES_TAG[0], _NUMBER_FIELDS, _INT32_FIELDS)
    if sliced is not None:
        (_, route, base_offset, leader_epoch, high_watermark, log_start_offset, traffic), body = sliced
        return Batches(route, base_offset, leader_epoch, high_watermark, log_start_offset, traffic == _IN_SYNC, body)
    response = pb.ReplicateResponse.FromString(data)
    match response.WhichOneof("part"):
        case "batches":
            batches = response.batches
            return Batches(
                batches.route,
                batches.base_offset,
                batches.leader_epoch,
                batches.high_watermark,
                batches.log_start_offset,
                batches.traffic == _IN_SYNC,
                memoryview(batches.batches),
            )
        case "marks":
            marks = [RouteMark(mark.route, mark.high_watermark, mark.log_start_offset) for mark in response.marks.marks]
            return Marks(tuple(marks))
        case "accepted":
            accepted = response.accepted
            return Accepted(
                route=accepted.route,
                high_watermark=accepted.high_watermark,
                log_start_offset=accepted.log_start_offset,
            )
        case "diverged":
            diverged = response.diverged
            epoch = diverged.epoch if diverged.HasField("epoch") else None
            return Diverged(route=diverged.route, leader_end=EpochEnd(epoch, diverged.end_offset))
        case "ended":
            ended = response.ended
            return Ended(
                route=ended.route,
                # An error that only a newer version knows counts as OVERLOADED: the follower waits and asks again.
                error=_ERRORS.get(ended.error, SubscriptionError.OVERLOADED),
                log_start_offset=ended.log_start_offset,
                message=ended.message,
            )
        case "heartbeat":
            return Heartbeat()
        case "opened":
            opened = response.opened
            return Opened(
                broker_epoch=opened.broker_epoch,
                idle_ms=opened.idle_ms,
                silence_ms=opened.silence_ms,
                lag_max_ms=opened.lag_max_ms,
            )
        case "go_away":
            return GoAway(response.go_away.drain_ms)
        case _:
            return None
