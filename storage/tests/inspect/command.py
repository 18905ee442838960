# SPDX-License-Identifier: Apache-2.0
"""Runs `lograft log` in this process, for the tests of the commands."""

from __future__ import annotations

import json
from typing import Any

from typer.testing import CliRunner

from storage.inspect.cli import log_app


def run(*arguments: object) -> tuple[int, str, str]:
    """Run a command line; return exit code, standard output and standard error."""
    result = CliRunner().invoke(log_app, [str(argument) for argument in arguments], env={"COLUMNS": "300"})
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.stdout, result.stderr


def rows(*arguments: object) -> list[dict[str, Any]]:
    """Run a command line with --json; return its lines."""
    code, out, err = run(*arguments, "--json")
    assert err == ""
    assert code in (0, 1)
    return [json.loads(line) for line in out.splitlines()]
