# SPDX-License-Identifier: Apache-2.0
"""The identity of a server, which it sends first on a connection, and the check of the other side's identity.

Owns the check. Source: docs/net.md section "A connection".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from google.protobuf.message import DecodeError
from lograft.internal.v1 import net_pb2 as pb
from lograft.v1 import errors_pb2
from lograft.wire.codes import ErrorCode

VERSION: Final = 1
"""Version of the carrier's protocol that this server speaks."""

ID_BYTES: Final = 16
"""Bytes of an incarnation id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Identity of a server process.

    Attributes:
        cluster_id: cluster of the server.
        node_id: node id of the server.
        incarnation_id: random id of the process, 16 bytes.
        address: `host:port` at which other servers reach it; None if none dials it.
    """

    cluster_id: str
    node_id: int
    incarnation_id: bytes
    address: str | None

    def encode(self) -> bytes:
        """Return the body of a HELLO frame."""
        return pb.Hello(
            cluster_id=self.cluster_id,
            node_id=self.node_id,
            incarnation_id=self.incarnation_id,
            address=self.address or "",
            min_version=VERSION,
            max_version=VERSION,
        ).SerializeToString()


class MisfitError(Exception):
    """The server on the other side is not the one that this side wants.

    Attributes:
        code: WRONG_CLUSTER or INVALID_REQUEST.
    """

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code

    def goodbye(self) -> bytes:
        """Return the body of a GOODBYE frame."""
        code = errors_pb2.ErrorCode.ValueType(int(self.code))
        return pb.Goodbye(code=code, message=str(self)).SerializeToString()


def checked(body: bytes, own: Identity) -> Identity:
    """Decode the other side's HELLO, check it, and return its identity.

    Args:
        body: body of the HELLO.
        own: identity of this side.

    Raises:
        MisfitError: it is of another cluster, shares no version, or is invalid.
    """
    try:
        hello = pb.Hello.FromString(body)
    except DecodeError as error:
        raise MisfitError(ErrorCode.INVALID_REQUEST, "a HELLO that cannot be decoded") from error
    if hello.cluster_id != own.cluster_id:
        text = f"this is cluster {own.cluster_id!r}, not {hello.cluster_id[:100]!r}; check the address"
        raise MisfitError(ErrorCode.WRONG_CLUSTER, text)
    if not hello.min_version <= VERSION <= hello.max_version:
        text = f"this server speaks version {VERSION} of the carrier, the other one {hello.min_version} to {hello.max_version}"
        raise MisfitError(ErrorCode.INVALID_REQUEST, text)
    if len(hello.incarnation_id) != ID_BYTES or hello.node_id < 0:
        raise MisfitError(ErrorCode.INVALID_REQUEST, "a HELLO without a node")
    return Identity(
        cluster_id=hello.cluster_id,
        node_id=hello.node_id,
        incarnation_id=hello.incarnation_id,
        address=hello.address or None,
    )
