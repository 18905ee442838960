# SPDX-License-Identifier: Apache-2.0
"""The command `metaquorum`: real processes, exit status, one clear line for every error."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import grpc
import pytest
from lograft.v1 import admin_pb2, admin_pb2_grpc

from metaquorum.__main__ import UsageError, parse_directory_id, parse_initial_voters
from metaquorum.process.settings import (
    Address,
    QuorumServerSettings,
    SettingsError,
    parse_address,
    parse_node_id,
    parse_voters,
)
from metaquorum.replica.first_start import read_initial_voters
from metaquorum.replica.quorum_node import SnapshotSettings
from metaquorum.testing.ports import free_ports
from storage.files.posix import PosixDisk

ROOT = Path(__file__).parents[3]
START_S = 60.0
STOP_S = 60.0
HEX = "00112233445566778899aabbccddeeff"


def command(*arguments: str, environment: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run the command to its end."""
    return subprocess.run(
        [sys.executable, "-m", "metaquorum", *arguments],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=START_S,
        env={**os.environ, **(environment or {})},
    )


def identity(directory: Path, node_id: int = 1, cluster_id: str = "c") -> list[str]:
    """Return the options that identify a node."""
    return ["--data-dir", str(directory), "--node-id", str(node_id), "--cluster-id", cluster_id]


def formatted(directory: Path, port: int, **changes: object) -> None:
    """Format a directory for a quorum of one."""
    done = command("format", *identity(directory, **changes), "--standalone", "--address", f"127.0.0.1:{port}")
    assert done.returncode == 0, done.stderr
    assert "formatted" in done.stdout


def one_line(done: subprocess.CompletedProcess[str], status: int, words: str) -> None:
    """Check that a command failed with a status and one line of explanation."""
    lines = [line for line in done.stderr.splitlines() if not line.startswith("time=")]
    assert done.returncode == status, done.stderr
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith("error: ")
    assert words in lines[0]


def wait_for_controller(address: str) -> None:
    """Wait until a server answers as the active controller."""
    with grpc.insecure_channel(address) as channel:
        stub = admin_pb2_grpc.AdminServiceStub(channel)
        deadline = time.monotonic() + START_S
        while True:
            try:
                stub.ListTopics(admin_pb2.ListTopicsRequest(), timeout=2, wait_for_ready=True)
            except grpc.RpcError:
                assert time.monotonic() < deadline, f"{address} never became the controller"
            else:
                return


@pytest.mark.process
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_run_serves_until_a_signal_and_ends_with_status_zero(tmp_path: Path, number: signal.Signals) -> None:
    """Format, run, ask, signal: an orderly stop exits with 0, and the directory can be used again."""
    port, admin_port = free_ports(2)
    formatted(tmp_path / "d", port)
    address, admin_address = f"127.0.0.1:{port}", f"127.0.0.1:{admin_port}"
    arguments = ["run", *identity(tmp_path / "d"), "--listen", address, "--voters", f"1@{address}"]
    arguments += ["--admin-listen", admin_address]
    for _ in range(2):
        process = subprocess.Popen(
            [sys.executable, "-m", "metaquorum", *arguments], cwd=ROOT, stderr=subprocess.PIPE, text=True
        )
        try:
            wait_for_controller(admin_address)
            process.send_signal(number)
            _, log = process.communicate(timeout=STOP_S)
        finally:
            process.kill()
        assert process.returncode == 0, log
        assert "event=server_stopped" in log
        assert "Traceback" not in log


