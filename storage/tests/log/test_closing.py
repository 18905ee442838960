# SPDX-License-Identifier: Apache-2.0
"""Closing a log: it writes the mark of a clean close where it is missing, and nothing where it exists."""

from __future__ import annotations

import random

import pytest

from storage.log.partition_log import PartitionLog
from storage.testing.builders import ProducerStamp, append, open_log, read_values
from storage.testing.sim_disk import Crash, SimDisk
from storage.tests.support import LARGE, LOG, kill


def opened(disk: SimDisk, *, clean: bool) -> PartitionLog:
    """Open the log and check whether the opening was clean; forget the recorded disk calls."""
    found = open_log(disk, LOG, LARGE)
    assert found.report.clean is clean
    disk.calls.clear()
    return found.log


def test_a_log_that_nobody_used_costs_a_stop_nothing(disk: SimDisk) -> None:
    """New, opened again, or opened once more with records: a log that is marked clean closes without a changing disk call."""
    log = open_log(disk, LOG, LARGE).log
    disk.calls.clear()
    assert not log.has_unsaved
    log.close()
    assert disk.calls == []
    log = opened(disk, clean=True)
    append(log, [b"a"], leader_epoch=1, producer=ProducerStamp(producer_id=1, base_sequence=0))
    assert log.has_unsaved
    log.close()
    log = opened(disk, clean=True)
    assert not log.has_unsaved
    log.close()
    assert disk.calls == []
    assert read_values(opened(disk, clean=True)) == [b"a"]


def test_a_new_log_that_is_killed_is_found_clean_until_something_is_appended(disk: SimDisk) -> None:
    """The mark of a new log covers no record: an append invalidates it, flushed or not."""
    open_log(disk, LOG, LARGE)
    kill(disk)
    log = opened(disk, clean=True)
    append(log, [b"a"])
    kill(disk)
    log = opened(disk, clean=False)
    assert read_values(log) == [b"a"]
    log.close()
    assert read_values(opened(disk, clean=True)) == [b"a"]


@pytest.mark.parametrize("how", list(Crash))
@pytest.mark.parametrize("seed", range(5))
def test_a_loss_of_power_behind_the_mark_of_a_new_log_keeps_what_was_flushed(
    disk: SimDisk, how: Crash, seed: int
) -> None:
    """Whatever the disk keeps of unflushed data, the mark does not count as a clean end above it."""
    log = open_log(disk, LOG, LARGE).log
    append(log, [b"flushed"])
    log.flush()
    append(log, [b"not flushed"])
    disk.crash(how, random.Random(seed))
    found = open_log(disk, LOG, LARGE)
    assert read_values(found.log)[:1] == [b"flushed"]
    found.log.close()
    assert read_values(opened(disk, clean=True))[:1] == [b"flushed"]


def test_a_cut_back_to_nothing_is_marked_anew(disk: SimDisk) -> None:
    """The file is as small as the mark of the new log says, but the truncation has removed that mark."""
    log = open_log(disk, LOG, LARGE).log
    append(log, [b"a"])
    log.flush()
    log.truncate_suffix(0)
    assert log.has_unsaved
    log.close()
    log = opened(disk, clean=True)
    assert read_values(log) == []
