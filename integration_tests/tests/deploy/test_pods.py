# SPDX-License-Identifier: Apache-2.0
"""The entry point of the StatefulSet makes real clusters when it runs by hand, with its environment, on loopback addresses."""

from __future__ import annotations

import os
import sys
from collections.abc import Generator
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from lograft.v1 import admin_pb2, admin_pb2_grpc, metadata_pb2, metadata_pb2_grpc

from deploy.render import containers, render
from integration_tests.harness.process import Process
from integration_tests.harness.wait import wait_for
from metaquorum.testing.ports import free_port

ROOT = Path(__file__).resolve().parents[3]
DEPLOY = ROOT / "deploy"
HOSTS = [f"127.0.0.{number}" for number in range(1, 5)]
START_TIMEOUT_S = 40.0
CALL_TIMEOUT_S = 5.0


class Pods:
    """Pods of the overlay `three` on loopback addresses: real processes with the environment of the manifests."""

    def __init__(self, directory: Path) -> None:
        objects = {each["kind"]: each for each in render(DEPLOY / "kubernetes/overlays/three")}
        self.config: dict[str, str] = objects["ConfigMap"]["data"]
        (server,) = containers(objects["StatefulSet"])
        self.probes = {name: server[f"{name}Probe"]["grpc"]["service"] for name in ("startup", "liveness", "readiness")}
        self.directory = directory
        self.broker_port, self.quorum_port = free_port(*HOSTS), free_port(*HOSTS)
        self.running: dict[int, Process] = {}

    def start(self, ordinal: int, **changes: str) -> Process:
        """Start one pod."""
        environment = {
            **self.config,
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "POD_NAME": f"lograft-{ordinal}",
            "POD_NAMESPACE": "logs",
            "LOGRAFT_HOSTS": ",".join(HOSTS),
            "LOGRAFT_BIND_HOST": HOSTS[ordinal],
            "LOGRAFT_BROKER_PORT": str(self.broker_port),
            "LOGRAFT_QUORUM_PORT": str(self.quorum_port),
            "LOGRAFT_QUORUM_FETCH_PORT": "0",
            "LOGRAFT_DATA_DIR": str(self.directory / f"data-{ordinal}"),
            **changes,
        }
        name = environment["POD_NAME"]
        log_path = self.directory / f"{name}.log"
        process = Process(name, [str(DEPLOY / "entrypoint.py")], log_path, environment=environment)
        process.start()
        self.running[ordinal] = process
        return process

    def stop_all(self) -> list[int]:
        """Stop every pod as Kubernetes does, with SIGTERM, and return the exit statuses."""
        for process in self.running.values():
            process.ask_to_stop()
        statuses = [process.wait(process.stop_timeout_s) for process in self.running.values()]
        self.running.clear()
        return statuses

    def channel(self, ordinal: int) -> grpc.Channel:
        """Return a channel to a pod's public port."""
        return grpc.insecure_channel(f"{HOSTS[ordinal]}:{self.broker_port}")

    def passes(self, ordinal: int, probe: str) -> bool:
        """Return the result of a probe of the manifests at a pod."""
        request = health_pb2.HealthCheckRequest(service=self.probes[probe])
        with self.channel(ordinal) as channel:
            try:
                answer = health_pb2_grpc.HealthStub(channel).Check(request, timeout=CALL_TIMEOUT_S)
            except grpc.RpcError:
                return False
        return answer.status == health_pb2.HealthCheckResponse.SERVING

    def view(self, ordinal: int) -> tuple[list[int], set[int]] | None:
        """Return the voters and the unfenced brokers that a pod knows; None while it is not ready."""
        if not all(self.passes(ordinal, probe) for probe in self.probes):
            return None
        with self.channel(ordinal) as channel:
            try:
                describe = admin_pb2_grpc.AdminServiceStub(channel).DescribeQuorum
                quorum = describe(admin_pb2.DescribeQuorumRequest(), timeout=CALL_TIMEOUT_S)
                get_cluster = metadata_pb2_grpc.MetadataServiceStub(channel).GetCluster
                cluster = get_cluster(metadata_pb2.GetClusterRequest(), timeout=CALL_TIMEOUT_S)
            except grpc.RpcError:
                return None
        if not quorum.HasField("leader_id"):
            return None
        return [voter.node_id for voter in quorum.voters], {
            each.broker_id for each in cluster.brokers if not each.fenced
        }

    def wait_for_view(self, voters: list[int], brokers: set[int]) -> None:
        """Wait until every running pod is ready and sees exactly these voters and brokers."""

        def agreed() -> bool:
            return all(self.view(ordinal) == (voters, brokers) for ordinal in self.running)

        try:
            wait_for(agreed, timeout_s=START_TIMEOUT_S, what=f"voters {voters} and brokers {brokers}")
        except TimeoutError as error:
            logs = "\n".join(f"--- {process.name}\n{process.log_tail()}" for process in self.running.values())
            views = {ordinal: self.view(ordinal) for ordinal in self.running}
            raise TimeoutError(f"{error}; views {views}\n{logs}") from None


