# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the tests of the commands."""

from __future__ import annotations

from pathlib import Path

import pytest

from storage.directory.data_directory import DataDirectory
from storage.files.posix import PosixDisk
from storage.testing.builders import append, open_log
from storage.tests.inspect.logs import make_log


@pytest.fixture
def sealed_directory(tmp_path: Path) -> Path:
    return make_log(tmp_path, sealed=True)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A formatted data directory with a metadata log and a partition."""
    root = tmp_path / "data"
    disk = PosixDisk()
    DataDirectory.create(disk, str(root), cluster_id="c", node_id=1, directory_id=bytes(16)).close()
    log = open_log(disk, f"{root}/metadata/log").log
    append(log, [b"metadata"])
    log.close()
    make_log(root / "partitions")
    (root / "partitions" / f"{'0a' * 16}-1.1700000000000.removed").mkdir()
    return root
