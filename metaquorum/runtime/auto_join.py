# SPDX-License-Identifier: Apache-2.0
"""Auto-join: an observer that is meant to vote asks the leader for it, once in the life of its process.

Owns when it asks: when the leader sees it caught up, and no live replica votes under its node id. An old key of this
node id that has been silent is taken out first: its disk was lost or replaced. Decides nothing about the voters: the
leader does. Whoever was removed by an operator is not brought back before its next start.
Source: KIP-853 "controller.quorum.auto.join.enable".
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

import grpc.aio
from lograft.v1 import admin_pb2
from lograft.v1.admin_pb2_grpc import AdminServiceStub

from metaquorum.runtime.quorum_node import QuorumNode
from metaquorum.runtime.transport import CHANNEL_OPTIONS

if TYPE_CHECKING:
    # A name of the type stubs alone: at run time one class serves both kinds of channel.
    from lograft.v1.admin_pb2_grpc import AdminServiceAsyncStub

logger = logging.getLogger(__name__)

PAUSE_MS: Final = 500
"""Time between two looks."""

CALL_TIMEOUT_S: Final = 5.0
"""Seconds that one call may take."""

STALE_VOTER_MS: Final = 5_000
"""A voter of this node id that has not fetched for so long is taken for a lost disk, not for a second process."""

CAUGHT_UP_MS_MAX: Final = 5_000
"""The leader must have seen this replica with everything within so many milliseconds."""


class AutoJoin:
    """See the module docstring.

    Args:
        node: the running quorum node.
    """

    def __init__(self, node: QuorumNode) -> None:
        self._node = node
        self._last_reason = ""

    async def run(self) -> None:
        """Return when this replica votes; cancel to give up."""
        while True:
            if await self._attempt():
                break
            await asyncio.sleep(PAUSE_MS / 1000)
        logger.info("event=auto_joined node=%d directory_id=%s", self._node.node_id, self._node.directory_id.hex())

    async def _attempt(self) -> bool:
        if self._node.status().is_voter:
            return True
        address = self._node.leader().address
        if address is None:
            return self._wait("no leader is known")
        try:
            async with grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS) as channel:
                return await self._ask(AdminServiceStub(channel))
        except grpc.aio.AioRpcError as error:
            return self._wait(f"{address}: {error.code().name} {error.details()}")

    async def _ask(self, leader: AdminServiceAsyncStub) -> bool:
        cluster_id, node_id, own_id = self._node.cluster_id, self._node.node_id, self._node.directory_id
        quorum = await leader.DescribeQuorum(
            admin_pb2.DescribeQuorumRequest(cluster_id=cluster_id), timeout=CALL_TIMEOUT_S
        )
        own = next((each for each in quorum.observers if each.directory_id == own_id), None)
        has_all = own is not None and own.HasField("last_caught_up_age_ms")
        if own is None or not has_all or own.last_caught_up_age_ms > CAUGHT_UP_MS_MAX:
            return self._wait("not caught up yet")
        for voter in quorum.voters:
            if voter.node_id != node_id:
                continue
            if voter.HasField("last_fetch_age_ms") and voter.last_fetch_age_ms <= STALE_VOTER_MS:
                return self._wait(f"another replica of node {node_id} votes and is alive")
            request = admin_pb2.RemoveVoterRequest(
                cluster_id=cluster_id,
                node_id=node_id,
                directory_id=voter.directory_id,
                replacement_directory_id=own_id,
            )
            await leader.RemoveVoter(request, timeout=CALL_TIMEOUT_S)
            logger.warning("event=auto_join_removed_old node=%d directory_id=%s", node_id, voter.directory_id.hex())
        request = admin_pb2.AddVoterRequest(cluster_id=cluster_id, node_id=node_id, directory_id=own_id)
        await leader.AddVoter(request, timeout=CALL_TIMEOUT_S)
        return True

    def _wait(self, reason: str) -> bool:
        if reason != self._last_reason:
            self._last_reason = reason
            logger.info("event=auto_join_waits node=%d reason=%s", self._node.node_id, reason)
        return False
