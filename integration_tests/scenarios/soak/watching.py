# SPDX-License-Identifier: Apache-2.0
"""Watches a cluster at work: takes samples of its state at intervals, and measures how long each server takes to answer a health check.

A server answers the health check on the event loop that does everything else, including the voter. So the longest answer is an upper
bound of the longest stall of that loop (a busy client makes it longer).
"""

from __future__ import annotations

import time
from collections.abc import Callable

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from lograft import Admin
from lograft.errors import LograftError

from integration_tests.harness.background import Repeated
from integration_tests.harness.cluster import CombinedCluster
from integration_tests.scenarios.soak.observed import Sample

SAMPLE_INTERVAL_S = 2.0
ASK_INTERVAL_S = 0.1
ASK_TIMEOUT_S = 10.0
REQUEST_TIMEOUT_MS = 5_000


class Watch:
    """Watches a cluster at intervals, from `start` to `stop`.

    Args:
        nodes: the running servers.
        admin: a client of them.
        topic: topic whose partitions are sampled.

    Attributes:
        samples: the samples, in order.
        answers_s: how long each server took to answer, by name.
        unanswered: number of samples that could not be taken.
    """

    def __init__(self, nodes: CombinedCluster, admin: Admin, topic: str) -> None:
        self.samples: list[Sample] = []
        self.answers_s: dict[str, list[float]] = {name: [] for name in nodes.processes}
        self.unanswered: list[str] = []
        self._nodes, self._admin, self._topic = nodes, admin, topic
        self._channels = {name: grpc.insecure_channel(address) for name, address in nodes.addresses.items()}
        self._started_s = time.monotonic()
        self._threads = [Repeated("samples", self._try_sample, SAMPLE_INTERVAL_S)]
        self._threads += [Repeated(f"ask {name}", self._asking(name), ASK_INTERVAL_S) for name in self._channels]

    def start(self) -> None:
        """Take the first sample and start."""
        self.samples.append(self._sample())
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Take the last sample and stop."""
        for thread in self._threads:
            thread.join()
        for channel in self._channels.values():
            channel.close()
        self.samples.append(self._sample())

    def _try_sample(self) -> None:
        try:
            self.samples.append(self._sample())
        except LograftError as error:
            self.unanswered.append(f"{time.monotonic() - self._started_s:.1f} s: {error!r}")

    def _sample(self) -> Sample:
        quorum, cluster = self._admin.describe_quorum(), self._admin.describe_cluster()
        partitions = self._admin.describe_topic(self._topic).partitions
        return Sample(
            time_s=time.monotonic() - self._started_s,
            quorum_epoch=quorum.quorum_epoch,
            quorum_leader_id=quorum.leader_id,
            fenced=tuple(sorted(broker.broker_id for broker in cluster.brokers if broker.fenced)),
            leader_epochs=tuple(each.leader_epoch for each in partitions),
            out_of_sync=sum(len(each.replicas) - len(each.isr) for each in partitions),
            rss_bytes={name: process.rss_bytes for name, process in self._nodes.processes.items()},
            disk_bytes=self._nodes.disk_bytes(),
        )

    def _asking(self, name: str) -> Callable[[], None]:
        check = health_pb2_grpc.HealthStub(self._channels[name]).Check
        request = health_pb2.HealthCheckRequest(service="liveness")

        def ask() -> None:
            started_s = time.monotonic()
            try:
                check(request, timeout=ASK_TIMEOUT_S)
            except grpc.RpcError as error:
                self.unanswered.append(f"{started_s - self._started_s:.1f} s: {name}: {error!r}")
            self.answers_s[name].append(time.monotonic() - started_s)

        return ask
