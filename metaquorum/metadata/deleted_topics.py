# SPDX-License-Identifier: Apache-2.0
"""Ids of the most recently deleted topics. With them a broker can tell a deleted topic's directory from an unknown one.

Owns their order and their limit. Only the replay of `RemoveTopicRecord` changes them, so every image at an offset holds the same ids.
They are packed in blocks of 64, one row of a stored image each (`image_rows.py`): 16 bytes an id, at most 4 MiB. When the blocks
would exceed `MAX_BLOCKS`, the oldest one is dropped, and its ids are unknown from then on.
"""

from __future__ import annotations

from collections import deque
from typing import Final

ID_BYTES: Final = 16
"""Bytes of a topic id."""

BLOCK_IDS: Final = 64
"""Ids in a block. A deletion rewrites one block."""

MAX_BLOCKS: Final = 4_096
"""Blocks that are kept: at least the last 262,080 deleted topics, enough for one deletion every 2.3 s for 7 days."""

_BLOCK_BYTES: Final = BLOCK_IDS * ID_BYTES


class DeletedTopics:
    """The blocks of deleted topic ids. Only the image that holds them changes them."""

    def __init__(self) -> None:
        self._blocks: deque[bytearray] = deque()
        self._first_number = 0

    def add(self, topic_id: bytes) -> None:
        """Add a deleted topic. Drops the oldest block if there would be too many."""
        assert len(topic_id) == ID_BYTES, f"a topic id of {len(topic_id)} bytes"
        if self._needs_block():
            self._blocks.append(bytearray())
            if len(self._blocks) > MAX_BLOCKS:
                self._blocks.popleft()
                self._first_number += 1
        self._blocks[-1] += topic_id

    def touched_numbers(self) -> list[int]:
        """Return the numbers of the blocks that the next `add` changes or drops, ascending."""
        end = self._first_number + len(self._blocks)
        if not self._needs_block():
            return [end - 1]
        return [self._first_number, end] if len(self._blocks) == MAX_BLOCKS else [end]

    def add_block(self, number: int, data: bytes) -> None:
        """Add the next block from a stored row.

        Raises:
            AssertionError: the block is damaged or out of order.
        """
        assert 0 < len(data) <= _BLOCK_BYTES, f"a block of {len(data)} bytes"
        assert len(data) % ID_BYTES == 0, f"a block of {len(data)} bytes"
        assert len(self._blocks) < MAX_BLOCKS, f"more than {MAX_BLOCKS} blocks"
        if self._blocks:
            assert number == self._first_number + len(self._blocks), f"block {number} of deleted topics out of turn"
            assert len(self._blocks[-1]) == _BLOCK_BYTES, f"block {number} of deleted topics after one that is not full"
        else:
            self._first_number = number
        self._blocks.append(bytearray(data))

    def block(self, number: int) -> bytes | None:
        """Return the ids of a block, concatenated; None if there is no such block."""
        place = number - self._first_number
        return bytes(self._blocks[place]) if 0 <= place < len(self._blocks) else None

    def numbers(self) -> range:
        """Return the numbers of the blocks, ascending."""
        return range(self._first_number, self._first_number + len(self._blocks))

    def ids(self) -> frozenset[bytes]:
        """Return all ids. Builds a new set at each call, about 100 bytes an id."""
        return frozenset(
            bytes(block[place : place + ID_BYTES]) for block in self._blocks for place in range(0, len(block), ID_BYTES)
        )

    def _needs_block(self) -> bool:
        return not self._blocks or len(self._blocks[-1]) == _BLOCK_BYTES
