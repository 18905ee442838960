# SPDX-License-Identifier: Apache-2.0
"""Questions about topics, answered from an image: by the controller, and by a broker while no controller is there.

Owns what an answer holds. Must not wait: the caller's image is as new as the request asks for.
"""

from __future__ import annotations

from typing import Final

from lograft.v1 import admin_pb2
from lograft.wire.codes import ErrorCode

from metaquorum.controller_service import codec
from metaquorum.controller_service.commit_waiters import CommandError
from metaquorum.metadata.image import MetadataImage, TopicImage

DEFAULT_PAGE_SIZE: Final = 1_000
"""Topics on a page, unless the request says otherwise."""

MAX_PAGE_SIZE: Final = 10_000
"""Topics on a page at most."""


def list_topics(image: MetadataImage, request: admin_pb2.ListTopicsRequest) -> admin_pb2.ListTopicsResponse:
    """Return a page of topics; the token of a page is the last name of the one before.

    Raises:
        CommandError: the page size is out of range.
    """
    if not 0 <= request.page_size <= MAX_PAGE_SIZE:
        raise CommandError(
            ErrorCode.INVALID_REQUEST, f"the page size must be from 0 to {MAX_PAGE_SIZE}, not {request.page_size}"
        )
    size = request.page_size or DEFAULT_PAGE_SIZE
    page: list[TopicImage] = []
    more = False
    for topic in image.topics(after=request.page_token or None):
        if len(page) == size:
            more = True
            break
        page.append(topic)
    return admin_pb2.ListTopicsResponse(
        topics=[codec.to_summary(topic) for topic in page],
        next_page_token=page[-1].topic if more else "",
        metadata_offset=image.metadata_offset,
    )


def describe_topic(image: MetadataImage, request: admin_pb2.DescribeTopicRequest) -> admin_pb2.DescribeTopicResponse:
    """Return a topic with all its configs.

    Raises:
        CommandError: there is none of this name.
    """
    topic = image.topic_by_name(request.topic)
    if topic is None:
        raise CommandError(ErrorCode.UNKNOWN_TOPIC, f"there is no topic {request.topic[:250]!r}")
    return admin_pb2.DescribeTopicResponse(
        topic=codec.to_topic(topic.topic, topic.topic_id, topic.partitions),
        configs=codec.to_configs(image, topic),
        metadata_offset=image.metadata_offset,
    )
