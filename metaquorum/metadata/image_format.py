# SPDX-License-Identifier: Apache-2.0
"""What a stored metadata image consists of besides its rows: the state row, and an image as it is read.

Rows are those of `metaquorum.metadata.image_rows`; the state row has the key 00 and this value, big-endian:

    | offset | size | field                                                           |
    |--------|------|-----------------------------------------------------------------|
    | 0      | 4    | format version, 5                                               |
    | 4      | 8    | metadata offset (exclusive): every committed record below is in |
    | 12     | 4    | quorum epoch of the last batch                                  |
    | 16     | rest | voters in force there: a `QuorumControlRecord` with `voters`;   |
    |        |      | empty while no record has named any                             |

Source: architecture section 7.
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
"""Format of rows and state row. One of `READABLE_VERSIONS` is read too; another is rebuilt from the newest snapshot and the log."""

READABLE_VERSIONS: Final = frozenset({2, 3, 4, FORMAT_VERSION})
"""Format 2 had a row for each partition; reading an image or a snapshot of it replaces them by blocks.
Format 3 had no deleted topics, format 4 no switches of `flush.policy`."""

STATE_KEY: Final = b"\x00"
_STATE: Final = struct.Struct(">IqI")


class ImageUnreadableError(Exception):
    """The stored image is damaged or of another format; it must be thrown away and rebuilt from the newest snapshot and the log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedImage:
    """An image off the disk.

    Attributes:
        image: the image, with its offset.
        quorum_epoch: quorum epoch of the last batch in it (0 when it is empty).
        voters: voters in force at its offset; None when no record below it names any.
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
    """The state row.

    Attributes:
        metadata_offset: every committed record below (exclusive) is in.
        quorum_epoch: epoch of the last batch.
        voters_record: the voters in force there as they are stored; empty when there are none.
    """

    metadata_offset: int
    quorum_epoch: int
    voters_record: bytes

    def encode(self) -> bytes:
        """The value of the state row."""
        return _STATE.pack(FORMAT_VERSION, self.metadata_offset, self.quorum_epoch) + self.voters_record

    @classmethod
    def decode(cls, value: bytes) -> ImageState:
        """Read a state row.

        Raises:
            ImageUnreadableError: it is not one of this format.
        """
        if len(value) < _STATE.size:
            raise ImageUnreadableError(f"the state row has {len(value)} bytes")
        version, offset, epoch = _STATE.unpack_from(value)
        if version not in READABLE_VERSIONS or offset < 0:
            raise ImageUnreadableError(f"image format {version} at offset {offset} is not known")
        return cls(metadata_offset=offset, quorum_epoch=epoch, voters_record=value[_STATE.size :])

    @property
    def voters(self) -> VoterSet | None:
        """The voters.

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
            raise ImageUnreadableError("the state row has another record in the place of voters")
        return change.voters


def encode_voters(voters: VoterSet | None) -> bytes:
    """Voters as the state row has them."""
    return b"" if voters is None else encode_control_record(VotersChange(voters=voters))
