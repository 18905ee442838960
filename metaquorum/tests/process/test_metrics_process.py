# SPDX-License-Identifier: Apache-2.0
"""Metrics of real server processes, scraped while their leader is killed."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from metaquorum.replica.first_start import InitialVoter, format_with_voters
from metaquorum.testing.ports import free_ports
from metaquorum.tests.metrics_scrape import role_of, scrape
from metaquorum.tests.quorum_cluster import HOST

ROOT = Path(__file__).parents[3]
WAIT_S = 60.0
STOP_S = 15.0
PREFIX = "lograft_quorum_"


@contextmanager
def voter(directory: Path, node_id: int, arguments: list[str]) -> Iterator[subprocess.Popen[str]]:
    """Run `metaquorum` for the time of a block."""
    command = [sys.executable, "-m", "metaquorum", "run", "--data-dir", str(directory / str(node_id))]
    process = subprocess.Popen(
        [*command, "--node-id", str(node_id), "--cluster-id", "c", *arguments],
        cwd=ROOT,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait(STOP_S)


def scraped(places: Mapping[int, str]) -> dict[int, Mapping[str, float]]:
    """Scrape every node that answers and has started."""
    found: dict[int, Mapping[str, float]] = {}
    for node_id, place in places.items():
        try:
            metrics = scrape(place)
        except OSError:
            continue
        if f"{PREFIX}epoch" in metrics:
            found[node_id] = metrics
    return found


def settled(places: Mapping[int, str], *, above_epoch: float) -> tuple[int, dict[int, Mapping[str, float]]]:
    """Scrape until all of them hold what one leader of a higher epoch has committed; the leader and the last scrape.

    The nodes are scraped one after the other: a follower's answer can be from before the record that its leader, asked a
    moment later, shows as committed.
    """
    deadline = time.monotonic() + WAIT_S
    while True:
        found = scraped(places)
        leaders = [node_id for node_id, metrics in found.items() if role_of(metrics) == "leader"]
        epochs = {metrics[f"{PREFIX}epoch"] for metrics in found.values()}
        named = {metrics[f"{PREFIX}leader_id"] for metrics in found.values()}
        if len(found) == len(places) and len(leaders) == 1 and named == set(leaders) and min(epochs) > above_epoch:
            (leader,) = leaders
            committed = found[leader].get(f"{PREFIX}high_watermark_offset")
            shortest = min(metrics[f"{PREFIX}log_end_offset"] for metrics in found.values())
            if committed == found[leader][f"{PREFIX}log_end_offset"] == shortest:
                return leader, found
        assert time.monotonic() < deadline, f"no common leader after {WAIT_S} s: {found}"


@pytest.mark.process
def test_metrics_of_processes_follow_an_election(tmp_path: Path) -> None:
    """The leader of three voters is killed; the metrics of the other two show the election and the new leader."""
    quorum_ports, metrics_ports = free_ports(3), free_ports(3)
    quorum = {node_id: f"{HOST}:{port}" for node_id, port in enumerate(quorum_ports, start=1)}
    places = {node_id: f"{HOST}:{port}" for node_id, port in enumerate(metrics_ports, start=1)}
    initial = [
        InitialVoter(node_id=node_id, address=address, directory_id=node_id.to_bytes(16, "big"))
        for node_id, address in quorum.items()
    ]
    voters = ",".join(f"{node_id}@{address}" for node_id, address in quorum.items())
    with ExitStack() as stack:
        processes: dict[int, subprocess.Popen[str]] = {}
        for node_id in quorum:
            format_with_voters(tmp_path / str(node_id), node_id=node_id, cluster_id="c", voters=initial)
            arguments = ["--listen", quorum[node_id], "--voters", voters, "--metrics-listen", places[node_id]]
            processes[node_id] = stack.enter_context(voter(tmp_path, node_id, arguments))
        first, before = settled(places, above_epoch=0)
        processes[first].kill()
        processes[first].wait(STOP_S)
        left = {node_id: place for node_id, place in places.items() if node_id != first}
        second, after = settled(left, above_epoch=before[first][f"{PREFIX}epoch"])
    assert second != first
    for node_id, metrics in after.items():
        elections = metrics[f"{PREFIX}elections_total"] - before[node_id][f"{PREFIX}elections_total"]
        assert elections >= 1
        assert metrics[f"{PREFIX}election_latency_seconds_count"] == metrics[f"{PREFIX}elections_total"]
        assert metrics[f"{PREFIX}election_latency_max_seconds"] > 0
        assert metrics[f"{PREFIX}appended_records_total"] > before[node_id][f"{PREFIX}appended_records_total"]
        assert metrics[f"{PREFIX}voters"] == 3
    leading = after[second]
    assert leading[f"{PREFIX}voted_id"] == second
    assert leading[f"{PREFIX}log_end_epoch"] == leading[f"{PREFIX}epoch"]
    assert leading[f"{PREFIX}high_watermark_offset"] > before[first][f"{PREFIX}high_watermark_offset"]
    assert leading[f"{PREFIX}commit_latency_seconds_count"] >= 1
    assert 0 < leading[f"{PREFIX}commit_latency_avg_seconds"] <= leading[f"{PREFIX}commit_latency_max_seconds"]


@pytest.mark.process
def test_metrics_on_a_reachable_address_are_refused(tmp_path: Path) -> None:
    """One clear line, and status 1."""
    identity = ["--data-dir", str(tmp_path), "--node-id", "1", "--cluster-id", "c"]
    done = subprocess.run(
        [sys.executable, "-m", "metaquorum", "run", *identity, "--metrics-listen", "0.0.0.0:9642"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=WAIT_S,
    )
    assert done.returncode == 1
    assert "error: --metrics-listen 0.0.0.0:9642 can be reached by other machines" in done.stderr
