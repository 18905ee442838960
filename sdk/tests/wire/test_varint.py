# SPDX-License-Identifier: Apache-2.0
"""Varints, alone."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lograft.wire.varint import encode_varint, read_varint
from tests.wire.batches import examples


@examples(300)
@given(st.one_of(st.integers(0, 300), st.integers(0, 2**63 - 1)), st.binary(max_size=3), st.binary(max_size=3))
def test_varints_round_trip(number: int, before: bytes, after: bytes) -> None:
    """A number is read at its position, with the position after it."""
    encoded = encode_varint(number)
    assert read_varint(before + encoded + after, len(before)) == (number, len(before) + len(encoded))


@pytest.mark.parametrize(("number", "encoded"), [(0, b"\0"), (127, b"\x7f"), (128, b"\x80\1"), (300, b"\xac\2")])
def test_known_varints(number: int, encoded: bytes) -> None:
    """The examples of the protobuf documentation hold."""
    assert encode_varint(number) == encoded


def test_numbers_that_cannot_be_read_are_refused() -> None:
    """Torn and overlong varints are errors; a negative number has no encoding here."""
    with pytest.raises(IndexError):
        read_varint(b"\x80", 0)
    with pytest.raises(IndexError):
        read_varint(b"", 0)
    with pytest.raises(ValueError, match="more than 9 bytes"):
        read_varint(b"\xff" * 9 + b"\1", 0)
    with pytest.raises(ValueError, match="more than 4 bytes"):
        read_varint(b"\x80\x80\x80\x80\0", 0, 4)
    with pytest.raises(ValueError, match="range"):
        encode_varint(-1)
