# SPDX-License-Identifier: Apache-2.0
"""What a start may load. Times depend on the machine; which modules are imported does not."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import typer
from lograft.cli.app import OWN_COMMANDS, SERVER_COMMANDS, make_app

LIMIT_S = 300.0
"""Seconds for one program. Nothing here is timed, and the machine may be busy."""

HEAVY = ("grpc", "asyncio", "google.protobuf", "typer", "rich", "click", "pyspark", "pyarrow", "h2", "pytest")
SERVERS = ("brokerd", "metaquorum", "storage", "rocksdict", "numpy", "uvloop")


def loaded(code: str, *arguments: str) -> set[str]:
    """Return the modules that a program has loaded at its end."""
    program = (
        "import atexit, json, sys\n"
        "atexit.register(lambda: print('\\n' + json.dumps(sorted(sys.modules)), file=sys.stderr))\n" + code
    )
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments], capture_output=True, text=True, timeout=LIMIT_S, check=True
    )
    return set(json.loads(done.stderr.splitlines()[-1]))


def test_import_of_the_package_loads_no_client_and_no_grpc() -> None:
    """`import lograft` names its classes only."""
    modules = loaded("import lograft")
    assert not modules & {*HEAVY, *SERVERS}
    assert {each for each in modules if each.startswith("lograft.")} <= {
        "lograft._client",
        "lograft._client.forks",
    }


def test_import_of_the_client_classes_loads_no_grpc() -> None:
    """Nor what only the command line, Spark, Arrow or forked children need."""
    names = ("Producer", "Consumer", "Admin", "aio.Producer", "aio.Consumer", "aio.Admin")
    modules = loaded("import lograft\n" + "\n".join(f"lograft.{name}" for name in names))
    assert not modules & {"grpc", "typer", "rich", "click", "pyspark", "pyarrow", "h2", *SERVERS}
    assert not loaded("from lograft import Producer") & {"grpc", "asyncio"}


@pytest.mark.parametrize("name", ["Producer", "Consumer", "Admin"])
def test_a_client_loads_grpc_after_the_variable_is_set(name: str) -> None:
    """The variable for its fork support is read when it is loaded."""
    code = (
        "import os, sys, lograft\n"
        f"kind = lograft.{name}\n"
        "assert 'grpc' not in sys.modules and os.environ['GRPC_ENABLE_FORK_SUPPORT'] == 'false'\n"
        "kind('127.0.0.1:1')\n"
    )
    assert "grpc" in loaded(code)


def test_a_fork_waits_for_the_modules_of_a_client() -> None:
    """A child that was forked while a thread loads modules would wait for ever for that thread's module lock."""
    code = """
import os, threading
from lograft._client import forks
inside, forked = threading.Event(), threading.Event()
seen = []
def load():
    with forks.loading():
        inside.set()
        seen.append(forked.wait(0.5))
thread = threading.Thread(target=load)
thread.start()
inside.wait()
child = os.fork()
if child == 0:
    with forks.loading():
        os._exit(7)
forked.set()
thread.join()
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
assert seen == [False], "the fork did not wait"
"""
    loaded(code)


@pytest.mark.parametrize("arguments", [["--help"], ["--version"]])
def test_help_of_the_program_loads_no_client_no_server_and_no_command(arguments: list[str]) -> None:
    """The list of commands comes from a table."""
    modules = loaded(f"from lograft.cli import main\ntry:\n  main({arguments})\nexcept SystemExit: pass")
    assert not modules & {"grpc", "asyncio", "google.protobuf", "pyspark", "pyarrow", *SERVERS}
    commands = {f"lograft.cli.{name}" for name in OWN_COMMANDS}
    assert not modules & {"lograft.admin", "lograft.producer", "lograft.consumer", *commands}


def test_listing_loads_no_rich_and_no_server(bootstrap: str) -> None:
    """A table needs neither rich nor what other commands need."""
    code = (
        f"from lograft.cli import main\ntry:\n  main(['topics', 'list', '-b', '{bootstrap}'])\nexcept SystemExit: pass"
    )
    modules = loaded(code)
    assert not modules & {"rich", "pyspark", "pyarrow", "lograft.producer", "lograft.consumer", *SERVERS}


def test_help_of_a_group_and_of_dev_load_no_more_than_they_need() -> None:
    """`topics --help` needs no gRPC, and the parent of several nodes no server."""
    code = "from lograft.cli import main\ntry:\n  main(['topics', '--help'])\nexcept SystemExit: pass"
    assert not loaded(code) & {"grpc", *SERVERS}
    assert not loaded("import brokerd.process.dev") & {"grpc", "asyncio", "numpy", "rocksdict", "metaquorum"}


def test_list_of_commands_says_what_the_commands_say() -> None:
    """The table has the beginning of the first line of each command's help."""
    group: Any = typer.main.get_command(make_app())
    table = {**{name: place.help or "" for name, place in OWN_COMMANDS.items()}, **SERVER_COMMANDS}
    lines = {name: group.commands[name].help.split("\n\n")[0].replace("\n", " ") for name in table}
    assert not [name for name, text in table.items() if not text or not lines[name].startswith(text.rstrip("."))]
    assert all(not group.commands[name].hidden for name in table)


def test_every_group_has_help_for_every_command() -> None:
    """No command and no option is without an explanation."""

    def walk(words: str, command: Any) -> Iterator[str]:
        if not command.help:
            yield words
        for each in getattr(command, "commands", {}).values():
            yield from walk(f"{words} {each.name}", each)

    assert not list(walk("lograft", typer.main.get_command(make_app())))
