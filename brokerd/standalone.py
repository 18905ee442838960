# SPDX-License-Identifier: Apache-2.0
"""A whole cluster in one process: settings of a combined node that is alone, formatted at its first start.

Owns how such a node is called and where it listens. For development and for embedding.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from brokerd.settings import BrokerSettings, CombinedSettings
from metaquorum.runtime.first_start import format_standalone, is_formatted
from metaquorum.settings import Address
from storage.space import DEFAULT_SOFT_BYTES

NODE_ID: Final = 1
"""Node id of the only node."""

HOST: Final = "127.0.0.1"
"""Address of both listeners."""

STARTING_QUORUM_ADDRESS: Final = f"{HOST}:9641"
"""Quorum address in the first voters' record. Nobody connects to it: the listener takes any free port."""


def standalone_settings(
    data_directory: Path,
    *,
    port: int,
    more_data_directories: tuple[Path, ...] = (),
    min_free_bytes: int = DEFAULT_SOFT_BYTES,
) -> BrokerSettings:
    """Return the settings of a cluster of one, formatting the directory when it is new. Blocks for file access.

    Args:
        data_directory: where logs and metadata live.
        port: public port on the loopback address; 0: any free one.
        more_data_directories: further directories for logs.
        min_free_bytes: see `BrokerSettings`.

    Raises:
        StorageError: the directory cannot be used.
    """
    if not is_formatted(data_directory):
        format_standalone(
            data_directory,
            node_id=NODE_ID,
            cluster_id=f"dev-{os.urandom(6).hex()}",
            address=STARTING_QUORUM_ADDRESS,
        )
    return BrokerSettings(
        data_directory=data_directory,
        more_data_directories=more_data_directories,
        min_free_bytes=min_free_bytes,
        node_id=NODE_ID,
        listen=Address(host=HOST, port=port),
        combined=CombinedSettings(quorum_listen=Address(host=HOST, port=0)),
    )
