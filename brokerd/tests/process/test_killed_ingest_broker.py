# SPDX-License-Identifier: Apache-2.0
"""A broker is killed while many ingests run: it coordinates some, and leads partitions of all. Each is published once, all of it."""

from __future__ import annotations

import asyncio
import subprocess
from contextlib import ExitStack
from pathlib import Path

import pytest
from lograft.v1 import ingest_pb2 as pb

from brokerd.tests.ingests.ingest_clients import Clients, Ingest
from brokerd.tests.process.programs import started
from brokerd.tests.process.test_killed_coordinator import LONG_S, three_replicas
from brokerd.tests.publishing.staging_clients import read_all
from metaquorum.replica.first_start import format_standalone
from metaquorum.testing.ports import free_ports
from metaquorum.tests.quorum_cluster import HOST

INGESTS = 24
TASKS = 2
PARTITIONS = 4
KILLED_AFTER = 6
"""Commits that are answered before the broker is killed."""


@pytest.mark.slow
@pytest.mark.process
async def test_killed_broker_leaves_every_ingest_whole_and_once(tmp_path: Path) -> None:
    """Clients repeat what was not answered; nobody commits twice, and nothing is lost that was answered."""
    quorum, *public = (f"{HOST}:{port}" for port in free_ports(4))
    format_standalone(tmp_path / "1", node_id=1, cluster_id="c", address=quorum)
    places = dict(enumerate(public, start=1))
    with ExitStack() as stack:
        processes: dict[int, subprocess.Popen[str]] = {}
        for node_id, place in places.items():
            role = ("--combined", "--quorum-listen", quorum) if node_id == 1 else ("--quorum", quorum)
            common = ("run", "--data-dir", str(tmp_path / str(node_id)), "--node-id", str(node_id), "--listen", place)
            identity = () if node_id == 1 else ("--cluster-id", "c")
            processes[node_id] = stack.enter_context(started(*common, *identity, *role))
        alive = dict(places)
        clients = Clients(alive.values)
        answered: dict[str, pb.IngestResult] = {}
        async with asyncio.timeout(2 * LONG_S):
            for place in places.values():
                await clients.at(place).channel.channel_ready()
            await three_replicas(clients.any)
            killed = (await clients.coordinator("i0")).broker_id
            killed = 2 if killed == 1 else killed

            async def run(number: int) -> None:
                ingest = Ingest(clients, f"i{number}")
                await ingest.open("t")
                attempts = [await ingest.attempt(task) for task in range(TASKS)]
                for attempt in attempts:
                    for partition in range(PARTITIONS):
                        for batch in range(3):
                            name = b"%d/%d/%d" % (number, attempt.task, batch)
                            await attempt.stage("t", partition, name + b"/0", name + b"/1")
                    await attempt.seal()
                answered[ingest.ingest_id] = (await ingest.commit(*attempts)).result
                if len(answered) == KILLED_AFTER:
                    del alive[killed]
                    processes[killed].kill()

            await asyncio.gather(*map(run, range(INGESTS)))
            assert killed not in alive
            for partition in range(PARTITIONS):
                values = await read_all(clients.any, "t", partition)
                assert len(values) == len(set(values)) == INGESTS * TASKS * 6
                for number in range(INGESTS):
                    own = [each for each in values if each.startswith(b"%d/" % number)]
                    assert own == sorted(own), "by task, then by sequence"
                    part = answered[f"i{number}"].parts[partition]
                    where = values[part.first_offset : part.end_offset]
                    assert [each for each in where if each in set(own)] == own
        await clients.close()
