# SPDX-License-Identifier: Apache-2.0
"""Settings of a quorum server, and the parsing of addresses and voter lists.

Owns the settings, and their checks before anything is opened. Does not read the environment or the command line: `__main__.py` does.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from metaquorum.controller.settings import ControllerSettings
from metaquorum.metadata.records import MAX_NODE_ID
from metaquorum.raft_codec.wire_fields import MAX_PORT
from metaquorum.replica.quorum_node import QuorumTimers, SnapshotSettings

_CLUSTER_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")

MAX_VOTERS = 9
"""Largest number of voters; more would make commits slower without any useful safety."""


class SettingsError(Exception):
    """A setting is wrong; the message names it and its valid values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """A host and a port. Port 0 means that the system chooses one."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def is_loopback(self) -> bool:
        """True if only processes of this machine can reach it. False for a name other than localhost."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    @property
    def is_wildcard(self) -> bool:
        """True if it means all addresses of the machine, so that no other machine can use it to connect."""
        try:
            return ipaddress.ip_address(self.host).is_unspecified
        except ValueError:
            return False


def parse_address(text: str) -> Address:
    """Return the address of a text `host:port`, or `[address]:port` for IPv6.

    Raises:
        SettingsError: the text has neither form.
    """
    host, separator, port = text.strip().rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise SettingsError(f"address {text!r}: write an IPv6 address as [address]:port")
    plain = separator and host and port.isascii() and port.isdigit()
    if not plain or len(port) > len(str(MAX_PORT)) or int(port) > MAX_PORT:
        raise SettingsError(f"address {text!r} is not host:port with a port from 0 to {MAX_PORT}")
    return Address(host=host, port=int(port))


def check_cluster_id(cluster_id: str) -> None:
    """Return if a cluster id is valid.

    Raises:
        SettingsError: it is invalid.
    """
    if _CLUSTER_ID.fullmatch(cluster_id) is None:
        raise SettingsError(
            f"cluster id {cluster_id[:100]!r} is not 1 to 64 of A-Z a-z 0-9 . _ - with a letter or digit first"
        )


def check_node_id(node_id: int) -> None:
    """Return if a node id is in range.

    Raises:
        SettingsError: it is out of range.
    """
    if not 0 <= node_id <= MAX_NODE_ID:
        raise SettingsError(f"node id {node_id} is not from 0 to {MAX_NODE_ID}")


def parse_node_id(text: str) -> int:
    """Return the node id of a text.

    Raises:
        SettingsError: the text is not an integer in range.
    """
    text = text.strip()
    if not text.isascii() or not text.isdigit() or len(text) > len(str(MAX_NODE_ID)) or int(text) > MAX_NODE_ID:
        raise SettingsError(f"node id {text!r} is not an integer from 0 to {MAX_NODE_ID}")
    return int(text)


def parse_voters(text: str) -> dict[int, str]:
    """Return the voters of a text `1@host:port,2@host:port`; an empty text gives none.

    Raises:
        SettingsError: a voter is malformed or named twice, or there are too many.
    """
    voters: dict[int, str] = {}
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        node, separator, address = part.partition("@")
        if not separator:
            raise SettingsError(f"voter {part!r} is not id@host:port")
        node_id = parse_node_id(node)
        if node_id in voters:
            raise SettingsError(f"voter {node_id} is named twice")
        parsed = parse_address(address)
        if parsed.port == 0:
            raise SettingsError(f"voter {part!r} needs a port")
        voters[node_id] = str(parsed)
    if len(voters) > MAX_VOTERS:
        raise SettingsError(f"{len(voters)} voters are too many; at most {MAX_VOTERS}")
    return voters


def check_metrics_listen(listen: Address | None, *, insecure_plaintext: bool) -> None:
    """Return if metrics may be served at an address (None: they are off).

    Raises:
        SettingsError: other machines can reach it, and `insecure_plaintext` is not set.
    """
    if listen is not None and not listen.is_loopback and not insecure_plaintext:
        raise SettingsError(
            f"--metrics-listen {listen} can be reached by other machines and metrics are plain HTTP: "
            "listen on 127.0.0.1, or accept that with --insecure-plaintext"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class QuorumServerSettings:
    """Settings of one quorum server.

    Attributes:
        node_id: id of this node.
        cluster_id: id of the cluster.
        listen: address of the internal port, which other servers dial.
        admin_listen: address of `AdminService` and health checks over gRPC; None: off, for example in a broker, which serves them
            itself.
        metrics_listen: address of the metrics over HTTP; None: off.
        advertise: address at which peers and brokers reach it; None: the one it listens on.
        voters: `host:port` of the quorum listeners by node id, this node's included; may be empty for a quorum of one.
        first_start: True: an unformatted directory is formatted once the voters agree that there was nothing before.
        auto_join: True: an observer asks to become a voter once it has caught up.
        insecure_plaintext: True: plaintext is allowed on an address that other machines can reach.
        controller: times and limits of the controller.
        timers: times of the quorum.
        snapshots: when snapshots of the metadata are made.
    """

    node_id: int
    cluster_id: str
    listen: Address
    admin_listen: Address | None = None
    advertise: Address | None = None
    metrics_listen: Address | None = None
    voters: Mapping[int, str] = field(default_factory=dict[int, str])
    first_start: bool = False
    auto_join: bool = False
    insecure_plaintext: bool = False
    controller: ControllerSettings = field(default_factory=ControllerSettings)
    timers: QuorumTimers = field(default_factory=QuorumTimers)
    snapshots: SnapshotSettings = field(default_factory=SnapshotSettings)

    def check(self) -> None:
        """Return if the settings are valid.

        Raises:
            SettingsError: they are invalid.
        """
        check_node_id(self.node_id)
        check_cluster_id(self.cluster_id)
        if not self.listen.is_loopback and not self.insecure_plaintext:
            raise SettingsError(
                f"{self.listen} can be reached by other machines and this listener speaks plaintext: "
                "listen on 127.0.0.1, or accept that with --insecure-plaintext"
            )
        if self.admin_listen is not None and not self.admin_listen.is_loopback and not self.insecure_plaintext:
            raise SettingsError(
                f"--admin-listen {self.admin_listen} can be reached by other machines and this listener speaks plaintext: "
                "listen on 127.0.0.1, or accept that with --insecure-plaintext"
            )
        check_metrics_listen(self.metrics_listen, insecure_plaintext=self.insecure_plaintext)
        if self.advertise is None and self.listen.is_wildcard:
            raise SettingsError(
                f"{self.listen} stands for all addresses: name the one that peers use "
                "with --advertise (brokerd run: --quorum-advertise)"
            )
        if self.advertise is not None and (self.advertise.is_wildcard or self.advertise.port == 0):
            raise SettingsError(f"no client can connect to {self.advertise}: advertise a real address and port")
        if min(self.snapshots.kept, self.snapshots.log_bytes, self.snapshots.interval_ms) < 1:
            raise SettingsError(f"{self.snapshots}: each of the three must be at least 1")
        if self.first_start and self.node_id not in self.voters:
            raise SettingsError(f"--first-start: node {self.node_id} is not among the voters {sorted(self.voters)}")
