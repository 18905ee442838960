# SPDX-License-Identifier: Apache-2.0
"""A real cluster in this process, and separate topics for every test that requests one."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping

import pytest
from lograft import Admin

_numbers = itertools.count()


@pytest.fixture(scope="session")
def bootstrap() -> Iterator[str]:
    """Address of a cluster that all tests of a session share."""
    # Imported here, because the tests of the wire package must run without an installed server.
    from brokerd.embedded import EmbeddedCluster

    with EmbeddedCluster() as cluster:
        yield cluster.bootstrap


@pytest.fixture(scope="session")
def admin(bootstrap: str) -> Iterator[Admin]:
    """A blocking admin client."""
    with Admin(bootstrap) as client:
        yield client


@pytest.fixture
def make_topic(admin: Admin) -> Callable[..., str]:
    """Make a topic with a unique name. Its records stay, for any age in their timestamps."""

    def make(partition_count: int = 1, configs: Mapping[str, str] | None = None) -> str:
        name = f"topic-{next(_numbers)}"
        kept = {"retention.ms": "-1", **(configs or {})}
        admin.create_topic(name, partition_count=partition_count, configs=kept)
        return name

    return make
