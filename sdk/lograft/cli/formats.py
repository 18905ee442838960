# SPDX-License-Identifier: Apache-2.0
r"""Formats of records in text, like those of kcat: `%t %p %o %T %k %s\n`.

`lograft consume --format` writes records by a format, `lograft produce --format` reads them by one.

    %t topic       %p partition     %o offset
    %T timestamp in milliseconds since 1970    %D the same as ISO 8601 in UTC
    %k key         %K its length in bytes, -1 for null
    %s value       %S its length in bytes, -1 for null
    %h headers, as name=value,name=value       %% a percent sign

Texts between the fields may have the escapes \t \n \r \0 \\ and \xNN.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO, Final, cast

import typer

from lograft.cli.options import format_time, unescape
from lograft.cli.output import bytes_as_json
from lograft.errors import UsageError
from lograft.types import ConsumerRecord

JSON: Final = "json"
"""The format of one JSON object a line."""

READ_BYTES: Final = 1 << 20
"""Bytes that are read from a file or pipe at a time."""

MAX_INPUT_RECORD_BYTES: Final = 64 << 20
"""Bytes of input without the end of a record after which the input is refused."""

Writer = Callable[[ConsumerRecord], bytes]
"""Returns the text of a record."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InputRecord:
    """A record that was read. What the input does not give is None, and the options of the command decide it."""

    value: bytes | None
    key: bytes | None = None
    partition: int | None = None
    timestamp_ms: int | None = None
    headers: tuple[tuple[str, bytes | None], ...] | None = None


Reader = Callable[[bytes], InputRecord]
"""Makes a record of the text between two ends of records, or raises `UsageError`."""


def writer_of(text: str, null: bytes) -> Writer:
    """Compile a format for writing.

    Args:
        text: the format.
        null: what a null key, value or value of a header is written as.

    Raises:
        typer.BadParameter: the format has an unknown field or escape.
    """
    fields: dict[str, Writer] = {
        "t": lambda record: record.topic.encode(),
        "p": lambda record: b"%d" % record.partition,
        "o": lambda record: b"%d" % record.offset,
        "T": lambda record: b"%d" % record.timestamp_ms,
        "D": lambda record: format_time(record.timestamp_ms).encode(),
        "k": lambda record: null if record.key is None else record.key,
        "K": lambda record: b"%d" % _length(record.key),
        "s": lambda record: null if record.value is None else record.value,
        "S": lambda record: b"%d" % _length(record.value),
        "h": lambda record: b",".join(
            name.encode() + b"=" + (null if value is None else value) for name, value in record.headers
        ),
    }
    pieces: list[Writer] = []
    for literal, field in _tokens(text):
        if literal:
            pieces.append(lambda _, literal=literal: literal)
        if field:
            piece = fields.get(field)
            if piece is None:
                raise _unknown(field, fields)
            pieces.append(piece)
    return lambda record: b"".join([piece(record) for piece in pieces])


def record_writer(text: str | None, null_value: str, *, is_json: bool, verbose: bool) -> Writer:
    """Return how records are printed.

    Args:
        text: a format; None: values, one a line.
        null_value: what a null value is printed as.
        is_json: one JSON object a line, whatever else is said.
        verbose: with partition, offset, time and key before the value.
    """
    null = null_value.encode()
    if is_json:
        return _json_line
    if text is not None:
        return writer_of(text, null)
    return _verbose_line(null_value) if verbose else writer_of(r"%s\n", null)


def _verbose_line(null_value: str) -> Writer:
    def write(record: ConsumerRecord) -> bytes:
        key = "-" if record.key is None else repr(record.key.decode(errors="backslashreplace"))
        value = null_value if record.value is None else record.value.decode(errors="backslashreplace")
        place = f"{record.partition}:{record.offset}"
        return f"{place}\t{format_time(record.timestamp_ms)}\t{key}\t{value}\n".encode()

    return write


def _json_line(record: ConsumerRecord) -> bytes:
    fields = {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp_ms": record.timestamp_ms,
        **bytes_as_json("key", record.key),
        **bytes_as_json("value", record.value),
        "headers": [{"name": name, **bytes_as_json("value", data)} for name, data in record.headers],
    }
    return json.dumps(fields, ensure_ascii=False).encode() + b"\n"


def reader_of(text: str, null: bytes | None) -> tuple[Reader, bytes]:
    r"""Compile a format for reading: %k, %s, %p, %T and %h with text between them. It ends with text, or \n is meant.

    Args:
        text: the format, or "json".
        null: a key, a value or a value of a header that is this text is null; None: none is.

    Returns:
        The reader, and the text that ends each record.

    Raises:
        typer.BadParameter: the format cannot be read.
    """
    if text == JSON:
        return _read_json, b"\n"
    names: list[str] = []
    literals: list[bytes] = []
    for literal, field in _tokens(text):
        literals.append(literal)
        if field is not None:
            if field not in "kspTh":
                raise _unknown(field, "kspTh")
            names.append(field)
    if not names:
        raise _bad(f"{text!r} has no field")
    before, *between = literals
    end = between.pop() if len(literals) > len(names) else b""
    if not all(between):
        raise _bad(f"{text!r} has two fields without text between them, so nobody knows where the first one ends")
    if len(set(names)) < len(names):
        raise _bad(f"{text!r} names a field twice")

    def read(data: bytes) -> InputRecord:
        if not data.startswith(before):
            raise UsageError(f"it does not begin with {_shown(before)}")
        rest = data[len(before) :]
        found: dict[str, bytes] = {}
        for name, literal in zip(names, between, strict=False):
            found[name], is_there, rest = rest.partition(literal)
            if not is_there:
                raise UsageError(f"no {_shown(literal)} after %{name}")
        found[names[-1]] = rest
        return _record(found, null)

    return read, end or b"\n"


