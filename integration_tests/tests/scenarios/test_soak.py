# SPDX-License-Identifier: Apache-2.0
"""The soak in short with real servers, and its judges; `make soak` runs the long one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from lograft import Admin
from lograft.errors import LograftError

from integration_tests.harness.cluster import ADMIN_TIMEOUT_MS, CombinedCluster
from integration_tests.harness.wait import wait_for
from integration_tests.scenarios.soak.ledger import PROBLEMS_MAX, Ledger, Values
from integration_tests.scenarios.soak.observed import (
    DISK_BYTES_MAX,
    GROWTH_JUDGED_FROM_S,
    MIB,
    RSS_BYTES_MAX,
    Sample,
    growth_bytes_per_s,
    growth_mib_per_min,
    judge,
    leader_changes,
)
from integration_tests.scenarios.soak.run import SoakSettings, run

SECONDS = 10.0
ELECTION_TIMEOUT_S = 30.0
CALM = Sample(
    time_s=0.0,
    quorum_epoch=1,
    quorum_leader_id=1,
    fenced=(),
    leader_epochs=(1, 4),
    out_of_sync=0,
    rss_bytes={"a": 100 * MIB, "b": 90 * MIB},
    disk_bytes=0,
)


@pytest.mark.process
@pytest.mark.timeout(300)
def test_full_rate_beside_voters_causes_no_election(tmp_path: Path) -> None:
    """Three servers that are voters too accept what one producer can send: no election, each record read once and in order."""
    outcome = run(tmp_path, SoakSettings(seconds=SECONDS))
    assert outcome.problems == []
    assert outcome.figures["quorum_epoch_first"] == outcome.figures["quorum_epoch_last"]
    records = outcome.figures["records"]
    assert isinstance(records, int)
    assert records > 0


def stop_the_quorum_leader(nodes: CombinedCluster) -> None:
    """Stop the time of the server that leads the quorum until another one does."""
    with Admin(nodes.bootstrap, request_timeout_ms=ADMIN_TIMEOUT_MS) as admin:
        old_id = admin.describe_quorum().leader_id
        assert old_id is not None
        names = list(nodes.processes)
        process = nodes.processes[names[old_id - 1]]
        others = ",".join(address for name, address in nodes.addresses.items() if name != process.name)

        def has_moved() -> bool:
            with Admin(others, request_timeout_ms=ADMIN_TIMEOUT_MS) as asking:
                try:
                    return asking.describe_quorum().leader_id not in (None, old_id)
                except LograftError:
                    return False

        process.pause()
        try:
            wait_for(has_moved, timeout_s=ELECTION_TIMEOUT_S, what="another leader of the quorum")
        finally:
            process.resume()


@pytest.mark.process
@pytest.mark.timeout(300)
def test_election_under_load_fails_the_soak(tmp_path: Path) -> None:
    """A quorum leader that stands still is replaced. The soak reports that, and that no record was lost."""
    outcome = run(tmp_path, SoakSettings(seconds=SECONDS), meanwhile=stop_the_quorum_leader)
    assert any("an election" in problem for problem in outcome.problems)
    assert not [problem for problem in outcome.problems if problem.startswith("partition")]
    assert outcome.verdict == "FAILED"


def ledger_of(*counts: int) -> tuple[Ledger, Values]:
    """A ledger with some records sent to each partition, and its values."""
    values = Values(100)
    ledger = Ledger(len(counts), values)
    for partition, count in enumerate(counts):
        ledger.send(partition, count, 1.0)
    return ledger, values


def test_records_that_come_back_once_and_in_order_are_right() -> None:
    """Receipts and reads in any pieces, partition by partition, cause no problem. Waits end with the last receipt."""
    ledger, values = ledger_of(5, 2)
    ledger.take_receipt(0, 0, 3, 2.0)
    assert not ledger.waits
    ledger.take_read(0, 0, values.make(0, 2))
    assert (ledger.unread(0), ledger.is_all_read, ledger.acknowledged) == (1, False, 3)
    ledger.take_receipt(0, 3, 2, 4.0)
    ledger.take_receipt(1, 0, 2, 5.0)
    ledger.take_read(0, 2, values.make(2, 3))
    ledger.take_read(1, 0, values.make(0, 2))
    assert ledger.is_all_read
    assert ledger.judge_end() == []
    assert [(wait.partition, wait.seconds) for wait in ledger.waits] == [(0, 3.0), (1, 4.0)]


def test_lost_record_is_found() -> None:
    """A record that was acknowledged and is not read shows at the end; one that a reader passes shows at once."""
    ledger, values = ledger_of(3)
    ledger.take_receipt(0, 0, 3, 2.0)
    ledger.take_read(0, 0, values.make(0, 2))
    assert ledger.problems == []
    assert len(ledger.judge_end()) == 1
    ledger, values = ledger_of(3)
    ledger.take_receipt(0, 0, 3, 2.0)
    ledger.take_read(0, 0, values.make(0, 1))
    ledger.take_read(0, 2, values.make(2, 1))
    assert ledger.problems == ["partition 0: read 2 after 0"]


def test_doubled_record_is_found() -> None:
    """A record that is in the log twice moves everything behind it. The receipt and the value at the offset show it."""
    ledger, values = ledger_of(3)
    ledger.take_receipt(0, 0, 2, 2.0)
    ledger.take_receipt(0, 3, 1, 2.0)
    ledger.take_read(0, 0, [*values.make(0, 2), *values.make(1, 1)])
    assert "acknowledged at 3, not at 2" in ledger.problems[0]
    assert "another value at 2" in ledger.problems[1]


def test_more_receipts_than_records_are_found() -> None:
    """A record that was never sent cannot be acknowledged."""
    ledger, _ = ledger_of(1)
    ledger.take_receipt(0, 0, 2, 2.0)
    assert "2 records acknowledged of 1 sent" in ledger.problems[0]


def test_changed_value_is_found() -> None:
    """A body of another number, a truncated value and a null are no right values."""
    values = Values(100)
    right = values.make(7, 2)
    assert values.is_right(7, right[0])
    assert not values.is_right(8, right[0])
    assert not values.is_right(7, right[0][:-1])
    assert not values.is_right(7, right[0][:8] + right[1][8:])
    assert not values.is_right(7, None)


def test_few_problems_are_kept() -> None:
    """A broken run does not fill the memory with problems."""
    ledger, _ = ledger_of(PROBLEMS_MAX * 2)
    ledger.take_read(0, 0, [None] * PROBLEMS_MAX * 2)
    assert len(ledger.problems) == PROBLEMS_MAX


def test_election_is_found() -> None:
    """A higher quorum epoch is an election, whoever leads. Without one no problem is reported."""
    later = replace(CALM, time_s=2.0)
    assert judge([CALM, later]) == []
    (problem,) = judge([CALM, later, replace(later, time_s=4.0, quorum_epoch=3)])
    assert problem == "quorum epoch 1 -> 3 between 2.0 and 4.0 s: an election"


def test_fenced_broker_is_found() -> None:
    """A broker that becomes fenced is a problem, once."""
    later = replace(CALM, time_s=2.0, fenced=(2,))
    assert judge([CALM, later, replace(later, time_s=4.0)]) == ["brokers (2,) are fenced at 2.0 s"]


def test_one_sample_tells_nothing() -> None:
    """One sample cannot show that nothing changed."""
    assert len(judge([CALM])) == len(judge([])) == 1


def test_leader_changes_count_what_samples_did_not_see() -> None:
    """Leader epochs rise with every change of a leadership."""
    assert leader_changes([CALM, replace(CALM, leader_epochs=(3, 4)), replace(CALM, leader_epochs=(3, 5))]) == 3


def test_growth_is_the_slope_of_the_later_part() -> None:
    """Early growth does not count. Continued growth does, and noise around a level hardly."""
    assert growth_bytes_per_s([(0.0, 10.0), (1.0, 12.0), (2.0, 14.0)]) == pytest.approx(2.0)
    assert growth_bytes_per_s([(1.0, 5.0)]) == growth_bytes_per_s([]) == 0.0
    filling = [
        replace(CALM, time_s=float(number), rss_bytes={"a": min(number, 50) * MIB, "b": number * MIB})
        for number in range(101)
    ]
    assert growth_mib_per_min(filling, "a") == pytest.approx(0.0)
    assert growth_mib_per_min(filling, "b") == pytest.approx(60.0)


def test_growth_is_judged_when_the_soak_is_long_enough() -> None:
    """The same slope is a problem in a long soak and none in a short one; a server beyond its memory always is."""

    def soak(seconds: float) -> list[Sample]:
        times_s = [seconds * part / 20 for part in range(21)]
        return [replace(CALM, time_s=each, rss_bytes={"a": int(each * MIB / 6)}) for each in times_s]

    (problem,) = judge(soak(GROWTH_JUDGED_FROM_S))
    assert "a gains 10.0 MiB a minute" in problem
    assert judge(soak(GROWTH_JUDGED_FROM_S / 2)) == []
    (problem,) = judge([CALM, replace(CALM, rss_bytes={"a": RSS_BYTES_MAX + 1, "b": MIB})])
    assert problem.startswith("a had 1024 MiB of memory")


def test_full_disk_is_found() -> None:
    """Data that retention does not bound is a problem."""
    assert len(judge([CALM, replace(CALM, disk_bytes=DISK_BYTES_MAX + 1)])) == 1
