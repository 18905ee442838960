# SPDX-License-Identifier: Apache-2.0
"""Checks of single fields in messages between quorum nodes.

Owns the checks and their error. Knows no whole message.
"""

from __future__ import annotations

from functools import lru_cache

from lograft.internal.v1 import quorum_pb2 as pb

from metaquorum.raft.types import MAX_QUORUM_EPOCH, NodeId, Offset, QuorumEpoch, ReplicaKey

DIRECTORY_ID_BYTES = 16

MAX_OFFSET = 2**62
"""Largest offset. No log reaches it, and an offset plus a count stays within the 64 bits of files and messages."""


MAX_HOST_CHARACTERS = 255
"""Longest host of an address, without brackets. A DNS name has at most 253 characters."""
MAX_PORT = 65_535
"""Largest TCP port."""
_MAX_PORT_DIGITS = len(str(MAX_PORT))
_BRACKETS = 2
MAX_ADDRESS_CHARACTERS = _BRACKETS + MAX_HOST_CHARACTERS + 1 + _MAX_PORT_DIGITS
"""Longest `host:port`, or `[address]:port`."""


class InvalidMessageError(Exception):
    """A message is one that no correct peer sends. The text names the field."""


def check(condition: bool, text: str) -> None:
    """Raise InvalidMessageError with this text if the condition is false."""
    if not condition:
        raise InvalidMessageError(text)


# These checks run for each field of each message, so they make the text of an error only if there is one.


def to_replica_key(message: pb.ReplicaKey, field: str) -> ReplicaKey:
    """Return a replica key from the wire; errors name the `field`."""
    directory_id = message.directory_id
    if len(directory_id) != DIRECTORY_ID_BYTES:
        raise InvalidMessageError(f"{field}.directory_id must have 16 bytes")
    return ReplicaKey(node_id=to_node_id(message.node_id, field), directory_id=directory_id)


def from_replica_key(key: ReplicaKey) -> pb.ReplicaKey:
    """Return a replica key as a protobuf message."""
    return pb.ReplicaKey(node_id=key.node_id, directory_id=key.directory_id)


def to_node_id(number: int, field: str) -> NodeId:
    """Return a node id from the wire (0 or more); errors name the `field`."""
    if number < 0:
        raise InvalidMessageError(f"{field}: node ids start at 0, not {number}")
    return NodeId(number)


def to_epoch(number: int, field: str) -> QuorumEpoch:
    """Return an epoch from the wire (0 to `MAX_QUORUM_EPOCH`); errors name the `field`."""
    if not 0 <= number <= MAX_QUORUM_EPOCH:
        raise InvalidMessageError(f"{field}: epochs go from 0 to {MAX_QUORUM_EPOCH}, not {number}")
    return QuorumEpoch(number)


def to_offset(number: int, field: str) -> Offset:
    """Return an offset from the wire (0 to `MAX_OFFSET`); errors name the `field`."""
    if not 0 <= number <= MAX_OFFSET:
        raise InvalidMessageError(f"{field}: offsets go from 0 to {MAX_OFFSET}, not {number}")
    return Offset(number)


def to_address(text: str, field: str) -> str:
    """Check `host:port` or `[address]:port`, and return it unchanged; errors name the `field`.

    The host has 1 to `MAX_HOST_CHARACTERS` printable characters without spaces. The port is from 1 to `MAX_PORT`.
    """
    # The error text goes to logs and to the peer, so it must not contain an address as long as a message.
    if len(text) > MAX_ADDRESS_CHARACTERS:
        raise InvalidMessageError(f"{field} of {len(text)} characters")
    if not _is_address(text):
        raise InvalidMessageError(f"{field}: {text!r} is not host:port with a port from 1 to {MAX_PORT}")
    return text


def to_address_or_none(text: str, field: str) -> str | None:
    """Return an address from the wire, or None if it is empty."""
    return to_address(text, field) if text else None


# Cached: every answer to a fetch names the leader's address.
@lru_cache(maxsize=64)
def _is_address(text: str) -> bool:
    host, _, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        return False
    is_host = 0 < len(host) <= MAX_HOST_CHARACTERS and host.isprintable() and " " not in host
    is_number = port.isascii() and port.isdigit() and len(port) <= _MAX_PORT_DIGITS
    return is_host and is_number and 0 < int(port) <= MAX_PORT
