# SPDX-License-Identifier: Apache-2.0
"""The state row of a stored metadata image, and the type of a loaded image.

The other rows are those of `metaquorum.metadata.image_rows`. The state row has the key 00 and this value, big-endian:

    | offset | size | field                                                           |
    |--------|------|-----------------------------------------------------------------|
    | 0      | 4    | format version, 5                                               |
    | 4      | 8    | metadata offset (exclusive): every committed record below is in |
    | 12     | 4    | quorum epoch of the last batch                                  |
    | 16     | rest | voters in force there: a `QuorumControlRecord` with `voters`;   |
    |        |      | empty while no record has named any                             |

Source: docs/image.md.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

from metaquorum.metadata.image import MetadataImage
from metaquorum.raft.effects import VotersChange
from metaquorum.raft.types import Offset, QuorumEpoch, SnapshotId
from metaquorum.raft.voters import VoterSet
from metaquorum.raft_codec.control_codec import decode_control_record, encode_control_record
from metaquorum.raft_codec.wire_fields import InvalidMessageError

FORMAT_VERSION: Final = 5
"""Format of rows and state row. `READABLE_VERSIONS` are read, too; any other image is rebuilt from the newest snapshot and the log."""

READABLE_VERSIONS: Final = frozenset({2, 3, 4, FORMAT_VERSION})
"""Formats that this version reads.

Format 2 had a row for each partition; a reader of such an image or snapshot replaces those rows by blocks.
Format 3 had no deleted topics, format 4 no switches of `flush.policy`.
"""

STATE_KEY: Final = b"\x00"
_STATE: Final = struct.Struct(">IqI")


class ImageUnreadableError(Exception):
    """The stored image is damaged or has another format. It must be discarded and rebuilt from the newest snapshot and the log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedImage:
    """An image loaded from disk.

    Attributes:
        image: the image, with its offset.
        quorum_epoch: quorum epoch of the last batch in it; 0 if it is empty.
        voters: voter set in force at its offset; None if no record below it names voters.
    """

    image: MetadataImage
    quorum_epoch: int
    voters: VoterSet | None = None

    @property
    def snapshot_id(self) -> SnapshotId:
        """Id of a snapshot of this image."""
        return SnapshotId(end_offset=Offset(self.image.metadata_offset), epoch=QuorumEpoch(self.quorum_epoch))


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageState:
    """The content of the state row.

    Attributes:
        metadata_offset: end of the image (exclusive): it has every committed record below.
        quorum_epoch: quorum epoch of the last batch.
        voters_record: the encoded voter set in force there; empty if there is none.
    """

    metadata_offset: int
    quorum_epoch: int
    voters_record: bytes

    def encode(self) -> bytes:
        """Return the value of the state row."""
        return _STATE.pack(FORMAT_VERSION, self.metadata_offset, self.quorum_epoch) + self.voters_record

    @classmethod
    def decode(cls, value: bytes) -> ImageState:
        """Return the state that a row encodes.

        Raises:
            ImageUnreadableError: the row is damaged or of an unknown format.
        """
        if len(value) < _STATE.size:
            raise ImageUnreadableError(f"the state row has {len(value)} bytes")
        version, offset, epoch = _STATE.unpack_from(value)
        if version not in READABLE_VERSIONS or offset < 0:
            raise ImageUnreadableError(f"image format {version} at offset {offset} is not known")
        return cls(metadata_offset=offset, quorum_epoch=epoch, voters_record=value[_STATE.size :])

    @property
    def voters(self) -> VoterSet | None:
        """The voter set, or None.

        Raises:
            ImageUnreadableError: the record is damaged.
        """
        if not self.voters_record:
            return None
        try:
            change = decode_control_record(self.voters_record)
        except InvalidMessageError as error:
            raise ImageUnreadableError(f"voters of the image: {error}") from error
        if not isinstance(change, VotersChange):
            raise ImageUnreadableError("the state row has another record instead of voters")
        return change.voters


def encode_voters(voters: VoterSet | None) -> bytes:
    """Return voters in the form of the state row."""
    return b"" if voters is None else encode_control_record(VotersChange(voters=voters))
