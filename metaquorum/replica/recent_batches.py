# SPDX-License-Identifier: Apache-2.0
"""The end of the metadata log in memory, as it was appended: what followers fetch next, and what listeners are told next.

Owns the limit of the bytes. Only `LogStore` uses it, and clears it when the log is cut or restarted. Law: what is kept is one piece of
the log without a gap, up to the last append.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from metaquorum.metadata.listener import CommittedBatch

RECENT_BYTES = 256 * 1024
"""Largest number of log bytes that are kept. The last append is kept only if it is not longer."""

Decode = Callable[[bytes], list[CommittedBatch]]


@dataclass(slots=True)
class _Append:
    """The batches of one append. `batches` is their decoded form: None before it is needed, and again once listeners have read it."""

    base_offset: int
    next_offset: int
    data: bytes
    batches: list[CommittedBatch] | None


class RecentBatches:
    """The newest appends.

    Args:
        decode: decodes bytes of the log.
    """

    __slots__ = ("_appends", "_decode", "_size_bytes")

    def __init__(self, decode: Decode) -> None:
        self._decode = decode
        self._appends: deque[_Append] = deque()
        self._size_bytes = 0

    def add(self, base_offset: int, next_offset: int, data: bytes, batches: list[CommittedBatch] | None = None) -> None:
        """Keep an append; `batches` is what is in it, if the caller knows."""
        if len(data) > RECENT_BYTES or (self._appends and self._appends[-1].next_offset != base_offset):
            self.clear()
        if len(data) > RECENT_BYTES:
            return
        self._appends.append(_Append(base_offset, next_offset, data, batches))
        self._size_bytes += len(data)
        while self._size_bytes > RECENT_BYTES:
            self._size_bytes -= len(self._appends.popleft().data)

    def clear(self) -> None:
        """Keep nothing."""
        self._appends.clear()
        self._size_bytes = 0

    def bytes_from(self, offset: int, max_bytes: int) -> bytes | None:
        """Return whole appends from an offset on, at most `max_bytes`; None if the first one is not kept, or longer."""
        found: list[bytes] = []
        for each in self._from(offset):
            max_bytes -= len(each.data)
            if max_bytes < 0:
                break
            found.append(each.data)
        if not found:
            return None
        return found[0] if len(found) == 1 else b"".join(found)

    def batches_from(self, offset: int, max_bytes: int, *, end_offset: int) -> list[CommittedBatch] | None:
        """Return the batches of whole appends from an offset on and below `end_offset` (exclusive).

        At most `max_bytes`, but at least one append; None if the first one is not kept, or ends above. The decoded form of
        earlier appends is dropped: listeners read forward, and it takes several times the memory of the bytes.
        """
        self._forget_decoded(offset)
        found: list[CommittedBatch] = []
        for each in self._from(offset):
            if each.next_offset > end_offset or max_bytes <= 0:
                break
            max_bytes -= len(each.data)
            if each.batches is None:
                each.batches = self._decode(each.data)
            found += each.batches
        return found or None

    def _forget_decoded(self, end_offset: int) -> None:
        for each in reversed(self._appends):
            if each.next_offset <= end_offset:
                if each.batches is None:
                    # What is older was forgotten before, unless a listener far behind has decoded it again.
                    return
                each.batches = None

    def _from(self, offset: int) -> Sequence[_Append]:
        """Return the appends from an offset on, the oldest first; none if no append begins there."""
        if not self._appends or offset < self._appends[0].base_offset:
            return ()
        found: deque[_Append] = deque()
        for each in reversed(self._appends):
            if each.base_offset < offset:
                break
            found.appendleft(each)
        return found if found and found[0].base_offset == offset else ()
