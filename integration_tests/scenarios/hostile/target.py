# SPDX-License-Identifier: Apache-2.0
"""The server under attack: one real process that is a whole cluster, and what `/proc` says of it."""

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
"""Of partition 0 and 1; each record is a batch of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What a process has at one moment."""

    rss_bytes: int
    descriptors: int
    threads: int

    def most(self, other: Usage) -> Usage:
        """Return the larger of each."""
        return Usage(
            rss_bytes=max(self.rss_bytes, other.rss_bytes),
            descriptors=max(self.descriptors, other.descriptors),
            threads=max(self.threads, other.threads),
        )


def usage(pid: int) -> Usage:
    """Read `/proc`."""
    status = Path(f"/proc/{pid}/status").read_text()
    fields = dict(re.findall(r"^(VmRSS|Threads):\s+(\d+)", status, re.MULTILINE))
    descriptors = sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())
    return Usage(rss_bytes=int(fields["VmRSS"]) * 1024, descriptors=descriptors, threads=int(fields["Threads"]))


class PeakSampler:
    """Looks at a process at intervals; a context manager.

    Attributes:
        peak: the most of each that was seen.
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
    """Write what the readers are to read, by a server of its own: the one under attack begins without what that left in memory."""
    with DevServer(directory, name="backlog") as server:
        with Admin(server.bootstrap) as admin:
            admin.create_topic(BACKLOG_TOPIC, partition_count=4, configs={"flush.policy": "none"})
            admin.create_topic(BOMB_TOPIC, configs={"flush.policy": "none"})
        for partition, value_bytes in enumerate(BACKLOG_VALUE_BYTES):
            with Producer(server.bootstrap, linger_ms=0) as producer:
                for _ in range(BACKLOG_PARTITION_BYTES // value_bytes):
                    producer.send(BACKLOG_TOPIC, bytes(value_bytes), partition=partition)
                    producer.flush()
