# SPDX-License-Identifier: Apache-2.0
"""`make group-proofs MINUTES=30`: a group of real processes under load, whose members and coordinator are hurt.

    python -m integration_tests.scenarios.group_proofs.run --minutes 30 --only join crash

Exit status: 0 passed; 1 a law or a bound is broken.
"""

from __future__ import annotations

import argparse
import os
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from lograft import Admin
from lograft.types import ConfigResource

from integration_tests.harness.cluster import Cluster, stop_in_order
from integration_tests.harness.outcome import Outcome, milliseconds, run_in_directory
from integration_tests.harness.wait import wait_for
from integration_tests.scenarios.group_proofs.crew import Crew, rest
from integration_tests.scenarios.group_proofs.journal import Journal, Kind, read_journals
from integration_tests.scenarios.group_proofs.judge import judge
from integration_tests.scenarios.group_proofs.load import Load, Questions
from integration_tests.scenarios.group_proofs.member import GROUP, TOPIC
from integration_tests.scenarios.group_proofs.nemeses import NEMESES, Stage, elect_preferred, wait_whole

BROKERS = 3
REPLICAS = 3
TOPIC_TIMEOUT_MS = 60_000
DRAIN_TIMEOUT_S = 120.0
DEFAULT_SESSION_MS = 45_000
DEFAULT_BEAT_MS = 5_000
DEFAULT_LIMIT_MS = 20_000


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupProofSettings:
    """The size of a group proof.

    Attributes:
        seconds: time after which no round begins.
        members: members of the group between rounds.
        statics: how many of them are static.
        partitions: partitions of the topic; each has three replicas.
        rate_per_s: records a second.
        value_bytes: size of a record's value.
        session_ms: session of the group.
        limit_ms: processing limit of the members.
        calm_s: seconds without a fault between two steps of the rounds.
        only: nemeses to use; all of them come before one comes again.
        seed: seed of all random choices.
        is_timed: False: times are stated and not compared with their bounds.
    """

    seconds: float
    members: int = 12
    statics: int = 3
    partitions: int = 60
    rate_per_s: float = 240.0
    value_bytes: int = 100
    session_ms: int = DEFAULT_SESSION_MS
    limit_ms: int = DEFAULT_LIMIT_MS
    calm_s: float = 3.0
    only: Sequence[str] = tuple(NEMESES)
    seed: int = 1
    is_timed: bool = True


