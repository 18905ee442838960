# SPDX-License-Identifier: Apache-2.0
"""Valid requests of every method of `LogService` that brokers forward, in the form of the carrier.

    call = forwarded_call(rng, facts)

`tame_forwarded` keeps queries as they are. Requests that append or delete concern scrap topics.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Final

from google.protobuf.message import DecodeError, Message
from lograft.internal.v1 import forward_pb2
from lograft.v1 import log_pb2 as pb

from integration_tests.scenarios.fuzz.admin_requests import SCRAP, SCRAPS
from integration_tests.scenarios.fuzz.cluster_facts import Facts

RequestMaker = Callable[[random.Random, Facts], Message]


def _scrap(rng: random.Random) -> str:
    return f"{SCRAP}{rng.randrange(SCRAPS)}"


def _append(rng: random.Random, _facts: Facts) -> Message:
    records = [pb.Record(value=rng.randbytes(20)) for _ in range(rng.randint(1, 3))]
    return pb.AppendRequest(topic=_scrap(rng), partition=0, records=records, acks=pb.ACKS_LEADER)


def _read(rng: random.Random, facts: Facts) -> Message:
    chosen = rng.choice(facts.partitions)
    return pb.ReadRequest(topic=facts.topic, partition=chosen.partition, max_records=rng.randint(1, 10))


def _list_offsets(_rng: random.Random, facts: Facts) -> Message:
    latest = pb.OFFSET_POSITION_LATEST
    return pb.ListOffsetsRequest(
        queries=[
            pb.OffsetQuery(topic=facts.topic, partition=each.partition, position=latest) for each in facts.partitions
        ]
    )


def _delete_records(rng: random.Random, _facts: Facts) -> Message:
    return pb.DeleteRecordsRequest(partitions=[pb.RecordsBefore(topic=_scrap(rng), partition=0, before_offset=-1)])


def _describe_producers(rng: random.Random, facts: Facts) -> Message:
    chosen = rng.choice(facts.partitions)
    asked = pb.ProducersOfPartition(topic=facts.topic, partition=chosen.partition)
    return pb.DescribeProducersRequest(partitions=[asked])


MAKERS: Final[dict[str, RequestMaker]] = {
    "Append": _append,
    "Read": _read,
    "ListOffsets": _list_offsets,
    "DeleteRecords": _delete_records,
    "DescribeProducers": _describe_producers,
}

REQUEST_TYPES: Final[dict[str, type[Message]]] = {
    "Append": pb.AppendRequest,
    "Read": pb.ReadRequest,
    "ListOffsets": pb.ListOffsetsRequest,
    "DeleteRecords": pb.DeleteRecordsRequest,
    "DescribeProducers": pb.DescribeProducersRequest,
}
"""Request types by the name of their method."""


def forwarded_call(rng: random.Random, facts: Facts) -> forward_pb2.ForwardedCall:
    """Return a call as a broker forwards it."""
    name = rng.choice(list(MAKERS))
    request = MAKERS[name](rng, facts)
    if rng.random() < 0.5:
        # Clients need not name the cluster.
        setattr(request, "cluster_id", facts.cluster_id)  # noqa: B010 - every request has it
    return forward_pb2.ForwardedCall(
        method=name, request=request.SerializeToString(), metadata_offset=facts.high_watermark
    )


def tame_forwarded(call: forward_pb2.ForwardedCall, facts: Facts) -> None:
    """Undo what would change the topic that must stay as it is.

    Args:
        call: a call, which is changed in place.
        facts: the state of the cluster.
    """
    request_type = REQUEST_TYPES.get(call.method)
    if request_type is None:
        return
    try:
        request = request_type.FromString(call.request)
    except DecodeError:
        return
    before = request.SerializeToString()
    if isinstance(request, pb.AppendRequest) and not request.topic.startswith(SCRAP):
        request.topic = SCRAP
    if isinstance(request, pb.DeleteRecordsRequest):
        for each in request.partitions:
            if not each.topic.startswith(SCRAP):
                each.topic = SCRAP
    after = request.SerializeToString()
    if after != before:
        call.request = after
