# SPDX-License-Identifier: Apache-2.0
"""`make forks N=1000`: how children end that are forked from processes with clients, idle and under load, and whether they can work.

    python -m integration_tests.scenarios.forks.run --children 1000 --only os._exit gunicorn --budget-s 3600

Each child has its parent's clients refused, delivers a record with a client of its own, and ends. Exit status: 0 all ended as they
wished and delivered, nothing was printed; 1 not so; 2 not all cases were run within the budget.
"""

from __future__ import annotations

import argparse
import http.client
import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from lograft import Admin, Consumer, TopicPartition

from integration_tests.harness.cluster import DevServer
from integration_tests.harness.process import Process
from integration_tests.harness.wait import wait_for
from integration_tests.scenarios.forks.parent import WAYS
from integration_tests.scenarios.forks.work import KINDS, OWN_VALUE, environment_of
from metaquorum.testing.ports import free_port

LOADS: Final = ("idle", "busy")
CHILDREN: Final = 1_000
BUDGET_S: Final = 3_600
PARENT_CHILDREN: Final = 250
"""Maximum children of one parent."""
CASE_TIMEOUT_S: Final = 3_000
STOP_TIMEOUT_S: Final = 90
REQUEST_TIMEOUT_S: Final = 120
POLL_MS: Final = 5_000
PRINTED_LINES_MAX: Final = 10
RECYCLED: Final = "155"
"""Exit status of a child of Celery's pool after its last task."""
SUSPECT: Final = ("grpc", "lograft", "traceback", "task was", "exception", "fatal")
"""Words that must not be in the output of programs that print text of their own."""


@dataclass(frozen=True, slots=True)
class Case:
    """How the parent forks, and which clients it has."""

    way: str
    kind: str
    load: str

    def __str__(self) -> str:
        return f"{self.way}, {self.kind}, {self.load}"


@dataclass(slots=True)
class Result:
    """The result of a case.

    Attributes:
        statuses: number of children by exit status.
        delivered: records of children that are in the log.
        problems: everything that is wrong.
        seconds: duration.
    """

    statuses: Counter[str] = field(default_factory=Counter)
    delivered: int = 0
    problems: list[str] = field(default_factory=list)
    seconds: float = 0.0


def all_cases() -> list[Case]:
    """Return every case, those of real programs first."""
    real = [Case(way, "blocking", load) for way in RUNNERS for load in LOADS if way not in WAYS]
    return real + [Case(way, kind, load) for way in WAYS for kind in KINDS for load in LOADS]


def run_program(arguments: list[str], environment: dict[str, str], result: Result, *, is_quiet: bool) -> str:
    """Run one of our programs to its end and return its output. Output that it should not print is a problem."""
    command = [sys.executable, "-W", "ignore::DeprecationWarning", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=CASE_TIMEOUT_S, check=False)
    if done.returncode:
        result.problems.append(f"the program ended with {done.returncode}")
    judge_output(done.stderr, result, is_quiet=is_quiet)
    return done.stdout


def judge_output(text: str, result: Result, *, is_quiet: bool) -> None:
    """Note output that should not have been printed."""
    lines = [line for line in text.splitlines() if is_quiet or any(each in line.lower() for each in SUSPECT)]
    result.problems += [f"printed: {line[:300]}" for line in lines[:PRINTED_LINES_MAX]]


def run_parents(case: Case, count: int, environment: dict[str, str], result: Result) -> int:
    """Run parents of ours that fork. Return the number of records that the parents sent."""
    sent = 0
    address, topic = environment["FORKS_BOOTSTRAP"], environment["FORKS_TOPIC"]
    while count > 0:
        children = min(count, PARENT_CHILDREN)
        count -= children
        arguments = [
            "-m",
            "integration_tests.scenarios.forks.parent",
            address,
            topic,
            case.way,
            case.kind,
            case.load,
            str(children),
        ]
        output = run_program(arguments, environment, result, is_quiet=True)
        if output:
            said = json.loads(output)
            result.statuses.update(said["statuses"])
            sent += said["sent"]
    return sent


def run_gunicorn(case: Case, count: int, environment: dict[str, str], result: Result) -> None:
    """Let a prefork server serve that many requests, each by a new worker."""
    port = free_port()
    arguments = ["-c", "python:integration_tests.scenarios.forks.web", "--bind", f"127.0.0.1:{port}"]
    command = ["-m", "gunicorn", *arguments, "integration_tests.scenarios.forks.web:application"]

    def is_served() -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=REQUEST_TIMEOUT_S)
        try:
            connection.request("GET", "/")
            return connection.getresponse().read() == b"done"
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    def use() -> None:
        wait_for(is_served, timeout_s=STOP_TIMEOUT_S, what="gunicorn to serve")
        for _ in range(count - 1):
            # A worker that ends may drop the connection that was queued for it.
            wait_for(is_served, timeout_s=STOP_TIMEOUT_S, what="a worker to serve")

    run_server(command, count, environment, result, use)


def run_celery(case: Case, count: int, environment: dict[str, str], result: Result) -> None:
    """Let a prefork pool run that many tasks, each in a new child."""
    options = ["--pool", "prefork", "--concurrency", "2", "--loglevel", "ERROR", "--without-gossip", "--without-mingle"]
    command = ["-m", "celery", "-A", "integration_tests.scenarios.forks.jobs", "worker", *options]

    def use() -> None:
        run_program(["-m", "integration_tests.scenarios.forks.jobs", str(count)], environment, result, is_quiet=True)

    run_server(command, count, environment, result, use)


