# SPDX-License-Identifier: Apache-2.0
"""Elections by the admin clients and by the command, against a real broker: results, refusals, confirmation."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from lograft import Admin, TopicPartition, aio
from lograft._admin import partitions as partition_calls
from lograft.cli import main
from lograft.errors import UnknownPartitionError, UnknownTopicError, UsageError
from lograft.types import ElectedLeader, ElectionType

MakeTopic = Callable[..., str]


@pytest.mark.parametrize("election", list(ElectionType))
def test_partitions_that_are_led_need_no_election(admin: Admin, make_topic: MakeTopic, election: ElectionType) -> None:
    """A topic name stands for all its partitions. The answer names the current leader; unknown partitions are refused."""
    topic = make_topic(3)
    before = admin.describe_topic(topic).partitions
    results = admin.elect_leaders([topic, TopicPartition(topic, 1), TopicPartition(topic, 7)], election=election)
    assert [each.partition for each in results] == [0, 1, 2, 7]
    assert results[:3] == [
        ElectedLeader(topic=topic, partition=part.partition, leader_id=part.leader_id, leader_epoch=part.leader_epoch)
        for part in before
    ]
    assert isinstance(results[3].error, UnknownPartitionError)
    assert admin.describe_topic(topic).partitions == before


def test_more_partitions_than_a_request_takes_are_asked_in_several(
    admin: Admin, make_topic: MakeTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The order of the results is that of the partitions."""
    monkeypatch.setattr(partition_calls, "MAX_ELECTIONS", 2)
    topic = make_topic(5)
    results = admin.elect_leaders([topic], validate_only=True)
    assert [(each.partition, each.error) for each in results] == [(number, None) for number in range(5)]


def test_misuse_is_found_before_anything_is_sent(admin: Admin, make_topic: MakeTopic) -> None:
    """Wrong arguments: neither partition nor topic, no election type, a topic that does not exist."""
    topic = make_topic()
    for bad in (topic, [(topic, 0)], [TopicPartition(topic, -1)], [TopicPartition(topic, True)], [3]):
        with pytest.raises(UsageError):
            admin.elect_leaders(bad)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    with pytest.raises(UsageError):
        admin.elect_leaders([topic], election="unclean")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    with pytest.raises(UnknownTopicError):
        admin.elect_leaders(["no-such-topic"])
    assert admin.elect_leaders([]) == []


async def test_asyncio_client_elects(bootstrap: str, make_topic: MakeTopic) -> None:
    """The same call through `lograft.aio`."""
    topic = make_topic()
    async with aio.Admin(bootstrap) as admin:
        (one,) = await admin.elect_leaders([topic], election=ElectionType.UNCLEAN)
    assert (one.elected, one.error) == (False, None)


def test_command_elects_and_asks_before_an_unclean_election(
    bootstrap: str, make_topic: MakeTopic, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`lograft partitions elect`: table, JSON, exit codes, the question."""
    monkeypatch.setenv("LOGRAFT_BOOTSTRAP", bootstrap)
    monkeypatch.setenv("COLUMNS", "200")

    def run(*arguments: str) -> tuple[int, str]:
        with pytest.raises(SystemExit) as end:
            main(("partitions", "elect", *arguments))
        assert isinstance(end.value.code, int)
        return end.value.code, capsys.readouterr().out

    topic = make_topic(2)
    code, out = run(topic)
    assert (code, out.count("leads already")) == (0, 2)
    code, out = run(f"{topic}:1", f"{topic}:5", "--preferred", "--json")
    good, bad = json.loads(out)
    assert (code, good["partition"], good["error"], good["elected"]) == (1, 1, None, False)
    assert bad["error"]["code"] == "UNKNOWN_PARTITION"
    asked: list[str] = []
    monkeypatch.setattr("typer.confirm", lambda text, **_: asked.append(text))
    assert run(topic, "--unclean", "--dry-run")[0] == 0
    assert run(topic, "--unclean", "--yes")[0] == 0
    assert asked == []
    assert run(topic, "--unclean")[0] == 0
    assert len(asked) == 1
    for wrong in ((topic, "--preferred", "--unclean"), (f"{topic}:x",), (":1",), ("",), (f"{topic}:{2**40}",)):
        assert run(*wrong)[0] == 2
