# SPDX-License-Identifier: Apache-2.0
"""Settings of one broker process. They are checked when they are created.

Owns their form and the checks. Does not read the environment or the command line: `brokerd.__main__` does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from brokerd.limits import (
    BUDGET_SHARE,
    DEFAULT_BUDGET_BYTES_MAX,
    DEFAULT_FETCH_BUFFER_BYTES_MIN,
    DEFAULT_INFLATE_BYTES_MIN,
    MIN_BUDGET_BYTES,
    PRODUCER_ID_EXPIRATION_MS,
    RETENTION_CHECK_MS,
    RETENTION_CHECK_MS_MAX,
)
from brokerd.memory.process_memory import memory_limit_bytes
from metaquorum.controller.settings import ControllerSettings
from metaquorum.metadata.records import MAX_NODE_ID
from metaquorum.process.settings import Address, SettingsError, check_metrics_listen, parse_address
from metaquorum.replica.quorum_settings import SnapshotSettings
from storage.directory.space import DEFAULT_SOFT_BYTES, MIN_SOFT_BYTES

MAX_EXPIRATION_MS = 2**31 - 1
"""Maximum time for which an idle producer is remembered, inclusive (as in Kafka): about 25 days."""


def budget_bytes(memory_bytes: int, *, least_bytes: int) -> int:
    """Return the default of a memory budget: a share of the memory limit, within bounds."""
    return max(least_bytes, min(memory_bytes // BUDGET_SHARE, DEFAULT_BUDGET_BYTES_MAX))


@dataclass(frozen=True, slots=True, kw_only=True)
class CombinedSettings:
    """Settings of the voter in the same process: its internal port, the address for its peers, and the voters by node id.

    `snapshots` says when the voter makes snapshots of the metadata.
    """

    quorum_listen: Address
    quorum_advertise: Address | None = None
    voters: Mapping[int, str] = field(default_factory=dict[int, str])
    first_start: bool = False
    controller: ControllerSettings = field(default_factory=ControllerSettings)
    snapshots: SnapshotSettings = field(default_factory=SnapshotSettings)


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerSettings:
    """Settings of a broker process.

    Attributes:
        data_directory: directory of metadata and logs.
        more_data_directories: further log directories.
        min_free_bytes: free bytes of a directory below which the broker refuses appends; 0: never.
        node_id: id of this broker, from 0.
        cluster_id: id of the cluster; None: the id in the data directory. An empty directory is formatted only if this is given.
        listen: address of the public listener.
        metrics_listen: address that serves the metrics over HTTP; None: no metrics.
        advertise: address that clients are told; None: the address of the listener.
        quorum_addresses: internal ports at which to find the quorum; empty in combined mode.
        rack: rack; empty: none.
        insecure_plaintext: True allows plaintext on an address that others can reach.
        combined: a voter in the same process, or None.
        producer_id_expiration_ms: milliseconds without a batch after which a partition forgets a producer.
        retention_check_ms: milliseconds between two rounds of retention over all partitions.
        replication_port: internal port, on the host of `listen`; 0: the system chooses one.
        fetch_buffer_max_bytes: maximum bytes read for fetch streams and not yet taken; None: a share of the memory limit.
        inflate_max_bytes: maximum bytes for inflating batches, with all memory that this takes; None: a share of the memory limit.
        staging_max_bytes: maximum bytes of all staging partitions that this broker leads (`ingest.staging.max.bytes`); None: a quarter
            of the disks that hold its log directories.
    """

    data_directory: Path
    node_id: int
    listen: Address
    cluster_id: str | None = None
    advertise: Address | None = None
    metrics_listen: Address | None = None
    quorum_addresses: tuple[str, ...] = ()
    rack: str = ""
    insecure_plaintext: bool = False
    combined: CombinedSettings | None = None
    more_data_directories: tuple[Path, ...] = ()
    min_free_bytes: int = DEFAULT_SOFT_BYTES
    producer_id_expiration_ms: int = PRODUCER_ID_EXPIRATION_MS
    retention_check_ms: int = RETENTION_CHECK_MS
    replication_port: int = 0
    fetch_buffer_max_bytes: int | None = None
    inflate_max_bytes: int | None = None
    staging_max_bytes: int | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.node_id <= MAX_NODE_ID:
            raise SettingsError(f"--node-id {self.node_id} is not between 0 and {MAX_NODE_ID}")
        if self.combined is None and not self.quorum_addresses:
            raise SettingsError("a broker needs --quorum host:port,... to find the quorum, or --combined")
        if self.combined is not None and self.quorum_addresses:
            raise SettingsError("--quorum is for a broker without a voter; with --combined use --voters")
        for address in self.quorum_addresses:
            parse_address(address)
        self._check_directories()
        if not 1 <= self.producer_id_expiration_ms <= MAX_EXPIRATION_MS:
            raise SettingsError(
                f"--producer-id-expiration-ms {self.producer_id_expiration_ms} is not between 1 and {MAX_EXPIRATION_MS}"
            )
        if not 1 <= self.retention_check_ms <= RETENTION_CHECK_MS_MAX:
            raise SettingsError(
                f"--retention-check-ms {self.retention_check_ms} is not between 1 and {RETENTION_CHECK_MS_MAX}"
            )
        budgets = {
            "--fetch-buffer-max-bytes": self.fetch_buffer_max_bytes,
            "--inflate-max-bytes": self.inflate_max_bytes,
        }
        for option, max_bytes in budgets.items():
            if max_bytes is not None and max_bytes < MIN_BUDGET_BYTES:
                raise SettingsError(
                    f"{option} {max_bytes} is less than {MIN_BUDGET_BYTES}; 0 leaves it to the memory limit"
                )
        if self.staging_max_bytes is not None and self.staging_max_bytes < MIN_BUDGET_BYTES:
            raise SettingsError(
                f"--ingest-staging-max-bytes {self.staging_max_bytes} is less than {MIN_BUDGET_BYTES}; 0 leaves it to the disk"
            )
        listeners = [("--listen", self.listen)]
        if self.combined is not None:
            listeners.append(("--quorum-listen", self.combined.quorum_listen))
        for option, place in listeners:
            if not place.is_loopback and not self.insecure_plaintext:
                raise SettingsError(
                    f"{option} {place} is not a loopback address and this build speaks plaintext only: "
                    "listen on 127.0.0.1, or pass --insecure-plaintext if the network is trusted"
                )
        check_metrics_listen(self.metrics_listen, insecure_plaintext=self.insecure_plaintext)
        if self.advertise is not None and (self.advertise.is_wildcard or self.advertise.port == 0):
            raise SettingsError(f"no client can connect to {self.advertise}: advertise a real address and port")
        if self.listen.is_wildcard and self.advertise is None:
            raise SettingsError(f"--listen {self.listen} is every interface: name one with --advertise host:port")

    @property
    def fetch_buffer_bytes(self) -> int:
        """Maximum bytes that are read for fetch streams and not yet taken."""
        if self.fetch_buffer_max_bytes is not None:
            return self.fetch_buffer_max_bytes
        return budget_bytes(memory_limit_bytes(), least_bytes=DEFAULT_FETCH_BUFFER_BYTES_MIN)

    @property
    def inflate_bytes(self) -> int:
        """Maximum bytes of batches that are being inflated."""
        if self.inflate_max_bytes is not None:
            return self.inflate_max_bytes
        return budget_bytes(memory_limit_bytes(), least_bytes=DEFAULT_INFLATE_BYTES_MIN)

    def _check_directories(self) -> None:
        paths = [path.absolute() for path in (self.data_directory, *self.more_data_directories)]
        for number, path in enumerate(paths):
            if path in paths[:number]:
                raise SettingsError(f"--data-dir {path} is given twice")
            if any(path.is_relative_to(other) for other in paths if other != path):
                raise SettingsError(f"--data-dir {path} lies inside another one")
            if "\n" in str(path):
                raise SettingsError(f"--data-dir {str(path)!r} has a line break")
        if self.min_free_bytes != 0 and self.min_free_bytes < MIN_SOFT_BYTES:
            raise SettingsError(
                f"--min-free-bytes {self.min_free_bytes} is less than {MIN_SOFT_BYTES}; 0 switches it off"
            )
