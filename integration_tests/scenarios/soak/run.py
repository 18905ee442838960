# SPDX-License-Identifier: Apache-2.0
"""`make soak MINUTES=10`: full-rate produce to three servers that are voters too, and its effect on quorum, records and memory.

    python -m integration_tests.scenarios.soak.run --minutes 10 --flush-policy ack

Exit status: 0 passed; 1 an election, a lost or duplicated record, a fenced broker, or unbounded growth.
"""

from __future__ import annotations

import argparse
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from lograft import Admin

from integration_tests.harness.cluster import CombinedCluster
from integration_tests.harness.load.times import summarize
from integration_tests.harness.outcome import Outcome, milliseconds, run_in_directory
from integration_tests.scenarios.soak.clients import CHUNK_RECORDS, Clients
from integration_tests.scenarios.soak.ledger import Ledger, Values
from integration_tests.scenarios.soak.observed import MIB, growth_mib_per_min, judge, leader_changes
from integration_tests.scenarios.soak.watching import Watch

TOPIC = "soak"
REPLICAS = 3
RETENTION_CHECK_MS = 5_000
REQUEST_TIMEOUT_MS = 60_000
CHECK_INTERVAL_S = 0.5
UNREAD_SHARE = 0.25
"""Share of the retained records of a partition that may be unread."""
LOG_LINES_MAX = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class SoakSettings:
    """The load of a soak, and how much of its data is kept.

    With these values all data directories together stay below 4 GB at up to 60 MB/s. Six partitions of three replicas keep 64 to 80 MiB
    each, plus what is sent in the 5 s between two checks of retention.

    Attributes:
        seconds: length of the load.
        partitions: partitions of the topic; each has three replicas.
        value_bytes: size of a record's value.
        flush_policy: flush policy of the topic.
        retention_bytes: retention size of the topic.
        segment_bytes: segment size of the topic.
    """

    seconds: float
    partitions: int = 6
    value_bytes: int = 1_000
    flush_policy: str = "ack"
    retention_bytes: int = 64 * MIB
    segment_bytes: int = 16 * MIB

    def configs(self) -> dict[str, str]:
        """Configs of the topic."""
        return {
            "flush.policy": self.flush_policy,
            "min.insync.replicas": "2",
            "retention.bytes": str(self.retention_bytes),
            "segment.bytes": str(self.segment_bytes),
            "file.delete.delay.ms": "0",
        }


def run(
    directory: Path, settings: SoakSettings, *, meanwhile: Callable[[CombinedCluster], None] | None = None
) -> Outcome:
    """Run a soak in a directory and judge it.

    Args:
        directory: directory for data and logs.
        settings: settings of the soak.
        meanwhile: called once the load runs, so that a test can cause what a soak must find.
    """
    outcome = Outcome(
        proof="soak",
        figures={"minutes": round(settings.seconds / 60, 2), "flush_policy": settings.flush_policy},
    )
    ledger = Ledger(settings.partitions, Values(settings.value_bytes))
    arguments = ("--retention-check-ms", str(RETENTION_CHECK_MS))
    with (
        CombinedCluster(directory, count=3, arguments=arguments) as nodes,
        # The admin client lives longest, so that the SDK keeps one event loop all the time.
        Admin(nodes.bootstrap, request_timeout_ms=REQUEST_TIMEOUT_MS) as admin,
    ):
        admin.create_topic(
            TOPIC, partition_count=settings.partitions, replication_factor=REPLICAS, configs=settings.configs()
        )
        unread = int(settings.retention_bytes * UNREAD_SHARE / settings.value_bytes)
        clients = Clients(nodes.bootstrap, TOPIC, ledger, unread_records_max=unread)
        watch = Watch(nodes, admin, TOPIC)
        watch.start()
        try:
            started_s = time.monotonic()
            clients.start()
            if meanwhile is not None:
                meanwhile(nodes)
            hold(clients, started_s + settings.seconds)
            took_s, sent = time.monotonic() - started_s, ledger.acknowledged
            clients.stop()
        finally:
            watch.stop()
        outcome.problems += ledger.judge_end() + judge(watch.samples)
        outcome.problems += nodes.stop()
        outcome.figures |= {
            "records": ledger.acknowledged,
            "records_per_s": round(sent / took_s),
            "mb_per_s": round(sent * settings.value_bytes / took_s / 1e6, 1),
            "held_for_reader_s": round(clients.held_s, 1),
            "duplicate_batches": clients.duplicate_batches,
        }
        tell_waits(ledger, outcome)
        tell_cluster(watch, outcome)
        print_warnings(nodes)
    if sent < CHUNK_RECORDS * settings.partitions:
        outcome.problems.append(f"only {sent} records were acknowledged: that is no load")
    return outcome


