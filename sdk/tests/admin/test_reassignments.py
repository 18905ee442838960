# SPDX-License-Identifier: Apache-2.0
"""Reassignments by the admin clients and by the command, against a real broker.

The cluster of these tests has one broker, so they show only that requests are sent, checked and refused. Moves between brokers
are in `metaquorum/tests/controller_service/test_reassignments.py`.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from lograft import Admin, TopicPartition, aio
from lograft._admin import partitions as partition_calls
from lograft.cli import main
from lograft.errors import InvalidRequestError, UnknownPartitionError, UnknownTopicError, UsageError
from lograft.types import PartitionReassignment

MakeTopic = Callable[..., str]


def test_results_say_what_was_and_what_will_be(
    admin: Admin, make_topic: MakeTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reassignment to the same broker is done at once. Refusals come beside results, and long lists go in several requests."""
    monkeypatch.setattr(partition_calls, "MAX_REASSIGNMENTS", 2)
    topic = make_topic(2)
    (own,) = admin.describe_topic(topic).partitions[0].replicas
    first, second, third = (TopicPartition(topic, number) for number in (0, 1, 5))
    results = admin.alter_partition_reassignments({first: [own], second: [own + 70], third: (own,)})
    assert results[0] == PartitionReassignment(
        topic=topic, partition=0, replicas_before=(own,), replicas=(own,), isr=(own,), leader_id=own
    )
    assert not results[0].is_under_way
    assert isinstance(results[1].error, InvalidRequestError)
    assert results[1].replicas_before == (own,)
    assert isinstance(results[2].error, UnknownPartitionError)
    (cancelled,) = admin.alter_partition_reassignments({first: None})
    assert isinstance(cancelled.error, InvalidRequestError)
    assert admin.list_partition_reassignments() == []
    assert admin.list_partition_reassignments([topic]) == []
    assert admin.list_partition_reassignments([]) == []


def test_misuse_is_found_before_anything_is_sent(admin: Admin) -> None:
    """The client checks partitions, node ids and names itself."""
    where = TopicPartition("t", 0)
    for changes in ({"t": [1]}, {where: []}, {where: [-1]}, {where: [True]}, {where: "1"}, {where: [2**31]}):
        with pytest.raises(UsageError):
            admin.alter_partition_reassignments(changes)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    for topics in ("t", [1], ["t"] * 1_001):
        with pytest.raises(UsageError):
            admin.list_partition_reassignments(topics)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


async def test_asyncio_client_asks_the_same(bootstrap: str, make_topic: MakeTopic) -> None:
    """Both clients share the calls."""
    topic = make_topic()
    async with aio.Admin(bootstrap) as admin:
        (one,) = await admin.alter_partition_reassignments({TopicPartition(topic, 0): [77]}, validate_only=True)
        assert one.error is not None
        assert await admin.list_partition_reassignments() == []


def test_command_reassigns_lists_and_cancels(
    bootstrap: str,
    admin: Admin,
    make_topic: MakeTopic,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    """`lograft partitions reassign`: by option, by plan, dry run, list, wrong usage."""
    monkeypatch.setenv("LOGRAFT_BOOTSTRAP", bootstrap)
    monkeypatch.setenv("COLUMNS", "200")

    def run(*arguments: str) -> tuple[int, str]:
        with pytest.raises(SystemExit) as end:
            main(("partitions", "reassign", *arguments))
        assert isinstance(end.value.code, int)
        return end.value.code, capsys.readouterr().out

    topic = make_topic(2)
    (own,) = admin.describe_topic(topic).partitions[0].replicas
    code, out = run(topic, "--to", str(own), "--dry-run")
    assert (code, "2 partitions would move" in out, out.count("settled")) == (0, True, 2)
    code, out = run(f"{topic}:1", "--to", f"{own}, 77", "--json")
    (one,) = json.loads(out)
    assert (code, one["error"]["code"], one["replicas_before"]) == (1, "INVALID_REQUEST", [own])
    code, out = run("--list")
    assert (code, "no partitions under way" in out) == (0, True)
    assert run("--list", topic, "--json") == (0, "[]\n")
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps({"reassignments": [{"topic": topic, "partition": 1, "replicas": [own]}]}))
    code, out = run("--file", str(plan), "--json")
    (one,) = json.loads(out)
    assert (code, one["topic"], one["partition"], one["replicas"], one["error"]) == (0, topic, 1, [own], None)
    code, out = run("--file", str(plan), "--cancel")
    assert (code, "no reassignment of" in " ".join(out.split())) == (1, True)
    assert run(topic, "--cancel")[0] == 1
    for wrong in (
        (),
        (topic,),
        (topic, "--to", "1", "--cancel"),
        (topic, "--file", str(plan)),
        ("--list", "--cancel"),
        ("--cancel",),
        ("--to", "1"),
        (topic, "--to", "1,x"),
        ("--file", str(tmp_path / "none.json")),
    ):
        assert run(*wrong)[0] == 2, wrong
    for text in ("", "[]", "{}", '{"reassignments": [{"topic": "t"}]}', '{"reassignments": 5}'):
        plan.write_text(text)
        assert run("--file", str(plan))[0] == 2, text
    row = {"topic": topic, "partition": 0, "replicas": [own]}
    for rows in ([row, row], [{**row, "partition": "0"}], [{**row, "replicas": "1"}], [{**row, "topic": 3}]):
        plan.write_text(json.dumps({"reassignments": rows}))
        assert run("--file", str(plan))[0] == 2, rows
    with pytest.raises(UnknownTopicError):
        admin.describe_topic("no-such-topic")
    assert run("no-such-topic", "--to", "1")[0] == 1
