# SPDX-License-Identifier: Apache-2.0
"""A coordinating broker."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from brokerd.tests.coordinator.coordinating_broker import CoordinatingBroker


@pytest.fixture
async def here() -> AsyncIterator[CoordinatingBroker]:
    """A broker that is not started yet."""
    made = CoordinatingBroker()
    yield made
    await made.stop()
