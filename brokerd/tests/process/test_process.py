# SPDX-License-Identifier: Apache-2.0
"""The commands as processes: ready line, signals, exit codes, one clear line for an error."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import grpc
import pytest
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from brokerd.tests.process.programs import append_and_read, read_ready, started
from brokerd.tests.support import WAIT_S
from metaquorum.replica.first_start import InitialVoter, format_with_voters

pytestmark = pytest.mark.process


def test_dev_serves_and_stops_on_sigterm(tmp_path: Path) -> None:
    """`brokerd dev` prints its address when it serves, and SIGTERM leads to a clean end with exit code 0."""
    with started("dev", "--port", "0", "--data-dir", str(tmp_path)) as process:
        before = time.monotonic()
        address = read_ready(process)
        assert time.monotonic() - before < WAIT_S
        assert append_and_read(address, b"x") == [b"x"]
        process.send_signal(signal.SIGTERM)
        assert process.wait(WAIT_S) == 0


@pytest.mark.parametrize("method", ["Replicate", "FetchRange"])
def test_public_port_serves_no_internal_method(tmp_path: Path, method: str) -> None:
    """A client that calls a method between brokers there hears that it does not exist. The service is not listed either."""
    name = "lograft.internal.v1.ReplicationService"
    with started("dev", "--port", "0", "--data-dir", str(tmp_path)) as process:
        with grpc.insecure_channel(read_ready(process), options=(("grpc.enable_http_proxy", 0),)) as channel:
            with pytest.raises(grpc.RpcError) as caught:
                next(iter(channel.stream_stream(f"/{name}/{method}")(iter([b""]), timeout=WAIT_S)))
            assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
            listed = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo(
                iter([reflection_pb2.ServerReflectionRequest(list_services="")]), timeout=WAIT_S
            )
            services = {service.name for service in next(iter(listed)).list_services_response.service}
        process.send_signal(signal.SIGTERM)
        assert process.wait(WAIT_S) == 0
    assert not [each for each in services if each.startswith("lograft.internal.")]


def test_killed_process_loses_nothing_acknowledged(tmp_path: Path) -> None:
    """After kill -9 the next process has every acknowledged record, at its offset."""
    for round_number in range(2):
        with started("dev", "--port", "0", "--data-dir", str(tmp_path)) as process:
            address = read_ready(process)
            expected = [b"%d" % number for number in range(round_number + 1)]
            assert append_and_read(address, b"%d" % round_number) == expected
            process.kill()
            process.wait(WAIT_S)


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (("run", "--node-id", "1", "--data-dir", "DIR", "--quorum", "127.0.0.1:1"), 1, "not formatted"),
        (("run", "--node-id", "1", "--data-dir", "DIR"), 1, "--quorum"),
        (
            ("run", "--node-id", "1", "--data-dir", "DIR", "--quorum", "127.0.0.1:1", "--listen", "0.0.0.0:0"),
            1,
            "--insecure-plaintext",
        ),
        (("run", "--node-id", "1", "--data-dir", "DIR", "--quorum", "x"), 1, "x"),
        (("run", "--node-id", "1"), 2, "--data-dir"),
    ],
    ids=["unformatted", "no quorum", "plaintext", "bad address", "usage"],
)
def test_error_is_one_line_and_an_exit_code(tmp_path: Path, arguments: tuple[str, ...], code: int, text: str) -> None:
    """A start that cannot work ends with one clear line on stderr and without a trace."""
    filled = [str(tmp_path / "data") if argument == "DIR" else argument for argument in arguments]
    with started(*filled) as process:
        _, errors = process.communicate(timeout=WAIT_S)
        assert process.returncode == code
        assert text in errors
        assert "Traceback" not in errors
        if code == 1:
            assert errors.startswith("brokerd: error: ")
            assert errors.count("\n") == 1


def test_dev_names_the_directory_and_what_to_do_next(tmp_path: Path) -> None:
    """Two commands that work as they stand."""
    with started("dev", "--port", "0", "--data-dir", str(tmp_path)) as process:
        address = read_ready(process)
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(3)]
    assert str(tmp_path) in lines[0]
    assert f"lograft topics create events --partitions 3 --bootstrap {address}" in lines[1]
    assert f"lograft produce events --bootstrap {address}" in lines[2]


@pytest.mark.parametrize("node_id", [1, 2])
def test_dev_refuses_the_directory_of_a_cluster_with_other_voters(tmp_path: Path, node_id: int) -> None:
    """It used to wait for them, without a message."""
    voters = [
        InitialVoter(node_id=each, address=f"127.0.0.1:{each}", directory_id=each.to_bytes(16, "big"))
        for each in (1, 2, 3)
    ]
    path = tmp_path / "voter"
    format_with_voters(path, node_id=node_id, cluster_id="three", voters=voters)
    with started("dev", "--port", "0", "--data-dir", str(path)) as process:
        _, errors = process.communicate(timeout=WAIT_S)
        assert process.returncode == 1
    assert f"belongs to node {node_id} of cluster 'three' (voters: 1@127.0.0.1:1, 2@127.0.0.1:2" in errors
    assert errors.count("\n") == 1


@pytest.mark.parametrize("below", ["", "/data", "/more/data"])
def test_dev_says_that_a_data_directory_is_a_file_or_below_one(tmp_path: Path, below: str) -> None:
    """It shows a clear text, not the number of a system error."""
    path = tmp_path / "file"
    path.write_bytes(b"")
    with started("dev", "--port", "0", "--data-dir", f"{path}{below}") as process:
        _, errors = process.communicate(timeout=WAIT_S)
        assert process.returncode == 1
    assert f"{path}: it is a file, not a directory" in errors


def test_dev_keeps_logs_in_several_directories(tmp_path: Path) -> None:
    """`--data-dir` may be given several times. The partitions of the second directory exist after a restart."""
    directories = [str(tmp_path / name) for name in ("first", "second")]
    arguments = ["dev", "--port", "0", *(word for path in directories for word in ("--data-dir", path))]
    for expected in ([b"x"], [b"x", b"x"]):
        with started(*arguments) as process:
            assert append_and_read(read_ready(process), b"x") == expected
            process.send_signal(signal.SIGTERM)
            assert process.wait(WAIT_S) == 0
    assert (tmp_path / "second" / "meta.json").exists()
