# SPDX-License-Identifier: Apache-2.0
"""`make bench-quorum`: metadata changes of three voters beside puts of three members of etcd, in the same run.

Both run as processes on loopback and sync every change to the same disk before they answer. One client program calls both. A call sends
the bytes of a prepared request over a bare grpc.aio channel to the leader, so the client costs the same. A change is AlterConfigs with
one value of 256 B (the description of a topic); a put has a value of 256 B. Rounds are taken in turns.

Creating topics needs a broker. While the broker runs, it follows every change, and no reader of etcd does that; these rows are stated
only. The comparison is between three voters and three members, after the broker has stopped.

etcd is not part of this project. `--etcd` names its program (Debian: package etcd-server, 3.4), or it is found in the PATH. Without it
only Lograft's figures are shown, and nothing is compared.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path

import grpc
import grpc.aio
import uvloop
from lograft import Admin
from lograft.v1 import admin_pb2

from benchmarks.results_table import Result, absolute, compare, markdown
from integration_tests.harness.cluster import ADMIN_TIMEOUT_MS, HOST, Cluster
from integration_tests.harness.wait import wait_for
from metaquorum.testing.ports import free_port

VALUE_BYTES = 256
"""Bytes of the value of a change or a put."""

KEYS = 64
"""Topics, or keys of etcd, that are changed in turns."""

BATCH_CHANGES = 16
"""Changes in one request of the batched row."""

ROUND_S = 3.0
"""Seconds of one round of one measure."""

START_TIMEOUT_S = 30.0
CALL_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Calls:
    """A workload: requests that are sent in turns to one address.

    Attributes:
        address: `host:port` of the leader.
        method: full name of the method.
        requests: serialized requests.
        entries: changes in each request.
    """

    address: str
    method: str
    requests: tuple[bytes, ...]
    entries: int = 1


def measure(calls: Calls, client_count: int) -> float:
    """Return the entries per second of `client_count` clients, each with one call under way."""
    return uvloop.run(_measure(calls, client_count))


async def _measure(calls: Calls, client_count: int) -> float:
    answered = 0
    async with grpc.aio.insecure_channel(calls.address) as channel:
        call = channel.unary_unary(calls.method)
        await call(calls.requests[0], timeout=CALL_TIMEOUT_S)
        started = time.perf_counter()
        deadline = started + ROUND_S

        async def client(number: int) -> None:
            nonlocal answered
            while time.perf_counter() < deadline:
                await call(calls.requests[number % len(calls.requests)], timeout=CALL_TIMEOUT_S)
                answered += 1
                number += client_count

        await asyncio.gather(*(client(number) for number in range(client_count)))
        return answered * calls.entries / (time.perf_counter() - started)


@contextlib.contextmanager
def lograft_calls(directory: Path) -> Generator[tuple[Calls, Calls, Cluster]]:
    """Run three voters and a broker with `KEYS` topics. Yields the calls of one change each, and of `BATCH_CHANGES`."""
    with Cluster(directory, voter_count=3, broker_count=1) as cluster:
        with Admin(cluster.bootstrap, request_timeout_ms=ADMIN_TIMEOUT_MS) as admin:
            topics = [f"topic-{number:03d}" for number in range(KEYS)]
            for topic in topics:
                admin.create_topic(topic)
            quorum = admin.describe_quorum()
        assert quorum.leader_id is not None, "the quorum has a leader"
        address = cluster.admin_addresses[quorum.leader_id]
        method = "/lograft.v1.AdminService/AlterConfigs"
        single = tuple(_alter([topic]) for topic in topics)
        batched = tuple(_alter(topics[start : start + BATCH_CHANGES]) for start in range(0, KEYS, BATCH_CHANGES))
        yield (
            Calls(address=address, method=method, requests=single),
            Calls(address=address, method=method, requests=batched, entries=BATCH_CHANGES),
            cluster,
        )


def _alter(topics: list[str]) -> bytes:
    value = "v" * VALUE_BYTES
    request = admin_pb2.AlterConfigsRequest()
    for topic in topics:
        changes = request.resources.add()
        changes.resource.type = admin_pb2.CONFIG_RESOURCE_TYPE_TOPIC
        changes.resource.name = topic
        changes.changes.add(name="description", value=value)
    return request.SerializeToString()


@contextlib.contextmanager
def etcd_calls(program: str, directory: Path) -> Generator[Calls]:
    """Run three members of etcd. Yields the calls of one put each, to the leader."""
    peers = {f"m{number}": f"http://{HOST}:{free_port()}" for number in range(3)}
    clients = {name: f"{HOST}:{free_port()}" for name in peers}
    initial = ",".join(f"{name}={url}" for name, url in peers.items())
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for name, url in peers.items():
            with (directory / f"{name}.log").open("wb") as log:
                arguments = [program, "--name", name, "--data-dir", str(directory / name)]
                arguments += [
                    "--listen-peer-urls",
                    url,
                    "--initial-advertise-peer-urls",
                    url,
                    "--initial-cluster",
                    initial,
                ]
                client_url = f"http://{clients[name]}"
                arguments += ["--listen-client-urls", client_url, "--advertise-client-urls", client_url]
                processes.append(subprocess.Popen(arguments, stdout=log, stderr=log))
        address = wait_for(lambda: _etcd_leader(clients), timeout_s=START_TIMEOUT_S, what="etcd to elect a leader")
        requests = tuple(_put(b"key-%03d" % number) for number in range(KEYS))
        yield Calls(address=address, method="/etcdserverpb.KV/Put", requests=requests)
    finally:
        for process in processes:
            process.kill()
            process.wait()


def _put(key: bytes) -> bytes:
    """Return a serialized etcdserverpb.PutRequest: key is field 1, value field 2."""
    value = b"v" * VALUE_BYTES
    return b"\x0a" + bytes([len(key)]) + key + b"\x12\x80\x02" + value


def _etcd_leader(clients: dict[str, str]) -> str | None:
    """Return the client address of the leader: the member whose own id is the leader's id in its StatusResponse."""
    for address in clients.values():
        with grpc.insecure_channel(address) as channel:
            try:
                answer = channel.unary_unary("/etcdserverpb.Maintenance/Status")(b"", timeout=1.0)
            except grpc.RpcError:
                return None
            fields = _varints(answer)
            header = fields.get(1)
            leader = fields.get(4)
            if isinstance(header, bytes) and leader and _varints(header).get(2) == leader:
                return address
    return None


