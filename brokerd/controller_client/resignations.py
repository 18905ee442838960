# SPDX-License-Identifier: Apache-2.0
"""Leaderships that are given up, on their way to the controller: gathered and sent in one call, never repeated.

Owns what waits and the one call under way. Must not decide what is given up: cores, repairs and full directories do, and ask again
if this broker still leads.

Law: whatever becomes of a call, the metadata says who leads; a lost answer costs a pause and nothing else.
Source: docs/replication.md sections "Giving way", "Full disks"; docs/controller.md section "ResignLeadership".
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from google.protobuf.message import DecodeError
from lograft.internal.v1 import controller_pb2

from brokerd.controller_client.controller_calls import ControllerCalls
from brokerd.failure import RefusedError
from brokerd.limits import GIVE_WAY_CALL_MS, ISR_GATHER_MS, MAX_CALL_RESIGNATIONS
from brokerd.replica.replica_peers import Resignation, ResignReason
from metaquorum.net.methods import Method

logger = logging.getLogger(__name__)


class Resignations:
    """See the module docstring.

    Args:
        calls: the way to the controller.
        cluster_id: the cluster.
        node_id: this broker.
        broker_epoch: gives the epoch of its registration; None while there is none.
    """

    def __init__(
        self, calls: ControllerCalls, *, cluster_id: str, node_id: int, broker_epoch: Callable[[], int | None]
    ) -> None:
        self._calls = calls
        self._cluster_id = cluster_id
        self._node_id = node_id
        self._broker_epoch = broker_epoch
        # One entry for each partition that this broker leads, by (topic id, partition): the latest one.
        self._waiting: dict[tuple[bytes, int], Resignation] = {}
        self._task: asyncio.Task[None] | None = None
        self._is_closed = False

    def resign(self, resignation: Resignation) -> None:
        """Ask that another replica leads a partition."""
        if self._is_closed:
            return
        self._waiting[resignation.topic_id, resignation.partition] = resignation
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name="resignations")

    async def close(self) -> None:
        """Send nothing more. Idempotent."""
        self._is_closed = True
        self._waiting.clear()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        try:
            while self._waiting:
                await asyncio.sleep(ISR_GATHER_MS / 1000)
                taken = list(self._waiting)[:MAX_CALL_RESIGNATIONS]
                await self._send([self._waiting.pop(key) for key in taken])
        finally:
            self._task = None

    async def _send(self, given_up: list[Resignation]) -> None:
        broker_epoch = self._broker_epoch()
        if broker_epoch is None:
            return
        request = controller_pb2.ResignLeadershipRequest(
            cluster_id=self._cluster_id,
            broker_id=self._node_id,
            broker_epoch=broker_epoch,
            partitions=[
                controller_pb2.LedPartition(
                    topic_id=each.topic_id,
                    partition=each.partition,
                    leader_epoch=each.leader_epoch,
                    allow_eligible=each.allow_eligible,
                    needs_room=each.reason is ResignReason.NO_ROOM,
                )
                for each in given_up
            ],
        )
        try:
            answer = await self._calls.call(
                Method.RESIGN_LEADERSHIP, request.SerializeToString(), timeout_ms=GIVE_WAY_CALL_MS
            )
            response = controller_pb2.ResignLeadershipResponse.FromString(answer)
        except (RefusedError, DecodeError) as error:
            logger.warning("leaderships not given up: count=%d: %s", len(given_up), _text(error))
            return
        reasons = {(each.topic_id, each.partition): each.reason.value for each in given_up}
        for result in response.results:
            name = f"{result.topic_id.hex()}-{result.partition}"
            reason = reasons.get((result.topic_id, result.partition))
            if result.HasField("state"):
                leader_id = result.state.leader_id if result.state.HasField("leader_id") else None
                logger.warning("leadership given up: partition=%s reason=%s leader_id=%s", name, reason, leader_id)
            else:
                logger.info("leadership kept: partition=%s reason=%s: %s", name, reason, result.error.message)


def _text(error: Exception) -> str:
    return error.failure.message if isinstance(error, RefusedError) else str(error)
