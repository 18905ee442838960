# SPDX-License-Identifier: Apache-2.0
"""What a node finds of the committed metadata at its start: its image, brought to the newest snapshot if that is newer.

Owns the choice between the two and the repair of what a crash left. A snapshot that is needed and damaged is set aside, and the
one before it is tried; whether the log covers what is then missing, the log says (`log_store`). Law: after it the image is at
or beyond the newest snapshot that is not set aside, so that nothing below that is ever asked of the log.
Source: `docs/quorum.md` section "Snapshots", the table of crashes.
"""

from __future__ import annotations

import errno
import logging
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from metaquorum.metadata.image_format import ImageUnreadableError, LoadedImage
from metaquorum.metadata.image_store import ImageStore, open_image, read_only_image
from metaquorum.metadata.snapshot_files import PART_SUFFIX, SnapshotFiles, link_tree
from metaquorum.raft.types import SnapshotId

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
        ImageUnreadableError: not even an empty image can be opened.
    """
    image = directory / IMAGE_DIRECTORY
    snapshots = SnapshotFiles(directory / SNAPSHOTS_DIRECTORY)
    part = image.with_suffix(PART_SUFFIX)
    shutil.rmtree(part, ignore_errors=True)
    store, loaded = open_image(image)
    try:
        while (newest := snapshots.newest) is not None and loaded.image.metadata_offset < newest.end_offset:
            found = _read_or_set_aside(store, snapshots, newest, part)
            if found is not None:
                offset = loaded.image.metadata_offset
                logger.warning("event=image_from_snapshot image_offset=%d snapshot=%d", offset, newest.end_offset)
                loaded = found
    except BaseException:
        store.close()
        raise
    return MetadataFiles(store=store, loaded=loaded, snapshots=snapshots)


def _read_or_set_aside(
    store: ImageStore, snapshots: SnapshotFiles, snapshot: SnapshotId, part: Path
) -> LoadedImage | None:
    """Put a snapshot in the place of the image; None: it is damaged, and counts for nothing in this process."""
    source = snapshots.path(snapshot)
    try:
        copied = _copy(source, part, snapshot)
        loaded = copied or _checked(read_only_image(source)[0], snapshot, source)
    except ImageUnreadableError as error:
        # Text only: the error's frames keep the copy open, and locked against the next one.
        reason = str(error)
    else:
        # Not above: what fails here is no damage to the snapshot.
        if copied is not None:
            store.replace(part)
        else:
            shutil.rmtree(part, ignore_errors=True)
            store.stand_for(source, loaded)
        return loaded
    logger.warning(
        "event=snapshot_damaged snapshot=%d epoch=%d action=use_an_older_one reason=%r",
        snapshot.end_offset,
        snapshot.epoch,
        reason,
    )
    shutil.rmtree(part, ignore_errors=True)
    snapshots.set_aside(snapshot)
    return None


def _copy(source: Path, part: Path, snapshot: SnapshotId) -> LoadedImage | None:
    """Copy a snapshot and read every row of it, so that no good image gives way to a bad one; None: there is no room.

    Raises:
        ImageUnreadableError: it is damaged, or not what its name says.
    """
    try:
        link_tree(source, part)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            return None
        if error.errno != errno.EIO:
            raise
        raise ImageUnreadableError(f"{source}: {error}") from error
    store = ImageStore(part)
    try:
        if not store.is_writable:
            return None
        loaded = store.load()
    finally:
        store.close()
    return _checked(loaded, snapshot, source)


def _checked(loaded: LoadedImage, snapshot: SnapshotId, source: Path) -> LoadedImage:
    if loaded.snapshot_id != snapshot or loaded.voters is None:
        raise ImageUnreadableError(f"{source} holds {loaded.snapshot_id}, voters {loaded.voters}")
    return loaded
