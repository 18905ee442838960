# SPDX-License-Identifier: Apache-2.0
"""Loads the committed metadata of a node from disk: the stored image, or the newest snapshot if that is newer.

Owns the choice between the two, and the repair after a crash. If a snapshot is needed and damaged, it is set aside, and the next
older one is tried; `log_store` then checks whether the log covers the gap. Law: the loaded image is at or beyond the newest snapshot
that is not set aside, so the log is never read below that snapshot.
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
    """The open image store, and the snapshots beside it.

    Attributes:
        store: the open image store; the caller of `open_metadata` closes it.
        loaded: the image that it held.
        snapshots: the snapshots.
    """

    store: ImageStore
    loaded: LoadedImage
    snapshots: SnapshotFiles

    @property
    def image_part(self) -> Path:
        """Directory in which a new image is prepared."""
        return self.store.directory.with_suffix(PART_SUFFIX)


def open_metadata(directory: Path) -> MetadataFiles:
    """Open the image and the snapshots below `<data>/metadata`.

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
    """Replace the image by a snapshot. Return None if the snapshot is damaged: this process then ignores it."""
    source = snapshots.path(snapshot)
    try:
        copied = _copy(source, part, snapshot)
        loaded = copied or _checked(read_only_image(source)[0], snapshot, source)
    except ImageUnreadableError as error:
        # Keep only the text: the error's frames would keep the copy open, and locked against the next attempt.
        reason = str(error)
    else:
        # Outside the `try`: an error here does not mean that the snapshot is damaged.
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
    """Copy a snapshot and read all its rows, so that a damaged one never replaces a good image. Return None if the disk is full.

    Raises:
        ImageUnreadableError: the snapshot is damaged, or does not match its name.
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
    except ImageUnreadableError:
        store.discard()
        raise
    finally:
        store.close()
    return _checked(loaded, snapshot, source)


def _checked(loaded: LoadedImage, snapshot: SnapshotId, source: Path) -> LoadedImage:
    if loaded.snapshot_id != snapshot or loaded.voters is None:
        raise ImageUnreadableError(f"{source} holds {loaded.snapshot_id}, voters {loaded.voters}")
    return loaded
