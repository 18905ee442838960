# SPDX-License-Identifier: Apache-2.0
"""Clusters of processes and their faults, with real servers."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from lograft import Admin, Consumer, LograftError, Producer, TopicPartition
from lograft.testing import ClusterError, ClusterFailedError, Fault, FaultRefusedError, ProcessCluster
from lograft.testing.cluster import DISK_BYTES_MIN
from lograft.testing.keeper_client import _namespace

pytestmark = pytest.mark.process

FULL_TIMEOUT_MS = 3_000
CUT_TIMEOUT_MS = 3_000
APPENDS_MAX = 1_000
"""Appends within which a full disk must be noticed."""


@pytest.fixture(scope="module")
def shared() -> Iterator[ProcessCluster]:
    """Three nodes with a replicated topic."""
    with ProcessCluster() as cluster:
        with Admin(cluster.bootstrap) as admin:
            admin.create_topic("orders", replication_factor=3)
        cluster.wait_in_sync()
        yield cluster


@pytest.fixture
def cluster(shared: ProcessCluster) -> Iterator[ProcessCluster]:
    """The three nodes; healed after the test."""
    yield shared
    shared.heal()


def send(bootstrap: str, value: bytes, *, timeout_ms: int = 60_000, topic: str = "orders") -> None:
    """Produce one record and wait until it is acknowledged."""
    with Producer(bootstrap, delivery_timeout_ms=timeout_ms) as producer:
        producer.send(topic, value)
        producer.flush()


def send_until_refused(bootstrap: str) -> None:
    """Produce records until one is refused, which raises its error."""
    for _ in range(APPENDS_MAX):
        send(bootstrap, b"x" * 8_192, timeout_ms=FULL_TIMEOUT_MS)


def last_value(bootstrap: str, topic: str = "orders") -> bytes | None:
    """Return the value of the last record."""
    with Consumer(bootstrap) as consumer:
        partition = TopicPartition(topic, 0)
        consumer.assign([partition])
        end, value = consumer.end_offsets([partition])[partition], None
        position = 0
        while position < end:
            for record in consumer.poll():
                position, value = record.offset + 1, record.value
        return value


def test_killed_leader_is_replaced_and_comes_back(cluster: ProcessCluster) -> None:
    """Another node leads, records go on, and after the heal all three are in sync."""
    leader = cluster.leader_of("orders")
    with cluster.kill_leader("orders") as fault:
        assert (fault.kind, fault.node_id) == ("kill", leader)
        assert cluster.leader_of("orders") != leader, "the metadata may still name the killed leader"
        send(cluster.bootstrap, b"after a kill")
        assert cluster.leader_of("orders") != leader
    cluster.wait_in_sync()
    assert last_value(cluster.bootstrap) == b"after a kill"


def test_paused_broker_answers_nothing_and_goes_on(cluster: ProcessCluster) -> None:
    """A paused leader is replaced; its process is the same afterwards."""
    leader = cluster.leader_of("orders")
    before = dict(cluster.process_ids())
    fault = cluster.pause(leader)
    assert psutil.Process(before[leader]).status() == psutil.STATUS_STOPPED
    send(cluster.bootstrap, b"after a pause")
    cluster.heal()
    assert fault.is_healed
    assert cluster.process_ids() == before
    assert last_value(cluster.bootstrap) == b"after a pause"


def test_node_that_is_cut_off_is_reached_by_nobody(cluster: ProcessCluster) -> None:
    """Clients do not reach it, and it does not reach the others: another node leads. Its process runs all the time."""
    leader = cluster.leader_of("orders")
    before = cluster.process_ids()
    with cluster.cut(leader):
        send(cluster.bootstrap, b"after a cut")
        assert cluster.leader_of("orders") != leader
        # Alone it answers nobody, whoever asks.
        with Admin(cluster.addresses[leader], request_timeout_ms=CUT_TIMEOUT_MS) as admin, pytest.raises(LograftError):
            admin.describe_cluster()
        # It reaches no other node: it would still be in sync if it could fetch.
        with Admin(cluster.bootstrap) as admin:
            assert leader not in admin.describe_topic("orders").partitions[0].isr
    cluster.wait_in_sync()
    assert cluster.process_ids() == before
    assert last_value(cluster.bootstrap) == b"after a cut"


def test_verbs_that_cannot_be_carried_out_say_why(cluster: ProcessCluster) -> None:
    """A disk that is not the cluster's own, a coordinator that does not exist, a node that does not exist."""
    with pytest.raises(FaultRefusedError, match="disk_bytes"):
        cluster.fill_disk(1)
    with pytest.raises(ValueError, match="no node 4"):
        cluster.kill(4)
    with pytest.raises(ClusterError, match="runs already"):
        cluster.start()


def test_coordinator_needs_a_group(cluster: ProcessCluster) -> None:
    """Before the first group no node can be lost as its coordinator."""
    with pytest.raises(FaultRefusedError, match="has no groups yet"):
        cluster.lose_coordinator("billing")


