# SPDX-License-Identifier: Apache-2.0
"""The quorum simulator: smoke seeds, determinism, mutants, and each invariant against a hand-made violation."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable

import pytest

from metaquorum.raft.effects import Activate, Reply, ReplyWithBatches, ReportViolation, Send, Violation
from metaquorum.raft.messages import FetchResponse, VoteRequest, VoteResponse
from metaquorum.raft.types import ElectionState, NodeId, Offset, QuorumEpoch
from metaquorum.testing.invariants import Checker, InvariantViolation
from metaquorum.testing.mutants import MUTANTS, Mutant
from metaquorum.testing.options import SimOptions, election_storm, membership_storm, snapshot_storm
from metaquorum.testing.run import find_mutant, main, run_seed
from metaquorum.testing.scheduler import Scheduler
from metaquorum.testing.scripted_node import ScriptedNode, election_state, key, snapshot_id
from metaquorum.testing.sim_log import SimDisk
from metaquorum.testing.sim_network import SimNetwork
from metaquorum.testing.sim_quorum import SimulatedQuorum
from metaquorum.testing.sim_snapshots import SimSnapshot

pytestmark = pytest.mark.simulation

SMOKE_SEEDS = range(40)
SMOKE_EVENTS = 3_500


def test_smoke_seeds_are_clean_and_every_fault_occurs() -> None:
    """Every law holds after every event of 40 seeds, and the seeds have the faults that they are meant to have."""
    seen: Counter[str] = Counter()
    for seed in SMOKE_SEEDS:
        seen.update(run_seed(seed, SMOKE_EVENTS).counts.keys())
    for name in (
        "leader deposed or resigned",
        "leader without majority resigned",
        "truncation",
        "crash that loses unflushed data",
        "cut, one way",
        "cut, both ways",
        "message lost",
        "message repeated",
        "orderly shutdown",
        "pause",
        "wipe",
        "connection refused",
        "linearizable read",
        "read refused",
        "leader change",
        "voter added",
        "voter removed",
        "leadership transfer",
        "snapshot made",
        "log trimmed",
        "snapshot installed",
        "power lost in a trim",
        "torn write",
        "bit flip",
        "refused write",
        "address move",
        "absurd epoch forged",
    ):
        assert seen[name] >= 3, f"{name} in {seen[name]} of {len(SMOKE_SEEDS)} seeds"


def test_no_disk_is_lost_that_two_voters_of_a_snapshot_need() -> None:
    """Voters that only a snapshot still names bound the faults as well; otherwise a seed could not converge (one did not)."""
    quorum = run_seed(268, 20_000)
    assert quorum.counts["voter removed"] > 0
    assert quorum.counts["log trimmed"] > 0


def test_same_seed_gives_the_same_trace_under_any_hash_seed() -> None:
    """The trace depends on the order of no set and no hash."""
    outputs: list[str] = []
    for hash_seed in ("0", "1", "12345"):
        arguments = [sys.executable, "-m", "metaquorum.testing.run"]
        arguments += ["--first-seed", "7", "--seeds", "2", "--events", "2000", "--digest"]
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        done = subprocess.run(arguments, env=environment, capture_output=True, text=True, check=True, timeout=60)
        outputs.append("\n".join(line for line in done.stdout.splitlines() if line.startswith("seed ")))
    assert outputs[0].count("\n") == 1
    assert outputs[0] == outputs[1] == outputs[2]


def test_different_seeds_give_different_traces() -> None:
    """The digest depends on the events."""
    assert run_seed(1, 500).scheduler.digest() != run_seed(2, 500).scheduler.digest()


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_mutant_is_found(mutant: Mutant) -> None:
    """Each known mistake is found within 300 seeds, most within five."""
    assert find_mutant(mutant, range(300), 4_000) is not None


def test_storm_is_clean_without_a_mutant() -> None:
    """The options of the hunts find nothing in the unchanged core, and the snapshot storm loses power during trims and installs."""
    seen: Counter[str] = Counter()
    for seed in range(10):
        if seed < 4:
            SimulatedQuorum(seed, election_storm(seed)).run(4_000)
            SimulatedQuorum(seed, membership_storm(seed)).run(4_000)
        quorum = SimulatedQuorum(seed, snapshot_storm(seed))
        quorum.run(4_000)
        seen.update(quorum.counts)
    assert seen["interrupted install healed"] >= 3
    assert seen["power lost in a trim"] >= 3


def test_mutants_leave_no_trace() -> None:
    """The core is itself again after a hunt."""
    before = run_seed(3, 800).scheduler.digest()
    find_mutant(MUTANTS[0], range(1), 200)
    assert run_seed(3, 800).scheduler.digest() == before


def test_command_line_reports_and_fails(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A clean run prints occurrences and exits 0; a broken law prints how to repeat it and exits 1."""
    assert main(["--seeds", "1", "--events", "300"]) == 0
    assert "1 seeds clean" in capsys.readouterr().out

    def broken(*_: object) -> None:
        raise InvariantViolation("made up")

    monkeypatch.setattr(Checker, "on_append", broken)
    assert main(["--seeds", "1", "--events", "300"]) == 1
    output = capsys.readouterr().out
    assert "seed 0 FAILED: made up" in output
    assert "repeat: python -m metaquorum.testing.run --first-seed 0 --seeds 1 --events 300" in output


