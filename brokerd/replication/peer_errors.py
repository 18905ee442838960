# SPDX-License-Identifier: Apache-2.0
"""Why a request to another broker failed, for streams and for ranges."""

from __future__ import annotations

from lograft.wire.codes import ErrorCode

from metaquorum.net.link import CallError, RefusedByPeerError
from metaquorum.net.peers import NotSentError
from metaquorum.net.service import decode_refusal


class PeerError(Exception):
    """Another broker refuses, or gives no usable answer.

    Attributes:
        code: code of the refusal; None: the broker is unreachable, the connection broke, or its answer makes no sense.
    """

    def __init__(self, message: str, code: ErrorCode | None = None) -> None:
        super().__init__(message if code is None else f"{code.name}: {message}")
        self.code = code


def peer_error(error: CallError) -> PeerError:
    """Return a failure of the carrier as an error of the other broker."""
    if isinstance(error, RefusedByPeerError):
        refusal = decode_refusal(error.failure)
        return PeerError(refusal.message, refusal.code)
    if isinstance(error, NotSentError) and error.misfit is not None:
        return PeerError(str(error), error.misfit.code)
    return PeerError(str(error))
