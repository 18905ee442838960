# SPDX-License-Identifier: Apache-2.0
"""The program of the keeper. Reads orders from stdin and writes answers to stdout, one JSON object a line.

An order is `{"id", "verb", ...arguments}`, an answer `{"id", "result"}` or `{"id", "error"}`. The keeper carries out one order
after the other. When stdin ends, or the parent process is gone, it kills the servers, deletes its directory if it is
temporary, and ends.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from lograft.testing._keeper import disks
from lograft.testing._keeper.network import Network
from lograft.testing._keeper.nodes import IS_LINUX, LOOPBACK, Node, free_port, own_address
from lograft.testing._keeper.owners import owner_of

CLUSTER_ID: Final = "lograft-testing"
PARENT_CHECK_S: Final = 0.5
"""Seconds between two looks whether the parent process still exists."""

ORDER_BYTES_MAX: Final = 1024 * 1024
DISK_FREE_SHARE: Final = 4
"""A broker with a small disk refuses appends below this part of the disk: a quarter."""


class Keeper:
    """Carries out orders. It alone owns nodes, network and disks.

    Args:
        directory: directory of data and logs.
        is_temporary: True: the keeper deletes it at its end.
    """

    def __init__(self, directory: Path, *, is_temporary: bool) -> None:
        self._directory = directory
        self._is_temporary = is_temporary
        self._nodes: dict[int, Node] = {}
        self._disks: list[Path] = []
        self._host = own_address()
        self._network = Network(self._source_of)

    def _source_of(self, peer: tuple[str, int], here: tuple[str, int]) -> int | None:
        if not IS_LINUX:
            return None
        return owner_of(
            peer, here, {node_id: node.pid for node_id, node in self._nodes.items() if node.pid is not None}
        )

    async def open(self, node_count: int, disk_bytes: int | None, arguments: list[str]) -> dict[str, Any]:
        """Open the proxies, make the disks, start the nodes, and return the addresses of the brokers by node id."""
        node_ids = range(1, node_count + 1)
        brokers = {node_id: await self._front(node_id) for node_id in node_ids}
        quorum = {node_id: await self._front(node_id) for node_id in node_ids}
        voters = ",".join(f"{node_id}@{front}" for node_id, (front, _) in quorum.items())
        for node_id in node_ids:
            data = self._directory / f"node-{node_id}"
            data.mkdir(parents=True, exist_ok=True)
            options = {
                "--data-dir": str(data),
                "--node-id": str(node_id),
                "--cluster-id": CLUSTER_ID,
                "--listen": brokers[node_id][1],
                "--advertise": brokers[node_id][0],
                "--quorum-listen": quorum[node_id][1],
                "--quorum-advertise": quorum[node_id][0],
                "--voters": voters,
            }
            if disk_bytes is not None:
                disks.mount(data, disk_bytes)
                self._disks.append(data)
                options["--min-free-bytes"] = str(disk_bytes // DISK_FREE_SHARE)
            # -P: packages of the tests' folder must not hide those of the servers.
            command = ["-P", "-m", "brokerd", "run", "--combined", "--first-start"]
            command += [part for option in options.items() for part in option]
            log_path = self._directory / f"node-{node_id}.log"
            self._nodes[node_id] = Node(node_id, data, log_path, [*command, *arguments])
        for node in self._nodes.values():
            node.start()
        return {"addresses": [[node_id, front] for node_id, (front, _) in brokers.items()]}

    async def _front(self, node_id: int) -> tuple[str, str]:
        """Return the address at which others reach a node, and the one at which it listens.

        A proxy has the first. The ports are equal, because a broker registers the port at which it listens for other brokers.
        So the second is on another loopback address. Where the system has only one, there is no proxy.
        """
        if not IS_LINUX:
            address = f"{LOOPBACK}:{free_port()}"
            return address, address
        port = await self._network.listen(node_id, self._host)
        return f"{LOOPBACK}:{port}", f"{self._host}:{port}"

    async def carry_out(self, order: dict[str, Any]) -> Any:
        """Carry out one order and return its result."""
        verb = order["verb"]
        if verb == "open":
            return await self.open(order["node_count"], order["disk_bytes"], order["arguments"])
        if verb == "state":
            return [[node.node_id, node.pid, node.status] for node in self._nodes.values()]
        node = self._nodes[order["node_id"]]
        verbs: dict[str, Callable[[], None]] = {
            "start": lambda: node.start(order.get("arguments")),
            "kill": node.kill,
            "pause": node.pause,
            "resume": lambda: node.signal(signal.SIGCONT),
            "cut": lambda: self._network.cut(node.node_id),
            "mend": lambda: self._network.mend(node.node_id),
        }
        if verb in ("fill", "empty"):
            await asyncio.to_thread(disks.fill if verb == "fill" else disks.empty, node.directory)
        else:
            verbs[verb]()
        return None

    async def close(self) -> None:
        """Kill the servers and remove what is temporary."""
        for node in self._nodes.values():
            node.signal(signal.SIGKILL)
        for node in self._nodes.values():
            node.kill()
        await self._network.close()
        for each in self._disks:
            disks.unmount(each)
        if self._is_temporary:
            shutil.rmtree(self._directory, ignore_errors=True)


async def _until_orphaned(parent: int) -> None:
    while os.getppid() == parent:  # noqa: ASYNC110 - no event tells that a parent has gone
        await asyncio.sleep(PARENT_CHECK_S)


async def _serve(keeper: Keeper, answers: int) -> None:
    reader = asyncio.StreamReader(limit=ORDER_BYTES_MAX)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while line := await reader.readline():
        order = json.loads(line)
        try:
            answer = {"id": order["id"], "result": await keeper.carry_out(order)}
        except OSError as error:
            answer = {"id": order["id"], "error": str(error)}
        os.write(answers, json.dumps(answer).encode() + b"\n")


async def _main(directory: Path, *, is_temporary: bool) -> None:
    # Answers have a descriptor of their own: nothing that prints may mix with them.
    answers = os.dup(1)
    os.dup2(2, 1)
    os.set_inheritable(answers, False)
    keeper = Keeper(directory, is_temporary=is_temporary)
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    ends: list[asyncio.Task[Any]] = [
        asyncio.create_task(_serve(keeper, answers)),
        asyncio.create_task(_until_orphaned(os.getppid())),
        asyncio.create_task(stopped.wait()),
    ]
    try:
        done, _ = await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        for each in done:
            each.result()
    finally:
        for each in ends:
            each.cancel()
        await asyncio.gather(*ends, return_exceptions=True)
        await keeper.close()


if __name__ == "__main__":
    asyncio.run(_main(Path(sys.argv[1]), is_temporary=sys.argv[2] == "temporary"))
