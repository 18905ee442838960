# SPDX-License-Identifier: Apache-2.0
"""The simulator's disks with the real files on them, voters that move, and the faults that a range of seeds must have had."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from metaquorum.raft.effects import AppendAsFollower, AppendAsLeader, Proposal
from metaquorum.raft.types import LOG_BEGIN, Offset, QuorumEpoch
from metaquorum.testing.coverage import DEMANDED, MIN_JUDGED_SEEDS, Coverage, SeedResult
from metaquorum.testing.disk_mutants import DISK_MUTANTS
from metaquorum.testing.invariants import InvariantViolation
from metaquorum.testing.mutants import Mutant
from metaquorum.testing.options import SimOptions, move_storm, rot_storm, tear_storm
from metaquorum.testing.run import find_mutant, main
from metaquorum.testing.scripted_node import election_state, key
from metaquorum.testing.sim_log import DamagedDiskError, PowerLostError, SimBatch, SimSnapshot
from metaquorum.testing.sim_quorum import SimulatedQuorum
from metaquorum.testing.sim_store import LOG_DIRECTORY, StoredDisk
from metaquorum.testing.sim_trouble import Damage, Trouble
from storage.errors import DataLossError, DiskError
from storage.testing.sim_disk import Crash

pytestmark = pytest.mark.simulation


@pytest.mark.parametrize("mutant", DISK_MUTANTS, ids=lambda mutant: mutant.name)
def test_mutant_of_the_files_is_found(mutant: Mutant) -> None:
    """Each known mistake about files on the disk is found within 150 seeds, most within five."""
    assert find_mutant(mutant, range(150), 4_000) is not None


def run_storm(options: SimOptions, seed: int) -> Counter[str]:
    """Run a seed; return the counts of its events."""
    quorum = SimulatedQuorum(seed, options)
    quorum.run(4_000)
    return quorum.counts


def test_storms_are_clean_and_full_of_what_they_are_for() -> None:
    """Real files tear, refuse and rot, voters move, and no law is broken."""
    torn, rotten, moved = Counter[str](), Counter[str](), Counter[str]()
    for seed in range(4):
        torn.update(run_storm(tear_storm(seed), seed))
        rotten.update(run_storm(rot_storm(seed), seed))
        moved.update(run_storm(move_storm(seed), seed))
    assert torn["torn write"] >= 3
    assert torn["refused write"] >= 5
    assert torn["crash that loses unflushed data"] >= 5
    assert rotten["bit flip"] >= 20
    assert rotten["damage refused at the start"] + rotten["damage found in use"] >= 2
    assert moved["address move"] >= 8


# One disk.


def new_disk(trouble: Trouble | None = None) -> StoredDisk:
    """A disk of node 1, started once."""
    disk = StoredDisk(key(1), random.Random(1), trouble=trouble or Trouble(), clock=lambda: 1_000)
    disk.recover()
    return disk


def append(disk: StoredDisk, count: int, *, epoch: int = 1) -> SimBatch:
    """Append batches of two records; return the last one."""
    for number in range(count):
        base = disk.log_end_offset
        effect = AppendAsLeader(
            base_offset=base,
            next_offset=Offset(base + 2),
            quorum_epoch=QuorumEpoch(epoch),
            content=Proposal(proposal_id=number),
        )
        disk.append_as_leader(effect, f"value-{base}")
    return disk.batches[-1]


def test_lists_and_files_agree_through_appends_flushes_cuts_and_a_start() -> None:
    """The lists equal the contents of the files, byte for byte, before and after."""
    disk = new_disk()
    disk.flushed(append(disk, 120))
    disk.flushed(append(disk, 3, epoch=4))
    fetched = disk.read(LOG_BEGIN, 5)
    assert [span.next_offset for span in fetched.spans] == [2, 4, 6, 8, 10]
    assert disk.truncate_suffix(Offset(244)) == 1
    follower = new_disk()
    follower.append_as_follower(AppendAsFollower(batches=fetched))
    assert follower.batches == disk.batches[:5]
    found = disk.recover_after(Crash.LOSE_ALL)
    assert (found.lost_count, found.cut_bytes) == (0, 0)
    assert found.log.epochs == ((1, 0), (4, 240))
    assert found.log.log_end_offset == 244
    disk.require_all()


def test_unflushed_batches_are_lost_and_a_torn_one_is_cut() -> None:
    """Over many crashes every outcome occurs, and flushed batches always stay."""
    seen = Counter[str]()
    for seed in range(60):
        disk = new_disk()
        disk.flushed(append(disk, 3))
        append(disk, 8)
        disk.crash(random.Random(seed))
        found = disk.recover()
        assert 6 <= disk.log_end_offset <= 22
        seen.update({"lost": found.lost_count > 0, "kept": found.lost_count < 8, "torn": found.cut_bytes > 0})
    assert min(seen["lost"], seen["kept"], seen["torn"]) >= 3


def test_vote_that_was_being_written_is_the_old_or_the_new_one() -> None:
    """Both occur; afterwards the vote stays as the first read found it."""
    old, new = election_state(1, voted=2), election_state(2, voted=3)
    found: set[int] = set()
    for seed in range(40):
        disk = new_disk()
        disk.electing = old
        disk.save_vote()
        disk.electing = new
        disk.crash(random.Random(seed))
        disk.recover()
        found.add(disk.election.quorum_epoch)
        assert disk.recover_after(Crash.LOSE_ALL) is not None
    assert found == {1, 2}


def cut(disk: StoredDisk, kind: int) -> None:
    """Truncate, trim, or begin again at the snapshot."""
    match kind:
        case 0:
            disk.truncate_suffix(Offset(100))
        case 1:
            disk.truncate_prefix(disk.snapshots[0].id)
        case _:
            disk.truncate_fully(disk.snapshots[0])


def test_power_that_goes_in_the_middle_of_an_operation_leaves_a_disk_that_starts() -> None:
    """Every kind of operation is cut short somewhere; the resulting disk keeps the laws of a start."""
    lost = 0
    for seed in range(60):
        disk = new_disk()
        disk.flushed(append(disk, 130))
        disk.trouble = Trouble(power_loss=1.0)
        disk.snapshots.append(SimSnapshot(last=disk.batches[40]))
        try:
            cut(disk, seed % 3)
        except PowerLostError:
            lost += 1
        disk.trouble = Trouble()
        disk.crash(random.Random(seed))
        disk.recover()
        disk.require_all()
    assert lost >= 20


def test_refused_write_is_an_error_and_the_next_start_has_what_was_flushed() -> None:
    """A refused write leaves the disk in an unknown state; the next start reads it."""
    disk = new_disk()
    disk.flushed(append(disk, 2))
    disk.trouble = Trouble(refusal=100.0)
    with pytest.raises(DiskError):
        append(disk, 50)
    disk.trouble = Trouble()
    disk.crash(random.Random(1))
    disk.recover()
    assert disk.log_end_offset >= 4


def start_and_read(disk: StoredDisk) -> None:
    """Start, and read every batch."""
    disk.recover()
    for batch in list(disk.batches):
        disk.read(batch.base_offset, 1)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("kind", [Damage.BATCH, Damage.EPOCH, Damage.VOTES])
def test_damage_never_goes_unseen(kind: Damage, seed: int) -> None:
    """Either the start or the read fails."""
    disk = new_disk()
    disk.flushed(append(disk, 40))
    assert disk.damage(kind, random.Random(seed))
    with pytest.raises((DamagedDiskError, DataLossError)):
        start_and_read(disk)


def test_one_damaged_copy_of_the_vote_file_costs_nothing() -> None:
    """The other one has it."""
    disk = new_disk()
    disk.electing = election_state(5, voted=2)
    disk.save_vote()
    assert disk.damage(Damage.VOTE_COPY, random.Random(3))
    disk.recover()
    assert disk.election == election_state(5, voted=2)


def test_files_that_lost_flushed_batches_are_seen() -> None:
    """The law of a start is able to fail."""
    disk = new_disk()
    disk.flushed(append(disk, 10))
    disk.crash(random.Random(1))
    disk.files.cut(f"{LOG_DIRECTORY}/{'0' * 20}.log", 100)
    disk.files.remove(f"{LOG_DIRECTORY}/recovery-point")
    with pytest.raises(InvariantViolation, match="what was flushed is there after a crash"):
        disk.recover()


# The faults and events of a range of seeds.


def coverage_of(seeds: int, **shares: int) -> Coverage:
    """Return a range in which every demanded event occurs in every seed, except for the given counts."""
    coverage = Coverage()
    for seed in range(seeds):
        names = [name for name in DEMANDED if seed < shares.get(name.replace(" ", "_"), seeds)]
        coverage.add(SeedResult(seed=seed, event_count=20_100, counts=Counter(names)))
    return coverage


def test_a_range_that_lacks_what_is_demanded_fails() -> None:
    """A fault that occurs in less than a fifth of the seeds fails the range; a handful of seeds is not judged."""
    assert coverage_of(MIN_JUDGED_SEEDS).shortfalls(event_count=20_000) == []
    assert coverage_of(100, torn_write=20).shortfalls(event_count=20_000) == []
    [shortfall] = coverage_of(100, torn_write=19).shortfalls(event_count=20_000)
    assert "'torn write' occurred in 19 of 100 seeds" in shortfall
    assert coverage_of(MIN_JUDGED_SEEDS - 1, torn_write=0).shortfalls(event_count=20_000) == []


def test_a_range_of_short_seeds_fails() -> None:
    """Unless they were asked for."""
    coverage = Coverage()
    for seed in range(MIN_JUDGED_SEEDS):
        coverage.add(SeedResult(seed=seed, event_count=19_000, counts=Counter(DEMANDED)))
    assert coverage.shortfalls(event_count=2_000) == []
    [shortfall] = coverage.shortfalls(event_count=20_000)
    assert "median" in shortfall


def test_report_counts_clean_seeds_only_and_shows_what_never_occurred() -> None:
    """A failed seed ended early: its counts would be too low."""
    coverage = coverage_of(2)
    coverage.add(SeedResult(seed=2, failure="a law"))
    report = coverage.report(1.0)
    assert "2 seeds clean, 1 failed" in report
    assert "bit flip" in report
    empty = Coverage()
    empty.add(SeedResult(seed=0, failure="a law"))
    assert empty.report(1.0) == "0 seeds clean, 1 failed\n"


def test_run_fails_for_lack_of_coverage(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Clean seeds without events are no success."""
    from metaquorum.testing import coverage

    monkeypatch.setattr(coverage, "MIN_JUDGED_SEEDS", 2)
    assert main(["--seeds", "2", "--events", "50"]) == 1
    assert "NOT ENOUGH: 'truncation' occurred in 0 of 2 seeds" in capsys.readouterr().out


def test_seeds_of_two_processes_are_printed_in_order(capsys: pytest.CaptureFixture[str]) -> None:
    """The same digests as one process gives, in the same order."""
    arguments = ["--seeds", "3", "--events", "300", "--digest"]
    assert main(arguments) == 0
    alone = [line for line in capsys.readouterr().out.splitlines() if line.startswith("seed ")]
    assert main([*arguments, "--jobs", "2"]) == 0
    together = [line for line in capsys.readouterr().out.splitlines() if line.startswith("seed ")]
    assert len(alone) == 3
    assert together == alone
