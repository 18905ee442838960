# SPDX-License-Identifier: Apache-2.0
"""`ControllerService`: what brokers ask of the active controller.

Owns requests to commands, the heartbeat streams, and the look after a broker whose stream broke: when its port refuses,
the process is gone and the broker is fenced at once, in milliseconds instead of a session timeout.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Final

from lograft.internal.v1 import controller_pb2, controller_pb2_grpc
from lograft.wire.codes import ErrorCode

from metaquorum.controller.commands import (
    AllocateProducerIds,
    BrokerRegistered,
    FenceBroker,
    Heartbeat,
    HeartbeatAnswered,
    ProducerIdsAllocated,
    RegisterBroker,
)
from metaquorum.rpc import alter_partition_calls, resignation_calls
from metaquorum.rpc.calls import Answering, ServicerContext, check_cluster, internal_error, timeout_ms, to_status
from metaquorum.runtime.commit_waiters import CommandError
from metaquorum.runtime.controller_host import ControllerHost

logger = logging.getLogger(__name__)

MAX_HEARTBEAT_STREAMS: Final = 20_000
"""Heartbeat streams open at once; more are refused with OVERLOADED."""

REDIAL_TIMEOUT_MS: Final = 500
"""Longest time of one connection to the port of a broker whose stream broke."""

REDIAL_ATTEMPTS: Final = 10
"""Connections to that port that may be accepted and closed at once before the look is given up."""

REDIAL_PAUSE_MS: Final = 20
"""Milliseconds between two of them."""

HEARTBEAT_WAIT_MS: Final = 3_000
"""Longest time that one heartbeat waits for its answer."""


class ControllerServicer(controller_pb2_grpc.ControllerServiceServicer):
    """The service.

    Args:
        host: controller of this node.
        cluster_id: cluster that requests must name.
    """

    def __init__(self, host: ControllerHost, *, cluster_id: str) -> None:
        self._host = host
        self._cluster_id = cluster_id
        self._streams = 0
        self._redials: dict[int, asyncio.Task[None]] = {}

    async def RegisterBroker(
        self, request: controller_pb2.RegisterBrokerRequest, context: ServicerContext
    ) -> controller_pb2.RegisterBrokerResponse:
        """Register a broker process."""
        async with Answering(context):
            self._check(request.cluster_id)
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
            outcome = await self._host.submit(command, timeout_ms=timeout_ms(context))
            response = outcome.response
            assert isinstance(response, BrokerRegistered), f"unexpected {response}"
            epoch = outcome.base_offset if response.broker_epoch is None else response.broker_epoch
            assert epoch is not None, f"a new registration without a record: {outcome}"
            return controller_pb2.RegisterBrokerResponse(
                broker_epoch=epoch,
                heartbeat_interval_ms=self._host.settings.heartbeat_interval_ms,
                session_timeout_ms=self._host.settings.session_timeout_ms,
            )

    async def AllocateProducerIds(
        self, request: controller_pb2.AllocateProducerIdsRequest, context: ServicerContext
    ) -> controller_pb2.AllocateProducerIdsResponse:
        """Give a block of producer ids to a broker."""
        async with Answering(context):
            self._check(request.cluster_id)
            command = AllocateProducerIds(broker_id=request.broker_id, broker_epoch=request.broker_epoch)
            outcome = await self._host.submit(command, timeout_ms=timeout_ms(context))
            response = outcome.response
            assert isinstance(response, ProducerIdsAllocated), f"unexpected {response}"
            return controller_pb2.AllocateProducerIdsResponse(
                first_producer_id=response.first_producer_id, count=response.count
            )

    async def AlterPartition(
        self, request: controller_pb2.AlterPartitionRequest, context: ServicerContext
    ) -> controller_pb2.AlterPartitionResponse:
        """Take in-sync replicas that a leader proposes."""
        async with Answering(context):
            self._check(request.cluster_id)
            outcome = await self._host.submit(alter_partition_calls.command(request), timeout_ms=timeout_ms(context))
            return alter_partition_calls.answer(request, outcome)

    async def ResignLeadership(
        self, request: controller_pb2.ResignLeadershipRequest, context: ServicerContext
    ) -> controller_pb2.ResignLeadershipResponse:
        """Give partitions that a leader gives up to other replicas that are in sync."""
        async with Answering(context):
            self._check(request.cluster_id)
            outcome = await self._host.submit(resignation_calls.command(request), timeout_ms=timeout_ms(context))
            return resignation_calls.answer(request, outcome)

    async def Heartbeat(
        self, request_iterator: AsyncIterator[controller_pb2.HeartbeatRequest], context: ServicerContext
    ) -> AsyncIterator[controller_pb2.HeartbeatResponse]:
        """Answer each heartbeat of a stream; a refused one ends the stream."""
        if self._streams >= MAX_HEARTBEAT_STREAMS:
            error = CommandError(ErrorCode.OVERLOADED, f"{MAX_HEARTBEAT_STREAMS} heartbeat streams are open")
            await context.abort_with_status(to_status(error))
        self._streams += 1
        last: controller_pb2.HeartbeatRequest | None = None
        try:
            async for request in request_iterator:
                response = await self._answer_heartbeat(request)
                last = None if response.should_shutdown else request
                yield response
        except CommandError as error:
            last = None
            await context.abort_with_status(to_status(error))
        except asyncio.CancelledError:
            raise
        except Exception:
            last = None
            logger.exception("event=call_failed call=Heartbeat")
            await context.abort_with_status(internal_error())
        finally:
            self._streams -= 1
            if last is not None:
                self._look_after(last.broker_id, last.broker_epoch)

    async def _answer_heartbeat(self, request: controller_pb2.HeartbeatRequest) -> controller_pb2.HeartbeatResponse:
        self._check(request.cluster_id)
        self._host.check_applied(request.metadata_offset)
        command = Heartbeat(
            broker_id=request.broker_id,
            broker_epoch=request.broker_epoch,
            metadata_offset=request.metadata_offset,
            want_fence=request.want_fence,
            want_shutdown=request.want_shutdown,
            offline_log_directory_ids=tuple(request.offline_log_directory_ids),
            lacks_room=request.lacks_room,
        )
        outcome = await self._host.submit(command, timeout_ms=HEARTBEAT_WAIT_MS)
        answer = outcome.response
        assert isinstance(answer, HeartbeatAnswered), f"unexpected {answer}"
        return controller_pb2.HeartbeatResponse(
            fenced=answer.fenced,
            caught_up=answer.caught_up,
            should_shutdown=answer.should_shutdown,
            metadata_offset=outcome.metadata_offset,
        )

    def _look_after(self, broker_id: int, broker_epoch: int) -> None:
        """Find out in the background whether a broker whose stream ended is gone; one look per broker at a time."""
        if not self._host.is_active or broker_id in self._redials:
            return
        task = asyncio.get_running_loop().create_task(self._fence_if_gone(broker_id, broker_epoch))
        self._redials[broker_id] = task
        task.add_done_callback(lambda _: self._redials.pop(broker_id, None))

    async def _fence_if_gone(self, broker_id: int, broker_epoch: int) -> None:
        broker = self._host.image.broker(broker_id)
        if broker is None or broker.broker_epoch != broker_epoch or broker.fenced:
            return
        if not await is_gone(broker.host, broker.port):
            return
        logger.warning("event=broker_gone broker_id=%d port=refused action=fence", broker_id)
        try:
            await self._host.submit(
                FenceBroker(broker_id=broker_id, broker_epoch=broker_epoch), timeout_ms=HEARTBEAT_WAIT_MS
            )
        except CommandError as error:
            logger.info("event=fencing_given_up broker_id=%d reason=%s", broker_id, error.code.name)

    async def stop(self) -> None:
        """Give up the looks that are under way."""
        tasks = list(self._redials.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _check(self, cluster_id: str) -> None:
        check_cluster(cluster_id, self._cluster_id, required=True)
        self._host.require_active()


async def is_gone(host: str, port: int) -> bool:
    """Return True when a port refuses, which proves that the process behind it has ended.

    A killed process closes its sockets one after the other: its listener may accept for a moment when its connections
    are closed already. So a connection counts as a sign of life only when something comes out of it (a gRPC server
    speaks first); one that is closed at once is tried again. Silence proves nothing: a paused process accepts too.
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
