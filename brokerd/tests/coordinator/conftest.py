# SPDX-License-Identifier: Apache-2.0
"""A coordinating broker whose roles reach its runtime."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from brokerd.tests.coordinator.coordinating_broker import CoordinatingBroker, roles_reach


@pytest.fixture
async def here() -> AsyncIterator[CoordinatingBroker]:
    """A broker that is not started yet."""
    made = CoordinatingBroker()
    with roles_reach(made.runtime.note_role):
        yield made
        await made.stop()
