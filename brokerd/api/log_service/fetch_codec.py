# SPDX-License-Identifier: Apache-2.0
"""Protobuf of the fetch stream <-> values of the fetch core. Pure translation."""

from __future__ import annotations

from collections.abc import Iterable
from typing import assert_never

from lograft.v1 import log_pb2

from brokerd.api.log_service.fetch_events import FetchAnswer, FetchOpened, FetchRouteEnded, FetchRouteWanted, Mark
from brokerd.api.status import partition_error


def read_fetch_routes(routes: Iterable[log_pb2.FetchRoute]) -> tuple[FetchRouteWanted, ...]:
    """Read routes to bind."""
    return tuple(
        FetchRouteWanted(
            route=route.route,
            topic=route.topic,
            partition=route.partition,
            offset=route.offset,
            allow_follower=route.allow_follower,
        )
        for route in routes
    )


def encode_fetch_answer(answer: FetchAnswer, *, cluster_id: str, node_id: int) -> bytes:
    """Return the serialized FetchResponse."""
    match answer:
        case Mark():
            response = log_pb2.FetchResponse(
                mark=log_pb2.FetchMark(
                    route=answer.route,
                    next_offset=answer.next_offset,
                    high_watermark=answer.high_watermark,
                    log_start_offset=answer.log_start_offset,
                    caught_up=answer.caught_up,
                )
            )
        case FetchRouteEnded():
            end = log_pb2.RouteEnd(route=answer.route)
            if answer.failure is not None:
                end.error.CopyFrom(partition_error(answer.failure))
            response = log_pb2.FetchResponse(route_end=end)
        case FetchOpened():
            response = log_pb2.FetchResponse(
                opened=log_pb2.FetchOpened(
                    cluster_id=cluster_id,
                    node_id=node_id,
                    routes=[
                        log_pb2.FetchRouteOpened(
                            route=route.route,
                            topic_id=route.topic_id,
                            leader_epoch=route.leader_epoch,
                            log_start_offset=route.log_start_offset,
                            high_watermark=route.high_watermark,
                            from_follower=route.from_follower,
                        )
                        for route in answer.routes
                    ],
                )
            )
        case _:
            assert_never(answer)
    return response.SerializeToString()


def encode_fetch_go_away(message: str, drain_ms: int) -> bytes:
    """Return the serialized FetchResponse that tells a client to finish."""
    return log_pb2.FetchResponse(go_away=log_pb2.GoAway(message=message, drain_ms=drain_ms)).SerializeToString()
