# SPDX-License-Identifier: Apache-2.0
"""The member processes of a group proof, and how the coordinator sees the group.

Owns the processes, their names, and the waits until the group is stable. Each fault is written into the journal of the proof: before it
may have an effect that a member could notice, except a kill, which is written when the process has ended.
"""

from __future__ import annotations

import os
import random
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import grpc
from lograft.v1 import group_pb2, group_pb2_grpc

from integration_tests.harness.cluster import Cluster
from integration_tests.harness.process import Process
from integration_tests.harness.wait import wait_for
from integration_tests.scenarios.group_proofs.journal import Journal, Kind
from integration_tests.scenarios.group_proofs.member import GROUP, STYLES

ASK_TIMEOUT_S = 10.0
CHECK_INTERVAL_S = 0.1
LEAVE_TIMEOUT_S = 60.0
STABLE_MARGIN_S = 240.0
"""Seconds beyond a session and a processing limit within which the group must be stable."""


class Member:
    """One member process."""

    def __init__(self, name: str, instance_id: str | None, process: Process) -> None:
        self.name, self.instance_id, self.process = name, instance_id, process


class Crew:
    """All members, and the journal of the proof.

    Args:
        cluster: the servers.
        directory: directory of the journals and logs.
        journal: journal of the proof.
        partition_count: partitions of the topic.
        limit_ms: processing limit of the members.
        session_ms: session of the group.
    """

    def __init__(
        self,
        cluster: Cluster,
        directory: Path,
        journal: Journal,
        *,
        partition_count: int,
        limit_ms: int,
        session_ms: int,
    ) -> None:
        self.members: dict[str, Member] = {}
        self.problems: list[str] = []
        self.hurt_brokers: set[int] = set()
        self.stable_timeout_s = (session_ms + limit_ms) / 1e3 + STABLE_MARGIN_S
        self._cluster, self._directory, self._journal = cluster, directory, journal
        self._partition_count, self._limit_ms = partition_count, limit_ms
        self._number = 0
        self._channels = {
            broker_id: grpc.insecure_channel(address) for broker_id, address in cluster.broker_addresses.items()
        }

    @property
    def next_name(self) -> str:
        """Name of the next member that starts."""
        return f"m{self._number + 1:03d}"

    def start(self, instance_id: str | None = None) -> Member:
        """Start a new member."""
        name = self.next_name
        self._number += 1
        arguments = ["-m", "integration_tests.scenarios.group_proofs.member", "--bootstrap", self._cluster.bootstrap]
        arguments += ["--directory", str(self._directory), "--name", name, "--style", STYLES[self._number % 2]]
        arguments += ["--limit-ms", str(self._limit_ms)]
        arguments += ["--instance-id", instance_id] if instance_id is not None else []
        process = Process(name, arguments, self._directory / f"{name}.log", stop_timeout_s=LEAVE_TIMEOUT_S)
        process.start()
        self.members[name] = member = Member(name, instance_id, process)
        return member

    def leave(self, member: Member) -> None:
        """Let a member leave, and wait for the end of its process."""
        self._journal.write(Kind.LEAVING, target=member.name)
        status = member.process.stop()
        del self.members[member.name]
        if status != 0:
            self.problems.append(f"{member.name} ended with {status}: {member.process.log_tail()}")

    def kill(self, member: Member) -> None:
        """Kill a member."""
        member.process.kill()
        self._journal.write(Kind.KILLED, target=member.name)
        del self.members[member.name]

    def stop(self, member: Member) -> None:
        """Stop a member with SIGSTOP."""
        member.process.pause()
        self._journal.write(Kind.STOPPED, target=member.name)

    def go_on(self, member: Member) -> None:
        """Let a stopped member go on."""
        self._journal.write(Kind.CONTINUED, target=member.name)
        member.process.resume()

    def keep_busy(self, member: Member) -> None:
        """Have the application of a member ask for no records beyond its processing limit."""
        os.kill(member.process.pid, signal.SIGUSR1)

    def pick(self, rng: random.Random, *, is_static: bool = False) -> Member:
        """Return a random member."""
        return rng.choice([each for each in self.members.values() if (each.instance_id is not None) == is_static])

    def check(self) -> None:
        """Raise an error if a member has ended by itself."""
        for member in self.members.values():
            if not member.process.running:
                raise RuntimeError(f"{member.name} ended by itself: {member.process.log_tail()}")

    # -- the group as its coordinator sees it

    def description(self) -> group_pb2.DescribeGroupResponse | None:
        """Return the group as its coordinator sees it; None while no coordinator answers."""
        request = group_pb2.DescribeGroupRequest(group_id=GROUP)
        for broker_id, channel in self._channels.items():
            if broker_id in self.hurt_brokers:
                continue
            try:
                return group_pb2_grpc.GroupServiceStub(channel).DescribeGroup(request, timeout=ASK_TIMEOUT_S)
            except grpc.RpcError:
                continue
        return None

    def coordinator_id(self) -> int:
        """Wait for the coordinator, and return its broker id."""
        return self._wait(lambda found: found.coordinator_id, "a coordinator").coordinator_id

    def wait_members(self, count: int, what: str) -> None:
        """Wait until the group is stable with so many members, which have all partitions."""

        def is_so(found: group_pb2.DescribeGroupResponse) -> bool:
            assigned = sum(len(topic.partitions) for member in found.members for topic in member.assigned.topics)
            return (
                len(found.members) == count
                and found.state == group_pb2.GROUP_STATE_STABLE
                and assigned == self._partition_count
            )

        self._wait(is_so, f"{what}: a stable group of {count}")

    def wait_stable(self, what: str) -> None:
        """Wait until the group is stable with all members that run."""
        self.wait_members(len(self.members), what)

    def close(self) -> None:
        """Kill what still runs."""
        for member in self.members.values():
            member.process.resume()
            member.process.kill()
        for channel in self._channels.values():
            channel.close()

    def _wait(
        self, is_right: Callable[[group_pb2.DescribeGroupResponse], object], what: str
    ) -> group_pb2.DescribeGroupResponse:
        last: group_pb2.DescribeGroupResponse | None = None

        def found() -> group_pb2.DescribeGroupResponse | None:
            nonlocal last
            self.check()
            last = self.description()
            return last if last is not None and is_right(last) else None

        try:
            return wait_for(found, timeout_s=self.stable_timeout_s, what=what, interval_s=CHECK_INTERVAL_S)
        except TimeoutError as error:
            raise TimeoutError(f"{error}; last seen: {_text(last)}") from None


def rest(seconds: float) -> None:
    """Let the load run for a while."""
    threading.Event().wait(max(0.0, seconds))


def _text(found: group_pb2.DescribeGroupResponse | None) -> str:
    if found is None:
        return "no coordinator"
    state = group_pb2.GroupState.Name(found.state)
    progress = ", ".join(
        f"{member.client_host} epoch {member.member_epoch} {sum(len(each.partitions) for each in member.assigned.topics)}"
        f"-{sum(len(each.partitions) for each in member.revoking.topics)}"
        for member in found.members
    )
    return f"{state}, epochs {found.group_epoch}/{found.target_epoch}, {len(found.members)} members: {progress}"
