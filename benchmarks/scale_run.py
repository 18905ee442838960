# SPDX-License-Identifier: Apache-2.0
"""`make bench-scale`: the metadata quorum with 10,000, 100,000 and 1,000,000 partitions.

Three voters run as processes on loopback and sync every change. Topics have 100 partitions on ten brokers. The brokers register and
send heartbeats but have no replicas (`scale_brokers`). Beside them, one real broker process without partitions holds a broker's view
of all. For a while, one of the voters runs as voter and broker in one process ("combined"), also without partitions of its own. Each
size has its own cluster. Memory for each partition is resident memory minus that of the same process before the first topic. With few
partitions that is mostly what any working process takes. A process that loads less before its first topic shows more, so the
resident memory of the whole process stands beside it ("in all").

A killed voter is started again with its data ("restart"), and without ("catch-up": it joins under another directory id). The lost
broker has a tenth of the partitions. If the cluster offers only one replica, its partitions have no leader until it is back. Both
changes are measured; each is a decision and a record for every one of its partitions. Then the partitions are reassigned to three
brokers each (`scale_replicas`), and the broker is lost once more. Now other brokers lead them.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import grpc
import grpc.aio
import psutil

from benchmarks.scale_brokers import HollowBrokers
from benchmarks.scale_calls import Created, Voters, is_serving_at, topic_name, until
from benchmarks.scale_replicas import ReplicaAdder
from integration_tests.harness.cluster import CLUSTER_ID, HOST, Cluster
from integration_tests.harness.process import Process
from metaquorum.testing.ports import free_port

SIZES = (10_000, 100_000, 1_000_000)
BROKERS = 10
FIRST_BROKER_ID = 201
REPLICATION_FACTORS = (2, 1)
"""Numbers of replicas to try; the first that the cluster offers is used."""

REPLICAS_TO_MOVE = 3
"""Replicas of the victim's partitions before other brokers take over from it."""

FILLER_BYTES = 21 * 1024 * 1024
"""Bytes of log after which every voter has made a snapshot."""

FILLER_VALUE_BYTES = 1_000
FILLER_TOPICS = 100
PHASE_TIMEOUT_S = 1_800.0
RESULTS = Path(__file__).parent / "results"


@dataclass(slots=True, kw_only=True)
class Row:
    """The figures for one number of partitions. Times are in seconds, memory in bytes for each partition, or in MB (10^6) in all."""

    partitions: int
    replication_factor: int = 0
    create_s: float = 0.0
    create_us_per_partition: float = 0.0
    voter_bytes: float = 0.0
    restarted_voter_bytes: float = 0.0
    broker_bytes: float = 0.0
    combined_bytes: float = 0.0
    voter_mb: float = 0.0
    restarted_voter_mb: float = 0.0
    broker_mb: float = 0.0
    combined_mb: float = 0.0
    broker_start_s: float = 0.0
    restart_s: float = 0.0
    restart_replayed_records: int = 0
    failover_s: float = 0.0
    snapshot_s: float = 0.0
    catch_up_s: float = 0.0
    lost_partitions: int = 0
    fence_s: float = 0.0
    fence_leader_us: float = 0.0
    return_s: float = 0.0
    moved_s: float = 0.0
    moved_leader_us: float = 0.0
    elections: int = 0


