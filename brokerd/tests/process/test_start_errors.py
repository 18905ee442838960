# SPDX-License-Identifier: Apache-2.0
"""What prevents a broker from starting: each is a typed error whose text says what to do, and nothing is left behind."""

from __future__ import annotations

import dataclasses
import socket
from pathlib import Path

import pytest

from brokerd.errors import AddressInUseError, ClusterMismatchError
from brokerd.process.server import BrokerServer
from brokerd.process.settings import BrokerSettings, CombinedSettings
from brokerd.process.standalone import standalone_settings
from brokerd.tests.support import WAIT_S, running_broker
from metaquorum.process.settings import Address, SettingsError
from storage.errors import (
    DirectoryLockedError,
    DirectoryNotWritableError,
    UnformattedDirectoryError,
    WrongClusterError,
    WrongNodeError,
)

LOOPBACK = Address(host="127.0.0.1", port=0)


async def start_and_stop(settings: BrokerSettings) -> None:
    server = BrokerServer(settings)
    await server.start()
    await server.stop()


def observer_settings(data_directory: Path, **fields: object) -> BrokerSettings:
    values: dict[str, object] = {
        "data_directory": data_directory,
        "node_id": 5,
        "listen": LOOPBACK,
        "quorum_addresses": ("127.0.0.1:1",),
    }
    return BrokerSettings(**(values | fields))  # type: ignore[arg-type]


async def test_unformatted_directory_is_refused(tmp_path: Path) -> None:
    """A missing directory is formatted only when the cluster is named, and one with files in it never."""
    with pytest.raises(UnformattedDirectoryError, match="--cluster-id"):
        await start_and_stop(observer_settings(tmp_path / "missing"))
    assert not (tmp_path / "missing").exists()
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "thesis.txt").write_text("do not touch")
    with pytest.raises(UnformattedDirectoryError, match="holds files"):
        await start_and_stop(observer_settings(tmp_path / "used", cluster_id="c"))
    combined = CombinedSettings(quorum_listen=LOOPBACK)
    settings = observer_settings(tmp_path / "missing", quorum_addresses=(), combined=combined, cluster_id="c")
    with pytest.raises(UnformattedDirectoryError):
        await start_and_stop(settings)


async def test_directory_of_another_cluster_or_node_is_refused(tmp_path: Path) -> None:
    """The identity in the directory is compared before anything else."""
    settings = standalone_settings(tmp_path, port=0)
    with pytest.raises(WrongClusterError):
        await start_and_stop(dataclasses.replace(settings, cluster_id="elsewhere"))
    with pytest.raises(WrongNodeError):
        await start_and_stop(dataclasses.replace(settings, node_id=9))


async def test_directory_in_use_is_refused(tmp_path: Path) -> None:
    """Two processes never write one directory. The running one continues."""
    async with running_broker(tmp_path) as server:
        with pytest.raises(DirectoryLockedError):
            await start_and_stop(standalone_settings(tmp_path, port=0))
        assert server.is_serving


async def test_directory_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    """A path below a file is no directory."""
    (tmp_path / "file").write_text("x")
    with pytest.raises(DirectoryNotWritableError):
        await start_and_stop(observer_settings(tmp_path / "file" / "data", cluster_id="c"))


async def test_port_in_use_is_refused_and_the_directory_is_free_again(tmp_path: Path) -> None:
    """A taken port is a clear error, and a start on another port works afterwards."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(AddressInUseError, match=str(port)):
            await start_and_stop(standalone_settings(tmp_path, port=port))
    async with running_broker(tmp_path) as server:
        assert server.is_serving


async def test_internal_port_in_use_is_refused_by_its_option(tmp_path: Path) -> None:
    """The error of a broker without a voter names the option for another port, and its directory is unlocked again."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        settings = observer_settings(tmp_path, cluster_id="c", replication_port=taken.getsockname()[1])
        for _ in range(2):
            with pytest.raises(AddressInUseError, match="--replication-port"):
                await start_and_stop(settings)


async def test_broker_of_another_cluster_is_refused_by_the_quorum(tmp_path: Path) -> None:
    """A broker that was formatted for another cluster stops with an error instead of trying forever."""
    async with running_broker(tmp_path / "1") as first:
        settings = observer_settings(
            tmp_path / "2", cluster_id="elsewhere", quorum_addresses=(first.quorum_address or "",)
        )
        server = BrokerServer(settings)
        await server.start()
        try:
            with pytest.raises(ClusterMismatchError):
                await server.wait_serving(timeout_ms=int(WAIT_S * 1000))
        finally:
            await server.stop()


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"listen": Address(host="0.0.0.0", port=0)}, "--insecure-plaintext"),
        ({"listen": Address(host="192.0.2.1", port=0)}, "--insecure-plaintext"),
        ({"listen": Address(host="example.org", port=0)}, "--insecure-plaintext"),
        (
            {
                "quorum_addresses": (),
                "combined": CombinedSettings(quorum_listen=Address(host="0.0.0.0", port=0)),
            },
            "--quorum-listen",
        ),
        ({"listen": Address(host="0.0.0.0", port=0), "insecure_plaintext": True}, "--advertise"),
        ({"advertise": Address(host="0.0.0.0", port=1)}, "advertise"),
        ({"advertise": Address(host="h", port=0)}, "advertise"),
        ({"node_id": -1}, "--node-id"),
        ({"node_id": 2**31}, "--node-id"),
        ({"quorum_addresses": ()}, "--quorum"),
        ({"combined": CombinedSettings(quorum_listen=LOOPBACK)}, "--combined"),
        ({"quorum_addresses": ("nowhere",)}, "nowhere"),
    ],
)
def test_bad_options_are_refused_before_anything_is_opened(
    tmp_path: Path, fields: dict[str, object], text: str
) -> None:
    """Settings check themselves; plaintext that others can reach needs the flag."""
    with pytest.raises(SettingsError, match=text):
        observer_settings(tmp_path, **fields)


def test_plaintext_beyond_loopback_is_allowed_with_the_flag(tmp_path: Path) -> None:
    """The flag is the only condition."""
    settings = observer_settings(
        tmp_path,
        listen=Address(host="0.0.0.0", port=0),
        advertise=Address(host="broker-0.example.org", port=9640),
        insecure_plaintext=True,
    )
    assert settings.insecure_plaintext
