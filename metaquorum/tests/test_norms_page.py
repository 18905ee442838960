# SPDX-License-Identifier: Apache-2.0
"""The page of normative statements of the quorum, `docs/normative.md`, against the tests that it names."""

from __future__ import annotations

import re
from typing import Final

import pytest

from metaquorum.tests.norms_page import NormsPage, parse

PAGE: Final = NormsPage(
    name="normative.md",
    identifier=re.compile(r"(?:raft-(?:[567](?:\.\d){0,2}|3\.10)-[a-z]|kip-(?:595|853|966|996)-[a-z]+-\d+)"),
    tests="metaquorum/tests",
)


def test_every_statement_is_named_once_and_shown_by_tests_that_exist() -> None:
    """Identifiers are unique; each statement names existing tests, or says in one line why it has none."""
    rows = PAGE.rows()
    assert len(rows) > 200
    assert PAGE.problems(rows) == []


def test_counts_at_the_head_of_the_page_are_those_of_its_rows() -> None:
    """The counts are never out of date."""
    assert PAGE.counts() in PAGE.text()


def test_every_test_of_a_statement_is_on_the_page() -> None:
    """Each test that was written for a statement is named on the page."""
    missing = {name for names in PAGE.unnamed().values() for name in names}
    assert missing <= {"test_every_kind_of_request_is_here"}, PAGE.unnamed()


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
    (found, *_) = PAGE.problems(parse(row))
    assert problem in found
