# SPDX-License-Identifier: Apache-2.0
"""Makes the data directory that an operator has named, with all directories above it.

Owns the error messages for this. It works only on the real file system, because no `Disk` exists yet.
"""

from __future__ import annotations

from pathlib import Path

from storage.errors import DirectoryNotWritableError


def make_data_directory(path: Path) -> None:
    """Make a directory and the missing ones above it; does nothing if it exists.

    Raises:
        DirectoryNotWritableError: a file is at this path or above it (the error names it), or the directory cannot be
            made.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        # `is_file` is False for a path below a file, and the system only says "not a directory".
        file = next((each for each in (path, *path.parents) if each.is_file()), None)
        if file is not None:
            raise DirectoryNotWritableError(str(file), "it is a file, not a directory") from error
        raise DirectoryNotWritableError(str(path), f"it cannot be made: {error}") from error
