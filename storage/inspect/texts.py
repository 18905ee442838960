# SPDX-License-Identifier: Apache-2.0
"""Parsers and judges of the text checkpoints of a log and a data directory. Pure.

They cover leader epochs, damaged ranges, high watermarks, the cleaner checkpoint and the partition's identity. The
engine's decoders read the lines. These judges apply the rules of docs/storage_format.md, section 2 ("Text
checkpoints"), also where an opening would accept or ignore a mistake.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import TypeVar

from storage.directory.high_watermarks import decode_high_watermarks
from storage.files.checkpoints import MalformedTextError, parse_lines
from storage.files.names import MAX_PARTITION, TOPIC_ID_BYTES, PartitionIdentity
from storage.inspect.formats import MalformedError
from storage.log.cleaner_checkpoint import CleanState, decode_state
from storage.log.epochs import EpochStart, LeaderEpochs
from storage.segment.damage import decode_damage
from storage.types import DamagedRange

_Decoded = TypeVar("_Decoded")


def parse_epochs(content: bytes) -> tuple[EpochStart, ...]:
    """Parse `leader-epoch-checkpoint`.

    Raises:
        MalformedError: it is damaged, or its lines do not ascend.
    """
    return tuple(_decoded(LeaderEpochs.decode_entries, content).entries())


def parse_damaged_ranges(content: bytes) -> tuple[DamagedRange, ...]:
    """Parse `damaged-ranges`.

    Raises:
        MalformedError: it is damaged, or a range is empty, goes back or overlaps the one before.
    """
    ranges = _decoded(lambda lines: [decode_damage(line) for line in lines], content)
    end_offset = 0
    for each in ranges:
        if not each.segment_base_offset <= each.base_offset < each.end_offset or each.position > each.end_position:
            raise MalformedError(f"the range from {each.base_offset} to {each.end_offset} is no range")
        if each.base_offset < end_offset:
            raise MalformedError(f"the range from {each.base_offset} on overlaps the one before")
        end_offset = each.end_offset
    return tuple(ranges)


def parse_cleaner_checkpoint(content: bytes) -> CleanState:
    """Parse `cleaner-checkpoint`.

    Raises:
        MalformedError: it is damaged, or its segments do not ascend below the dirty offset.
    """
    state = _decoded(decode_state, content)
    bases = [each.base_offset for each in state.segments]
    is_above = any(base >= state.dirty_offset for base in bases)
    if state.map_offset > state.dirty_offset or bases != sorted(set(bases)) or is_above:
        raise MalformedError(f"its offsets are not in order below the dirty offset {state.dirty_offset}")
    return state


def parse_high_watermarks(content: bytes) -> tuple[tuple[str, int], ...]:
    """Parse `high-watermark-checkpoint`: (partition directory, high watermark), ascending.

    Raises:
        MalformedError: it is damaged, or its names do not ascend.
    """
    lines = _decoded(lambda lines: lines, content)
    names = [line.partition(" ")[0] for line in lines]
    try:
        offsets = decode_high_watermarks(sorted(set(lines)))
    except ValueError as error:
        raise MalformedError(str(error)) from None
    for before, name in pairwise(names):
        if name <= before:
            raise MalformedError(f"{name} follows {before}")
    return tuple(offsets.items())


def parse_partition_metadata(content: bytes) -> PartitionIdentity:
    """Parse `partition.metadata`.

    Raises:
        MalformedError: it is damaged.
    """
    lines = _decoded(lambda lines: lines, content)
    words = [line.split(" ") for line in lines]
    match words:
        case [["topic_id", topic_id], ["partition", partition]] if _is_topic_id(topic_id) and _is_partition(partition):
            return PartitionIdentity(bytes.fromhex(topic_id), int(partition))
        case _:
            raise MalformedError(f"its lines are {lines}, not topic_id and partition")


def _decoded(decode: Callable[[list[str]], _Decoded], content: bytes) -> _Decoded:
    """Decode a text checkpoint with a decoder of the engine."""
    try:
        return decode(parse_lines(content))
    except MalformedTextError as error:
        raise MalformedError(str(error)) from None


def _is_topic_id(word: str) -> bool:
    return len(word) == 2 * TOPIC_ID_BYTES and all(letter in "0123456789abcdef" for letter in word)


def _is_partition(word: str) -> bool:
    return word.isdecimal() and int(word) <= MAX_PARTITION
