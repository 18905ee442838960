# SPDX-License-Identifier: Apache-2.0
"""What clients may append where, by producer id, and the rules for what they stage.

The producer id of an attempt of an ingest stages into staging topics and nowhere else, and no other producer does. What is staged must
fit the topic that it is published in, because a decision cannot be refused afterwards: the configs of that topic judge it, beside those
of the staging topic.
Source: docs/ingest.md, section "Staging".
"""

from __future__ import annotations

from lograft.wire.codes import ErrorCode
from lograft.wire.header import BatchHeader
from lograft.wire.limits import PUBLISHING_PRODUCER_ID_MIN, STAGING_PRODUCER_ID_MIN

from brokerd.api.parts import BrokerParts
from brokerd.clock import wall_ms
from brokerd.failure import refused
from brokerd.publishing.quota import StagingQuota
from brokerd.replica.record_rules import check_records
from brokerd.replica.replica import Replica
from metaquorum.controller.configs import settings_of
from metaquorum.metadata.topic_configs import TopicSettings
from metaquorum.metadata.topic_names import staged_topic_id


def check_use(parts: BrokerParts, topic: str, producer_id: int) -> None:
    """Refuse a producer that may not append to a topic.

    Args:
        parts: the parts of this broker.
        topic: topic name.
        producer_id: the producer id; negative: none.

    Raises:
        RefusedError: INVALID_REQUEST, a producer id of ingests in another topic, or another one in a staging topic; INVALID_TOPIC_NAME,
            another internal topic.
    """
    if staged_topic_id(topic) is None:
        parts.locator.refuse_internal(topic)
        if producer_id >= STAGING_PRODUCER_ID_MIN:
            message = (
                f"producer {producer_id} belongs to an ingest: it appends to staging topics only, not to {topic!r}"
            )
            raise refused(ErrorCode.INVALID_REQUEST, message)
    elif not STAGING_PRODUCER_ID_MIN <= producer_id < PUBLISHING_PRODUCER_ID_MIN:
        message = f"{topic!r} takes the records of ingests: open an attempt, and append with its producer id, not {producer_id}"
        raise refused(ErrorCode.INVALID_REQUEST, message)


class StagingRules:
    """The rules for batches that are staged in one partition, as they were when a client began to use it.

    Args:
        settings: configs of the topic that the records are published in.
        quota: the staging quota of this broker.
        topic: name of the staging topic, for answers.
    """

    __slots__ = ("_quota", "_topic", "settings")

    def __init__(self, settings: TopicSettings, quota: StagingQuota, topic: str) -> None:
        self.settings = settings
        self._quota = quota
        self._topic = topic

    def admit(self, batch: bytes | memoryview, header: BatchHeader) -> None:
        """Admit a batch that was checked.

        Raises:
            RefusedError: INVALID_BATCH, the topic would not take its records; LIMIT_EXCEEDED, the quota.
        """
        check_records(batch, header, self.settings, topic=self._topic, now_ms=wall_ms())
        self._quota.admit(len(batch))


def staging_rules(parts: BrokerParts, replica: Replica) -> StagingRules | None:
    """Return the rules for what is staged in a partition; None: it is no staging partition.

    Raises:
        RefusedError: UNKNOWN_TOPIC, the topic that it belongs to is gone.
    """
    topic_id = staged_topic_id(replica.topic)
    if topic_id is None:
        return None
    image = parts.observer.image
    topic = image.topic_by_id(topic_id)
    if topic is None:
        raise refused(ErrorCode.UNKNOWN_TOPIC, f"the topic of {replica.topic!r} does not exist any more")
    return StagingRules(settings_of(image, topic.configs, parts.node_id), parts.staging_quota, replica.topic)