def test_restart_with_a_limit_behaves_as_a_full_disk(cluster: ProcessCluster) -> None:
    """The node refuses appends until it starts without the limit. It needs no privilege."""
    node = cluster.leader_of("orders")
    with Admin(cluster.bootstrap) as admin:
        admin.create_topic("on-one", configs={"min.insync.replicas": "1"})
    node = cluster.leader_of("on-one")
    send(cluster.bootstrap, b"before", topic="on-one")
    cluster.restart(node, min_free_bytes=1 << 60)
    cluster.wait_in_sync()
    with pytest.raises(LograftError, match=r"not acknowledged|full|space|free"):
        send(cluster.bootstrap, b"refused", topic="on-one", timeout_ms=FULL_TIMEOUT_MS)
    assert last_value(cluster.bootstrap, "on-one") == b"before"
    cluster.restart(node, min_free_bytes=0)
    cluster.wait_in_sync()
    send(cluster.bootstrap, b"after", topic="on-one")
    assert last_value(cluster.bootstrap, "on-one") == b"after"


def test_filled_disk_refuses_appends_until_it_is_healed() -> None:
    """A disk without a byte free; reads go on; records go on after the heal. No mount is seen outside."""
    try:
        _namespace()
    except FaultRefusedError:
        pytest.skip("mount namespaces are not permitted")
    with ProcessCluster(node_count=1, disk_bytes=2 * DISK_BYTES_MIN) as cluster:
        with Admin(cluster.bootstrap) as admin:
            admin.create_topic("orders")
        send(cluster.bootstrap, b"before")
        assert str(cluster.directory) not in Path("/proc/self/mounts").read_text()
        with cluster.fill_disk(1):
            # The broker looks at its disk once a second.
            with pytest.raises(LograftError):
                send_until_refused(cluster.bootstrap)
            assert last_value(cluster.bootstrap) in (b"before", b"x" * 8_192)
        send(cluster.bootstrap, b"after")
        with cluster.kill(1):
            pass
        cluster.wait_in_sync()
        assert last_value(cluster.bootstrap) == b"after"
        directory = cluster.directory
    assert not directory.exists()


def test_disks_without_permission_are_refused_clearly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without `unshare` the error says what small disks need, and nothing is left."""
    monkeypatch.setenv("PATH", "/nonexistent")
    cluster = ProcessCluster(disk_bytes=DISK_BYTES_MIN)
    with pytest.raises(FaultRefusedError, match="CAP_SYS_ADMIN"):
        cluster.start()
    with pytest.raises(ClusterError, match="does not run"):
        assert cluster.bootstrap


def test_server_that_does_not_start_shows_its_log(tmp_path: Path) -> None:
    """A wrong argument ends the start with the server's own words, and nothing keeps running."""
    cluster = ProcessCluster(tmp_path, node_count=1, server_arguments=["--no-such-option"])
    with pytest.raises(ClusterFailedError, match="no-such-option"):
        cluster.start()
    with pytest.raises(ClusterError, match="does not run"):
        cluster.process_ids()
    # A process that ends meanwhile has no arguments, or is left out.
    arguments = [each.info["cmdline"] or () for each in psutil.process_iter(["cmdline"])]
    assert not [each for each in arguments if str(tmp_path) in " ".join(each)]


def test_kept_directory_keeps_its_records(tmp_path: Path) -> None:
    """A given directory stays, and the next cluster on it continues."""
    with ProcessCluster(tmp_path, node_count=1) as cluster:
        with Admin(cluster.bootstrap) as admin:
            admin.create_topic("orders")
        send(cluster.bootstrap, b"kept")
    with ProcessCluster(tmp_path, node_count=1) as cluster:
        assert last_value(cluster.bootstrap) == b"kept"


def test_end_of_the_keeper_ends_the_servers() -> None:
    """Even a killed keeper takes its servers with it, and the error says that it has ended."""
    cluster = ProcessCluster(node_count=1).start()
    try:
        keeper = cluster._keeper
        assert keeper is not None
        servers = [psutil.Process(pid) for pid in cluster.process_ids().values()]
        keeper._process.kill()
        psutil.wait_procs(servers, timeout=20)
        assert not [each for each in servers if each.is_running() and each.status() != psutil.STATUS_ZOMBIE]
        with pytest.raises(ClusterFailedError, match="keeper"):
            cluster.kill(1)
    finally:
        directory = cluster.directory
        cluster.stop()
    assert not directory.exists()


@pytest.mark.parametrize("arguments", [{"node_count": 2}, {"node_count": 0}, {"disk_bytes": 1}])
def test_numbers_out_of_range_are_refused(arguments: dict[str, int]) -> None:
    """A cluster that makes no sense is an error."""
    with pytest.raises(ValueError, match=r"odd|less than"):
        ProcessCluster(**arguments)


def test_fault_heals_once() -> None:
    """A fault that is healed twice does so once."""
    healed: list[int] = []
    fault = Fault("pause", 2, lambda: healed.append(1))
    assert "healed" not in repr(fault)
    with fault:
        fault.heal()
    assert healed == [1]
    assert repr(fault) == "Fault('pause', node_id=2, healed)"


def test_servers_do_not_read_the_options_of_the_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Variables that are options of the servers do not reach them, and packages of the folder do not hide theirs."""
    from lograft.testing._keeper.nodes import server_environment

    monkeypatch.setenv("LOGRAFT_LISTEN", "nowhere")
    assert "LOGRAFT_LISTEN" not in server_environment(os.environ)
    assert server_environment(os.environ)["PATH"] == os.environ["PATH"]
