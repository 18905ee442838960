# SPDX-License-Identifier: Apache-2.0
"""What calls about many partitions share: what became of one of them, its state or its refusal, as a message.

Owns that translation. Must not know a call.
"""

from __future__ import annotations

from lograft.internal.v1 import controller_pb2
from lograft.v1 import errors_pb2
from lograft.wire.status import cut_message

from metaquorum.controller.commands import Refusal
from metaquorum.controller_service.commit_waiters import RETRY_AFTER_MS
from metaquorum.metadata.state import PartitionImage


def to_error(refusal: Refusal) -> errors_pb2.PartitionError:
    """Return why one partition was refused; the others of the call are not concerned."""
    return errors_pb2.PartitionError(
        code=errors_pb2.ErrorCode.ValueType(int(refusal.code)),
        message=cut_message(refusal.message),
        retry_after_ms=RETRY_AFTER_MS if refusal.code.retriable else 0,
    )


def to_result(
    topic_id: bytes, partition: int, outcome: PartitionImage | Refusal
) -> controller_pb2.AlterPartitionResult:
    """Return what became of one partition: as it is from here on, or why it was refused."""
    return controller_pb2.AlterPartitionResult(
        topic_id=topic_id,
        partition=partition,
        state=None if isinstance(outcome, Refusal) else _state(outcome),
        error=to_error(outcome) if isinstance(outcome, Refusal) else None,
    )


def _state(partition: PartitionImage) -> controller_pb2.PartitionState:
    return controller_pb2.PartitionState(
        replicas=partition.replicas,
        isr=partition.isr,
        leader_id=partition.leader_id,
        leader_epoch=partition.leader_epoch,
        partition_epoch=partition.partition_epoch,
        elr=partition.elr,
        adding=partition.adding,
        removing=partition.removing,
    )
