# SPDX-License-Identifier: Apache-2.0
"""Strategies and readers shared by the tests of the wire layer."""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass, field
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from lograft.wire.batch import Codec, RecordBatch
from lograft.wire.checksum import crc32c
from lograft.wire.limits import HEADER_BYTES, MAX_TIMESTAMP_MS

FACTOR = int(os.environ.get("LOGRAFT_FUZZ_FACTOR", "1"))
"""Factor for the number of examples. Set it for a long run."""


def examples(count: int) -> settings:
    """Return settings for a property: repeatable, and without a deadline on a shared machine."""
    return settings(max_examples=count * FACTOR, deadline=None, derandomize=FACTOR == 1, database=None)


@dataclass
class Rows:
    """Records as rows: the simple model to compare columns with."""

    values: list[bytes | None]
    keys: list[bytes | None] | None = None
    timestamps_ms: Any = None
    headers: list[list[tuple[str, bytes | None]]] | None = None
    codec: Codec = Codec.NONE
    extra: dict[str, Any] = field(default_factory=dict)

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of `encode_batch` after the values."""
        return {
            "keys": self.keys,
            "timestamps_ms": self.timestamps_ms,
            "headers": self.headers,
            "codec": self.codec,
            **self.extra,
        }

    def expected_timestamps(self) -> list[int]:
        """Return the timestamp of each record."""
        if self.timestamps_ms is None:
            return [0] * len(self.values)
        if isinstance(self.timestamps_ms, int):
            return [self.timestamps_ms] * len(self.values)
        return list(self.timestamps_ms)

    def expected_headers(self) -> list[tuple[tuple[str, bytes | None], ...]]:
        """Return the headers of each record."""
        return [()] * len(self.values) if self.headers is None else [tuple(pairs) for pairs in self.headers]


items = st.one_of(st.none(), st.binary(max_size=20), st.binary(min_size=4, max_size=4))
timestamps = st.integers(0, MAX_TIMESTAMP_MS)
texts = st.text(st.characters(codec="utf-8"), max_size=5)
pairs = st.tuples(texts, st.one_of(st.none(), st.binary(max_size=5)))


@st.composite
def rows(draw: st.DrawFn, max_records: int = 12) -> Rows:
    """Draw records with every combination of columns."""
    count = draw(st.integers(1, max_records))
    column = st.one_of(
        st.lists(items, min_size=count, max_size=count),
        st.lists(st.binary(min_size=3, max_size=3), min_size=count, max_size=count),
        st.lists(st.sampled_from([None, b""]), min_size=count, max_size=count),
    )
    return Rows(
        values=draw(column),
        keys=draw(st.one_of(st.none(), column)),
        timestamps_ms=draw(st.one_of(st.none(), timestamps, st.lists(timestamps, min_size=count, max_size=count))),
        headers=draw(st.one_of(st.none(), st.lists(st.lists(pairs, max_size=3), min_size=count, max_size=count))),
        codec=draw(st.sampled_from(Codec)),
    )


def read_everything(batch: bytes | bytearray) -> None:
    """Use every accessor of a batch and assert that each returns n entries. Any exception is a failure."""
    reader = RecordBatch(batch)
    count = reader.record_count
    assert len(reader.values()) == count
    assert len(reader.keys()) == count
    assert len(reader.timestamps_ms()) == count
    assert len(reader.headers()) == count
    offsets = list(reader.offsets())
    assert len(offsets) == count
    assert offsets == sorted(set(offsets))
    assert not offsets or reader.base_offset <= offsets[0] <= offsets[-1] < reader.next_offset
    assert len(reader.records()) == count
    table = reader.to_arrow(include_headers=True)
    table.validate(full=True)
    assert table.num_rows == count
    assert table.column("value").to_pylist() == reader.values()
    assert table.column("key").to_pylist() == reader.keys()
    assert table.column("offset").to_pylist() == offsets
    assert table.column("timestamp_ms").to_pylist() == reader.timestamps_ms()


def put(batch: bytes | bytearray, layout: str, position: int, *numbers: int) -> bytearray:
    """Overwrite header fields and repair the CRC."""
    changed = bytearray(batch)
    struct.pack_into(layout, changed, position, *numbers)
    return repair(changed)


def repair(batch: bytes | bytearray) -> bytearray:
    """Correct length and CRC for the current bytes."""
    changed = bytearray(batch)
    struct.pack_into(">i", changed, 8, len(changed) - 12)
    struct.pack_into(">I", changed, 17, crc32c(memoryview(changed)[21:]))
    return changed


def with_payload(batch: bytes | bytearray, payload: bytes) -> bytearray:
    """Replace the payload behind the header."""
    return repair(bytes(batch[:HEADER_BYTES]) + payload)


def mutate(data: bytes, edits: list[tuple[int, int, bytes]]) -> bytes:
    """Replace `length` bytes at `position` by others, for each edit; positions wrap."""
    changed = bytearray(data)
    for position, length, replacement in edits:
        start = position % (len(changed) + 1)
        changed[start : start + length] = replacement
    return bytes(changed)


edits = st.lists(
    st.tuples(
        st.integers(0, 400),
        st.integers(0, 4),
        st.one_of(
            st.binary(max_size=3),
            st.sampled_from(
                [b"\xff", b"\x00", b"\x80", b"\xff\xff\xff\xff\x0f", b"\x0a\x00", b"\x2a\x00", b"\x7a\x01"]
            ),
        ),
    ),
    min_size=1,
    max_size=3,
)
