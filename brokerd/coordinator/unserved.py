# SPDX-License-Identifier: Apache-2.0
"""Why a command got no response: the typed answers of the runtime besides a core's own."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

from lograft.wire.codes import ErrorCode

from brokerd.coordinator.limits import LOADING_RETRY_AFTER_MS, OVERLOADED_RETRY_AFTER_MS
from brokerd.failure import Failure, LeaderPlace

NO_COORDINATOR_RETRY_MS: Final = 250
"""Retry advice, in milliseconds, while the partition has no leader."""


class UnservedReason(Enum):
    """Why. Only OUTCOME_UNKNOWN leaves open whether the command took effect; after any other reason nothing has changed."""

    MOVED = "another broker is the coordinator: ask the one that the answer names"
    NO_COORDINATOR = "the partition has no leader at the moment: try again"
    LOADING = "the coordinator is loading its state: try again"
    OVERLOADED = "too many commands wait: try again"
    REFUSED = "the log refused the records: the failure says why"
    TOO_LARGE = "the records of the decision are too large for one batch: split the command"
    TIMED_OUT = "the command was not decided in time, or nothing that it has seen was committed"
    FAILED = "the coordinator cannot serve its state: see the broker's log"
    OUTCOME_UNKNOWN = "the records may be in the log: look before you repeat the command"


@dataclass(frozen=True, slots=True)
class Unserved:
    """A reason, and the failure as a client gets it."""

    reason: UnservedReason
    failure: Failure


class UnservedError(Exception):
    """A command got no response; `unserved` says why."""

    def __init__(self, unserved: Unserved) -> None:
        super().__init__(f"{unserved.reason.name}: {unserved.failure.message}")
        self.unserved = unserved


def moved(partition: str, failure: Failure) -> Unserved:
    """Return the answer of a broker that is not, or no longer, the coordinator; `failure` is that of its replica."""
    if failure.leader is None:
        retry_after_ms = failure.retry_after_ms or NO_COORDINATOR_RETRY_MS
        message = f"{partition}: {failure.message}; nothing was changed"
        return Unserved(
            UnservedReason.NO_COORDINATOR, Failure(code=failure.code, message=message, retry_after_ms=retry_after_ms)
        )
    return moved_to(partition, failure.leader)


def moved_to(partition: str, leader: LeaderPlace) -> Unserved:
    """Return the answer that names the coordinator."""
    message = f"broker {leader.leader_id} is the coordinator of {partition}: ask it at {leader.host}:{leader.port}; nothing was changed"
    return Unserved(UnservedReason.MOVED, Failure(code=ErrorCode.NOT_LEADER, message=message, leader=leader))


def no_coordinator(partition: str) -> Unserved:
    """Return the answer while the partition has no leader or does not exist yet."""
    failure = Failure(code=ErrorCode.LEADER_NOT_AVAILABLE, message="it has no coordinator at the moment")
    return moved(partition, failure)


def loading(partition: str) -> Unserved:
    """Return the answer of a coordinator that is loading."""
    failure = Failure(
        code=ErrorCode.LEADER_NOT_AVAILABLE,
        message=f"the coordinator of {partition} is loading its state: try again",
        retry_after_ms=LOADING_RETRY_AFTER_MS,
    )
    return Unserved(UnservedReason.LOADING, failure)


def overloaded(partition: str, what: str) -> Unserved:
    """Return the answer when a queue is full."""
    failure = Failure(
        code=ErrorCode.OVERLOADED,
        message=f"{what} wait at the coordinator of {partition}: try again",
        retry_after_ms=OVERLOADED_RETRY_AFTER_MS,
    )
    return Unserved(UnservedReason.OVERLOADED, failure)


def too_large(partition: str, what: str) -> Unserved:
    """Return the answer to a command whose records do not fit into one batch."""
    message = f"the command needs {what} in {partition}: split it; nothing was changed"
    return Unserved(UnservedReason.TOO_LARGE, Failure(code=ErrorCode.MESSAGE_TOO_LARGE, message=message))


def timed_out(partition: str) -> Unserved:
    """Return the answer to a command whose caller gave up before anything was appended."""
    message = f"the coordinator of {partition} did not confirm the command in time; nothing was changed"
    return Unserved(UnservedReason.TIMED_OUT, Failure(code=ErrorCode.TIMED_OUT, message=message))


def failed(partition: str, message: str, *, retry_after_ms: int) -> Unserved:
    """Return the answer of a coordinator that cannot serve."""
    failure = Failure(
        code=ErrorCode.INTERNAL, message=f"the coordinator of {partition} {message}", retry_after_ms=retry_after_ms
    )
    return Unserved(UnservedReason.FAILED, failure)


def outcome_unknown(partition: str, *, leader: LeaderPlace | None = None) -> Unserved:
    """Return the answer to a command whose records may be in the log."""
    message = f"the records are in the log of {partition} and were not confirmed: look before you repeat the command"
    return Unserved(
        UnservedReason.OUTCOME_UNKNOWN, Failure(code=ErrorCode.OUTCOME_UNKNOWN, message=message, leader=leader)
    )


def client_failure(unserved: Unserved) -> Failure:
    """Return why a command got no outcome, as a client of groups or ingests gets it."""
    failure = unserved.failure
    match unserved.reason:
        case UnservedReason.MOVED:
            return Failure(code=ErrorCode.NOT_COORDINATOR, message=failure.message, leader=failure.leader)
        case UnservedReason.NO_COORDINATOR if failure.code is ErrorCode.SHUTTING_DOWN:
            # No hint: the client asks any other broker.
            return Failure(
                code=ErrorCode.NOT_COORDINATOR, message=failure.message, retry_after_ms=failure.retry_after_ms
            )
        case UnservedReason.NO_COORDINATOR | UnservedReason.LOADING:
            code = ErrorCode.COORDINATOR_LOADING
        case UnservedReason.FAILED if failure.retry_after_ms:
            code = ErrorCode.COORDINATOR_LOADING
        case _:
            return failure
    return Failure(code=code, message=failure.message, retry_after_ms=failure.retry_after_ms)
