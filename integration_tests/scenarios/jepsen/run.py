# SPDX-License-Identifier: Apache-2.0
"""`make jepsen`: a cluster under producers, consumers and all nemeses for some minutes; then everything is healed, read and judged.

    python -m integration_tests.scenarios.jepsen.run --minutes 20 --seed 7

It runs in its own namespaces where that is possible. Network cuts and the small disk need them; without them it leaves these two out
and says so. Exit status: 0 passed, 1 failed, 2 not everything could be tried or read.
"""

from __future__ import annotations

import argparse
import dataclasses
import random
import sys
import tempfile
import time
import traceback
from collections.abc import Generator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from lograft import Admin

from integration_tests.harness.cluster import BROKER_ID_FIRST, broker_name, names_of
from integration_tests.harness.faults.disks import small_disk
from integration_tests.harness.faults.forgetful_proxy import ForgetfulProxy
from integration_tests.harness.faults.namespaces import Namespaces, is_inside, run_inside, unshare_command
from integration_tests.harness.faults.skewed_clock import skewable
from integration_tests.harness.history.checker import EXIT_STATUS
from integration_tests.harness.outcome import keep_evidence
from integration_tests.harness.scene import Scene, Shape, scene_under_load
from integration_tests.scenarios.jepsen.conductor import Conductor
from integration_tests.scenarios.jepsen.nemeses import (
    ClockSkew,
    DiskFull,
    Forget,
    HalfOpen,
    Kill,
    Membership,
    Nemesis,
    Partition,
    Pause,
    Reassign,
    Restart,
    World,
    through_proxies,
)

NEMESES = ("kill", "pause", "restart", "partition", "disk-full", "clock", "membership", "reassign", "half-open")
NEED_NAMESPACES = frozenset({"partition", "disk-full"})
DELIVERY_TIMEOUT_MS = 20_000
"""Short enough that outages leave values with an unknown outcome."""
ADMIN_TIMEOUT_MS = 5_000
MIN_FREE_BYTES = 32 * 1024 * 1024
DISK_BYTES = 160 * 1024 * 1024
DISK_BYTES_A_MINUTE = 8 * 1024 * 1024
"""Bytes of the small disk per minute of the run: several times what a run writes."""
ANOMALIES_PRINTED_MAX = 20


@dataclass(slots=True, kw_only=True)
class Result:
    """The result of a run.

    Attributes:
        status: exit status of the verdict on the history.
        lines: the summary.
        problems: problems of the cluster, apart from the history.
        not_run: requested nemeses that are not possible here, with the reason.
    """

    status: int = 2
    lines: list[str] = field(default_factory=list[str])
    problems: list[str] = field(default_factory=list[str])
    not_run: dict[str, str] = field(default_factory=dict[str, str])

    @property
    def exit_status(self) -> int:
        """0 passed, 1 failed, 2 not everything could be tried or read."""
        if self.problems or self.status == 1:
            return 1
        return 2 if self.not_run else self.status


def run(directory: Path, *, shape: Shape, seconds: float, seed: int, names: list[str]) -> Result:
    """Run a cluster with nemeses and judge it."""
    result = Result()
    network: Namespaces | None = None
    brokers = [broker_name(BROKER_ID_FIRST + index) for index in range(shape.brokers)]
    if is_inside():
        network = Namespaces(names_of(voter_count=shape.voters, broker_count=shape.brokers))
    else:
        reason = unshare_command()
        text = reason if isinstance(reason, str) else "not in namespaces of its own"
        result.not_run = {name: text for name in names if name in NEED_NAMESPACES}
        names = [name for name in names if name not in NEED_NAMESPACES]
    with _disk(directory / brokers[-1], names, seconds), ExitStack() as stack:
        proxies: dict[str, ForgetfulProxy] = {}
        if network is None and HalfOpen.name in names:
            proxies = {name: stack.enter_context(ForgetfulProxy()) for name in brokers}
        launcher = skewable(directory) if "clock" in names else None
        with scene_under_load(
            directory,
            shape,
            place=network,
            broker_arguments=("--min-free-bytes", str(MIN_FREE_BYTES)),
            launcher=launcher,
            fronts={BROKER_ID_FIRST + index: proxies[name] for index, name in enumerate(brokers) if name in proxies},
            seed=seed,
        ) as scene:
            nemeses = make_nemeses(names, directory, small=directory / brokers[-1], network=network, proxies=proxies)
            conduct(scene, nemeses, result, seconds=seconds, seed=seed)
    return result


@contextmanager
def _disk(path: Path, names: list[str], seconds: float) -> Generator[None]:
    if "disk-full" not in names:
        yield
        return
    with small_disk(path, size_bytes=DISK_BYTES + int(DISK_BYTES_A_MINUTE * seconds / 60)) as is_mounted:
        assert is_mounted, "namespaces permit to mount"
        yield


