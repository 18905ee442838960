# SPDX-License-Identifier: Apache-2.0
"""`make hostile`: a real server, clients that mean harm, and one healthy client beside them; figures of what it costs.

    python -m integration_tests.scenarios.hostile.run --only "readers bombers" --hold-s 20

Each scenario has a server of its own. Clients are processes of their own on the same machine, so the latencies hold for these
processors, which all share; the calm before the attack, with the healthy client alone, is measured beside it.
Exit status: 0 all targets met, 1 one missed, 2 none missed but latencies could not be judged, because calm itself was too slow.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from integration_tests.harness.cluster import DevServer
from integration_tests.scenarios.hostile.attackers import IDLE_CONNECTIONS, KINDS, SPARE_DESCRIPTORS
from integration_tests.scenarios.hostile.target import PeakSampler, Usage, usage, write_backlog

MIB: Final = 1024 * 1024
GROWTH_BYTES_MAX: Final = 512 * MIB
"""Maximum resident memory of an attack, above that of the idle server."""
KEPT_SHARE_MAX: Final = 0.20
"""Maximum memory that may remain above idle `AFTER_S` after the attack, as a share of idle memory."""
KEPT_BY_PYTHON_BYTES: Final = 24 * MIB
"""Memory in arenas of Python that thousands of past connections or streams leave partly used (`docs/memory.md`). The broker cannot
release it, so the scenarios of `OF_MANY` subtract it."""
OF_MANY: Final = frozenset({"idle", "channels"})
"""Scenarios with very many connections or streams."""
HEALTHY_P99_MS_MAX: Final = 50.0
"""Maximum latency of the healthy client beside an attack."""
CALM_P99_MS_MAX: Final = HEALTHY_P99_MS_MAX / 2
"""Latency without an attack above which the machine is too busy to judge latencies."""
WARM_UP_S: Final = 4.0
CALM_S: Final = 6.0
HOLD_S: Final = 20.0
AFTER_S: Final = 30.0
BUDGET_S: Final = 900.0
"""Seconds for all scenarios. Scenarios that would begin later are not run, and the exit status says so."""
STANDS_TIMEOUT_S: Final = 180.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """Figures of one scenario. Latencies are in milliseconds, as `healthy` reports them."""

    scenario: str
    idle: Usage
    peak: Usage
    after: Usage
    calm: Mapping[str, float]
    beside: Mapping[str, float]
    seen: Mapping[str, Any]
    server_cpu_share: float

    def misses(self) -> list[str]:
        """Return the missed targets."""
        found: list[str] = []
        growth_bytes, kept_bytes = (each.rss_bytes - self.idle.rss_bytes for each in (self.peak, self.after))
        if growth_bytes > GROWTH_BYTES_MAX:
            found.append(f"{growth_bytes / MIB:.0f} MiB above idle, at most {GROWTH_BYTES_MAX / MIB:.0f}")
        if self.scenario in OF_MANY:
            kept_bytes -= KEPT_BY_PYTHON_BYTES
        share = kept_bytes / self.idle.rss_bytes
        if share > KEPT_SHARE_MAX:
            found.append(f"{share:.0%} above idle {AFTER_S:.0f} s afterwards, at most {KEPT_SHARE_MAX:.0%}")
        if self.beside["missing"]:
            found.append(f"the healthy client did not get {self.beside['missing']:.0f} records in time")
        elif self.is_latency_judged and not self.beside["p99_ms"] <= HEALTHY_P99_MS_MAX:
            found.append(f"p99 of the healthy client {self.beside['p99_ms']:.0f} ms, at most {HEALTHY_P99_MS_MAX:.0f}")
        return found

    @property
    def is_latency_judged(self) -> bool:
        """False if the healthy client was slow even before the attack."""
        return self.calm["p99_ms"] <= CALM_P99_MS_MAX


class Child:
    """A client in its own process that exchanges JSON lines."""

    def __init__(self, module: str, *arguments: str) -> None:
        command = [sys.executable, "-m", f"integration_tests.scenarios.hostile.{module}", *arguments]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._name = module

    def line(self) -> dict[str, Any]:
        """Wait for the next line. Raises RuntimeError if the process ends; after `STANDS_TIMEOUT_S` it is killed."""
        assert self._process.stdout is not None
        timer = threading.Timer(STANDS_TIMEOUT_S, self._process.kill)
        timer.start()
        text = self._process.stdout.readline()
        timer.cancel()
        if not text:
            raise RuntimeError(f"the process of {self._name} ended with {self._process.wait()}")
        return json.loads(text)

    def ask(self) -> dict[str, Any]:
        """Send a line and wait for the answer."""
        assert self._process.stdin is not None
        self._process.stdin.write("report\n")
        self._process.stdin.flush()
        return self.line()

    def end(self) -> None:
        """Close the client's standard input."""
        assert self._process.stdin is not None
        self._process.stdin.close()

    def close(self) -> None:
        """Kill the process if it still runs."""
        self._process.kill()
        self._process.wait()


