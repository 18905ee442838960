# SPDX-License-Identifier: Apache-2.0
"""Values of a load contain their names, and a changed value is detected."""

from __future__ import annotations

import pytest

from integration_tests.harness.load.values import decode_value, encode_value


@pytest.mark.parametrize("size_bytes", [0, 5, 6, 7, 8, 200])
def test_value_tells_its_name(size_bytes: int) -> None:
    """Whatever its size, and of the size that was asked for where the name leaves room."""
    value = encode_value("s0:12", size_bytes)
    assert decode_value(value) == "s0:12"
    assert len(value) == (size_bytes if size_bytes > 6 else 5)


def test_changed_value_has_no_name_that_was_sent() -> None:
    """Another body, a body of another value, a shorter and a longer one, and no value at all."""
    value, other = encode_value("s0:12", 100), encode_value("s0:13", 100)
    for changed in (value[:-1], value + b"x", value[:-1] + b"~~", value[:6] + other[6:], None):
        assert decode_value(changed) not in ("s0:12", "s0:13"), changed


def test_value_that_is_no_text_is_told() -> None:
    """Bytes that no load sends are a name of nothing, not an error of the reader."""
    assert decode_value(b"\xff\xfe") not in ("", "s0:12")