def run_spark(case: Case, count: int, environment: dict[str, str], result: Result) -> None:
    """Let Spark run that many tasks, each in a new Python worker."""
    run_program(
        ["-m", "integration_tests.scenarios.forks.spark_driver", str(count)], environment, result, is_quiet=False
    )
    result.statuses.update(read_lines(Path(environment["FORKS_STATUSES"])))


def run_server(
    command: list[str], count: int, environment: dict[str, str], result: Result, use: Callable[[], None]
) -> None:
    """Run another project's server, use it until that many of its children have ended, and ask it to stop.

    What it does with its remaining children is its own affair: Celery kills them, with or without Lograft.
    """
    statuses = Path(environment["FORKS_STATUSES"])
    quiet = {**environment, "PYTHONWARNINGS": "ignore"}
    log = statuses.with_name("server.log")
    server = Process("the server", command, log, environment=quiet, stop_timeout_s=STOP_TIMEOUT_S)
    server.start()
    try:
        use()
        wait_for(lambda: len(read_lines(statuses)) >= count, timeout_s=CASE_TIMEOUT_S, what=f"{count} children to end")
        result.statuses.update(read_lines(statuses))
        status = server.stop()
        if status:
            result.problems.append(f"the server ended with {status}")
    except (TimeoutError, subprocess.TimeoutExpired) as error:
        result.problems.append(str(error))
        result.statuses.update(read_lines(statuses))
    finally:
        server.kill()
        judge_output(server.log_text(), result, is_quiet=False)


def read_lines(path: Path) -> list[str]:
    """Return the words of a file; none if it does not exist."""
    return path.read_text().split() if path.exists() else []


RUNNERS: Final[dict[str, Callable[[Case, int, dict[str, str], Result], int | None]]] = {
    "gunicorn": run_gunicorn,
    "celery": run_celery,
    "spark": run_spark,
    **dict.fromkeys(WAYS, run_parents),
}


def run_case(case: Case, count: int, address: str) -> Result:
    """Run one case against a cluster."""
    result, started_s = Result(), time.monotonic()
    topic = "forks-" + "-".join((case.way, case.kind, case.load)).replace("_", "-")
    with Admin(address) as admin, tempfile.TemporaryDirectory(prefix="lograft-forks-") as name:
        admin.create_topic(topic, configs={"flush.policy": "none"})
        for each in ("queue", "queue-control"):
            (Path(name) / each).mkdir()
        environment = environment_of(bootstrap=address, topic=topic, load=case.load, directory=Path(name))
        sent = RUNNERS[case.way](case, count, environment, result)
        seen = read_values(address, topic)
        admin.delete_topic(topic)
    result.delivered, others = seen.pop(OWN_VALUE, 0), seen.total()
    if result.delivered != count:
        result.problems.append(f"{result.delivered} of {count} children delivered their record")
    if sent is not None and sent != others:
        result.problems.append(f"the parents sent {sent} records, {others} are in the log")
    clean = {"0", RECYCLED} if case.way == "celery" else {"0"}
    result.problems += [
        f"{n} children ended with {status}" for status, n in result.statuses.items() if status not in clean
    ]
    if result.statuses.total() < count:
        result.problems.append(f"{result.statuses.total()} of {count} children are known to have ended")
    result.seconds = time.monotonic() - started_s
    return result


def read_values(address: str, topic: str) -> Counter[bytes]:
    """Return how often each value is in a topic of one partition."""
    seen: Counter[bytes] = Counter()
    partition = TopicPartition(topic, 0)
    with Consumer(address) as consumer:
        consumer.assign([partition])
        end = consumer.end_offsets([partition])[partition]
        while consumer.position(partition) < end and (batch := consumer.poll_batch(POLL_MS)) is not None:
            seen.update(batch.values())
    return seen


def print_row(case: Case, result: Result) -> None:
    """Print a case as a row of the table, with its problems below."""
    statuses = " ".join(f"{status}:{count}" for status, count in sorted(result.statuses.items()))
    verdict = "FAILED" if result.problems else "ok"
    cells = f"{case.way:<11} {case.kind:<9} {case.load:<5} {result.delivered:>9}  {statuses:<22} {result.seconds:>7.1f}"
    print(f"{cells}  {verdict}", flush=True)
    for problem in result.problems:
        print(f"    {problem}", flush=True)


def run(cases: list[Case], count: int, budget_s: float) -> int:
    """Run cases against one cluster, print the table, and return the exit status."""
    started_s = time.monotonic()
    failed = left = 0
    print(f"{'way':<11} {'clients':<9} {'load':<5} {'delivered':>9}  {'exit statuses':<22} {'seconds':>7}", flush=True)
    with tempfile.TemporaryDirectory(prefix="lograft-forks-") as name, DevServer(Path(name)) as server:
        for case in cases:
            if time.monotonic() - started_s > budget_s:
                left += 1
                continue
            result = run_case(case, count, server.bootstrap)
            print_row(case, result)
            failed += bool(result.problems)
    if left:
        print(f"{left} cases were not run: the budget of {budget_s:.0f} s is spent")
    return 1 if failed else 2 if left else 0


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--children", type=int, default=CHILDREN, help="of each case")
    parser.add_argument("--only", nargs="+", choices=tuple(RUNNERS), default=list(RUNNERS))
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS), help="of clients in the parent")
    parser.add_argument("--budget-s", type=float, default=BUDGET_S, help="seconds after which no case begins")
    arguments = parser.parse_args()
    cases = [case for case in all_cases() if case.way in arguments.only and case.kind in arguments.kinds]
    return run(cases, arguments.children, arguments.budget_s)


if __name__ == "__main__":
    raise SystemExit(main())