def test_command_line_hunts_mutants(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A mutant that is not found fails the run."""
    from metaquorum.testing import run

    monkeypatch.setattr(run, "ALL_MUTANTS", MUTANTS[:1])
    assert main(["--mutants", "--seeds", "2", "--events", "500"]) == 0
    assert main(["--mutants", "--seeds", "0"]) == 1
    assert "NOT FOUND" in capsys.readouterr().out


# Invariants against hand-made violations.


def leading() -> tuple[ScriptedNode, SimDisk, dict[object, SimDisk]]:
    """A leader of epoch 1 with two records, and its matching disk."""
    node = ScriptedNode().start().elect()
    disk = SimDisk()
    for end in (1, 2):
        disk.append(next_offset=Offset(end), epoch=QuorumEpoch(1), payload=f"r{end}", voters=None)
    disk.durable_count = 2
    disk.election = node.disk
    return node, disk, {key(1): disk, key(2): SimDisk(), key(3): SimDisk()}


def check(change: Callable[[ScriptedNode, SimDisk, dict[object, SimDisk]], None]) -> None:
    """Check a state after a change for the worse."""
    node, disk, disks = leading()
    checker = Checker()
    checker.on_state(node.state, disk, disks)  # pyright: ignore
    change(node, disk, disks)
    checker.on_state(node.state, disk, disks)  # pyright: ignore


def other_leader(node: ScriptedNode, disk: SimDisk, disks: object) -> None:
    """The disk has another leader for the epoch."""
    disk.election = election_state(1, leader=2, voted=1)


def older_epoch(node: ScriptedNode, disk: SimDisk, disks: object) -> None:
    """The disk returns to an older epoch."""
    disk.election = election_state(0)


def shadow_out_of_step(node: ScriptedNode, disk: SimDisk, disks: object) -> None:
    """The core believes in records that the disk does not have."""
    disk.batches.pop()


def log_start_out_of_step(node: ScriptedNode, disk: SimDisk, disks: object) -> None:
    """The disk was trimmed without the core's knowledge."""
    disk.snapshots.append(SimSnapshot(last=disk.batches[0]))
    disk.truncate_prefix(snapshot_id(1, 1))


def trimmed_without_a_snapshot(node: ScriptedNode, disk: SimDisk, disks: object) -> None:
    """The log begins above 0 without a snapshot for the records below."""
    disk.truncate_prefix(snapshot_id(1, 1))
    node.state.log.truncate_prefix(snapshot_id(1, 1))


def snapshot_not_on_disk(node: ScriptedNode, disk: SimDisk, disks: object) -> None:
    """The core would offer a snapshot that is not on the disk."""
    node.state.snapshots.replace([snapshot_id(1, 1)])


def flushed_ahead(node: ScriptedNode, disk: SimDisk, disks: object) -> None:
    """The core believes in a flush that did not happen."""
    disk.durable_count = 1


def high_watermark_alone(node: ScriptedNode, disk: SimDisk, disks: object) -> None:
    """A leader commits records that no other voter has."""
    node.state.high_watermark = Offset(2)


def log_of_the_future(node: ScriptedNode, disk: SimDisk, disks: object) -> None:
    """The log ends in an epoch that the node does not know."""
    node.state.election = election_state(0)


@pytest.mark.parametrize(
    ("change", "law"),
    [
        (other_leader, "one leader per epoch"),
        (older_epoch, "persisted epoch never falls"),
        (shadow_out_of_step, "shadow of the log"),
        (log_start_out_of_step, "shadow of the log start"),
        (trimmed_without_a_snapshot, "SnapshotAtLogStart"),
        (snapshot_not_on_disk, "kept snapshots are on the disk"),
        (flushed_ahead, "flushed means durable"),
        (high_watermark_alone, "a majority has what is committed"),
        (log_of_the_future, "log is of epochs seen"),
    ],
)
def test_broken_state_is_found(
    change: Callable[[ScriptedNode, SimDisk, dict[object, SimDisk]], None], law: str
) -> None:
    """Each law of a state is able to fail."""
    with pytest.raises(InvariantViolation, match=law):
        check(change)


def test_falling_high_watermark_is_found() -> None:
    """A high watermark never falls during a run of a node; after a restart the node may know a lower one."""
    node, disk, disks = leading()
    disks[key(2)] = disk
    checker = Checker()
    node.state.high_watermark = Offset(2)
    checker.on_state(node.state, disk, disks)  # pyright: ignore
    assert checker.committed_end_offset == 2
    node.state.high_watermark = Offset(1)
    with pytest.raises(InvariantViolation, match="never falls"):
        checker.on_state(node.state, disk, disks)  # pyright: ignore
    checker.on_restart(key(1))
    checker.on_state(node.state, disk, disks)  # pyright: ignore


def test_changed_commit_and_incomplete_leader_are_found() -> None:
    """A committed record that differs somewhere, or that a leader lacks, breaks Raft's safety."""
    node, disk, disks = leading()
    disks[key(2)] = disk
    checker = Checker()
    node.state.high_watermark = Offset(2)
    checker.on_state(node.state, disk, disks)  # pyright: ignore
    other = SimDisk()
    other.election = disk.election
    for end in (1, 2):
        other.append(next_offset=Offset(end), epoch=QuorumEpoch(1), payload=f"other-{end}", voters=None)
    other.durable_count = 2
    checker.on_restart(key(1))
    with pytest.raises(InvariantViolation, match="never change"):
        checker.on_state(node.state, other, disks)  # pyright: ignore
    node.state.high_watermark = None
    with pytest.raises(InvariantViolation, match="leader has all"):
        checker.on_state(node.state, other, disks)  # pyright: ignore


def test_two_records_under_one_name_are_found() -> None:
    """Log matching across all logs and all times."""
    checker = Checker()
    for payload in ("a", "a"):
        checker.on_append(SimDisk().append(next_offset=Offset(1), epoch=QuorumEpoch(1), payload=payload, voters=None))
    with pytest.raises(InvariantViolation, match="log matching"):
        checker.on_append(SimDisk().append(next_offset=Offset(1), epoch=QuorumEpoch(1), payload="b", voters=None))


def vote(granted: bool, epoch: int = 1) -> VoteResponse:
    """An answer to a vote request."""
    return VoteResponse(quorum_epoch=QuorumEpoch(epoch), leader_id=None, granted=granted)


def test_words_that_the_disk_does_not_back_are_found() -> None:
    """The checker compares messages, votes, fetches and activations with the sender's disk."""
    node, disk, _ = leading()
    checker = Checker()

    def broken(law: str, effect: object, election: ElectionState | None = None) -> None:
        disk.election = election or node.disk
        with pytest.raises(InvariantViolation, match=law):
            checker.on_effect(node.state, disk, effect)  # pyright: ignore

    broken("nothing is said before", Reply(token=1, response=vote(False, epoch=2)))
    fetch = node.fetch_request(1, offset=9, last_epoch=1)
    broken("fetches from what it has flushed", Send(request_id=1, address="n2", request=fetch, timeout_ms=1))
    stand: VoteRequest = node.vote_request(2, 1)
    broken("on disk before it is given", Send(request_id=1, address="n2", request=stand, timeout_ms=1))
    checker.on_effect(node.state, disk, Reply(token=1, response=vote(True)))
    broken("one vote per epoch", Reply(token=1, response=vote(True)), election_state(1, voted=3))
    served = FetchResponse(quorum_epoch=QuorumEpoch(1), leader_id=NodeId(1), leader_address=None)
    serve = ReplyWithBatches(token=1, response=served, fetch_offset=Offset(0), max_bytes=1)
    broken("only a leader serves", serve, election_state(1, leader=2))
    broken("activation follows a commit", Activate(quorum_epoch=QuorumEpoch(1), start_offset=Offset(1)))
    broken("no node breaks the protocol", ReportViolation(kind=Violation.TWO_LEADERS, text="x"))


# The simulator's own parts.


def test_scheduler_runs_by_time_and_then_in_order() -> None:
    """Two actions at the same millisecond run in the order in which they were scheduled."""
    scheduler = Scheduler(1)
    ran: list[str] = []
    for delay_ms, name in ((5, "c"), (1, "a"), (5, "d"), (2, "b")):
        scheduler.after(delay_ms, lambda name=name: ran.append(name))
    while scheduler.run_next():
        pass
    assert ran == ["a", "b", "c", "d"]
    assert scheduler.now_ms == 5
    with pytest.raises(AssertionError, match="past"):
        scheduler.after(-1, lambda: None)


def quiet(**changes: object) -> SimOptions:
    """Options without faults, apart from the changes."""
    fields: dict[str, object] = {
        "voter_count": 1,
        "observer_count": 0,
        "delay_ms_max": 1,
        "loss": 0.0,
        "duplication": 0.0,
        "flush_ms_max": 1,
        "crash_every_ms": None,
        "shutdown_every_ms": None,
        "cut_every_ms": None,
        "pause_every_ms": None,
        "wipe": False,
        "clock_drift": 0.0,
        "proposal_every_ms": 10,
        "down_ms_max": 10,
        "change_every_ms": None,
        "transfer_every_ms": None,
    }
    return SimOptions(**{**fields, **changes})  # pyright: ignore


def test_network_loses_repeats_cuts_and_heals() -> None:
    """Each fault of the network has its effect."""

    def arrivals(options: SimOptions, *, cut: bool = False, heal: bool = False) -> int:
        scheduler, arrived = Scheduler(1), [0]
        network = SimNetwork(scheduler, options, Counter())
        if cut:
            network.cut([("a", "b")], 10)
        if heal:
            network.heal()

        def deliver() -> None:
            arrived[0] += 1

        network.send("a", "b", deliver)
        network.send("b", "a", deliver)
        while scheduler.run_next():
            pass
        network.send("a", "b", deliver)
        while scheduler.run_next():
            pass
        return arrived[0]

    assert arrivals(quiet()) == 3
    assert arrivals(quiet(loss=1.0)) == 0
    assert arrivals(quiet(loss=1.0), heal=True) == 3
    assert arrivals(quiet(duplication=1.0)) == 6
    assert arrivals(quiet(), cut=True) == 2


def test_crash_keeps_what_was_durable() -> None:
    """The fault budget: flushed batches are never lost, and a prefix of the rest survives."""
    rng = Scheduler(1).rng("crash")
    for _ in range(20):
        disk = SimDisk()
        for end in range(1, 6):
            disk.append(next_offset=Offset(end), epoch=QuorumEpoch(1), payload=str(end), voters=None)
        disk.durable_count = 2
        disk.electing = election_state(3)
        disk.crash(rng)
        assert [batch.payload for batch in disk.batches] == [str(end) for end in range(1, len(disk.batches) + 1)]
        assert disk.log_end_offset == disk.durable_end_offset >= 2
        assert disk.election in (election_state(0), election_state(3))


def test_whatever_the_shell_lets_through_is_a_failure_of_its_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The simulation runs real code of the log: its error does not end the run of the other seeds."""

    def fail(_quorum: SimulatedQuorum, _event_count: int) -> None:
        raise OSError("no such luck")

    monkeypatch.setattr(SimulatedQuorum, "run", fail)
    with pytest.raises(InvariantViolation, match="OSError: no such luck") as failure:
        run_seed(5, 100)
    assert any("--first-seed 5 --seeds 1" in note for note in failure.value.__notes__)
