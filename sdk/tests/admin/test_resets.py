# SPDX-License-Identifier: Apache-2.0
"""Where a reset puts an offset, for any log and any place."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lograft._admin.resets import lag_of, reset_offset
from lograft.types import ResetTo

PLACES = st.one_of(
    st.just(ResetTo.earliest()),
    st.just(ResetTo.latest()),
    st.builds(ResetTo.time, st.integers(0, 2**62)),
    st.builds(ResetTo.shift, st.integers(-(2**62), 2**62)),
    st.builds(ResetTo.offset, st.integers(0, 2**62)),
)


@given(
    to=PLACES,
    committed=st.none() | st.integers(0, 1_000),
    start=st.integers(0, 500),
    length=st.integers(0, 500),
    found=st.none() | st.integers(0, 1_000),
)
def test_new_offset_can_be_read(to: ResetTo, committed: int | None, start: int, length: int, found: int | None) -> None:
    """It lies from the first readable offset to the end; only a shift of nothing has none."""
    after = reset_offset(to, committed=committed, start=start, end=start + length, found=found)
    if to.kind == "shift" and committed is None:
        assert after is None
    else:
        assert after is not None
        assert start <= after <= start + length
        lag = lag_of(after, start=start, end=start + length)
        assert lag == start + length - after


def test_unknown_place_is_an_error() -> None:
    """A place that somebody made by hand."""
    with pytest.raises(ValueError, match="class method"):
        reset_offset(ResetTo("moon"), committed=1, start=0, end=2)


def test_lag_counts_what_can_be_read() -> None:
    """Without an offset everything; behind the log start what is left; beyond the end nothing; unknown without an end."""
    assert lag_of(None, start=4, end=10) == 6
    assert lag_of(1, start=4, end=10) == 6
    assert lag_of(9, start=4, end=10) == 1
    assert lag_of(12, start=4, end=10) == 0
    assert lag_of(9, start=4, end=None) is None
