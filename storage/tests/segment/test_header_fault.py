# SPDX-License-Identifier: Apache-2.0
"""Which headers are impossible at their place."""

from __future__ import annotations

import pytest
from lograft.wire.batch import encode_batch, read_header
from lograft.wire.limits import HEADER_BYTES, MAGIC, MAX_BATCH_BYTES

from storage.segment.scan import header_fault

HEADER = read_header(encode_batch([b"a", b"b"], base_offset=7))
SIZE_BYTES = HEADER.size_bytes


def test_a_good_header_has_no_fault() -> None:
    """Also if there is exactly as much room as it needs."""
    assert header_fault(HEADER, expected_offset=7, room_bytes=SIZE_BYTES) is None


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"magic": MAGIC + 1}, f"magic {MAGIC + 1}"),
        ({"base_offset": 8}, "base offset 8"),
        ({"batch_length": HEADER.batch_length - SIZE_BYTES + HEADER_BYTES - 1}, f"batch of {HEADER_BYTES - 1} bytes"),
        (
            {"batch_length": HEADER.batch_length - SIZE_BYTES + MAX_BATCH_BYTES + 1},
            f"batch of {MAX_BATCH_BYTES + 1} bytes",
        ),
        ({"batch_length": HEADER.batch_length + 1}, f"batch of {SIZE_BYTES + 1} bytes, {SIZE_BYTES} are left"),
        ({"last_offset_delta": -1}, "last offset delta -1"),
    ],
)
def test_each_fault_is_named(change: dict[str, int], fault: str) -> None:
    """The first fault is named, so that a message describes the header."""
    assert header_fault(HEADER._replace(**change), expected_offset=7, room_bytes=SIZE_BYTES) == fault
