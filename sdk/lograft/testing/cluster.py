# SPDX-License-Identifier: Apache-2.0
"""A cluster of several real processes, and the faults that a test can bring about in it.

Every node is a broker and a voter of the quorum. All connections of clients and between nodes go through proxies, so that a
node can be cut off without any privilege. A keeper (`lograft.testing._keeper`) owns the processes and ends them when the test's
process ends, however that ends.
"""

from __future__ import annotations

import contextlib
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from lograft.admin import Admin
from lograft.errors import LograftError, UnknownTopicError
from lograft.testing.errors import ClusterError, ClusterFailedError, FaultRefusedError, require_servers
from lograft.testing.keeper_client import Keeper
from lograft.types import TopicDescription
from lograft.wire.checksum import crc32c

START_WAIT_S: Final = 60.0
"""Seconds until every node must serve."""

HEAL_WAIT_S: Final = 60.0
"""Seconds until everything must be in sync again after a heal."""

CHECK_INTERVAL_S: Final = 0.05
ADMIN_TIMEOUT_MS: Final = 5_000
DISK_BYTES_MIN: Final = 64 * 1024 * 1024
"""Smallest disk of a node, in bytes: the files of an empty node take a few MiB."""

LOG_TAIL_BYTES: Final = 4_000
GROUPS_TOPIC: Final = "__groups"
"""The internal topic whose partition leaders are the coordinators of groups."""


class Fault:
    """Something that is wrong with a node, until `heal`. As a context manager it heals at the end of the block.

    Attributes:
        kind: `kill`, `pause`, `cut` or `fill_disk`.
        node_id: the node.
    """

    def __init__(self, kind: str, node_id: int, heal: Callable[[], None]) -> None:
        self.kind = kind
        self.node_id = node_id
        self._heal: Callable[[], None] | None = heal

    @property
    def is_healed(self) -> bool:
        """True once `heal` was called."""
        return self._heal is None

    def heal(self) -> None:
        """Take the fault back. Idempotent. It does not wait until the cluster has recovered: `wait_in_sync` does."""
        heal, self._heal = self._heal, None
        if heal is not None:
            heal()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.heal()

    def __repr__(self) -> str:
        return f"Fault({self.kind!r}, node_id={self.node_id}{', healed' if self.is_healed else ''})"


