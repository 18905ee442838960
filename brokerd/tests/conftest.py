# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the tests over real gRPC."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from brokerd.process.server import BrokerServer
from brokerd.tests.support import Client, connected, running_broker


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[BrokerServer]:
    """A fresh cluster of one node."""
    async with running_broker(tmp_path / "data") as server:
        yield server


@pytest.fixture
async def client(broker: BrokerServer) -> AsyncIterator[Client]:
    """A client of the fresh cluster."""
    async with connected(broker) as connection:
        yield connection
