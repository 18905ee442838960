# SPDX-License-Identifier: Apache-2.0
"""Entry point of the server container: turns the environment of a StatefulSet's pod into one `brokerd run` command.

Pods `<name>-0` to `<name>-<voter count - 1>` run in combined mode, quorum voter and broker in one process; pods with a
higher ordinal are brokers only, so that scaling up adds brokers and leaves the quorum alone. The node id is the ordinal
plus 1. Nothing is formatted here: `--first-start` lets the server do that, and only when it is safe.

Must not import anything of Lograft: a wrong environment must be told within milliseconds, and the image has only this
file of the folder.

Environment (a variable named as a flag of `brokerd run` replaces what would be computed for that flag):

    POD_NAME or HOSTNAME      name of the pod; its last part is the ordinal
    POD_NAMESPACE             namespace of the pod
    LOGRAFT_CLUSTER_ID        id of the cluster; required
    LOGRAFT_VOTER_COUNT       voters at the first start; odd; required
    LOGRAFT_HEADLESS_SERVICE  headless Service that gives the pods their names; default `lograft-headless`
    LOGRAFT_CLUSTER_DOMAIN    DNS domain of the Kubernetes cluster; default `cluster.local`
    LOGRAFT_HOSTS             hosts by ordinal, with commas, in place of the pods' DNS names (to run by hand)
    LOGRAFT_BIND_HOST         address to listen on; default `0.0.0.0`
    LOGRAFT_BROKER_PORT       default 9640
    LOGRAFT_QUORUM_PORT       internal port, which other servers dial; default 9641
    LOGRAFT_REPLICATION_PORT  the same of a broker that is no voter; default: the same port
    LOGRAFT_DATA_DIR          default `/var/lib/lograft`; several are joined by `:`
    LOGRAFT_FIRST_START       `true` or `false`; default `true`
    LOGRAFT_INSECURE_PLAINTEXT  `true` or `false`; default `false`

With arguments, these are run instead: `docker run IMAGE lograft topics list` uses the image as a client.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping

DEFAULT_DATA_DIRECTORY = "/var/lib/lograft"
DEFAULT_HEADLESS_SERVICE = "lograft-headless"
DEFAULT_CLUSTER_DOMAIN = "cluster.local"
DEFAULT_BROKER_PORT = 9640
DEFAULT_QUORUM_PORT = 9641
MAX_VOTERS = 9
PORT_END = 65_536
USAGE_STATUS = 2

POD_NAME = re.compile(r"(?P<set>[a-z0-9][a-z0-9.-]*)-(?P<ordinal>\d+)")


class WrongEnvironmentError(Exception):
    """The environment does not describe a server; the text says which variable and what it should be."""


def command_line(environment: Mapping[str, str]) -> list[str]:
    """Return the server command for an environment.

    Raises:
        WrongEnvironmentError: a variable is missing or has a value that does not fit.
    """
    pod = _pod(environment)
    set_name, ordinal = pod["set"], int(pod["ordinal"])
    voter_count = _voter_count(environment)
    broker_port = _port(environment, "LOGRAFT_BROKER_PORT", DEFAULT_BROKER_PORT)
    quorum_port = _port(environment, "LOGRAFT_QUORUM_PORT", DEFAULT_QUORUM_PORT)
    bind_host = environment.get("LOGRAFT_BIND_HOST") or "0.0.0.0"
    voters = [(index + 1, f"{_host(environment, set_name, index)}:{quorum_port}") for index in range(voter_count)]
    host = _host(environment, set_name, ordinal)
    computed = {
        "--data-dir": DEFAULT_DATA_DIRECTORY,
        "--node-id": str(ordinal + 1),
        "--cluster-id": _required(environment, "LOGRAFT_CLUSTER_ID"),
        "--listen": f"{bind_host}:{broker_port}",
        "--advertise": f"{host}:{broker_port}",
    }
    if ordinal < voter_count:
        computed |= {
            "--quorum-listen": f"{bind_host}:{quorum_port}",
            "--quorum-advertise": f"{host}:{quorum_port}",
            "--voters": ",".join(f"{node_id}@{address}" for node_id, address in voters),
        }
        switches = ["--combined"]
        if _switch(environment, "LOGRAFT_FIRST_START", default=True):
            switches.append("--first-start")
    else:
        # One internal port in every pod, whether it votes or not.
        computed["--replication-port"] = str(quorum_port)
        computed["--quorum"] = ",".join(address for _, address in voters)
        switches = []
    if _switch(environment, "LOGRAFT_INSECURE_PLAINTEXT", default=False):
        switches.append("--insecure-plaintext")
    flags = [
        part
        for flag, value in computed.items()
        for one in _values(flag, environment.get(_variable(flag)) or value)
        for part in (flag, one)
    ]
    return ["brokerd", "run", *switches, *flags]


def _values(flag: str, text: str) -> list[str]:
    """Split what may be given several times: data directories are joined by ':' as in the server's own variable."""
    return text.split(":") if flag == "--data-dir" else [text]


