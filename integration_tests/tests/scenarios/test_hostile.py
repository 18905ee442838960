# SPDX-License-Identifier: Apache-2.0
"""The hostile clients are as hostile as intended, and the judge of their cost misses nothing."""

from __future__ import annotations

import math

import pytest
from lograft.wire.batch import check_batch
from lograft.wire.errors import BatchTooLargeError
from lograft.wire.limits import DEFAULT_MAX_MESSAGE_BYTES

from integration_tests.scenarios.hostile.bombs import all_kinds, zeros
from integration_tests.scenarios.hostile.healthy import percentile
from integration_tests.scenarios.hostile.http2 import DATA, HEADERS, frame, grpc_call
from integration_tests.scenarios.hostile.run import GROWTH_BYTES_MAX, KEPT_BY_PYTHON_BYTES, MIB, OF_MANY, Result
from integration_tests.scenarios.hostile.target import Usage

BOMB_BYTES_MAX = 16_384


def test_bombs_are_small_and_only_those_over_the_limit_are_refused() -> None:
    """Two kinds decompress to too much. The server accepts the others, so it must decompress them completely."""
    outcomes: list[str] = []
    for batch in all_kinds():
        assert len(batch) < BOMB_BYTES_MAX
        try:
            check_batch(batch, max_bytes=DEFAULT_MAX_MESSAGE_BYTES)
        except BatchTooLargeError:
            outcomes.append("refused")
        else:
            outcomes.append("taken")
    assert outcomes == ["refused", "refused", "taken", "taken", "taken", "taken"]


def test_a_bomb_of_known_size_says_it() -> None:
    """A frame that states its size is refused by that size alone. One that does not must be decompressed."""
    assert len(zeros(1_000_000, states_size=True)) > len(zeros(1_000_000, states_size=False))


def test_call_by_hand_is_headers_and_one_message() -> None:
    """The call is two frames on stream 1; the second is the message with its length."""
    data = grpc_call("/s/M", "a:1", b"xyz")
    tail = frame(DATA, 0, 1, b"\x00\x00\x00\x00\x03xyz")
    assert data.endswith(tail)
    assert data[3] == HEADERS
    assert int.from_bytes(data[:3], "big") == len(data) - len(tail) - 9


def test_percentiles_are_of_the_values_themselves() -> None:
    """The 99th percentile of a hundred values is the ninety-ninth, the 100th the largest. Of no values it is NaN."""
    values = [float(number) for number in range(1, 101)]
    assert (percentile(values, 0.5), percentile(values, 0.99), percentile(values, 1.0)) == (50, 99, 100)
    assert math.isnan(percentile([], 0.5))


def usage(rss_bytes: int) -> Usage:
    """Return the usage of a process with this much memory."""
    return Usage(rss_bytes=rss_bytes, descriptors=1, threads=1)


@pytest.mark.parametrize(
    ("peak_mib", "after_mib", "p99_ms", "missing", "found"),
    [
        (612, 120, 50.0, 0, []),
        (613, 120, 50.0, 0, ["MiB above idle"]),
        (612, 121, 50.0, 0, ["afterwards"]),
        (612, 120, 50.1, 0, ["p99"]),
        (612, 120, math.nan, 0, ["p99"]),
        (612, 120, 10.0, 1, ["did not get"]),
        (700, 700, 99.0, 0, ["MiB above idle", "afterwards", "p99"]),
    ],
)
def test_every_target_can_be_missed(
    peak_mib: int, after_mib: int, p99_ms: float, missing: int, found: list[str]
) -> None:
    """Each figure passes at its bound, and is named just beyond it."""
    assert GROWTH_BYTES_MAX == 512 * MIB
    result = Result(
        scenario="readers",
        idle=usage(100 * MIB),
        peak=usage(peak_mib * MIB),
        after=usage(after_mib * MIB),
        calm={"p99_ms": 5.0},
        beside={"p99_ms": p99_ms, "missing": missing},
        seen={},
        server_cpu_share=0.1,
    )
    misses = result.misses()
    assert len(misses) == len(found)
    for miss, part in zip(misses, found, strict=True):
        assert part in miss


@pytest.mark.parametrize("scenario", sorted(OF_MANY))
@pytest.mark.parametrize(("after_mib", "found"), [(144, 0), (145, 1)])
def test_what_grpc_keeps_of_very_many_is_taken_off(scenario: str, after_mib: int, found: int) -> None:
    """20 of 100 MiB may stay, and the memory that a bare server keeps."""
    assert KEPT_BY_PYTHON_BYTES == 24 * MIB
    result = Result(
        scenario=scenario,
        idle=usage(100 * MIB),
        peak=usage(200 * MIB),
        after=usage(after_mib * MIB),
        calm={"p99_ms": 5.0},
        beside={"p99_ms": 10.0, "missing": 0},
        seen={},
        server_cpu_share=0.1,
    )
    assert len(result.misses()) == found
