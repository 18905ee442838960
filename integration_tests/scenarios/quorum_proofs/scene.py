# SPDX-License-Identifier: Apache-2.0
"""A cluster under load, and the questions of every proof: who leads, who has everything, what exists at the end.

Owns the waits with their limits, and the last comparisons: the load's ledger with the cluster, and the voters' images with each other.
An image is read from its owner: the leadership is transferred to each voter in turn, which then answers reads from its own image.
"""

from __future__ import annotations

import hashlib
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass

import grpc
from lograft import Admin
from lograft.errors import LograftError
from lograft.settings import REQUEST_TIMEOUT_MS
from lograft.types import ConfigResource, QuorumDescription

from integration_tests.harness.cluster import Cluster
from integration_tests.harness.load.metadata_load import CONFIG, CREATION_EVERY, MetadataLoad
from integration_tests.harness.metadata import quorum_of
from integration_tests.harness.outcome import Figure, Outcome
from integration_tests.harness.wait import wait_for
from integration_tests.scenarios.quorum_proofs.direct import Voter, register_value

CHECK_INTERVAL_S = 0.05
RECOVERY_TIMEOUT_S = 240.0
"""Seconds to wait for a new leader, an acknowledged change, or a voter with everything."""
ADMIN_TIMEOUT_MS = 30_000
WATCH_TIMEOUT_MS = 2_000
"""Milliseconds of one question for the leader. A broker may still wait for a leader that does not answer."""
READ_TIMEOUT_S = 30.0
DESCRIBED_AT_ONCE = 500
SAMPLED_TOPICS = 300
"""Number of topics whose whole description is compared between images. Names, ids and registers of all topics are compared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """A cluster, its load, and clients for the proof's own changes and questions."""

    cluster: Cluster
    load: MetadataLoad
    admin: Admin
    watcher: Admin

    def quorum(self) -> QuorumDescription | None:
        """Return the quorum as its leader sees it; None while no broker answers."""
        return quorum_of(self.watcher)

    def leader(self, *, above_epoch: int = 0) -> tuple[int, int]:
        """Wait for a leader of an epoch above the given one, and return its id and epoch."""

        def found() -> tuple[int, int] | None:
            quorum = self.quorum()
            if quorum is None or quorum.leader_id is None or quorum.quorum_epoch <= above_epoch:
                return None
            return quorum.leader_id, quorum.quorum_epoch

        return wait_for(found, timeout_s=RECOVERY_TIMEOUT_S, what="a quorum leader", interval_s=CHECK_INTERVAL_S)

    def wait_acknowledged(self, after_s: float) -> None:
        """Wait for an operation of the load that was acknowledged after a monotonic time."""
        wait_for(
            lambda: self.load.acknowledged_since(after_s),
            timeout_s=RECOVERY_TIMEOUT_S,
            what="an acknowledged operation",
        )

    def wait_caught_up(self, *voter_ids: int) -> None:
        """Wait until the voters (none named: all) have everything that the leader had a moment ago."""
        wanted = set(voter_ids or self.cluster.voters)

        def caught_up() -> bool:
            quorum = self.quorum()
            if quorum is None or quorum.high_watermark is None:
                return False
            ends = {each.node_id: each.log_end_offset for each in quorum.voters}
            return all((ends.get(voter_id) or -1) >= quorum.high_watermark for voter_id in wanted)

        what = f"voters {sorted(wanted)} to have everything"
        wait_for(caught_up, timeout_s=RECOVERY_TIMEOUT_S, what=what, interval_s=CHECK_INTERVAL_S)

    def state(self) -> tuple[dict[str, bytes], dict[str, int]]:
        """Return all topics with their ids, and the registers, from linearizable reads through a broker."""
        topics = {each.topic: each.topic_id for each in self.admin.list_topics()}
        registers = [topic for topic in self.load.ledger.registers if topic in topics]
        values: dict[str, int] = {}
        for start in range(0, len(registers), DESCRIBED_AT_ONCE):
            part = [ConfigResource.topic(topic) for topic in registers[start : start + DESCRIBED_AT_ONCE]]
            for resource, configs in self.admin.describe_configs(part).items():
                values[resource.name] = register_value({CONFIG: configs[CONFIG].value})
        return topics, values

    def finish(self, outcome: Outcome) -> None:
        """End the load, compare everything, and note figures and problems."""
        self.load.stop()
        self.load.check()
        ledger = self.load.ledger
        outcome.problems += ledger.problems
        outcome.problems += ledger.compare(*self.state())
        self.wait_caught_up()
        digests = self.image_digests()
        if len(set(digests.values())) != 1:
            outcome.problems.append(f"the images of the voters differ: {digests}")
        outcome.figures |= self.figures()

    def figures(self) -> dict[str, Figure]:
        """Return the figures of the load."""
        ledger = self.load.ledger
        return {
            "acknowledged": ledger.acknowledged_count,
            "unknown": ledger.unknown_count,
            "refused": ledger.refused_count,
            "held_back": self.load.held_back,
            "standstill_s": round(self.load.standstill_s(), 1),
            "reached_per_s": round(self.load.reached_per_s(), 1),
            "longest_call_ms": round(self.load.longest_call_s * 1e3),
            "topics": len(ledger.topics),
        }

    def image_digests(self) -> dict[int, str]:
        """Return the digest of each voter's image, read from that voter as leader. Nothing may change during this."""
        return {voter_id: self._image_digest(voter_id) for voter_id in self.cluster.voters}

    def _image_digest(self, voter_id: int) -> str:
        with Voter(self.cluster.admin_addresses[voter_id]) as voter:

            def digest_as_leader() -> str:
                # An elected leader is not active at once, and its leadership may end during the read. Then the read is repeated.
                try:
                    self.watcher.transfer_leadership(voter_id)
                    return self._digest(voter)
                except (LograftError, grpc.RpcError):
                    return ""

            what = f"voter {voter_id} to lead and to show its image"
            return wait_for(digest_as_leader, timeout_s=RECOVERY_TIMEOUT_S, what=what, interval_s=CHECK_INTERVAL_S)

    def _digest(self, voter: Voter) -> str:
        digest = hashlib.sha256()
        topics = voter.topics(timeout_s=READ_TIMEOUT_S)
        for topic, topic_id in sorted(topics.items()):
            digest.update(topic.encode() + topic_id)
        names = [topic for topic in self.load.ledger.registers if topic in topics]
        for start in range(0, len(names), DESCRIBED_AT_ONCE):
            digest.update(voter.registers(names[start : start + DESCRIBED_AT_ONCE], timeout_s=READ_TIMEOUT_S))
        for topic in sorted(topics)[-SAMPLED_TOPICS:]:
            digest.update(voter.describe(topic, timeout_s=READ_TIMEOUT_S))
        return digest.hexdigest()


@contextmanager
def scene_under_load(
    cluster: Cluster,
    *,
    rate_per_s: int,
    request_timeout_ms: int = REQUEST_TIMEOUT_MS,
    creation_every: int = CREATION_EVERY,
) -> Generator[Scene]:
    """Start the cluster and a load; at the end everything is stopped, whatever happens."""
    with (
        cluster,
        Admin(cluster.bootstrap, request_timeout_ms=ADMIN_TIMEOUT_MS) as admin,
        Admin(cluster.bootstrap, request_timeout_ms=WATCH_TIMEOUT_MS) as watcher,
        MetadataLoad(
            cluster.bootstrap,
            rate_per_s=rate_per_s,
            request_timeout_ms=request_timeout_ms,
            creation_every=creation_every,
        ) as load,
    ):
        yield Scene(cluster=cluster, load=load, admin=admin, watcher=watcher)
