# SPDX-License-Identifier: Apache-2.0
"""The collector is off within a block and has its earlier state afterwards; frozen objects are counted."""

from __future__ import annotations

import gc

import pytest

from metaquorum.collector import collector_off, freeze_started


def test_collector_is_off_in_the_block_and_on_afterwards() -> None:
    """This holds also after a failure, and a nested block changes nothing."""
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
    """A process that runs without the collector stays so."""
    gc.disable()
    try:
        with collector_off():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_started_objects_are_left_out_of_collections() -> None:
    """The collector does not visit frozen objects."""
    before = gc.get_freeze_count()
    kept = [[number] for number in range(1_000)]
    try:
        freeze_started()
        assert gc.get_freeze_count() >= before + len(kept)
    finally:
        gc.unfreeze()
