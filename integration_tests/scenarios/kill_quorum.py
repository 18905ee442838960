# SPDX-License-Identifier: Apache-2.0
"""`make kill-quorum`: kill -9 of the quorum leader under a loop of topic creations.

Three `metaquorum` processes and one `brokerd`. One thread creates topics one after the other and notes each acknowledged one.
Each round kills the leader and measures how long it takes until another voter leads and the next creation is acknowledged; then the
killed voter starts again and must catch up. At the end every acknowledged topic must be there, with the id it was acknowledged with.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

from lograft import Admin
from lograft.errors import LograftError, TopicAlreadyExistsError

from integration_tests.harness.cluster import ADMIN_TIMEOUT_MS, Cluster
from integration_tests.harness.wait import wait_for

NEW_LEADER_MS_MAX = 3_000
CATCH_UP_TIMEOUT_S = 30.0
RECOVERY_TIMEOUT_S = 20.0


@dataclass(slots=True)
class Creations:
    """What the creating thread has seen."""

    acknowledged: dict[str, bytes] = field(default_factory=dict[str, bytes])
    unknown: list[str] = field(default_factory=list[str])
    last_acknowledged_s: float = 0.0
    stopped: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """One kill."""

    killed: int
    elected: int
    new_leader_ms: float
    first_creation_ms: float
    topics: int


def create_topics(bootstrap: str, seen: Creations) -> None:
    """Create topics until told to stop; a creation whose outcome is unknown is noted and not repeated."""
    with Admin(bootstrap, request_timeout_ms=ADMIN_TIMEOUT_MS) as admin:
        number = 0
        while not seen.stopped:
            number += 1
            topic = f"topic-{number:06d}"
            try:
                created = admin.create_topic(topic)
            except TopicAlreadyExistsError:
                seen.unknown.append(topic)
            except LograftError:
                seen.unknown.append(topic)
            else:
                seen.acknowledged[topic] = created.topic_id
                seen.last_acknowledged_s = time.monotonic()


def leader_of(admin: Admin) -> tuple[int, int] | None:
    """Return (leader id, quorum epoch), or None when nobody answers."""
    try:
        quorum = admin.describe_quorum()
    except LograftError:
        return None
    return None if quorum.leader_id is None else (quorum.leader_id, quorum.quorum_epoch)


def caught_up(admin: Admin, voter_id: int) -> bool:
    """True when the voter's log has reached the high watermark."""
    try:
        quorum = admin.describe_quorum()
    except LograftError:
        return False
    ends = {voter.node_id: voter.log_end_offset for voter in quorum.voters}
    end = ends.get(voter_id)
    return end is not None and quorum.high_watermark is not None and end >= quorum.high_watermark


def run_round(cluster: Cluster, admin: Admin, seen: Creations) -> Round:
    """Kill the leader, wait for the next one and for an acknowledged creation, bring the old one back."""
    leader_id, quorum_epoch = wait_for(lambda: leader_of(admin), timeout_s=RECOVERY_TIMEOUT_S, what="a quorum leader")
    killed_s = time.monotonic()
    cluster.voters[leader_id].kill()

    def next_leader() -> int | None:
        found = leader_of(admin)
        return found[0] if found is not None and found[1] > quorum_epoch and found[0] != leader_id else None

    elected = wait_for(next_leader, timeout_s=RECOVERY_TIMEOUT_S, what="a new quorum leader")
    new_leader_ms = (time.monotonic() - killed_s) * 1e3
    wait_for(
        lambda: seen.last_acknowledged_s > killed_s and len(seen.acknowledged) > 0,
        timeout_s=RECOVERY_TIMEOUT_S,
        what="a creation after the election",
    )
    first_creation_ms = (seen.last_acknowledged_s - killed_s) * 1e3
    cluster.voters[leader_id].start()
    wait_for(lambda: caught_up(admin, leader_id), timeout_s=CATCH_UP_TIMEOUT_S, what=f"voter {leader_id} to catch up")
    return Round(
        killed=leader_id,
        elected=elected,
        new_leader_ms=new_leader_ms,
        first_creation_ms=first_creation_ms,
        topics=len(seen.acknowledged),
    )


def lost_topics(admin: Admin, seen: Creations) -> list[str]:
    """Return the acknowledged topics that are missing or have another id."""
    found = {topic.topic: topic.topic_id for topic in admin.list_topics()}
    return [topic for topic, topic_id in seen.acknowledged.items() if found.get(topic) != topic_id]


def run(directory: Path, rounds: int) -> tuple[list[Round], list[str], Creations]:
    """Run all rounds; return them, the lost topics and what the creating thread saw."""
    seen = Creations()
    with Cluster(directory, voter_count=3, broker_count=1) as cluster:
        creating = threading.Thread(target=create_topics, args=(cluster.bootstrap, seen), daemon=True)
        creating.start()
        with Admin(cluster.bootstrap, request_timeout_ms=ADMIN_TIMEOUT_MS) as admin:
            try:
                done = [run_round(cluster, admin, seen) for _ in range(rounds)]
            finally:
                seen.stopped = True
                creating.join()
            return done, lost_topics(admin, seen), seen


def main() -> int:
    """Print a line a round and the summary; 1 when a topic is lost or an election took too long."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="lograft-kill-quorum-") as name:
        rounds, lost, seen = run(Path(name), arguments.rounds)
    for number, r in enumerate(rounds, 1):
        print(
            f"round {number:3d}: killed voter {r.killed}, voter {r.elected} leads after {r.new_leader_ms:6.0f} ms, "
            f"a creation acknowledged after {r.first_creation_ms:6.0f} ms, {r.topics} topics"
        )
    times = [r.new_leader_ms for r in rounds]
    slow = [t for t in times if t > NEW_LEADER_MS_MAX]
    print(
        f"{len(rounds)} rounds, {len(seen.acknowledged)} topics acknowledged, {len(lost)} lost, "
        f"{len(seen.unknown)} with unknown outcome; new leader p50 {statistics.median(times):.0f} ms, max {max(times):.0f} ms"
    )
    for topic in lost:
        print(f"LOST {topic}")
    return 1 if lost or slow else 0


if __name__ == "__main__":
    raise SystemExit(main())