@contextmanager
def child(module: str, *arguments: str) -> Iterator[Child]:
    """Run a client until the end of the context."""
    made = Child(module, *arguments)
    try:
        yield made
    finally:
        made.close()


def pause(seconds: float) -> None:
    """Let the attack, or the calm before it, continue."""
    threading.Event().wait(seconds)


def cpu_s(pid: int) -> float:
    """Return the processor seconds that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def attack(scenario: str, directory: Path, hold_s: float) -> Result:
    """Run one scenario on a fresh directory."""
    write_backlog(directory)
    with DevServer(directory) as dev, child("healthy", dev.bootstrap) as healthy:
        server = dev.process
        pause(WARM_UP_S)
        healthy.ask()
        pause(CALM_S)
        idle, calm = usage(server.pid), healthy.ask()
        with PeakSampler(server.pid) as sampler:
            with child("attackers", scenario, dev.bootstrap) as attackers:
                seen = attackers.line()
                began_s, used_s = time.monotonic(), cpu_s(server.pid)
                pause(hold_s)
                share = (cpu_s(server.pid) - used_s) / (time.monotonic() - began_s)
                beside = healthy.ask()
                attackers.end()
                seen |= attackers.line()
            pause(AFTER_S)
            peak, after = sampler.peak, usage(server.pid)
    return Result(
        scenario=scenario,
        idle=idle,
        peak=peak,
        after=after,
        calm=calm,
        beside=beside,
        seen=seen,
        server_cpu_share=share,
    )


HEADINGS: Final = (
    *("scenario", "MiB idle", "peak", "after", "fds idle", "peak", "after", "threads", "cpu"),
    *("calm p50", "p99", "max ms", "beside p50", "p99", "max ms", "missing"),
)


def row(result: Result) -> list[str]:
    """Return the figures of a scenario in the order of `HEADINGS`."""
    idle, peak, after = result.idle, result.peak, result.after
    memory = [f"{each.rss_bytes / MIB:.0f}" for each in (idle, peak, after)]
    descriptors = [str(each.descriptors) for each in (idle, peak, after)]
    waits = [f"{each[key]:.1f}" for each in (result.calm, result.beside) for key in ("p50_ms", "p99_ms", "max_ms")]
    return [
        result.scenario,
        *memory,
        *descriptors,
        str(peak.threads),
        f"{result.server_cpu_share:.0%}",
        *waits,
        f"{result.beside['missing']:.0f}",
    ]


def print_table(results: list[Result]) -> None:
    """Print all figures."""
    rows = [list(HEADINGS), *map(row, results)]
    widths = [max(len(each[column]) for each in rows) for column in range(len(HEADINGS))]
    for cells in rows:
        print("  ".join(cell.rjust(width) for cell, width in zip(cells, widths, strict=True)))


def run(scenarios: list[str], hold_s: float, budget_s: float) -> int:
    """Run scenarios and print what they found; return the exit status."""
    results: list[Result] = []
    started_s = time.monotonic()
    for scenario in scenarios:
        if time.monotonic() - started_s > budget_s:
            print(f"{scenario}: NOT RUN: the budget of {budget_s:.0f} s is spent")
            continue
        with tempfile.TemporaryDirectory(prefix="lograft-hostile-") as name:
            result = attack(scenario, Path(name), hold_s)
        results.append(result)
        for miss in result.misses():
            print(f"  MISSED {scenario}: {miss}")
        if not result.is_latency_judged:
            print(f"  NOT JUDGED {scenario}: p99 without an attack was {result.calm['p99_ms']:.0f} ms already")
        print(f"{scenario}: {json.dumps(result.seen)}", flush=True)
    print_table(results)
    print(f"load of this machine now: {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors, attackers included")
    if any(result.misses() for result in results):
        return 1
    return 2 if len(results) < len(scenarios) or not all(result.is_latency_judged for result in results) else 0


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", choices=tuple(KINDS), default=list(KINDS))
    parser.add_argument("--hold-s", type=float, default=HOLD_S, help="seconds that each attack goes on")
    parser.add_argument("--budget-s", type=float, default=BUDGET_S, help="seconds after which no scenario begins")
    arguments = parser.parse_args()
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    # Servers inherit this limit.
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    if limit < IDLE_CONNECTIONS + SPARE_DESCRIPTORS:
        print(f"only {limit} descriptors are allowed (ulimit -Hn): there will be fewer idle connections")
    return run(arguments.only, arguments.hold_s, arguments.budget_s)


if __name__ == "__main__":
    raise SystemExit(main())
