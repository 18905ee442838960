# SPDX-License-Identifier: Apache-2.0
"""A short producer proof with real processes, and its judge. `make producer-proofs` runs the long one."""

from __future__ import annotations

from pathlib import Path

import pytest

from integration_tests.scenarios.producer_proofs.run import prove
from integration_tests.scenarios.producer_proofs.sent import LoggedRecord, Sent, decode, encode


@pytest.mark.process
@pytest.mark.timeout(600)
def test_kills_of_leaders_lose_and_double_nothing(tmp_path: Path) -> None:
    """Both producers go through kills with full pipelines: each record once, in order, each handle right."""
    outcome = prove(tmp_path, kills=2, seed=3)
    assert outcome.problems == []
    assert int(str(outcome.figures["waiting_at_kill_min_bytes"])) > 0


def sent_records(count: int) -> tuple[Sent, list[LoggedRecord]]:
    """Return records of one key with their handles resolved, and the log that has them."""
    sent, log = Sent("test", keys=1, partition_count=1), list[LoggedRecord]()
    for offset in range(count):
        number = sent.take(0)
        key, value = encode(0, number, 30)
        sent.sending(0, number, 0, len(key) + len(value))
        sent.resolved(0, number, (0, offset))
        log.append(LoggedRecord(0, offset, key, value))
    return sent, log


def test_records_as_they_were_sent_have_no_problem() -> None:
    """Each number once, in order, where its handle says."""
    sent, log = sent_records(3)
    assert sent.compare(log) == []
    assert sent.waiting_in(0) == 0
    assert sent.are_resolved([3])


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda log: log[:1] + log[2:], "LOST"),
        (lambda log: log[:2], "LOST"),
        (lambda log: [*log, log[0]], "DOUBLED"),
        (lambda log: [log[1], log[0], log[2]], "out of order"),
        (lambda log: [*log[:2], LoggedRecord(0, 3, log[2].key, log[2].value)], "its handle says"),
        (lambda log: [*log[:2], LoggedRecord(0, 2, b"k1", log[2].value)], "nobody sent"),
        (lambda log: [*log[:2], LoggedRecord(1, 2, log[2].key, log[2].value)], "also in partition"),
    ],
)
def test_log_that_differs_is_found(change: object, text: str) -> None:
    """A lost, doubled, moved, reordered or foreign record is a problem."""
    sent, log = sent_records(3)
    assert callable(change)
    assert any(text in problem for problem in sent.compare(change(log)))


def test_handles_without_or_with_two_results_are_found() -> None:
    """Every handle gets one result, and a failure is a problem."""
    sent, log = sent_records(2)
    sent.resolved(0, 1, (0, 1))
    assert any("second result" in problem for problem in sent.compare(log))
    waiting, log = sent_records(1)
    number = waiting.take(0)
    waiting.sending(0, number, 0, 100)
    assert not waiting.are_resolved([2])
    assert any("1 handles have no result" in problem for problem in waiting.compare(log))
    failed, log = sent_records(1)
    failed.resolved(0, failed.take(0), ValueError("late"))
    assert any("was not acknowledged" in problem for problem in failed.compare(log))


def test_bytes_without_a_result_are_counted_by_partition() -> None:
    """They fall with each result. A result that comes before `send` returns leaves nothing."""
    sent = Sent("test", keys=1, partition_count=2)
    for number in range(2):
        assert sent.take(0) == number
        sent.sending(0, number, 1, 100)
    assert (sent.waiting_in(1), sent.waiting_bytes_max) == (200, 200)
    sent.resolved(0, 0, (1, 0))
    early = sent.take(0)
    sent.resolved(0, early, (1, 2))
    sent.sending(0, early, 1, 100)
    assert (sent.waiting_in(1), sent.waiting_bytes_max, sent.unresolved_count) == (100, 200, 1)


def test_values_name_their_key_and_number() -> None:
    """A padded value says where it belongs; anything else is nobody's."""
    assert decode(encode(7, 12, 60)[1]) == (7, 12)
    assert decode(None) is None
    assert decode(b"7:12") is None
    assert decode(b"7:x ...") is None
    assert decode(b"7:12 ..!") is None
