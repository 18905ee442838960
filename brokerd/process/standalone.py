# SPDX-License-Identifier: Apache-2.0
"""A whole cluster in one process: the settings of a single combined node, which is formatted at its first start.

Owns the name and the addresses of such a node. For development and for embedding.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from brokerd.process.settings import BrokerSettings, CombinedSettings
from metaquorum.controller.settings import ControllerSettings
from metaquorum.process.settings import Address, SettingsError
from metaquorum.replica.first_start import format_standalone, is_formatted, read_initial_voters
from storage.directory.data_directory import DataDirectory
from storage.directory.space import DEFAULT_SOFT_BYTES
from storage.files.names import METADATA_DIRECTORY
from storage.files.posix import PosixDisk

NODE_ID: Final = 1
"""Node id of the only node."""

HOST: Final = "127.0.0.1"
"""Address of both listeners."""

STARTING_QUORUM_ADDRESS: Final = f"{HOST}:9641"
"""Quorum address in the first voters record. No server connects to it: the listener takes any free port."""


def standalone_settings(
    data_directory: Path,
    *,
    port: int,
    more_data_directories: tuple[Path, ...] = (),
    min_free_bytes: int = DEFAULT_SOFT_BYTES,
) -> BrokerSettings:
    """Return the settings of a cluster of one node. Formats a new directory. Blocks for file access.

    Args:
        data_directory: directory of logs and metadata.
        port: public port on the loopback address; 0: any free port.
        more_data_directories: further log directories.
        min_free_bytes: as in `BrokerSettings`.

    Raises:
        StorageError: the directory cannot be used.
        SettingsError: the directory belongs to a cluster with other voters, for which the node would wait forever.
    """
    if not is_formatted(data_directory):
        format_standalone(
            data_directory,
            node_id=NODE_ID,
            cluster_id=f"dev-{os.urandom(6).hex()}",
            address=STARTING_QUORUM_ADDRESS,
        )
    else:
        _check_alone(data_directory)
    return BrokerSettings(
        data_directory=data_directory,
        more_data_directories=more_data_directories,
        min_free_bytes=min_free_bytes,
        node_id=NODE_ID,
        listen=Address(host=HOST, port=port),
        # No other broker will join, so requests that need more brokers are refused at once.
        combined=CombinedSettings(
            quorum_listen=Address(host=HOST, port=0), controller=ControllerSettings(broker_arrival_ms=0)
        ),
    )


def _check_alone(data_directory: Path) -> None:
    disk, path = PosixDisk(), str(data_directory.absolute())
    meta = DataDirectory.read_meta(disk, path)
    voters = read_initial_voters(disk, f"{path}/{METADATA_DIRECTORY}").voters
    if meta is None or [voter.key.node_id for voter in voters] == [NODE_ID] == [meta.node_id]:
        return
    members = ", ".join(f"{voter.key.node_id}@{voter.address}" for voter in voters) or "none: it joined a quorum later"
    raise SettingsError(
        f"{path} belongs to node {meta.node_id} of cluster {meta.cluster_id!r} (voters: {members}), not to a cluster of one node: "
        "start that node as it was started before (`brokerd run`, `metaquorum run`), or name another directory"
    )