def _varints(message: bytes) -> dict[int, int | bytes]:
    """Parse the varint and bytes fields of a protobuf message. Of a repeated field number the last one counts."""
    fields: dict[int, int | bytes] = {}
    position = 0

    def varint() -> int:
        nonlocal position
        number = shift = 0
        while True:
            byte = message[position]
            position += 1
            number |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return number

    while position < len(message):
        tag = varint()
        if tag & 7 == 0:
            fields[tag >> 3] = varint()
        else:
            length = varint()
            fields[tag >> 3] = message[position : position + length]
            position += length
    return fields


def run(etcd: str | None, rounds: int) -> list[Result]:
    """Measure every row."""
    rows = (("1 client", 1, 0.5), ("32 clients", 32, 0.4))
    beside = "with a broker that follows"
    with contextlib.ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="lograft-bench-")))
        ours, batched, cluster = stack.enter_context(lograft_calls(directory))
        puts = None if etcd is None else stack.enter_context(etcd_calls(etcd, directory))
        results: list[Result] = []
        for name, client_count, _ in rows:
            measured, theirs = _turns(ours, puts, client_count, rounds)
            results.append(_result(f"AlterConfigs of 256 B, {name}, {beside}", measured, theirs, None))
        for broker in cluster.brokers.values():
            broker.stop()
        for name, client_count, at_least in rows:
            measured, theirs = _turns(ours, puts, client_count, rounds)
            results.append(_result(f"AlterConfigs of 256 B, {name}", measured, theirs, at_least))
        measured, theirs = _turns(batched, puts, 32, rounds)
        results.append(_result(f"AlterConfigs of {BATCH_CHANGES} x 256 B, 32 clients", measured, theirs, 2.0))
        return results


def _turns(ours: Calls, puts: Calls | None, client_count: int, rounds: int) -> tuple[list[float], list[float]]:
    """Measure in turns, without the first round of each."""
    measured: list[float] = []
    theirs: list[float] = []
    for _ in range(rounds + 1):
        measured.append(measure(ours, client_count))
        if puts is not None:
            theirs.append(measure(puts, client_count))
    return measured[1:], theirs[1:]


def _result(name: str, measured: list[float], theirs: list[float], at_least: float | None) -> Result:
    if not theirs:
        return absolute(name, "entries/s", measured, note="etcd was not there to compare with")
    return compare(name, "entries/s", measured, theirs, at_least=at_least, note="ceiling: etcd, one put an entry")


def main() -> int:
    """Run the command line. Return 2 if a row misses its figure."""
    parser = argparse.ArgumentParser(prog="benchmarks.quorum_run", description="Changes of metadata beside etcd")
    parser.add_argument("--etcd", default=shutil.which("etcd"), help="program of etcd; default: the one in the PATH")
    parser.add_argument("--rounds", type=int, default=5, help="rounds that count")
    options = parser.parse_args()
    results = run(options.etcd, options.rounds)
    sys.stdout.write(markdown(results))
    return 0 if all(result.met for result in results) else 2


if __name__ == "__main__":
    sys.exit(main())
