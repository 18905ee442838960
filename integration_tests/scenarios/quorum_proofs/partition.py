# SPDX-License-Identifier: Apache-2.0
"""Proof: a minority of the voters is isolated under load, in both directions or one, and no data is affected.

Servers run in their own network namespaces (`namespaces`). The clients reach all of them at all times. A cut separates a minority from
the other voters and from the broker, while reads and writes go straight to the minority. The minority must acknowledge nothing and
answer no read. The majority continues. After the healing the minority catches up and the epoch does not rise again. A cut of followers
does not raise it at all (pre-vote). At the end all images are equal and nothing acknowledged is lost.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from integration_tests.harness.cluster import Cluster, names_of, voter_name
from integration_tests.harness.faults.namespaces import Namespaces, is_inside, run_inside, unshare_command
from integration_tests.harness.outcome import Outcome, median_and_max, read_outcome
from integration_tests.scenarios.quorum_proofs.direct import Voter
from integration_tests.scenarios.quorum_proofs.probes import Probes, adopt, send, take
from integration_tests.scenarios.quorum_proofs.scene import Scene, scene_under_load

RATE_PER_S = 100
HOLD_S = 6.0
"""Seconds of a cut: several fetch timeouts and elections."""
AFTER_S = 3.0
"""Seconds after the healing in which no call may be disturbed: several elections."""
PROBES = 4
PROBE_TIMEOUT_S = 1.0
DISTURBED_CUTS_MAX = 20
OUTCOME_FILE = "outcome.json"


class Lost(Enum):
    """What a cut loses, from the view of the minority."""

    BOTH = "both ways"
    SENT = "what it sends"
    RECEIVED = "what it should receive"


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Which voters are isolated: the leader or not, how many followers, and in which direction."""

    has_leader: bool
    follower_count: int
    lost: Lost

    def __str__(self) -> str:
        leader = ["leader"] if self.has_leader else []
        followers = [f"{self.follower_count} follower{'s' * (self.follower_count > 1)}"] if self.follower_count else []
        return f"{' and '.join(leader + followers)}, {self.lost.value}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """One cut and its healing. `changes` are changes of leader and epoch that nothing asked for."""

    unavailable_s: float
    after_s: float
    catch_up_s: float
    is_disturbed: bool
    problems: list[str]
    changes: list[str]


def cases(voters: int) -> list[Case]:
    """Return the minorities of a quorum: the leader alone, a follower alone, and the largest ones with and without the leader."""
    found = [Case(has_leader=True, follower_count=0, lost=lost) for lost in Lost]
    found += [Case(has_leader=False, follower_count=1, lost=lost) for lost in Lost]
    largest = (voters - 1) // 2
    if largest > 1:
        found.append(Case(has_leader=True, follower_count=largest - 1, lost=Lost.BOTH))
        found.append(Case(has_leader=False, follower_count=largest, lost=Lost.BOTH))
    return found


def hold(
    scene: Scene, probes: Probes, minority: Sequence[Voter], registers: Sequence[str], *, above_epoch: int
) -> None:
    """Ask the minority for as long as the cut lasts. Once the majority has a leader, it changes the registers."""
    readers, writers = registers[:PROBES], list(registers[PROBES:])
    until_s = time.monotonic() + HOLD_S
    has_changed = False
    while time.monotonic() < until_s or not has_changed:
        # The first time, the minority may still believe that it leads.
        for voter in minority:
            take(probes, send(probes, voter, readers, writers, timeout_s=PROBE_TIMEOUT_S))
        quorum = scene.quorum()
        if not has_changed and quorum is not None and quorum.quorum_epoch > above_epoch:
            probes.write_by_leader(scene, readers)
            has_changed = True
        writers = [topic for topic in writers if not probes.ledger.registers[topic].is_retired]
        if has_changed:
            writers += probes.create(scene, PROBES - len(writers))


def judge_minority(probes: Probes, before: tuple[int, int]) -> list[str]:
    """Return the answers of the minority since `before` (reads, writes) that it should not have given."""
    reads, writes = served(probes)
    found = [f"the minority answered {reads - before[0]} reads"] if reads > before[0] else []
    return found + ([f"the minority acknowledged {writes - before[1]} writes"] if writes > before[1] else [])


def served(probes: Probes) -> tuple[int, int]:
    """Return how many reads were answered and how many writes acknowledged so far."""
    return probes.reads["answered"], probes.writes["acknowledged"]


def run_case(scene: Scene, network: Namespaces, probes: Probes, case: Case) -> Cut:
    """Cut, hold, heal, and judge."""
    scene.wait_caught_up()
    leader_id, epoch = scene.leader()
    followers = [voter_id for voter_id in scene.cluster.voters if voter_id != leader_id]
    minority_ids = [leader_id] * case.has_leader + followers[: case.follower_count]
    minority = [voter_name(voter_id) for voter_id in minority_ids]
    others = [process.name for process in scene.cluster.voters.values() if process.name not in minority]
    others += [process.name for process in scene.cluster.brokers.values()]
    registers = probes.create(scene, 2 * PROBES)
    voters = [Voter(scene.cluster.admin_addresses[voter_id]) for voter_id in minority_ids]
    try:
        for voter in voters:
            voter.connect()
        before = served(probes)
        cut_s = time.monotonic()
        try:
            if case.lost is not Lost.RECEIVED:
                network.cut(minority, others)
            if case.lost is not Lost.SENT:
                network.cut(others, minority)
            before = served(probes)
            hold(scene, probes, voters, registers, above_epoch=epoch if case.has_leader else epoch - 1)
            problems = judge_minority(probes, before)
            settled = scene.leader()
        finally:
            network.heal()
    finally:
        for voter in voters:
            voter.close()
    healed_s = time.monotonic()
    scene.wait_caught_up(*minority_ids)
    caught_up_s = time.monotonic()
    scene.wait_acknowledged(caught_up_s + AFTER_S)
    ended_s = time.monotonic()
    changes: list[str] = []
    if not case.has_leader and settled != (leader_id, epoch):
        changes.append(f"a cut of followers changed leader and epoch from {leader_id, epoch} to {settled}")
    if case.has_leader and settled[0] in minority_ids:
        problems.append(f"voter {settled[0]} leads epoch {settled[1]} though it is cut off")
    after = scene.leader()
    if after != settled:
        changes.append(f"the healing changed leader and epoch from {settled} to {after}")
    return Cut(
        unavailable_s=scene.load.longest_gap_s(cut_s, healed_s),
        after_s=scene.load.longest_gap_s(healed_s, ended_s),
        catch_up_s=caught_up_s - healed_s,
        is_disturbed=scene.load.stood_still(cut_s, ended_s),
        problems=[f"{case}: {problem}" for problem in problems],
        changes=[f"{case}: {change}" for change in changes],
    )


def prove_inside(directory: Path, *, voters: int, rounds: int, rate_per_s: int = RATE_PER_S) -> Outcome:
    """Run every case `rounds` times and judge. Only inside namespaces."""
    outcome = Outcome(proof="partition", figures={"voters": voters, "rounds": rounds, "asked_per_s": rate_per_s})
    network = Namespaces(names_of(voter_count=voters, broker_count=1))
    probes = Probes()
    done: list[Cut] = []
    disturbed = 0
    cluster = Cluster(directory, voter_count=voters, broker_count=1, place=network)
    with scene_under_load(cluster, rate_per_s=rate_per_s) as scene:
        for case in cases(voters) * rounds:
            while True:
                cut = run_case(scene, network, probes, case)
                print(
                    f"  {case}: unavailable for {cut.unavailable_s * 1e3:5.0f} ms, after the healing for "
                    f"{cut.after_s * 1e3:5.0f} ms, caught up after {cut.catch_up_s * 1e3:5.0f} ms"
                    f"{', DISTURBED' if cut.is_disturbed else ''}",
                    flush=True,
                )
                outcome.problems += cut.problems
                if not cut.is_disturbed or disturbed == DISTURBED_CUTS_MAX:
                    break
                disturbed += 1
            done.append(cut)
            outcome.problems += cut.changes
        adopt(scene, probes)
        scene.finish(outcome)
    outcome.figures |= median_and_max("unavailable", [each.unavailable_s for each in done])
    outcome.figures |= median_and_max("unavailable_after_healing", [each.after_s for each in done])
    outcome.figures |= median_and_max("catch_up", [each.catch_up_s for each in done])
    outcome.figures |= {"cuts": len(done), "disturbed_cuts": disturbed}
    outcome.figures |= {"minority_reads": dict(probes.reads), "minority_writes": dict(probes.writes)}
    return outcome


def prove(directory: Path, *, voters: int, rounds: int) -> Outcome:
    """Run the proof in its own process inside namespaces. NOT RUN if they are not permitted."""
    command = unshare_command()
    if isinstance(command, str):
        return Outcome(proof="partition", figures={"voters": voters, "rounds": rounds}, not_run=command)
    arguments = ["--directory", str(directory), "--voters", str(voters), "--rounds", str(rounds)]
    status = run_inside(command, "integration_tests.scenarios.quorum_proofs.partition", *arguments)
    if status != 0:
        raise RuntimeError(f"the process inside of namespaces ended with {status}")
    return read_outcome(directory / OUTCOME_FILE)


def main() -> None:
    """Run inside namespaces and write the outcome to a file."""
    parser = argparse.ArgumentParser(description="the part of the proof that runs inside of namespaces")
    parser.add_argument("--directory", type=Path, required=True)
    parser.add_argument("--voters", type=int, required=True)
    parser.add_argument("--rounds", type=int, required=True)
    arguments = parser.parse_args()
    assert is_inside(), "run integration_tests.scenarios.quorum_proofs.run: it makes the namespaces"
    outcome = prove_inside(arguments.directory, voters=arguments.voters, rounds=arguments.rounds)
    outcome.write(arguments.directory / OUTCOME_FILE)


if __name__ == "__main__":
    main()
