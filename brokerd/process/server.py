# SPDX-License-Identifier: Apache-2.0
"""The composition of a broker: builds its parts, and starts and stops them in order. Read it from `start` downwards.

Owns only the order.

Start: the quorum member (data directory, metadata, internal port; an observer, or the voter of this process), the log directories, the
parts, the public listener, the registration. The rest follows in the background. When the metadata has caught up with the registration,
the logs open. Then the broker asks to be unfenced. When the controller has done that, health becomes SERVING.

Stop: controlled shutdown at the controller, which moves leaderships to other brokers. (If this broker leads no partition with other
replicas, this step comes after the drain and waits only until the broker is fenced.) Then: no new streams, GoAway to the open ones,
drain, coordinators of groups and ingests, both listeners, voter, close of the logs, mark of the clean shutdown, quorum member.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NoReturn

from brokerd.api.admin_service import AdminService
from brokerd.api.forward import ForwardedCalls, Forwarder
from brokerd.api.group_service.limits import MAX_GROUP_STREAMS
from brokerd.api.group_service.service import GroupService
from brokerd.api.health import Health
from brokerd.api.ingest_service.service import IngestService
from brokerd.api.listener import LIMITS, add_services, bind
from brokerd.api.log_directory_calls import LogDirectoryCalls
from brokerd.api.log_service.batch_check import BatchThreads
from brokerd.api.log_service.fetch_buffer import FetchBuffer
from brokerd.api.log_service.service import LogService
from brokerd.api.metadata_service import MetadataService
from brokerd.api.parts import BrokerParts
from brokerd.clock import monotonic_ms
from brokerd.controller_client.controller_calls import ControllerCalls
from brokerd.controller_client.lifecycle import BrokerIdentity, BrokerLifecycle, BrokerState
from brokerd.controller_client.producer_ids import ProducerIds
from brokerd.errors import BrokerError, BrokerFailedError
from brokerd.groups.coordinators import GroupCoordinators
from brokerd.groups.figures import GroupFigures, GroupTotals
from brokerd.groups.pending_calls import PendingOffsetsCalls, PendingOffsetsService
from brokerd.ingests.coordinator_calls import IngestCalls, IngestCallService, LocalIngests
from brokerd.ingests.coordinators import IngestCoordinators
from brokerd.ingests.figures import IngestFigures, IngestTotals
from brokerd.ingests.staging_topics import StagingTopics
from brokerd.ingests.steps import IngestSteps
from brokerd.limits import (
    DRAIN_MS,
    MAX_FETCH_STREAMS,
    MAX_PRODUCE_STREAMS,
    MAX_REPLICATE_STREAMS,
    MAX_WATCH_STREAMS,
    PRODUCER_EXPIRY_CHECK_MS,
    REMOVED_CHECK_MS,
    SHUTDOWN_HANDOVER_MS,
    SPACE_CHECK_MS,
)
from brokerd.loaded_heap import keep_loaded
from brokerd.process.ingest_groups import OutcomeQuestions, group_offsets_calls
from brokerd.process.metrics import open_metrics
from brokerd.process.quorum import QuorumMember, open_quorum_member
from brokerd.process.replication import Replication
from brokerd.process.settings import BrokerSettings
from brokerd.publishing.calls import PublicationCalls
from brokerd.publishing.checks import StagedChecks
from brokerd.publishing.led_partitions import LedPartitions
from brokerd.publishing.limits import STAGING_SWEEP_MS
from brokerd.publishing.peer_calls import PeerCalls
from brokerd.publishing.publisher import Publisher
from brokerd.publishing.quota import StagingQuota, default_limit_bytes
from brokerd.publishing.service import LocalPublications, PublicationService
from brokerd.publishing.staged_reads import StagedReads
from brokerd.publishing.sweep import StagingSweep
from brokerd.replica.locator import Locator
from brokerd.replica.log_directories import OpenedDirectories, open_log_directories
from brokerd.replica.manager import ReplicaManager
from brokerd.replica.metadata_view import OwnBroker
from brokerd.replica.removed_directories import UnknownPartitions
from brokerd.replica.repairing import DamageRepairs
from brokerd.replica.replica import Replica
from brokerd.replication.configured_rates import configured_rates
from brokerd.replication.leader_stream import Leader, ReplicationService
from brokerd.replication.repair import RangeSource
from brokerd.short_turns import ShortTurns
from brokerd.stream_register import GOING_AWAY, StreamRegister
from metaquorum.grpc_server.server import GrpcServer
from metaquorum.metadata.loader import MetadataLoader
from metaquorum.net.service import ServiceTable
from metaquorum.process.settings import Address
from storage.directory.clean_stop import last_clean_stop, mark_clean_stop
from storage.directory.directories import LogDirectories, LogDirectory
from storage.directory.space import SpaceLimits
from storage.errors import StorageError

if TYPE_CHECKING:
    from metaquorum.process.metrics_listener import MetricsListener

logger = logging.getLogger(__name__)

LIFECYCLE_WAIT_MS: Final = 60_000
"""Milliseconds between two log lines of a broker that waits for the metadata."""

ELECTION_WAIT_MS: Final = 2_000
"""Milliseconds that an unfenced broker waits until its partitions have leaders. Then it serves clients anyway."""

STOP_GRACE_S: Final = 0.25
"""Seconds for the last calls when the listeners close. Streams have had their time to drain before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Broker:
    """The parts of a broker whose directories are open.

    Attributes:
        calls: calls to the controller.
        lifecycle: registration and heartbeats.
        replication: streams to leaders, and requests to the controller.
        manager: the replicas.
        groups: the group coordinators.
        parts: the parts that the services for clients share.
        publications: what this broker publishes and checks for coordinators of ingests.
        publication_calls: asks the leaders of partitions to publish and to check.
        ingests: the ingest coordinators.
        staging_topics: makes staging topics.
        local_ingests: what this broker answers as a coordinator of ingests.
        ingest_calls: asks coordinators of ingests.
        staging_sweep: frees what was staged and is needed no more.
        outcomes: questions of groups about ingests.
    """

    calls: ControllerCalls
    lifecycle: BrokerLifecycle
    replication: Replication
    manager: ReplicaManager
    groups: GroupCoordinators
    parts: BrokerParts
    publications: LocalPublications
    publication_calls: PublicationCalls
    ingests: IngestCoordinators
    staging_topics: StagingTopics
    local_ingests: LocalIngests
    ingest_calls: IngestCalls
    staging_sweep: StagingSweep
    outcomes: OutcomeQuestions


