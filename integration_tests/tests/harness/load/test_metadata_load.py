# SPDX-License-Identifier: Apache-2.0
"""Figures of a load of metadata changes."""

from __future__ import annotations

from integration_tests.harness.load.metadata_load import MetadataLoad


def test_longest_gap_counts_from_the_last_acknowledgement_before() -> None:
    """The time without an acknowledgement begins before the fault and may last to the end of the span."""
    load = MetadataLoad("127.0.0.1:1", rate_per_s=1)
    load.acknowledged_s = [1.0, 2.0, 4.5, 5.0]
    assert load.longest_gap_s(3.0, 5.5) == 2.5
    assert load.longest_gap_s(4.6, 9.0) == 4.0
    load.standstills.append((6.0, 8.0))
    assert load.stood_still(7.0, 7.5)
    assert not load.stood_still(8.0, 9.0)
