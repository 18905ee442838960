# SPDX-License-Identifier: Apache-2.0
"""The attacked server: one real process that is a whole cluster, and its usage according to `/proc`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from lograft import Admin, Producer

from integration_tests.harness.background import Repeated
from integration_tests.harness.cluster import DevServer
from integration_tests.scenarios.hostile.attackers import BACKLOG_TOPIC, BOMB_TOPIC

SAMPLE_INTERVAL_S = 0.1
BACKLOG_PARTITION_BYTES = 64 * 1024 * 1024
BACKLOG_VALUE_BYTES = (1_000_000, 60_000)
"""Value sizes of partition 0 and partition 1. Each record is a batch of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """The resources of a process at one moment."""

    rss_bytes: int
    descriptors: int
    threads: int

    def most(self, other: Usage) -> Usage:
        """Return the maximum of each resource."""
        return Usage(
            rss_bytes=max(self.rss_bytes, other.rss_bytes),
            descriptors=max(self.descriptors, other.descriptors),
            threads=max(self.threads, other.threads),
        )


def usage(pid: int) -> Usage:
    """Return the usage of a process from `/proc`."""
    status = Path(f"/proc/{pid}/status").read_text()
    fields = dict(re.findall(r"^(VmRSS|Threads):\s+(\d+)", status, re.MULTILINE))
    descriptors = sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())
    return Usage(rss_bytes=int(fields["VmRSS"]) * 1024, descriptors=descriptors, threads=int(fields["Threads"]))


class PeakSampler:
    """Samples a process at intervals; a context manager.

    Attributes:
        peak: the maximum of each resource so far.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self.peak = usage(pid)
        self._thread = Repeated("peak", self._look, SAMPLE_INTERVAL_S)

    def __enter__(self) -> PeakSampler:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.join()

    def _look(self) -> None:
        self.peak = self.peak.most(usage(self._pid))


def write_backlog(directory: Path) -> None:
    """Write the records for the readers with a server of its own, so that the attacked server starts without its memory."""
    with DevServer(directory, name="backlog") as server:
        with Admin(server.bootstrap) as admin:
            admin.create_topic(BACKLOG_TOPIC, partition_count=4, configs={"flush.policy": "none"})
            admin.create_topic(BOMB_TOPIC, configs={"flush.policy": "none"})
        for partition, value_bytes in enumerate(BACKLOG_VALUE_BYTES):
            with Producer(server.bootstrap, linger_ms=0) as producer:
                for _ in range(BACKLOG_PARTITION_BYTES // value_bytes):
                    producer.send(BACKLOG_TOPIC, bytes(value_bytes), partition=partition)
                    producer.flush()