@pytest.mark.process
def test_run_makes_and_keeps_snapshots_as_it_is_told(tmp_path: Path) -> None:
    """With a short interval and one snapshot to keep, the log soon begins at the newest snapshot, as DescribeQuorum shows."""
    port, admin_port = free_ports(2)
    formatted(tmp_path / "d", port)
    address, admin_address = f"127.0.0.1:{port}", f"127.0.0.1:{admin_port}"
    arguments = ["run", *identity(tmp_path / "d"), "--listen", address, "--voters", f"1@{address}"]
    arguments += ["--admin-listen", admin_address]
    arguments += ["--snapshot-log-bytes", "1", "--kept-snapshots", "1"]
    environment = {**os.environ, "LOGRAFT_SNAPSHOT_INTERVAL_MS": "600000"}
    process = subprocess.Popen(
        [sys.executable, "-m", "metaquorum", *arguments],
        cwd=ROOT,
        env=environment,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        wait_for_controller(admin_address)
        with grpc.insecure_channel(admin_address) as channel:
            stub = admin_pb2_grpc.AdminServiceStub(channel)
            deadline = time.monotonic() + START_S
            described = stub.DescribeQuorum(admin_pb2.DescribeQuorumRequest())
            while not described.log_start_offset:
                assert time.monotonic() < deadline, f"the log was never trimmed: {described}"
                described = stub.DescribeQuorum(admin_pb2.DescribeQuorumRequest())
        assert described.latest_snapshot.end_offset == described.log_start_offset <= described.high_watermark
        assert described.latest_snapshot.quorum_epoch == described.quorum_epoch
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=STOP_S) == 0
    finally:
        process.kill()
        process.communicate()
    for option in ("--snapshot-log-bytes", "--snapshot-interval-ms", "--kept-snapshots"):
        assert command("run", *identity(tmp_path / "d"), option, "0").returncode == 2


@pytest.mark.process
def test_run_takes_every_option_from_the_environment_and_waits_for_its_peers(tmp_path: Path) -> None:
    """Options are environment variables too; a first start that waits is ended by a signal with status 0."""
    ports = free_ports(2)
    environment = {
        "LOGRAFT_DATA_DIR": str(tmp_path / "d"),
        "LOGRAFT_NODE_ID": "1",
        "LOGRAFT_CLUSTER_ID": "c",
        "LOGRAFT_LISTEN": f"127.0.0.1:{ports[0]}",
        "LOGRAFT_ADVERTISE": f"localhost:{ports[0]}",
        "LOGRAFT_VOTERS": f"1@127.0.0.1:{ports[0]},2@127.0.0.1:{ports[1]}",
        "LOGRAFT_FIRST_START": "true",
    }
    process = subprocess.Popen(
        [sys.executable, "-m", "metaquorum", "run"],
        cwd=ROOT,
        env={**os.environ, **environment},
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    try:
        line = process.stderr.readline()
        assert "event=first_start_asks" in line, line
        process.send_signal(signal.SIGTERM)
        _, log = process.communicate(timeout=STOP_S)
    finally:
        process.kill()
    assert process.returncode == 0, log
    assert "event=server_stopped before=start" in log


@pytest.mark.process
def test_run_on_a_port_in_use_fails_with_one_line(tmp_path: Path) -> None:
    """Port in use: status 1 and the address."""
    port, admin_port = free_ports(2)
    address, admin_address = f"127.0.0.1:{port}", f"127.0.0.1:{admin_port}"
    formatted(tmp_path / "a", port)
    formatted(tmp_path / "b", port)
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "metaquorum",
            "run",
            *identity(tmp_path / "a"),
            "--listen",
            address,
            "--admin-listen",
            admin_address,
        ],
        cwd=ROOT,
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_for_controller(admin_address)
        one_line(
            command("run", *identity(tmp_path / "b"), "--listen", address),
            1,
            f"cannot listen on {address}: Address already in use",
        )
        one_line(command("run", *identity(tmp_path / "a"), "--listen", address), 1, str(tmp_path / "a"))
    finally:
        process.kill()
        process.wait()


@pytest.mark.process
def test_run_on_a_directory_that_is_not_its_own_fails_with_one_line(tmp_path: Path) -> None:
    """Unformatted, of another cluster, of another node: status 1 and the reason."""
    listen = ["--listen", "127.0.0.1:0"]
    one_line(command("run", *identity(tmp_path / "none"), *listen), 1, "format")
    formatted(tmp_path / "d", 1)
    one_line(command("run", *identity(tmp_path / "d", cluster_id="x"), *listen), 1, "cluster")
    one_line(command("run", *identity(tmp_path / "d", node_id=2), *listen), 1, "node")


