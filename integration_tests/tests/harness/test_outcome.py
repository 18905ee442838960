# SPDX-License-Identifier: Apache-2.0
"""Verdicts, and the evidence that is kept of a failed run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from integration_tests.harness.history.events import HISTORY_FILE
from integration_tests.harness.outcome import Outcome, keep_evidence, read_outcome, run_in_directory


def test_outcome_with_a_problem_has_failed() -> None:
    """A problem outweighs everything, and the line says how many there were."""
    assert Outcome(proof="p").verdict == "PASSED"
    assert Outcome(proof="p", not_run="why").verdict == "NOT RUN"
    failed = Outcome(proof="p", not_run="why", problems=["x"], figures={"voters": 3})
    assert json.loads(failed.to_json()) == {
        "proof": "p",
        "verdict": "FAILED",
        "voters": 3,
        "problem_count": 1,
        "not_run": "why",
    }


def test_evidence_of_a_failed_run_is_kept_with_the_command(tmp_path: Path) -> None:
    """Logs and history are copied, and the last line judges the history again."""
    (tmp_path / HISTORY_FILE).write_text("")
    (tmp_path / "broker-101.log").write_text("what happened")
    where, command = keep_evidence(tmp_path, "test")
    kept = Path(where.rpartition(" ")[2])
    try:
        assert (kept / "broker-101.log").read_text() == "what happened"
        assert command.endswith(f"integration_tests.harness.history.check {kept / HISTORY_FILE}")
    finally:
        for file in kept.iterdir():
            file.unlink()
        kept.rmdir()


def test_outcome_comes_back_from_a_file(tmp_path: Path) -> None:
    """A process outside namespaces reads the outcome that the process inside wrote."""
    outcome = Outcome(proof="p", not_run="why", problems=["x"], figures={"voters": 3, "times": [1, 2]})
    outcome.write(tmp_path / "outcome.json")
    assert read_outcome(tmp_path / "outcome.json") == outcome


def test_proof_that_raises_has_failed(capsys: pytest.CaptureFixture[str]) -> None:
    """With the figures that it was to have; its logs are kept."""

    def work(directory: Path) -> Outcome:
        (directory / "broker-101.log").write_text("what happened")
        raise RuntimeError("no quorum")

    outcome = run_in_directory("test", work, figures={"rounds": 2})
    assert (outcome.verdict, outcome.problems, outcome.figures["rounds"]) == (
        "FAILED",
        ["RuntimeError('no quorum')"],
        2,
    )
    kept = Path(capsys.readouterr().out.strip().rpartition(" ")[2])
    (log,) = kept.iterdir()
    assert log.read_text() == "what happened"
    log.unlink()
    kept.rmdir()
