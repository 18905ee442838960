# SPDX-License-Identifier: Apache-2.0
"""Waits of values: which span they belong to, and their figures."""

from __future__ import annotations

import pytest

from integration_tests.harness.load.times import Wait, longest, quantile, summarize, touching


def test_wait_belongs_to_every_span_that_it_touches() -> None:
    """Values sent before, during or acknowledged after a span waited in it. Waits that end before or begin after it did not."""
    before, into, inside, out_of, across, after = (
        Wait(0, 0.0, 1.0),
        Wait(0, 0.5, 1.5),
        Wait(0, 1.2, 1.3),
        Wait(0, 1.9, 2.5),
        Wait(0, 0.5, 9.0),
        Wait(0, 2.0, 2.1),
    )
    waits = [before, into, inside, out_of, across, after]
    assert list(touching(waits, [(1.0, 2.0)])) == [into, inside, out_of, across]
    assert list(touching(waits, [(1.0, 2.0), (2.05, 3.0)])) == [into, inside, out_of, across, after]
    assert list(touching(waits, [])) == []


def test_longest_wait_is_found_whatever_the_order() -> None:
    """The longest come first."""
    waits = [Wait(0, 0.0, 0.1), Wait(0, 1.0, 3.0), Wait(0, 2.0, 2.5)]
    assert longest(waits, 2) == [waits[1], waits[2]]
    assert longest([], 2) == []


def test_figures_are_values_that_were_measured() -> None:
    """A quantile is one of the values: the smallest that so many do not exceed."""
    figures = summarize(value / 100 for value in range(100, 0, -1))
    assert (figures.count, figures.p50_s, figures.p99_s, figures.max_s) == (100, 0.5, 0.99, 1.0)
    assert str(figures) == "100 values waited p50 500, p99 990, max 1000 ms"
    assert summarize([0.3]).p50_s == summarize([0.3]).p99_s == 0.3
    assert quantile([1.0, 2.0, 3.0], 1 / 3) == 1.0


def test_no_values_make_no_waits() -> None:
    """Without values all figures are zero; a share outside of its range is a fault of the caller."""
    figures = summarize([])
    assert (figures.count, figures.p50_s, figures.max_s) == (0, 0.0, 0.0)
    with pytest.raises(AssertionError):
        quantile([1.0], 0.0)
