# SPDX-License-Identifier: Apache-2.0
"""A network of namespaces: one for each server, joined by a bridge. Each direction of a link can be cut silently.

Owns namespaces, addresses and cuts. Everything is created inside namespaces of the calling process (network, mounts, process ids). So
the kernel removes all of it when that process ends, for whatever reason, and nothing else on the machine changes. `run_inside` starts a
module inside; that needs root, or user namespaces for all users.

A cut is a neighbour entry with a hardware address that no machine has. What A sends to B leaves A and arrives nowhere, and neither side
is told. This needs neither netfilter nor a traffic classifier. All entries are fixed from the start, so that no address resolution
fails either.

A forgotten connection is a routing rule in the namespace of the sender that drops packets with the connection's addresses and ports.
The packets are lost silently. New connections have other ports and work.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

BRIDGE = "lograft0"
NETWORK = "10.77.0"
OUTSIDE = 254
"""Last byte of the bridge's address. Clients use it, and no cut affects them."""
PORT = 9641
ADMIN_PORT = 9640
NOBODY = "02:00:00:00:ff:ff"
COMMAND_TIMEOUT_S = 20.0
RULE_PREFERENCE = "100"
INSIDE = "LOGRAFT_INSIDE_NAMESPACES"
UNSHARE = ("unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")
AS_USER = ("--map-root-user",)


def unshare_command() -> tuple[str, ...] | str:
    """Return the command that runs another command in its own namespaces, or the reason why none works here."""
    for program in ("unshare", "ip", "ss"):
        if shutil.which(program) is None:
            return f"there is no program `{program}`"
    reason = ""
    for more in ((), AS_USER):
        command = (*UNSHARE, *more)
        trial = "mount -t tmpfs none /run && ip netns add trial && ip link add trial type bridge"
        done = subprocess.run(
            [*command, "sh", "-c", trial], capture_output=True, text=True, timeout=COMMAND_TIMEOUT_S, check=False
        )
        if done.returncode == 0:
            return command
        reason = done.stderr.strip()
    return f"network namespaces are not permitted: {reason}"


def is_inside() -> bool:
    """Return True if `run_inside` started this process."""
    return os.environ.get(INSIDE) == "1"


def run_inside(command: Sequence[str], module: str, *arguments: str) -> int:
    """Run `python -m module arguments` in its own namespaces to its end, and return the exit status.

    Args:
        command: the result of `unshare_command`.
        module: module that can be run with `-m`.
        arguments: arguments of the module.
    """
    environment = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
    own = [*command, sys.executable, "-m", module, *arguments]
    return subprocess.run(own, env=environment | {INSIDE: "1"}, check=False).returncode


def run(*arguments: str) -> None:
    """Run a command. If it fails, raise RuntimeError with its error output."""
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=COMMAND_TIMEOUT_S, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(arguments)}: {done.stderr.strip()}")


class Flow(NamedTuple):
    """One direction of a TCP connection: `address:port` of its sender and of its receiver."""

    sender: str
    receiver: str

    @property
    def reverse(self) -> Flow:
        """Return the other direction."""
        return Flow(self.receiver, self.sender)

    def rule(self) -> list[str]:
        """Return the words of the routing rule that loses its packets."""
        (host, _, port), (to_host, _, to_port) = self.sender.rpartition(":"), self.receiver.rpartition(":")
        where = ["from", host, "to", to_host, "ipproto", "tcp", "sport", port, "dport", to_port]
        return ["pref", RULE_PREFERENCE, *where, "blackhole"]


