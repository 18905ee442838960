# SPDX-License-Identifier: Apache-2.0
"""The workload on real servers makes histories that pass, and its parts report correctly."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest
from lograft import BatchReceipt
from lograft.errors import LograftError, OutcomeUnknownError, RequestTimeoutError, error_for
from lograft.types import Durability
from lograft.wire.codes import ErrorCode

from integration_tests.harness.history.checker import check
from integration_tests.harness.history.events import HISTORY_FILE, Event, Kind, Type, read_history
from integration_tests.harness.load.senders import Acknowledgements, outcome_of
from integration_tests.harness.scene import Shape, scene_under_load

SMALL = Shape(voters=1, brokers=1, partitions=3, replicas=1, senders=2, pollers=1, rate_per_s=60)
VALUES_MIN = 150


@pytest.mark.process
@pytest.mark.timeout(300)
def test_history_of_a_run_with_a_killed_broker_passes(tmp_path: Path) -> None:
    """Producers and consumers outlive a kill of the only broker; their history passes, and a loss that is planted in it is found."""
    with scene_under_load(tmp_path, SMALL) as scene:
        broker = next(iter(scene.cluster.brokers.values()))
        scene.load.history.note_fault("kill")
        broker.kill()
        broker.start()
        scene.wait_in_sync()
        while scene.load.acknowledgements.count < VALUES_MIN:
            scene.load.wait_acknowledged(scene.partitions, time.monotonic())
        verdict, problems = scene.load.judge()
    assert (verdict.name, problems) == ("PASSED", []), verdict.lines()
    assert verdict.value_counts["acknowledged"] >= VALUES_MIN
    assert verdict.counts["poll ok"]
    assert verdict.counts["end ok"]
    events = list(read_history(tmp_path / HISTORY_FILE))
    assert {anomaly.name for anomaly in check(map(without_last_record, events)).anomalies} >= {"unseen"}


def without_last_record(event: Event) -> Event:
    """The same event, but a final read lacks its last record."""
    if event.kind is not Kind.READ or event.type is not Type.OK:
        return event
    records = {partition: each[:-1] for partition, each in event.records.items()}
    ends = {partition: end - 1 for partition, end in event.offsets_by_partition.items()}
    return replace(event, records=records, offsets_by_partition=ends)


def test_only_definite_refusals_are_failures() -> None:
    """A refusal before the append is a failure; time limits, lost leaders, failed disks and lost answers are unknown."""

    def outcome(error: LograftError | None) -> Type:
        return outcome_of(
            BatchReceipt(
                topic="t", partition=0, base_offset=None, record_count=1, durability=Durability.UNKNOWN, error=error
            )
        )

    assert outcome(None) is Type.OK
    assert outcome(error_for(ErrorCode.MESSAGE_TOO_LARGE, "too large")) is Type.FAIL
    assert outcome(error_for(ErrorCode.UNKNOWN_TOPIC, "gone")) is Type.FAIL
    for error in (
        OutcomeUnknownError("lost"),
        RequestTimeoutError("late"),
        error_for(ErrorCode.NOT_LEADER, "moved"),
        error_for(ErrorCode.STORAGE_FAILED, "disk"),
        error_for(ErrorCode.PRODUCER_FENCED, "fenced"),
    ):
        assert outcome(error) is Type.INFO


def test_gap_begins_at_the_last_acknowledgement_before_the_span() -> None:
    """The time without an acknowledgement begins before the fault and may last to the end of the span."""
    acknowledgements = Acknowledgements(2)
    acknowledgements.times_s[1] = [1.0, 2.0, 4.5, 5.0]
    assert acknowledgements.longest_gap_s(1, 3.0, 5.5) == 2.5
    assert acknowledgements.longest_gap_s(1, 4.6, 9.0) == 4.0
    assert acknowledgements.gaps_s(1, 2.0, 4.6) == [2.5, pytest.approx(0.1)]
    assert acknowledgements.longest_gap_s(0, 3.0, 5.5) == 2.5
    assert acknowledgements.is_newer(1, 4.9)
    assert not acknowledgements.is_newer(1, 5.0)
    assert not acknowledgements.is_newer(0, 0.0)
    assert acknowledgements.count == 4
