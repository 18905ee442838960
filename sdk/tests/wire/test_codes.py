# SPDX-License-Identifier: Apache-2.0
"""Error codes: complete, and the same in Python, protobuf and gRPC."""

from __future__ import annotations

import subprocess
import sys

import grpc
import pytest
from lograft.v1 import errors_pb2
from lograft.wire.codes import ErrorCode
from lograft.wire.errors import (
    BatchError,
    BatchTooLargeError,
    CorruptBatchError,
    InvalidBatchError,
    UnsupportedBatchError,
    WireError,
)
from lograft.wire.status import STATUS_CODES


def test_codes_equal_the_generated_enum() -> None:
    """Names without the prefix and numbers are exactly those of errors.proto."""
    generated = {name.removeprefix("ERROR_CODE_"): number for name, number in errors_pb2.ErrorCode.items()}
    assert {code.name: code.value for code in ErrorCode} == generated


def test_every_code_has_one_grpc_status() -> None:
    """The table to gRPC status codes is complete and never gives OK."""
    assert set(STATUS_CODES) == set(ErrorCode)
    assert grpc.StatusCode.OK not in STATUS_CODES.values()


@pytest.mark.parametrize(
    ("code", "retriable", "refresh"),
    [
        (ErrorCode.NOT_LEADER, True, True),
        (ErrorCode.OVERLOADED, True, False),
        (ErrorCode.UNKNOWN_TOPIC, False, True),
        (ErrorCode.INVALID_BATCH, False, False),
        (ErrorCode.OUTCOME_UNKNOWN, False, False),
        (ErrorCode.NOT_ENOUGH_REPLICAS, True, False),
        (ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, True, False),
        (ErrorCode.OFFSET_NOT_AVAILABLE, True, False),
    ],
)
def test_advice_of_a_code(code: ErrorCode, retriable: bool, refresh: bool) -> None:
    """The table says for each code whether to retry and whether to refresh. A fatal code has neither."""
    assert (code.retriable, code.refresh_metadata, code.fatal) == (retriable, refresh, not retriable and not refresh)


def test_retriable_codes_reach_clients_that_know_nothing_as_retriable() -> None:
    """Only retriable codes have a gRPC status that generic clients retry (UNAVAILABLE)."""
    assert all(code.retriable for code, status in STATUS_CODES.items() if status is grpc.StatusCode.UNAVAILABLE)


def test_unknown_numbers_and_reasons_become_internal() -> None:
    """A code of a newer server does not break an older client."""
    assert ErrorCode.from_number(22) is ErrorCode.OFFSET_OUT_OF_RANGE
    assert ErrorCode.from_number(9999) is ErrorCode.INTERNAL
    assert ErrorCode.from_reason("DATA_LOSS") is ErrorCode.DATA_LOSS
    assert ErrorCode.from_reason("FROM_THE_FUTURE") is ErrorCode.INTERNAL


@pytest.mark.parametrize(
    ("error_type", "code"),
    [
        (CorruptBatchError, ErrorCode.CORRUPT_BATCH),
        (InvalidBatchError, ErrorCode.INVALID_BATCH),
        (BatchTooLargeError, ErrorCode.MESSAGE_TOO_LARGE),
        (UnsupportedBatchError, ErrorCode.UNSUPPORTED_FORMAT),
    ],
)
def test_batch_errors_carry_their_code(error_type: type[BatchError], code: ErrorCode) -> None:
    """Each batch error has one code and a text, and belongs to one tree."""
    error = error_type("what is wrong")
    assert (error.code, error.message, str(error)) == (code, "what is wrong", "what is wrong")
    assert isinstance(error, WireError)


@pytest.mark.parametrize(
    ("module", "absent"),
    [("lograft.wire.codes", "google.protobuf"), ("lograft.wire.batch", "grpc"), ("lograft.wire.arrow", "pyarrow")],
)
def test_imports_stay_light(module: str, absent: str) -> None:
    """Codes need no protobuf, batches no gRPC, and pyarrow is imported only at its first use."""
    program = f"import sys, {module}; sys.exit({absent!r} in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
