# SPDX-License-Identifier: Apache-2.0
"""What a coordinator has loaded is exempt from garbage collection."""

from __future__ import annotations

import gc
from unittest import mock

from brokerd.coordinator import partition as partition_module
from brokerd.loaded_heap import keep_loaded
from brokerd.tests.coordinator.coordinating_broker import CoordinatingBroker
from brokerd.tests.coordinator.register_core import Increment


async def test_loaded_state_is_frozen_in_steps() -> None:
    """The hook is called after each so many loaded records, and never while commands are handled."""
    broker = CoordinatingBroker()
    calls = 0

    def keep() -> None:
        nonlocal calls
        calls += 1
        keep_loaded()

    broker.runtime.keep_loaded = keep
    await broker.start()
    try:
        for number in range(40):
            await broker.submit(Increment(f"r{number}"))
        assert calls == 0
        with mock.patch.object(partition_module, "LOAD_KEEP_RECORDS", 10):
            await broker.lead_again()
        assert 1 <= calls <= broker.partition.loaded_records // 10
        assert broker.registers == {f"r{number}": 1 for number in range(40)}
        frozen = gc.get_freeze_count()
        assert frozen > 0
    finally:
        gc.unfreeze()
        await broker.stop()
