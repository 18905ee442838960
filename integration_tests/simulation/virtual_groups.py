# SPDX-License-Identifier: Apache-2.0
"""What the simulator replaces for groups: the assignment process, session lengths, the size of `__groups`, the cleaner's thread.

Owns these replacements. Everything else of groups is the real code: coordinators, runtime, core, service, and the SDK's members.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Final, TypeVar
from unittest import mock

import brokerd.coordinator.topic_creation
import brokerd.groups.coordinators
import brokerd.ingests.coordinators
import brokerd.process.server
import brokerd.publishing.sweep
from brokerd.assignment_worker.worker import AssignmentWorker, cost_of
from brokerd.clock import monotonic_ms, wall_ms
from brokerd.coordinator.internal_topics import GROUPS, INGESTS, InternalTopic, TopicPlan, creation_plan
from brokerd.coordinator.runtime import CoordinatorRuntime
from brokerd.groups.assignment.assignors import assignor_named
from brokerd.groups.assignment.specs import Assignment
from brokerd.groups.coordinators import GroupCoordinators
from brokerd.groups.settings import GroupConfig
from brokerd.replica.replica import Replica
from integration_tests.simulation.process import current_process
from storage.compaction.cleaner import Cleaner, CleanerSettings
from storage.log.partition_log import PartitionLog

SESSION_MS: Final = 6_000
"""Session of members in milliseconds: the shortest that there is, so that a run sees many ends."""

SNAPSHOT_LOOK_MS: Final = 500
"""Milliseconds between two looks for due snapshots of coordinators."""

SEGMENT_BYTES: Final = 16_384
"""Size of the segments of `__groups` in bytes: only sealed ones are compacted, and make a snapshot due."""

GROUP_CONFIG: Final = GroupConfig(session_timeout_ms=SESSION_MS, heartbeat_interval_ms=1_000, assignment_interval_ms=50)
"""Config of every group."""

SWEEP_MS: Final = 1_000
"""Milliseconds between two sweeps of staging partitions."""

CLEANING_RATE: Final = 1 << 40
"""Bytes a second of the cleaner: a pass takes no time."""

_Result = TypeVar("_Result")


class VirtualAssignmentWorker(AssignmentWorker):
    """Replaces the assignment process: the same function runs in a thread, a random moment later."""

    def __init__(self) -> None:
        super().__init__(max_inline_cost=0)

    async def _compute(self, job: Any) -> Assignment:
        assert cost_of(job.members, job.topics) > 0, "nothing to compute"
        return await asyncio.get_running_loop().run_in_executor(
            None, assignor_named(job.assignor).assign, job.members, job.topics
        )


class _Caller:
    """An open log, called at once: the virtual cleaner runs on the thread of the event loop."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self.name = str(replica)

    def check_room(self, size_bytes: int) -> None:
        self._replica.check_room(size_bytes)

    def call(self, step: Callable[[PartitionLog, int], _Result]) -> _Result:
        return self._replica.run_step(step)


class VirtualCleaner:
    """The cleaner of one broker's process, without its thread: a whole pass is one step.

    Args:
        replicas: returns the open replicas.
    """

    def __init__(self, replicas: Callable[[], Iterator[Replica]]) -> None:
        self._replicas = replicas
        self._callers: dict[str, _Caller] = {}
        self._cleaner = Cleaner(
            self._targets,
            settings=CleanerSettings(bytes_per_s=CLEANING_RATE),
            wall_ms=wall_ms,
            monotonic_ms=monotonic_ms,
            wait_ms=lambda _ms: False,
            check_room=lambda name, size_bytes: self._callers[name].check_room(size_bytes),
        )

    def run(self) -> int:
        """Compact what is due; return the number of passes."""
        count = 0
        while self._cleaner.run_once():
            count += 1
        return count

    def _targets(self) -> list[_Caller]:
        found = [_Caller(each) for each in self._replicas() if each.is_compacted and not each.is_moving]
        self._callers = {each.name: each for each in found}
        return found


@contextmanager
def groups_in_place(partition_count: int, ingest_partition_count: int, least_brokers: int) -> Generator[None]:
    """Replace these edges of groups and ingests for all code that runs inside the context.

    Args:
        partition_count: partitions of `__groups`. 32 would be most of the events of a run.
        ingest_partition_count: partitions of `__ingests`.
        least_brokers: brokers that there will be; `__groups` waits for as many as it wants replicas.
    """
    counts = ((GROUPS, partition_count), (INGESTS, ingest_partition_count))
    names = ("partition_count", "segment_bytes", "min_compaction_lag_ms")
    before = [(topic, {name: getattr(topic, name) for name in names}) for topic, _ in counts]
    after = [
        (topic, {"partition_count": count, "segment_bytes": SEGMENT_BYTES, "min_compaction_lag_ms": 0})
        for topic, count in counts
    ]
    module, ingests = brokerd.groups.coordinators, brokerd.ingests.coordinators

    def set_sizes(sizes: list[tuple[InternalTopic, dict[str, int]]]) -> None:
        # Objects that many modules have imported.
        for topic, values in sizes:
            for name, value in values.items():
                object.__setattr__(topic, name, value)

    def new_worker() -> AssignmentWorker:
        current_process()
        return VirtualAssignmentWorker()

    def plan(topic: InternalTopic, *, broker_count: int) -> TopicPlan:
        # With the brokers that have registered by then, the topic could have a single replica for ever, which faults may take away.
        return creation_plan(topic, broker_count=max(broker_count, least_brokers))

    set_sizes(after)
    try:
        with (
            mock.patch.object(module, "AssignmentWorker", new_worker),
            mock.patch.object(brokerd.coordinator.topic_creation, "creation_plan", plan),
            mock.patch.object(
                module, "CoordinatorRuntime", partial(CoordinatorRuntime, snapshot_check_ms=SNAPSHOT_LOOK_MS)
            ),
            mock.patch.object(
                ingests, "CoordinatorRuntime", partial(CoordinatorRuntime, snapshot_check_ms=SNAPSHOT_LOOK_MS)
            ),
            mock.patch.object(brokerd.publishing.sweep, "STAGING_SWEEP_MS", SWEEP_MS),
            mock.patch.object(
                brokerd.process.server, "GroupCoordinators", partial(GroupCoordinators, defaults=GROUP_CONFIG)
            ),
        ):
            yield
    finally:
        set_sizes(before)
