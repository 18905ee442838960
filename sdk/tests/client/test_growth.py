# SPDX-License-Identifier: Apache-2.0
"""Topics that get more partitions while clients use them, against a real broker."""

from __future__ import annotations

import json
import time
from collections.abc import Callable

import pytest
from lograft import Admin, Consumer, ErrorCode, Producer, TopicPartition, aio
from lograft.cli import main
from lograft.errors import InvalidRequestError, UnknownPartitionError, UnknownTopicError
from tests.client.reading import read_all

MakeTopic = Callable[..., str]
DEADLINE_S = 30.0


def send_to_new(producer: Producer, admin: Admin, topic: str, partition: int) -> None:
    """Send to a partition as soon as the producer knows it. Meanwhile ask the broker something else."""
    deadline = time.monotonic() + DEADLINE_S
    while True:
        try:
            producer.send(topic, b"new", partition=partition)
        except UnknownPartitionError:
            assert time.monotonic() < deadline, "the producer never heard of the new partition"
            admin.describe_topic(topic)
        else:
            return


def test_open_clients_learn_of_new_partitions(bootstrap: str, admin: Admin, make_topic: MakeTopic) -> None:
    """An open producer and consumer use new partitions. Records and order of the old partition stay."""
    topic = make_topic(1)
    with Producer(bootstrap) as producer, Consumer(bootstrap) as consumer:
        producer.send_many(topic, [b"a", b"b"])
        producer.flush()
        consumer.assign([TopicPartition(topic, 0)], offsets={TopicPartition(topic, 0): 0})
        grown = admin.create_partitions(topic, 4)
        assert [part.partition for part in grown.partitions] == [0, 1, 2, 3]
        assert all(part.leader_id is not None for part in grown.partitions)
        for partition in (1, 2, 3):
            send_to_new(producer, admin, topic, partition)
        producer.send_many(topic, [b"%d" % n for n in range(200)], keys=[b"%d" % n for n in range(200)])
        producer.flush()
        new = TopicPartition(topic, 3)
        consumer.assign([new], offsets={new: 0})
        deadline = time.monotonic() + DEADLINE_S
        records = consumer.poll(timeout_ms=1_000)
        while not records and time.monotonic() < deadline:
            records = consumer.poll(timeout_ms=1_000)
        assert records[0].value == b"new"
    by_partition = {
        partition: [record.value for record in read_all(bootstrap, topic, 4) if record.partition == partition]
        for partition in range(4)
    }
    assert by_partition[0][:2] == [b"a", b"b"]
    # Keys go to all of them, the new ones too.
    assert all(len(values) > 20 for values in by_partition.values())
    assert sum(map(len, by_partition.values())) == 2 + 3 + 200


def test_growth_that_cannot_be_is_refused(admin: Admin, make_topic: MakeTopic) -> None:
    """Fewer, equal or too many partitions, and an unknown topic, are typed errors that change nothing."""
    topic = make_topic(2)
    for count in (0, 1, 2, 100_000):
        with pytest.raises(InvalidRequestError) as caught:
            admin.create_partitions(topic, count)
        assert caught.value.code is ErrorCode.INVALID_PARTITION_COUNT
    with pytest.raises(UnknownTopicError):
        admin.create_partitions("no-such-topic", 3)
    assert admin.create_partitions(topic, 3, validate_only=True).partition_count == 2
    assert admin.describe_topic(topic).partition_count == 2


async def test_asyncio_client_grows_topics(bootstrap: str, make_topic: MakeTopic) -> None:
    """The same call through `lograft.aio`."""
    topic = make_topic(1)
    async with aio.Admin(bootstrap) as admin:
        assert (await admin.create_partitions(topic, 3)).partition_count == 3


def test_command_grows_topics(
    bootstrap: str, make_topic: MakeTopic, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`lograft topics grow`: checked, done, as JSON, refused."""
    monkeypatch.setenv("LOGRAFT_BOOTSTRAP", bootstrap)

    def run(*arguments: str) -> tuple[int, str]:
        with pytest.raises(SystemExit) as end:
            main(arguments)
        assert isinstance(end.value.code, int)
        return end.value.code, capsys.readouterr().out

    topic = make_topic(1)
    checked = run("topics", "grow", topic, "--partitions", "3", "--validate-only")
    assert checked == (0, f"topic {topic} has 1 partition and could have 3\n")
    assert run("topics", "grow", topic, "--partitions", "3") == (0, f"topic {topic} has 3 partitions\n")
    code, out = run("topics", "grow", topic, "-p", "4", "--json")
    assert (code, len(json.loads(out)["partitions"])) == (0, 4)
    assert run("topics", "grow", topic, "--partitions", "4")[0] == 1
