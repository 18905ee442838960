# SPDX-License-Identifier: Apache-2.0
"""How long a client takes to start: imports of the SDK, and whole commands of the command line, each in a process of its own.

Every round runs each row once, and with `--beside` the same row with another checkout right after it, with the same interpreter. The
figures are medians of the rounds, with the time that the bare interpreter takes taken off the imports, and left in the commands.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from lograft import Admin

from integration_tests.harness.cluster import Cluster

ROOT: Final = Path(__file__).parent.parent

ROUNDS: Final = 11

IMPORTS: Final = {
    "import lograft": ("import lograft", 60),
    "from lograft import Producer": ("from lograft import Producer", 200),
    "from lograft import Consumer": ("from lograft import Consumer", None),
    "from lograft.aio import Producer": ("from lograft.aio import Producer", None),
}
"""Statement and bound in milliseconds of each row."""

COMMANDS: Final = {
    "lograft --help": (("--help",), 300),
    "lograft topics --help": (("topics", "--help"), None),
    "lograft topics list": (("topics", "list"), 500),
    "lograft brokers list": (("brokers", "list"), 500),
}
"""Arguments and bound in milliseconds of each row."""

_COMMAND: Final = "from lograft.cli import main; main()"


def run_s(checkout: Path, code: str, arguments: Sequence[str] = (), *, bootstrap: str = "") -> float:
    """Run code in a new interpreter that imports from a checkout, and return the seconds that it took."""
    env = {**os.environ, "PYTHONPATH": f"{checkout}:{checkout / 'sdk'}", "LOGRAFT_BOOTSTRAP": bootstrap}
    begin_s = time.perf_counter()
    subprocess.run([sys.executable, "-c", code, *arguments], env=env, check=True, capture_output=True, cwd=checkout)
    return time.perf_counter() - begin_s


def measure(checkouts: Sequence[Path], rounds: int, bootstrap: str) -> dict[str, list[list[float]]]:
    """Return the milliseconds of each row: one list for each checkout."""
    found: dict[str, list[list[float]]] = {}
    for _ in range(rounds):
        for index, checkout in enumerate(checkouts):
            bare_s = run_s(checkout, "pass")
            for name, (statement, _) in IMPORTS.items():
                rows = found.setdefault(name, [[] for _ in checkouts])
                rows[index].append((run_s(checkout, statement) - bare_s) * 1000)
            for name, (arguments, _) in COMMANDS.items():
                rows = found.setdefault(name, [[] for _ in checkouts])
                rows[index].append(run_s(checkout, _COMMAND, arguments, bootstrap=bootstrap) * 1000)
    return found


def main() -> None:
    """Start a cluster, measure, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--beside", type=Path, help="another checkout, measured in turns")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    arguments = parser.parse_args()
    checkouts = [ROOT, *([arguments.beside.resolve()] if arguments.beside else [])]
    with tempfile.TemporaryDirectory() as directory, Cluster(Path(directory), voter_count=1, broker_count=1) as cluster:
        with Admin(cluster.bootstrap) as admin:
            admin.create_topic("orders", partition_count=6)
        found = measure(checkouts, arguments.rounds, cluster.bootstrap)
    bounds = {name: bound for table in (IMPORTS, COMMANDS) for name, (_, bound) in table.items()}
    print("| | median ms | bound |" + (" other checkout |" if arguments.beside else ""))
    print("|---|---:|---:|" + ("---:|" if arguments.beside else ""))
    for name, rows in found.items():
        own, *others = [statistics.median(values) for values in rows]
        bound = bounds[name]
        cells = [name, f"{own:.0f}", "" if bound is None else f"< {bound}", *(f"{other:.0f}" for other in others)]
        print("| " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
