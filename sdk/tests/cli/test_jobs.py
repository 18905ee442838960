# SPDX-License-Identifier: Apache-2.0
"""`lograft ingest` and `lograft replay` in real Spark against a real broker: what arrives, what is printed, and exit codes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from lograft import Producer

MakeTopic = Callable[..., str]
Done = subprocess.CompletedProcess[str]
Lograft = Callable[..., Done]
LIMIT_S = 500.0
"""Seconds for one program. Nothing here is timed, and the machine may be busy."""

COMMAND = (sys.executable, "-c", "from lograft.cli import main; main()")
WITHOUT_SPARK = (
    sys.executable,
    "-c",
    "import importlib.util as u; find = u.find_spec; u.find_spec = lambda name, *a: None if name == 'pyspark' else find(name, *a)\n"
    "from lograft.cli import main; main()",
)
BEGIN_MS = 1_700_000_000_000


@pytest.fixture
def lograft(bootstrap: str, tmp_path: Path) -> Lograft:
    """Run `lograft` in a process of its own, in an empty folder."""

    def run(*arguments: str, command: tuple[str, ...] = COMMAND) -> Done:
        environment = {**os.environ, "LOGRAFT_BOOTSTRAP": bootstrap, "COLUMNS": "120", "NO_COLOR": "1"}
        return subprocess.run(
            [*command, *arguments],
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            env=environment,
            cwd=tmp_path,
            check=False,
        )

    return run


def said(done: Done) -> str:
    """Return what was said on standard error, without what the JVM says at each start."""
    lines = done.stderr.splitlines(keepends=True)
    return "".join(line for line in lines if line != "WARNING: Using incubator modules: jdk.incubator.vector\n")


def fields(done: Done) -> dict[str, Any]:
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout)


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_files_go_in_once_and_come_out(lograft: Lograft, bootstrap: str, make_topic: MakeTopic, tmp_path: Path) -> None:
    """The summary; a second run that adds nothing, without Spark; and a replay that prints what consume prints."""
    topic = make_topic(2)
    (tmp_path / "orders.csv").write_text("id,at\n" + "".join(f"{number},{BEGIN_MS + number}\n" for number in range(50)))
    words = ("ingest", "orders.csv", "--topic", topic, "--key", "id", "--timestamp", "at", "-i", f"orders/{topic}")
    first = lograft(*words)
    assert first.returncode == 0, first.stdout + first.stderr
    assert said(first) == ""
    assert first.stdout.startswith(f"ingest   orders/{topic}\ntopic    {topic}\nrecords  50\n")
    for text in ("took     ", "2 partitions\n", "where the time went\n", "start Spark", "decide and publish"):
        assert text in first.stdout
    again = fields(lograft(*words, "--json"))
    assert (again["was_committed"], again["records"], again["phases"]) == (True, 50, [])
    assert sum(each["records"] for each in again["partitions"]) == 50
    other = lograft(*words[:3], make_topic(), *words[4:])
    assert other.returncode == 1
    assert f"was committed to {topic}" in other.stderr
    printed = lograft("replay", "--topic", topic, "--to", "console", "--format", "json", "--until", str(BEGIN_MS + 40))
    assert (printed.returncode, said(printed)) == (0, "")
    consumed = lograft("consume", topic, "--json", "--until", str(BEGIN_MS + 40))
    assert sorted(printed.stdout.splitlines()) == sorted(consumed.stdout.splitlines())
    assert len(printed.stdout.splitlines()) == 40


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_dry_run_and_a_bad_file(lograft: Lograft, make_topic: MakeTopic, tmp_path: Path) -> None:
    """A dry run warns of retention. What is wrong in a file is one sentence, with exit code 2."""
    topic = make_topic(2, {"retention.ms": "1000"})
    (tmp_path / "a.csv").write_text("id,at\n" + "".join(f"{number},{number}\n" for number in range(100)) + "x,soon\n")
    done = lograft("ingest", "a.csv", "-t", topic, "-k", "id", "--dry-run")
    assert done.returncode == 0, done.stderr
    assert "would write  101 records" in done.stdout
    assert done.stdout.endswith("nothing was written\n")
    failed = lograft("ingest", "a.csv", "-t", topic, "-k", "id", "--timestamp", "at", "-i", "jobs/bad")
    assert (failed.returncode, failed.stdout) == (2, ""), failed.stderr
    # Before these two the sink says that it has aborted the ingest.
    note, error = said(failed).splitlines()[-2:]
    assert note == "lograft: note: nothing was published; --ingest-id jobs/bad may be used again"
    assert error.startswith("lograft: error: column 'at' holds soon, which is not a time")


@pytest.mark.parametrize(
    ("words", "code", "problem"),
    [
        (["ingest", "a.csv", "--topic", "nowhere"], 1, "lograft topics create nowhere"),
        (["ingest", "b.csv", "--topic", "T"], 2, "there is no file 'b.csv'"),
        (["ingest", "./list", "--topic", "T"], 2, "the name './list' does not say what is in it"),
        (["ingest", "a.csv"], 2, "Missing option '--topic'"),
        (["ingest", "a.csv", "--topic", "T", "--option", "sep"], 2, "'sep' is not name=value"),
        (["ingest", "a.csv", "--topic", "T", "--spark-log", "loud"], 2, "is not one of off, error"),
        (["replay", "--topic", "nowhere", "--to", "console"], 1, "there is no topic 'nowhere'"),
        (["replay", "--topic", "T", "--to", "a.csv"], 2, "--overwrite replaces it"),
        (["replay", "--topic", "T", "--to", "console", "-p", "7"], 2, "has no partition 7, only 0 to 1"),
        (
            ["replay", "--topic", "T", "--to", "console", "--from-offset", "9"],
            1,
            "partition 0 has offsets from 0 up to 0",
        ),
        (["replay", "--topic", "T", "--to", "console", "-f", "%z"], 2, "there is no field %z"),
    ],
)
def test_what_is_wrong_is_said_before_spark_starts(
    lograft: Lograft, make_topic: MakeTopic, tmp_path: Path, words: list[str], code: int, problem: str
) -> None:
    """With what to do, and the exit codes of other commands."""
    topic = make_topic(2)
    (tmp_path / "a.csv").write_text("a\n1\n")
    done = lograft(*(topic if word == "T" else word for word in words))
    assert done.returncode == code, done.stderr
    assert problem in done.stderr
    assert done.stdout == ""


def test_without_pyspark_the_extra_is_named(lograft: Lograft, make_topic: MakeTopic, tmp_path: Path) -> None:
    """The command line works without the extra; only its jobs do not."""
    (tmp_path / "a.csv").write_text("a\n1\n")
    topic = make_topic()
    for words in (["ingest", "a.csv"], ["replay", "--to", "console"]):
        done = lograft(*words, "--topic", topic, command=WITHOUT_SPARK)
        assert (done.returncode, done.stdout) == (2, "")
        assert "pip install 'lograft[spark]'" in done.stderr


def test_a_dry_run_of_a_replay_needs_no_spark(lograft: Lograft, bootstrap: str, make_topic: MakeTopic) -> None:
    """It says which offsets would be read, by times and by offsets."""
    topic = make_topic(2)
    with Producer(bootstrap) as producer:
        for number in range(10):
            producer.send(topic, b"v", partition=number % 2, timestamp_ms=BEGIN_MS + number)
    words = ("replay", "-t", topic, "--to", "out", "--dry-run")
    done = lograft(*words, "--from", str(BEGIN_MS + 3), "--until", "2023-11-14T22:13:20.008")
    assert done.returncode == 0, done.stderr
    assert "would read  5 offsets" in done.stdout
    facts = fields(lograft(*words, "--from-offset", "1", "--until-offset", "1:3", "--json"))
    spans = [(each["partition"], each["start_offset"], each["end_offset"]) for each in facts["partitions"]]
    assert spans == [(0, 1, 5), (1, 1, 3)]
