# SPDX-License-Identifier: Apache-2.0
"""Parsers of the text checkpoints: leader epochs, damaged ranges, high watermarks, and which partition it is. Pure.

Written from docs/storage_format.md, section 2 ("Text checkpoints").
"""

from __future__ import annotations

from typing import NamedTuple

from lograft.wire.checksum import crc32c

from storage.files.names import MAX_PARTITION, TOPIC_ID_BYTES, PartitionIdentity, parse_partition_directory_name
from storage.inspect.formats import MalformedError
from storage.log.epochs import EpochStart
from storage.types import DamagedRange

_VERSION_LINE = "0"
_CRC_PREFIX = "crc32c "
_OFFSET_DIGITS_MAX = 19
_CLEANER_NAMES = ("dirty_offset", "map_offset", "leader_epoch", "next_horizon_ms")


def parse_lines(content: bytes) -> list[str]:
    """Read a text checkpoint: version, number of lines, the lines, checksum.

    Raises:
        MalformedError: it is none.
    """
    try:
        text = content.decode("ascii")
    except UnicodeDecodeError:
        raise MalformedError("it is not ASCII text") from None
    if not text.endswith("\n"):
        raise MalformedError("its last line is cut off")
    *lines, last = text[:-1].split("\n")
    body_bytes = len(text) - len(last) - 1
    if last != f"{_CRC_PREFIX}{crc32c(content[:body_bytes]):08x}":
        raise MalformedError(f"its last line is {last[:40]!r}, not the CRC of the lines before")
    if lines[:1] != [_VERSION_LINE]:
        raise MalformedError(f"it does not begin with version {_VERSION_LINE}")
    if lines[1:2] != [str(len(lines) - 2)]:
        raise MalformedError(f"its second line is not the number of the {len(lines) - 2} lines that follow")
    return lines[2:]


def parse_epochs(content: bytes) -> tuple[EpochStart, ...]:
    """Read `leader-epoch-checkpoint`.

    Raises:
        MalformedError: it is none, or does not ascend.
    """
    entries: list[EpochStart] = []
    for line in parse_lines(content):
        epoch, start_offset = _numbers(line, 2)
        if entries and (epoch <= entries[-1].epoch or start_offset <= entries[-1].start_offset):
            raise MalformedError(f"epoch {epoch} from {start_offset} on follows epoch {entries[-1].epoch}")
        entries.append(EpochStart(epoch, start_offset))
    return tuple(entries)


def parse_damaged_ranges(content: bytes) -> tuple[DamagedRange, ...]:
    """Read `damaged-ranges`.

    Raises:
        MalformedError: it is none, or a range is empty, goes back or overlaps the one before.
    """
    ranges: list[DamagedRange] = []
    for line in parse_lines(content):
        segment_base_offset, base_offset, end_offset, position, end_position = _numbers(line, 5)
        if not segment_base_offset <= base_offset < end_offset or position > end_position:
            raise MalformedError(f"the line {line!r} is no range")
        if ranges and base_offset < ranges[-1].end_offset:
            raise MalformedError(f"the range from {base_offset} on overlaps the one before")
        ranges.append(
            DamagedRange(
                segment_base_offset=segment_base_offset,
                base_offset=base_offset,
                end_offset=end_offset,
                position=position,
                end_position=end_position,
            )
        )
    return tuple(ranges)


class CleanerCheckpoint(NamedTuple):
    """How far a log was compacted; `segments` are (base offset, bytes of the log file)."""

    dirty_offset: int
    map_offset: int
    leader_epoch: int
    next_horizon_ms: int
    segments: tuple[tuple[int, int], ...]


def parse_cleaner_checkpoint(content: bytes) -> CleanerCheckpoint:
    """Read `cleaner-checkpoint`; -1 stands for no epoch and no horizon.

    Raises:
        MalformedError: it is none, or its segments do not ascend below the dirty offset.
    """
    lines = parse_lines(content)
    words = [line.split(" ") for line in lines[: len(_CLEANER_NAMES)]]
    if [word[0] for word in words] != list(_CLEANER_NAMES) or not all(_is_number(word) for word in words):
        raise MalformedError(f"its first lines are not {', '.join(_CLEANER_NAMES)}")
    dirty_offset, map_offset, leader_epoch, next_horizon_ms = (int(word[1]) for word in words)
    segments = [(base, size) for base, size in (_numbers(line, 2) for line in lines[len(_CLEANER_NAMES) :])]
    bases = [base for base, _ in segments]
    if map_offset > dirty_offset or bases != sorted(set(bases)) or any(base >= dirty_offset for base in bases):
        raise MalformedError(f"its offsets are not in order below the dirty offset {dirty_offset}")
    return CleanerCheckpoint(dirty_offset, map_offset, leader_epoch, next_horizon_ms, tuple(segments))


def _is_number(words: list[str]) -> bool:
    return len(words) == 2 and words[1].removeprefix("-").isdecimal()


def parse_high_watermarks(content: bytes) -> tuple[tuple[str, int], ...]:
    """Read `high-watermark-checkpoint`: (partition directory, high watermark), ascending.

    Raises:
        MalformedError: it is none, or its names do not ascend.
    """
    entries: list[tuple[str, int]] = []
    for line in parse_lines(content):
        name, _, digits = line.partition(" ")
        if parse_partition_directory_name(name) is None or not _is_offset(digits):
            raise MalformedError(f"the line {line!r} is no partition with its high watermark")
        if entries and name <= entries[-1][0]:
            raise MalformedError(f"{name} follows {entries[-1][0]}")
        entries.append((name, int(digits)))
    return tuple(entries)


def parse_partition_metadata(content: bytes) -> PartitionIdentity:
    """Read `partition.metadata`.

    Raises:
        MalformedError: it is none.
    """
    lines = parse_lines(content)
    words = [line.split(" ") for line in lines]
    match words:
        case [["topic_id", topic_id], ["partition", partition]] if _is_topic_id(topic_id) and _is_partition(partition):
            return PartitionIdentity(bytes.fromhex(topic_id), int(partition))
        case _:
            raise MalformedError(f"its lines are {lines}, not topic_id and partition")


def _is_offset(word: str) -> bool:
    return word.isdecimal() and len(word) <= _OFFSET_DIGITS_MAX and int(word) < 2**63


def _is_topic_id(word: str) -> bool:
    return len(word) == 2 * TOPIC_ID_BYTES and all(letter in "0123456789abcdef" for letter in word)


def _is_partition(word: str) -> bool:
    return word.isdecimal() and int(word) <= MAX_PARTITION


def _numbers(line: str, count: int) -> list[int]:
    words = line.split(" ")
    if len(words) != count or not all(word.isdecimal() for word in words):
        raise MalformedError(f"the line {line!r} does not consist of {count} numbers")
    return [int(word) for word in words]
