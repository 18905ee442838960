# SPDX-License-Identifier: Apache-2.0
"""A broker with its own cluster and several data directories."""

from __future__ import annotations

from pathlib import Path

from brokerd.process.server import BrokerServer
from brokerd.process.standalone import standalone_settings
from brokerd.tests.support import WAIT_S


async def start(tmp_path: Path, *, min_free_bytes: int = 0, more: tuple[str, ...] = ()) -> BrokerServer:
    """Start a broker and wait until it serves. The caller must stop it."""
    settings = standalone_settings(
        tmp_path / "first",
        port=0,
        more_data_directories=tuple(tmp_path / name for name in more),
        min_free_bytes=min_free_bytes,
    )
    server = BrokerServer(settings)
    await server.start()
    await server.wait_serving(timeout_ms=int(WAIT_S * 1000))
    return server
