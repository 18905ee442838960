# SPDX-License-Identifier: Apache-2.0
"""Children of real programs that fork while clients work end as intended and can work: a few of each case of `make forks`."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from integration_tests.harness.cluster import DevServer
from integration_tests.scenarios.forks.run import Case, all_cases, run_case

CHILDREN = 6
QUICK = [case for case in all_cases() if case.load == "busy" and (case.kind == "blocking" or case.way == "exit")]


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """Address of a cluster in its own process."""
    with tempfile.TemporaryDirectory(prefix="lograft-forks-") as name, DevServer(Path(name)) as server:
        yield server.bootstrap


@pytest.mark.process
@pytest.mark.parametrize("case", [case for case in QUICK if case.way != "spark"], ids=str)
def test_children_end_as_they_wish_and_deliver(address: str, case: Case) -> None:
    """Under load: clean statuses, a record of each child in the log, inherited clients refused, nothing printed."""
    assert run_case(case, CHILDREN, address).problems == []


@pytest.mark.spark
@pytest.mark.parametrize("case", [case for case in QUICK if case.way == "spark"], ids=str)
def test_python_workers_of_spark_end_as_they_wish_and_deliver(address: str, case: Case) -> None:
    """Forked from a daemon that has clients, below a driver that has some."""
    assert run_case(case, CHILDREN, address).problems == []
