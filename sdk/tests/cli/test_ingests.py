# SPDX-License-Identifier: Apache-2.0
"""`lograft ingest list|show|abort`, against a real broker: what it prints, and its exit codes."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable

import pytest
from lograft import Admin, Ingest, IngestState
from lograft.cli import main

MakeTopic = Callable[..., str]
Run = Callable[..., tuple[int, str, str]]


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
        assert isinstance(end.value.code, int)
        return end.value.code, out, err

    return call


def facts(out: str) -> dict[str, str]:
    """Return the lines of names and values."""
    return {line[:12].strip(): line[12:].strip() for line in out.splitlines()[:11]}


def test_show_list_and_abort(run: Run, bootstrap: str, admin: Admin, make_topic: MakeTopic) -> None:
    """An ingest that is open, then aborted, then committed."""
    topic, ingest_id = make_topic(1), "cli/one"
    with Ingest.open(bootstrap, ingest_id, topics=[topic]) as ingest:
        with ingest.attempt(0) as attempt:
            attempt.send_many(topic, [b"x"] * 3)
        code, out, _ = run("ingest", "show", ingest_id)
        assert code == 0
        shown = facts(out)
        assert (shown["state"], shown["attempts"], shown["staged"]) == ("open", "0 open, 1 sealed", "3 records")
        assert (shown["topics"], shown["time to live"]) == (topic, "3600000 ms")
        code, out, _ = run("ingest", "list", "--state", "open")
        assert code == 0
        assert f"{ingest_id} " in out
        assert all(len(line) <= 80 for line in out.splitlines())
        code, out, _ = run("ingest", "abort", ingest_id, "--yes")
        assert (code, out) == (0, f"ingest {ingest_id} is aborted\n")
    assert admin.describe_ingest(ingest_id).state is IngestState.ABORTED
    with Ingest.open(bootstrap, ingest_id, topics=[topic]) as ingest:
        with ingest.attempt(0) as attempt:
            attempt.send(topic, b"x")
        assert attempt.sealed is not None
        ingest.commit([attempt.sealed])
    code, out, _ = run("ingest", "show", ingest_id)
    assert facts(out)["state"] == "committed"
    title, head, row = out.splitlines()[-3:]
    assert title == "round 1: 1 record published"
    assert head.split() == ["topic", "partition", "records", "first", "end"]
    assert row.split() == [topic, "0", "1", "0", "1"]
    code, _, err = run("ingest", "abort", ingest_id, "--yes")
    assert code == 1
    assert "committed" in err


def test_json(run: Run, bootstrap: str, make_topic: MakeTopic) -> None:
    """Everything, with states as words."""
    topic = make_topic(1)
    with Ingest.open(bootstrap, "cli/json", topics=[topic]) as ingest:
        with ingest.attempt(0) as attempt:
            attempt.send(topic, b"x")
        assert attempt.sealed is not None
        ingest.commit([attempt.sealed])
    code, out, _ = run("ingest", "show", "cli/json", "--json")
    assert code == 0
    shown = json.loads(out)
    assert (shown["kind"], shown["state"], shown["topics"]) == ("single", "committed", [topic])
    assert shown["result"]["partitions"] == [
        {"topic": topic, "partition": 0, "records": 1, "first_offset": 0, "end_offset": 1}
    ]
    code, out, _ = run("ingest", "list", "--json")
    assert code == 0
    listed = json.loads(out)
    assert listed["missing_coordinator_ids"] == []
    assert "cli/json" in [each["ingest_id"] for each in listed["ingests"]]
    Ingest.open(bootstrap, "cli/json2", topics=[topic]).close()
    assert run("ingest", "abort", "cli/json2", "--yes", "--json")[1] == '{"ingest": "cli/json2", "aborted": true}\n'


def test_wrong_use(run: Run) -> None:
    """An unknown state, an unknown ingest."""
    code, _, err = run("ingest", "list", "--state", "closed")
    assert code == 2
    assert "is not one of" in err
    code, _, err = run("ingest", "show", "cli/none")
    assert code == 1
    assert "cli/none" in err
