# SPDX-License-Identifier: Apache-2.0
"""Exports of the metadata by the clients and the command, and the differences between two exports."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from lograft import Admin, ConfigResource, aio
from lograft._admin.metadata_export import MetadataChange, diff_exports, read_export
from lograft.cli import main
from lograft.errors import CorruptDataError

MakeTopic = Callable[..., str]


def made(*entries: dict[str, object], offset: int = 5) -> list[str]:
    """Return a whole export with these entries."""
    lines = [json.dumps(each) for each in ({"type": "export", "format": 1, "metadata_offset": offset}, *entries)]
    digest = hashlib.sha256("".join(f"{line}\n" for line in lines).encode()).hexdigest()
    return [*lines, json.dumps({"type": "end", "line_count": len(lines), "sha256": digest})]


def partition(topic: str, number: int, *replicas: int) -> dict[str, object]:
    """Return a partition."""
    return {"type": "partition", "topic": topic, "partition": number, "replicas": list(replicas), "isr": [1]}


def test_differences_name_what_came_went_and_changed() -> None:
    """The differences have moved partitions with old and new replicas. A deleted topic is named once."""
    config = {"type": "config", "resource": "topic", "name": "a", "config": "retention.ms", "value": "5"}
    before = made(
        {"type": "voter", "node_id": 1, "address": "n1:1"},
        {"type": "broker", "broker_id": 7, "fenced": False},
        {"type": "topic", "topic": "a", "topic_id": "0a"},
        {"type": "topic", "topic": "gone", "topic_id": "0b"},
        partition("a", 2, 1, 2),
        partition("a", 10, 1, 2),
        partition("gone", 0, 1),
        config,
        {**config, "name": "gone"},
        {"type": "producer_ids", "next_producer_id": 1001},
    )
    after = made(
        {"type": "voter", "node_id": 1, "address": "n1:2"},
        {"type": "topic", "topic": "a", "topic_id": "0a"},
        partition("a", 2, 3, 2),
        partition("a", 10, 1, 2),
        partition("a", 11, 1, 2),
        {**config, "value": "6"},
        {"type": "producer_ids", "next_producer_id": 1001},
    )
    assert diff_exports(read_export(before), read_export(after)) == [
        MetadataChange(kind="broker", name="7", before={"fenced": False}, after=None),
        MetadataChange(kind="config", name="topic a retention.ms", before={"value": "5"}, after={"value": "6"}),
        MetadataChange(kind="partition", name="a:2", before={"replicas": [1, 2]}, after={"replicas": [3, 2]}),
        MetadataChange(kind="partition", name="a:11", before=None, after={"isr": [1], "replicas": [1, 2]}),
        MetadataChange(kind="topic", name="gone", before={"topic_id": "0b"}, after=None),
        MetadataChange(kind="voter", name="1", before={"address": "n1:1"}, after={"address": "n1:2"}),
    ]
    assert diff_exports(read_export(after), read_export(after)) == []


def test_switch_of_the_flush_policy_is_a_change_of_its_topic() -> None:
    """A later switch changes the offset. Those of a deleted topic are left out, like its configs."""

    def switch(topic: str, offset: int) -> dict[str, object]:
        return {"type": "flush_policy_switch", "resource": "topic", "name": topic, "metadata_offset": offset}

    topics = [{"type": "topic", "topic": name, "topic_id": name} for name in ("a", "b")]
    before = made(*topics, switch("a", 5), switch("b", 6))
    after = made(topics[0], switch("a", 9))
    assert diff_exports(read_export(before), read_export(after)) == [
        MetadataChange(
            kind="flush_policy_switch", name="topic a", before={"metadata_offset": 5}, after={"metadata_offset": 9}
        ),
        MetadataChange(kind="topic", name="b", before={"topic_id": "b"}, after=None),
    ]


def test_export_that_is_cut_or_changed_is_refused() -> None:
    """The digest covers every line, including the last one."""
    lines = made(partition("a", 0, 1), partition("a", 1, 1))
    newer = made()
    newer[0] = newer[0].replace('"format": 1', '"format": 2')
    for bad in (
        [],
        ["x"],
        ["[]"],
        ["5"],
        lines[:-1],
        lines[1:],
        [lines[0], *lines[2:]],
        [lines[0], lines[2], lines[1], lines[3]],
        [lines[0], lines[1].replace("[1]", "[2]"), *lines[2:]],
        newer,
    ):
        with pytest.raises(CorruptDataError):
            read_export(bad)
    assert len(read_export(lines)) == 3


async def test_asyncio_client_exports_the_same(bootstrap: str, admin: Admin, make_topic: MakeTopic) -> None:
    """The export comes complete through a broker, and stays equal while nothing changes."""
    topic = make_topic(2)
    async with aio.Admin(bootstrap) as client:
        entries = read_export(await client.export_metadata())
    partitions = [each for each in entries if each["type"] == "partition" and each["topic"] == topic]
    assert [each["partition"] for each in partitions] == [0, 1]
    assert read_export(admin.export_metadata())[-1] == entries[-1]


def test_command_exports_and_compares(
    bootstrap: str,
    admin: Admin,
    make_topic: MakeTopic,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    """`lograft metadata export|diff`: two exports, an export and the live cluster, a damaged one."""
    monkeypatch.setenv("LOGRAFT_BOOTSTRAP", bootstrap)
    monkeypatch.setenv("COLUMNS", "250")

    def run(*arguments: str) -> tuple[int, str]:
        with pytest.raises(SystemExit) as end:
            main(("metadata", *arguments))
        assert isinstance(end.value.code, int)
        return end.value.code, capsys.readouterr().out

    topic = make_topic()
    first, second = tmp_path / "first", tmp_path / "second"
    assert run("export", "--output", str(first))[0] == 0
    code, out = run("export")
    assert (code, out) == (0, first.read_text())
    admin.alter_configs({ConfigResource.topic(topic): {"description": "grün"}})
    other = make_topic(3)
    code, out = run("diff", str(first), "--json")
    assert (code, {(each["kind"], each["name"]) for each in json.loads(out)["changes"]}) == (
        0,
        {("config", f"topic {topic} description"), ("topic", other)},
    )
    assert run("export", "-o", str(second))[0] == 0
    code, out = run("diff", str(first), str(second))
    assert (code, "2 changes" in out, "grün" in out or "gr\\u00fcn" in out) == (0, True, True)
    first.write_bytes(first.read_bytes()[:-40])
    assert run("diff", str(first), str(second))[0] == 1
    assert run("diff", str(tmp_path / "none"))[0] == 2
