# SPDX-License-Identifier: Apache-2.0
"""The rounds of a group proof: what happens to members and to the coordinator. docs/testing.md has them as a table.

Each round begins and ends with a stable group of the same size. A nemesis knows nothing of the judgement.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from lograft import Admin
from lograft.errors import LograftError

from integration_tests.harness.cluster import Cluster
from integration_tests.harness.metadata import are_in_sync, partitions_of, unfenced_brokers
from integration_tests.harness.wait import wait_for
from integration_tests.scenarios.group_proofs.crew import CHECK_INTERVAL_S, Crew, Member, rest
from integration_tests.scenarios.group_proofs.journal import Journal, Kind
from integration_tests.scenarios.group_proofs.member import TOPIC

GROUPS_TOPIC = "__groups"
SHORT_STALL_SHARE = 0.25
"""Share of the session for which a member is stopped without a consequence."""
HEAL_TIMEOUT_S = 240.0


@dataclass(slots=True, kw_only=True)
class Stage:
    """What a round works on. It lets the group alone for `calm_s` seconds between two steps."""

    cluster: Cluster
    crew: Crew
    journal: Journal
    admin: Admin
    rng: random.Random
    session_ms: int
    calm_s: float


def join(stage: Stage) -> str:
    """A new member joins, and another one leaves."""
    crew = stage.crew
    leaver = crew.pick(stage.rng)
    new = crew.start()
    crew.wait_stable("after a join")
    rest(stage.calm_s)
    crew.leave(leaver)
    crew.wait_stable("after a leave")
    return f"{new.name} joined, {leaver.name} left"


def leave(stage: Stage) -> str:
    """A member leaves, and a new one joins."""
    crew = stage.crew
    leaver = crew.pick(stage.rng)
    crew.leave(leaver)
    crew.wait_stable("after a leave")
    return f"{leaver.name} left, {_replace(stage).name} joined"


def crash(stage: Stage) -> str:
    """A member is killed, and a new one joins when the others have its partitions."""
    crew = stage.crew
    victim = crew.pick(stage.rng)
    crew.kill(victim)
    crew.wait_stable("after a crash")
    return f"{victim.name} was killed, {_replace(stage).name} joined"


def stall_short(stage: Stage) -> str:
    """A member is stopped for less than its session: nothing happens to anybody."""
    crew = stage.crew
    victim = crew.pick(stage.rng)
    stage.journal.write(Kind.STEADY_BEGINS, allowed=[], text="a short stall")
    crew.stop(victim)
    rest(stage.session_ms * SHORT_STALL_SHARE / 1e3)
    crew.go_on(victim)
    crew.wait_stable("after a short stall")
    rest(stage.calm_s)
    stage.journal.write(Kind.STEADY_ENDS)
    return f"{victim.name} was stopped for a while"


def stall_long(stage: Stage) -> str:
    """A member is stopped for longer than its session, and comes back."""
    crew = stage.crew
    victim = crew.pick(stage.rng)
    crew.stop(victim)
    crew.wait_members(len(crew.members) - 1, "without a stopped member")
    rest(stage.calm_s)
    crew.go_on(victim)
    crew.wait_stable("with the member that was stopped")
    return f"{victim.name} was stopped beyond its session"


def busy(stage: Stage) -> str:
    """The application of a member is busy for longer than its processing limit, and comes back."""
    crew = stage.crew
    victim = crew.pick(stage.rng)
    crew.keep_busy(victim)
    crew.wait_members(len(crew.members) - 1, "without a busy member")
    crew.wait_stable("with the member that was busy")
    return f"{victim.name} was busy beyond its limit"


def restart_static(stage: Stage) -> str:
    """A static member is restarted: its next process takes its partitions over, and nobody else notices."""
    crew = stage.crew
    old = crew.pick(stage.rng, is_static=True)
    # Its successor is numbered next.
    stage.journal.write(Kind.STEADY_BEGINS, allowed=[old.name, crew.next_name], text="the restart of a static member")
    crew.leave(old)
    new = crew.start(old.instance_id)
    crew.wait_stable("after the restart of a static member")
    rest(stage.calm_s)
    stage.journal.write(Kind.STEADY_ENDS)
    return f"{new.name} took over from {old.name}"


def kill_coordinator(stage: Stage) -> str:
    """The broker that coordinates the group is killed while a member joins."""
    crew, journal = stage.crew, stage.journal
    broker_id = crew.coordinator_id()
    leaver = crew.pick(stage.rng)
    journal.write(Kind.BROKER_HURT, target=broker_id)
    new = crew.start()
    _wait_for_line(new)
    stage.cluster.brokers[broker_id].kill()
    crew.hurt_brokers.add(broker_id)
    crew.wait_stable("after the kill of the coordinator")
    rest(stage.calm_s)
    stage.cluster.brokers[broker_id].start()
    wait_whole(stage)
    crew.hurt_brokers.discard(broker_id)
    elect_preferred(stage)
    crew.wait_stable("with all brokers")
    rest(stage.calm_s)
    journal.write(Kind.BROKER_WELL)
    crew.leave(leaver)
    crew.wait_stable("after a leave")
    return f"broker {broker_id} was killed while {new.name} joined, {leaver.name} left"


def _replace(stage: Stage) -> Member:
    rest(stage.calm_s)
    new = stage.crew.start()
    stage.crew.wait_stable("after a join")
    return new


def _wait_for_line(member: Member) -> None:
    """Wait until a new process is about to join, so that the fault meets its join."""
    path = member.process.log_path.with_suffix(".jsonl")
    wait_for(lambda: path.exists() and path.stat().st_size > 0, timeout_s=HEAL_TIMEOUT_S, what=f"{member.name} to join")


def wait_whole(stage: Stage) -> None:
    """Wait until all brokers are unfenced and all replicas are in sync."""
    admin, count = stage.admin, len(stage.cluster.brokers)

    def is_whole() -> bool:
        found = [partitions_of(admin, topic) for topic in (TOPIC, GROUPS_TOPIC)]
        return len(unfenced_brokers(admin)) == count and all(each is not None and are_in_sync(each) for each in found)

    wait_for(is_whole, timeout_s=HEAL_TIMEOUT_S, what="all replicas in sync", interval_s=CHECK_INTERVAL_S)


def elect_preferred(stage: Stage) -> None:
    """Let preferred replicas lead again, now and not at some later time: coordinators move, which is no fault."""

    def are_elected() -> bool:
        try:
            stage.admin.elect_leaders([TOPIC, GROUPS_TOPIC])
        except LograftError:
            return False
        found = [partitions_of(stage.admin, topic) for topic in (TOPIC, GROUPS_TOPIC)]
        return all(each is not None and all(one.leader_id == one.replicas[0] for one in each) for each in found)

    wait_for(are_elected, timeout_s=HEAL_TIMEOUT_S, what="preferred leaders", interval_s=CHECK_INTERVAL_S)


NEMESES: dict[str, Callable[[Stage], str]] = {
    "join": join,
    "leave": leave,
    "crash": crash,
    "stall-short": stall_short,
    "stall-long": stall_long,
    "busy": busy,
    "restart-static": restart_static,
    "kill-coordinator": kill_coordinator,
}
"""Each nemesis by its name."""
