# SPDX-License-Identifier: Apache-2.0
"""Finds the partitions that this broker leads, by topic id."""

from __future__ import annotations

from collections.abc import Callable

from lograft.wire.codes import ErrorCode

from brokerd.failure import RefusedError, refused
from brokerd.publishing.limits import RETRY_MS
from brokerd.replica.replica import Replica
from metaquorum.metadata.loader import MetadataLoader


class LedPartitions:
    """Look-ups over one broker's metadata and replicas.

    Args:
        node_id: node id of this broker.
        observer: the metadata.
        find: returns the open replica of a topic id and partition.
    """

    def __init__(self, *, node_id: int, observer: MetadataLoader, find: Callable[[bytes, int], Replica | None]) -> None:
        self._node_id = node_id
        self._observer = observer
        self._find = find

    def replica(self, topic_id: bytes, partition: int) -> Replica:
        """Return the replica of a partition that this broker leads.

        Raises:
            RefusedError: UNKNOWN_TOPIC, the topic was deleted; METADATA_NOT_REACHED, it is not known here yet; NOT_LEADER,
                LEADER_NOT_AVAILABLE.
        """
        replica = self._find(topic_id, partition)
        if replica is not None:
            if not replica.is_leader:
                raise RefusedError(replica.refusal())
            return replica
        image = self._observer.image
        if topic_id in image.deleted_topics.ids():
            raise refused(ErrorCode.UNKNOWN_TOPIC, f"topic {topic_id.hex()} was deleted")
        topic = image.topic_by_id(topic_id)
        if topic is None or not 0 <= partition < len(topic.partitions):
            message = f"partition {partition} of topic {topic_id.hex()} is not known here"
            raise refused(ErrorCode.METADATA_NOT_REACHED, message, retry_after_ms=RETRY_MS)
        leader_id = topic.partitions[partition].leader_id
        if leader_id is not None and leader_id != self._node_id:
            raise refused(ErrorCode.NOT_LEADER, f"broker {leader_id} leads {topic.topic}-{partition}")
        message = f"{topic.topic}-{partition} is not open here, or has no leader"
        raise refused(ErrorCode.LEADER_NOT_AVAILABLE, message, retry_after_ms=RETRY_MS)
