# SPDX-License-Identifier: Apache-2.0
"""The making of a data directory that an operator has named, with everything above it.

Owns what is said when that does not work. On the real file system only: it comes before there is a `Disk`.
"""

from __future__ import annotations

from pathlib import Path

from storage.errors import DirectoryNotWritableError


def make_data_directory(path: Path) -> None:
    """Make a directory, and the missing ones above it; nothing happens when it is there.

    Raises:
        DirectoryNotWritableError: a file is in its place or above it, which is named then, or it cannot be made.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        # A path below a file is no file to `is_file`, and the system only says that it is no directory.
        file = next((each for each in (path, *path.parents) if each.is_file()), None)
        if file is not None:
            raise DirectoryNotWritableError(str(file), "it is a file, not a directory") from error
        raise DirectoryNotWritableError(str(path), f"it cannot be made: {error}") from error
