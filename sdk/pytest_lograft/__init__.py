# SPDX-License-Identifier: Apache-2.0
"""The pytest plugin of Lograft: fixtures with real clusters, for the tests of programs that use Lograft.

It comes with the distribution `lograft-server`, and pytest loads it in every run. So it imports nothing but pytest until a
test asks for a fixture, and it has no hooks and no options. It is not part of the package `lograft`, whose import would set
gRPC's environment in runs that do not use Lograft. Each worker of pytest-xdist has its own clusters, on ports and in
directories of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Final

import pytest

if TYPE_CHECKING:
    from lograft.testing import EmbeddedCluster, ProcessCluster

TOPIC_NAME_LENGTH_MAX: Final = 80
"""Characters of a test's name that stand in the names of its topics."""


@pytest.fixture(scope="session")
def lograft_cluster() -> Iterator[EmbeddedCluster]:
    """A cluster in the process of the tests, which all tests share. It ends and disappears with the last test."""
    from lograft.testing import EmbeddedCluster

    with EmbeddedCluster() as cluster:
        yield cluster


@pytest.fixture(scope="session")
def lograft_address(lograft_cluster: EmbeddedCluster) -> str:
    """Bootstrap address of `lograft_cluster`. A conftest.py may replace this fixture to use another cluster."""
    return lograft_cluster.bootstrap


@pytest.fixture
def lograft_make_topic(request: pytest.FixtureRequest, lograft_address: str) -> Iterator[Callable[..., str]]:
    """A function that makes a new topic at `lograft_address` and returns its name. The topics go after the test.

    Its arguments: `partition_count` (default 1), `replication_factor` (default 1) and `configs`.
    """
    import re
    from uuid import uuid4

    from lograft import Admin
    from lograft.errors import UnknownTopicError

    test = re.sub(r"[^a-zA-Z0-9._-]+", "-", request.node.name)[:TOPIC_NAME_LENGTH_MAX].strip("-")
    names: list[str] = []
    with Admin(lograft_address) as admin:

        def make(
            *, partition_count: int = 1, replication_factor: int = 1, configs: Mapping[str, str] | None = None
        ) -> str:
            name = f"{test}-{uuid4().hex[:12]}"
            admin.create_topic(
                name, partition_count=partition_count, replication_factor=replication_factor, configs=configs
            )
            names.append(name)
            return name

        yield make
        for name in names:
            try:
                admin.delete_topic(name)
            except UnknownTopicError:
                # The test has deleted it.
                continue


@pytest.fixture
def lograft_topic(lograft_make_topic: Callable[..., str]) -> str:
    """Name of a new topic with one partition at `lograft_address`."""
    return lograft_make_topic()


@pytest.fixture(scope="session")
def lograft_processes() -> Iterator[ProcessCluster]:
    """Three nodes in processes of their own, which all tests share. Ask for `lograft_three_nodes`, which heals after each test."""
    from lograft.testing import ProcessCluster

    with ProcessCluster() as cluster:
        yield cluster


@pytest.fixture
def lograft_three_nodes(lograft_processes: ProcessCluster) -> Iterator[ProcessCluster]:
    """Three nodes without a fault, in processes of their own. After the test all faults are healed."""
    yield lograft_processes
    lograft_processes.heal()
