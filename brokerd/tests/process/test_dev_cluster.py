# SPDX-License-Identifier: Apache-2.0
"""`lograft dev --nodes`: real processes, metrics, failover, and no process that outlives the command."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path

import pytest

from brokerd.process import dev_cluster
from brokerd.process.dev_cluster import STATE_FILE, DevClusterError, free_ports
from brokerd.tests.process.programs import started
from brokerd.tests.support import WAIT_S
from metaquorum.testing.ports import free_port

pytestmark = pytest.mark.process

READY = re.compile(r"lograft dev: ready on (\S+)")
NODE = re.compile(r"  node (\d): (\S+), pid (\d+), log (\S+)")
METRICS = re.compile(r"metrics (http://\S+)")
FIRST_LINES = 10
"""Lines up to the one with the data directory and the next step."""


def read_announcement(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    text = "".join(process.stdout.readline() for _ in range(FIRST_LINES))
    assert READY.match(text), (text, process.communicate(timeout=WAIT_S))
    return text


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    # A killed process without a parent that waits for it is a zombie until init takes it.
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"


def wait_gone(pids: list[int]) -> None:
    deadline_s = time.monotonic() + WAIT_S
    pause = threading.Event()
    while any(map(is_alive, pids)):
        assert time.monotonic() < deadline_s, "a server outlives the command"
        pause.wait(0.05)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_all_servers_end_with_the_command(tmp_path: Path, number: signal.Signals) -> None:
    """By Ctrl-C, SIGTERM, and even if the command itself is killed."""
    with started("dev", "--nodes", "3", "--port", "0", "--data-dir", str(tmp_path / "data")) as process:
        text = read_announcement(process)
        nodes = NODE.findall(text)
        assert [each[0] for each in nodes] == ["1", "2", "3"]
        pids = [int(each[2]) for each in nodes]
        assert all(map(is_alive, pids))
        for url in METRICS.findall(text):
            with urllib.request.urlopen(url, timeout=WAIT_S) as answer:
                assert b"lograft_" in answer.read()
        process.send_signal(number)
        status = process.wait(WAIT_S)
        assert status == (0 if number is not signal.SIGKILL else -signal.SIGKILL)
        wait_gone(pids)


def test_a_killed_server_is_told_and_the_directory_is_used_again(tmp_path: Path) -> None:
    """The others go on. The next start has the same cluster, and refuses another number of nodes."""
    data = tmp_path / "data"
    arguments = ("dev", "--port", "0", "--data-dir", str(data))
    with started(*arguments, "--nodes", "3") as process:
        nodes = NODE.findall(read_announcement(process))
        os.kill(int(nodes[1][2]), signal.SIGKILL)
        assert process.stderr is not None
        assert "node 2 was ended by SIGKILL" in process.stderr.readline()
        process.terminate()
        assert process.wait(WAIT_S) == 0
    shape = (data / STATE_FILE).read_text()
    with started(*arguments, "--nodes", "2") as process:
        _, err = process.communicate(timeout=WAIT_S)
        assert (process.returncode, "a cluster of 3 nodes, not 2" in err) == (1, True)
    with started(*arguments, "--nodes", "3") as process:
        read_announcement(process)
        process.terminate()
        assert process.wait(WAIT_S) == 0
    assert (data / STATE_FILE).read_text() == shape


def test_a_port_in_use_and_a_foreign_directory_are_refused(tmp_path: Path) -> None:
    """In one line, before any server is started."""
    (tmp_path / "something").write_text("else")
    with started("dev", "--nodes", "3", "--port", "0", "--data-dir", str(tmp_path)) as process:
        _, err = process.communicate(timeout=WAIT_S)
        assert (process.returncode, "has something else in it" in err) == (1, True)
    with started("dev", "--port", "0") as first:
        assert first.stdout is not None
        port = first.stdout.readline().rpartition(":")[2].strip()
        with started("dev", "--nodes", "3", "--port", port) as process:
            _, err = process.communicate(timeout=WAIT_S)
            assert (process.returncode, f"port {port}" in err) == (1, True)


def test_chosen_ports_are_free_and_no_client_gets_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """A directory keeps the ports of its quorum, so they must be free again at its next start."""
    if sys.platform == "linux":
        first_of_clients = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
        assert max(dev_cluster.PORTS) < first_of_clients
    with socket.socket() as taken:
        port = free_port()
        taken.bind((dev_cluster.HOST, port))
        ports = range(port - 40, port + 1)
        monkeypatch.setattr(dev_cluster, "PORTS", ports)
        monkeypatch.setattr(dev_cluster, "PORT_ATTEMPTS_MAX", len(ports))
        found = free_ports(3, chosen=ports[:20])
        assert len(set(found)) == 3
        assert set(found) <= {*ports[20:]} - {port}
        with pytest.raises(DevClusterError, match="21 are needed"):
            free_ports(21, chosen=ports[:20])
