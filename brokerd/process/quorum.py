# SPDX-License-Identifier: Apache-2.0
"""This process as a member of the metadata quorum: an observer, or the voter of a combined node.

Owns the data directory and the quorum node of the process. Composition only: it decides between observer and voter, and whether it may
format an empty directory.
Law: it never formats a directory that holds files, and formats an empty one only if the operator names the cluster.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from brokerd.errors import AddressInUseError
from brokerd.process.settings import BrokerSettings, CombinedSettings
from metaquorum.metadata.loader import MetadataLoader
from metaquorum.metadata.metadata_files import MetadataFiles, open_metadata
from metaquorum.net.carrier import Carrier
from metaquorum.net.peers import Peers
from metaquorum.net.service import ServiceTable
from metaquorum.process.server import QuorumServer
from metaquorum.process.settings import Address, QuorumServerSettings, SettingsError
from metaquorum.replica.first_start import format_observer, is_formatted
from metaquorum.replica.quorum_node import QuorumNode, QuorumSettings
from storage.directory.data_directory import DataDirectory
from storage.directory.space import SpaceLimits
from storage.directory.space_guard import make_room
from storage.errors import UnformattedDirectoryError
from storage.files.posix import PosixDisk


class QuorumMember(Protocol):
    """What a broker needs from its quorum node."""

    @property
    def data_directory(self) -> DataDirectory:
        """The open, locked data directory."""
        ...

    @property
    def bootstrap_addresses(self) -> Sequence[str]:
        """Internal ports of voters at which the search for the controller starts."""
        ...

    @property
    def own_voter(self) -> tuple[int, str] | None:
        """Node id and quorum address of the voter in this process, or None."""
        ...

    @property
    def quorum_node(self) -> QuorumNode:
        """The quorum node itself."""
        ...

    @property
    def peers(self) -> Peers:
        """The connections of this process to other servers."""
        ...

    @property
    def internal_port(self) -> int:
        """Port to which other servers connect."""
        ...

    async def wait_stopped(self) -> None:
        """Wait until the node has stopped. Raises the failure that stopped it, if any."""
        ...

    async def stop_voter(self) -> None:
        """Stop the voter of this process. Idempotent. The directory stays locked until `stop`, because logs in it may be open."""
        ...

    async def stop(self) -> None:
        """Stop the node and close the directory. Idempotent."""
        ...


async def open_quorum_member(
    settings: BrokerSettings, loader: MetadataLoader, add_services: Callable[[ServiceTable], None]
) -> QuorumMember:
    """Open the data directory and the internal port, and start the quorum node of this process.

    Args:
        settings: settings of the broker.
        loader: receives the committed metadata.
        add_services: adds the broker's services for other servers to a table.

    Raises:
        SettingsError, StorageError, QuorumError, ServerError: the member cannot start.
    """
    if settings.combined is None:
        return await _Observer.open(settings, loader, add_services)
    return await _Voter.open(settings, settings.combined, loader, add_services)


class _Observer:
    """A node that follows the quorum of other processes."""

    own_voter = None

    def __init__(
        self,
        settings: BrokerSettings,
        data_directory: DataDirectory,
        loader: MetadataLoader,
        metadata: MetadataFiles,
        carrier: Carrier,
        port: int,
    ) -> None:
        self.internal_port = port
        self._store = metadata.store
        self._carrier = carrier
        self.data_directory = data_directory
        self.bootstrap_addresses = settings.quorum_addresses
        self._node = QuorumNode(
            QuorumSettings(
                node_id=settings.node_id,
                cluster_id=data_directory.cluster_id,
                bootstrap_addresses=settings.quorum_addresses,
            ),
            data_directory,
            carrier.peers,
            listener=loader,
            metadata=metadata,
        )

    @classmethod
    async def open(
        cls, settings: BrokerSettings, loader: MetadataLoader, add_services: Callable[[ServiceTable], None]
    ) -> _Observer:
        path = settings.data_directory
        if not is_formatted(path):
            if settings.cluster_id is None:
                raise UnformattedDirectoryError(
                    str(path),
                    "not formatted: pass --cluster-id once, and the directory is formatted if it is empty",
                )
            if path.is_dir() and any(path.iterdir()):
                raise UnformattedDirectoryError(
                    str(path), "holds files and is not a data directory of Lograft: name an empty one"
                )
            format_observer(path, node_id=settings.node_id, cluster_id=settings.cluster_id)
        data_directory = _open_directory(settings)
        try:
            metadata = open_metadata(Path(data_directory.metadata_path))
            try:
                loader.open(metadata.store, metadata.loaded)
                carrier = Carrier(cluster_id=data_directory.cluster_id, node_id=settings.node_id)
                add_services(carrier.table)
                try:
                    port = _bind(carrier, settings)
                    host = (settings.advertise or settings.listen).host
                    await carrier.start(str(Address(host=host, port=port)))
                    member = cls(settings, data_directory, loader, metadata, carrier, port)
                    await member._node.start()
                except BaseException:
                    await carrier.close()
                    raise
            except BaseException:
                metadata.store.close()
                raise
        except BaseException:
            data_directory.close()
            raise
        return member

    @property
    def quorum_node(self) -> QuorumNode:
        return self._node

    @property
    def peers(self) -> Peers:
        return self._carrier.peers

    async def wait_stopped(self) -> None:
        await self._node.wait_stopped()

    async def stop_voter(self) -> None:
        pass  # an observer has no voter

    async def stop(self) -> None:
        await self._node.stop()
        await self._carrier.close()
        self._store.close()
        self.data_directory.close()


class _Voter:
    """A voter, with its controller and its quorum listener."""

    def __init__(
        self, server: QuorumServer, opened: DataDirectory | None, settings: BrokerSettings, combined: CombinedSettings
    ) -> None:
        self._server = server
        self._opened = opened
        self.data_directory = server.data_directory
        self.own_voter = (settings.node_id, str(server.address))
        self.bootstrap_addresses = tuple(combined.voters.values()) or (str(server.address),)

    @classmethod
    async def open(
        cls,
        settings: BrokerSettings,
        combined: CombinedSettings,
        loader: MetadataLoader,
        add_services: Callable[[ServiceTable], None],
    ) -> _Voter:
        opened: DataDirectory | None = None
        if not combined.first_start or is_formatted(settings.data_directory):
            opened = _open_directory(settings)
        elif settings.cluster_id is None:
            raise SettingsError("--first-start needs --cluster-id until the data directory is formatted")
        server = QuorumServer(
            QuorumServerSettings(
                node_id=settings.node_id,
                cluster_id=opened.cluster_id if opened is not None else settings.cluster_id or "",
                listen=combined.quorum_listen,
                advertise=combined.quorum_advertise,
                voters=combined.voters,
                first_start=combined.first_start,
                insecure_plaintext=settings.insecure_plaintext,
                controller=combined.controller,
                snapshots=combined.snapshots,
            ),
            settings.data_directory if opened is None else opened,
            loader=loader,
            add_services=add_services,
        )
        try:
            await server.start()
        except BaseException:
            if opened is not None:
                opened.close()
            raise
        return cls(server, opened, settings, combined)

    @property
    def quorum_node(self) -> QuorumNode:
        return self._server.node

    @property
    def peers(self) -> Peers:
        return self._server.peers

    @property
    def internal_port(self) -> int:
        return self._server.address.port

    async def wait_stopped(self) -> None:
        await self._server.wait_stopped()

    async def stop_voter(self) -> None:
        if self._opened is not None:  # otherwise the server holds the lock of the directory
            await self._server.stop()

    async def stop(self) -> None:
        await self._server.stop()
        if self._opened is not None:
            self._opened.close()


def _bind(carrier: Carrier, settings: BrokerSettings) -> int:
    host, port = settings.listen.host, settings.replication_port
    try:
        return carrier.bind(host, port)
    except OSError as error:
        address = Address(host=host, port=port)
        reason = f"cannot listen on {address}: {error.strerror}; choose another --replication-port"
        raise AddressInUseError(reason) from error


def _open_directory(settings: BrokerSettings) -> DataDirectory:
    path = str(settings.data_directory.absolute())
    opened = DataDirectory.open(PosixDisk(), path, cluster_id=settings.cluster_id, node_id=settings.node_id)
    try:
        # The metadata, and every log that opens, may have to write a small file.
        make_room(opened.disk, path, SpaceLimits.from_soft(settings.min_free_bytes))
    except BaseException:
        opened.close()
        raise
    return opened