@pytest.mark.process
def test_format_failures_are_one_line(tmp_path: Path) -> None:
    """Formatting twice, below a file, without a way, with both ways, with a bad id: each line has the reason."""
    address = ["--standalone", "--address", "127.0.0.1:1"]
    formatted(tmp_path / "d", 1)
    one_line(command("format", *identity(tmp_path / "d"), *address), 1, "formatted already")
    (tmp_path / "file").write_text("x")
    one_line(command("format", *identity(tmp_path / "file" / "d"), *address), 1, str(tmp_path / "file"))
    one_line(command("format", *identity(tmp_path / "e")), 2, "--standalone")
    one_line(command("format", *identity(tmp_path / "e"), "--standalone"), 2, "--address")
    voters = ["--initial-voters", f"1@127.0.0.1:1:{HEX}"]
    one_line(command("format", *identity(tmp_path / "e"), *address, *voters), 2, "--initial-voters")
    one_line(command("format", *identity(tmp_path / "e"), *address, "--directory-id", "xyz"), 2, "32 hexadecimal")
    one_line(command("format", *identity(tmp_path / "e", node_id=3), *voters), 1, "not among the initial voters")
    one_line(command("format", *identity(tmp_path / "e", cluster_id="a b"), *address), 1, "cluster id")
    one_line(command("format", *identity(tmp_path / "e"), *address, "--no-initial-voters"), 2, "--no-initial-voters")
    one_line(command("format", *identity(tmp_path / "e"), *address[1:], "--no-initial-voters"), 2, "--address")
    assert not (tmp_path / "e" / "meta.json").exists()
    assert command("format", *identity(tmp_path / "e"), *voters).returncode == 0
    assert HEX in (tmp_path / "e" / "meta.json").read_text()


@pytest.mark.process
def test_format_without_initial_voters_makes_an_observer(tmp_path: Path) -> None:
    """KIP-853 --no-initial-controllers: the node knows no voters, so it can only join an existing quorum."""
    assert command("format", *identity(tmp_path / "o"), "--no-initial-voters").returncode == 0
    metadata = tmp_path / "o" / "metadata"
    assert read_initial_voters(PosixDisk(), str(metadata)).voters == ()


@pytest.mark.process
def test_run_refuses_plaintext_on_a_reachable_address_and_python_without_assertions(tmp_path: Path) -> None:
    """Plaintext off loopback needs the flag; python -O is refused; a missing option is a usage error."""
    one_line(command("run", *identity(tmp_path / "d"), "--listen", "0.0.0.0:0"), 1, "--insecure-plaintext")
    optimised = subprocess.run(
        [sys.executable, "-O", "-m", "metaquorum", "run", *identity(tmp_path / "d")],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=START_S,
    )
    one_line(optimised, 1, "python -O")
    assert command("run", "--data-dir", str(tmp_path)).returncode == 2


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("127.0.0.1:9641", Address(host="127.0.0.1", port=9641)),
        (" localhost:0 ", Address(host="localhost", port=0)),
        ("[::1]:65535", Address(host="::1", port=65_535)),
        ("voter-0.quorum.svc:1", Address(host="voter-0.quorum.svc", port=1)),
    ],
)
def test_address_is_parsed_and_printed_back(text: str, expected: Address) -> None:
    """An address survives the way through text."""
    assert parse_address(text) == expected
    assert parse_address(str(expected)) == expected


@pytest.mark.parametrize(
    "text", ["", "host", "host:", ":1", "host:65536", "host:-1", "host:1x", "::1:5", "host:\uff11", "h:" + "9" * 5_000]
)
def test_address_that_is_none_is_refused(text: str) -> None:
    """The refusal shows the form of an address."""
    with pytest.raises(SettingsError, match="address"):
        parse_address(text)


@pytest.mark.parametrize(
    ("host", "loopback", "wildcard"),
    [
        ("127.0.0.1", True, False),
        ("127.9.9.9", True, False),
        ("::1", True, False),
        ("localhost", True, False),
        ("0.0.0.0", False, True),
        ("::", False, True),
        ("10.0.0.1", False, False),
        ("example.org", False, False),
    ],
)
def test_address_knows_who_can_reach_it(host: str, loopback: bool, wildcard: bool) -> None:
    """Loopback and wildcard addresses are recognized; names count as reachable."""
    address = Address(host=host, port=1)
    assert (address.is_loopback, address.is_wildcard) == (loopback, wildcard)


