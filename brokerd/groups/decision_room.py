# SPDX-License-Identifier: Apache-2.0
"""How much fits into one decision of long work, so that the batch stays below what the runtime and the log accept.

Owns the count.
"""

from __future__ import annotations

from collections.abc import Sequence

from brokerd.groups.limits import DECISION_BYTES, DECISION_RECORDS
from brokerd.groups.records import GroupLogRecord, record_bytes


class DecisionRoom:
    """The room that is left in a decision. The first records always fit, so that progress is certain."""

    def __init__(self) -> None:
        self.is_full = False
        self._count = 0
        self._size = 0

    def take(self, records: Sequence[GroupLogRecord]) -> bool:
        """Take room for records that belong together. Return False, and be full, if they do not fit."""
        size = sum(map(record_bytes, records))
        count = self._count + len(records)
        if self._count and (count > DECISION_RECORDS or self._size + size > DECISION_BYTES):
            self.is_full = True
            return False
        self._count = count
        self._size += size
        return True
