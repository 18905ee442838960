# SPDX-License-Identifier: Apache-2.0
"""The collector is off for a block, as it was afterwards; what is frozen is counted as such."""

from __future__ import annotations

import gc

import pytest

from metaquorum.collector import collector_off, freeze_started


def test_collector_is_off_in_the_block_and_on_afterwards() -> None:
    """Also after a failure, and one block in another changes nothing."""
    assert gc.isenabled()

    def fail() -> None:
        with collector_off():
            assert not gc.isenabled()
            with collector_off():
                pass
            assert not gc.isenabled()
            raise ValueError("load")

    with pytest.raises(ValueError, match="load"):
        fail()
    assert gc.isenabled()


def test_collector_that_was_off_stays_off() -> None:
    """Whoever runs without a collector keeps doing so."""
    gc.disable()
    try:
        with collector_off():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_started_objects_are_left_out_of_collections() -> None:
    """Frozen objects are not looked at again."""
    before = gc.get_freeze_count()
    kept = [[number] for number in range(1_000)]
    try:
        freeze_started()
        assert gc.get_freeze_count() >= before + len(kept)
    finally:
        gc.unfreeze()
