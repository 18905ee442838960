# SPDX-License-Identifier: Apache-2.0
"""Log directories and moves of replicas by the admin clients and the command, against a real broker with two directories."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from lograft import Admin, Producer, aio
from lograft.cli import main
from lograft.cli.directories import POLL_INTERVAL_S
from lograft.errors import NoBrokerError, RefusedError, UsageError
from lograft.types import LogDirectories, LogDirectory, LogDirectoryState, MoveState, TopicPartition
from tests.client.processes import unused_address
from tests.client.reading import read_all

from brokerd.embedded import EmbeddedCluster

WAIT_S = 30.0
VALUES = [b"%d" % number + bytes(1_000) for number in range(200)]
PLACE = TopicPartition("t", 0)


@pytest.fixture
def two(tmp_path: Path) -> Iterator[str]:
    """The address of a broker with two log directories, and a topic of one partition with some records."""
    with EmbeddedCluster(tmp_path / "first", more_data_dirs=[tmp_path / "second"]) as cluster:
        with Admin(cluster.bootstrap) as admin:
            admin.create_topic("t", configs={"segment.bytes": "65536"})
        with Producer(cluster.bootstrap) as producer:
            producer.send_many("t", VALUES, partition=0)
        yield cluster.bootstrap


def target_of(found: LogDirectories) -> LogDirectory:
    """Return the directory that has no replica."""
    return min(found.directories, key=lambda each: each.replica_count)


def test_a_replica_is_moved_and_its_records_stay(two: str) -> None:
    """The directories show where the replica is. The move is reported until it is done; a second request changes nothing."""
    with Admin(two) as admin:
        before = admin.describe_log_directories(with_replicas=True)
        assert [each.state for each in before.directories] == [LogDirectoryState.FREE] * 2
        assert sorted(each.replicas for each in before.directories) == [(), (PLACE,)]
        assert admin.describe_log_directories(before.broker_id).directories[0].replicas == ()
        target = target_of(before)
        for _ in range(2):
            admin.move_replica(PLACE, target.directory_id)
        pause, rounds = threading.Event(), round(WAIT_S / POLL_INTERVAL_S)
        for _ in range(rounds):
            (move,) = admin.describe_log_directories().moves
            if move.state is MoveState.DONE:
                break
            pause.wait(POLL_INTERVAL_S)
        assert (move.topic, move.partition, move.state, move.problem) == ("t", 0, MoveState.DONE, "")
        assert move.target_directory_id == target.directory_id
        assert move.copied_bytes >= move.size_bytes > 100_000
        after = {each.path: each.replica_count for each in admin.describe_log_directories().directories}
        assert after[target.path] == 1
    assert [record.value for record in read_all(two, "t")] == VALUES


def test_what_cannot_be_meant_is_refused(two: str) -> None:
    """An unknown broker, an invalid id, an unknown directory and an unknown topic are refused."""
    with Admin(two) as admin:
        with pytest.raises(UsageError, match="name a broker by its id"):
            admin.describe_log_directories(99)
        with pytest.raises(UsageError, match="16 bytes"):
            admin.move_replica(PLACE, b"short")
        with pytest.raises(RefusedError, match="directory"):
            admin.move_replica(PLACE, bytes(16))
        known = admin.describe_log_directories().directories[0].directory_id
        with pytest.raises(RefusedError):
            admin.move_replica(TopicPartition("nobody", 0), known)
    with Admin(unused_address(), request_timeout_ms=500) as admin, pytest.raises(NoBrokerError):
        admin.describe_log_directories()


def test_the_asyncio_client_has_the_same_calls(two: str) -> None:
    """Describe and move."""

    async def move() -> tuple[LogDirectories, LogDirectories]:
        async with aio.Admin(two) as admin:
            before = await admin.describe_log_directories(with_replicas=True)
            await admin.move_replica(PLACE, target_of(before).directory_id, before.broker_id)
            return before, await admin.describe_log_directories()

    before, after = asyncio.run(move())
    assert not before.moves
    assert [(each.topic, each.partition) for each in after.moves] == [("t", 0)]


def test_the_command_moves_and_waits(
    two: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By path or by id, as text and as JSON. The error for an unknown directory names the known ones."""
    monkeypatch.setenv("LOGRAFT_BOOTSTRAP", two)
    monkeypatch.setenv("COLUMNS", "200")

    def run(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as end:
            main(("directories", *arguments))
        out, err = capsys.readouterr()
        assert isinstance(end.value.code, int)
        return end.value.code, out, err

    code, out, _ = run("list", "--replicas", "--json")
    found = json.loads(out)
    assert (code, found["moves"]) == (0, [])
    full, empty = sorted(found["directories"], key=lambda each: -each["replica_count"])
    (replica,) = full["replicas"]
    assert (replica["topic"], replica["partition"], replica["size_bytes"] > 200_000) == ("t", 0, True)
    code, out, _ = run("move", "t", "0", empty["path"], "--wait")
    assert (code, out) == (0, f"t-0 is in {empty['path']}\n")
    code, out, _ = run("list", "--replicas")
    assert code == 0
    assert all(text in out for text in (empty["path"], empty["directory_id"], "done", "free"))
    code, out, _ = run("move", "t", "0", full["directory_id"], "--wait", "--json")
    moved = {"topic": "t", "partition": 0, "directory": full["path"], "state": "done"}
    assert (code, json.loads(out)) == (0, moved)
    code, out, _ = run("move", "t", "0", full["path"])
    assert code == 0
    assert "is being moved to" in out
    code, out, err = run("move", "t", "0", "elsewhere")
    assert (code, out) == (2, "")
    assert "no log directory 'elsewhere'" in err
    assert empty["path"] in err
