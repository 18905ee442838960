# SPDX-License-Identifier: Apache-2.0
"""Both disks pass the same suite."""

from __future__ import annotations

from pathlib import Path

import pytest

from storage.files.disk import Disk
from storage.files.posix import PosixDisk
from storage.testing.conformance import DiskConformance
from storage.testing.sim_disk import SimDisk


class TestPosixDisk(DiskConformance):
    @pytest.fixture
    def disk(self) -> Disk:
        return PosixDisk()

    @pytest.fixture
    def root(self, tmp_path: Path) -> str:
        return str(tmp_path)


class TestSimDisk(DiskConformance):
    @pytest.fixture
    def disk(self) -> Disk:
        disk = SimDisk()
        disk.make_directory("/root")
        return disk

    @pytest.fixture
    def root(self) -> str:
        return "/root"
