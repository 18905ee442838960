# SPDX-License-Identifier: Apache-2.0
"""MetadataService: the state of the cluster once, or pushed as it changes, from this broker's own image.

Owns the waits for an offset and the watches. Law: answers of one broker never go back, because the image never does.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final

import grpc
from lograft.v1 import metadata_pb2
from lograft.wire.codes import ErrorCode

from brokerd.api.calls import ServicerContext, check_cluster, left_ms, server_stream, unary
from brokerd.api.cluster_codec import broker_message, topic_message
from brokerd.api.parts import BrokerParts
from brokerd.api.watch import OUT_OF_TOUCH, Watch
from brokerd.failure import RefusedError, refused
from brokerd.limits import MAX_CLUSTER_TOPICS, METADATA_WAIT_MS
from metaquorum.metadata.image import TopicImage

SERVICE: Final = "lograft.v1.MetadataService"


class MetadataService:
    """The service of one broker."""

    def __init__(self, parts: BrokerParts) -> None:
        self._parts = parts

    def handler(self) -> grpc.GenericRpcHandler:
        """Return what a gRPC server needs."""
        return grpc.method_handlers_generic_handler(
            SERVICE,
            {
                "GetCluster": unary(metadata_pb2.GetClusterRequest, self._get_cluster),
                "WatchCluster": server_stream(metadata_pb2.WatchClusterRequest, self._watch_cluster),
            },
        )

    async def _get_cluster(
        self, request: metadata_pb2.GetClusterRequest, context: ServicerContext
    ) -> metadata_pb2.GetClusterResponse:
        check_cluster(request.cluster_id, self._parts.cluster_id)
        _check_topic_count(len(request.topics))
        if request.HasField("min_metadata_offset"):
            await self._reach(request.min_metadata_offset, context)
        observer = self._parts.observer
        return metadata_pb2.GetClusterResponse(
            cluster_id=self._parts.cluster_id,
            controller_id=observer.leader.leader_id,
            brokers=[broker_message(broker) for _, broker in sorted(observer.image.brokers.items())],
            topics=[topic_message(topic) for topic in self._topics(request)],
            metadata_offset=observer.metadata_offset,
        )

    def _topics(self, request: metadata_pb2.GetClusterRequest) -> list[TopicImage]:
        image = self._parts.observer.image
        if request.topics:
            found = (image.topic_by_name(name) for name in sorted(set(request.topics)))
            return [topic for topic in found if topic is not None]
        return [topic for _, topic in zip(range(MAX_CLUSTER_TOPICS), image.topics(), strict=False)]

    async def _watch_cluster(
        self, request: metadata_pb2.WatchClusterRequest, context: ServicerContext
    ) -> AsyncIterator[metadata_pb2.WatchClusterResponse]:
        check_cluster(request.cluster_id, self._parts.cluster_id)
        _check_topic_count(len(request.topics))
        if self._parts.session.is_lost:
            raise RefusedError(OUT_OF_TOUCH)
        if request.HasField("after_offset"):
            # The client may come from a broker that is ahead of this one.
            await self._reach(request.after_offset, context)
        watch = Watch(self._parts, frozenset(request.topics))
        with self._parts.watch_streams.entry(watch), watch.following():
            watch.begin(request.after_offset if request.HasField("after_offset") else None)
            async for response in watch.responses():
                yield response

    async def _reach(self, metadata_offset: int, context: ServicerContext) -> None:
        observer = self._parts.observer
        if await observer.wait_for(metadata_offset, timeout_ms=left_ms(context, at_most_ms=METADATA_WAIT_MS)):
            return
        raise refused(
            ErrorCode.METADATA_NOT_REACHED,
            f"this broker has the metadata up to {observer.metadata_offset}, not yet {metadata_offset}",
            retry_after_ms=250,
        )


def _check_topic_count(count: int) -> None:
    if count > MAX_CLUSTER_TOPICS:
        raise refused(ErrorCode.INVALID_REQUEST, f"{count} topics are named, at most {MAX_CLUSTER_TOPICS} may be")
