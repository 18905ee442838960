# SPDX-License-Identifier: Apache-2.0
"""Protobuf of the produce stream <-> values of the produce core. Pure translation."""

from __future__ import annotations

from collections.abc import Iterable
from typing import assert_never

from lograft.v1 import log_pb2
from lograft.wire.codes import ErrorCode
from lograft.wire.limits import MAGIC, MAX_IN_FLIGHT_BATCHES

from brokerd.api.log_service.produce_events import Acks, Answer, Opened, Receipt, RouteEnded, RouteWanted
from brokerd.api.status import partition_error
from brokerd.failure import refused
from brokerd.limits import MAX_STREAM_IN_FLIGHT_BYTES

_ACKS = {
    log_pb2.ACKS_UNSPECIFIED: Acks.ALL,
    log_pb2.ACKS_ALL: Acks.ALL,
    log_pb2.ACKS_LEADER: Acks.LEADER,
    log_pb2.ACKS_NONE: Acks.NONE,
}


def read_acks(number: int) -> Acks:
    """Read the acks field.

    Raises:
        RefusedError: INVALID_ACKS.
    """
    for known, acks in _ACKS.items():
        if known == number:
            return acks
    message = f"acks {number} is not known: use ACKS_ALL (1), ACKS_LEADER (2) or ACKS_NONE (3)"
    raise refused(ErrorCode.INVALID_ACKS, message)


def read_routes(routes: Iterable[log_pb2.ProduceRoute]) -> tuple[RouteWanted, ...]:
    """Read routes to bind."""
    return tuple(RouteWanted(route=route.route, topic=route.topic, partition=route.partition) for route in routes)


class AnswerEncoder:
    """Encodes the answers of one stream.

    Args:
        cluster_id: cluster id.
        node_id: node id of this broker.
    """

    def __init__(self, cluster_id: str, node_id: int) -> None:
        self._cluster_id = cluster_id
        self._node_id = node_id
        self.producer: tuple[int, int] | None = None

    def encode(self, answer: Answer) -> bytes:
        """Return the serialized ProduceResponse."""
        match answer:
            case Receipt():
                response = log_pb2.ProduceResponse(
                    receipt=log_pb2.ProduceReceipt(
                        route=answer.route,
                        last_batch_number=answer.last_batch_number,
                        base_offsets=answer.base_offsets,
                        durability=log_pb2.Durability.ValueType(answer.durability),
                        duplicates=answer.duplicates,
                    )
                )
            case RouteEnded():
                response = log_pb2.ProduceResponse(
                    route_end=log_pb2.RouteEnd(
                        route=answer.route,
                        error=partition_error(answer.failure),
                        first_failed_batch_number=answer.first_failed_batch_number,
                        outcome_unknown=answer.outcome_unknown,
                    )
                )
            case Opened():
                response = log_pb2.ProduceResponse(opened=self._opened(answer))
            case _:
                assert_never(answer)
        return response.SerializeToString()

    def _opened(self, answer: Opened) -> log_pb2.ProduceOpened:
        opened = log_pb2.ProduceOpened(
            cluster_id=self._cluster_id,
            node_id=self._node_id,
            routes=[
                log_pb2.ProduceRouteOpened(
                    route=route.route,
                    topic_id=route.topic_id,
                    leader_epoch=route.leader_epoch,
                    max_batch_bytes=route.max_batch_bytes,
                )
                for route in answer.routes
            ],
            max_in_flight_batches=MAX_IN_FLIGHT_BATCHES,
            max_in_flight_bytes=MAX_STREAM_IN_FLIGHT_BYTES,
            formats=[MAGIC],
        )
        if self.producer is not None:
            opened.producer.producer_id, opened.producer.producer_epoch = self.producer
        return opened


def encode_go_away(message: str, drain_ms: int) -> bytes:
    """Return the serialized ProduceResponse that tells a client to finish."""
    return log_pb2.ProduceResponse(go_away=log_pb2.GoAway(message=message, drain_ms=drain_ms)).SerializeToString()
