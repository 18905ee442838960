# SPDX-License-Identifier: Apache-2.0
"""Completion in three shells: commands, options, and the names that the cluster knows; silence without a cluster."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable

import pytest

COMMAND = (sys.executable, "-c", "from lograft.cli import main; main()")
LIMIT_S = 300.0


def complete(words: str, *, bootstrap: str = "127.0.0.1:1", shell: str = "bash") -> list[str]:
    """Return what a shell is told for words; a space at the end begins a new one."""
    given = words.split(" ")
    environment = {**os.environ, "LOGRAFT_BOOTSTRAP": bootstrap, "_LOGRAFT_COMPLETE": f"complete_{shell}"}
    if shell == "bash":
        environment |= {"COMP_WORDS": words, "COMP_CWORD": str(len(given) - 1)}
    else:
        environment |= {"_TYPER_COMPLETE_ARGS": words, "_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    done = subprocess.run(COMMAND, capture_output=True, text=True, timeout=LIMIT_S, env=environment, check=True)
    assert done.stderr == ""
    return done.stdout.split()


def test_commands_and_options_are_completed_without_a_cluster() -> None:
    """Commands of the table, of a group, and options."""
    assert complete("lograft to") == ["topics"]
    assert complete("lograft topics de") == ["describe", "delete"]
    assert complete("lograft consume --fo") == ["--follow", "--format"]
    assert complete("lograft ingest ") == ["list", "show", "abort"]
    assert complete("lograft ingest --or") == ["--order-by-time"]
    assert complete("lograft ingest orders.csv --or") == ["--order-by-time"]
    assert complete("lograft ingest list --st") == ["--state"]
    assert complete("lograft replay --until-") == ["--until-offset"]


def test_names_of_the_cluster_are_completed(bootstrap: str, make_topic: Callable[..., str]) -> None:
    """Topics, partitions and configs."""
    topic = make_topic(2)
    assert complete(f"lograft topics describe {topic[:-1]}", bootstrap=bootstrap).count(topic) == 1
    assert complete(f"lograft partitions elect {topic}:", bootstrap=bootstrap) == [f"{topic}:0", f"{topic}:1"]
    assert complete("lograft configs set retention.m", bootstrap=bootstrap) == ["retention.ms="]
    assert complete("lograft configs unset -t x retention.m", bootstrap=bootstrap) == ["retention.ms"]
    assert complete("lograft brokers describe ", bootstrap=bootstrap) == ["1"]
    assert complete(f"lograft ingest orders.csv --topic {topic[:-1]}", bootstrap=bootstrap).count(topic) == 1


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_get_topics_too(bootstrap: str, make_topic: Callable[..., str], shell: str) -> None:
    """In the form of the shell."""
    topic = make_topic()
    assert any(topic in word for word in complete(f"lograft consume {topic}", bootstrap=bootstrap, shell=shell))


@pytest.mark.parametrize("bootstrap", ["127.0.0.1:1", "nonsense", "256.0.0.1:9"])
def test_without_a_cluster_nothing_is_completed_and_nothing_is_said(bootstrap: str) -> None:
    """No server, no name, no port: silence."""
    assert complete("lograft topics describe ", bootstrap=bootstrap) == []
