# SPDX-License-Identifier: Apache-2.0
"""Formats of records: what they write, what they read, and what they refuse."""

from __future__ import annotations

import io
import json

import pytest
import typer
from hypothesis import given, settings
from hypothesis import strategies as st
from lograft.cli.formats import (
    MAX_INPUT_RECORD_BYTES,
    InputRecord,
    _json_line,  # pyright: ignore[reportPrivateUsage]
    pieces_of,
    reader_of,
    writer_of,
)
from lograft.errors import UsageError
from lograft.types import ConsumerRecord


def record(
    value: bytes | None = b"v", key: bytes | None = b"k", headers: tuple[tuple[str, bytes | None], ...] = ()
) -> ConsumerRecord:
    return ConsumerRecord("t", 3, 17, 1_000, key, value, headers)


def pieces(data: bytes, end: bytes) -> list[bytes]:
    return list(pieces_of(io.BytesIO(data), end, lambda _: None))


def test_every_field_is_written() -> None:
    """All fields, escapes and the percent sign."""
    assert writer_of("%h", b"NULL")(record(headers=(("a", None),))) == b"a=NULL"
    write = writer_of(r"%t/%p/%o %T %D %k(%K) %s(%S) [%h] 100%%\x21\n", b"NULL")
    assert write(record(headers=(("a", b"1"), ("b", b"2")))) == (
        b"t/3/17 1000 1970-01-01T00:00:01.000Z k(1) v(1) [a=1,b=2] 100%!\n"
    )
    assert write(record(None, None)) == b"t/3/17 1000 1970-01-01T00:00:01.000Z NULL(-1) NULL(-1) [] 100%!\n"


@pytest.mark.parametrize("text", ["%x", "%", r"\q%s"])
def test_unknown_fields_and_escapes_are_refused(text: str) -> None:
    """A typing error never prints something else."""
    with pytest.raises(typer.BadParameter):
        writer_of(text, b"")
    with pytest.raises(typer.BadParameter):
        reader_of(text, None)


@pytest.mark.parametrize("text", ["", "no field", "%k%s", "%s %s", "%o %s"])
def test_formats_that_cannot_be_read_are_refused(text: str) -> None:
    """Between two fields is a text, and no field comes twice; an offset cannot be chosen."""
    with pytest.raises(typer.BadParameter):
        reader_of(text, None)


def test_a_record_is_read_by_a_format() -> None:
    """Key, partition, time and headers; the last field takes the rest."""
    read, end = reader_of(r"<%p,%T %h|%k=%s;\n", b"NULL")
    assert end == b";\n"
    assert read(b"<2,99 a=1,b=|key=v=w") == InputRecord(
        value=b"v=w", key=b"key", partition=2, timestamp_ms=99, headers=(("a", b"1"), ("b", b""))
    )
    assert read(b"<2,99 h=NULL|NULL=NULL") == InputRecord(
        value=None, key=None, partition=2, timestamp_ms=99, headers=(("h", None),)
    )
    for bad in (b"2,9 |k=v", b"<x,9 |k=v", b"<1,9 |k", b"<1,9 a|k=v", b"<1,%d |k=v" % 10**18):
        with pytest.raises(UsageError):
            read(bad)


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.binary(max_size=9), st.binary(max_size=9)), max_size=9),
    st.sampled_from([(r"%k\t%s\n", b"\t\n\r"), (r"%k%%%s\x00", b"%\0"), (r"(%k)(%s)\n", b"()\n\r")]),
)
def test_what_a_format_writes_it_reads_again(pairs: list[tuple[bytes, bytes]], format: tuple[str, bytes]) -> None:
    """Unless a text of the format is in the data, every record comes back."""
    text, special = format
    clean = [tuple(data.translate(None, special) for data in pair) for pair in pairs]
    write = writer_of(text, b"")
    read, end = reader_of(text, None)
    data = b"".join(write(record(value, key)) for key, value in clean)
    found = [read(piece) for piece in pieces(data, end)]
    assert [(each.key, each.value) for each in found] == clean


@settings(deadline=None)
@given(st.none() | st.binary(max_size=9), st.none() | st.binary(max_size=9), st.none() | st.binary(max_size=9))
def test_json_comes_back(value: bytes | None, key: bytes | None, header: bytes | None) -> None:
    """Bytes that are no text, null values and headers survive `consume --json | produce --format json`."""
    read, end = reader_of("json", None)
    sent = record(value, key, (("h", header),))
    (piece,) = pieces(_json_line(sent), end)
    found = read(piece)
    assert (found.value, found.key, found.headers, found.timestamp_ms) == (value, key, (("h", header),), 1_000)


@pytest.mark.parametrize(
    "text", ["", "[]", "{", '{"value": 1}', '{"headers": [1]}', '{"key_base64": "?"}', '{"timestamp_ms": "x"}']
)
def test_json_that_is_no_record_is_refused(text: str) -> None:
    """Each is an error of that line, not of the program."""
    read, _ = reader_of("json", None)
    with pytest.raises(UsageError):
        read(text.encode())


def test_pieces_end_anywhere_in_what_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """The end of a record may lie across two reads, and the last record needs none."""
    monkeypatch.setattr("lograft.cli.formats.READ_BYTES", 3)
    assert pieces(b"ab--cd----e", b"--") == [b"ab", b"cd", b"", b"e"]
    assert pieces(b"one\r\ntwo\n\nthree", b"\n") == [b"one", b"two", b"", b"three"]
    assert pieces(b"", b"\n") == []


def test_input_without_an_end_is_refused() -> None:
    """The wrong format must not fill the memory."""
    with pytest.raises(UsageError, match="no end of a record"):
        pieces(bytes(MAX_INPUT_RECORD_BYTES + 1), b"\n")


def test_a_json_line_is_json() -> None:
    """One line, in the fields that the documentation names."""
    fields = json.loads(_json_line(record(b"\xff", None)))
    assert fields["value_base64"] == "/w=="
    assert fields["key"] is None
