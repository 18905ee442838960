# SPDX-License-Identifier: Apache-2.0
"""`lograft bench` against a real broker: what it states, and that a faulty log ends it with an error."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from lograft import Admin, Producer
from lograft.cli import main

Run = Callable[..., tuple[int, str, str]]
QUICK = ("-n", "3000", "-p", "3", "--keys", "50", "--latency-records", "50", "-c", "flush.policy=none")


@pytest.fixture
def run(bootstrap: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run `lograft bench`."""
    monkeypatch.setenv("LOGRAFT_BOOTSTRAP", bootstrap)

    def call(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as end:
            main(("bench", *arguments))
        out, err = capfd.readouterr()
        assert isinstance(end.value.code, int)
        return end.value.code, out, err

    return call


def bench_topics(admin: Admin) -> set[str]:
    return {each.topic for each in admin.list_topics() if each.topic.startswith("bench-")}


def test_it_states_rates_and_times_and_cleans_up(run: Run, admin: Admin) -> None:
    """As text and as JSON; the topic of its own is gone."""
    before = bench_topics(admin)
    code, out, _ = run(*QUICK)
    assert code == 0
    for text in ("3,000 records in", "records/s", "acknowledged after p50", "end to end  50 records", "verified"):
        assert text in out
    code, out, _ = run(*QUICK, "--json", "--rate", "100000", "--codec", "zstd")
    facts = json.loads(out)
    assert (code, facts["verified"], facts["produce"]["records"], facts["consume"]["records"]) == (0, True, 3000, 3000)
    assert facts["end_to_end"]["p50_ms"] > 0
    assert bench_topics(admin) == before


@pytest.mark.parametrize(
    ("fault", "said"), [("lose", "records are missing"), ("double", "came again"), ("change", "was changed")]
)
def test_a_fault_in_the_log_ends_it_with_an_error(
    run: Run, admin: Admin, monkeypatch: pytest.MonkeyPatch, fault: str, said: str
) -> None:
    """One record of 3,000 is lost, doubled or changed: the exit status is 1, and the topic stays for a look."""

    class Faulty(Producer):
        count = 0
        last: Any = None

        def send(self, topic: str, value: Any, *more: Any, **named: Any) -> Any:
            self.count += 1
            if self.count == 1_000 and fault == "lose":
                return self.last
            if self.count == 1_000 and fault == "change":
                value = value[:-1] + bytes([value[-1] ^ 1])
            if self.count == 1_000 and fault == "double":
                super().send(topic, value, *more, **named)
            self.last = super().send(topic, value, *more, **named)
            return self.last

    monkeypatch.setattr("lograft.cli.bench.Producer", Faulty)
    before = bench_topics(admin)
    code, _, err = run(*QUICK)
    assert code == 1
    assert "verification failed: partition" in err
    (kept,) = bench_topics(admin) - before
    admin.delete_topic(kept)
    assert said in err
