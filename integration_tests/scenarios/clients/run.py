# SPDX-License-Identifier: Apache-2.0
"""Run the Go, Java and Node clients against one `lograft dev`, through a proxy that forgets their connections between two steps.

    python -m integration_tests.scenarios.clients.run [--require-all]

Starts the server on a free loopback port with a fresh data directory, gives it one topic of zstd batches written by the
Python SDK, builds every client whose toolchain is there, runs it, and prints one table. A missing toolchain is NOT RUN,
or a failure with --require-all.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import tempfile
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from lograft import Admin, Producer
from lograft.types import ConfigResource

from integration_tests.harness.cluster import DevServer
from integration_tests.harness.faults.forgetful_proxy import ForgetfulProxy
from integration_tests.scenarios.clients.toolchains import CLIENTS, BuildError, Client, run_bounded

CLIENT_TIMEOUT_S = 120.0
AGAIN_PATTERN = re.compile(r"dead connection: read again after (\d+\.\d) s")
GO_ON_S_MAX = 25.0
"""Maximum seconds until a client works again after its connection died: 19 s by its channel options, the rest for a busy machine."""
WATCH_INTERVAL_S = 0.02
ZSTD_TOPIC = "clients-zstd"
ZSTD_RECORD_COUNT = 500
PASSED, FAILED, NOT_RUN = "PASS", "FAIL", "NOT RUN"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The result of one client."""

    client: str
    result: str
    seconds: float = 0.0
    note: str = ""


def write_zstd_topic(address: str) -> None:
    """Write one topic of zstd batches, which the clients must inflate."""
    with Admin(address) as admin:
        # The timestamps of the clients' records are old, and a client that waits for its connection gives retention time to remove
        # them.
        admin.alter_configs({ConfigResource.cluster(): {"retention.ms": "-1"}})
        admin.create_topic(ZSTD_TOPIC, partition_count=1)
    with Producer(address, codec="zstd") as producer:
        for number in range(ZSTD_RECORD_COUNT):
            key = None if number % 7 == 0 else f"key-{number}".encode()
            producer.send(
                ZSTD_TOPIC, f"value {number} ".encode() * 5, key=key, headers=[("number", str(number).encode())]
            )
        producer.flush()


@contextmanager
def forgetting(proxy: ForgetfulProxy, path: Path) -> Generator[None]:
    """Kill connections in both directions whenever a client creates the file. The file is removed when they are dead."""
    is_over = threading.Event()

    def watch() -> None:
        while not is_over.wait(WATCH_INTERVAL_S):
            if path.exists():
                proxy.forget()
                path.unlink()

    watcher = threading.Thread(target=watch, name="forgetting")
    watcher.start()
    try:
        yield
    finally:
        is_over.set()
        watcher.join()


def run_client(client: Client, proxy: ForgetfulProxy, directory: Path) -> Outcome:
    """Build one client and run it. Its output goes to standard output."""
    started = time.monotonic()
    try:
        built = client.build()
    except BuildError as error:
        print(error)
        return Outcome(client=client.name, result=FAILED, note="the build failed")
    build_seconds = time.monotonic() - started
    command = [*client.run_command, proxy.address, ZSTD_TOPIC]
    wish = directory / f"forget-{client.name}"
    environment = {**os.environ, "NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1", "LOGRAFT_FORGET": str(wish)}
    try:
        with forgetting(proxy, wish):
            done = run_bounded(command, directory=client.directory, environment=environment, timeout_s=CLIENT_TIMEOUT_S)
    except TimeoutError as error:
        return Outcome(client=client.name, result=FAILED, note=str(error))
    for line in done.stdout.splitlines():
        print(f"{client.name:5} | {line}", flush=True)
    again = AGAIN_PATTERN.search(done.stdout)
    is_in_time = again is not None and float(again[1]) <= GO_ON_S_MAX
    passed = done.returncode == 0 and done.stdout.rstrip().endswith(PASSED) and is_in_time
    went_on = f"went on {again[1]} s after its connection had died" if again else "was not tried with a dead connection"
    return Outcome(
        client=client.name,
        result=PASSED if passed else FAILED,
        seconds=time.monotonic() - started - build_seconds,
        note="; ".join(
            (
                *((f"built in {build_seconds:.0f} s",) if built else ()),
                *(() if passed else (f"exit status {done.returncode}",)),
                went_on,
            )
        ),
    )


def run_all(clients: tuple[Client, ...] = CLIENTS) -> list[Outcome]:
    """Run every client whose toolchain is installed. The server is started only if there is one."""
    missing = {client.name: client.missing() for client in clients}
    outcomes = [
        Outcome(client=client.name, result=NOT_RUN, note="; ".join(missing[client.name]))
        for client in clients
        if missing[client.name]
    ]
    usable = [client for client in clients if not missing[client.name]]
    if usable:
        with (
            tempfile.TemporaryDirectory(prefix="lograft-clients-") as directory,
            DevServer(Path(directory)) as server,
            ForgetfulProxy(server.bootstrap) as proxy,
        ):
            write_zstd_topic(server.bootstrap)
            outcomes += [run_client(client, proxy, Path(directory)) for client in usable]
    return sorted(outcomes, key=lambda outcome: outcome.client)


def table(outcomes: list[Outcome]) -> str:
    """Return the outcomes as text."""
    return "\n".join(f"{one.client:6} {one.result:8} {one.seconds:6.1f} s  {one.note}".rstrip() for one in outcomes)


def main() -> int:
    """Run all clients and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--require-all", action="store_true", help="fail when a toolchain is missing")
    bad = (FAILED, NOT_RUN) if parser.parse_args().require_all else (FAILED,)
    outcomes = run_all()
    print(table(outcomes))
    return 1 if any(outcome.result in bad for outcome in outcomes) else 0


if __name__ == "__main__":
    sys.exit(main())