def test_voters_are_parsed() -> None:
    """A list of voters by node id; empty pieces and blanks do not matter."""
    assert parse_voters("1@127.0.0.1:5, 2@[::1]:6,") == {1: "127.0.0.1:5", 2: "[::1]:6"}
    assert parse_voters("") == {}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("127.0.0.1:5", "not id@host:port"),
        ("x@127.0.0.1:5", "node id"),
        ("-1@127.0.0.1:5", "node id"),
        ("1@127.0.0.1", "address"),
        ("1@127.0.0.1:0", "needs a port"),
        ("1@h:5,1@h:6", "named twice"),
        (",".join(f"{n}@h:1" for n in range(10)), "at most 9"),
    ],
)
def test_voters_that_are_malformed_are_refused(text: str, words: str) -> None:
    """Each mistake in a list of voters is named."""
    with pytest.raises(SettingsError, match=words):
        parse_voters(text)


@pytest.mark.parametrize("text", ["", "x", "1.0", "2147483648", "9" * 5_000])
def test_node_id_that_is_none_is_refused(text: str) -> None:
    """A node id is an integer of 31 bits."""
    with pytest.raises(SettingsError, match="node id"):
        parse_node_id(text)


def test_initial_voters_are_parsed() -> None:
    """Initial voters carry the id of their directory."""
    voters = parse_initial_voters(f"1@127.0.0.1:5:{HEX}, 2@[::1]:6:{HEX[::-1]}")
    assert [(voter.node_id, voter.address) for voter in voters] == [(1, "127.0.0.1:5"), (2, "[::1]:6")]
    assert [voter.directory_id.hex() for voter in voters] == [HEX, HEX[::-1]]
    assert parse_directory_id(HEX.upper()).hex() == HEX


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "names no voter"),
        ("1@x", "not id@host:port:directory-id"),
        ("1@127.0.0.1:5:abc", "32 hexadecimal"),
        (f"1@h:5:{HEX},1@h:6:{HEX}", "named twice"),
        (f"1@h:{HEX}", "address"),
    ],
)
def test_initial_voters_that_are_malformed_are_refused(text: str, words: str) -> None:
    """Each mistake in a list of initial voters is named."""
    with pytest.raises((UsageError, SettingsError), match=words):
        parse_initial_voters(text)


LOOPBACK = Address(host="127.0.0.1", port=9641)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"node_id": -1}, "node id -1"),
        ({"cluster_id": ""}, "cluster id"),
        ({"cluster_id": "-x"}, "cluster id"),
        ({"cluster_id": "x" * 65}, "cluster id"),
        ({"listen": Address(host="10.0.0.1", port=1)}, "insecure-plaintext"),
        ({"listen": Address(host="0.0.0.0", port=1), "insecure_plaintext": True}, "--advertise"),
        ({"advertise": Address(host="0.0.0.0", port=1)}, "no client can connect"),
        ({"advertise": Address(host="h", port=0)}, "no client can connect"),
        ({"first_start": True, "voters": {2: "h:1"}}, "not among the voters"),
        ({"snapshots": SnapshotSettings(kept=0)}, "at least 1"),
    ],
)
def test_settings_that_cannot_work_are_refused(changes: dict[str, object], words: str) -> None:
    """Each impossible setting is refused before any file or port is opened."""
    fields: dict[str, object] = {"node_id": 1, "cluster_id": "c", "listen": LOOPBACK, **changes}
    with pytest.raises(SettingsError, match=words):
        QuorumServerSettings(**fields).check()


def test_settings_that_can_work_are_accepted() -> None:
    """The usual ones, and a reachable address with the flag and an advertised name."""
    QuorumServerSettings(node_id=1, cluster_id="c", listen=LOOPBACK).check()
    QuorumServerSettings(
        node_id=1,
        cluster_id="c",
        listen=Address(host="0.0.0.0", port=9641),
        advertise=Address(host="voter-1", port=9641),
        voters={1: "voter-1:9641"},
        first_start=True,
        insecure_plaintext=True,
    ).check()
