# SPDX-License-Identifier: Apache-2.0
"""Proposals of in-sync replicas on their way to the controller: gathered, sent in one call, answered one by one.

Owns what waits and the one call under way. Must not judge a proposal or an answer: the controller and the cores do.

Law: a proposal gets exactly one outcome event. *Refused* is told only where the controller certainly did not carry it out;
what nobody knows is told as *unanswered*.
Source: docs/replication.md section "Proposals"; KIP-497.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple

from google.protobuf.message import DecodeError
from lograft.internal.v1 import controller_pb2
from lograft.wire.codes import ErrorCode

from brokerd.controller_client.controller_calls import ControllerCalls
from brokerd.failure import RefusedError
from brokerd.limits import ISR_CALL_MS, ISR_GATHER_MS
from brokerd.partition.effects import ProposeIsr
from brokerd.partition.leader_events import ProposalAccepted, ProposalRefused, ProposalUnanswered
from brokerd.replica.replica_peers import ProposingReplica
from metaquorum.metadata.state import PartitionImage
from metaquorum.net.methods import Method

MAX_CALL_PROPOSALS: Final = 2_000
"""Proposals of one call; more wait for the next."""

UNKNOWN_OUTCOMES: Final = frozenset((ErrorCode.OUTCOME_UNKNOWN, ErrorCode.INTERNAL))
"""Answers after which the proposals may have been carried out, or may still be."""

logger = logging.getLogger(__name__)


class _Waiting(NamedTuple):
    """A proposal that has no outcome yet."""

    replica: ProposingReplica
    proposal: ProposeIsr


class IsrProposals:
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
        # One entry at most for each partition that this broker leads: a core has one proposal under way.
        self._waiting: deque[_Waiting] = deque()
        self._task: asyncio.Task[None] | None = None
        self._is_closed = False

    def propose(self, replica: ProposingReplica, proposal: ProposeIsr) -> None:
        """Send a proposal; the replica is told exactly once what became of it, later."""
        if self._is_closed:
            return
        self._waiting.append(_Waiting(replica, proposal))
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name="isr-proposals")

    async def close(self) -> None:
        """Send nothing more; nobody is told anything any more. Idempotent."""
        self._is_closed = True
        self._waiting.clear()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        try:
            while self._waiting:
                await asyncio.sleep(ISR_GATHER_MS / 1000)
                count = min(len(self._waiting), MAX_CALL_PROPOSALS)
                await self._send([self._waiting.popleft() for _ in range(count)])
        finally:
            self._task = None

    async def _send(self, sent: list[_Waiting]) -> None:
        broker_epoch = self._broker_epoch()
        if broker_epoch is None:
            _refuse(sent, ErrorCode.STALE_BROKER_EPOCH)
            return
        request = controller_pb2.AlterPartitionRequest(
            cluster_id=self._cluster_id,
            broker_id=self._node_id,
            broker_epoch=broker_epoch,
            proposals=[_encode(each) for each in sent],
        )
        try:
            answer = await self._calls.call(Method.ALTER_PARTITION, request.SerializeToString(), timeout_ms=ISR_CALL_MS)
        except RefusedError as error:
            self._on_failure(sent, error.failure.code, error.failure.message)
        else:
            self._on_answer(sent, answer)

    def _on_answer(self, sent: list[_Waiting], answer: bytes) -> None:
        try:
            response = controller_pb2.AlterPartitionResponse.FromString(answer)
        except DecodeError as error:
            # Carried out or not: nobody can tell from bytes that are no answer.
            self._on_failure(sent, None, f"the answer is not an AlterPartitionResponse: {error}")
            return
        _answer(sent, response)

    def _on_failure(self, sent: list[_Waiting], code: ErrorCode | None, message: str) -> None:
        name = "no code" if code is None else code.name
        logger.warning("proposals of in-sync replicas failed: count=%d code=%s: %s", len(sent), name, message)
        if code is not None and code not in UNKNOWN_OUTCOMES:
            _refuse(sent, code)
            return
        for replica, proposal in sent:
            _tell(replica, ProposalUnanswered(proposal=proposal.proposal))


def _tell(replica: ProposingReplica, outcome: ProposalAccepted | ProposalRefused | ProposalUnanswered) -> None:
    try:
        replica.take_event(outcome)
    except Exception:
        # The fault of one replica: the others of the call are told theirs all the same.
        logger.exception("in-sync replicas of %s: the outcome of a proposal could not be taken", replica)


def _refuse(sent: list[_Waiting], code: ErrorCode) -> None:
    for replica, proposal in sent:
        _tell(replica, ProposalRefused(proposal=proposal.proposal, code=code))


def _encode(waiting: _Waiting) -> controller_pb2.IsrProposal:
    proposal = waiting.proposal
    return controller_pb2.IsrProposal(
        topic_id=waiting.replica.topic_id,
        partition=waiting.replica.partition,
        leader_epoch=proposal.leader_epoch,
        partition_epoch=proposal.partition_epoch,
        isr=[
            controller_pb2.IsrMember(node_id=member.node_id, broker_epoch=member.broker_epoch)
            for member in proposal.members
        ],
    )


def _answer(sent: list[_Waiting], response: controller_pb2.AlterPartitionResponse) -> None:
    results = {(result.topic_id, result.partition): result for result in response.results}
    for replica, proposal in sent:
        result = results.get((replica.topic_id, replica.partition))
        if result is not None and result.HasField("state"):
            state = _decode(result.partition, result.state)
            logger.info(
                "in-sync replicas: partition=%s isr=%s partition_epoch=%d", replica, state.isr, state.partition_epoch
            )
            _tell(replica, ProposalAccepted(proposal=proposal.proposal, partition=state))
        elif result is not None and result.HasField("error"):
            code = _code(result.error.code)
            logger.info("in-sync replicas refused: partition=%s code=%s %s", replica, code, result.error.message)
            _tell(replica, ProposalRefused(proposal=proposal.proposal, code=code))
        else:
            logger.error("the controller left out the in-sync replicas of %s in its answer", replica)
            _tell(replica, ProposalUnanswered(proposal=proposal.proposal))


def _code(number: int) -> ErrorCode:
    try:
        return ErrorCode(number)
    except ValueError:
        return ErrorCode.UNSPECIFIED  # of a newer controller; a refusal all the same


def _decode(partition: int, state: controller_pb2.PartitionState) -> PartitionImage:
    return PartitionImage(
        partition=partition,
        replicas=tuple(state.replicas),
        isr=tuple(state.isr),
        leader_id=state.leader_id if state.HasField("leader_id") else None,
        leader_epoch=state.leader_epoch,
        partition_epoch=state.partition_epoch,
        elr=tuple(state.elr),
        adding=tuple(state.adding),
        removing=tuple(state.removing),
    )
