# SPDX-License-Identifier: Apache-2.0
"""The hash chain of `lograft bench` finds every fault that a log can have."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lograft.cli.hash_chain import MIN_VALUE_BYTES, ChainError, ChainReader, ChainWriter, sent_ns

RUN = b"the run!"


def chain(count: int, size: int = 40) -> tuple[list[bytes | None], ChainWriter]:
    writer = ChainWriter(RUN, 3, size, seed=1)
    return [writer.next(number * 10) for number in range(count)], writer


def check(values: list[bytes | None], writer: ChainWriter, *, run: bytes = RUN, partition: int = 3) -> None:
    reader = ChainReader(run, partition)
    reader.take(values, 100)
    reader.check_end(writer.end())


@settings(deadline=None)
@given(st.integers(0, 20), st.integers(MIN_VALUE_BYTES, 100), st.integers(1, 7))
def test_a_whole_chain_is_good(count: int, size: int, step: int) -> None:
    """In pieces of any size; every value has the size that was asked for, and its time."""
    values, writer = chain(count, size)
    reader = ChainReader(RUN, 3)
    for at in range(0, count, step):
        reader.take(values[at : at + step], at)
    reader.check_end(writer.end())
    assert all(value is not None and len(value) == size for value in values)
    assert [sent_ns(value) for value in values if value is not None] == [number * 10 for number in range(count)]


@settings(deadline=None)
@given(st.data(), st.integers(2, 12))
def test_every_fault_is_found(data: st.DataObject, count: int) -> None:
    """A lost, doubled, swapped, changed, null or short value; also at the very end."""
    values, writer = chain(count)
    at = data.draw(st.integers(0, count - 1))
    fault = data.draw(st.sampled_from(["lose", "double", "swap", "flip", "null", "short"]))
    value = values[at]
    assert value is not None
    if fault == "lose":
        del values[at]
    elif fault == "double":
        values.insert(at, value)
    elif fault == "swap":
        other = (at + data.draw(st.integers(1, count - 1))) % count
        values[at], values[other] = values[other], value
    elif fault == "flip":
        byte = data.draw(st.integers(0, len(value) - 1))
        changed = bytearray(value)
        changed[byte] ^= data.draw(st.integers(1, 255))
        values[at] = bytes(changed)
    else:
        values[at] = None if fault == "null" else value[: MIN_VALUE_BYTES - 1]
    with pytest.raises(ChainError, match="partition 3"):
        check(values, writer)


def test_values_of_another_run_or_partition_are_no_chain() -> None:
    """Old records of the topic are not taken for new ones."""
    values, writer = chain(2)
    for run, partition in ((b"other", 3), (RUN, 2)):
        with pytest.raises(ChainError):
            check(values, writer, run=run, partition=partition)


def test_the_text_says_what_is_wrong() -> None:
    """Missing, again, and how many came."""
    values, writer = chain(4)
    with pytest.raises(ChainError, match=r"offset 101: record 2 came in place of 1: records are missing"):
        check([values[0], *values[2:]], writer)
    with pytest.raises(ChainError, match=r"offset 101: record 0 came again, in place of 1"):
        check([values[0], *values], writer)
    with pytest.raises(ChainError, match="3 of 4 records came"):
        check(values[:3], writer)
