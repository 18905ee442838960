# SPDX-License-Identifier: Apache-2.0
"""Lookups of offsets against a broker that cannot answer for a while."""

from __future__ import annotations

from lograft import Admin
from lograft.errors import (
    LograftError,
    NotEnoughReplicasAfterAppendError,
    NotEnoughReplicasError,
    OffsetNotAvailableError,
    RetriableError,
    error_for,
)
from lograft.types import OffsetQuery, Position
from lograft.v1 import errors_pb2
from lograft.wire.codes import ErrorCode
from tests.client.scripted_broker import Leaders, ScriptedBroker

LATEST = OffsetQuery(topic="t", partition=0, position=Position.LATEST)


def test_latest_offset_that_is_not_available_yet_is_asked_for_again() -> None:
    """A new leader that does not know its latest offset yet costs the caller time, but no error."""
    with ScriptedBroker(Leaders()) as broker, Admin(broker.bootstrap) as admin:
        broker.offset_failures = [errors_pb2.ERROR_CODE_OFFSET_NOT_AVAILABLE] * 2
        (answer,) = admin.list_offsets([LATEST])
        assert (answer.offset, answer.error) == (0, None)
        assert broker.offset_failures == []


def test_reasons_that_come_with_several_replicas_have_classes_of_their_own() -> None:
    """No class is a subclass of another, because they differ in what was appended."""
    kinds: dict[ErrorCode, type[LograftError]] = {
        ErrorCode.NOT_ENOUGH_REPLICAS: NotEnoughReplicasError,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: NotEnoughReplicasAfterAppendError,
        ErrorCode.OFFSET_NOT_AVAILABLE: OffsetNotAvailableError,
    }
    for code, kind in kinds.items():
        error = error_for(code, "scripted", retry_after_ms=7)
        assert type(error) is kind
        assert kind.__bases__ == (RetriableError,)
        assert (error.code, kind("made here").code, error.retry_after_ms) == (code, code, 7)
