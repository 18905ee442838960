# SPDX-License-Identifier: Apache-2.0
"""Reads the pages of normative statements in `docs/`, and finds their mistakes."""

from __future__ import annotations

import ast
import re
from collections import Counter
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
TEST: Final = re.compile(r"`((?:metaquorum|brokerd|storage)/tests/[a-z0-9_/]+\.py)::(test_\w+)`")
NOT_MET, DOES_NOT_APPLY = "NOT MET: ", "does not apply: "


@dataclass(frozen=True, slots=True)
class Row:
    """One statement: identifier, words, source, and its test or why it has none."""

    identifier: str
    statement: str
    source: str
    shown_by: str

    @property
    def tests(self) -> list[tuple[str, str]]:
        """Path and name of each test that is named."""
        return TEST.findall(self.shown_by)


@dataclass(frozen=True, slots=True)
class NormsPage:
    """A page.

    Attributes:
        name: file name in `docs/`.
        identifier: pattern of the identifiers on it.
        tests: folder of the tests of statements alone, `test_norms_*.py`, from the root of the repository.
    """

    name: str
    identifier: re.Pattern[str]
    tests: str

    def text(self) -> str:
        """Return the page."""
        return (ROOT / "docs" / self.name).read_text(encoding="utf-8")

    def rows(self) -> list[Row]:
        """Return the statements."""
        return parse(self.text())

    def problems(self, rows: list[Row]) -> list[str]:
        """Return what is wrong with the statements, one line each."""
        found = [
            f"{name}: {count} times" for name, count in Counter(row.identifier for row in rows).items() if count > 1
        ]
        for row in rows:
            if self.identifier.fullmatch(row.identifier) is None:
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

    def counts(self) -> str:
        """Return the sentence that the page must have about its own numbers."""
        rows = self.rows()
        not_met = sum(row.shown_by.startswith(NOT_MET) for row in rows)
        without = sum(row.shown_by.startswith(DOES_NOT_APPLY) for row in rows)
        shown = len(rows) - not_met - without
        return f"{len(rows)} statements: {shown} shown by tests, {without} that do not apply, {not_met} not met."

    def unnamed(self) -> dict[str, set[str]]:
        """Return the tests for statements that no statement names, by file; tests of the pages themselves do not count."""
        named = {test for row in self.rows() for test in row.tests}
        missing: dict[str, set[str]] = {}
        for file in sorted((ROOT / self.tests).rglob("test_norms_*.py")):
            path = file.relative_to(ROOT).as_posix()
            if not path.endswith("page.py"):
                missing[path] = {name for name in names_in(path) if (path, name) not in named}
        return {path: names for path, names in missing.items() if names}


def parse(text: str) -> list[Row]:
    """Return the rows of all tables of statements in a page."""
    rows: list[Row] = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip().removeprefix("|").removesuffix("|").split("|")]
        if line.startswith("| ") and cells[0].split("-")[0] in ("raft", "kip", "kafka"):
            rows.append(Row(*cells))
    return rows


@cache
def names_in(path: str) -> frozenset[str]:
    """Return the names of the test functions in a file."""
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return frozenset(node.name for node in tree.body if isinstance(node, kinds) and node.name.startswith("test_"))
