# SPDX-License-Identifier: Apache-2.0
"""Clients in other languages, built from the .proto files alone, work against `lograft dev`."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from integration_tests.scenarios.clients import run, toolchains


@pytest.mark.process
@pytest.mark.timeout(1_800)
def test_clients_whose_toolchain_is_there_pass(capsys: pytest.CaptureFixture[str]) -> None:
    """Every client whose toolchain is installed passes. The others are printed as NOT RUN."""
    outcomes = run.run_all()
    with capsys.disabled():
        print(f"\n{run.table(outcomes)}")
    assert [outcome for outcome in outcomes if outcome.result == run.FAILED] == []


def test_missing_tool_is_named() -> None:
    """A client whose tool is not on the PATH names the tool."""
    tool = toolchains.Tool(
        command=("lograft-no-such-tool", "--version"), version_pattern=r"(\d+)\.(\d+)", version_least=(1, 0)
    )
    assert tool.problem() == "lograft-no-such-tool is not on the PATH"


def test_old_tool_is_refused() -> None:
    """A tool older than the least version is a missing one, and the reason gives both versions."""
    tool = toolchains.Tool(
        command=("python3", "--version"), version_pattern=r"Python (\d+)\.(\d+)", version_least=(99, 0)
    )
    problem = tool.problem()
    assert problem is not None
    assert "is older than 99.0" in problem


def test_client_with_missing_toolchain_is_not_run_and_needs_no_server() -> None:
    """Without any toolchain nothing is started, and the outcome names what is missing."""
    tool = toolchains.Tool(command=("lograft-no-such-tool",), version_pattern=r"(\d+)()", version_least=(1, 0))
    client = toolchains.Client(
        name="none", tools=(tool,), build_command=(), run_command=(), output="none", source_patterns=()
    )
    (outcome,) = run.run_all((client,))
    assert outcome.result == run.NOT_RUN
    assert "lograft-no-such-tool" in run.table([outcome])


def test_command_over_its_time_is_killed_with_its_children(tmp_path: Path) -> None:
    """A command that does not end in time raises, and a child that holds its output does not make the caller wait."""
    command = ("sh", "-c", "sleep 600 & sleep 600")
    with pytest.raises(TimeoutError, match="no end within"):
        toolchains.run_bounded(command, directory=tmp_path, environment=dict(os.environ), timeout_s=0.2)
