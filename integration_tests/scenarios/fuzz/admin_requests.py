# SPDX-License-Identifier: Apache-2.0
"""Valid requests of every method of `AdminService`, in the form in which a broker forwards them to the active controller.

    call = admin_call(rng, facts)

`tame_admin` keeps queries as they are, and changes only where they concern scrap topics. Other changes are only validated.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Final

from google.protobuf.message import Message
from lograft.internal.v1 import controller_pb2
from lograft.v1 import admin_pb2 as pb

from integration_tests.scenarios.fuzz.cluster_facts import ID_BYTES, Facts

SCRAP: Final = "fuzz-scrap-"
"""Prefix of topics that the fuzzer creates and deletes."""
SCRAPS: Final = 20
MOST_CREATED: Final = 3
"""Maximum partitions, or replicas, of a topic that is really created."""

AdminMaker = Callable[[random.Random, Facts], Message]


def _scrap(rng: random.Random) -> str:
    return f"{SCRAP}{rng.randrange(SCRAPS)}"


def _new_topic(rng: random.Random, _facts: Facts) -> Message:
    return pb.CreateTopicRequest(topic=_scrap(rng), partition_count=1, replication_factor=1)


def _new_topics(rng: random.Random, _facts: Facts) -> Message:
    topics = [pb.NewTopic(topic=_scrap(rng), partition_count=1, replication_factor=1) for _ in range(2)]
    return pb.CreateTopicsRequest(topics=topics)


def _configs(rng: random.Random, facts: Facts) -> Message:
    resource = pb.ConfigResource(type=pb.CONFIG_RESOURCE_TYPE_TOPIC, name=facts.topic)
    change = pb.ConfigChange(name="retention.ms", value=rng.choice(["-1", "1000000000"]))
    changes = pb.ResourceConfigChanges(resource=resource, changes=[change])
    return pb.AlterConfigsRequest(resources=[changes], validate_only=True)


def _described_configs(_rng: random.Random, facts: Facts) -> Message:
    resource = pb.ConfigResource(type=pb.CONFIG_RESOURCE_TYPE_TOPIC, name=facts.topic)
    return pb.DescribeConfigsRequest(resources=[resource])


def _elections(rng: random.Random, facts: Facts) -> Message:
    wanted = pb.TopicPartitions(topic=facts.topic, partitions=[rng.choice(facts.partitions).partition])
    return pb.ElectLeadersRequest(type=pb.ELECTION_TYPE_PREFERRED, topics=[wanted], validate_only=True)


def _reassignments(rng: random.Random, facts: Facts) -> Message:
    chosen = rng.choice(facts.partitions)
    wanted = pb.PartitionReassignment(topic=facts.topic, partition=chosen.partition, replicas=chosen.replicas[::-1])
    return pb.AlterPartitionReassignmentsRequest(reassignments=[wanted], validate_only=True)


ADMIN_MAKERS: Final[dict[str, AdminMaker]] = {
    "CreateTopic": _new_topic,
    "CreateTopics": _new_topics,
    "CreatePartitions": lambda rng, _: pb.CreatePartitionsRequest(topic=_scrap(rng), partition_count=2),
    "DeleteTopic": lambda rng, _: pb.DeleteTopicRequest(topic=_scrap(rng)),
    "ListTopics": lambda _, facts: pb.ListTopicsRequest(min_metadata_offset=facts.high_watermark),
    "DescribeTopic": lambda _, facts: pb.DescribeTopicRequest(topic=facts.topic),
    "AlterConfigs": _configs,
    "DescribeConfigs": _described_configs,
    "DescribeFeatureLevel": lambda _, __: pb.DescribeFeatureLevelRequest(),
    "UpdateFeatureLevel": lambda _, __: pb.UpdateFeatureLevelRequest(level=1, validate_only=True),
    "DescribeQuorum": lambda _, __: pb.DescribeQuorumRequest(),
    "DescribeLogDirectories": lambda _, __: pb.DescribeLogDirectoriesRequest(with_replicas=True),
    "DeleteUnknownPartitions": lambda _, __: pb.DeleteUnknownPartitionsRequest(),
    "MoveReplica": lambda rng, facts: pb.MoveReplicaRequest(topic=facts.topic, directory_id=rng.randbytes(ID_BYTES)),
    "AddVoter": lambda rng, facts: pb.AddVoterRequest(
        node_id=facts.stranger.broker_id, directory_id=rng.randbytes(ID_BYTES)
    ),
    "RemoveVoter": lambda rng, facts: pb.RemoveVoterRequest(
        node_id=facts.stranger.broker_id, directory_id=rng.randbytes(ID_BYTES)
    ),
    "TransferLeadership": lambda rng, facts: pb.TransferLeadershipRequest(node_id=rng.choice(facts.voters).node_id),
    "ElectLeaders": _elections,
    "AlterPartitionReassignments": _reassignments,
    "ListPartitionReassignments": lambda _, facts: pb.ListPartitionReassignmentsRequest(topics=[facts.topic]),
    "DescribeBrokers": lambda rng, _: pb.DescribeBrokersRequest(page_size=rng.randrange(3)),
    "RemoveBroker": lambda _, facts: pb.RemoveBrokerRequest(broker_id=facts.stranger.broker_id, validate_only=True),
}
"""Makers of requests by method. The fuzzer fails if the controller answers a method that is missing here."""


def admin_call(rng: random.Random, facts: Facts) -> controller_pb2.AdminCall:
    """Return a request of any method."""
    name = rng.choice(sorted(ADMIN_MAKERS))
    request = ADMIN_MAKERS[name](rng, facts)
    if rng.random() < 0.5:
        # Clients need not name the cluster.
        setattr(request, "cluster_id", facts.cluster_id)  # noqa: B010 - every request has it
    return controller_pb2.AdminCall(method=name, request=request.SerializeToString())


def tame_admin(request: Message, facts: Facts, *, may_disturb: bool) -> None:
    """Undo what would change more than scrap topics. With `may_disturb` another voter may become leader.

    Args:
        request: a request, which is changed in place.
        facts: the state of the cluster.
        may_disturb: keep elections.
    """
    match request:
        case pb.CreateTopicRequest():
            if not _is_small(request):
                request.validate_only = True
        case pb.CreateTopicsRequest():
            if len(request.topics) > MOST_CREATED or not all(_is_small(topic) for topic in request.topics):
                request.validate_only = True
        case pb.CreatePartitionsRequest():
            if not request.topic.startswith(SCRAP) or request.partition_count > MOST_CREATED:
                request.validate_only = True
        case pb.DeleteTopicRequest():
            if request.topic == facts.topic:
                request.topic = SCRAP
        case (
            pb.AlterConfigsRequest()
            | pb.UpdateFeatureLevelRequest()
            | pb.ElectLeadersRequest()
            | pb.AlterPartitionReassignmentsRequest()
            | pb.RemoveBrokerRequest()
        ):
            request.validate_only = True
        case pb.AddVoterRequest() | pb.RemoveVoterRequest():
            # Without a directory the request means the node, whatever its disk is.
            request.directory_id = request.directory_id or bytes(ID_BYTES)
        case pb.TransferLeadershipRequest() if not may_disturb:
            request.node_id = facts.stranger.broker_id
        case _:
            pass


def _is_small(topic: pb.CreateTopicRequest | pb.NewTopic) -> bool:
    return max(topic.partition_count, topic.replication_factor) <= MOST_CREATED
