# SPDX-License-Identifier: Apache-2.0
"""Every example of the documentation site runs against a real `lograft dev`, and prints what the page shows.

A page is one program. Its blocks run in order, in one namespace and one folder:

* `python` runs here. With the name of a file as its caption it is saved as that file instead.
* `sh` runs in bash.
* `output` is all that the block before it prints. `...` stands for any text, and any id or time for any other. A block without it
  prints nothing.
* `console` is what no test can run. Its commands are those of NOT_RUN.
* `py` is a program for another client library. It must compile.
"""

from __future__ import annotations

import contextlib
import doctest
import io
import os
import re
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from lograft import Admin
from sybil import Document, Example
from sybil.evaluators.python import PythonEvaluator
from sybil.example import SybilFailure
from sybil.parsers.myst import CodeBlockParser

from integration_tests.harness.cluster import DevServer

SITE = Path(__file__).resolve().parents[3] / "docs" / "site"
ADDRESS: Final = "127.0.0.1:9640"
"""The address of `lograft dev` in every page. The tests put that of their own cluster in its place."""

DATA: Final = "./data"
"""The data directory of `lograft dev` in every page."""

SHELL_TIMEOUT_S: Final = 300
LANGUAGES: Final = frozenset(
    {"{image}", "python", "sh", "output", "console", "py", "text", "json", "{eval-rst}", "{toctree}"}
)
NOT_RUN: Final = (
    "pip install ",
    "python3 -m venv ",
    "lograft dev",
    "lograft ingest s3a://",
    "docker ",
    "kubectl ",
    "grpcurl ",
    "protoc ",
)
"""Commands that need a network, another machine, or never end. The output of `lograft dev` has a test of its own."""

PAGES = sorted(SITE.rglob("*.md"))
_VARIES = re.compile(r"\b[0-9a-f]{32}\b|\b\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")
"""Ids and times."""

_FENCE = re.compile(r"^ *(```+)(\{code-block\} )?([\w{}-]*)", re.MULTILINE)


def _languages(text: str) -> list[str]:
    """Return the language of each block of a page."""
    return [language for _, _, language in _FENCE.findall(text)[::2]]


def _programs() -> Iterator[object]:
    """Yield the pages with programs, as parameters of a test."""
    for page in PAGES:
        text = page.read_text()
        if {"python", "sh", "py"} & set(_languages(text)):
            uses_spark = ("lograft.spark" in text and "```python" in text) or "\nlograft replay" in text
            marks = [pytest.mark.spark] if uses_spark else []
            yield pytest.param(page, id=page.relative_to(SITE).as_posix(), marks=marks)


class Page:
    """A page under test.

    Args:
        path: the page.
        text: its text, with the address of the cluster.
        folder: an empty folder, in which shell commands run and files are saved.
        environment: environment of the shell.
    """

    def __init__(self, path: Path, text: str, folder: Path, environment: dict[str, str]) -> None:
        self._folder = folder
        self._environment = environment
        self._printed = ""
        self._printer: Example | None = None
        self._document = Document(text, str(path))
        self._document.namespace["__name__"] = "example"
        blocks = {"python": self._python, "sh": self._shell, "output": self._output, "py": self._compile}
        for language, evaluate in blocks.items():
            for region in CodeBlockParser(language, evaluate)(self._document):
                self._document.add(region)

    def run(self) -> int:
        """Run the blocks and return how many ran."""
        count = 0
        for example in self._document.examples():
            example.evaluate()
            count += 1
        self._end_block()
        return count

    def _python(self, example: Example) -> None:
        self._end_block()
        name = (example.region.lexemes.get("options") or {}).get("caption", "")
        if name.endswith(".py"):
            (self._folder / name).write_text(example.parsed)
            return
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed), contextlib.chdir(self._folder):
            PythonEvaluator()(example)
        self._printer, self._printed = example, printed.getvalue()

    def _shell(self, example: Example) -> None:
        self._end_block()
        command = ["bash", "-eu", "-o", "pipefail", "-c", example.parsed]
        done = subprocess.run(
            command,
            cwd=self._folder,
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=SHELL_TIMEOUT_S,
            check=False,
        )
        if done.returncode != 0:
            raise SybilFailure(example, f"ended with {done.returncode}:\n{done.stdout}")
        self._printer, self._printed = example, done.stdout

    def _output(self, example: Example) -> None:
        if self._printer is None:
            raise SybilFailure(example, "shows the output of no block")
        problem = difference(example.parsed, self._printed)
        if problem:
            raise SybilFailure(example, problem)
        self._printer = None

    def _compile(self, example: Example) -> None:
        self._end_block()
        compile(example.parsed, example.path, "exec", dont_inherit=True)

    def _end_block(self) -> None:
        if self._printer is not None and self._printed:
            raise SybilFailure(self._printer, f"prints what the page does not show:\n{self._printed}")
        self._printer = None


