# SPDX-License-Identifier: Apache-2.0
"""The example programs of README and docs run unchanged and print nothing to standard error."""

from __future__ import annotations

import pytest
from lograft import Admin
from tests.examples import examples, run

PROGRAMS = [
    (f"{document}, {number}", program)
    for document in ("README.md", "docs/sdk.md")
    for number, program in enumerate(examples(document, "from lograft import"), start=1)
]


def test_there_are_examples() -> None:
    """README has one program, the page of the SDK four."""
    assert [name for name, _ in PROGRAMS] == ["README.md, 1", *(f"docs/sdk.md, {number}" for number in range(1, 5))]


@pytest.mark.process
@pytest.mark.parametrize("name", [name for name, _ in PROGRAMS])
def test_examples_print_nothing_to_standard_error(bootstrap: str, admin: Admin, name: str) -> None:
    """Neither Lograft nor gRPC prints anything, not even at the end of the program."""
    topics = [each.topic for each in admin.list_topics()]
    for topic, count in (("events", 6), ("orders", 6)):
        if topic not in topics:
            admin.create_topic(topic, partition_count=count)
    program = dict(PROGRAMS)[name]
    if "create_topic" in program:
        admin.delete_topic("orders")
    assert run(program, bootstrap) == ""
