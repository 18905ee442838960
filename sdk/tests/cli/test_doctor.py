# SPDX-License-Identifier: Apache-2.0
"""`lograft doctor` with real connections: what it says of a good cluster, and of an address that leads elsewhere."""

from __future__ import annotations

import json
from typing import Any

import pytest
from lograft.cli import doctor as doctor_module
from lograft.cli import main
from lograft.cli.doctor import _probe  # pyright: ignore[reportPrivateUsage]
from lograft.types import BrokerDescription
from tests.client.processes import unused_address


def run(bootstrap: str, capfd: pytest.CaptureFixture[str], *arguments: str) -> tuple[object, str]:
    with pytest.raises(SystemExit) as end:
        main(["doctor", "-b", bootstrap, *arguments])
    return end.value.code, capfd.readouterr().out


def test_a_good_cluster_has_one_line_for_each_subject(bootstrap: str, capfd: pytest.CaptureFixture[str]) -> None:
    """Six subjects, all good."""
    code, out = run(bootstrap, capfd)
    subjects = [line.split()[:2] for line in out.splitlines()[:6]]
    names = ("addresses", "clocks", "versions", "quorum", "partitions", "disks")
    assert (code, subjects) == (0, [[name, "ok"] for name in names])
    assert "1 of 1 broker reached" in out
    assert "free in each" in out
    code, out = run(bootstrap, capfd, "--partitions")
    assert (code, [line.split()[0] for line in out.splitlines()]) == (0, ["partitions", "nothing"])


def test_an_address_that_nobody_reaches_is_named(
    bootstrap: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker advertises an address that leads nowhere from here: the exit status is 1, also with --json."""
    host, _, port = unused_address().rpartition(":")

    def elsewhere(broker: BrokerDescription, cluster_id: str | None) -> Any:
        moved = BrokerDescription(
            broker_id=broker.broker_id, host=host, port=int(port), rack=broker.rack, fenced=broker.fenced
        )
        return _probe(moved, cluster_id)

    monkeypatch.setattr(doctor_module, "_probe", elsewhere)
    code, out = run(bootstrap, capfd)
    assert code == 1
    assert f"broker 1 cannot be reached at {host}:{port}" in out
    assert "addresses   wrong" in out
    code, out = run(bootstrap, capfd, "--json")
    (finding,) = json.loads(out)
    assert (code, finding["check"], finding["is_note"]) == (1, "addresses", False)