class BrokerServer:
    """One broker, alone in a process or inside another program. Everything runs on one event loop."""

    def __init__(self, settings: BrokerSettings) -> None:
        self._settings = settings
        self._observer = MetadataLoader()
        # For clients and followers.
        self._health = Health()
        self._produce_streams = StreamRegister("produce", MAX_PRODUCE_STREAMS)
        self._fetch_streams = StreamRegister("fetch", MAX_FETCH_STREAMS)
        self._watch_streams = StreamRegister("watch", MAX_WATCH_STREAMS)
        self._group_streams = StreamRegister("groups", MAX_GROUP_STREAMS)
        self._client_streams = (
            self._produce_streams,
            self._fetch_streams,
            self._watch_streams,
            self._group_streams,
        )
        self._follower_streams = StreamRegister("replicate", MAX_REPLICATE_STREAMS)
        self._listener = GrpcServer(LIMITS)
        self._fetch_buffer = FetchBuffer(settings.fetch_buffer_bytes, end_connections=self._listener.end_connections)
        self._batch_threads = BatchThreads(settings.inflate_bytes)
        # `start` opens these in this order; None before.
        self._followers: ReplicationService | None = None
        self._forwarded: ForwardedCalls | None = None
        self._publications: PublicationService | None = None
        self._ingest_calls: IngestCallService | None = None
        self._pending_offsets: PendingOffsetsService | None = None
        self._quorum: QuorumMember | None = None
        self._metrics: MetricsListener | None = None
        self._directories: OpenedDirectories | None = None
        self._broker: _Broker | None = None
        self._address: Address | None = None
        # The state of the run.
        self._tasks: set[asyncio.Task[None]] = set()
        self._fatal: asyncio.Future[BrokerError] = asyncio.get_running_loop().create_future()
        self._serving = asyncio.Event()
        self._is_up = False
        self._keep_loaded: Callable[[], None] | None = None
        self._is_stopping = False

    @property
    def address(self) -> Address:
        """Address that clients use; only after `start`."""
        assert self._address is not None, "not started"
        return self._address

    @property
    def cluster_id(self) -> str:
        """Id of the broker's cluster; only after `start`."""
        assert self._quorum is not None, "not started"
        return self._quorum.data_directory.cluster_id

    @property
    def quorum_address(self) -> str | None:
        """`host:port` of the internal port of the voter in this process; None without a voter."""
        own_voter = None if self._quorum is None else self._quorum.own_voter
        return None if own_voter is None else own_voter[1]

    @property
    def observer(self) -> MetadataLoader:
        """The metadata of this broker."""
        return self._observer

    @property
    def replica_manager(self) -> ReplicaManager | None:
        """The replicas of this broker; None before `start`."""
        return None if self._broker is None else self._broker.manager

    @property
    def lifecycle(self) -> BrokerLifecycle | None:
        """The registration and heartbeats of this broker; None before `start`."""
        return None if self._broker is None else self._broker.lifecycle

    @property
    def publication_calls(self) -> PublicationCalls | None:
        """Asks the leaders of partitions to publish and to check; None before `start`."""
        return None if self._broker is None else self._broker.publication_calls

    @property
    def staging_quota(self) -> StagingQuota | None:
        """How much clients have staged here; None before `start`."""
        return None if self._broker is None else self._broker.parts.staging_quota

    @property
    def groups(self) -> GroupCoordinators | None:
        """The group coordinators of this broker; None before `start`."""
        return None if self._broker is None else self._broker.groups

    @property
    def ingests(self) -> IngestCoordinators | None:
        """The ingest coordinators of this broker; None before `start`."""
        return None if self._broker is None else self._broker.ingests

    @property
    def ingest_calls(self) -> IngestCalls | None:
        """Asks the coordinators of ingests; None before `start`."""
        return None if self._broker is None else self._broker.ingest_calls

    @property
    def is_serving(self) -> bool:
        """True while the broker is registered and unfenced and its logs are open."""
        return self._serving.is_set()

    @property
    def stream_count(self) -> int:
        """Client streams that are open or about to open."""
        return sum(map(len, self._client_streams))

    def use_frozen_heap(self) -> None:
        """Exempt what coordinators load from garbage collection. Only the owner of the process may call this, before `start`."""
        self._keep_loaded = keep_loaded

    def use_short_turns(self) -> None:
        """Shorten the switch interval of threads during work on large batches. Only the owner of the process may call this, once."""
        self._batch_threads.short_turns = ShortTurns()

    # Start.

    async def start(self) -> None:
        """Start everything. Returns when the listener is open and the registration is under way.

        Raises:
            BrokerError: a setting or an address is wrong.
            StorageError: the data directory cannot be used.
        """
        try:
            settings = self._settings
            quorum = self._quorum = await open_quorum_member(settings, self._observer, self._add_services)
            self._open_metrics(quorum)
            more, space = settings.more_data_directories, SpaceLimits.from_soft(settings.min_free_bytes)
            opened = await asyncio.to_thread(open_log_directories, quorum.data_directory, more, space)
            self._directories = opened
            clean_stop_epoch = await asyncio.to_thread(last_clean_stop, tuple(opened.logs))
            broker = self._broker = self._compose(quorum, opened.logs, clean_stop_epoch)
            await self._listen(broker)
            self._begin(quorum, broker)
        except BaseException:
            await self.stop()
            raise

    def _add_services(self, table: ServiceTable) -> None:
        """Add this broker's services for other servers. Each refuses requests until it is attached."""
        self._followers = ReplicationService(table)
        self._forwarded = ForwardedCalls(table)
        self._publications = PublicationService(table)
        self._ingest_calls = IngestCallService(table)
        self._pending_offsets = PendingOffsetsService(table)

    def _open_metrics(self, quorum: QuorumMember) -> None:
        budgets = {"fetch_buffer": self._fetch_buffer.budget, "inflate": self._batch_threads.budget}
        logger.info("memory: %s", " ".join(f"{name}_max_bytes={each.limit_bytes}" for name, each in budgets.items()))
        listen = self._settings.metrics_listen
        if listen is not None:
            self._metrics = open_metrics(
                quorum.quorum_node,
                listen,
                budgets,
                unknown=self._unknown_counts,
                groups=self._group_counts,
                ingests=self._ingest_counts,
            )

    def _unknown_counts(self) -> Mapping[LogDirectory, UnknownPartitions]:
        return {} if self._broker is None else self._broker.manager.unknown_counts

    def _group_counts(self) -> tuple[GroupTotals, GroupFigures] | None:
        groups = self.groups
        return None if groups is None else (groups.totals, groups.figures)

    def _ingest_counts(self) -> tuple[IngestTotals, IngestFigures, StagingQuota] | None:
        broker = self._broker
        return None if broker is None else (broker.ingests.totals, broker.ingests.figures, broker.parts.staging_quota)

    def _compose(self, quorum: QuorumMember, logs: LogDirectories, clean_stop_epoch: int | None) -> _Broker:
        """Create the parts and connect them, without starting any."""
        settings, observer = self._settings, self._observer
        node_id, cluster_id = settings.node_id, quorum.data_directory.cluster_id
        calls = ControllerCalls(observer, quorum.peers, quorum.bootstrap_addresses, own_voter=quorum.own_voter)
        identity = BrokerIdentity(
            cluster_id=cluster_id,
            broker_id=node_id,
            rack=settings.rack,
            log_directory_ids=logs.ids,
            clean_stop_epoch=clean_stop_epoch,
        )
        lifecycle = BrokerLifecycle(identity, observer, calls, on_state=self._on_state)
        replication = Replication(
            calls,
            observer,
            quorum.peers,
            cluster_id=cluster_id,
            node_id=node_id,
            incarnation_id=identity.incarnation_id,
            broker_epoch=lambda: lifecycle.broker_epoch,
        )
        manager = ReplicaManager(
            directories=logs,
            own=OwnBroker(node_id, identity.incarnation_id),
            observer=observer,
            retention_check_ms=settings.retention_check_ms,
            peers=replication.peers,
        )
        manager.on_offline = lifecycle.note_offline_directories
        manager.failed.add_done_callback(self._on_manager_failed)
        lifecycle.lacks_room = manager.lacks_room
        outcomes = OutcomeQuestions()
        groups = GroupCoordinators(
            node_id=node_id,
            observer=observer,
            manager=manager,
            calls=calls,
            is_lost=lambda: lifecycle.session.is_lost,
            keep_loaded=self._keep_loaded,
            ask_outcome=outcomes.ask,
        )
        parts = BrokerParts(
            cluster_id=cluster_id,
            node_id=node_id,
            observer=observer,
            locator=Locator(node_id=node_id, observer=observer, manager=manager),
            peers=quorum.peers,
            producer_ids=ProducerIds(calls, lifecycle),
            produce_streams=self._produce_streams,
            fetch_streams=self._fetch_streams,
            watch_streams=self._watch_streams,
            group_streams=self._group_streams,
            fetch_buffer=self._fetch_buffer,
            batch_threads=self._batch_threads,
            session=lifecycle.session,
            staging_quota=StagingQuota(self._staging_max_bytes(), manager.replicas),
        )
        staged = StagedReads(node_id=node_id, observer=observer, find=manager.find, calls=replication.repairs)
        led = LedPartitions(node_id=node_id, observer=observer, find=manager.find)

        async def live_attempts(
            topic_id: bytes, partition: int, producer_ids: Sequence[int]
        ) -> Mapping[int, int | None]:
            # The calls are made below, from what is published here.
            return await ingest_calls.live_attempts(topic_id, partition, producer_ids)

        sweep = StagingSweep(manager.replicas, live_attempts)
        publications = LocalPublications(
            cluster_id=cluster_id,
            node_id=node_id,
            observer=observer,
            publisher=Publisher(
                led=led, staged=staged, is_lost=lambda: lifecycle.session.is_lost, on_published=sweep.soon
            ),
            checks=StagedChecks(led=led, staged=staged),
        )
        peer_calls = PeerCalls(
            quorum.peers,
            observer,
            cluster_id=cluster_id,
            node_id=node_id,
            incarnation_id=identity.incarnation_id,
            broker_epoch=lambda: lifecycle.broker_epoch,
        )
        publication_calls = PublicationCalls(publications, peer_calls)
        ingests = IngestCoordinators(
            node_id=node_id,
            observer=observer,
            manager=manager,
            calls=calls,
            publications=publication_calls,
            is_lost=lambda: lifecycle.session.is_lost,
            group_offsets=group_offsets_calls(PendingOffsetsCalls(groups, quorum.peers, observer, node_id=node_id)),
            keep_loaded=self._keep_loaded,
        )
        local_ingests = LocalIngests(
            cluster_id=cluster_id,
            node_id=node_id,
            observer=observer,
            coordinators=ingests,
        )

        ingest_calls = IngestCalls(local_ingests, peer_calls)
        outcomes.attach(groups, ingest_calls)

        def note_role(replica: Replica) -> None:
            groups.note_role(replica)
            ingests.note_role(replica)

        manager.on_role = note_role
        return _Broker(
            calls=calls,
            lifecycle=lifecycle,
            replication=replication,
            manager=manager,
            groups=groups,
            parts=parts,
            publications=publications,
            publication_calls=publication_calls,
            ingests=ingests,
            staging_topics=StagingTopics(observer, calls),
            local_ingests=local_ingests,
            ingest_calls=ingest_calls,
            staging_sweep=sweep,
            outcomes=outcomes,
        )

    def _staging_max_bytes(self) -> int:
        settings = self._settings
        if settings.staging_max_bytes is not None:
            return settings.staging_max_bytes
        return default_limit_bytes((settings.data_directory, *settings.more_data_directories))

    async def _listen(self, broker: _Broker) -> None:
        """Open the services for other servers and for clients. Until the broker is unfenced, most calls are refused."""
        assert self._followers is not None, "the quorum member adds the services"
        assert self._forwarded is not None, "the quorum member adds the services"
        assert self._publications is not None, "the quorum member adds the services"
        assert self._ingest_calls is not None, "the quorum member adds the services"
        assert self._pending_offsets is not None, "the quorum member adds the services"
        parts, observer = broker.parts, self._observer
        forwarder = Forwarder(parts.peers, observer)
        log_service = LogService(parts, forwarder)
        group_service = GroupService(parts, broker.groups, forwarder)
        steps = IngestSteps(broker.ingests, broker.publication_calls, broker.staging_topics, observer)
        ingest_service = IngestService(parts, broker.ingests, steps, broker.ingest_calls, forwarder)
        log_directories = LogDirectoryCalls(
            broker.manager, parts.locator, node_id=parts.node_id, cluster_id=parts.cluster_id
        )
        admin_service = AdminService(broker.calls, observer, log_directories, cluster_id=parts.cluster_id)
        handlers = (
            log_service.handler(),
            MetadataService(parts).handler(),
            admin_service.handler(),
            group_service.handler(),
            ingest_service.handler(),
        )
        self._followers.attach(self._leader(broker))
        self._publications.attach(broker.publications)
        self._ingest_calls.attach(broker.local_ingests)
        await add_services(self._listener, handlers, self._health)
        bound = bind(self._listener, self._settings.listen)
        self._address = self._settings.advertise or bound
        await self._listener.start()
        self._pending_offsets.attach(broker.groups)
        self._forwarded.attach({**log_service.by_leader, **group_service.forwarded, **ingest_service.forwarded})
        logger.info("listening: address=%s node_id=%d cluster_id=%s", bound, parts.node_id, parts.cluster_id)

    def _leader(self, broker: _Broker) -> Leader:
        """Return this broker as the streams of its followers see it."""
        manager, parts, observer = broker.manager, broker.parts, self._observer
        return Leader(
            cluster_id=parts.cluster_id,
            node_id=parts.node_id,
            observer=observer,
            broker_epoch=lambda: broker.lifecycle.broker_epoch,
            find=manager.find,
            streams=self._follower_streams,
            rates=configured_rates(observer, parts.node_id),
            ranges=RangeSource(
                cluster_id=parts.cluster_id, node_id=parts.node_id, observer=observer, find=manager.find
            ),
        )

    def _begin(self, quorum: QuorumMember, broker: _Broker) -> None:
        """Start the registration and all background work."""
        lifecycle, manager, address = broker.lifecycle, broker.manager, self.address
        broker.groups.start()
        broker.ingests.start()
        self._watch(lifecycle.start(host=address.host, port=address.port, replication_port=quorum.internal_port))

        async def expire_producers() -> None:
            await manager.expire_producers(self._settings.producer_id_expiration_ms)

        self._run("quorum node", _fail_at_end_of(quorum))
        self._run("start of the logs", self._come_up(lifecycle, manager))
        self._run("watch over the session with the controller", lifecycle.session.watch())
        self._run("watch over free space", _every(SPACE_CHECK_MS, manager.tend_space))
        self._run("deletion of set-aside directories", _every(REMOVED_CHECK_MS, manager.delete_due))
        self._run("expiry of idle producers", _every(PRODUCER_EXPIRY_CHECK_MS, expire_producers))
        self._run("quota of staged records", _every(STAGING_SWEEP_MS, broker.parts.staging_quota.measure))
        self._run("sweep of staged records", broker.staging_sweep.run())
        self._run("repair of damaged ranges", DamageRepairs(manager.replicas, broker.replication.repairs).run())

    async def _come_up(self, lifecycle: BrokerLifecycle, manager: ReplicaManager) -> None:
        """Open the logs once the metadata shows the registration, ask to be unfenced, and then serve clients."""
        broker_epoch = await lifecycle.registered()
        while not await self._observer.wait_for(broker_epoch + 1, timeout_ms=LIFECYCLE_WAIT_MS):
            logger.warning("waiting for the metadata up to %d: have %d", broker_epoch, self._observer.metadata_offset)
        await manager.start()
        logger.info("logs open: replica_count=%d", manager.replica_count)
        lifecycle.set_ready()
        await self._wait_led(lifecycle.broker_id, manager)
        # Replicas that waited for the registration before they lead now begin to lead.
        await manager.wait_idle()
        self._is_up = True
        self._on_state(lifecycle.state)

    async def _wait_led(self, node_id: int, manager: ReplicaManager) -> None:
        """Wait until this broker's own metadata shows it unfenced and its partitions with leaders: only then is `ready` true.

        The controller elects leaders in slices after it has unfenced a broker.
        """
        give_up_ms: int | None = None
        while True:
            broker = self._observer.image.brokers.get(node_id)
            if broker is not None and not broker.fenced:
                if manager.leaderless_count() == 0:
                    return
                give_up_ms = give_up_ms or monotonic_ms() + ELECTION_WAIT_MS
                if monotonic_ms() >= give_up_ms:
                    logger.warning("%d partitions here have no leader yet", manager.leaderless_count())
                    return
            await self._observer.wait_for(self._observer.metadata_offset + 1, timeout_ms=ELECTION_WAIT_MS // 4)

    # While it runs.

    async def wait_serving(self, *, timeout_ms: int) -> None:
        """Wait until the broker serves clients.

        Raises:
            BrokerError: it does not serve in time, or it failed while it started.
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
        """Wait for a failure after which the process cannot continue.

        Raises:
            BrokerError: the failure.
        """
        raise await asyncio.shield(self._fatal)

    async def wait_drained(self) -> None:
        """Wait until no client stream is open."""
        for register in self._client_streams:
            await register.wait_empty()

    def _on_state(self, state: BrokerState) -> None:
        if self._broker is not None:
            self._broker.replication.note_registration()
        is_serving = self._is_up and state.broker_epoch is not None and not state.is_fenced and not self._is_stopping
        if is_serving == self._serving.is_set():
            return
        if is_serving:
            self._serving.set()
        else:
            self._serving.clear()
        self._run("health", self._health.set_serving(is_serving))

    def _on_manager_failed(self, failed: asyncio.Future[BaseException]) -> None:
        if not failed.cancelled():
            self._fail(BrokerFailedError(f"the log directory failed: {failed.result()}"))

    def _run(self, name: str, work: Coroutine[None, None, None]) -> None:
        """Run work in the background. If it fails, the broker fails."""
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

    # Stop.

    async def stop(self) -> None:
        """Stop cleanly: streams drain, logs are flushed and closed. Idempotent."""
        if self._is_stopping:
            return
        self._is_stopping = True
        broker = self._broker
        await self._health.set_serving(False)
        self._serving.clear()
        leads_for_others = broker is not None and broker.manager.leads_several
        if leads_for_others:
            # Leaderships move first, while this broker still serves. Clients follow the leader hint to the next leader.
            await self._leave(leads_for_others=True)
        for register in (*self._client_streams, self._follower_streams):
            register.go_away(GOING_AWAY, DRAIN_MS)
        await self._drain()
        if not leads_for_others:
            # No other broker has these partitions, so this one first acknowledges what is in flight.
            await self._leave(leads_for_others=False)
        if broker is not None:
            await broker.lifecycle.stop()
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._fetch_buffer.close()
        self._batch_threads.close()
        if broker is not None:
            # Before the listeners, so that calls that wait get typed answers.
            await broker.outcomes.close()
            await broker.groups.stop()
            await broker.ingests.stop()
            await broker.staging_topics.close()
        await self._close_listeners()
        if broker is not None:
            await broker.parts.producer_ids.close()
        if self._quorum is not None:
            # The voter stops first: its controller's work for partitions without a leader would only delay the closing of their logs.
            await self._quorum.stop_voter()
        await self._close_logs()
        if self._quorum is not None:
            await self._quorum.stop()
            if self._metrics is not None:
                await self._metrics.close()
            logger.info("stopped: node_id=%d", self._settings.node_id)

    async def _leave(self, *, leads_for_others: bool) -> None:
        """Ask the controller for a controlled shutdown and wait for its permission."""
        if self._broker is None:
            return
        lifecycle = self._broker.lifecycle
        if not await lifecycle.shut_down(timeout_ms=SHUTDOWN_HANDOVER_MS, leads_for_others=leads_for_others):
            logger.warning("stopping without the controller's leave")

    async def _drain(self) -> None:
        try:
            async with asyncio.timeout(DRAIN_MS / 1000):
                await self.wait_drained()
        except TimeoutError:
            logger.info("%d streams are still open after %d ms and are cut", self.stream_count, DRAIN_MS)

    async def _close_listeners(self) -> None:
        """End the requests of followers, other brokers and clients."""
        if self._ingest_calls is not None:
            self._ingest_calls.close()
        if self._publications is not None:
            await self._publications.close()
        if self._followers is not None:
            await self._followers.close()
        closing: list[Awaitable[None]] = [self._listener.stop(STOP_GRACE_S)]
        if self._forwarded is not None:
            closing.append(self._forwarded.close(STOP_GRACE_S))
        await asyncio.gather(*closing)

    async def _close_logs(self) -> None:
        """Close the logs. If everything is on stable storage, mark that for the next process and for the controller."""
        broker, directories = self._broker, self._directories
        is_clean = broker is not None and await broker.manager.stop()
        if broker is not None:
            await broker.replication.close()
        if directories is None:
            return
        broker_epoch = None if broker is None else broker.lifecycle.broker_epoch
        if is_clean and broker_epoch is not None:
            try:
                await asyncio.to_thread(mark_clean_stop, tuple(directories.logs), broker_epoch)
            except StorageError as error:
                logger.error("the stop was not marked as clean: %s", error)
        directories.close()


async def _every(interval_ms: int, work: Callable[[], Awaitable[object]]) -> None:
    """Run work repeatedly, with a pause before each run."""
    while True:
        await asyncio.sleep(interval_ms / 1000)
        await work()


async def _fail_at_end_of(quorum: QuorumMember) -> None:
    await quorum.wait_stopped()
    raise BrokerFailedError("the quorum node of this process has stopped")
