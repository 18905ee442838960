# SPDX-License-Identifier: Apache-2.0
"""What calls about many partitions share: the refusal of one of them as a message.

Owns that translation. Must not know a call.
"""

from __future__ import annotations

from lograft.v1 import errors_pb2
from lograft.wire.status import cut_message

from metaquorum.controller.commands import Refusal
from metaquorum.runtime.commit_waiters import RETRY_AFTER_MS


def to_error(refusal: Refusal) -> errors_pb2.PartitionError:
    """Return why one partition was refused; the others of the call are not concerned."""
    return errors_pb2.PartitionError(
        code=errors_pb2.ErrorCode.ValueType(int(refusal.code)),
        message=cut_message(refusal.message),
        retry_after_ms=RETRY_AFTER_MS if refusal.code.retriable else 0,
    )
