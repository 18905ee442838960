# SPDX-License-Identifier: Apache-2.0
"""`lograft groups` and `lograft producers`, against a real broker: what they print, and their exit codes."""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
import typer
from lograft import Admin, Consumer, Producer, TopicPartition
from lograft.cli import main
from lograft.cli.groups import parse_duration, read_offsets

MakeTopic = Callable[..., str]
Run = Callable[..., tuple[int, str, str]]

_numbers = itertools.count()


@pytest.fixture
def run(bootstrap: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a command line in this process, in a terminal of 80 columns, and return (exit code, output, error output)."""
    monkeypatch.setenv("LOGRAFT_BOOTSTRAP", bootstrap)
    monkeypatch.setenv("COLUMNS", "80")

    def call(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as end:
            main(arguments)
        sys.stdout.flush()
        out, err = capfd.readouterr()
        assert "--json" in arguments or "--output" in arguments or all(len(each) <= 80 for each in out.splitlines()), (
            out
        )
        assert isinstance(end.value.code, int)
        return end.value.code, out, err

    return call


@pytest.fixture
def group() -> str:
    """A group id of its own."""
    return f"cli-group-{next(_numbers)}"


@pytest.fixture
def orders(bootstrap: str, make_topic: MakeTopic) -> str:
    """A topic with 10 records in each of 3 partitions."""
    topic = make_topic(partition_count=3)
    with Producer(bootstrap) as producer:
        for number in range(30):
            producer.send(topic, b"v", partition=number % 3)
        producer.flush()
    return topic


def stored(admin: Admin, group: str) -> dict[int, int]:
    (found,) = admin.group_offsets([group], with_lag=False)
    return {each.partition: each.committed.offset for each in found.offsets if each.committed is not None}


def test_reset_shows_a_plan_and_applies_it_on_demand(
    run: Run, admin: Admin, group: str, orders: str, tmp_path: Path
) -> None:
    """The plan has current, new and difference, says how to apply it, and changes nothing. A backup undoes the change."""
    admin.alter_group_offsets(group, {TopicPartition(orders, number): 4 + number for number in range(2)})
    code, out, err = run("groups", "reset", group, "--to-latest")
    assert (code, err) == (0, "")
    assert f"group {group}: 2 of 2 partitions would move" in out
    assert [line.split() for line in out.splitlines() if line.startswith(orders)] == [
        [orders, "0", "4", "10", "+6"],
        [orders, "1", "5", "10", "+5"],
    ]
    assert "Nothing has changed yet. Repeat the command with --execute to apply this." in out
    assert stored(admin, group) == {0: 4, 1: 5}

    backup = tmp_path / "before.csv"
    code, out, err = run("groups", "reset", group, "--to-latest", "--backup", str(backup), "--execute")
    assert (code, f"2 present offsets in {backup}" in err) == (0, True)
    assert f"group {group}: 2 of 2 partitions moved" in out
    assert "--execute" not in out
    assert stored(admin, group) == {0: 10, 1: 10}
    assert backup.read_text() == f"{orders},0,4\n{orders},1,5\n"
    code, out, _ = run("groups", "reset", group, "--from-file", str(backup), "-t", f"{orders}:1", "--execute", "--json")
    assert (code, json.loads(out)) == (
        0,
        {
            "group": group,
            "executed": True,
            "changes": [{"topic": orders, "partition": 1, "before": 10, "after": 5, "error": None}],
        },
    )
    assert stored(admin, group) == {0: 10, 1: 5}
    code, out, _ = run("groups", "reset", group, "--shift-by", "0")
    assert (code, "Nothing would change." in out) == (0, True)


@pytest.mark.parametrize(
    ("options", "after"),
    [
        (("--to-earliest",), 0),
        (("--to-latest",), 10),
        (("--to-offset", "3"), 3),
        (("--shift-by", "-2"), 3),
        (("--shift-by", "2"), 7),
        (("--to-time", "2020-01-01T00:00:00Z"), 0),
        (("--to-time", "99999999999999"), 10),
        (("--ago", "1h30m"), 0),
        (("--ago", "0ms"), 10),
    ],
    ids=str,
)
def test_reset_to_each_place(
    run: Run, admin: Admin, group: str, orders: str, options: tuple[str, ...], after: int
) -> None:
    """Each way to name a place."""
    admin.alter_group_offsets(group, {TopicPartition(orders, 0): 5})
    assert run("groups", "reset", group, *options, "--execute")[0] == 0
    assert stored(admin, group) == {0: after}


def test_group_with_members(run: Run, bootstrap: str, admin: Admin, group: str, orders: str) -> None:
    """The description names who reads what. A plan says that members are in the way; --execute and delete fail."""
    with Consumer(bootstrap, group=group, instance_id="till-7") as consumer:
        consumer.subscribe([orders])
        assert len(consumer.consume(30, timeout_ms=60_000)) == 30
        consumer.commit()
        code, out, _ = run("groups", "describe", group)
        assert code == 0
        assert "state        stable" in out
        assert "1 member\n" in out.replace(" \n", "\n").replace("  ", "")
        for text in ("till-7", f"{orders}:0-2", consumer.membership.member_id[:8], "3 offsets, 0 records behind"):
            assert text in out
        code, out, _ = run("groups", "describe", group, "--json")
        (described,) = json.loads(out)
        assert (described["members"][0]["member_id"], described["offsets"][0]["lag"]) == (
            consumer.membership.member_id,
            0,
        )
        code, out, _ = run("groups", "list", "--state", "stable", "--json")
        assert {"group": group, "state": "stable", "member_count": 1, "coordinator_id": 1} in json.loads(out)["groups"]
        code, _, err = run("groups", "reset", group, "--to-earliest")
        assert (code, "the group has 1 member: stop them before --execute" in err) == (0, True)
        code, _, err = run("groups", "reset", group, "--to-earliest", "--execute")
        assert (code, "the group has 1 member" in err) == (1, True)
        assert run("groups", "delete", group, "--yes")[0] == 1
        assert run("groups", "delete-offsets", group, orders, "--yes")[0] == 1
        assert stored(admin, group) == {0: 10, 1: 10, 2: 10}
        consumer.unsubscribe()
    code, out, _ = run("groups", "describe", group)
    assert (code, "empty since" in out, "member id" in out) == (0, True, False)


def test_offsets_are_shown_written_and_deleted(run: Run, admin: Admin, group: str, orders: str, tmp_path: Path) -> None:
    """A file of offsets has the form of Kafka's tool."""
    admin.alter_group_offsets(group, {TopicPartition(orders, number): number for number in range(3)})
    code, out, _ = run("groups", "offsets", group)
    assert (code, "3 offsets, 27 records behind" in out) == (0, True)
    code, out, _ = run("groups", "offsets", group, "--topic", f"{orders}:2", "--json")
    (only,) = json.loads(out)
    assert (only["offset"], only["end_offset"], only["lag"]) == (2, 10, 8)
    file = tmp_path / "offsets.csv"
    code, out, _ = run("groups", "offsets", group, "--output", str(file))
    assert (code, out) == (0, f"3 offsets of group {group} in {file}\n")
    assert read_offsets(file) == {TopicPartition(orders, number): number for number in range(3)}
    code, out, _ = run("groups", "delete-offsets", group, f"{orders}:1", "--yes")
    assert (code, out) == (0, f"group {group} has no offsets in 1 partition any more\n")
    assert stored(admin, group) == {0: 0, 2: 2}
    code, out, err = run("groups", "delete", group, "no-such-group", "--yes")
    assert (code, out) == (1, f"group {group} is deleted\n")
    assert "no-such-group: no group has the id" in err
    code, _, err = run("groups", "describe", group)
    assert (code, "no group has the id" in err) == (1, True)


def test_partitions_that_fail_are_named(run: Run, admin: Admin, group: str, orders: str) -> None:
    """The others are moved all the same, and the exit code is 1."""
    code, out, err = run("groups", "reset", group, "--to-latest", "-t", orders, "-t", f"{orders}:8", "--execute")
    assert (code, f"{orders}:8: topic" in err, "3 of 4 partitions moved" in out) == (1, True, True)
    assert stored(admin, group) == {0: 10, 1: 10, 2: 10}
    code, _, err = run("groups", "reset", group, "--to-latest", "-t", "no-such-topic")
    assert (code, "does not exist" in err) == (1, True)


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("--to-earliest", "--to-latest"),
        ("--ago", "soon"),
        ("--ago", "-1h"),
        ("--to-time", "yesterday"),
        ("--to-offset", "-1"),
        ("--from-file", "/no/such/file"),
        ("--to-latest",),
    ],
    ids=" ".join,
)
def test_wrong_use_ends_with_2(run: Run, group: str, arguments: tuple[str, ...]) -> None:
    """No place, two places, or none that can be understood; also a group without offsets and without --topic."""
    assert run("groups", "reset", group, *arguments)[0] == 2
    assert run("groups", "list", "--state", "dead")[0] == 2