def difference(shown: str, printed: str) -> str:
    """Return how a printed text differs from the one that a page shows; empty if it does not."""
    shown, printed = (
        "".join(_VARIES.sub(lambda found: "#" * len(found[0]), line.rstrip()) + "\n" for line in text.splitlines())
        for text in (shown, printed)
    )
    checker, flags = doctest.OutputChecker(), doctest.ELLIPSIS | doctest.REPORT_NDIFF
    if checker.check_output(shown, printed, flags):
        return ""
    return checker.output_difference(doctest.Example("", shown), printed, flags)


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DevServer]:
    """A `lograft dev` in its own process, for all pages but those that list ingests."""
    with DevServer(tmp_path_factory.mktemp("site")) as started:
        yield started


@pytest.fixture
def bootstrap(page: Path, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of a cluster that has no topics and, for a page that lists ingests, no ingests of another page."""
    if "lograft ingest list" in page.read_text():
        # An ingest outlives its topic, until its time to live is over.
        with DevServer(tmp_path_factory.mktemp("own")) as own:
            yield own.bootstrap
        return
    server = request.getfixturevalue("server")
    yield server.bootstrap
    with Admin(server.bootstrap) as admin:
        for each in admin.list_topics():
            admin.delete_topic(each.topic)


@pytest.fixture(scope="session")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the program `lograft`, to be put in front of the PATH."""
    folder = tmp_path_factory.mktemp("bin")
    program = folder / "lograft"
    program.write_text(f"#!{sys.executable}\nfrom lograft.cli import main\nmain()\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return folder


@pytest.mark.process
@pytest.mark.parametrize("page", list(_programs()))
def test_page_prints_what_it_shows(page: Path, bootstrap: str, programs: Path, tmp_path: Path) -> None:
    """The page's blocks run in order without an error, and each prints exactly what the page shows under it."""
    path = os.pathsep.join([str(programs), str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = {**os.environ, "PATH": path, "LOGRAFT_BOOTSTRAP": bootstrap, "COLUMNS": "100"}
    assert Page(page, page.read_text().replace(ADDRESS, bootstrap), tmp_path, environment).run() > 0


@pytest.mark.process
def test_quickstart_shows_what_lograft_dev_prints(server: DevServer) -> None:
    """The output of `lograft dev` in the quickstart is that of the real command, but for address and directory."""
    block = re.search(r"```console\n\$ lograft dev [^\n]*\n(.*?)```", (SITE / "quickstart.md").read_text(), re.DOTALL)
    assert block is not None
    # A busy machine may add warnings of the log, which go to standard error.
    printed = re.sub(r"^\d{4}-\d\d-\d\d .*\n", "", server.process.log_text(), flags=re.MULTILINE)
    printed = printed.replace(str(server.directory / "data"), DATA)
    # On its usual port the command leaves out the option that names the port.
    printed = printed.replace(f" --bootstrap {server.bootstrap}", "").replace(server.bootstrap, ADDRESS)
    assert not difference(block[1], printed)


def test_every_block_runs_or_says_why_not() -> None:
    """Each block has a known language, and only commands of NOT_RUN stand in blocks that no test runs."""
    problems: list[str] = []
    for page in PAGES:
        text = page.read_text()
        problems += [f"{page}: {each!r}" for each in _languages(text) if each not in LANGUAGES]
        for block in re.findall(r"^ *```console\n(.*?)^ *```", text, re.DOTALL | re.MULTILINE):
            commands = [line[2:] for line in block.splitlines() if line.startswith("$ ")]
            problems += [f"{page}: {command}" for command in commands if not command.startswith(NOT_RUN)]
            problems += [] if commands else [f"{page}: a console block without a command"]
    assert not problems, "\n".join(problems)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("```python\nprint(1)\n```\n\n```output\n1\n```\n", None),
        ("```python\nprint(1)\n```\n\n```output\n2\n```\n", "Differences"),
        ("```python\nprint(12)\n```\n\n```output\n1...\n```\n", None),
        ("```python\nprint(1)\n```\n", "does not show"),
        ("```python\nprint(1)\n```\n\n```python\nx = 1\n```\n", "does not show"),
        ("```python\nx = 1\n```\n\n```output\n1\n```\n", "Differences"),
        ("```output\n1\n```\n", "no block"),
        ("```sh\necho a\n```\n\n```output\na\n```\n", None),
        (
            f"```sh\necho {'a' * 32} 2026-01-01T00:00:00.000Z\n```\n\n```output\n{'b' * 32} 2027-02-02T11:11:11.111Z\n```\n",
            None,
        ),
        ("```sh\nfalse | true\n```\n", "ended with 1"),
        (
            "```{code-block} python\n:caption: a.py\n\nprint(3)\n```\n\n```sh\ncat a.py\n```\n\n```output\nprint(3)\n```\n",
            None,
        ),
    ],
)
def test_wrong_example_is_found(text: str, problem: str | None, tmp_path: Path) -> None:
    """A page whose example fails, or prints anything else than the page shows, fails its test."""
    page = Page(Path("page.md"), text, tmp_path, dict(os.environ))
    if problem is None:
        assert page.run() > 0
    else:
        with pytest.raises(SybilFailure, match=problem):
            page.run()
