# SPDX-License-Identifier: Apache-2.0
"""DescribeProducers over real gRPC: what leaders remember, at any broker."""

from __future__ import annotations

from pathlib import Path

from lograft.v1 import log_pb2
from lograft.wire.codes import ErrorCode
from lograft.wire.header import read_header

from brokerd.api.log_service.describe_producers import remembered
from brokerd.limits import MAX_PRODUCER_PARTITIONS
from brokerd.tests.api.forwarding import passing_on
from brokerd.tests.support import WAIT_S, Client, connected, leaders, refusal, running_broker, second_broker
from storage.log.producers import ProducerWindows
from storage.testing.builders import ProducerStamp, make_batch


def request(*partitions: int, topic: str = "t") -> log_pb2.DescribeProducersRequest:
    return log_pb2.DescribeProducersRequest(
        partitions=[log_pb2.ProducersOfPartition(topic=topic, partition=each) for each in partitions]
    )


async def describe(client: Client, *partitions: int, topic: str = "t") -> list[log_pb2.DescribedProducers]:
    response = await client.log.DescribeProducers(request(*partitions, topic=topic), timeout=WAIT_S)
    return list(response.results)


async def append(client: Client, partition: int, sequence: int, count: int) -> int:
    """Append as a producer, a new one for sequence 0, and return its id."""
    made = await client.log.InitProducer(log_pb2.InitProducerRequest(), timeout=WAIT_S)
    await client.log.Append(
        log_pb2.AppendRequest(
            topic="t",
            partition=partition,
            records=[log_pb2.Record(value=b"x")] * count,
            sequence=log_pb2.AppendSequence(producer=made.producer, base_sequence=sequence),
        ),
        timeout=WAIT_S,
    )
    return made.producer.producer_id


async def test_leader_tells_what_it_remembers(tmp_path: Path) -> None:
    """Epoch, last sequence, last batch and time of each producer; a refused partition hides no other."""
    async with running_broker(tmp_path) as server, connected(server) as client:
        await client.create_topic("t", 2)
        await client.append("t", [b"no producer"], partition=0)
        first = await append(client, 0, 0, 3)
        second = await append(client, 0, 7, 2)
        known, empty, wrong = await describe(client, 0, 1, 5)
        assert [
            (each.producer_id, each.producer_epoch, each.last_sequence, each.last_base_offset)
            for each in known.producers
        ] == sorted([(first, 0, 2, 1), (second, 0, 8, 4)])
        assert all(each.last_append_ms > 1_700_000_000_000 for each in known.producers)
        assert not any(each.HasField("open_transaction_offset") for each in known.producers)
        assert (known.producer_count, empty.producer_count) == (2, 0)
        assert ErrorCode.from_number(wrong.error.code) is ErrorCode.UNKNOWN_PARTITION
        many = log_pb2.DescribeProducersRequest(
            partitions=[log_pb2.ProducersOfPartition(topic="t")] * (MAX_PRODUCER_PARTITIONS + 1)
        )
        status = await refusal(client.log.DescribeProducers(many, timeout=WAIT_S))
        assert status.code is ErrorCode.INVALID_REQUEST


async def test_any_broker_takes_the_call(tmp_path: Path) -> None:
    """Each partition is answered by its leader, in the order asked; a forwarded call goes no further."""
    async with (
        running_broker(tmp_path / "1") as first,
        second_broker(first, tmp_path / "2") as second,
        connected(first) as client,
        connected(second) as other,
    ):
        await client.create_topic("t", 4)
        ids = [await append(client, partition, 0, partition + 1) for partition in range(4)]
        order = list(reversed(range(4)))
        for asked in (client, other):
            results = await describe(asked, *order)
            assert [
                (each.partition, each.producers[0].producer_id, each.producers[0].last_sequence) for each in results
            ] == [(partition, ids[partition], partition) for partition in order]
        partition = next(number for number, leader in (await leaders(client)).items() if leader == 2)
        async with passing_on(first, 1) as passer:
            response = await passer.call("DescribeProducers", request(partition), log_pb2.DescribeProducersResponse)
        assert ErrorCode.from_number(response.results[0].error.code) is ErrorCode.NOT_LEADER


def test_those_that_appended_last_are_chosen() -> None:
    """With more producers than an answer has room for, the idlest are left out; the answer is by id. A batch long ago has no time."""
    windows = ProducerWindows()
    for producer_id, base_offset in ((5, 40), (3, 30), (9, 10), (7, 20)):
        batch = make_batch([b"v"], producer=ProducerStamp(producer_id=producer_id))
        windows.update(read_header(batch), base_offset, now_ms=0)
    found = remembered(windows, at_most=3)
    assert [(each.producer_id, each.last_base_offset) for each in found] == [(3, 30), (5, 40), (7, 20)]
    assert not any(each.HasField("last_append_ms") for each in found)
