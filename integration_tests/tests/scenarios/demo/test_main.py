# SPDX-License-Identifier: Apache-2.0
"""The whole demo as a user runs it, on a small file."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from integration_tests.scenarios.demo.__main__ import main

ROOT = Path(__file__).parents[4]
DEADLINE_S = 580
TAMPERED = """
import sys
import integration_tests.scenarios.demo.run as run
from integration_tests.scenarios.demo.__main__ import main
from lograft import Producer

ingest = run.ingest

def tampered_ingest(spark, staged, *, bootstrap, topic, ingest_id, has_keyless, gate):
    if staged.with_name("changed.parquet").exists():
        return
    # As many records as before, one of them another one.
    rows = spark.read.parquet(str(staged))
    changed = staged.with_name("changed.parquet")
    rows.where("key != encode('17', 'utf-8')").write.parquet(str(changed))
    ingest(spark, changed, bootstrap=bootstrap, topic=topic, ingest_id=ingest_id, has_keyless=has_keyless)
    with Producer(bootstrap) as producer:
        producer.send(topic, b"forged", key=b"17")

run.ingest = tampered_ingest
sys.exit(main(sys.argv[1:]))
"""


@pytest.fixture
def orders(tmp_path: Path) -> Path:
    path = tmp_path / "orders.csv"
    lines = [f"{number},{1_700_000_000_000 + 1000 * (number * 7 % 100)},item {number}" for number in range(100)]
    path.write_text("\n".join(["id,timestamp,text", *lines]) + "\n", encoding="utf-8")
    return path


@pytest.fixture
def events(tmp_path: Path) -> Path:
    """Some records have no key, and times are out of order."""
    path = tmp_path / "events.jsonl"
    rows = [
        {"key": f"k{number % 7}" if number % 3 else None, "timestamp": 1_700_000_000_000 + number * 37 % 100}
        for number in range(100)
    ]
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    return path


def run(*arguments: str | Path, environment: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env={**os.environ, **(environment or {})},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(DEADLINE_S + 20)
def test_demo_works_without_any_java(events: Path, tmp_path: Path) -> None:
    """Without JAVA_HOME and java, the packaged JRE works, and the replays equal the source."""
    tools = tmp_path / "bin"
    tools.mkdir()
    for directory in os.environ["PATH"].split(os.pathsep):
        for tool in Path(directory).glob("*"):
            if tool.name != "java" and not os.path.lexists(tools / tool.name):
                (tools / tool.name).symlink_to(tool)
    environment = {"PATH": str(tools), "JAVA_HOME": "", "LOGRAFT_CACHE_DIR": str(tmp_path / "cache")}
    answer = run("-m", "integration_tests.scenarios.demo", "--input", events, environment=environment)
    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert "the packaged JRE" in " ".join(answer.stdout.split())
    assert "EQUAL: 100 records in, 100 records out" in answer.stdout
    assert "the same ingest again: 0 records added" in answer.stdout
    assert "where the time went" in answer.stdout
    assert "DIFFERENT" not in answer.stdout


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(DEADLINE_S + 20)
def test_demo_notices_a_forged_record(orders: Path) -> None:
    """One record is replaced by another, with the same count: the demo prints a red line and exits with an error."""
    answer = run("-c", TAMPERED, "--input", orders)
    assert answer.returncode == 1, answer.stdout + answer.stderr
    assert "DIFFERENT" in answer.stdout
    assert "EQUAL:" not in answer.stdout


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("none.csv", None, "No such file"),
        ("a.txt", "x", "must end in"),
        ("a.csv", "a,b\n", "holds no record"),
        ("a.jsonl", "{", "after row 0"),
    ],
)
def test_bad_input_ends_with_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, text: str | None, problem: str
) -> None:
    """A wrong file gives one line and exit status 2, before Spark or a cluster starts."""
    path = tmp_path / name
    if text is not None:
        path.write_text(text, encoding="utf-8")
    assert main(["--input", str(path)]) == 2
    assert problem in capsys.readouterr().err


@pytest.mark.spark
@pytest.mark.process
@pytest.mark.slow
@pytest.mark.timeout(DEADLINE_S + 320)
def test_demo_with_faults(events: Path) -> None:
    """An executor and a broker are killed on the way, the replays equal the source, and the second ingest adds nothing."""
    answer = run("-m", "integration_tests.scenarios.demo", "--input", events, "--faults")
    assert answer.returncode == 0, answer.stdout + answer.stderr
    text = " ".join(answer.stdout.split())
    assert re.search(r"executor with pid \d+ killed; attempts that were staging: [1-9]", text)
    assert re.search(r"broker [123] with pid \d+ killed", text)
    assert "the same ingest again: 0 records added" in text
    assert "EQUAL: 100 records in, 100 records out" in text
