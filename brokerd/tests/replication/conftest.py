# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the tests of streams between brokers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from brokerd.tests.replication.leader_world import LeaderWorld, leader_world


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[LeaderWorld]:
    """A leader that listens, and waits for a slow machine."""
    async with leader_world(tmp_path) as made:
        yield made
