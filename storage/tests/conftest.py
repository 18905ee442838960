# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the storage tests."""

from __future__ import annotations

import pytest

from storage.log.partition_log import PartitionLog
from storage.testing.builders import open_log
from storage.testing.sim_disk import SimDisk


@pytest.fixture
def disk() -> SimDisk:
    """A simulated disk with an empty directory `/data`."""
    made = SimDisk()
    made.make_directory("/data")
    made.sync_directory("/")
    return made


@pytest.fixture
def log(disk: SimDisk) -> PartitionLog:
    """A new log with small segments in `/data/log`."""
    return open_log(disk, "/data/log").log
