# SPDX-License-Identifier: Apache-2.0
"""Requests of brokers to the active controller.

Owns the translation of requests to commands, and the check of a broker whose connection ended. If its port refuses, its process is
gone, and the controller fences it within milliseconds instead of a session timeout.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from lograft.internal.v1 import controller_pb2 as pb

from metaquorum.controller.commands import (
    AllocateProducerIds,
    AlterPartition,
    BrokerRegistered,
    FenceBroker,
    Heartbeat,
    HeartbeatAnswered,
    IsrProposal,
    LeadershipResigned,
    LedPartition,
    PartitionsAltered,
    ProducerIdsAllocated,
    Refusal,
    RegisterBroker,
    ResignLeadership,
)
from metaquorum.controller_service.calls import check_cluster, not_started, refusal, refusing, wait_ms
from metaquorum.controller_service.codec import to_error
from metaquorum.controller_service.commit_waiters import CommandError
from metaquorum.controller_service.controller_host import ControllerHost
from metaquorum.metadata.state import PartitionImage
from metaquorum.net.link import Link, ServedCall
from metaquorum.net.methods import Method
from metaquorum.net.service import ServiceTable

logger = logging.getLogger(__name__)

REDIAL_TIMEOUT_MS: Final = 500
"""Longest time in milliseconds of one connection to the port of a broker whose connection ended."""

REDIAL_ATTEMPTS: Final = 10
"""Connections to that port that may be accepted and closed at once before the check ends without a result."""

REDIAL_PAUSE_MS: Final = 20
"""Milliseconds between two of these connections."""

HEARTBEAT_WAIT_MS: Final = 3_000
"""Longest time in milliseconds that one heartbeat waits for its answer."""


class ControllerService:
    """Serves the requests of brokers.

    Args:
        table: table to which the service adds its methods.
        cluster_id: cluster that requests must name.
    """

    def __init__(self, table: ServiceTable, *, cluster_id: str) -> None:
        self._cluster_id = cluster_id
        self._attached: ControllerHost | None = None
        # The brokers whose heartbeats came over a connection, with the broker epoch of the last one.
        self._beating: dict[Link, dict[int, int]] = {}
        self._redials: dict[int, asyncio.Task[None]] = {}
        table.add_waiting(Method.REGISTER_BROKER, pb.RegisterBrokerRequest, refusing(self._register))
        table.add_waiting(Method.HEARTBEAT, pb.HeartbeatRequest, self._heartbeat)
        table.add_waiting(Method.ALLOCATE_PRODUCER_IDS, pb.AllocateProducerIdsRequest, refusing(self._allocate))
        table.add_waiting(Method.ALTER_PARTITION, pb.AlterPartitionRequest, refusing(self._alter_partition))
        table.add_waiting(Method.RESIGN_LEADERSHIP, pb.ResignLeadershipRequest, refusing(self._resign))

    def attach(self, host: ControllerHost) -> None:
        """Answer with the controller of this node from here on."""
        self._attached = host

    async def detach(self) -> None:
        """Refuse every request from here on, and cancel running checks of brokers."""
        self._attached = None
        tasks = list(self._redials.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _register(self, request: pb.RegisterBrokerRequest, timeout_ms: int) -> pb.RegisterBrokerResponse:
        host = self._checked(request.cluster_id)
        level = request.feature_level
        command = RegisterBroker(
            broker_id=request.broker_id,
            incarnation_id=request.incarnation_id,
            host=request.host,
            port=request.port,
            rack=request.rack or None,
            log_directory_ids=tuple(request.log_directory_ids),
            min_feature_level=level.min_level,
            max_feature_level=level.max_level,
            replication_port=request.replication_port,
            clean_stop_epoch=request.clean_stop_epoch if request.HasField("clean_stop_epoch") else None,
        )
        outcome = await host.submit(command, timeout_ms=timeout_ms)
        response = outcome.response
        assert isinstance(response, BrokerRegistered), f"unexpected {response}"
        epoch = outcome.base_offset if response.broker_epoch is None else response.broker_epoch
        assert epoch is not None, f"a new registration without a record: {outcome}"
        return pb.RegisterBrokerResponse(
            broker_epoch=epoch,
            heartbeat_interval_ms=host.settings.heartbeat_interval_ms,
            session_timeout_ms=host.settings.session_timeout_ms,
        )

    async def _allocate(
        self, request: pb.AllocateProducerIdsRequest, timeout_ms: int
    ) -> pb.AllocateProducerIdsResponse:
        host = self._checked(request.cluster_id)
        command = AllocateProducerIds(broker_id=request.broker_id, broker_epoch=request.broker_epoch)
        outcome = await host.submit(command, timeout_ms=timeout_ms)
        response = outcome.response
        assert isinstance(response, ProducerIdsAllocated), f"unexpected {response}"
        return pb.AllocateProducerIdsResponse(first_producer_id=response.first_producer_id, count=response.count)

    async def _alter_partition(self, request: pb.AlterPartitionRequest, timeout_ms: int) -> pb.AlterPartitionResponse:
        host = self._checked(request.cluster_id)
        outcome = await host.submit(_alter_partition(request), timeout_ms=timeout_ms)
        response = outcome.response
        assert isinstance(response, PartitionsAltered), f"unexpected {response}"
        return pb.AlterPartitionResponse(
            results=[
                _result(proposal.topic_id, proposal.partition, result)
                for proposal, result in zip(request.proposals, response.results, strict=True)
            ],
            metadata_offset=outcome.metadata_offset,
        )

    async def _resign(self, request: pb.ResignLeadershipRequest, timeout_ms: int) -> pb.ResignLeadershipResponse:
        host = self._checked(request.cluster_id)
        outcome = await host.submit(_resign_leadership(request), timeout_ms=timeout_ms)
        response = outcome.response
        assert isinstance(response, LeadershipResigned), f"unexpected {response}"
        return pb.ResignLeadershipResponse(
            results=[
                _result(led.topic_id, led.partition, result)
                for led, result in zip(request.partitions, response.results, strict=True)
            ],
            metadata_offset=outcome.metadata_offset,
        )

    async def _heartbeat(self, request: pb.HeartbeatRequest, call: ServedCall) -> pb.HeartbeatResponse:
        beating = self._beating_over(call.link)
        try:
            response = await self._answer_heartbeat(request, min(wait_ms(call.timeout_ms), HEARTBEAT_WAIT_MS))
        except CommandError as error:
            # The broker will register again, or send its heartbeats to another node.
            beating.pop(request.broker_id, None)
            raise refusal(error) from error
        if response.should_shutdown:
            beating.pop(request.broker_id, None)
        else:
            beating[request.broker_id] = request.broker_epoch
        return response

    async def _answer_heartbeat(self, request: pb.HeartbeatRequest, timeout_ms: int) -> pb.HeartbeatResponse:
        host = self._checked(request.cluster_id)
        host.check_applied(request.metadata_offset)
        command = Heartbeat(
            broker_id=request.broker_id,
            broker_epoch=request.broker_epoch,
            metadata_offset=request.metadata_offset,
            want_fence=request.want_fence,
            want_shutdown=request.want_shutdown,
            offline_log_directory_ids=tuple(request.offline_log_directory_ids),
            lacks_room=request.lacks_room,
        )
        outcome = await host.submit(command, timeout_ms=timeout_ms)
        answer = outcome.response
        assert isinstance(answer, HeartbeatAnswered), f"unexpected {answer}"
        return pb.HeartbeatResponse(
            fenced=answer.fenced,
            caught_up=answer.caught_up,
            should_shutdown=answer.should_shutdown,
            metadata_offset=outcome.metadata_offset,
        )

    def _beating_over(self, link: Link) -> dict[int, int]:
        beating = self._beating.get(link)
        if beating is None:
            beating = self._beating[link] = {}
            link.closed.add_done_callback(lambda _: self._on_closed(link))
        return beating

    def _on_closed(self, link: Link) -> None:
        """Check the brokers that sent heartbeats over a closed connection: they may be gone."""
        for broker_id, broker_epoch in self._beating.pop(link, {}).items():
            self._look_after(broker_id, broker_epoch)

    def _look_after(self, broker_id: int, broker_epoch: int) -> None:
        """Check in the background whether a broker is gone; one check for each broker at a time."""
        host = self._attached
        if host is None or not host.is_active or broker_id in self._redials:
            return
        task = asyncio.get_running_loop().create_task(_fence_if_gone(host, broker_id, broker_epoch))
        self._redials[broker_id] = task
        task.add_done_callback(lambda _: self._redials.pop(broker_id, None))

    def _checked(self, cluster_id: str) -> ControllerHost:
        check_cluster(cluster_id, self._cluster_id, required=True)
        if self._attached is None:
            raise not_started()
        self._attached.require_active()
        return self._attached


def _alter_partition(request: pb.AlterPartitionRequest) -> AlterPartition:
    return AlterPartition(
        broker_id=request.broker_id,
        broker_epoch=request.broker_epoch,
        proposals=tuple(
            IsrProposal(
                topic_id=each.topic_id,
                partition=each.partition,
                leader_epoch=each.leader_epoch,
                partition_epoch=each.partition_epoch,
                isr=tuple(
                    (member.node_id, member.broker_epoch if member.HasField("broker_epoch") else None)
                    for member in each.isr
                ),
                is_lost=each.is_lost,
                found_directory_id=each.found_directory_id if each.HasField("found_directory_id") else None,
            )
            for each in request.proposals
        ),
    )


def _resign_leadership(request: pb.ResignLeadershipRequest) -> ResignLeadership:
    return ResignLeadership(
        broker_id=request.broker_id,
        broker_epoch=request.broker_epoch,
        partitions=tuple(
            LedPartition(
                topic_id=each.topic_id,
                partition=each.partition,
                leader_epoch=each.leader_epoch,
                allow_eligible=each.allow_eligible,
                needs_room=each.needs_room,
            )
            for each in request.partitions
        ),
    )


def _result(topic_id: bytes, partition: int, outcome: PartitionImage | Refusal) -> pb.AlterPartitionResult:
    return pb.AlterPartitionResult(
        topic_id=topic_id,
        partition=partition,
        state=None if isinstance(outcome, Refusal) else _state(outcome),
        error=to_error(outcome) if isinstance(outcome, Refusal) else None,
    )


def _state(partition: PartitionImage) -> pb.PartitionState:
    return pb.PartitionState(
        replicas=partition.replicas,
        isr=partition.isr,
        leader_id=partition.leader_id,
        leader_epoch=partition.leader_epoch,
        partition_epoch=partition.partition_epoch,
        elr=partition.elr,
        adding=partition.adding,
        removing=partition.removing,
    )


async def _fence_if_gone(host: ControllerHost, broker_id: int, broker_epoch: int) -> None:
    broker = host.image.broker(broker_id)
    if broker is None or broker.broker_epoch != broker_epoch or broker.fenced:
        return
    if not await is_gone(broker.host, broker.port):
        return
    logger.warning("event=broker_gone broker_id=%d port=refused action=fence", broker_id)
    try:
        await host.submit(FenceBroker(broker_id=broker_id, broker_epoch=broker_epoch), timeout_ms=HEARTBEAT_WAIT_MS)
    except CommandError as error:
        logger.info("event=fencing_given_up broker_id=%d reason=%s", broker_id, error.code.name)


async def is_gone(host: str, port: int) -> bool:
    """Return True if a port refuses connections, which proves that the process behind it has ended.

    A killed process closes its sockets one after the other, so its listener may accept for a moment after its connections are closed.
    So a connection is a sign of life only if the other side sends something (a gRPC server speaks first); one that closes at once is
    tried again. Silence proves nothing, because a paused process accepts, too.
    """
    for _ in range(REDIAL_ATTEMPTS):
        try:
            async with asyncio.timeout(REDIAL_TIMEOUT_MS / 1000):
                reader, writer = await asyncio.open_connection(host, port)
                try:
                    if await reader.read(1):
                        return False
                finally:
                    writer.close()
        except ConnectionRefusedError:
            return True
        except ConnectionResetError:
            logger.debug("event=redial_reset host=%s port=%d", host, port)
        except (OSError, TimeoutError):
            return False
        await asyncio.sleep(REDIAL_PAUSE_MS / 1000)
    return False