def _record(found: dict[str, bytes], null: bytes | None) -> InputRecord:
    value, key = found.get("s", b""), found.get("k")
    return InputRecord(
        value=None if value == null else value,
        key=None if key == null else key,
        partition=_number(found["p"], "%p") if "p" in found else None,
        timestamp_ms=_number(found["T"], "%T") if "T" in found else None,
        headers=_headers(found["h"], null) if "h" in found else None,
    )


def _number(data: bytes, field: str) -> int:
    if not data.isdigit() or len(data) > 18:
        raise UsageError(f"{field} is a number, not {_shown(data)}")
    return int(data)


def _headers(data: bytes, null: bytes | None) -> tuple[tuple[str, bytes | None], ...]:
    headers: list[tuple[str, bytes | None]] = []
    for each in data.split(b",") if data else ():
        name, separator, value = each.partition(b"=")
        try:
            text = name.decode()
        except UnicodeDecodeError:
            text = ""
        if not separator or not text:
            raise UsageError(f"%h is name=value,name=value, not {_shown(data)}")
        headers.append((text, None if value == null else value))
    return tuple(headers)


def _read_json(data: bytes) -> InputRecord:
    """Read what `lograft consume --json` writes. Topic, partition and offset are not taken over."""
    try:
        fields = cast("dict[str, Any]", json.loads(data))
        if type(fields) is not dict:
            raise UsageError("it is no JSON object")
        headers = [(each["name"], _json_bytes(each, "value")) for each in fields.get("headers", ())]
        timestamp_ms = fields.get("timestamp_ms")
        if not all(type(name) is str for name, _ in headers) or not isinstance(timestamp_ms, int | None):
            raise UsageError("a header has no name, or timestamp_ms is no number")
        return InputRecord(
            value=_json_bytes(fields, "value"),
            key=_json_bytes(fields, "key"),
            timestamp_ms=timestamp_ms,
            headers=tuple(headers) or None,
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(f"it is no record in JSON: {error}") from None


def _json_bytes(fields: dict[str, Any], name: str) -> bytes | None:
    if f"{name}_base64" in fields:
        try:
            return base64.b64decode(fields[f"{name}_base64"], validate=True)
        except binascii.Error as error:
            raise UsageError(f"{name}_base64: {error}") from None
    value = fields.get(name)
    if not isinstance(value, str | None):
        raise UsageError(f"{name} is {value!r}, not a text")
    return None if value is None else value.encode()


def pieces_of(source: BinaryIO, end: bytes, seen: Callable[[int], None]) -> Iterator[bytes]:
    """Yield the texts between ends of records. The last one need not have an end.

    Args:
        source: the input.
        end: what ends each record. With a line feed, a carriage return before it belongs to the end, too.
        seen: called with each number of bytes that were read.

    Raises:
        UsageError: no end came within `MAX_INPUT_RECORD_BYTES`.
    """
    read = getattr(source, "read1", source.read)
    rest = b""
    is_lines = end == b"\n"
    while data := read(READ_BYTES):
        seen(len(data))
        *whole, rest = (rest + data).split(end)
        for piece in whole:
            yield piece.rstrip(b"\r") if is_lines else piece
        if len(rest) > MAX_INPUT_RECORD_BYTES:
            raise UsageError(f"no end of a record {_shown(end)} within {MAX_INPUT_RECORD_BYTES} bytes")
    if rest:
        yield rest.rstrip(b"\r") if is_lines else rest


def _tokens(text: str) -> Iterator[tuple[bytes, str | None]]:
    """Yield each text with the letter of the field that follows it; None at the end, if text is there."""
    literal = ""
    letters = iter(text)
    for letter in letters:
        if letter == "\\":
            literal += letter + next(letters, "")
            continue
        if letter != "%":
            literal += letter
            continue
        field = next(letters, None)
        if field is None:
            raise _bad(f"{text!r} ends with a single %; %% is a percent sign")
        if field == "%":
            literal += "%"
            continue
        yield unescape(literal, "--format"), field
        literal = ""
    if literal:
        yield unescape(literal, "--format"), None


def _length(data: bytes | None) -> int:
    return -1 if data is None else len(data)


def _shown(data: bytes) -> str:
    return repr(data.decode(errors="backslashreplace"))


def _unknown(field: str, known: Sequence[str] | dict[str, Writer]) -> typer.BadParameter:
    return _bad(f"there is no field %{field}; there are {' '.join(f'%{each}' for each in known)}")


def _bad(message: str) -> typer.BadParameter:
    return typer.BadParameter(message, param_hint="--format")
