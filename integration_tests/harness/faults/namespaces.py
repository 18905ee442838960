# SPDX-License-Identifier: Apache-2.0
"""A network of namespaces: one for each server, joined by a bridge, and links that can be cut one way without a sound.

Owns namespaces, addresses and cuts. Everything is made inside namespaces of the calling process (network, mounts and
process ids), so the kernel removes all of it when that process ends, however it ends, and nothing else on the machine is
touched. `run_inside` starts a module inside; that needs root, or user namespaces for all users.

A cut is a neighbour entry with a hardware address that no machine has: what A sends to B leaves A and arrives nowhere, and
neither is told. It needs neither netfilter nor a traffic classifier. All entries are fixed from the start, so that no
address resolution fails either.

A connection that is forgotten is a routing rule for its addresses and ports, in the namespace of the sender, that leads nowhere:
its packets are lost without a word, and those of new connections, which have other ports, are carried.
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
"""Last byte of the address of the bridge: of the clients, which nothing cuts off."""
PORT = 9641
ADMIN_PORT = 9640
NOBODY = "02:00:00:00:ff:ff"
COMMAND_TIMEOUT_S = 20.0
RULE_PREFERENCE = "100"
INSIDE = "LOGRAFT_INSIDE_NAMESPACES"
UNSHARE = ("unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")
AS_USER = ("--map-root-user",)


def unshare_command() -> tuple[str, ...] | str:
    """Return the command that runs another one in namespaces of its own, or the reason why there is none here."""
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
    """Whether this process was started by `run_inside`."""
    return os.environ.get(INSIDE) == "1"


def run_inside(command: Sequence[str], module: str, *arguments: str) -> int:
    """Run `python -m module arguments` in namespaces of its own, to its end; return the exit status.

    Args:
        command: what `unshare_command` gave.
        module: module with an entry of its own.
        arguments: of the module.
    """
    environment = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
    own = [*command, sys.executable, "-m", module, *arguments]
    return subprocess.run(own, env=environment | {INSIDE: "1"}, check=False).returncode


def run(*arguments: str) -> None:
    """Run a command; raises RuntimeError with what it said when it fails."""
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=COMMAND_TIMEOUT_S, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(arguments)}: {done.stderr.strip()}")


class Flow(NamedTuple):
    """One direction of a TCP connection: `address:port` of who sends and of who receives."""

    sender: str
    receiver: str

    @property
    def reverse(self) -> Flow:
        """The other direction."""
        return Flow(self.receiver, self.sender)

    def rule(self) -> list[str]:
        """Words of the routing rule that loses its packets."""
        (host, _, port), (to_host, _, to_port) = self.sender.rpartition(":"), self.receiver.rpartition(":")
        where = ["from", host, "to", to_host, "ipproto", "tcp", "sport", port, "dport", to_port]
        return ["pref", RULE_PREFERENCE, *where, "blackhole"]


class Namespaces:
    """A namespace for each name, all reachable from each other and from outside. Only inside (`is_inside`).

    It is the place of a cluster: `integration_tests.harness.cluster.Place`.
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
        """Address to listen on."""
        return f"{NETWORK}.{self._numbers[name]}:{PORT}"

    def admin_address(self, name: str) -> str:
        """Address of a voter's AdminService."""
        return f"{NETWORK}.{self._numbers[name]}:{ADMIN_PORT}"

    def prefix(self, name: str) -> Sequence[str]:
        """Command that runs another one in the namespace."""
        return ("ip", "netns", "exec", name)

    def cut(self, senders: Iterable[str], receivers: Iterable[str]) -> None:
        """Lose everything that one of `senders` sends to one of `receivers`; the way back stays."""
        self._each(senders, receivers, lambda number: NOBODY)

    def heal(self) -> None:
        """Let everything through again."""
        self._each(self._numbers, self._numbers, _hardware)

    def forget(self, name: str, *, to: bool, from_: bool) -> int:
        """Lose from now on what is sent to one of the names, or from it, over its connections that there are; new ones are carried.

        Returns:
            How many connections these are, without those that are forgotten already.
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
        """Remove the rules of senders that have no such connection any more: another one may get its ports."""
        if not self._forgotten:
            return
        there = {flow for name in (*self._numbers, None) for flow in self._flows(name, "all")}
        for flow in sorted(self._forgotten - there):
            run("ip", *self._where(flow), "rule", "delete", *flow.rule())
            self._forgotten.discard(flow)

    def _flows(self, name: str | None, state: str) -> list[Flow]:
        """What a namespace sends over its connections with others; None: the clients' one."""
        prefix = () if name is None else self.prefix(name)
        command = [*prefix, "ss", "--tcp", "--numeric", "--no-header", "state", state]
        done = subprocess.run(command, capture_output=True, text=True, timeout=COMMAND_TIMEOUT_S, check=True)
        found: list[Flow] = []
        for line in done.stdout.splitlines():
            # Where all states are asked for, the state stands first.
            # gRPC has sockets of IPv6 for connections of IPv4: [::ffff:address]:port.
            sender, receiver = (each.replace("[::ffff:", "").replace("]", "") for each in line.split()[-2:])
            if receiver.startswith(f"{NETWORK}.") and sender.startswith(f"{NETWORK}."):
                found.append(Flow(sender, receiver))
        return found

    def _where(self, flow: Flow) -> Sequence[str]:
        """Options of `ip` for the namespace of a sender."""
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
