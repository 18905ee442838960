# SPDX-License-Identifier: Apache-2.0
"""What a follower says and hears on a `Replicate` stream, as protobuf. Translation only."""

from __future__ import annotations

from typing import Final

from lograft.internal.v1 import replication_pb2 as pb

from brokerd.limits import CATCH_UP_CREDIT_BYTES, IN_SYNC_CREDIT_BYTES
from brokerd.partition.effects import Subscribe
from brokerd.partition.follower_stream import Acks, Credit, Heartbeat, Subscriptions, Unsubscriptions
from brokerd.partition.reconciliation import EpochEnd, SubscriptionError
from brokerd.replica.replication_border import FollowingReplica

FORMATS: Final = (16,)
"""Batch formats that this side stores."""

_HEARTBEAT: Final = pb.ReplicateRequest(heartbeat=pb.ReplicaHeartbeat()).SerializeToString()


def encode_open(
    *, cluster_id: str, follower_id: int, broker_epoch: int, incarnation_id: bytes, leader_id: int
) -> bytes:
    """Return the first message of a stream."""
    return pb.ReplicateRequest(
        open=pb.ReplicateOpen(
            cluster_id=cluster_id,
            follower_id=follower_id,
            broker_epoch=broker_epoch,
            incarnation_id=incarnation_id,
            leader_id=leader_id,
            formats=FORMATS,
            credit=pb.ReplicaCredit(in_sync_bytes=IN_SYNC_CREDIT_BYTES, catch_up_bytes=CATCH_UP_CREDIT_BYTES),
        )
    ).SerializeToString()


def encode(part: Subscriptions[FollowingReplica] | Unsubscriptions | Acks | Credit | Heartbeat) -> bytes:
    """Return the message of a part."""
    match part:
        case Acks():
            acks = [
                pb.ReplicaAck(route=route, appended_offset=appended_offset, flushed_offset=flushed_offset)
                for route, appended_offset, flushed_offset in part.entries
            ]
            return pb.ReplicateRequest(acks=pb.ReplicaAcks(acks=acks)).SerializeToString()
        case Credit():
            credit = pb.ReplicaCredit(in_sync_bytes=part.in_sync_bytes, catch_up_bytes=part.catch_up_bytes)
            return pb.ReplicateRequest(credit=credit).SerializeToString()
        case Heartbeat():
            return _HEARTBEAT
        case Subscriptions():
            subscriptions = [_subscription(*entry) for entry in part.entries]
            return pb.ReplicateRequest(
                subscriptions=pb.ReplicaSubscriptions(subscriptions=subscriptions)
            ).SerializeToString()
        case Unsubscriptions():
            ends = pb.ReplicaUnsubscriptions(routes=part.routes)
            return pb.ReplicateRequest(unsubscriptions=ends).SerializeToString()


def _subscription(route: int, replica: FollowingReplica, request: Subscribe) -> pb.ReplicaSubscription:
    return pb.ReplicaSubscription(
        route=route,
        topic_id=replica.topic_id,
        partition=replica.partition,
        session=request.session,
        leader_epoch=request.leader_epoch,
        log_end_offset=request.log_end_offset,
        flushed_offset=request.flushed_offset,
        last_epoch=request.last_epoch,
    )


def read_error(error: int) -> SubscriptionError:
    """Return why a route ended; what a newer leader may say besides is answered by waiting and asking again."""
    try:
        name = pb.RouteError.Name(pb.RouteError.ValueType(error)).removeprefix("ROUTE_ERROR_")
        return SubscriptionError[name]
    except (ValueError, KeyError):
        return SubscriptionError.OVERLOADED


def read_leader_end(diverged: pb.SubscriptionDiverged) -> EpochEnd:
    """Return where the logs part."""
    return EpochEnd(diverged.epoch if diverged.HasField("epoch") else None, diverged.end_offset)