class ProcessCluster:
    """A cluster of real server processes with the node ids 1, 2, ...; a context manager.

    Args:
        directory: directory for data and logs, which stays. None: a temporary one, which goes.
        node_count: number of nodes, odd: all of them vote.
        disk_bytes: give each node a disk of this size, so that `fill_disk` works. It needs a mount namespace: root, or a Linux
            that permits unprivileged user namespaces. The disk is memory, and empty at the next start of the cluster.
        server_arguments: further arguments of `brokerd run` for every node.

    Raises:
        ServersMissingError: `lograft-server` is not installed.
        ValueError: a number is out of range.
    """

    def __init__(
        self,
        directory: str | Path | None = None,
        *,
        node_count: int = 3,
        disk_bytes: int | None = None,
        server_arguments: Sequence[str] = (),
    ) -> None:
        require_servers()
        if node_count < 1 or node_count % 2 == 0:
            raise ValueError(f"node_count {node_count} is not an odd number: every node votes in the quorum")
        if disk_bytes is not None and disk_bytes < DISK_BYTES_MIN:
            raise ValueError(f"disk_bytes {disk_bytes} is less than {DISK_BYTES_MIN}")
        self._given_directory = None if directory is None else Path(directory).absolute()
        self._node_count = node_count
        self._disk_bytes = disk_bytes
        self._server_arguments = list(server_arguments)
        self._directory: Path | None = None
        self._keeper: Keeper | None = None
        self._addresses: dict[int, str] = {}
        self._faults: list[Fault] = []

    @property
    def bootstrap(self) -> str:
        """Bootstrap addresses for clients. Raises ClusterError unless the cluster runs."""
        self._running()
        return ",".join(self._addresses.values())

    @property
    def addresses(self) -> dict[int, str]:
        """Address of each node for clients, by node id."""
        return dict(self._addresses)

    @property
    def directory(self) -> Path:
        """Directory of data and logs. Raises ClusterError unless the cluster runs."""
        self._running()
        assert self._directory is not None
        return self._directory

    def start(self) -> Self:
        """Start all nodes, wait until they serve, and return the cluster.

        Raises:
            FaultRefusedError: small disks are asked for and not permitted.
            ClusterFailedError: a node did not start. Nothing keeps running.
        """
        if self._keeper is not None:
            raise ClusterError("the cluster runs already")
        if self._given_directory is None:
            self._directory = Path(tempfile.mkdtemp(prefix="lograft-cluster-"))
        else:
            self._directory = self._given_directory
            self._directory.mkdir(parents=True, exist_ok=True)
        try:
            self._keeper = Keeper(
                self._directory,
                is_temporary=self._given_directory is None,
                has_namespace=self._disk_bytes is not None,
            )
            opened = self._keeper.order(
                "open",
                node_count=self._node_count,
                disk_bytes=self._disk_bytes,
                arguments=self._server_arguments,
            )
            self._addresses = dict(opened["addresses"])
            self._wait(self._is_serving, START_WAIT_S, "the nodes to serve")
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """Kill all nodes and remove what is temporary. Idempotent."""
        keeper, self._keeper = self._keeper, None
        directory, self._directory = self._directory, None
        self._faults.clear()
        if keeper is not None:
            keeper.close()
        elif directory is not None and self._given_directory is None:
            # No keeper has come up that could have deleted it.
            with contextlib.suppress(OSError):
                for each in directory.iterdir():
                    each.unlink()
                directory.rmdir()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    # What is where.

    def leader_of(self, topic: str, partition: int = 0) -> int:
        """Return the node that leads a partition, never one that a fault has killed. Waits for one if there is none.

        Raises:
            ClusterFailedError: there is none in time.
            LograftError: the topic or the partition does not exist.
        """
        return self._wait(lambda: self._leader(topic, partition), HEAL_WAIT_S, f"a leader of {topic}-{partition}")

    def coordinator_of(self, group_id: str) -> int:
        """Return the node that coordinates a group: the leader of the group's partition of `__groups`.

        Raises:
            FaultRefusedError: no group has been used in this cluster yet, or its servers do not serve groups.
            ClusterFailedError: there is none in time.
        """
        with Admin(self.bootstrap, request_timeout_ms=ADMIN_TIMEOUT_MS) as admin:
            try:
                partition_count = admin.describe_topic(GROUPS_TOPIC).partition_count
            except UnknownTopicError as error:
                raise FaultRefusedError(
                    f"no broker coordinates group {group_id!r}: the cluster has no groups yet ({error}). "
                    "Let a consumer join the group first; the installed servers must serve groups"
                ) from None
        return self.leader_of(GROUPS_TOPIC, crc32c(group_id.encode()) % partition_count)

    def process_ids(self) -> dict[int, int]:
        """Return the process ids of the nodes that run, by node id."""
        return {node_id: pid for node_id, pid, _ in self._running().order("state") if pid is not None}

    # Faults.

    def kill(self, node_id: int) -> Fault:
        """Kill a node with SIGKILL. Healed, it starts again on its data."""
        self._order("kill", node_id)
        return self._fault("kill", node_id, "start")

    def kill_leader(self, topic: str, partition: int = 0) -> Fault:
        """Kill the node that leads a partition."""
        return self.kill(self.leader_of(topic, partition))

    def lose_coordinator(self, group_id: str) -> Fault:
        """Kill the node that coordinates a group; errors as `coordinator_of`."""
        return self.kill(self.coordinator_of(group_id))

    def pause(self, node_id: int) -> Fault:
        """Pause a node with SIGSTOP: its connections stay open, and it answers nothing. Healed, it goes on."""
        self._order("pause", node_id)
        return self._fault("pause", node_id, "resume")

    def cut(self, node_id: int) -> Fault:
        """Cut a node off: no byte goes to it or comes from it, as if its network cable was out. Healed, all connect anew.

        Needs no privilege.

        Raises:
            FaultRefusedError: the system is not Linux, so no one can tell which connection belongs to which node.
        """
        if sys.platform != "linux":
            raise FaultRefusedError(
                "a node can be cut off only on Linux, whose /proc tells which process owns a connection"
            )
        self._order("cut", node_id)
        return self._fault("cut", node_id, "mend")

    def fill_disk(self, node_id: int) -> Fault:
        """Fill the disk of a node to the last byte. Healed, the disk has room again. A broker notices either within seconds.

        Raises:
            FaultRefusedError: the cluster was made without `disk_bytes`.
        """
        if self._disk_bytes is None:
            raise FaultRefusedError(
                "the nodes have no disk of their own, and the disk of this machine must not be filled: "
                "make the cluster with disk_bytes, or call restart(node_id, min_free_bytes=1 << 60)"
            )
        self._order("fill", node_id)
        return self._fault("fill_disk", node_id, "empty")

    def restart(self, node_id: int, *, min_free_bytes: int | None = None) -> None:
        """Kill a node and start it again on its data. It does not wait: `wait_in_sync` does.

        Args:
            node_id: the node.
            min_free_bytes: free bytes of its disk below which the node refuses appends from now on; None: as before. With
                more than the disk has, the node behaves as with a full disk. It needs no privilege.
        """
        arguments = None if min_free_bytes is None else ["--min-free-bytes", str(min_free_bytes)]
        self._order("kill", node_id)
        self._order("start", node_id, arguments=arguments)

    def heal(self) -> None:
        """Take all faults back, and wait until everything is in sync.

        Raises:
            ClusterFailedError: it is not in time.
        """
        while self._faults:
            self._faults.pop().heal()
        self.wait_in_sync()

    def wait_in_sync(self, *, timeout_s: float = HEAL_WAIT_S) -> None:
        """Wait until every node serves, and every partition has a leader and all its replicas in sync.

        Raises:
            ClusterFailedError: this is not so in time. The message has the ends of the logs.
        """
        self._wait(self._is_in_sync, timeout_s, "everything to be in sync")

    def log(self, node_id: int) -> str:
        """Return what a node has logged in all its runs."""
        path = self.directory / f"node-{node_id}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def _fault(self, kind: str, node_id: int, opposite: str) -> Fault:
        keeper = self._running()

        def heal() -> None:
            # The fault of a cluster that has ended is over.
            if self._keeper is keeper:
                self._order(opposite, node_id)

        self._faults = [each for each in self._faults if not each.is_healed]
        fault = Fault(kind, node_id, heal)
        self._faults.append(fault)
        return fault

    def _order(self, verb: str, node_id: int, **arguments: Any) -> None:
        if node_id not in self._addresses:
            raise ValueError(f"there is no node {node_id}: the cluster has the nodes 1 to {self._node_count}")
        self._running().order(verb, node_id=node_id, **arguments)

    def _running(self) -> Keeper:
        if self._keeper is None:
            raise ClusterError("the cluster does not run: call start() or use it as a context manager")
        return self._keeper

    # Waits.

    def _wait(self, condition: Callable[[], Any], timeout_s: float, what: str) -> Any:
        deadline, pause = time.monotonic() + timeout_s, threading.Event()
        while True:
            self._check_alive()
            with contextlib.suppress(LograftError):
                found = condition()
                if found:
                    return found
            if time.monotonic() >= deadline:
                raise ClusterFailedError(f"waited {timeout_s:.0f} s for {what}\n{self._tails()}")
            pause.wait(CHECK_INTERVAL_S)

    def _killed(self) -> set[int]:
        return {each.node_id for each in self._faults if each.kind == "kill" and not each.is_healed}

    def _check_alive(self) -> None:
        killed = self._killed()
        for node_id, pid, status in self._running().order("state"):
            if pid is None and node_id not in killed:
                raise ClusterFailedError(f"node {node_id} has ended with status {status}\n{self._tails(node_id)}")

    def _tails(self, *node_ids: int) -> str:
        return "\n".join(
            f"--- node {node_id}\n{self.log(node_id)[-LOG_TAIL_BYTES:]}" for node_id in node_ids or self._addresses
        )

    def _is_serving(self) -> bool:
        with Admin(self.bootstrap, request_timeout_ms=ADMIN_TIMEOUT_MS) as admin:
            return self._all_serve(admin)

    def _all_serve(self, admin: Admin) -> bool:
        quorum = admin.describe_quorum()
        if quorum.leader_id is None or len(quorum.voters) != self._node_count:
            return False
        cluster = admin.describe_cluster()
        # A node that was paused or cut off may tell what was true before. The quorum's leader knows better.
        is_fresh = quorum.high_watermark is not None and cluster.metadata_offset >= quorum.high_watermark
        return is_fresh and sum(not broker.fenced for broker in cluster.brokers) == self._node_count

    def _is_in_sync(self) -> bool:
        with Admin(self.bootstrap, request_timeout_ms=ADMIN_TIMEOUT_MS) as admin:
            if not self._all_serve(admin):
                return False
            topics = [admin.describe_topic(each.topic) for each in admin.list_topics()]
            with contextlib.suppress(UnknownTopicError):
                topics.append(admin.describe_topic(GROUPS_TOPIC))
        return all(
            each.leader_id is not None and set(each.isr) == set(each.replicas)
            for topic in topics
            for each in topic.partitions
        )

    def _leader(self, topic: str, partition: int) -> int | None:
        with Admin(self.bootstrap, request_timeout_ms=ADMIN_TIMEOUT_MS) as admin:
            found: TopicDescription = admin.describe_topic(topic)
        if not 0 <= partition < found.partition_count:
            raise ValueError(f"topic {topic!r} has no partition {partition}: it has {found.partition_count}")
        leader_id = found.partitions[partition].leader_id
        # The metadata names a killed leader until the controller has missed its heartbeats.
        return None if leader_id in self._killed() else leader_id