def hold(clients: Clients, until_s: float) -> None:
    """Let the clients work until a monotonic time, or until one of them ends by itself."""
    pause = threading.Event()
    while clients.are_well and time.monotonic() < until_s:
        pause.wait(min(CHECK_INTERVAL_S, max(0.0, until_s - time.monotonic())))


def tell_waits(ledger: Ledger, outcome: Outcome) -> None:
    """Add the waits for acknowledgements to the figures."""
    waits = summarize(wait.seconds for wait in ledger.waits)
    outcome.figures |= {
        "ack_wait_p50_ms": milliseconds(waits.p50_s),
        "ack_wait_p99_ms": milliseconds(waits.p99_s),
        "ack_wait_max_ms": milliseconds(waits.max_s),
    }


def tell_cluster(watch: Watch, outcome: Outcome) -> None:
    """Add the observations of the cluster to the figures."""
    samples = watch.samples
    first, last = samples[0], samples[-1]
    answers_s = [answer_s for each in watch.answers_s.values() for answer_s in each]
    answers = summarize(answers_s)
    outcome.figures |= {
        "quorum_epoch_first": first.quorum_epoch,
        "quorum_epoch_last": last.quorum_epoch,
        "quorum_leader_changes": sum(
            one.quorum_leader_id != other.quorum_leader_id for one, other in pairwise(samples)
        ),
        "leader_changes": leader_changes(samples),
        "samples": len(samples),
        "samples_out_of_sync": sum(each.out_of_sync > 0 for each in samples),
        "unanswered": len(watch.unanswered),
        "answer_p99_ms": milliseconds(answers.p99_s),
        "answer_max_ms": milliseconds(answers.max_s),
        "disk_max_mb": round(max(each.disk_bytes for each in samples) / 1e6),
    }
    for name in first.rss_bytes:
        short = name.replace("-", "_")
        outcome.figures[f"{short}_rss_max_mib"] = round(max(each.rss_bytes[name] for each in samples) / MIB)
        outcome.figures[f"{short}_growth_mib_per_min"] = round(growth_mib_per_min(samples, name), 2)
        outcome.figures[f"{short}_answer_max_ms"] = milliseconds(max(watch.answers_s[name], default=0.0))
    for text in watch.unanswered[:LOG_LINES_MAX]:
        print(f"  not answered: {text}")


def print_warnings(nodes: CombinedCluster) -> None:
    """Print how many warnings and errors each server logged, and the first of them."""
    for name, process in nodes.processes.items():
        lines = process.log_text().splitlines()
        counts = Counter(level for line in lines for level in ("WARNING", "ERROR", "CRITICAL") if f" {level} " in line)
        print(f"  {name} logged {dict(counts)}")
        odd = [line for line in lines if any(f" {level} " in line for level in ("WARNING", "ERROR", "CRITICAL"))]
        for line in odd[:LOG_LINES_MAX]:
            print(f"    {line[:200]}")


def main() -> int:
    """Run the command line and print the outcome. Logs are kept if something is wrong."""
    default = SoakSettings(seconds=0)
    parser = argparse.ArgumentParser(description="full-rate produce to servers that are voters too")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--partitions", type=int, default=default.partitions)
    parser.add_argument("--value-bytes", type=int, default=default.value_bytes)
    parser.add_argument("--flush-policy", choices=["ack", "interval", "none"], default=default.flush_policy)
    arguments = parser.parse_args()
    settings = SoakSettings(
        seconds=arguments.minutes * 60,
        partitions=arguments.partitions,
        value_bytes=arguments.value_bytes,
        flush_policy=arguments.flush_policy,
    )
    print(settings, flush=True)
    outcome = run_in_directory("soak", lambda directory: run(directory, settings))
    outcome.print()
    return 1 if outcome.problems else 0


if __name__ == "__main__":
    raise SystemExit(main())
