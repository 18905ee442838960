# SPDX-License-Identifier: Apache-2.0
"""The quorum server: builds the objects of one voter, connects them, and starts and stops them in order.

Owns only the composition. Start: first start if requested, data directory, image, internal port, controller, quorum node. Stop, in
reverse: refuse new work, hand the leadership over, close the port, and at last the image and the directory.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from metaquorum.controller_service import admin_grpc
from metaquorum.controller_service.admin_operations import AdminOperations
from metaquorum.controller_service.admin_service import AdminService
from metaquorum.controller_service.controller_host import ControllerHost
from metaquorum.controller_service.controller_service import ControllerService
from metaquorum.controller_service.decoding import add_reflection, decoding
from metaquorum.controller_service.operation import Member
from metaquorum.grpc_server.server import GrpcServer, ServerLimits
from metaquorum.metadata.export import MetadataExports
from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.image_format import ImageUnreadableError
from metaquorum.metadata.loader import MetadataLoader
from metaquorum.metadata.metadata_files import MetadataFiles, open_metadata
from metaquorum.net.carrier import Carrier
from metaquorum.net.peers import Peers
from metaquorum.net.service import ServiceTable
from metaquorum.process.settings import Address, QuorumServerSettings
from metaquorum.raft.types import LevelRange
from metaquorum.replica.auto_join import AutoJoin
from metaquorum.replica.first_start import FirstStart, is_formatted
from metaquorum.replica.quorum_node import QuorumNode, QuorumSettings
from metaquorum.replica.quorum_service import QuorumService
from storage.directory.data_directory import DataDirectory
from storage.files.posix import PosixDisk

logger = logging.getLogger(__name__)

MAX_CONCURRENT_RPCS: Final = 50_000
"""gRPC calls that the listener may serve at the same time. Further ones are refused with RESOURCE_EXHAUSTED."""

MAX_CONCURRENT_RPCS_PER_CONNECTION: Final = 1_024
"""gRPC calls that one connection may have under way; the client's gRPC library queues the rest."""

KEEPALIVE_MS: Final = 10_000
"""Milliseconds of silence after which the server pings a caller."""

KEEPALIVE_TIMEOUT_MS: Final = 20_000
"""Milliseconds without an answer to such a ping after which the server closes the connection."""

LIMITS: Final = ServerLimits(
    max_calls=MAX_CONCURRENT_RPCS,
    max_connection_calls=MAX_CONCURRENT_RPCS_PER_CONNECTION,
    quiet_ms=KEEPALIVE_MS,
    timeout_ms=KEEPALIVE_TIMEOUT_MS,
)

STOP_GRACE_S: Final = 1.0
"""Seconds that calls under way get when the gRPC listener closes."""


class ServerError(Exception):
    """The server cannot start; the message says why and what to do."""


class PortInUseError(ServerError):
    """This process cannot listen on the address: another one does, or the address is not of this machine."""


