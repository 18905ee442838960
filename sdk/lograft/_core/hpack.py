# SPDX-License-Identifier: Apache-2.0
"""Header blocks of HTTP/2: written plainly, read in every form.

Owns the tables and the codes. Must not know frames or what a header means.
A block that is read changes the table with which the next one is read: all of a connection go through one `HeaderReader`, in order.
Source: RFC 7541; the Huffman code of its appendix B is canonical, so that the lengths say it all.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Final

TABLE_BYTES: Final = 4_096
"""Bytes of the table of headers that the peer may refer to (RFC 7541 section 4.1), as it is without a word of ours."""

ENTRY_OVERHEAD_BYTES: Final = 32
"""Bytes that count for an entry besides its name and value."""

MAX_HEADERS_BYTES: Final = 65_536
"""Most bytes of the names and values of one block; more is an attack, for references make much of little."""

MAX_INTEGER: Final = 1 << 28
"""Bound of an encoded integer, exclusive."""

_STATIC_TABLE: Final = tuple(
    (name, value)
    for name, _, value in (
        each.partition("=")
        for each in (
            *(
                ":authority",
                ":method=GET",
                ":method=POST",
                ":path=/",
                ":path=/index.html",
                ":scheme=http",
                ":scheme=https",
            ),
            *(":status=200", ":status=204", ":status=206", ":status=304", ":status=400", ":status=404", ":status=500"),
            *("accept-charset", "accept-encoding=gzip, deflate", "accept-language", "accept-ranges", "accept"),
            *("access-control-allow-origin", "age", "allow", "authorization", "cache-control", "content-disposition"),
            *("content-encoding", "content-language", "content-length", "content-location", "content-range"),
            *("content-type", "cookie", "date", "etag", "expect", "expires", "from", "host", "if-match"),
            *(
                "if-modified-since",
                "if-none-match",
                "if-range",
                "if-unmodified-since",
                "last-modified",
                "link",
                "location",
            ),
            *(
                "max-forwards",
                "proxy-authenticate",
                "proxy-authorization",
                "range",
                "referer",
                "refresh",
                "retry-after",
            ),
            *("server", "set-cookie", "strict-transport-security", "transfer-encoding", "user-agent", "vary", "via"),
            "www-authenticate",
        )
    )
)

_CODE_LENGTHS: Final = (
    *(
        13,
        23,
        *(28,) * 7,
        24,
        30,
        28,
        28,
        30,
        *(28,) * 8,
        30,
        *(28,) * 9,
        6,
        10,
        10,
        12,
        13,
        6,
        8,
        11,
        10,
        10,
        8,
        11,
        8,
    ),
    *(
        6,
        6,
        6,
        5,
        5,
        5,
        *(6,) * 7,
        7,
        8,
        15,
        6,
        12,
        10,
        13,
        6,
        *(7,) * 22,
        8,
        7,
        8,
        13,
        19,
        13,
        14,
        6,
        15,
        5,
        6,
        5,
        6,
        5,
    ),
    *(
        6,
        6,
        6,
        5,
        7,
        7,
        6,
        6,
        6,
        5,
        6,
        7,
        6,
        5,
        5,
        6,
        7,
        7,
        7,
        7,
        7,
        15,
        11,
        14,
        13,
        28,
        20,
        22,
        20,
        20,
        22,
        22,
        22,
        23,
    ),
    *(
        22,
        23,
        23,
        23,
        23,
        23,
        24,
        23,
        24,
        24,
        22,
        23,
        24,
        23,
        23,
        23,
        23,
        21,
        22,
        23,
        22,
        23,
        23,
        24,
        22,
        21,
        20,
        22,
        22,
    ),
    *(
        23,
        23,
        21,
        23,
        22,
        22,
        24,
        21,
        22,
        23,
        23,
        21,
        21,
        22,
        21,
        23,
        22,
        23,
        23,
        20,
        22,
        22,
        22,
        23,
        22,
        22,
        23,
        26,
        26,
    ),
    *(
        20,
        19,
        22,
        23,
        22,
        25,
        26,
        26,
        26,
        27,
        27,
        26,
        24,
        25,
        19,
        21,
        26,
        27,
        27,
        26,
        27,
        24,
        21,
        21,
        26,
        26,
        28,
        27,
        27,
    ),
    *(
        27,
        20,
        24,
        20,
        21,
        22,
        21,
        21,
        23,
        22,
        22,
        25,
        25,
        24,
        24,
        26,
        23,
        26,
        27,
        26,
        26,
        *(27,) * 5,
        28,
        *(27,) * 5,
        26,
    ),
    30,
)
_END_OF_STRING: Final = 256

Header = tuple[str, str]
"""Name and value, each character a byte (Latin-1)."""


class HeaderError(Exception):
    """A block cannot be read; the connection it came over is of no use any more."""


def encode_headers(headers: Iterable[tuple[str, str]]) -> bytes:
    """Encode headers as literals that nobody keeps in a table; names and values are ASCII."""
    return b"".join(b"\0" + _encode_string(name) + _encode_string(value) for name, value in headers)


def _encode_string(text: str) -> bytes:
    data = text.encode("ascii")
    return encode_integer(len(data), 7) + data


def encode_integer(value: int, prefix_bits: int) -> bytes:
    """Encode an integer whose first byte has `prefix_bits` bits for it (RFC 7541 section 5.1)."""
    limit = (1 << prefix_bits) - 1
    if value < limit:
        return bytes((value,))
    rest, out = value - limit, bytearray((limit,))
    while rest >= 0x80:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    out.append(rest)
    return bytes(out)


def _decoding_table() -> dict[tuple[int, int], int]:
    """Map length and bits of a code to its symbol."""
    table: dict[tuple[int, int], int] = {}
    code = previous = 0
    for symbol in sorted(range(len(_CODE_LENGTHS)), key=lambda each: (_CODE_LENGTHS[each], each)):
        length = _CODE_LENGTHS[symbol]
        code <<= length - previous
        table[length, code] = symbol
        code, previous = code + 1, length
    return table


_SYMBOLS: Final = _decoding_table()
_LONGEST_CODE_BITS: Final = 30
_PADDING_BITS_MAX: Final = 7


def decode_huffman(data: bytes) -> bytes:
    """Decode a string.

    Raises:
        HeaderError: a code that does not exist or may not stand there, or wrong padding.
    """
    out = bytearray()
    code = length = 0
    for byte in data:
        for shift in range(7, -1, -1):
            code = code << 1 | byte >> shift & 1
            length += 1
            symbol = _SYMBOLS.get((length, code))
            if symbol is not None:
                if symbol == _END_OF_STRING:
                    raise HeaderError("an end of string inside a string")
                out.append(symbol)
                code = length = 0
            elif length >= _LONGEST_CODE_BITS:
                raise HeaderError("no such Huffman code")
    if length > _PADDING_BITS_MAX or code != (1 << length) - 1:
        raise HeaderError("wrong padding of a Huffman string")
    return bytes(out)


class HeaderReader:
    """Reads the header blocks of one direction of a connection."""

    def __init__(self) -> None:
        self._table: deque[Header] = deque()
        self._table_bytes = 0
        self._limit_bytes = TABLE_BYTES

    def read(self, block: bytes) -> list[Header]:
        """Decode a block.

        Raises:
            HeaderError: it is malformed, or larger than `MAX_HEADERS_BYTES`.
        """
        headers: list[Header] = []
        size_bytes = position = 0
        while position < len(block):
            first = block[position]
            if first & 0x80:
                index, position = _decode_integer(block, position, 7)
                header = self._at(index)
            elif first & 0xE0 == 0x20:
                limit_bytes, position = _decode_integer(block, position, 5)
                if headers or limit_bytes > TABLE_BYTES:
                    raise HeaderError(f"a table of {limit_bytes} bytes, or in the wrong place")
                self._limit_bytes = limit_bytes
                self._evict()
                continue
            else:
                is_kept = first & 0x40 != 0
                index, position = _decode_integer(block, position, 6 if is_kept else 4)
                if index:
                    name = self._at(index)[0]
                else:
                    name, position = _decode_string(block, position)
                value, position = _decode_string(block, position)
                header = (name, value)
                if is_kept:
                    self._keep(header)
            size_bytes += len(header[0]) + len(header[1])
            if size_bytes > MAX_HEADERS_BYTES:
                raise HeaderError(f"headers of more than {MAX_HEADERS_BYTES} bytes")
            headers.append(header)
        return headers

    def _at(self, index: int) -> Header:
        if 0 < index <= len(_STATIC_TABLE):
            name, value = _STATIC_TABLE[index - 1]
            return name, value
        position = index - len(_STATIC_TABLE) - 1
        if index == 0 or position >= len(self._table):
            raise HeaderError(f"no header has the index {index}")
        return self._table[position]

    def _keep(self, header: Header) -> None:
        self._table.appendleft(header)
        self._table_bytes += _entry_bytes(header)
        self._evict()

    def _evict(self) -> None:
        while self._table_bytes > self._limit_bytes:
            self._table_bytes -= _entry_bytes(self._table.pop())


def _entry_bytes(header: Header) -> int:
    return len(header[0]) + len(header[1]) + ENTRY_OVERHEAD_BYTES


def _decode_integer(block: bytes, position: int, prefix_bits: int) -> tuple[int, int]:
    """Return an integer, and where what follows it begins."""
    limit = (1 << prefix_bits) - 1
    value = block[position] & limit
    position += 1
    if value < limit:
        return value, position
    shift = 0
    while position < len(block):
        byte = block[position]
        position += 1
        value += (byte & 0x7F) << shift
        shift += 7
        if value >= MAX_INTEGER:
            raise HeaderError(f"an integer of {MAX_INTEGER} or more")
        if byte < 0x80:
            return value, position
    raise HeaderError("a header block that ends inside an integer")


def _decode_string(block: bytes, position: int) -> tuple[str, int]:
    """Return a string, and where what follows it begins."""
    if position >= len(block):
        raise HeaderError("a header block that ends before a string")
    is_huffman = block[position] & 0x80 != 0
    length, position = _decode_integer(block, position, 7)
    data = block[position : position + length]
    if len(data) < length:
        raise HeaderError("a header block that ends inside a string")
    return (decode_huffman(data) if is_huffman else data).decode("latin-1"), position + length
