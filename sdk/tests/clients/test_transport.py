# SPDX-License-Identifier: Apache-2.0
"""What clients make of calls that fail without a word from a Lograft server."""

from __future__ import annotations

import grpc
import grpc.aio
import pytest
from lograft._transport import is_connection_loss, to_error
from lograft.errors import LograftError, NoBrokerError, ProtocolError


def failed(code: grpc.StatusCode, details: str) -> grpc.aio.AioRpcError:
    """A failure that gRPC made itself: no details of Lograft."""
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(), details)


@pytest.mark.parametrize(
    ("code", "details"),
    [
        (grpc.StatusCode.UNAVAILABLE, "Socket closed"),
        (grpc.StatusCode.CANCELLED, "CANCELLED"),
        (grpc.StatusCode.UNKNOWN, "Stream removed"),
        (grpc.StatusCode.INTERNAL, "Received RST_STREAM with error code 2"),
        # Seen when a broker is killed while a message is being written.
        (grpc.StatusCode.INTERNAL, "Internal error from Core"),
    ],
)
def test_a_connection_that_breaks_is_tried_again_whatever_grpc_calls_it(code: grpc.StatusCode, details: str) -> None:
    """A killed broker must not fail records for good: the failure counts as a lost connection."""
    error = failed(code, details)
    assert is_connection_loss(error)
    assert isinstance(to_error(error, "127.0.0.1:1"), NoBrokerError)


@pytest.mark.parametrize(
    ("code", "details", "kind"),
    [
        (grpc.StatusCode.INTERNAL, "Failed to decode the message", ProtocolError),
        (grpc.StatusCode.UNIMPLEMENTED, "Method not found!", ProtocolError),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, "Sent message larger than max", ProtocolError),
        (grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded", LograftError),
    ],
)
def test_what_would_fail_again_is_no_lost_connection(
    code: grpc.StatusCode, details: str, kind: type[LograftError]
) -> None:
    """Another try would end in the same way, so the caller is told at once."""
    error = failed(code, details)
    assert not is_connection_loss(error)
    assert isinstance(to_error(error, "127.0.0.1:1"), kind)