class QuorumServer:
    """One voter of the metadata quorum with its controller.

    Args:
        settings: settings of the server.
        data_directory: path of its data directory; or the open directory, which the caller then closes.
        loader: the committed metadata of this process, shared with a broker in it (combined mode); None: a loader of its own.
        add_services: adds the methods of a broker in the same process to the carrier's table.

    Raises:
        SettingsError: the settings are invalid.
    """

    def __init__(
        self,
        settings: QuorumServerSettings,
        data_directory: Path | DataDirectory,
        *,
        loader: MetadataLoader | None = None,
        add_services: Callable[[ServiceTable], None] | None = None,
    ) -> None:
        settings.check()
        self._settings = settings
        self._given_directory = data_directory
        self._loader = loader or MetadataLoader()
        self._stack = AsyncExitStack()
        self._address: Address | None = None
        self._directory: DataDirectory | None = None
        self._host: ControllerHost | None = None
        self._node: QuorumNode | None = None
        self._started = False
        self._carrier = Carrier(cluster_id=settings.cluster_id, node_id=settings.node_id)
        self._quorum = QuorumService(self._carrier.table)
        self._controller = ControllerService(self._carrier.table, cluster_id=settings.cluster_id)
        self._admin = AdminService(self._carrier.table)
        if add_services is not None:
            add_services(self._carrier.table)
        self._admin_address: Address | None = None
        self._metrics_address: Address | None = None

    @property
    def address(self) -> Address:
        """Address of the internal port, which other servers dial. Valid only after `start`."""
        assert self._address is not None, "the server was not started"
        return self._address

    @property
    def peers(self) -> Peers:
        """The connections of this process to other servers. Valid only after `start`."""
        return self._carrier.peers

    @property
    def admin_address(self) -> Address | None:
        """Address of `AdminService` over gRPC, with the real port; None if it is off."""
        return self._admin_address

    @property
    def metrics_address(self) -> Address | None:
        """Address of the metrics, with the real port; None if they are off."""
        return self._metrics_address

    @property
    def data_directory(self) -> DataDirectory:
        """The open data directory. Valid only after `start`."""
        assert self._directory is not None, "the server was not started"
        return self._directory

    @property
    def node(self) -> QuorumNode:
        """The quorum node. Valid only after `start`."""
        assert self._node is not None, "the server was not started"
        return self._node

    @property
    def image(self) -> MetadataImage:
        """The committed metadata."""
        return self._loader.image

    @property
    def host(self) -> ControllerHost:
        """The controller's shell. Valid only after `start`."""
        assert self._host is not None, "the server was not started"
        return self._host

    async def start(self) -> None:
        """Start everything. Returns before a leader is known. A failed start stops everything again.

        Raises:
            ServerError: a port is in use, or the image cannot be opened.
            StorageError: the data directory cannot be used.
        """
        assert not self._started, "a server starts once"
        self._started = True
        try:
            await self._start()
        except BaseException:
            await self._stack.aclose()
            raise

    async def _start(self) -> None:
        settings = self._settings
        is_open = False
        if isinstance(self._given_directory, Path):
            if settings.first_start and not is_formatted(self._given_directory):
                await self._open_port()
                is_open = True
                await self._first_start(self._given_directory)
            self._directory = DataDirectory.open(
                PosixDisk(),
                str(self._given_directory.absolute()),
                cluster_id=settings.cluster_id,
                node_id=settings.node_id,
            )
            self._stack.callback(self._directory.close)
        else:
            self._directory = self._given_directory
        metadata = self._open_metadata(self._directory)
        if not is_open:
            await self._open_port()
        self._host = host = ControllerHost(self._loader, settings=settings.controller)
        advertised = settings.advertise or self.address
        self._node = node = QuorumNode(
            QuorumSettings(
                node_id=settings.node_id,
                cluster_id=settings.cluster_id,
                voters=settings.voters or {settings.node_id: str(advertised)},
                advertised_address=str(advertised),
                timers=settings.timers,
                snapshots=settings.snapshots,
                levels=LevelRange(min_level=1, max_level=settings.controller.max_feature_level),
            ),
            self._directory,
            self.peers,
            listener=self._loader,
            metadata=metadata,
        )
        host.attach(node)
        operations = AdminOperations(Member(host, node), MetadataExports(metadata, cluster_id=settings.cluster_id))
        checks: health.aio.HealthServicer | None = None
        if settings.admin_listen is not None:
            checks = await self._serve_admin(operations, settings.admin_listen)
        if settings.metrics_listen is not None:
            self._metrics_address = self._serve_metrics(node, settings.metrics_listen)
        self._controller.attach(host)
        self._stack.push_async_callback(self._controller.detach)
        self._admin.attach(operations)
        self._stack.callback(self._admin.detach)
        self._quorum.attach(node)
        self._stack.callback(self._quorum.detach)
        await node.start()
        self._stack.push_async_callback(node.stop)
        self._stack.callback(host.stop)
        if settings.auto_join:
            self._stack.push_async_callback(_end, asyncio.create_task(AutoJoin(node, self.peers).run()))
        if checks is not None:
            self._stack.push_async_callback(checks.enter_graceful_shutdown)
            for name in ("", admin_grpc.SERVICE):
                await checks.set(name, health_pb2.HealthCheckResponse.SERVING)
        logger.info(
            "event=server_started node_id=%d address=%s advertised=%s", settings.node_id, self._address, advertised
        )

    async def _open_port(self) -> None:
        """Open the internal port. From here on other servers get answers, at first only refusals."""
        settings = self._settings
        listen = settings.listen
        try:
            port = self._carrier.bind(listen.host, listen.port)
        except OSError as error:
            raise PortInUseError(f"cannot listen on {listen}: {error.strerror}; choose another --listen") from error
        self._address = Address(host=listen.host, port=port)
        self._stack.push_async_callback(self._carrier.close)
        await self._carrier.start(str(settings.advertise or self._address))

    async def _serve_admin(self, operations: AdminOperations, listen: Address) -> health.aio.HealthServicer:
        server = GrpcServer(LIMITS)
        decoding(server).add_generic_rpc_handlers((admin_grpc.admin_handler(operations),))
        checks = add_health_and_reflection(server)
        self._admin_address = bind(server, listen)
        await server.start()
        self._stack.push_async_callback(server.stop, STOP_GRACE_S)
        return checks

    def _serve_metrics(self, node: QuorumNode, listen: Address) -> Address:
        # Imported here, so that a server without metrics does not load the library.
        from metaquorum.process.metrics_listener import MetricsAddressError, MetricsListener

        metrics = MetricsListener(node.sample)
        try:
            address = metrics.open(listen)
        except MetricsAddressError as error:
            raise PortInUseError(str(error)) from error
        self._stack.push_async_callback(metrics.close)
        return address

    async def _first_start(self, data_directory: Path) -> None:
        """Answer only Probe until the voters agree and the directory is formatted."""
        settings = self._settings
        first_start = FirstStart(
            data_directory, node_id=settings.node_id, cluster_id=settings.cluster_id, voters=settings.voters
        )
        self._quorum.attach(first_start)
        logger.info("event=first_start_asks voters=%s", settings.voters)
        try:
            await first_start.run(self.peers)
        finally:
            self._quorum.detach()

    def _open_metadata(self, directory: DataDirectory) -> MetadataFiles:
        try:
            metadata = open_metadata(Path(directory.metadata_path))
        except ImageUnreadableError as error:
            raise ServerError(f"{error}; free the directory or its disk") from error
        self._stack.callback(metadata.store.close)
        offset = metadata.loaded.image.metadata_offset
        logger.info("event=image_open metadata_offset=%d quorum_epoch=%d", offset, metadata.loaded.quorum_epoch)
        self._loader.open(metadata.store, metadata.loaded)
        return metadata

    async def wait_stopped(self) -> None:
        """Wait until the quorum node has stopped. Raise the failure that stopped it, if any."""
        await self.node.wait_stopped()

    async def stop(self) -> None:
        """Stop in an orderly way: a leader hands over first. Idempotent."""
        await self._stack.aclose()


async def _end(task: asyncio.Task[None]) -> None:
    """Cancel a task and wait for its end. Log its failure, if any."""
    task.cancel()
    (failure,) = await asyncio.gather(task, return_exceptions=True)
    if isinstance(failure, Exception):
        logger.error("event=task_failed error=%r", failure)


def bind(server: GrpcServer, listen: Address) -> Address:
    """Bind the gRPC listener. Return the address with its real port.

    Raises:
        PortInUseError: the address cannot be bound.
    """
    try:
        port = server.bind(listen.host, listen.port)
    except OSError as error:
        raise PortInUseError(f"cannot listen on {listen}: {error.strerror}; choose another port") from error
    return Address(host=listen.host, port=port)


def add_health_and_reflection(server: GrpcServer) -> health.aio.HealthServicer:
    """Add the standard services. Every service is reported as not serving until its status is set."""
    checks = health.aio.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(checks, decoding(server))
    add_reflection((admin_grpc.SERVICE, health.SERVICE_NAME, reflection.SERVICE_NAME), server)
    return checks