def run(directory: Path, settings: GroupProofSettings) -> Outcome:
    """Run a group proof in a directory and judge it."""
    outcome = Outcome(
        proof="group-proofs",
        figures={
            "minutes": round(settings.seconds / 60, 2),
            "seed": settings.seed,
            "members": settings.members,
            "partitions": settings.partitions,
            "session_ms": settings.session_ms,
        },
    )
    cluster = Cluster(directory, voter_count=1, broker_count=BROKERS)
    journal = Journal(directory, "proof")
    load_averages: list[float] = []
    with cluster, Admin(cluster.bootstrap, request_timeout_ms=TOPIC_TIMEOUT_MS) as admin:
        admin.create_topic(
            TOPIC,
            partition_count=settings.partitions,
            replication_factor=REPLICAS,
            configs={"min.insync.replicas": str(REPLICAS - 1)},
        )
        session = {
            "group.session.timeout.ms": str(settings.session_ms),
            "group.heartbeat.interval.ms": str(min(DEFAULT_BEAT_MS, settings.session_ms // 3)),
        }
        admin.alter_configs({ConfigResource.group(GROUP): session})
        load = Load(
            cluster.bootstrap,
            directory,
            partition_count=settings.partitions,
            rate_per_s=settings.rate_per_s,
            value_bytes=settings.value_bytes,
        )
        crew = Crew(
            cluster,
            directory,
            journal,
            partition_count=settings.partitions,
            limit_ms=settings.limit_ms,
            session_ms=settings.session_ms,
        )
        stage = Stage(
            cluster=cluster,
            crew=crew,
            journal=journal,
            admin=admin,
            rng=random.Random(settings.seed),
            session_ms=settings.session_ms,
            calm_s=settings.calm_s,
        )
        questions = Questions(cluster.bootstrap, directory, partition_count=settings.partitions)
        load.start()
        try:
            for number in range(settings.members):
                crew.start(f"static-{number}" if number < settings.statics else None)
            crew.wait_stable("at the beginning")
            wait_whole(stage)
            elect_preferred(stage)
            questions.start()
            rest(settings.calm_s)
            journal.write(Kind.READY)
            for name in in_turn(settings, stage.rng):
                load.check()
                load_averages.append(os.getloadavg()[0])
                journal.write(Kind.ROUND, text=name)
                started_s = time.monotonic()
                text = NEMESES[name](stage)
                print(f"  {name:16s} {time.monotonic() - started_s:5.1f} s: {text}", flush=True)
                rest(settings.calm_s)
            finish(stage, load, questions, outcome)
            outcome.problems += stop_in_order(cluster.brokers.values())
        except (RuntimeError, TimeoutError) as error:
            # What happened until now is judged all the same.
            outcome.problems.append(str(error))
        finally:
            load.ask_to_stop()
            questions.ask_to_stop()
            crew.close()
    outcome.problems += load.problems + crew.problems
    outcome.figures |= {
        "acknowledged": sum(load.acknowledged),
        "unanswered_questions": questions.unanswered,
        "tick_late_p99_ms": milliseconds(load.tick_late_p99_s),
        "load_average_max": round(max(load_averages, default=0.0), 1),
    }
    judge(read_journals(directory), outcome, partition_count=settings.partitions, is_timed=settings.is_timed)
    return outcome


def in_turn(settings: GroupProofSettings, rng: random.Random) -> Iterator[str]:
    """Yield nemeses until the time is over: all of them in a random order, again and again, and each at least once."""
    until_s = time.monotonic() + settings.seconds
    done: set[str] = set()
    while True:
        bag = list(settings.only)
        rng.shuffle(bag)
        for name in bag:
            if time.monotonic() >= until_s and name in done:
                return
            done.add(name)
            yield name


def finish(stage: Stage, load: Load, questions: Questions, outcome: Outcome) -> None:
    """Stop the load, wait until everything is delivered and committed, and let all members leave."""
    load.join()
    ends = dict(enumerate(load.acknowledged))
    if load.sent != load.acknowledged:
        outcome.problems.append(f"{sum(load.sent) - sum(load.acknowledged)} records were not acknowledged")
    try:
        wait_for(lambda: questions.committed == ends, timeout_s=DRAIN_TIMEOUT_S, what="the last commits")
    except TimeoutError as error:
        missing = {number: (questions.committed.get(number), end) for number, end in ends.items()}
        behind = {number: pair for number, pair in missing.items() if pair[0] != pair[1]}
        outcome.problems.append(f"{error}: committed and end of {behind}")
    for member in list(stage.crew.members.values()):
        stage.crew.leave(member)
    questions.close()
    questions.check()
    stage.journal.write(Kind.ENDS, offsets=ends)


def main() -> int:
    """Run the command line and print the outcome. Journals and logs are kept if something is wrong."""
    default = GroupProofSettings(seconds=0)
    parser = argparse.ArgumentParser(description="a group of real processes under load and faults")
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=default.seed)
    parser.add_argument("--rate", type=float, default=default.rate_per_s, help="records a second")
    parser.add_argument("--members", type=int, default=default.members)
    parser.add_argument("--partitions", type=int, default=default.partitions)
    parser.add_argument("--session-ms", type=int, default=default.session_ms, help="6,000 to 60,000")
    parser.add_argument("--only", nargs="+", choices=list(NEMESES), default=list(NEMESES), help="nemeses to use")
    arguments = parser.parse_args()
    settings = GroupProofSettings(
        seconds=arguments.minutes * 60,
        members=arguments.members,
        partitions=arguments.partitions,
        rate_per_s=arguments.rate,
        session_ms=arguments.session_ms,
        only=tuple(arguments.only),
        seed=arguments.seed,
    )
    print(settings, flush=True)
    outcome = run_in_directory("group-proofs", lambda directory: run(directory, settings))
    outcome.print()
    return 1 if outcome.problems else 0


if __name__ == "__main__":
    raise SystemExit(main())
