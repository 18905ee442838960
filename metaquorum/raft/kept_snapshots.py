# SPDX-License-Identifier: Apache-2.0
"""Which snapshots a node has, and the one that it downloads.

Owns these two facts only; `snapshots` decides by them. Law: ids ascend, and the oldest one is at or above the log start.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from metaquorum.raft.roles import Follower
from metaquorum.raft.types import SnapshotId


@dataclass(frozen=True, slots=True, kw_only=True)
class Download:
    """A snapshot that is on its way.

    Attributes:
        download_id: names the download; ids of requests and downloads are of one series.
        snapshot: what is fetched.
        role: the following that it belongs to; with the role ends the download.
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
        """Ids ascending."""
        return self._ids

    @property
    def latest(self) -> SnapshotId | None:
        """The newest one, or None."""
        return self._ids[-1] if self._ids else None

    def replace(self, ids: Sequence[SnapshotId]) -> None:
        """These are the snapshots from here on."""
        offsets = [snapshot.end_offset for snapshot in ids]
        assert offsets == sorted(set(offsets)), f"snapshots must ascend: {ids}"
        self._ids = tuple(ids)
