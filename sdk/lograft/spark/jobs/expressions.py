# SPDX-License-Identifier: Apache-2.0
"""What becomes key, value, time, partition and headers of a record, as expressions of Spark SQL. Pure.

The columns and their types come from the files, as Spark or the first lines say them. Types are Spark's texts (`simpleString`).

Nothing is guessed: a column that does not exist, a type that cannot be a time, and at last a row whose time or partition cannot be
read each end the job. Then nothing of it is published.

Values keep their bytes: a JSON line is the value as it stands in the file, also if key and time are taken out of it.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, cast

from lograft.errors import UsageError
from lograft.spark.jobs.plan import IngestPlan, InputFormat

LINE: Final = "line"
"""The column of the line, of JSON lines and of text."""

FIELDS: Final = "fields"
"""The column with the fields that were taken out of a JSON line, as texts."""

VALUES: Final = "values"
"""The column with the fields of a JSON line that become another JSON object, with their types."""

HEADERS_TYPE: Final = "array<struct<key:string,value:binary>>"
"""Type of a column that is all headers of a record, as a read of a topic gives it."""

_KEEP_NULLS: Final = "map('ignoreNullFields', 'false')"
_INTEGERS: Final = frozenset({"tinyint", "smallint", "int", "bigint"})
_NESTED: Final = ("struct<", "array<", "map<", "variant")
_LISTED: Final = 20
"""Most columns that an error lists."""


def json_columns(lines: Iterable[bytes]) -> dict[str, str]:
    """Return the fields of JSON lines, all as texts, in the order in which they come.

    Raises:
        UsageError: a line is no JSON object.
    """
    found: dict[str, str] = {}
    for line in lines:
        try:
            fields: Any = json.loads(line)
        except ValueError as error:
            raise UsageError(f"a line is not JSON ({error}): {_cut(line)}; --format text takes any lines") from None
        if not isinstance(fields, dict):
            raise UsageError(f"a line is not a JSON object: {_cut(line)}; --format text takes any lines")
        found |= dict.fromkeys(cast("dict[str, Any]", fields), "string")
    return found


def fields_schemas(plan: IngestPlan) -> dict[str, str]:
    """Return the columns that are taken out of JSON lines, each with its schema for `from_json`.

    `FIELDS` has texts. `VALUES` has the fields of a value that is another JSON object; they keep their types.
    """
    if plan.format is not InputFormat.JSON:
        return {}
    texts = dict.fromkeys((plan.key, plan.value, plan.timestamp, plan.partition, *plan.headers))
    found = {
        FIELDS: ", ".join(f"{quoted(name)} STRING" for name in texts if name is not None),
        VALUES: ", ".join(f"{quoted(name)} VARIANT" for name in plan.value_columns),
    }
    return {name: schema for name, schema in found.items() if schema}


def record_columns(plan: IngestPlan, columns: Mapping[str, str]) -> dict[str, str]:
    """Return the expressions of a record's columns, by the names that the sink takes.

    Args:
        plan: the plan.
        columns: type of each column of the files, in their order; of JSON lines those of `json_columns`.

    Raises:
        UsageError: a column that the plan names does not exist, or cannot be what it is to become.
    """
    known = _Columns(plan, columns)
    found: dict[str, str] = {}
    if plan.key is not None:
        found["key"] = known.content(plan.key)
    found["value"] = _value(plan, known)
    if plan.timestamp is not None:
        found["timestamp"] = _time(known, plan.timestamp)
    if plan.partition is not None:
        found["partition"] = _partition(known, plan.partition)
    if plan.headers:
        found["headers"] = _headers(known, plan.headers)
    return found


def replay_columns(*, has_headers: bool) -> dict[str, str]:
    """Return the expressions of a JSON line of a replay, whose null ones are left out: what `lograft consume --json` prints.

    Bytes that are no UTF-8 are base64 under a name that ends in `_base64`, and `lograft produce --format json` takes all of it.
    """
    found = {
        "topic": "topic",
        "partition": "partition",
        "offset": "offset",
        "timestamp_ms": "unix_millis(timestamp)",
        "key": _text_if_valid("key"),
        "key_base64": _base64_if_not("key"),
        "value": _text_if_valid("value"),
        "value_base64": _base64_if_not("value"),
    }
    if has_headers:
        text, coded = _text_if_valid("each.value"), _base64_if_not("each.value")
        found["headers"] = (
            f"transform(headers, each -> map_filter(map('name', each.key, 'value', {text}, 'value_base64', {coded}), "
            "(name, content) -> content IS NOT NULL))"
        )
    return found


def quoted(name: str) -> str:
    """Return an identifier of SQL."""
    return "`" + name.replace("`", "``") + "`"


def literal(text: str) -> str:
    """Return a text of SQL."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


