# SPDX-License-Identifier: Apache-2.0
"""The composition root of a broker: builds the parts, starts and stops them in order.

Owns nothing but the order. Start: data directory, quorum node (own observer, or the voter of the same process),
listener, registration; then, once the metadata has caught up with the registration, the logs; then the request to
be unfenced. Health turns SERVING when the controller has done that. Stop: leave from the controller, which moves the
leaders (if nobody else has them: behind the drain, and without waiting for each); no new streams, GoAway to the open
ones, drain, listener, voter, logs clean, mark of the clean stop, quorum node.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Mapping
from typing import TYPE_CHECKING, NoReturn

import grpc.aio

from brokerd.api.admin_service import AdminService
from brokerd.api.batch_check import BatchThreads
from brokerd.api.connections import end_connections
from brokerd.api.fetch_buffer import FetchBuffer
from brokerd.api.health import Health
from brokerd.api.listener import make_server
from brokerd.api.log_directory_calls import LogDirectoryCalls
from brokerd.api.log_service import LogService
from brokerd.api.metadata_service import MetadataService
from brokerd.api.parts import BrokerParts
from brokerd.clock import monotonic_ms
from brokerd.controller_client.controller_calls import ControllerCalls
from brokerd.controller_client.lifecycle import BrokerIdentity, BrokerLifecycle, BrokerState
from brokerd.controller_client.peer_channels import PeerChannels
from brokerd.controller_client.producer_ids import ProducerIds
from brokerd.controller_client.touch import ControllerTouch
from brokerd.errors import BrokerError, BrokerFailedError
from brokerd.limits import (
    DRAIN_MS,
    MAX_FETCH_STREAMS,
    MAX_PRODUCE_STREAMS,
    MAX_REPLICATE_STREAMS,
    MAX_WATCH_STREAMS,
    PRODUCER_EXPIRY_CHECK_MS,
    SET_ASIDE_CHECK_MS,
    SHUTDOWN_HANDOVER_MS,
    SPACE_CHECK_MS,
    TOUCH_CHECK_MS,
)
from brokerd.process.metrics import open_metrics
from brokerd.process.quorum import QuorumMember, open_quorum_member
from brokerd.process.replication import Replication
from brokerd.process.settings import BrokerSettings
from brokerd.replica.followed_rates import followed_rates
from brokerd.replica.follower_route import LedReplica
from brokerd.replica.locator import Locator
from brokerd.replica.log_directories import OpenedDirectories, open_log_directories
from brokerd.replica.manager import ReplicaHost
from brokerd.replica.partition_news import OwnBroker
from brokerd.replica.repairing import DamageRepairs
from brokerd.replica.set_aside import UnknownPartitions
from brokerd.replication.leader_stream import Leader, ReplicationService
from brokerd.replication.repair import RangeSource
from brokerd.short_turns import ShortTurns
from brokerd.stream_register import GOING_AWAY, StreamRegister
from metaquorum.metadata.loader import MetadataLoader
from metaquorum.net.service import ServiceTable
from metaquorum.process.settings import Address
from storage.directory.clean_stop import last_clean_stop, mark_clean_stop
from storage.directory.directories import LogDirectory
from storage.directory.space import SpaceLimits
from storage.errors import StorageError

if TYPE_CHECKING:
    from metaquorum.process.metrics_listener import MetricsListener

logger = logging.getLogger(__name__)

LIFECYCLE_WAIT_MS = 60_000
"""Milliseconds between the log lines of a broker that waits for the quorum."""


ELECTION_WAIT_MS = 2_000
"""Milliseconds that a broker which was let in waits for the leaders of its partitions before it serves the others."""


STOP_GRACE_S = 0.25
"""Seconds that the last calls get when the listener closes; streams had their time to drain before."""


class BrokerServer:
    """One broker process, or one broker inside another process. Everything runs on one event loop."""

    def __init__(self, settings: BrokerSettings) -> None:
        self._settings = settings
        self._observer = MetadataLoader()
        self._touch = ControllerTouch()
        self._peers = PeerChannels()
        self._health = Health()
        self._serving = asyncio.Event()
        self._registers = (
            StreamRegister("produce", MAX_PRODUCE_STREAMS),
            StreamRegister("fetch", MAX_FETCH_STREAMS),
            StreamRegister("watch", MAX_WATCH_STREAMS),
        )
        self._fetch_buffer = FetchBuffer(settings.fetch_buffer_bytes, end_connections=end_connections)
        self._batch_threads = BatchThreads(settings.inflate_bytes)
        self._follower_streams = StreamRegister("replicate", MAX_REPLICATE_STREAMS)
        self._quorum: QuorumMember | None = None
        self._metrics: MetricsListener | None = None
        self._host: ReplicaHost | None = None
        self._replication: Replication | None = None
        self._directories: OpenedDirectories | None = None
        self._lifecycle: BrokerLifecycle | None = None
        self._producer_ids: ProducerIds | None = None
        self._server: grpc.aio.Server | None = None
        self._followers: ReplicationService | None = None
        self._address: Address | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._fatal: asyncio.Future[BrokerError] = asyncio.get_running_loop().create_future()
        self._is_up = False
        self._is_stopping = False

    @property
    def address(self) -> Address:
        """Address that clients use; known after `start`."""
        assert self._address is not None, "not started"
        return self._address

    @property
    def cluster_id(self) -> str:
        """Cluster that the broker belongs to; known after `start`."""
        assert self._quorum is not None, "not started"
        return self._quorum.data_directory.cluster_id

    @property
    def quorum_address(self) -> str | None:
        """`host:port` of the quorum listener of this process; None without a voter in it."""
        own_voter = None if self._quorum is None else self._quorum.own_voter
        return None if own_voter is None else own_voter[1]

    @property
    def observer(self) -> MetadataLoader:
        """The metadata of this broker."""
        return self._observer

    @property
    def replica_host(self) -> ReplicaHost | None:
        """The partitions of this broker; None before `start`."""
        return self._host

    @property
    def is_serving(self) -> bool:
        """True while the broker is registered, unfenced and has its logs open."""
        return self._serving.is_set()

    def use_short_turns(self) -> None:
        """Let the threads of this process take shorter turns while large batches are worked on. For the owner of the process; once."""
        self._batch_threads.short_turns = ShortTurns()

    async def start(self) -> None:
        """Start everything; returns when the listener is open and the registration is under way.

        Raises:
            BrokerError: a setting or an address is wrong.
            StorageError: the data directory cannot be used.
        """
        try:
            await self._start()
        except BaseException:
            await self.stop()
            raise

    async def _start(self) -> None:
        settings = self._settings
        self._quorum = await open_quorum_member(settings, self._observer, self._add_services)
        budgets = {"fetch_buffer": self._fetch_buffer.budget, "inflate": self._batch_threads.budget}
        logger.info("memory: %s", " ".join(f"{name}_max_bytes={each.limit_bytes}" for name, each in budgets.items()))
        if settings.metrics_listen is not None:
            self._metrics = open_metrics(
                self._quorum.quorum_node, settings.metrics_listen, budgets, unknown=self._unknown_counts
            )
        node_id, cluster_id = settings.node_id, self._quorum.data_directory.cluster_id
        more, space = settings.more_data_directories, SpaceLimits.from_soft(settings.min_free_bytes)
        self._directories = await asyncio.to_thread(open_log_directories, self._quorum.data_directory, more, space)
        calls = ControllerCalls(
            self._observer, self._quorum.peers, self._quorum.bootstrap_addresses, own_voter=self._quorum.own_voter
        )
        identity = BrokerIdentity(
            cluster_id=cluster_id,
            broker_id=node_id,
            rack=settings.rack,
            log_directory_ids=self._directories.logs.ids,
            clean_stop_epoch=await asyncio.to_thread(last_clean_stop, tuple(self._directories.logs)),
        )
        self._replication = Replication(
            calls,
            self._observer,
            self._quorum.peers,
            cluster_id=cluster_id,
            node_id=node_id,
            incarnation_id=identity.incarnation_id,
            broker_epoch=self._broker_epoch,
        )
        self._host = ReplicaHost(
            directories=self._directories.logs,
            own=OwnBroker(node_id, identity.incarnation_id),
            observer=self._observer,
            retention_check_ms=settings.retention_check_ms,
            peers=self._replication.peers,
        )
        self._lifecycle = BrokerLifecycle(identity, self._observer, calls, on_state=self._on_state)
        self._touch.look_with(self._lifecycle.is_out_of_touch)
        self._producer_ids = ProducerIds(calls, self._lifecycle)
        parts = BrokerParts(
            cluster_id=cluster_id,
            node_id=node_id,
            observer=self._observer,
            locator=Locator(node_id=node_id, observer=self._observer, host=self._host),
            peers=self._peers,
            producer_ids=self._producer_ids,
            produce_streams=self._registers[0],
            fetch_streams=self._registers[1],
            watch_streams=self._registers[2],
            fetch_buffer=self._fetch_buffer,
            batch_threads=self._batch_threads,
            touch=self._touch,
        )
        log_directories = LogDirectoryCalls(self._host, parts.locator, node_id=node_id, cluster_id=cluster_id)
        assert self._followers is not None, "the quorum member adds the services"
        self._followers.attach(self._leader(node_id, cluster_id, self._host))
        handlers = (
            LogService(parts).handler(),
            MetadataService(parts).handler(),
            AdminService(calls, self._observer, log_directories, cluster_id=cluster_id).handler(),
        )
        self._server, bound = await make_server(handlers, self._health, settings.listen)
        self._address = settings.advertise or bound
        await self._server.start()
        logger.info("listening: address=%s node_id=%d cluster_id=%s", bound, node_id, cluster_id)
        self._host.failed.add_done_callback(self._on_host_failed)
        self._host.on_offline = self._lifecycle.note_offline_directories
        self._lifecycle.lacks_room = self._host.lacks_room
        self._watch(
            self._lifecycle.start(
                host=self._address.host, port=self._address.port, replication_port=self._quorum.internal_port
            )
        )
        self._run(self._come_up(self._lifecycle, self._host), "start of the logs")
        self._run(self._delete_set_aside(self._host), "deletion of set-aside directories")
        self._run(self._tend_space(self._host), "watch over free space")
        self._run(self._expire_producers(self._host), "expiry of idle producers")
        self._run(DamageRepairs(self._host.replicas, self._replication.repairs).run(), "repair of damaged ranges")
        self._run(self._watch_quorum(self._quorum), "quorum node")
        self._run(self._watch_touch(self._lifecycle), "watch over the controller's answers")

    def _add_services(self, table: ServiceTable) -> None:
        self._followers = ReplicationService(table)

    async def wait_serving(self, *, timeout_ms: int) -> None:
        """Wait until clients are served.

        Raises:
            BrokerError: not in time, or the broker failed while it started.
        """
        serving = asyncio.create_task(self._serving.wait())
        failed = asyncio.create_task(self.wait_failed())
        try:
            done, _ = await asyncio.wait(
                (serving, failed), timeout=timeout_ms / 1000, return_when=asyncio.FIRST_COMPLETED
            )
            if failed in done:
                failed.result()
            if serving not in done:
                raise BrokerError(f"the broker is not serving after {timeout_ms} ms: the quorum has not let it in")
        finally:
            serving.cancel()
            failed.cancel()
            await asyncio.gather(serving, failed, return_exceptions=True)

    async def wait_failed(self) -> NoReturn:
        """Wait for a failure that the process cannot go on with.

        Raises:
            BrokerError: what failed.
        """
        raise await asyncio.shield(self._fatal)

    @property
    def stream_count(self) -> int:
        """Streams of clients that are open, or wait to be."""
        return sum(map(len, self._registers))

    async def wait_drained(self) -> None:
        """Wait until no stream is open."""
        for register in self._registers:
            await register.wait_empty()

    async def stop(self) -> None:
        """Stop in an orderly way: streams drain, logs are closed clean. Idempotent."""
        if self._is_stopping:
            return
        self._is_stopping = True
        await self._health.set_serving(False)
        self._serving.clear()
        leads_for_others = self._host is not None and self._host.leads_several
        if leads_for_others:
            # The leaders move first, while everything is still served: clients follow the hint to the next one.
            await self._leave(leads_for_others=True)
        for register in (*self._registers, self._follower_streams):
            register.go_away(GOING_AWAY, DRAIN_MS)
        await self._drain()
        if not leads_for_others:
            # Nobody else has the partitions: what is in flight is acknowledged first.
            await self._leave(leads_for_others=False)
        if self._lifecycle is not None:
            await self._lifecycle.stop()
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._fetch_buffer.close()
        self._batch_threads.close()
        if self._followers is not None:
            await self._followers.close()
        if self._server is not None:
            await self._server.stop(STOP_GRACE_S)
        if self._producer_ids is not None:
            await self._producer_ids.close()
        if self._quorum is not None:
            # First: what its controller still has to do for partitions that nobody leads would only hold up the closing of their logs.
            await self._quorum.stop_voter()
        is_clean = self._host is not None and await self._host.stop()
        if self._replication is not None:
            await self._replication.close()
        if self._directories is not None:
            if is_clean:
                await self._mark_clean_stop(self._directories)
            self._directories.close()
        await self._peers.close()
        if self._quorum is not None:
            await self._quorum.stop()
            if self._metrics is not None:
                await self._metrics.close()
            logger.info("stopped: node_id=%d", self._settings.node_id)

    async def _leave(self, *, leads_for_others: bool) -> None:
        """Ask the controller for leave to stop, after others lead what this broker has led for them, and wait for it."""
        if self._lifecycle is None:
            return
        if not await self._lifecycle.shut_down(timeout_ms=SHUTDOWN_HANDOVER_MS, leads_for_others=leads_for_others):
            logger.warning("stopping without the controller's leave")

    async def _mark_clean_stop(self, directories: OpenedDirectories) -> None:
        """Prove to the next process, and to the controller, that everything is on stable storage."""
        broker_epoch = None if self._lifecycle is None else self._lifecycle.broker_epoch
        if broker_epoch is None:
            return
        try:
            await asyncio.to_thread(mark_clean_stop, tuple(directories.logs), broker_epoch)
        except StorageError as error:
            logger.error("the stop was not marked as clean: %s", error)

    async def _drain(self) -> None:
        try:
            async with asyncio.timeout(DRAIN_MS / 1000):
                await self.wait_drained()
        except TimeoutError:
            logger.info("%d streams are still open after %d ms and are cut", self.stream_count, DRAIN_MS)

    async def _come_up(self, lifecycle: BrokerLifecycle, host: ReplicaHost) -> None:
        broker_epoch = await lifecycle.registered()
        while not await self._observer.wait_for(broker_epoch + 1, timeout_ms=LIFECYCLE_WAIT_MS):
            logger.warning("waiting for the metadata up to %d: have %d", broker_epoch, self._observer.metadata_offset)
        await host.start()
        logger.info("logs open: replica_count=%d", host.replica_count)
        lifecycle.set_ready()
        await self._wait_led(lifecycle.broker_id, host)
        # What waited for leave to lead leads.
        await host.wait_idle()
        self._is_up = True
        self._on_state(lifecycle.state)

    async def _wait_led(self, node_id: int, host: ReplicaHost) -> None:
        """Wait until this broker's own metadata shows it unfenced and its partitions led, so that `ready` means it.

        The controller elects leaders in slices after it has unfenced a broker.
        """
        give_up_ms: int | None = None
        while True:
            broker = self._observer.image.brokers.get(node_id)
            if broker is not None and not broker.fenced:
                if host.leaderless_count() == 0:
                    return
                give_up_ms = give_up_ms or monotonic_ms() + ELECTION_WAIT_MS
                if monotonic_ms() >= give_up_ms:
                    logger.warning("%d partitions here have no leader yet", host.leaderless_count())
                    return
            await self._observer.wait_for(self._observer.metadata_offset + 1, timeout_ms=ELECTION_WAIT_MS // 4)

    def _leader(self, node_id: int, cluster_id: str, host: ReplicaHost) -> Leader:
        def find(topic_id: bytes, partition: int) -> LedReplica | None:
            replica = host.find(topic_id, partition)
            return None if replica is None else replica.followers

        return Leader(
            cluster_id=cluster_id,
            node_id=node_id,
            observer=self._observer,
            broker_epoch=self._broker_epoch,
            find=find,
            streams=self._follower_streams,
            rates=followed_rates(self._observer, node_id),
            ranges=RangeSource(cluster_id=cluster_id, node_id=node_id, observer=self._observer, find=host.find),
        )

    def _broker_epoch(self) -> int | None:
        return None if self._lifecycle is None else self._lifecycle.broker_epoch

    def _on_state(self, state: BrokerState) -> None:
        if self._replication is not None:
            self._replication.note_registration()
        is_serving = self._is_up and state.broker_epoch is not None and not state.is_fenced and not self._is_stopping
        if is_serving == self._serving.is_set():
            return
        if is_serving:
            self._serving.set()
        else:
            self._serving.clear()
        self._run(self._health.set_serving(is_serving), "health")

    async def _watch_touch(self, lifecycle: BrokerLifecycle) -> None:
        while True:
            await asyncio.sleep(TOUCH_CHECK_MS / 1000)
            if self._touch.note(is_lost=lifecycle.is_out_of_touch()):
                logger.warning("the controller %s", "is out of touch" if self._touch.is_lost else "answers again")

    async def _watch_quorum(self, quorum: QuorumMember) -> None:
        await quorum.wait_stopped()
        raise BrokerFailedError("the quorum node of this process has stopped")

    def _on_host_failed(self, failed: asyncio.Future[BaseException]) -> None:
        if not failed.cancelled():
            self._fail(BrokerFailedError(f"the log directory failed: {failed.result()}"))

    def _run(self, work: Coroutine[None, None, None], name: str) -> None:
        self._watch(asyncio.create_task(work, name=name))

    def _watch(self, task: asyncio.Task[None]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._on_task_done)

    def _on_task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if isinstance(error, BrokerError):
            self._fail(error)
        elif error is not None:
            logger.critical("%s failed", task.get_name(), exc_info=error)
            self._fail(BrokerFailedError(f"{task.get_name()} failed: {error}"))

    def _fail(self, error: BrokerError) -> None:
        if not self._fatal.done():
            self._fatal.set_result(error)

    def _unknown_counts(self) -> Mapping[LogDirectory, UnknownPartitions]:
        return {} if self._host is None else self._host.unknown_counts

    async def _delete_set_aside(self, host: ReplicaHost) -> None:
        while True:
            await asyncio.sleep(SET_ASIDE_CHECK_MS / 1000)
            await host.delete_due()

    async def _expire_producers(self, host: ReplicaHost) -> None:
        while True:
            await asyncio.sleep(PRODUCER_EXPIRY_CHECK_MS / 1000)
            await host.expire_producers(self._settings.producer_id_expiration_ms)

    async def _tend_space(self, host: ReplicaHost) -> None:
        while True:
            await asyncio.sleep(SPACE_CHECK_MS / 1000)
            await host.tend_space()