class Run:
    """One cluster of one size.

    Args:
        directory: directory of its data.
        partitions: number of partitions.
    """

    def __init__(self, directory: Path, partitions: int) -> None:
        self.cluster = Cluster(directory, voter_count=3, broker_count=1)
        for process in self.cluster.voters.values():
            process.arguments.append("--auto-join")
        self.voters = Voters(self.cluster.admin_addresses)
        self.combined_id = max(self.cluster.voters)
        self.combined_address = f"{HOST}:{free_port()}"
        self.brokers = HollowBrokers(FIRST_BROKER_ID, BROKERS, self.cluster.voter_addresses)
        self.row = Row(partitions=partitions)
        self._started = time.monotonic()

    @property
    def broker(self) -> Process:
        """The real broker."""
        return next(iter(self.cluster.brokers.values()))

    async def measure(self) -> Row:
        """Measure all figures, in an order in which none disturbs the next."""
        for process in (*self.cluster.voters.values(), self.broker):
            process.start()
        await until(self._broker_serves, PHASE_TIMEOUT_S, "the broker to serve")
        empty_broker = _resident(self.broker)
        await asyncio.to_thread(self.broker.stop)
        empty_combined = await self._combined_resident()
        await self.brokers.start()
        empty = {node_id: _resident(process) for node_id, process in self.cluster.voters.items()}
        created = await self._create()
        self._say("created")
        await self._settle()
        full = {node_id: _resident(process) for node_id, process in self.cluster.voters.items()}
        self.row.voter_bytes = round(max(full[each] - empty[each] for each in full) / self.row.partitions, 1)
        self.row.voter_mb = _megabytes(max(full.values()))
        await self._start_broker(empty_broker)
        self._say("broker started")
        combined = await self._combined_resident()
        self.row.combined_bytes = round((combined - empty_combined) / self.row.partitions, 1)
        self.row.combined_mb = _megabytes(combined)
        self._say("voter and broker in one process")
        await self._fail_over(min(empty.values()))
        self._say("leader replaced")
        await self._snapshot()
        self._say("snapshots made")
        await self._catch_up()
        self._say("empty voter joined")
        await self._lose_a_broker(created)
        self._say("broker lost and back")
        if self.row.replication_factor == 1:
            await self._move_leaders(created)
        return self.row

    def _say(self, what: str) -> None:
        sys.stderr.write(
            f"{time.monotonic() - self._started:8.1f} s  {self.row.partitions:,} partitions: {what}; {self.row}\n"
        )

    async def _create(self) -> Created:
        for factor in REPLICATION_FACTORS:
            started = time.monotonic()
            try:
                created = await self.voters.create(self.row.partitions, replication_factor=factor)
            except grpc.aio.AioRpcError as error:
                if error.code() is not grpc.StatusCode.INVALID_ARGUMENT:
                    raise
                continue
            self.row.create_s = round(time.monotonic() - started, 2)
            self.row.create_us_per_partition = round(self.row.create_s / self.row.partitions * 1e6, 1)
            self.row.replication_factor = factor
            return created
        raise RuntimeError("the cluster offers no replication factor of 1 or 2")

    async def _settle(self) -> None:
        """Wait until every voter has everything."""
        for node_id in self.cluster.voters:
            await self._wait_for(node_id)

    async def _wait_for(self, node_id: int, *, votes: bool | None = None) -> None:
        await until(lambda: self.voters.has_everything(node_id, votes=votes), PHASE_TIMEOUT_S, f"voter {node_id}")

    async def _start_broker(self, empty: int) -> None:
        started = time.monotonic()
        self.broker.start()
        await until(self._broker_serves, PHASE_TIMEOUT_S, "the broker to serve")
        self.row.broker_start_s = round(time.monotonic() - started, 2)
        resident = _resident(self.broker)
        self.row.broker_bytes = round((resident - empty) / self.row.partitions, 1)
        self.row.broker_mb = _megabytes(resident)

    async def _combined_resident(self) -> int:
        """Run one voter as voter and broker in one process. Return its resident memory once it serves as both."""
        voter = self.cluster.voters[self.combined_id]
        await asyncio.to_thread(voter.stop)
        # A broker that is left over from the time before would lead the new topics as well: it is fenced by its orderly stop.
        addresses = self.cluster.voter_addresses
        command = ["-m", "brokerd", "run", "--combined", "--listen", self.combined_address]
        command += ["--quorum-listen", addresses[self.combined_id], "--cluster-id", CLUSTER_ID]
        command += ["--voters", ",".join(f"{node_id}@{address}" for node_id, address in addresses.items())]
        command += ["--data-dir", str(self.cluster.data_directory(voter)), "--node-id", str(self.combined_id)]
        combined = Process("combined", command, self.cluster.directory / "combined.log")
        combined.start()
        try:
            await until(self._combined_serves, PHASE_TIMEOUT_S, "the combined process to serve")
            return _resident(combined)
        except BaseException:
            sys.stderr.write(combined.log_tail())
            raise
        finally:
            await asyncio.to_thread(combined.stop)
            voter.start()
            await until(lambda: self.voters.is_serving(self.combined_id), PHASE_TIMEOUT_S, "the voter to serve")
            await self._wait_for(self.combined_id)

    async def _combined_serves(self) -> bool:
        return await is_serving_at(self.combined_address)

    async def _broker_serves(self) -> bool:
        return await is_serving_at(next(iter(self.cluster.broker_addresses.values())))

    async def _fail_over(self, empty: int) -> None:
        """Kill the leader, commit a change, and start it again."""
        leader_id = (await self.voters.quorum()).leader_id
        process = self.cluster.voters[leader_id]
        process.kill()
        started = time.monotonic()
        await self.voters.change([topic_name(0)], "after the leader")
        self.row.failover_s = round(time.monotonic() - started, 2)
        await self.brokers.wait_unfenced()
        log_bytes = process.log_path.stat().st_size
        high_watermark = (await self.voters.quorum()).high_watermark
        started = time.monotonic()
        process.start()
        await until(lambda: self.voters.is_serving(leader_id), PHASE_TIMEOUT_S, "the voter to serve")
        await self._wait_for(leader_id)
        self.row.restart_s = round(time.monotonic() - started, 2)
        offsets = re.findall(r"event=image_open metadata_offset=(\d+)", process.log_path.read_text()[log_bytes:])
        self.row.restart_replayed_records = max(0, high_watermark - int(offsets[-1]))
        resident = _resident(process)
        self.row.restarted_voter_bytes = round((resident - empty) / self.row.partitions, 1)
        self.row.restarted_voter_mb = _megabytes(resident)

    async def _snapshot(self) -> None:
        """Grow the log until every voter makes a snapshot. The slowest snapshot counts."""
        topics = [topic_name(number) for number in range(min(FILLER_TOPICS, self.row.partitions // 100))]
        before = self._snapshots()
        for number in range(FILLER_BYTES // (FILLER_VALUE_BYTES * len(topics)) + 1):
            await self.voters.change(topics, f"{number:08d}" + "f" * (FILLER_VALUE_BYTES - 8))
        await self.voters.change(topics, None)

        async def made() -> bool:
            return all(len(self._snapshots()[node_id]) > len(before[node_id]) for node_id in before)

        await until(made, PHASE_TIMEOUT_S, "snapshots")
        self.row.snapshot_s = max(max(times) for times in self._snapshots().values()) / 1_000

    def _snapshots(self) -> dict[int, list[int]]:
        return {
            node_id: [
                int(each)
                for each in re.findall(r"event=snapshot_made .* duration_ms=(\d+)", process.log_path.read_text())
            ]
            for node_id, process in self.cluster.voters.items()
        }

    async def _catch_up(self) -> None:
        """Kill a follower, wipe it, and start it. Measure when it is an observer with everything, and when it is a voter."""
        leader_id = (await self.voters.quorum()).leader_id
        node_id = next(each for each in self.cluster.voters if each != leader_id)
        process = self.cluster.voters[node_id]
        process.kill()
        shutil.rmtree(self.cluster.directory / process.name)
        started = time.monotonic()
        process.start()
        await self._wait_for(node_id, votes=False)
        self.row.catch_up_s = round(time.monotonic() - started, 2)
        await self._wait_for(node_id, votes=True)

    async def _lose_a_broker(self, created: Created) -> None:
        await self.brokers.wait_unfenced()
        self.row.lost_partitions = created.replicas[self.brokers.victim_id]
        before = await self.voters.quorum()
        self.row.fence_s, self.row.fence_leader_us = await self._lose()
        await self._check_leaders(created, led=self.row.replication_factor > 1)
        middle = await self.voters.quorum()
        started = time.monotonic()
        await self.brokers.restore()
        if self.row.replication_factor == 1:
            await self._wait_for_records(middle.high_watermark)
        self.row.return_s = round(time.monotonic() - started, 2)
        self.row.elections = (await self.voters.quorum()).quorum_epoch - before.quorum_epoch

    async def _move_leaders(self, created: Created) -> None:
        added = await ReplicaAdder(self.voters, self.brokers, count=REPLICAS_TO_MOVE).add(created.topics)
        assert added == self.row.lost_partitions, (
            f"{added} partitions have more replicas, not {self.row.lost_partitions}"
        )
        self._say("replicas added")
        before = await self.voters.quorum()
        self.row.moved_s, self.row.moved_leader_us = await self._lose()
        await self._check_leaders(created, led=True)
        self.row.elections += (await self.voters.quorum()).quorum_epoch - before.quorum_epoch

    async def _lose(self) -> tuple[float, float]:
        """Lose the broker. Return seconds until all is decided, and the quorum leader's CPU microseconds per partition."""
        before = await self.voters.quorum()
        leader = psutil.Process(self.cluster.voters[before.leader_id].pid)
        started, used = time.monotonic(), leader.cpu_times()
        await self.brokers.lose()
        await self._wait_for_records(before.high_watermark)
        took, now = time.monotonic() - started, leader.cpu_times()
        cpu_s = now.user + now.system - used.user - used.system
        return round(took, 2), round(cpu_s / self.row.lost_partitions * 1e6, 1)

    async def _wait_for_records(self, offset: int) -> None:
        """Wait until there is a record for each lost partition. At least one more record is about the fencing of the broker."""

        async def decided() -> bool:
            return (await self.voters.quorum()).high_watermark > offset + self.row.lost_partitions

        await until(decided, PHASE_TIMEOUT_S, f"{self.row.lost_partitions} partitions to be decided")

    async def _check_leaders(self, created: Created, *, led: bool) -> None:
        for number in (0, created.topics // 2, created.topics - 1):
            leaders = await self.voters.leader_of(topic_name(number))
            assert self.brokers.victim_id not in leaders.values(), f"the lost broker leads in {topic_name(number)}"
            assert not led or None not in leaders.values(), f"{topic_name(number)} has partitions without a leader"


def _resident(process: Process) -> int:
    return psutil.Process(process.pid).memory_info().rss


def _megabytes(resident: int) -> float:
    return round(resident / 1e6, 1)


COLUMNS = (
    ("partitions", "partitions", ""),
    ("replicas of each", "replication_factor", ""),
    ("creation, s", "create_s", ""),
    ("creation, us a partition", "create_us_per_partition", "no worse than linear"),
    ("voter, B a partition", "voter_bytes", "<= 300"),
    ("voter after a restart, B a partition", "restarted_voter_bytes", "<= 300"),
    ("broker, B a partition", "broker_bytes", "<= 300"),
    ("voter and broker in one process, B a partition", "combined_bytes", "<= 300"),
    ("voter in all, MB", "voter_mb", ""),
    ("voter after a restart in all, MB", "restarted_voter_mb", ""),
    ("broker in all, MB", "broker_mb", ""),
    ("voter and broker in one process in all, MB", "combined_mb", ""),
    ("broker to serving, s", "broker_start_s", ""),
    ("voter restart to serving, s", "restart_s", "< 3"),
    ("records replayed by it", "restart_replayed_records", ""),
    ("failover to first commit, s", "failover_s", "< 3"),
    ("snapshot, s", "snapshot_s", "< 1"),
    ("catch-up of an empty voter, s", "catch_up_s", "stated"),
    ("partitions of the lost broker", "lost_partitions", ""),
    ("broker lost until all decided, s", "fence_s", "< 15"),
    ("processor time of the leader, us a partition", "fence_leader_us", ""),
    ("broker back until all decided, s", "return_s", ""),
    ("broker lost until others lead, 3 replicas, s", "moved_s", "< 15"),
    ("processor time of the leader, us a partition", "moved_leader_us", ""),
    ("quorum elections meanwhile", "elections", "0"),
)


def markdown(rows: Sequence[Row]) -> str:
    """Return the table: a line for each figure, a column for each size."""
    lines = [
        "| figure | demanded | " + " | ".join(f"{row.partitions:,}" for row in rows) + " |",
        "|---|---|" + "---:|" * len(rows),
    ]
    for title, name, demanded in COLUMNS[1:]:
        lines.append(f"| {title} | {demanded} | " + " | ".join(f"{getattr(row, name):,}" for row in rows) + " |")
    return "\n".join(lines) + "\n"


def misses(rows: Sequence[Row]) -> list[str]:
    """Return the demands that were not met. Memory counts at the largest size, where the base memory of a process matters least."""
    found: list[str] = []
    for row in rows:
        limits = {"restart_s": 3, "failover_s": 3, "snapshot_s": 1, "fence_s": 15, "moved_s": 15, "elections": 0}
        if row.partitions == max(each.partitions for each in rows):
            limits |= {"voter_bytes": 300, "restarted_voter_bytes": 300, "broker_bytes": 300, "combined_bytes": 300}
        found += [
            f"{row.partitions}: {name} {getattr(row, name)} > {most}"
            for name, most in limits.items()
            if getattr(row, name) > most
        ]
    return found


async def run(sizes: Sequence[int], directory: Path | None) -> list[Row]:
    """Measure every size."""
    rows: list[Row] = []
    for partitions in sizes:
        with tempfile.TemporaryDirectory(prefix="lograft-scale-", dir=directory) as data:
            work = Run(Path(data), partitions)
            try:
                rows.append(await work.measure())
            except BaseException:
                sys.stderr.write(work.cluster.logs())
                raise
            finally:
                await work.brokers.stop()
                work.cluster.kill()
        sys.stdout.write(f"{rows[-1]}\n")
        sys.stdout.flush()
    return rows


def main() -> int:
    """Run the command line. Return 2 if a figure is missed."""
    parser = argparse.ArgumentParser(prog="benchmarks.scale_run", description="The quorum with many partitions")
    parser.add_argument("--partitions", type=int, nargs="+", default=SIZES, help="sizes, in turns")
    parser.add_argument("--directory", type=Path, default=None, help="where the data goes; default: the usual place")
    parser.add_argument("--no-results", action="store_true", help="do not write benchmarks/results/scale.*")
    options = parser.parse_args()
    rows = sorted(asyncio.run(run(options.partitions, options.directory)), key=lambda row: row.partitions)
    sys.stdout.write(markdown(rows))
    if not options.no_results:
        (RESULTS / "scale.json").write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")
        (RESULTS / "scale.md").write_text(markdown(rows))
    for miss in misses(rows):
        sys.stdout.write(f"missed: {miss}\n")
    return 2 if misses(rows) else 0


if __name__ == "__main__":
    sys.exit(main())
