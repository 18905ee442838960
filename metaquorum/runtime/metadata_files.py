# SPDX-License-Identifier: Apache-2.0
"""What a node finds of the committed metadata at its start: its image, brought to the newest snapshot if that is newer.

Owns the choice between the two and the repair of what a crash left. Law: after it the image is at or beyond the newest
snapshot, so that nothing below that is ever asked of the log.
Source: `docs/quorum.md` section "Snapshots", the table of crashes.
"""

from __future__ import annotations

import logging
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from metaquorum.raft.types import SnapshotId
from metaquorum.runtime.image_store import ImageStore, ImageUnreadableError, LoadedImage, open_image
from metaquorum.runtime.snapshot_files import PART_SUFFIX, SnapshotFiles, link_tree

logger = logging.getLogger(__name__)

IMAGE_DIRECTORY: Final = "image"
SNAPSHOTS_DIRECTORY: Final = "snapshots"


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataFiles:
    """The open image and the snapshots beside it.

    Attributes:
        store: the open image; whoever opened it closes it.
        loaded: what it held.
        snapshots: the snapshots.
    """

    store: ImageStore
    loaded: LoadedImage
    snapshots: SnapshotFiles

    @property
    def image_part(self) -> Path:
        """Where a new image is prepared."""
        return self.store.directory.with_suffix(PART_SUFFIX)


def open_metadata(directory: Path) -> MetadataFiles:
    """Open image and snapshots below `<data>/metadata`.

    Raises:
        ImageUnreadableError: neither an image nor a snapshot can be opened.
    """
    image = directory / IMAGE_DIRECTORY
    snapshots = SnapshotFiles(directory / SNAPSHOTS_DIRECTORY)
    shutil.rmtree(image.with_suffix(PART_SUFFIX), ignore_errors=True)
    store, loaded = open_image(image)
    newest = snapshots.newest
    if newest is None or loaded.image.metadata_offset >= newest.end_offset:
        return MetadataFiles(store=store, loaded=loaded, snapshots=snapshots)
    logger.warning(
        "event=image_from_snapshot image_offset=%d snapshot=%d", loaded.image.metadata_offset, newest.end_offset
    )
    try:
        link_tree(snapshots.path(newest), image.with_suffix(PART_SUFFIX))
        store.replace(image.with_suffix(PART_SUFFIX))
        loaded = store.load()
        _require(loaded, newest)
    except BaseException:
        store.close()
        raise
    return MetadataFiles(store=store, loaded=loaded, snapshots=snapshots)


def _require(loaded: LoadedImage, snapshot: SnapshotId) -> None:
    if loaded.snapshot_id != snapshot or loaded.voters is None:
        raise ImageUnreadableError(
            f"snapshot {snapshot} holds {loaded.snapshot_id}, voters {loaded.voters}: wipe the data directory and start"
            " the node again: it then joins as a new replica"
        )
