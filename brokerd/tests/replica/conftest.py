# SPDX-License-Identifier: Apache-2.0
"""Brokers without a network: a replica manager over simulated disks, and metadata that a test commits."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from brokerd.tests.replica.broker_of_three import BrokerOfThree
from brokerd.tests.replica.lone_broker import LoneBroker, empty_disk


@pytest.fixture
async def lone() -> AsyncIterator[LoneBroker]:
    """A registered broker over an empty disk; its partitions have no other replica."""
    made = LoneBroker(empty_disk("/data"))
    made.register()
    await made.manager.start()
    yield made
    await made.manager.stop()


@pytest.fixture
async def three() -> AsyncIterator[BrokerOfThree]:
    """A broker with one partition of three replicas."""
    made = BrokerOfThree()
    yield made
    await made.manager.stop()
