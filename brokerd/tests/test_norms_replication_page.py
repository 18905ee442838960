# SPDX-License-Identifier: Apache-2.0
"""The page of normative statements of replication, `docs/normative_replication.md`, compared with the tests that it names."""

from __future__ import annotations

import re
from typing import Final

from metaquorum.tests.norms_page import NormsPage, parse

PAGE: Final = NormsPage(
    name="normative_replication.md",
    identifier=re.compile(r"(?:kip-(?:101|279|497|903)-[a-z]+|kafka-replication)-\d+"),
    tests="brokerd/tests",
)


def test_every_statement_is_named_once_and_shown_by_tests_that_exist() -> None:
    """Identifiers are unique. A statement names existing tests, or says in one line why there is none."""
    rows = PAGE.rows()
    assert len(rows) > 90
    assert PAGE.problems(rows) == []


def test_counts_at_the_head_of_the_page_are_those_of_its_rows() -> None:
    """The counts at the head of the page are never outdated."""
    assert PAGE.counts() in PAGE.text()


def test_every_test_of_a_statement_is_on_the_page() -> None:
    """A test for a statement can be found from the page by the identifier in its docstring."""
    assert PAGE.unnamed() == {}


def test_statement_of_another_page_is_found() -> None:
    """The check is able to fail."""
    (found, *_) = PAGE.problems(parse("| kip-966-isr-1 | So. | 1 | does not apply: no |"))
    assert "not an identifier" in found
