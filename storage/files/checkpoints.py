# SPDX-License-Identifier: Apache-2.0
"""Small files that are replaced as a whole.

`replace_file` writes a temporary file in the same directory, syncs it, renames it over the old one and syncs the
directory. A crash leaves either the old or the new content. `durable=False` omits both syncs; the content must then
carry its own checksum and be something that can be rebuilt (indexes, producer snapshots).

Text checkpoints (`encode_lines`):

    0                       version
    <n>                     number of lines that follow
    <line 1> ... <line n>
    crc32c <8 hex digits>   of everything before this line

Source: ALICE (OSDI 2014), rule "replace"; Kafka, CheckpointFile (which has no checksum line).
"""

from __future__ import annotations

from collections.abc import Sequence

from lograft.wire.checksum import crc32c

from storage.errors import DiskError, FileMissingError

from .disk import Disk
from .names import TEMPORARY_SUFFIX

_VERSION_LINE = "0"
_CRC_PREFIX = "crc32c "


class MalformedTextError(Exception):
    """Bytes or lines that the engine does not write; the message says why. Never leaves the storage package."""


def replace_file(disk: Disk, path: str, content: bytes, *, durable: bool = True) -> None:
    """Replace the file at `path`, or create it.

    Raises:
        DiskFullError: the old content is still there.
        DiskFailedError: the disk is failed for good.
    """
    write_replacement(disk, path, content, durable=durable)
    take_replacement(disk, path)
    if durable:
        disk.sync_directory(parent_of(path))


def write_replacement(disk: Disk, path: str, content: bytes, *, durable: bool) -> None:
    """Write the temporary file that will replace the one at `path`: the first half of `replace_file`.

    Raises:
        DiskFullError: no temporary file is left.
        DiskFailedError: the disk is failed for good.
    """
    temporary = path + TEMPORARY_SUFFIX
    if disk.exists(temporary):
        disk.remove(temporary)
    file = disk.create_file(temporary)
    try:
        file.append([content])
        if durable:
            file.sync()
    except DiskError:
        file.close()
        if disk.failure is None:
            disk.remove(temporary)
        raise
    file.close()


def take_replacement(disk: Disk, path: str) -> None:
    """Rename the temporary file to `path`: the second half of `replace_file`. The caller has synced its content if needed."""
    disk.rename(path + TEMPORARY_SUFFIX, path)


def parent_of(path: str) -> str:
    """Return the directory that holds a file."""
    return path.rpartition("/")[0] or "/"


def remove_if_exists(disk: Disk, path: str) -> bool:
    """Remove a file; tell whether it existed."""
    try:
        disk.remove(path)
    except FileMissingError:
        return False
    return True


def encode_lines(lines: Sequence[str]) -> bytes:
    """Return the content of a text checkpoint."""
    body = "".join(f"{line}\n" for line in (_VERSION_LINE, str(len(lines)), *lines)).encode()
    return body + f"{_CRC_PREFIX}{crc32c(body):08x}\n".encode()


def parse_lines(content: bytes) -> list[str]:
    """Decode a text checkpoint: version, number of lines, the lines, checksum.

    Raises:
        MalformedTextError: the bytes are not a text checkpoint.
    """
    try:
        text = content.decode("ascii")
    except UnicodeDecodeError:
        raise MalformedTextError("it is not ASCII text") from None
    if not text.endswith("\n"):
        raise MalformedTextError("its last line is cut off")
    *lines, last = text[:-1].split("\n")
    body_bytes = len(text) - len(last) - 1
    if last != f"{_CRC_PREFIX}{crc32c(content[:body_bytes]):08x}":
        raise MalformedTextError(f"its last line is {last[:40]!r}, not the CRC of the lines before")
    if lines[:1] != [_VERSION_LINE]:
        raise MalformedTextError(f"it does not begin with version {_VERSION_LINE}")
    if lines[1:2] != [str(len(lines) - 2)]:
        raise MalformedTextError(f"its second line is not the number of the {len(lines) - 2} lines that follow")
    return lines[2:]


def decode_lines(content: bytes) -> list[str] | None:
    """Decode a text checkpoint; None if it is damaged."""
    try:
        return parse_lines(content)
    except MalformedTextError:
        return None


def numbers_of(line: str, count: int) -> list[int]:
    """Decode a line of numbers, none of them negative.

    Raises:
        MalformedTextError: it is not such a line.
    """
    words = line.split(" ")
    if len(words) != count or not all(word.isdecimal() for word in words):
        raise MalformedTextError(f"the line {line!r} does not consist of {count} numbers")
    return [int(word) for word in words]


def read_lines(disk: Disk, path: str) -> list[str] | None:
    """Read a text checkpoint from disk; None if it is missing or damaged."""
    try:
        return decode_lines(disk.read_file(path))
    except FileMissingError:
        return None