class _Columns:
    """The columns of the files, as the plan may name them."""

    def __init__(self, plan: IngestPlan, types: Mapping[str, str]) -> None:
        self._is_json = plan.format is InputFormat.JSON
        self._types = types
        for name in plan.columns:
            self.name(name)

    def all(self) -> Sequence[str]:
        return list(self._types)

    def name(self, wanted: str) -> str:
        """Return how the files spell a column. As in Spark, case counts only where two columns differ by nothing else."""
        if wanted in self._types:
            return wanted
        alike = [] if self._is_json else [name for name in self._types if name.lower() == wanted.lower()]
        if len(alike) == 1:
            return alike[0]
        raise UsageError(_missing(wanted, list(self._types), is_json=self._is_json))

    def kind(self, wanted: str) -> str:
        return self._types[self.name(wanted)]

    def place(self, wanted: str) -> str:
        """Return the expression of a column."""
        name = quoted(self.name(wanted))
        return f"{FIELDS}.{name}" if self._is_json else name

    def content(self, wanted: str) -> str:
        """Return the expression of a column as text or bytes."""
        kind, place = self.kind(wanted), self.place(wanted)
        if kind in ("string", "binary"):
            return place
        if kind.startswith(_NESTED):
            return f"to_json({place}, {_KEEP_NULLS})"
        return f"CAST({place} AS STRING)"


def _value(plan: IngestPlan, known: _Columns) -> str:
    if plan.is_line:
        return LINE
    if plan.value is not None:
        return known.content(plan.value)
    names = [known.name(each) for each in plan.value_columns] or known.all()
    if not names:
        raise UsageError("the files have no column that could be a value")
    if plan.format is InputFormat.JSON:
        pairs = ", ".join(f"{literal(name)}, {VALUES}.{quoted(name)}" for name in names)
    else:
        pairs = ", ".join(f"{literal(name)}, {quoted(name)}" for name in names)
    return f"to_json(named_struct({pairs}), {_KEEP_NULLS})"


def _time(known: _Columns, wanted: str) -> str:
    kind, place = known.kind(wanted), known.place(wanted)
    if kind == "timestamp":
        moment = place
    elif kind in ("timestamp_ntz", "date"):
        # Without a zone: UTC, which is the zone of the job's session.
        moment = f"CAST({place} AS TIMESTAMP)"
    elif kind in _INTEGERS:
        moment = f"timestamp_millis({place})"
    elif kind == "string":
        number = f"timestamp_millis(TRY_CAST({place} AS BIGINT))"
        moment = f"IF({place} RLIKE '^[0-9]{{1,15}}$', {number}, TRY_CAST({place} AS TIMESTAMP))"
    else:
        raise UsageError(
            f"column {wanted!r} is a {kind} and cannot be the time: a time is a timestamp, a date, a text in ISO 8601, "
            "or milliseconds since 1970"
        )
    problem = "a time in ISO 8601, or milliseconds since 1970"
    return f"COALESCE({moment}, {_refusal(wanted, place, problem)})"


def _partition(known: _Columns, wanted: str) -> str:
    kind, place = known.kind(wanted), known.place(wanted)
    if kind not in _INTEGERS and kind != "string":
        raise UsageError(f"column {wanted!r} is a {kind} and cannot be the partition, which is a number from 0")
    number = f"COALESCE(TRY_CAST({place} AS INT), {_refusal(wanted, place, 'a number of a partition')})"
    return f"IF({place} IS NULL, CAST(NULL AS INT), {number})"


def _headers(known: _Columns, wanted: Sequence[str]) -> str:
    if len(wanted) == 1 and known.kind(wanted[0]) == HEADERS_TYPE:
        return known.place(wanted[0])
    each = ", ".join(
        f"named_struct('key', {literal(known.name(name))}, 'value', CAST({known.content(name)} AS BINARY))"
        for name in wanted
    )
    return f"array({each})"


def _refusal(wanted: str, place: str, problem: str) -> str:
    before = literal(f"column {wanted!r} holds ")
    after = literal(f", which is not {problem}")
    return f"raise_error(concat({before}, COALESCE(CAST({place} AS STRING), 'null'), {after}))"


def _text_if_valid(place: str) -> str:
    return f"IF(is_valid_utf8(CAST({place} AS STRING)), CAST({place} AS STRING), NULL)"


def _base64_if_not(place: str) -> str:
    return f"IF(is_valid_utf8(CAST({place} AS STRING)), NULL, base64({place}))"


def _missing(wanted: str, names: Sequence[str], *, is_json: bool) -> str:
    listed = ", ".join(names[:_LISTED]) + (f" and {len(names) - _LISTED} more" if len(names) > _LISTED else "")
    near = difflib.get_close_matches(wanted, names, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    where = " in the first lines" if is_json else ""
    return f"there is no column {wanted!r}{where}; there are {listed or 'none'}{hint}"


def _cut(line: bytes) -> str:
    text = repr(line.decode(errors="backslashreplace"))
    return text if len(text) <= 120 else f"{text[:120]}..."