def _variable(flag: str) -> str:
    return "LOGRAFT_" + flag.removeprefix("--").replace("-", "_").upper()


def _pod(environment: Mapping[str, str]) -> re.Match[str]:
    name = environment.get("POD_NAME") or environment.get("HOSTNAME") or ""
    pod = POD_NAME.fullmatch(name)
    if pod is None:
        raise WrongEnvironmentError(f"POD_NAME is {name!r}: it must be a StatefulSet's pod name, as in lograft-0")
    return pod


def _host(environment: Mapping[str, str], set_name: str, ordinal: int) -> str:
    hosts = environment.get("LOGRAFT_HOSTS")
    if hosts:
        known = [host.strip() for host in hosts.split(",")]
        if ordinal >= len(known):
            raise WrongEnvironmentError(f"LOGRAFT_HOSTS names {len(known)} hosts: none for ordinal {ordinal}")
        return known[ordinal]
    service = environment.get("LOGRAFT_HEADLESS_SERVICE") or DEFAULT_HEADLESS_SERVICE
    domain = environment.get("LOGRAFT_CLUSTER_DOMAIN") or DEFAULT_CLUSTER_DOMAIN
    return f"{set_name}-{ordinal}.{service}.{_required(environment, 'POD_NAMESPACE')}.svc.{domain}"


def _required(environment: Mapping[str, str], name: str) -> str:
    value = environment.get(name)
    if not value:
        raise WrongEnvironmentError(f"{name} must be set")
    return value


def _number(text: str, name: str, *, least: int, most: int) -> int:
    if not text.isascii() or not text.isdecimal() or not least <= int(text) <= most:
        raise WrongEnvironmentError(f"{name} is {text!r}: it must be a number from {least} to {most}")
    return int(text)


def _voter_count(environment: Mapping[str, str]) -> int:
    name = "LOGRAFT_VOTER_COUNT"
    count = _number(_required(environment, name), name, least=1, most=MAX_VOTERS)
    if count % 2 == 0:
        raise WrongEnvironmentError(
            f"{name} is {count}: it must be odd, because one voter more adds no safety to an odd number"
        )
    return count


def _port(environment: Mapping[str, str], name: str, default: int) -> int:
    return _number(environment.get(name) or str(default), name, least=1, most=PORT_END - 1)


def _switch(environment: Mapping[str, str], name: str, *, default: bool) -> bool:
    value = environment.get(name) or str(default).lower()
    if value not in ("true", "false"):
        raise WrongEnvironmentError(f"{name} is {value!r}: it must be true or false")
    return value == "true"


def main() -> None:
    """Replace this process by the server, or by the command given."""
    try:
        command = sys.argv[1:] or command_line(os.environ)
    except WrongEnvironmentError as error:
        sys.stderr.write(f"lograft: {error}\n")
        raise SystemExit(USAGE_STATUS) from None
    sys.stderr.write(f"lograft: starting {' '.join(command)}\n")
    os.execvp(command[0], command)


if __name__ == "__main__":
    main()
