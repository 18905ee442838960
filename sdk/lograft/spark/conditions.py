# SPDX-License-Identifier: Apache-2.0
"""What records must be like for a read: the filters that a reader takes over from Spark, in terms of the log.

Pure. `pushdown` makes conditions from Spark's filters. `ranges` and `arrow_rows` apply them. They are picklable, because Spark
carries them to the tasks.

Law: a record passes the conditions if, and only if, it passes the filters that they were made from.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class RowConditions:
    """What a single record must be like.

    Attributes:
        keys: the key is one of these, ascending; None: any or no key. A record without a key is none of them.
        key_is_null: True: the record has no key. False: it has one. None: either.
        value_is_null: the same for the value.
        first_ms: first create time, milliseconds since 1970 UTC, inclusive; None: no bound.
        end_ms: end of the create times, exclusive; None: no bound.
    """

    keys: tuple[bytes, ...] | None = None
    key_is_null: bool | None = None
    value_is_null: bool | None = None
    first_ms: int | None = None
    end_ms: int | None = None

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns of a read that must be looked at."""
        return (
            *(("key",) if self.keys is not None or self.key_is_null is not None else ()),
            *(("value",) if self.value_is_null is not None else ()),
            *(("timestamp",) if self.first_ms is not None or self.end_ms is not None else ()),
        )

    @property
    def is_impossible(self) -> bool:
        """True if no record can be like this."""
        has_no_key = self.keys is not None and (not self.keys or self.key_is_null is True)
        return has_no_key or (self.first_ms is not None and self.end_ms is not None and self.first_ms >= self.end_ms)


ALL_ROWS: Final = RowConditions()


@dataclass(frozen=True, slots=True, kw_only=True)
class Offsets:
    """Offsets of every partition: `first` inclusive, `end` exclusive; None: no bound."""

    first: int | None = None
    end: int | None = None

    def cut(self, start_offset: int, end_offset: int) -> tuple[int, int]:
        """Return the part of a range of offsets that lies within; it may be empty, with its start after its end."""
        return (
            start_offset if self.first is None else max(start_offset, self.first),
            end_offset if self.end is None else min(end_offset, self.end),
        )


ALL_OFFSETS: Final = Offsets()