@pytest.fixture
def pods(tmp_path: Path) -> Generator[Pods, None, None]:
    """Pods that are stopped after the test."""
    running = Pods(tmp_path)
    yield running
    for process in running.running.values():
        process.kill()


@pytest.mark.process
def test_three_pods_form_one_cluster(pods: Pods) -> None:
    """Three processes with the set's environment form one cluster, keep it over a restart, and admit a fourth."""
    for ordinal in (2, 0, 1):
        pods.start(ordinal)
    pods.wait_for_view([1, 2, 3], {1, 2, 3})
    with pods.channel(2) as channel:
        create = admin_pb2_grpc.AdminServiceStub(channel).CreateTopic
        topic = create(admin_pb2.CreateTopicRequest(topic="t", partition_count=6), timeout=CALL_TIMEOUT_S).topic
    assert {partition.leader_id for partition in topic.partitions} == {1, 2, 3}

    assert pods.stop_all() == [0, 0, 0]
    for ordinal in range(4):
        pods.start(ordinal)
    pods.wait_for_view([1, 2, 3], {1, 2, 3, 4})
    with pods.channel(3) as channel:
        describe = admin_pb2_grpc.AdminServiceStub(channel).DescribeTopic
        assert (
            describe(admin_pb2.DescribeTopicRequest(topic="t"), timeout=CALL_TIMEOUT_S).topic.topic_id == topic.topic_id
        )
    assert pods.stop_all() == [0, 0, 0, 0]


@pytest.mark.process
def test_pod_refuses_the_volume_of_another_cluster(pods: Pods) -> None:
    """A pod whose volume belongs to another cluster exits with one line that says so."""
    pods.start(0, LOGRAFT_VOTER_COUNT="1")
    pods.wait_for_view([1], {1})
    assert pods.stop_all() == [0]
    process = pods.start(0, LOGRAFT_VOTER_COUNT="1", LOGRAFT_CLUSTER_ID="another")
    assert process.wait(START_TIMEOUT_S) == 1
    last_line = process.log_text().splitlines()[-1]
    assert "another" in last_line
    pods.running.clear()


@pytest.mark.process
def test_liveness_does_not_depend_on_the_quorum(pods: Pods) -> None:
    """A pod without its peers is alive but not ready, also if it starts without them. A restart would not help."""
    for ordinal in range(3):
        pods.start(ordinal)
    pods.wait_for_view([1, 2, 3], {1, 2, 3})
    for ordinal in (1, 2):
        pods.running.pop(ordinal).kill()
    wait_for(lambda: pods.view(0) is None, timeout_s=START_TIMEOUT_S, what="the pod to lose its quorum leader")
    assert pods.passes(0, "liveness")

    pods.stop_all()
    pods.start(0)
    wait_for(lambda: pods.passes(0, "startup"), timeout_s=START_TIMEOUT_S, what="the pod to listen without a quorum")
    assert pods.passes(0, "liveness")
    assert not pods.passes(0, "readiness")
