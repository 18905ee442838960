# SPDX-License-Identifier: Apache-2.0
"""The first calls of a transaction, which can be made again when it meets a topic that its ingest does not have.

Opening the ingest with a further topic ends what was staged. So a transaction keeps what it was given until that is too much; from then
on a new topic needs an abort.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Generic, TypeVar, cast

C = TypeVar("C")

KEPT_RECORDS: Final = 1_000
"""Records that a transaction keeps to send them again."""

KEPT_BYTES: Final = 1024 * 1024
"""Bytes of keys and values of these records."""


class KeptCalls(Generic[C]):
    """Calls in order. The transaction writes it.

    Attributes:
        calls: the calls; empty once they were too many.
        is_complete: False once something was dropped.
    """

    def __init__(self) -> None:
        self.calls: list[C] = []
        self.is_complete: bool = True
        self._records = 0
        self._bytes = 0

    def add(self, call: C, records: int, size_bytes: int) -> None:
        """Keep a call with its records; drop everything if it is too much."""
        self._records += records
        self._bytes += size_bytes
        if self._records > KEPT_RECORDS or self._bytes > KEPT_BYTES:
            self.calls.clear()
            self.is_complete = False
        elif self.is_complete:
            self.calls.append(call)


def frozen(given: Any) -> Any:
    """Return a value or a key that the caller cannot change any more."""
    return bytes(cast("bytearray", given)) if isinstance(given, bytearray | memoryview) else given


def size_of(values: Sequence[Any]) -> int:
    """Return the bytes of values and keys, as far as they are bytes."""
    return sum(len(each) for each in values if isinstance(each, bytes))
