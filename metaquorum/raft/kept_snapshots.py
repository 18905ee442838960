# SPDX-License-Identifier: Apache-2.0
"""The snapshots of a node, and its current download.

Owns only these two facts; `snapshots` decides about them. Law: ids ascend, and the oldest one is at or above the log start.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from metaquorum.raft.roles import Follower
from metaquorum.raft.types import SnapshotId


@dataclass(frozen=True, slots=True, kw_only=True)
class Download:
    """A download under way.

    Attributes:
        download_id: names the download; requests and downloads share one series of ids.
        snapshot: the snapshot.
        role: the follower role to which it belongs; when the role ends, the download ends.
    """

    download_id: int
    snapshot: SnapshotId
    role: Follower


class KeptSnapshots:
    """The snapshots of one node."""

    __slots__ = ("_ids", "download")

    def __init__(self) -> None:
        self._ids: tuple[SnapshotId, ...] = ()
        self.download: Download | None = None

    @property
    def ids(self) -> tuple[SnapshotId, ...]:
        """Ids, ascending."""
        return self._ids

    @property
    def latest(self) -> SnapshotId | None:
        """The newest id, or None."""
        return self._ids[-1] if self._ids else None

    def replace(self, ids: Sequence[SnapshotId]) -> None:
        """Set the ids of all snapshots."""
        offsets = [snapshot.end_offset for snapshot in ids]
        assert offsets == sorted(set(offsets)), f"snapshots must ascend: {ids}"
        self._ids = tuple(ids)
