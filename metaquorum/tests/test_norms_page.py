# SPDX-License-Identifier: Apache-2.0
"""The page of normative statements, `docs/normative.md`, against the tests that it names."""

from __future__ import annotations

import ast
import re
from collections import Counter
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).resolve().parents[2]
PAGE: Final = ROOT / "docs" / "normative.md"
IDENTIFIER: Final = re.compile(r"(?:raft-(?:[567](?:\.\d){0,2}|3\.10)-[a-z]|kip-(?:595|853|966|996)-[a-z]+-\d+)")
TEST: Final = re.compile(r"`((?:metaquorum|brokerd|storage)/tests/[a-z0-9_/]+\.py)::(test_\w+)`")
NOT_MET, DOES_NOT_APPLY = "NOT MET: ", "does not apply: "


@dataclass(frozen=True, slots=True)
class Row:
    """One statement: identifier, words, source, and what shows it or why nothing does."""

    identifier: str
    statement: str
    source: str
    shown_by: str

    @property
    def tests(self) -> list[tuple[str, str]]:
        """Path and name of each test that is named."""
        return TEST.findall(self.shown_by)


def parse(text: str) -> list[Row]:
    """Return the rows of all tables of statements in a page."""
    rows: list[Row] = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip().removeprefix("|").removesuffix("|").split("|")]
        if line.startswith("| ") and cells[0].split("-")[0] in ("raft", "kip"):
            rows.append(Row(*cells))
    return rows


@cache
def names_in(path: str) -> frozenset[str]:
    """Return the names of the test functions in a file."""
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return frozenset(node.name for node in tree.body if isinstance(node, kinds) and node.name.startswith("test_"))


def problems(rows: list[Row]) -> list[str]:
    """Return what is wrong with statements, one line each."""
    found = [f"{name}: {count} times" for name, count in Counter(row.identifier for row in rows).items() if count > 1]
    for row in rows:
        if IDENTIFIER.fullmatch(row.identifier) is None:
            found.append(f"{row.identifier}: not an identifier")
        if not row.statement.endswith((".", ".)")) or not row.source:
            found.append(f"{row.identifier}: no sentence, or no source")
        if row.shown_by.startswith((NOT_MET, DOES_NOT_APPLY)):
            continue
        if row.shown_by != "<br>".join(f"`{path}::{name}`" for path, name in row.tests) or not row.tests:
            found.append(f"{row.identifier}: neither tests nor a reason")
        for path, name in row.tests:
            if not (ROOT / path).is_file() or name not in names_in(path):
                found.append(f"{row.identifier}: no test {path}::{name}")
    return found


def test_every_statement_is_named_once_and_shown_by_tests_that_exist() -> None:
    """Identifiers are unique; a statement names tests that are there, or says in one line why there is none."""
    rows = parse(PAGE.read_text(encoding="utf-8"))
    assert len(rows) > 200
    assert problems(rows) == []


def test_counts_at_the_head_of_the_page_are_those_of_its_rows() -> None:
    """Nobody has to count, and nobody is told a number of yesterday."""
    text = PAGE.read_text(encoding="utf-8")
    rows = parse(text)
    not_met = sum(row.shown_by.startswith(NOT_MET) for row in rows)
    without = sum(row.shown_by.startswith(DOES_NOT_APPLY) for row in rows)
    shown = len(rows) - not_met - without
    assert f"{len(rows)} statements: {shown} shown by tests, {without} that do not apply, {not_met} not met." in text


def test_every_test_of_a_statement_is_on_the_page() -> None:
    """A test that was written for a statement is found from the page."""
    named = {test for row in parse(PAGE.read_text(encoding="utf-8")) for test in row.tests}
    own = Path(__file__).name
    for file in sorted((ROOT / "metaquorum" / "tests").glob("test_norms_*.py")):
        path = file.relative_to(ROOT).as_posix()
        missing = {name for name in names_in(path) if (path, name) not in named and file.name != own}
        assert missing <= {"test_every_kind_of_request_is_here"}, f"{path}: {missing} not on the page"


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ("| raft-9-a | It is so. | 9 | does not apply: no |", "not an identifier"),
        ("| raft-5.1-a | it is so | 5.1 | does not apply: no |", "no sentence"),
        ("| raft-5.1-a | It is so. | | does not apply: no |", "no source"),
        ("| raft-5.1-a | It is so. | 5.1 | somebody should |", "neither tests nor a reason"),
        ("| raft-5.1-a | It is so. | 5.1 | |", "neither tests nor a reason"),
        ("| raft-5.1-a | It is so. | 5.1 | `metaquorum/tests/test_norms_page.py::test_it` |", "no test"),
        ("| raft-5.1-a | It is so. | 5.1 | `metaquorum/tests/test_nowhere.py::test_it` |", "no test"),
        ("| kip-595-a-1 | So. | 1 | does not apply: no |\n| kip-595-a-1 | So. | 1 | NOT MET: no |", "2 times"),
    ],
)
def test_bad_row_is_found(row: str, problem: str) -> None:
    """The check is able to fail."""
    (found, *_) = problems(parse(row))
    assert problem in found
