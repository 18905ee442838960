# SPDX-License-Identifier: Apache-2.0
"""Auto-join: an observer among the configured voters asks the leader once in its process to become a voter.

Owns the time of the request: when the leader sees this replica caught up, and no live replica votes under its node id. A silent voter
with its node id is removed first, because its disk was lost or replaced. A new leader has not heard of any voter yet: such a voter
counts as silent only after this leader has not heard of it for `STALE_VOTER_MS`. The leader decides about the voters. A voter that
an operator removed does not come back before its next start.
Source: KIP-853 "controller.quorum.auto.join.enable".
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from google.protobuf.message import DecodeError, Message
from lograft.internal.v1 import controller_pb2 as pb
from lograft.v1 import admin_pb2

from metaquorum.net.link import CallError, RefusedByPeerError
from metaquorum.net.methods import Method
from metaquorum.net.peers import Peers
from metaquorum.net.service import decode_refusal
from metaquorum.replica.quorum_node import QuorumNode

logger = logging.getLogger(__name__)

PAUSE_MS: Final = 500
"""Milliseconds between two attempts."""

CALL_TIMEOUT_MS: Final = 5_000
"""Milliseconds that one call may take."""

STALE_VOTER_MS: Final = 5_000
"""Milliseconds without a fetch after which a voter of this node id counts as a lost disk, not as a second process."""

CAUGHT_UP_MS_MAX: Final = 5_000
"""The leader must have seen this replica caught up within this many milliseconds."""


class AutoJoin:
    """Makes this replica a voter.

    Args:
        node: the running quorum node.
        peers: connections of this process to other servers.
    """

    def __init__(self, node: QuorumNode, peers: Peers) -> None:
        self._node = node
        self._peers = peers
        self._last_reason = ""
        self._unheard: tuple[int, bytes] | None = None
        self._unheard_since_s = 0.0

    async def run(self) -> None:
        """Try until this replica votes, then return. Cancel it to stop."""
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
            return await self._ask(address)
        except CallError as error:
            reason = decode_refusal(error.failure) if isinstance(error, RefusedByPeerError) else error
            return self._wait(f"{address}: {reason}")
        except DecodeError as error:
            return self._wait(f"{address}: an answer that is none: {error}")

    async def _call(self, address: str, method: str, request: Message) -> bytes:
        call = pb.AdminCall(method=method, request=request.SerializeToString()).SerializeToString()
        answer = await self._peers.ask(address, Method.ADMIN, call, timeout_ms=CALL_TIMEOUT_MS)
        return pb.AdminAnswer.FromString(answer).response

    async def _ask(self, address: str) -> bool:
        cluster_id, node_id, own_id = self._node.cluster_id, self._node.node_id, self._node.directory_id
        describe = admin_pb2.DescribeQuorumRequest(cluster_id=cluster_id)
        quorum = admin_pb2.DescribeQuorumResponse.FromString(await self._call(address, "DescribeQuorum", describe))
        own = next((each for each in quorum.observers if each.directory_id == own_id), None)
        has_all = own is not None and own.HasField("last_caught_up_age_ms")
        if own is None or not has_all or own.last_caught_up_age_ms > CAUGHT_UP_MS_MAX:
            return self._wait("not caught up yet")
        for voter in quorum.voters:
            if voter.node_id != node_id:
                continue
            if quorum.leader_id == node_id or self._silent_ms(quorum.quorum_epoch, voter) <= STALE_VOTER_MS:
                return self._wait(f"another replica of node {node_id} votes and is alive")
            request = admin_pb2.RemoveVoterRequest(
                cluster_id=cluster_id,
                node_id=node_id,
                directory_id=voter.directory_id,
                replacement_directory_id=own_id,
            )
            await self._call(address, "RemoveVoter", request)
            logger.warning("event=auto_join_removed_old node=%d directory_id=%s", node_id, voter.directory_id.hex())
        request = admin_pb2.AddVoterRequest(cluster_id=cluster_id, node_id=node_id, directory_id=own_id)
        await self._call(address, "AddVoter", request)
        return True

    def _silent_ms(self, epoch: int, voter: admin_pb2.QuorumReplica) -> float:
        """Milliseconds since the voter's last fetch, or since this replica first saw that the leader of `epoch` knows of none."""
        if voter.HasField("last_fetch_age_ms"):
            return voter.last_fetch_age_ms
        now_s = asyncio.get_running_loop().time()
        unheard = (epoch, voter.directory_id)
        if self._unheard != unheard:
            self._unheard, self._unheard_since_s = unheard, now_s
        return (now_s - self._unheard_since_s) * 1000

    def _wait(self, reason: str) -> bool:
        if reason != self._last_reason:
            self._last_reason = reason
            logger.info("event=auto_join_waits node=%d reason=%s", self._node.node_id, reason)
        return False
