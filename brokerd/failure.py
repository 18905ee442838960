# SPDX-License-Identifier: Apache-2.0
"""Why a request, a route or a batch was refused or failed: a value that cores and shells share.

Pure. `brokerd.api.status` turns a `Failure` into a PartitionError or a gRPC status.
"""

from __future__ import annotations

from dataclasses import dataclass

from lograft.wire.codes import ErrorCode


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderPlace:
    """The leader of a partition, and the address at which clients reach it."""

    leader_id: int
    leader_epoch: int
    host: str
    port: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadableOffsets:
    """Offsets that can be read: from `log_start_offset` (inclusive) to `high_watermark` (exclusive)."""

    log_start_offset: int
    high_watermark: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """One refusal. `retry_after_ms` 0 means no advice; `message` says what happened and what to do."""

    code: ErrorCode
    message: str
    retry_after_ms: int = 0
    leader: LeaderPlace | None = None
    readable_range: ReadableOffsets | None = None


class RefusedError(Exception):
    """A shell cannot do what the client asked; `failure` is the answer to the client."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(f"{failure.code.name}: {failure.message}")
        self.failure = failure


def refused(code: ErrorCode, message: str, *, retry_after_ms: int = 0) -> RefusedError:
    """Return the exception for a refusal without a leader hint and without a range of offsets."""
    return RefusedError(Failure(code=code, message=message, retry_after_ms=retry_after_ms))
