# SPDX-License-Identifier: Apache-2.0
"""What the failure of an exchange between two servers of the cluster means for the next one. Pure.

Owns the one mapping from error codes for streams to leaders and for the calls of repairs. Must not know how long anybody waits.
Source: docs/replication.md section "The stream".
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from lograft.wire.codes import ErrorCode


class AfterFailure(Enum):
    """What may help."""

    RETRY = "retry"
    """Time: the same request may succeed later, as it is or with what the metadata has by then."""

    STOP = "stop"
    """Nothing that time brings: who asked is wrong, or what it asked for is not there. Somebody must look at it."""


_PASSING: Final = frozenset(
    {
        # A newer registration of who asked is under way.
        ErrorCode.STALE_BROKER_EPOCH,
        # The other one's metadata is behind, or its log is being opened.
        ErrorCode.UNKNOWN_TOPIC,
        ErrorCode.UNKNOWN_PARTITION,
        # Reads and the opening of streams are repeated without harm.
        ErrorCode.OUTCOME_UNKNOWN,
        ErrorCode.INTERNAL,
        ErrorCode.UNSPECIFIED,
    }
)


def after_failure(code: ErrorCode | None) -> AfterFailure:
    """Return what to do after a failure; without a code the transport failed, and nobody has refused anything."""
    if code is None or code.retriable or code in _PASSING:
        return AfterFailure.RETRY
    return AfterFailure.STOP