@pytest.mark.parametrize(
    "text", ["", "orders,0\n", "orders,0,x\n", ",0,1\n", "orders,0,1\norders,0,2\n", "orders,-1,1\n", "\n\n"]
)
def test_file_that_is_none(tmp_path: Path, text: str) -> None:
    """The message names the line."""
    file = tmp_path / "offsets.csv"
    file.write_text(text)
    with pytest.raises(typer.BadParameter):
        read_offsets(file)


def test_file_with_quotes_spaces_and_empty_lines(tmp_path: Path) -> None:
    """As other tools write it."""
    file = tmp_path / "offsets.csv"
    file.write_text('"orders",0,7\r\n\n orders , 1 , 8 \n')
    assert read_offsets(file) == {TopicPartition("orders", 0): 7, TopicPartition("orders", 1): 8}


@pytest.mark.parametrize(
    ("text", "duration"),
    [
        ("90s", timedelta(seconds=90)),
        ("1h30m", timedelta(minutes=90)),
        ("7d", timedelta(days=7)),
        ("1w", timedelta(weeks=1)),
        ("250ms", timedelta(milliseconds=250)),
        ("1m5ms", timedelta(minutes=1, milliseconds=5)),
    ],
)
def test_durations(text: str, duration: timedelta) -> None:
    """One unit or several."""
    assert parse_duration(text, "--ago") == duration
    for wrong in (f"-{text}", f"{text} ", text[:-1] if text[-1] != "s" else "5", "99999999999w"):
        with pytest.raises(typer.BadParameter):
            parse_duration(wrong, "--ago")


def test_configs_of_a_group(run: Run, group: str) -> None:
    """Set, described, unset."""
    assert run("configs", "set", "group.offsets.retention.ms=-1", "--group", group)[0] == 0
    code, out, _ = run("configs", "describe", "--group", group, "--json")
    assert (code, json.loads(out)["group.offsets.retention.ms"]["source"]) == (0, "group")
    assert run("configs", "unset", "group.offsets.retention.ms", "--group", group)[0] == 0
    code, _, err = run("configs", "set", "cleanup.policy=delete", "--topic", "__groups")
    assert code == 1
    assert "__groups" in err or "internal topic" in err


def test_producers_of_a_partition(run: Run, orders: str) -> None:
    """A table and JSON; a partition that does not exist ends with 1."""
    code, out, _ = run("producers", "list", f"{orders}:0")
    assert (code, out.splitlines()[0], " ago" in out) == (0, "1 producer", True)
    code, out, _ = run("producers", "list", orders, "--json")
    assert [each["producers"][0]["last_sequence"] for each in json.loads(out)] == [9, 9, 9]
    code, _, err = run("producers", "list", f"{orders}:9")
    assert (code, f"{orders}:9" in err) == (1, True)
