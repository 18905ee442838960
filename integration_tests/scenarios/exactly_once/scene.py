# SPDX-License-Identifier: Apache-2.0
"""Three brokers with three replicas of everything, and the questions of the proofs: who leads, what is staged, what is open.

It owns the waits with their limits, and the stop and start of servers. It asks any broker that answers.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from lograft import Admin, Consumer, IngestState, TopicPartition
from lograft.errors import IngestNotFoundError, LograftError
from lograft.types import ConfigResource, ConsumerRecord, IngestDescription

from brokerd.coordinator.internal_topics import GROUPS, INGESTS
from integration_tests.harness.cluster import Cluster
from integration_tests.harness.load.readers import read_partitions
from integration_tests.harness.metadata import are_in_sync, partitions_of, unfenced_brokers
from integration_tests.harness.process import Process
from integration_tests.harness.wait import wait_for
from metaquorum.metadata.topic_names import staging_topic

VOTERS: Final = 1
BROKERS: Final = 3
REPLICAS: Final = 3
MIN_IN_SYNC: Final = 2
REQUEST_TIMEOUT_MS: Final = 60_000
WATCH_TIMEOUT_MS: Final = 3_000
START_TIMEOUT_S: Final = 600.0
CHECK_INTERVAL_S: Final = 0.1
HEAL_TIMEOUT_S: Final = 600.0
STAGING_TIMEOUT_S: Final = 120.0
"""Seconds after the end of an ingest in which its staging space must become zero. A sweep comes every 5 s."""


@dataclass(slots=True, kw_only=True)
class Scene:
    """A cluster and an admin client. One thread uses it.

    Attributes:
        cluster: the servers.
        admin: client of all brokers.
        rng: source of all random choices.
        directory: directory for logs and everything else.
        names: how many names were given; each topic and each ingest has a new one.
    """

    cluster: Cluster
    admin: Admin
    rng: random.Random
    directory: Path
    names: int = field(default=0)

    @property
    def bootstrap(self) -> str:
        """Addresses of all brokers."""
        return self.cluster.bootstrap

    def new_name(self, what: str) -> str:
        """Return a name that was not used before."""
        self.names += 1
        return f"{what}-{self.names}"

    # -- topics

    def create_topic(self, topic: str, *, partitions: int, configs: Mapping[str, str] | None = None) -> None:
        """Create a topic with three replicas of each partition."""
        self.admin.create_topic(
            topic,
            partition_count=partitions,
            replication_factor=REPLICAS,
            configs={"min.insync.replicas": str(MIN_IN_SYNC), **(configs or {})},
        )

    def set_min_in_sync(self, topic: str, count: int) -> None:
        """Change how many replicas must have a record of a topic."""
        self.admin.alter_configs({ConfigResource.topic(topic): {"min.insync.replicas": str(count)}})

    def partitions(self, topic: str) -> list[TopicPartition]:
        """Return all partitions of a topic."""
        count = len(self.admin.describe_topic(topic).partitions)
        return [TopicPartition(topic, number) for number in range(count)]

    def read(self, topic: str) -> list[ConsumerRecord]:
        """Return all records of a topic."""
        return read_partitions(self.bootstrap, self.partitions(topic))

    def end_offsets(self, topic: str) -> dict[int, int]:
        """Return the end of each partition of a topic."""
        with Consumer(self.bootstrap) as consumer:
            return {tp.partition: end for tp, end in consumer.end_offsets(self.partitions(topic)).items()}

    def committed_offsets(self, group: str, topic: str) -> dict[int, int]:
        """Return the offsets of a group in a topic; -1: none, or it is not known, or waits for a decision."""
        found = self.admin.group_offsets([group], [topic], with_lag=False)[0]
        return {each.partition: -1 if each.committed is None else each.committed.offset for each in found.offsets}

    # -- who does what

    def leader(self, topic: str, partition: int) -> int:
        """Wait for the leader of a partition and return its broker id."""

        def found() -> int | None:
            partitions = partitions_of(self.admin, topic)
            return None if partitions is None else partitions[partition].leader_id

        what = f"a leader of {topic}-{partition}"
        return wait_for(found, timeout_s=HEAL_TIMEOUT_S, what=what, interval_s=CHECK_INTERVAL_S)

    def coordinator(self, ingest_id: str) -> int:
        """Return the broker that coordinates an ingest, once there is one."""
        return self.leader(INGESTS.name, INGESTS.partition_of(ingest_id))

    def group_coordinator(self, group: str) -> int:
        """Return the broker that coordinates a group, once there is one."""
        return self.leader(GROUPS.name, GROUPS.partition_of(group))

    def ingest(self, ingest_id: str) -> IngestDescription | None:
        """Return how an ingest stands; None: there is none, or nobody answers."""
        try:
            return self.admin.describe_ingest(ingest_id)
        except LograftError:
            return None

    # -- faults

    def kill(self, broker_id: int) -> Process:
        """Kill a broker, and return its process, so that it can be started again."""
        process = self.cluster.brokers[broker_id]
        process.kill()
        return process

    def take_out(self, broker_id: int, topics: Sequence[str]) -> None:
        """Kill a broker, and wait until it is in no ISR of topics and leads nothing of them."""
        self.kill(broker_id)

        def is_out() -> bool:
            found = [partitions_of(self.admin, topic) for topic in topics]
            return all(
                each is not None
                and all(one.leader_id not in (None, broker_id) and broker_id not in one.isr for one in each)
                for each in found
            )

        what = f"broker {broker_id} to be out of every ISR"
        wait_for(is_out, timeout_s=HEAL_TIMEOUT_S, what=what, interval_s=CHECK_INTERVAL_S)

    def restart_all(self) -> None:
        """Kill all servers that run, at once, and start them in any order."""
        processes = [each for each in self.cluster.processes.values() if each.running]
        for process in processes:
            process.kill()
        self.rng.shuffle(processes)
        for process in processes:
            process.start()

    def heal(self) -> None:
        """Start brokers that are down, and wait until everything is in sync."""
        for process in self.cluster.processes.values():
            if not process.running:
                process.start()

        def is_whole() -> bool:
            if len(unfenced_brokers(self.admin)) != BROKERS:
                return False
            try:
                topics = [each.topic for each in self.admin.list_topics(include_internal=True)]
            except LograftError:
                return False
            found = [partitions_of(self.admin, topic) for topic in topics]
            return all(each is not None and are_in_sync(each) for each in found)

        what = "all brokers, and all replicas in sync"
        wait_for(is_whole, timeout_s=HEAL_TIMEOUT_S, what=what, interval_s=CHECK_INTERVAL_S)

    # -- what is left

    def staged_records(self, topic: str) -> int:
        """Return how many offsets the staging partitions of a topic hold; 0 if there are none yet."""
        staging = staging_topic(self.admin.describe_topic(topic).topic_id)
        partitions = partitions_of(self.admin, staging)
        if partitions is None:
            return 0
        tps = [TopicPartition(staging, number) for number in range(len(partitions))]
        with Consumer(self.bootstrap) as consumer:
            first, end = consumer.beginning_offsets(tps), consumer.end_offsets(tps)
        return sum(end[tp] - first[tp] for tp in tps)

    def staged_bytes(self, topic: str) -> int:
        """Return the bytes of the logs of all replicas of the staging partitions of a topic."""
        staging = staging_topic(self.admin.describe_topic(topic).topic_id)
        total = 0
        for broker_id in self.cluster.brokers:
            found = self.admin.describe_log_directories(broker_id, with_replicas=True, topic=staging)
            total += sum(sum(each.replica_bytes.values()) for each in found.directories)
        return total

    def wait_unstaged(self, topics: Sequence[str], *, timeout_s: float = STAGING_TIMEOUT_S) -> list[str]:
        """Wait until nothing is staged for topics, at no replica. Return what is left after that time."""
        left: dict[str, str] = {}

        def is_zero() -> bool:
            left.clear()
            try:
                for topic in topics:
                    records, size_bytes = self.staged_records(topic), self.staged_bytes(topic)
                    if records or size_bytes:
                        left[topic] = f"{records} records and {size_bytes} bytes"
            except LograftError as error:
                left["?"] = repr(error)
            return not left

        try:
            wait_for(is_zero, timeout_s=timeout_s, what="empty staging space", interval_s=CHECK_INTERVAL_S * 5)
        except TimeoutError:
            return [f"after {timeout_s:.0f} s {what} are staged for {topic}" for topic, what in left.items()]
        return []

    def still_open(self, *, but: Iterable[str] = ()) -> list[str]:
        """Return the ingests that are open with attempts, or decided and not published, as problems.

        The id of an application stays open for its next round; then it has no attempt that stages.
        """
        listed = self.admin.list_ingests([IngestState.OPEN, IngestState.DECIDED])
        found = [f"coordinator {each} did not answer" for each in listed.missing_coordinator_ids]
        for each in listed.ingests:
            if each.ingest_id not in but:
                found += _open_problem(each)
        return found

    def wait(self, condition: Callable[[], object], what: str, *, timeout_s: float = HEAL_TIMEOUT_S) -> None:
        """Wait for a condition that a fault may make unanswerable for a while."""

        def holds() -> object:
            try:
                return condition()
            except LograftError:
                return None

        wait_for(holds, timeout_s=timeout_s, what=what, interval_s=CHECK_INTERVAL_S)

    def is_known(self, ingest_id: str) -> bool:
        """Return True if there is an ingest of this id. Raises LograftError if nobody answers."""
        try:
            self.admin.describe_ingest(ingest_id)
        except IngestNotFoundError:
            return False
        return True


def _open_problem(each: IngestDescription) -> list[str]:
    if each.state is IngestState.DECIDED:
        return [f"ingest {each.ingest_id} is decided, {each.published_parts} of {each.parts} parts are published"]
    if each.kind.value == "single" or each.open_attempts:
        return [f"ingest {each.ingest_id} is open, with {each.open_attempts} attempts that stage"]
    return []


@contextmanager
def running_scene(directory: Path, *, seed: int) -> Generator[Scene]:
    """Start the servers, and end them at the end of the block, whatever happens."""
    cluster = Cluster(directory, voter_count=VOTERS, broker_count=BROKERS)
    cluster.start_timeout_s = START_TIMEOUT_S
    # The admin client lives longest, so that the SDK keeps one event loop all the time.
    with cluster, Admin(cluster.bootstrap, request_timeout_ms=REQUEST_TIMEOUT_MS) as admin:
        yield Scene(cluster=cluster, admin=admin, rng=random.Random(seed), directory=directory)
