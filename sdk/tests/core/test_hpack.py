# SPDX-License-Identifier: Apache-2.0
"""Header blocks are read in every form that RFC 7541 has, and what is none is refused."""

from __future__ import annotations

import pytest
from lograft._core.hpack import (
    MAX_HEADERS_BYTES,
    TABLE_BYTES,
    HeaderError,
    HeaderReader,
    decode_huffman,
    encode_headers,
    encode_integer,
)

GET = [(":method", "GET"), (":scheme", "http"), (":path", "/"), (":authority", "www.example.com")]


def test_examples_of_the_standard_are_read() -> None:
    """Appendix C.4: Huffman codes, both tables, and entries that are kept from block to block."""
    reader = HeaderReader()
    assert reader.read(bytes.fromhex("828684418cf1e3c2e5f23a6ba0ab90f4ff")) == GET
    assert reader.read(bytes.fromhex("828684be5886a8eb10649cbf")) == [*GET, ("cache-control", "no-cache")]
    secure = [(":method", "GET"), (":scheme", "https"), (":path", "/index.html"), (":authority", "www.example.com")]
    block = bytes.fromhex("828785bf408825a849e95ba97d7f8925a849e95bb8e8b4bf")
    assert reader.read(block) == [*secure, ("custom-key", "custom-value")]


def test_what_is_written_is_read() -> None:
    """Names and values of any length, the empty one too."""
    headers = [("a", ""), ("grpc-timeout", "1m"), ("b", "x" * 127), ("c", "y" * 20_000)]
    assert HeaderReader().read(encode_headers(headers)) == headers


def test_table_forgets_what_is_over_its_size() -> None:
    """Entries leave in the order in which they came, one larger than the table empties it, and a size of 0 does."""
    reader = HeaderReader()

    def kept(name: str, value: str) -> bytes:
        return b"\x40" + encode_integer(len(name), 7) + name.encode() + encode_integer(len(value), 7) + value.encode()

    for number in range(100):
        reader.read(kept(f"n{number:02}", "v" * 65))
    assert reader.read(b"\xbe") == [("n99", "v" * 65)]
    last = TABLE_BYTES // 100 - 1
    assert reader.read(bytes((0x80 | 62 + last,))) == [(f"n{99 - last}", "v" * 65)]
    with pytest.raises(HeaderError):
        reader.read(bytes((0x80 | 62 + last + 1,)))
    reader.read(b"\x20")
    with pytest.raises(HeaderError):
        reader.read(b"\xbe")


@pytest.mark.parametrize(
    "block",
    [
        b"\x80",
        b"\xbe",
        b"\x00",
        b"\x00\x05ab",
        b"\x00\x01a",
        b"\x7f",
        b"\x7f\xff\xff\xff\xff\xff\x0f",
        b"\x3f\xe2\x1f",
        b"\x82\x20",
        b"\x00\x81\x00\x00",
        b"\x00\x84\xff\xff\xff\xff\x00",
    ],
)
def test_malformed_blocks_are_refused(block: bytes) -> None:
    """Indices of nothing, blocks that end too early, integers and tables too large, wrong Huffman codes."""
    with pytest.raises(HeaderError):
        HeaderReader().read(block)


def test_few_bytes_do_not_make_many_headers() -> None:
    """A block of references to a large entry is refused beyond the bound."""
    reader = HeaderReader()
    reader.read(b"\x40\x01a" + encode_integer(4_000, 7) + b"x" * 4_000)
    with pytest.raises(HeaderError):
        reader.read(b"\xbe" * (MAX_HEADERS_BYTES // 4_000 + 1))


def test_padding_of_a_huffman_string_is_ones_and_less_than_a_byte() -> None:
    """As section 5.2 demands."""
    assert decode_huffman(bytes.fromhex("f1e3c2e5f23a6ba0ab90f4ff")) == b"www.example.com"
    for wrong in ("f1e3c2e5f23a6ba0ab90f4fe", "f1e3c2e5f23a6ba0ab90f4ffff"):
        with pytest.raises(HeaderError):
            decode_huffman(bytes.fromhex(wrong))
