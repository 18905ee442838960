# SPDX-License-Identifier: Apache-2.0
"""Takes filters over from Spark: which ones a read applies itself, and which ones stay with Spark.

Spark gives a reader the AND-ed simple filters of a query. This module turns each of them into a condition on partitions, offsets
or records, or leaves it. It must not ask a broker.

Laws: a filter that is taken over is applied exactly, so Spark need not apply it again. A filter that only narrows the
read (`offset IN (3, 90)` narrows to 3 to 90) is applied and left to Spark too. So the rows of a query are always those
of a filter over a full read.

    column      taken over                                          only narrows
    topic       every comparison                                    -
    partition   every comparison                                    -
    offset      = <=> < <= > >=, IS NOT NULL                        IN
    timestamp   = <=> < <= > >=, IS NOT NULL                        IN
    key         = <=> IN, IS NULL, IS NOT NULL                      -
    value       IS NULL, IS NOT NULL                                -

A comparison with null stays with Spark. The create times of a log need not ascend. So tasks compare them record by
record, and the time index only says where the first record at or after a time is.

Source: `pyspark.sql.datasource.Filter`; `DataSourceReader.pushFilters`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final, cast

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringEndsWith,
    StringStartsWith,
)

from lograft.spark.conditions import ALL_OFFSETS, ALL_ROWS, Offsets, RowConditions
from lograft.types import TopicPartition

PLANNER: Final = "pyspark.sql.worker.data_source_pushdown_filters"
"""The module of Spark that runs in a process of its own and calls `pushFilters`."""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)


def is_pushing_filters() -> bool:
    """Return whether Spark makes the reader in order to push filters down.

    Spark offers no setting to a reader. But it runs another module for a query with filters if
    `spark.sql.python.filterPushdown.enabled` is true, and never loads that module otherwise.
    """
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return PLANNER in sys.modules or getattr(spec, "name", None) == PLANNER


@dataclass(frozen=True, slots=True, kw_only=True)
class Pushed:
    """Filters that a read applies.

    Attributes:
        places: filters on topic and partition.
        offsets: bounds of the offsets, in every partition.
        rows: conditions on single records.
    """

    places: tuple[Filter, ...] = ()
    offsets: Offsets = ALL_OFFSETS
    rows: RowConditions = ALL_ROWS

    def has(self, partition: TopicPartition) -> bool:
        """Return whether a partition may have rows of the query."""
        return not self.rows.is_impossible and all(_holds(each, partition) for each in self.places)


NOTHING_PUSHED: Final = Pushed()


def push(filters: Iterable[Filter]) -> tuple[Pushed, list[Filter]]:
    """Return what the read applies, and the filters that Spark must still apply."""
    pushed, left = NOTHING_PUSHED, list[Filter]()
    for each in filters:
        taken, is_exact = _taken(pushed, each)
        pushed = pushed if taken is None else taken
        if taken is None or not is_exact:
            left.append(each)
    return pushed, left


def _taken(pushed: Pushed, each: Filter) -> tuple[Pushed | None, bool]:
    """Return the filters with one more, and whether it is applied exactly; (None, False) if it stays with Spark alone."""
    column = _column(each)
    if column in ("topic", "partition"):
        return (replace(pushed, places=(*pushed.places, each)), True) if _is_place_filter(each) else (None, False)
    if isinstance(each, IsNotNull) and column in ("offset", "timestamp"):
        return pushed, True
    if column == "offset":
        bounds, is_exact = _bounds(each, _whole_number)
        if bounds is None:
            return None, False
        first, end = pushed.offsets.first, pushed.offsets.end
        offsets = Offsets(first=_larger(first, bounds[0]), end=_smaller(end, bounds[1]))
        return replace(pushed, offsets=offsets), is_exact
    if column == "timestamp":
        bounds, is_exact = _bounds(each, _microseconds, unit=1_000)
        if bounds is None:
            return None, False
        rows = pushed.rows
        rows = replace(rows, first_ms=_larger(rows.first_ms, bounds[0]), end_ms=_smaller(rows.end_ms, bounds[1]))
        return replace(pushed, rows=rows), is_exact
    rows = _with_bytes(pushed.rows, column, each)
    return (None, False) if rows is None else (replace(pushed, rows=rows), True)


def _with_bytes(rows: RowConditions, column: str | None, each: Filter) -> RowConditions | None:
    """Return conditions with one more on key or value; None if it stays with Spark."""
    if column == "key" and isinstance(each, EqualTo | EqualNullSafe | In):
        values = _values(each)
        if not all(type(value) in (bytes, bytearray) for value in values):
            return None
        keys = {bytes(cast("bytes", value)) for value in values}
        return replace(rows, keys=tuple(sorted(keys if rows.keys is None else keys & set(rows.keys))))
    if isinstance(each, IsNull | IsNotNull) and column in ("key", "value"):
        is_null = isinstance(each, IsNull)
        before = rows.key_is_null if column == "key" else rows.value_is_null
        if before not in (None, is_null):
            return None
        return replace(rows, key_is_null=is_null) if column == "key" else replace(rows, value_is_null=is_null)
    return None


def _bounds(
    each: Filter, number_of: Callable[[object], int | None], *, unit: int = 1
) -> tuple[tuple[int | None, int | None] | None, bool]:
    """Return the bounds of a comparison with numbers, first inclusive and end exclusive, and whether they are all of it.

    Args:
        each: the comparison.
        number_of: returns the number of a value; None for another kind of value.
        unit: number that is one step of the column. The numbers may lie between two steps.
    """
    if not isinstance(
        each, EqualTo | EqualNullSafe | In | GreaterThan | GreaterThanOrEqual | LessThan | LessThanOrEqual
    ):
        return None, False
    numbers = [number_of(value) for value in _values(each)]
    if not numbers or None in numbers:
        return None, False
    low, high = min(cast("list[int]", numbers)), max(cast("list[int]", numbers))
    at_or_after, after = -(-low // unit), high // unit + 1
    match each:
        case GreaterThan():
            return (low // unit + 1, None), True
        case GreaterThanOrEqual():
            return (at_or_after, None), True
        case LessThan():
            return (None, -(-high // unit)), True
        case LessThanOrEqual():
            return (None, after), True
        case In():
            return (at_or_after, after), False
        case _:
            return (at_or_after, after), True


def _column(each: Filter) -> str | None:
    inner: Any = each.child if isinstance(each, Not) else each
    path: tuple[str, ...] = getattr(inner, "attribute", ())
    return path[0] if len(path) == 1 else None


def _values(each: Filter) -> tuple[object, ...]:
    value: object = cast("Any", each).value
    return tuple(cast("Iterable[object]", value)) if isinstance(each, In) else (value,)


def _is_place_filter(each: Filter) -> bool:
    """Return whether a filter on topic or partition can be decided from the name and the number."""
    if isinstance(each, Not):
        return not isinstance(each.child, Not) and _is_place_filter(each.child)
    if isinstance(each, IsNull | IsNotNull):
        return True
    kind = str if _column(each) == "topic" else int
    if isinstance(each, StringStartsWith | StringEndsWith | StringContains):
        return kind is str and all(type(value) is str for value in _values(each))
    return type(each) in _COMPARISONS and all(type(value) is kind for value in _values(each))


def _holds(each: Filter, partition: TopicPartition) -> bool:
    if isinstance(each, Not):
        return not _holds(each.child, partition)
    if isinstance(each, IsNull | IsNotNull):
        return isinstance(each, IsNotNull)
    # Topic names are ASCII, so that Python compares them as Spark does.
    own: Any = partition.topic if _column(each) == "topic" else partition.partition
    value: Any = cast("Any", each).value
    return bool(_COMPARISONS[type(each)](own, value))


_COMPARISONS: Final[dict[type[Filter], Callable[[Any, Any], bool]]] = {
    EqualTo: lambda own, value: own == value,
    EqualNullSafe: lambda own, value: own == value,
    In: lambda own, value: own in value,
    GreaterThan: lambda own, value: own > value,
    GreaterThanOrEqual: lambda own, value: own >= value,
    LessThan: lambda own, value: own < value,
    LessThanOrEqual: lambda own, value: own <= value,
    StringStartsWith: lambda own, value: own.startswith(value),
    StringEndsWith: lambda own, value: own.endswith(value),
    StringContains: lambda own, value: value in own,
}


def _whole_number(value: object) -> int | None:
    return value if type(value) is int else None


def _microseconds(value: object) -> int | None:
    # Spark gives the moments of the column `timestamp` with a time zone.
    return (value - _EPOCH) // _MICROSECOND if isinstance(value, datetime) and value.tzinfo is not None else None


def _larger(one: int | None, other: int | None) -> int | None:
    return other if one is None else one if other is None else max(one, other)


def _smaller(one: int | None, other: int | None) -> int | None:
    return other if one is None else one if other is None else min(one, other)
