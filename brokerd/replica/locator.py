# SPDX-License-Identifier: Apache-2.0
"""Finds a partition: on this broker, on another one, or without a leader.

Owns the look-up from names to replicas, and the refusals for what does not exist. Serves nothing itself.
"""

from __future__ import annotations

from lograft.wire.codes import ErrorCode

from brokerd.failure import Failure, LeaderPlace, RefusedError, refused
from brokerd.replica.manager import ReplicaManager
from brokerd.replica.replica import Replica
from metaquorum.metadata.image import TopicImage
from metaquorum.metadata.loader import MetadataLoader
from metaquorum.metadata.topic_names import problem as name_problem
from metaquorum.metadata.topic_names import reserved_problem

LEADER_RETRY_MS = 250
"""Retry advice, in milliseconds, for clients whose partition has no leader yet."""


class Locator:
    """Look-ups over one broker's metadata and replicas."""

    def __init__(self, *, node_id: int, observer: MetadataLoader, manager: ReplicaManager) -> None:
        self._node_id = node_id
        self._observer = observer
        self._manager = manager

    def topic(self, name: str) -> TopicImage:
        """Return a topic.

        Raises:
            RefusedError: INVALID_TOPIC_NAME, UNKNOWN_TOPIC.
        """
        topic = self._observer.image.topic_by_name(name)
        if topic is not None:
            return topic
        problem = name_problem(name)
        if problem is not None:
            raise refused(ErrorCode.INVALID_TOPIC_NAME, problem)
        raise refused(ErrorCode.UNKNOWN_TOPIC, f"topic {name!r} does not exist")

    def leader(self, topic: TopicImage, partition: int) -> LeaderPlace:
        """Return the leader of a partition.

        Raises:
            RefusedError: UNKNOWN_PARTITION, LEADER_NOT_AVAILABLE.
        """
        if not 0 <= partition < len(topic.partitions):
            raise refused(
                ErrorCode.UNKNOWN_PARTITION,
                f"topic {topic.topic!r} has partitions 0 to {len(topic.partitions) - 1}, not {partition}",
            )
        place = self._manager.leader_place(topic.topic_id, partition)
        if place is None:
            message = f"{topic.topic}-{partition} has no leader at the moment"
            raise refused(ErrorCode.LEADER_NOT_AVAILABLE, message, retry_after_ms=LEADER_RETRY_MS)
        return place

    def leads(self, name: str, partition: int) -> bool:
        """Return True if this broker leads a partition, as far as it knows."""
        try:
            return self.is_local(self.leader(self.topic(name), partition))
        except RefusedError:
            return False

    def is_local(self, place: LeaderPlace) -> bool:
        """Return True if this broker is the leader."""
        return place.leader_id == self._node_id

    def refuse_internal(self, name: str) -> None:
        """Refuse a client that would change the records of an internal topic.

        Raises:
            RefusedError: INVALID_TOPIC_NAME.
        """
        problem = reserved_problem(name)
        if problem is not None:
            raise refused(ErrorCode.INVALID_TOPIC_NAME, problem)

    async def local_leader(self, name: str, partition: int, *, timeout_ms: int) -> Replica:
        """Return the replica of a partition that this broker leads; wait while its log is being opened.

        Raises:
            RefusedError: there is none; NOT_LEADER with a leader hint if another broker leads.
        """
        topic = self.topic(name)
        place = self.leader(topic, partition)
        if not self.is_local(place):
            failure = Failure(
                code=ErrorCode.NOT_LEADER, message=f"broker {place.leader_id} leads {name}-{partition}", leader=place
            )
            raise RefusedError(failure)
        replica = self._manager.find(topic.topic_id, partition)
        if replica is None:
            replica = await self._manager.wait_open(topic.topic_id, partition, timeout_ms=timeout_ms)
        if replica is None:
            problem = self._manager.problem(topic.topic_id, partition)
            if problem is not None:
                raise refused(ErrorCode.STORAGE_FAILED, f"the log of {name}-{partition} could not be opened")
            message = f"the log of {name}-{partition} is still being opened"
            raise refused(ErrorCode.LEADER_NOT_AVAILABLE, message, retry_after_ms=LEADER_RETRY_MS)
        if not replica.is_leader:
            raise RefusedError(replica.refusal())
        return replica

    def local_follower(self, name: str, partition: int) -> Replica | None:
        """Return the open replica here if it follows in sync and may serve readers; None: ask the leader.

        Raises:
            RefusedError: INVALID_TOPIC_NAME, UNKNOWN_TOPIC.
        """
        replica = self._manager.find(self.topic(name).topic_id, partition)
        return None if replica is None or replica.followed_end is None else replica
