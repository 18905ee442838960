# SPDX-License-Identifier: Apache-2.0
"""Descriptions of topics: what they contain for each partition."""

from __future__ import annotations

from lograft._admin.topics import topic_description
from lograft._client.codec import decode_topic
from lograft.v1 import metadata_pb2


def test_description_has_every_list_of_replicas() -> None:
    """The user gets replicas, in-sync, eligible and last known eligible replicas in separate lists."""
    message = metadata_pb2.Topic(
        topic="t",
        topic_id=b"t" * 16,
        partitions=[
            metadata_pb2.Partition(
                partition=0,
                leader_id=1,
                leader_epoch=3,
                replicas=[1, 2, 3, 4],
                isr=[1],
                eligible_leader_replicas=[2],
                last_known_eligible_leader_replicas=[3],
            )
        ],
    )
    (partition,) = topic_description(decode_topic(message), {}, frozenset()).partitions
    assert (partition.replicas, partition.isr) == ((1, 2, 3, 4), (1,))
    assert partition.eligible_leader_replicas == (2,)
    assert partition.last_known_eligible_leader_replicas == (3,)