def conduct(scene: Scene, nemeses: list[Nemesis], result: Result, *, seconds: float, seed: int) -> None:
    """Hurt and heal for a time, then read and judge."""
    with Admin(scene.cluster.bootstrap, request_timeout_ms=ADMIN_TIMEOUT_MS) as admin:
        world = World(scene=scene, admin=admin, rng=random.Random(seed))
        conductor = Conductor(world, nemeses)
        started_s = time.monotonic()
        conductor.run(started_s + seconds)
    ended_s = time.monotonic()
    result.problems += conductor.problems
    longest_s = max(scene.load.longest_gaps_s(scene.partitions, started_s, ended_s))
    verdict, unread = scene.load.judge()
    result.problems += unread
    result.status = EXIT_STATUS[verdict.name]
    result.lines = [
        f"faults: {dict(conductor.counts)}",
        f"load: {scene.load.figures()}",
        f"longest time without an acknowledgement in a partition: {longest_s:.1f} s",
        *_silences(conductor),
        *verdict.lines(anomalies_max=ANOMALIES_PRINTED_MAX),
    ]
    if not conductor.problems:
        result.problems += scene.compare_files()


def _silences(conductor: Conductor) -> list[str]:
    """Return how long clients heard nothing after faults of connections alone."""
    if not conductor.silences_s:
        return []
    times = (f"{name} {max(times_s):.1f}" for name, times_s in sorted(conductor.silences_s.items()))
    return [
        f"longest silence after {conductor.counts['half-open alone']} blows to connections alone, s: {', '.join(times)}"
    ]


def make_nemeses(
    names: list[str],
    directory: Path,
    *,
    small: Path,
    network: Namespaces | None,
    proxies: Mapping[str, ForgetfulProxy] | None = None,
) -> list[Nemesis]:
    """Create the nemeses with these names."""
    found: list[Nemesis] = []
    for name in names:
        if name == "partition":
            assert network is not None, "cuts need namespaces"
            found.append(Partition(network))
        elif name == "disk-full":
            found.append(DiskFull(small, min_free_bytes=MIN_FREE_BYTES))
        elif name == "clock":
            found.append(ClockSkew(directory))
        elif name == HalfOpen.name:
            forget: Forget = through_proxies(proxies or {}) if network is None else network.forget
            # Only brokers have proxies.
            kinds = ("broker",) if network is None else ("broker", "broker", "broker", "voter")
            found.append(HalfOpen(forget, kinds=kinds))
        else:
            kinds = {"kill": Kill, "pause": Pause, "restart": Restart, "membership": Membership, "reassign": Reassign}
            found.append(kinds[name]())
    return found


def run_and_keep(shape: Shape, *, seconds: float, seed: int, names: list[str]) -> Result:
    """Run in a temporary directory. History and logs are kept if something is wrong."""
    with tempfile.TemporaryDirectory(prefix="lograft-jepsen-") as name:
        directory = Path(name)
        try:
            result = run(directory, shape=shape, seconds=seconds, seed=seed, names=names)
        except Exception as error:
            traceback.print_exc()
            result = Result(problems=[repr(error)])
        if result.exit_status == 1 or result.status:
            result.lines += keep_evidence(directory, "jepsen")
    return result


def main() -> int:
    """Enter namespaces if that is permitted, run, and print."""
    default = dataclasses.replace(Shape(), delivery_timeout_ms=DELIVERY_TIMEOUT_MS, lasting_pollers=1)
    parser = argparse.ArgumentParser(description="a workload with nemeses, and the judgement of its history")
    parser.add_argument("--minutes", type=float, default=20.0, help="minutes of faults; healing and reading come after")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", nargs="+", choices=NEMESES, default=list(NEMESES), help="nemeses")
    parser.add_argument("--replicas", type=int, default=default.replicas, help="of each partition")
    parser.add_argument("--brokers", type=int, default=default.brokers)
    parser.add_argument("--partitions", type=int, default=default.partitions)
    parser.add_argument(
        "--rate", type=float, default=default.rate_per_s, help="values a second, all partitions together"
    )
    arguments = parser.parse_args()
    command = unshare_command()
    if not is_inside() and not isinstance(command, str):
        return run_inside(command, "integration_tests.scenarios.jepsen.run", *sys.argv[1:])
    shape = dataclasses.replace(
        default,
        replicas=arguments.replicas,
        brokers=arguments.brokers,
        partitions=arguments.partitions,
        rate_per_s=arguments.rate,
    )
    print(f"{arguments.minutes} minutes, seed {arguments.seed}, {shape}", flush=True)
    result = run_and_keep(shape, seconds=arguments.minutes * 60, seed=arguments.seed, names=arguments.only)
    print("\n".join(result.lines))
    for problem in result.problems:
        print(f"PROBLEM {problem}")
    for name, reason in result.not_run.items():
        print(f"NOT RUN {name}: {reason}")
    print({0: "PASSED", 1: "FAILED", 2: "NOT ALL RUN"}[result.exit_status])
    return result.exit_status


if __name__ == "__main__":
    raise SystemExit(main())
