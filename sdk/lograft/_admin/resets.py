# SPDX-License-Identifier: Apache-2.0
"""Where a reset puts the offset of a partition. Pure.

Law: the new offset is one at which the partition can be read: from the first readable offset to the end.
"""

from __future__ import annotations

from lograft.types import ResetTo


def reset_offset(to: ResetTo, *, committed: int | None, start: int, end: int, found: int | None = None) -> int | None:
    """Return the new offset; None: the partition keeps having none, because there is nothing to shift.

    Args:
        to: where the group is to read on.
        committed: its present offset; None: none.
        start: first readable offset.
        end: end of the readable records, exclusive.
        found: for a time: the first offset of that time or later; None: there is none.

    Raises:
        ValueError: this client does not know the kind.
    """
    match to.kind:
        case "earliest":
            wanted = start
        case "latest":
            wanted = end
        case "time" | "ago":
            wanted = end if found is None else found
        case "offset":
            wanted = to.value
        case "shift" if committed is None:
            return None
        case "shift":
            wanted = (committed or 0) + to.value
        case _:
            raise ValueError(f"{to.kind!r} is no kind of reset; make one with a class method of ResetTo")
    return max(start, min(wanted, end))


def lag_of(committed: int | None, *, start: int | None, end: int | None) -> int | None:
    """Return the readable records that a group has not read; None if the end is not known."""
    if end is None:
        return None
    return max(0, end - max(committed or 0, start or 0))