class Namespaces:
    """A namespace for each name. All of them, and the clients outside, reach each other. Only for a process inside (`is_inside`).

    It is the `integration_tests.harness.cluster.Place` of a cluster.
    """

    arguments: Sequence[str] = ("--insecure-plaintext",)

    def __init__(self, names: Iterable[str]) -> None:
        assert is_inside(), "namespaces are made inside of others only"
        self._numbers = {name: number for number, name in enumerate(names, 1)}
        self._forgotten: set[Flow] = set()
        run("mount", "-t", "tmpfs", "none", "/run")
        run("ip", "link", "set", "lo", "up")
        run("ip", "link", "add", BRIDGE, "type", "bridge")
        run("ip", "link", "set", BRIDGE, "address", _hardware(OUTSIDE))
        run("ip", "address", "add", f"{NETWORK}.{OUTSIDE}/24", "dev", BRIDGE)
        run("ip", "link", "set", BRIDGE, "up")
        for name, number in self._numbers.items():
            self._add(name, number)

    def _add(self, name: str, number: int) -> None:
        run("ip", "netns", "add", name)
        run("ip", "link", "add", f"to{number}", "type", "veth", "peer", "name", "eth0", "netns", name)
        run("ip", "link", "set", f"to{number}", "master", BRIDGE, "up")
        inside = ("ip", "-n", name)
        run(*inside, "link", "set", "lo", "up")
        run(*inside, "link", "set", "eth0", "address", _hardware(number))
        run(*inside, "address", "add", f"{NETWORK}.{number}/24", "dev", "eth0")
        run(*inside, "link", "set", "eth0", "up")
        for other in (*self._numbers.values(), OUTSIDE):
            if other != number:
                self._set_neighbour(name, other, _hardware(other))
        run(
            "ip",
            "neigh",
            "replace",
            f"{NETWORK}.{number}",
            "lladdr",
            _hardware(number),
            "dev",
            BRIDGE,
            "nud",
            "permanent",
        )

    def address(self, name: str) -> str:
        """Return the address at which a process listens."""
        return f"{NETWORK}.{self._numbers[name]}:{PORT}"

    def admin_address(self, name: str) -> str:
        """Return the address of a voter's AdminService."""
        return f"{NETWORK}.{self._numbers[name]}:{ADMIN_PORT}"

    def prefix(self, name: str) -> Sequence[str]:
        """Return the command that runs another command in the namespace."""
        return ("ip", "netns", "exec", name)

    def cut(self, senders: Iterable[str], receivers: Iterable[str]) -> None:
        """Lose everything that `senders` send to `receivers`. The opposite direction works."""
        self._each(senders, receivers, lambda number: NOBODY)

    def heal(self) -> None:
        """Heal all cuts."""
        self._each(self._numbers, self._numbers, _hardware)

    def forget(self, name: str, *, to: bool, from_: bool) -> int:
        """Forget the open connections of a server: lose what is sent to it, or from it, over them. New connections work.

        Returns:
            The number of connections, without those that are forgotten already.
        """
        self._drop_old_rules()
        flows = [
            flow for flow in self._flows(name, "established") if not self._forgotten.intersection((flow, flow.reverse))
        ]
        for flow in flows:
            for lost in (*((flow,) if from_ else ()), *((flow.reverse,) if to else ())):
                run("ip", *self._where(lost), "rule", "add", *lost.rule())
                self._forgotten.add(lost)
        return len(flows)

    def _drop_old_rules(self) -> None:
        """Remove the rules of connections that no longer exist: another connection may get their ports."""
        if not self._forgotten:
            return
        there = {flow for name in (*self._numbers, None) for flow in self._flows(name, "all")}
        for flow in sorted(self._forgotten - there):
            run("ip", *self._where(flow), "rule", "delete", *flow.rule())
            self._forgotten.discard(flow)

    def _flows(self, name: str | None, state: str) -> list[Flow]:
        """Return what a namespace sends over its connections with others; None: the namespace of the clients."""
        prefix = () if name is None else self.prefix(name)
        command = [*prefix, "ss", "--tcp", "--numeric", "--no-header", "state", state]
        done = subprocess.run(command, capture_output=True, text=True, timeout=COMMAND_TIMEOUT_S, check=True)
        found: list[Flow] = []
        for line in done.stdout.splitlines():
            # If all states are requested, the state is the first column.
            # gRPC has IPv6 sockets for IPv4 connections: [::ffff:address]:port.
            sender, receiver = (each.replace("[::ffff:", "").replace("]", "") for each in line.split()[-2:])
            if receiver.startswith(f"{NETWORK}.") and sender.startswith(f"{NETWORK}."):
                found.append(Flow(sender, receiver))
        return found

    def _where(self, flow: Flow) -> Sequence[str]:
        """Return the options of `ip` for the namespace of a sender."""
        number = int(flow.sender.rpartition(":")[0].rpartition(".")[2])
        name = next((name for name, each in self._numbers.items() if each == number), None)
        return () if name is None else ("-n", name)

    def _each(self, senders: Iterable[str], receivers: Iterable[str], hardware: Callable[[int], str]) -> None:
        targets = [self._numbers[name] for name in receivers]
        for sender in senders:
            for number in targets:
                if number != self._numbers[sender]:
                    self._set_neighbour(sender, number, hardware(number))

    def _set_neighbour(self, name: str, number: int, hardware: str) -> None:
        entry = (f"{NETWORK}.{number}", "lladdr", hardware, "dev", "eth0", "nud", "permanent")
        run("ip", "-n", name, "neigh", "replace", *entry)


def _hardware(number: int) -> str:
    return f"02:00:00:00:00:{number:02x}"
