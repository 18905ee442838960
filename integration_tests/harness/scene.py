# SPDX-License-Identifier: Apache-2.0
"""Voters and brokers under a load, and the questions of proofs and nemeses: who leads, who is in sync, is everything healed.

Owns waits with their limits. It asks only healthy brokers for metadata: an isolated one answers from its own image for as long as it
lives.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from lograft import Admin
from lograft.types import PartitionDescription

from integration_tests.harness.cluster import Cluster, Place, stop_in_order
from integration_tests.harness.faults.forgetful_proxy import ForgetfulProxy
from integration_tests.harness.history.replica_files import compare_replicas
from integration_tests.harness.load.record_load import RecordLoad, RecordLoadSettings
from integration_tests.harness.metadata import are_in_sync, partitions_of
from integration_tests.harness.outcome import Outcome
from integration_tests.harness.wait import wait_for

TOPIC = "workload"
VOTERS = 3
BROKERS = 3
CHECK_INTERVAL_S = 0.1
SERVED_TIMEOUT_S = 30.0
"""Seconds to wait for acknowledgements in the partitions during a fault. After that the fault is healed and reported as a problem."""
HEAL_TIMEOUT_S = 240.0
"""Seconds to wait until all brokers are back, in sync and leading."""
WATCH_TIMEOUT_MS = 3_000
TOPIC_TIMEOUT_MS = 60_000
ANOMALIES_MAX = 10
"""Maximum number of anomalies of a history that are listed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The size of a scene and its load.

    Attributes:
        voters: number of voters of the metadata quorum.
        brokers: number of brokers.
        partitions: number of partitions of the topic.
        replicas: replicas of each partition. With one, a partition is offline for as long as its broker.
        senders: producers of the load.
        pollers: consumers of the load.
        lasting_pollers: further consumers of the load, which are replaced only after an error.
        rate_per_s: values per second of the load.
        delivery_timeout_ms: delivery timeout of the producers.
        value_bytes: size of each value; 0: as short as possible.
        configs: configs of the topic, in addition to `min.insync.replicas`.
    """

    voters: int = VOTERS
    brokers: int = BROKERS
    partitions: int = 30
    replicas: int = 3
    senders: int = 3
    pollers: int = 2
    lasting_pollers: int = 0
    rate_per_s: float = 150.0
    delivery_timeout_ms: int = 120_000
    value_bytes: int = 0
    configs: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def is_redundant(self) -> bool:
        """True if the scene can do without one broker."""
        return self.replicas > 1

    @property
    def min_isr(self) -> int:
        """Replicas that must have a record before it is acknowledged: all but one, but at least one."""
        return max(1, self.replicas - 1)

    def load_settings(self) -> RecordLoadSettings:
        """Return the settings of the load."""
        return RecordLoadSettings(
            topic=TOPIC,
            partition_count=self.partitions,
            senders=self.senders,
            pollers=self.pollers,
            lasting_pollers=self.lasting_pollers,
            rate_per_s=self.rate_per_s,
            delivery_timeout_ms=self.delivery_timeout_ms,
            value_bytes=self.value_bytes,
        )


@dataclass(slots=True, kw_only=True)
class Scene:
    """A cluster, its load, an admin client, and the servers that a fault affects at the moment."""

    shape: Shape
    cluster: Cluster
    load: RecordLoad
    admin: Admin
    hurt: set[int] = field(default_factory=set[int])

    @property
    def partitions(self) -> range:
        """Numbers of all partitions."""
        return range(self.shape.partitions)

    def bootstrap_of(self, broker_ids: Iterable[int]) -> str:
        """Return the addresses of some brokers."""
        return ",".join(self.cluster.broker_addresses[broker_id] for broker_id in broker_ids)

    def state(self) -> Sequence[PartitionDescription] | None:
        """Return the partitions as a healthy broker knows them; None while none answers."""
        well = [broker_id for broker_id in self.cluster.brokers if broker_id not in self.hurt]
        if not well:
            return None
        with Admin(self.bootstrap_of(well), request_timeout_ms=WATCH_TIMEOUT_MS) as admin:
            return partitions_of(admin, TOPIC)

    def wait_for_state(self, is_right: Callable[[Sequence[PartitionDescription]], bool], what: str) -> list[int]:
        """Wait for a state of the partitions and return the leaders (-1: none)."""
        last: Sequence[PartitionDescription] | None = None

        def found() -> list[int] | None:
            nonlocal last
            self.load.check_alive()
            last = self.state()
            if last is None or not is_right(last):
                return None
            return [-1 if each.leader_id is None else each.leader_id for each in last]

        try:
            return wait_for(found, timeout_s=HEAL_TIMEOUT_S, what=what, interval_s=CHECK_INTERVAL_S)
        except TimeoutError as error:
            raise TimeoutError(f"{error}; last seen: {_describe(last)}") from None

    def leaders(self) -> list[int]:
        """Wait until all partitions have a healthy leader, and return the leaders."""

        def all_led(partitions: Sequence[PartitionDescription]) -> bool:
            return all(each.leader_id is not None and each.leader_id not in self.hurt for each in partitions)

        return self.wait_for_state(all_led, "leaders of all partitions")

    def wait_in_sync(self) -> list[int]:
        """Wait until every partition has a leader and all its replicas are in sync, and return the leaders."""
        return self.wait_for_state(are_in_sync, "all replicas in sync")

    def wait_removed(self, broker_id: int) -> None:
        """Wait until a broker is in no ISR and leads no partition."""

        def is_out(partitions: Sequence[PartitionDescription]) -> bool:
            return all(each.leader_id != broker_id and broker_id not in each.isr for each in partitions)

        self.wait_for_state(is_out, f"broker {broker_id} to be out of every ISR")

    def served_despite(self, what: str, partitions: Iterable[int] | None = None) -> list[str]:
        """Wait during a fault for healthy leaders and for acknowledgements (None: of all partitions).

        Returns:
            The problems.
        """
        chosen = self.partitions if partitions is None else partitions
        try:
            self.leaders()
            self.load.wait_acknowledged(chosen, time.monotonic(), timeout_s=SERVED_TIMEOUT_S)
        except TimeoutError as error:
            return [f"{what}: {error}"]
        return []

    def judge(self, outcome: Outcome, *, forgiven: Counter[str] | None = None) -> None:
        """End the load once all replicas are in sync, read everything, and judge the history.

        Args:
            outcome: gets problems and figures.
            forgiven: values without an acknowledgement, by error, that are no problem.
        """
        self.wait_in_sync()
        verdict, problems = self.load.judge()
        outcome.problems += problems
        outcome.problems += [f"ANOMALY {anomaly}" for anomaly in verdict.anomalies[:ANOMALIES_MAX]]
        outcome.problems += [f"the history is {verdict.name}"] if verdict.name != "PASSED" else []
        outcome.figures |= self.load.figures()
        outcome.figures["values"] = dict(verdict.value_counts)
        failures = self.load.failures() - (forgiven or Counter())
        outcome.problems += [f"{count} values were not acknowledged: {what}" for what, count in failures.items()]

    def compare_files(self) -> list[str]:
        """Stop the brokers cleanly, once all replicas are in sync, and compare the files of the replicas.

        Returns:
            The problems of the brokers' ends, and the differences.
        """
        self.wait_in_sync()
        brokers = self.cluster.brokers.values()
        problems = stop_in_order(brokers)
        directories = [self.cluster.data_directory(process) for process in brokers]
        return problems + compare_replicas(directories, replicas=self.shape.replicas, partitions=self.shape.partitions)

    def led_by(self, leaders: Sequence[int], broker_id: int) -> list[int]:
        """Return the partitions that a broker leads."""
        return [partition for partition, leader_id in enumerate(leaders) if leader_id == broker_id]


def _describe(partitions: Sequence[PartitionDescription] | None) -> str:
    if partitions is None:
        return "no answer"
    odd = [each for each in partitions if each.leader_id is None or set(each.isr) != set(each.replicas)]
    texts = [f"{each.partition}: leader {each.leader_id} epoch {each.leader_epoch} isr {each.isr}" for each in odd[:5]]
    return f"{len(odd)} of {len(partitions)} not whole: {'; '.join(texts)}"


@contextmanager
def scene_under_load(
    directory: Path,
    shape: Shape,
    *,
    place: Place | None = None,
    broker_arguments: Sequence[str] = (),
    launcher: Callable[[str], Sequence[str]] | None = None,
    fronts: Mapping[int, ForgetfulProxy] | None = None,
    seed: int = 0,
) -> Generator[Scene]:
    """Start voters, brokers, a topic and a load. At the end everything is stopped, whatever happens.

    Args:
        directory: directory for everything.
        shape: the size of the scene.
        place: where servers run; None: on loopback.
        broker_arguments: further arguments of every broker.
        launcher: as in `Cluster`.
        fronts: started proxies for brokers, by broker id.
        seed: seed of the load.
    """
    fronts = fronts or {}
    cluster = Cluster(
        directory,
        voter_count=shape.voters,
        broker_count=shape.brokers,
        place=place,
        broker_arguments=broker_arguments,
        launcher=launcher,
        fronts={broker_id: proxy.address for broker_id, proxy in fronts.items()},
    )
    for broker_id, proxy in fronts.items():
        proxy.target = cluster.listening[broker_id]
    # The admin client lives longest, so that the SDK keeps one event loop all the time.
    with cluster, Admin(cluster.bootstrap, request_timeout_ms=TOPIC_TIMEOUT_MS) as admin:
        admin.create_topic(
            TOPIC,
            partition_count=shape.partitions,
            replication_factor=shape.replicas,
            configs={"min.insync.replicas": str(shape.min_isr), **shape.configs},
        )
        with RecordLoad(cluster.bootstrap, directory, shape.load_settings(), seed=seed) as load:
            yield Scene(shape=shape, cluster=cluster, load=load, admin=admin)
