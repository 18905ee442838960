# SPDX-License-Identifier: Apache-2.0
"""Assignors and their worker: seconds of CPU for 1,000 members x 1,000 topics x 50,000 partitions, and what the event loop feels of it.

*CPU*: one computation in this process, the median of the rounds, with the garbage collector off as in the assignment process.
*Event loop*: the large computation runs again and again, on the loop, in a thread and in the assignment process, while a ticker on the
same uvloop asks to be woken every millisecond. What counts is how late it is. *Small groups*: the longest of many random
groups that the worker computes at once, by the CPU clock. *Patterns*: a new pattern over 10,000 names.

    python -m benchmarks.assignment [--rounds 3] [--seconds 4] [--write benchmarks/results]
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import random
import statistics
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import uvloop

from brokerd.assignment_worker.worker import MAX_INLINE_COST, AssignmentWorker, cost_of
from brokerd.groups.assignment.assignors import ASSIGNORS
from brokerd.groups.assignment.specs import Assignment, MemberSpec, TopicSpec
from brokerd.groups.patterns import compile_pattern
from brokerd.short_turns import ShortTurns

MEMBERS = 1_000
TOPICS = 1_000
PARTITIONS_PER_TOPIC = 50
SUBSCRIBED = 300
"""Topics of each member where subscriptions differ."""

TICK_S = 0.001
LOOP_ROUNDS = 6
"""Rounds in which the ways of the event loop take turns. Other programs can only add to a figure, so that the smallest one counts."""

SMALL_GROUPS = 400
NAMES = 10_000
HARD_NAMES = 200

Topics = dict[bytes, TopicSpec]
Case = tuple[list[MemberSpec], Topics]


def topic_id(number: int) -> bytes:
    """Return the id of a topic."""
    return number.to_bytes(16, "big")


def replicas(rng: random.Random, racks: int, partitions: int) -> tuple[frozenset[str], ...]:
    """Return two racks for each partition; none if there are no racks."""
    names = [f"rack-{number}" for number in range(racks)]
    return tuple(frozenset(rng.sample(names, 2)) for _ in range(partitions)) if racks else ()


def group(
    rng: random.Random, members: int, topics: int, partitions: int, *, subscribed: int | None, racks: int
) -> Case:
    """Return a group. `subscribed` None: everybody subscribes to everything."""
    specs = {topic_id(n): TopicSpec(topic_id(n), partitions, replicas(rng, racks, partitions)) for n in range(topics)}
    everything, known = frozenset(specs), sorted(specs)
    return [
        MemberSpec(
            member_id=f"member-{number:05}",
            instance_id=None,
            rack=f"rack-{number % racks}" if racks else None,
            topics=everything if subscribed is None else frozenset(rng.sample(known, subscribed)),
            owned={},
        )
        for number in range(members)
    ], specs


def owning(members: Sequence[MemberSpec], assignment: Assignment) -> list[MemberSpec]:
    """Return the members after the assignment."""
    return [replace(member, owned=assignment.get(member.member_id, {})) for member in members]


def changes(case: Case, assignment: Assignment) -> dict[str, Case]:
    """Return what is computed, by name."""
    members, topics = case
    owners = owning(members, assignment)
    joined = [*owners, replace(members[1], member_id="new", owned={})]
    grown_id = topic_id(7)
    grown = topics[grown_id]
    wider = replace(grown, partition_count=2 * grown.partition_count, racks=grown.racks * 2)
    return {
        "first": case,
        "join": (joined, topics),
        "leave": (owners[1:], topics),
        "growth": (owners, {**topics, grown_id: wider}),
    }


def cpu_s(compute: Callable[[], object], rounds: int) -> float:
    """Return the median seconds of CPU."""
    taken: list[float] = []
    for _ in range(rounds):
        started = time.process_time()
        compute()
        taken.append(time.process_time() - started)
    return statistics.median(taken)


def moved(members: Sequence[MemberSpec], assignment: Assignment) -> int:
    """Return how many partitions left a member that is still there."""
    return sum(
        len(set(partitions).difference(assignment[member.member_id].get(topic, ())))
        for member in members
        for topic, partitions in member.owned.items()
    )


def cpu_table(rounds: int) -> list[str]:
    """Return the table of CPU seconds."""
    lines = [
        "| assignor | subscriptions | racks | first | one joins | one leaves | one topic doubles | moved by the join |",
        "|---|---|---:|---:|---:|---:|---:|---:|",
    ]
    for name, assignor in ASSIGNORS.items():
        for subscribed in (None, SUBSCRIBED):
            for racks in (0, 3, 1_000):
                case = group(
                    random.Random(1), MEMBERS, TOPICS, PARTITIONS_PER_TOPIC, subscribed=subscribed, racks=racks
                )
                cases = changes(case, assignor.assign(*case))
                taken = [cpu_s(lambda each=each: assignor.assign(*each), rounds) for each in cases.values()]  # noqa: B023
                moves = moved(cases["join"][0], assignor.assign(*cases["join"]))
                which = "equal" if subscribed is None else f"{subscribed} of {TOPICS} topics each"
                cells = " | ".join(f"{each:.2f}" for each in taken)
                lines.append(f"| {name} | {which} | {racks} | {cells} | {moves} |")
                print(lines[-1], flush=True)
    return lines


async def lateness_ms(seconds: float, work: Callable[[], Awaitable[object]] | None) -> tuple[list[float], int]:
    """Return how late a ticker is while the work goes on again and again, and how often it was done."""
    late: list[float] = []
    done = 0
    is_over = False

    async def ticker() -> None:
        while not is_over:
            due = time.perf_counter() + TICK_S
            await asyncio.sleep(TICK_S)
            late.append((time.perf_counter() - due) * 1e3)

    ticking = asyncio.create_task(ticker())
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        if work is None:
            await asyncio.sleep(seconds)
        else:
            await work()
        done += 1
    is_over = True
    await ticking
    return sorted(late), done


async def longest_turn_ms(worker: AssignmentWorker, case: Case) -> float:
    """Return the most CPU time of the loop's thread between two of its turns while the worker computes."""
    computing = asyncio.create_task(worker.assign("group", "uniform", *case))
    longest = 0.0
    while not computing.done():
        started = time.thread_time()
        await asyncio.sleep(0)
        longest = max(longest, time.thread_time() - started)
    await computing
    return longest * 1e3


async def loop_table(seconds: float) -> list[str]:
    """Return the table of the event loop's delays."""
    lines = [
        "| where the computation runs | computations in "
        f"{seconds:g} s | ticker late, median ms | 99th percentile ms | longest ms |",
        "|---|---:|---:|---:|---:|",
    ]
    case = group(random.Random(1), MEMBERS, TOPICS, PARTITIONS_PER_TOPIC, subscribed=None, racks=3)
    uniform = ASSIGNORS["uniform"]
    members, topics = changes(case, uniform.assign(*case))["join"]
    worker = AssignmentWorker()
    short = ShortTurns()

    async def inline() -> None:
        uniform.assign(members, topics)
        await asyncio.sleep(0)

    async def thread() -> None:
        await asyncio.to_thread(uniform.assign, members, topics)

    async def short_thread() -> None:
        short.begin()
        try:
            await asyncio.to_thread(uniform.assign, members, topics)
        finally:
            short.end()

    async def process() -> None:
        await worker.assign("group", "uniform", members, topics)

    await process()
    ways: Mapping[str, Callable[[], Awaitable[object]] | None] = {
        "nowhere": None,
        "on the loop": inline,
        "in a thread": thread,
        "in a thread, switch interval 1 ms": short_thread,
        "in the assignment process": process,
    }
    counts = dict.fromkeys(ways, 0)
    figures: dict[str, list[tuple[float, float, float]]] = {name: [] for name in ways}
    for _ in range(LOOP_ROUNDS):
        for name, work in ways.items():
            late, done = await lateness_ms(seconds / LOOP_ROUNDS, work)
            counts[name] += done if work is not None else 0
            figures[name].append((statistics.median(late), late[int(len(late) * 0.99)], late[-1]))
    for name, count in counts.items():
        cells = " | ".join(f"{min(column):.2f}" for column in zip(*figures[name], strict=True))
        lines.append(f"| {name} | {count} | {cells} |")
        print(lines[-1], flush=True)
    turns = [await longest_turn_ms(worker, (members, topics)) for _ in range(5)]
    await worker.close()
    said = "The longest turn of the loop for one computation in the process, ms of CPU (median of five): "
    return [*lines, "", f"{said}{statistics.median(turns):.2f}."]


def small_line() -> str:
    """Return a sentence about the groups that the worker computes at once."""
    rng = random.Random(2)
    taken: list[float] = []
    while len(taken) < SMALL_GROUPS:
        topics = rng.randint(1, 40)
        case = group(
            rng,
            rng.randint(1, 60),
            topics,
            rng.randint(1, 60),
            subscribed=rng.choice((None, rng.randint(1, topics))),
            racks=rng.choice((0, 3, 30)),
        )
        # The costly ones: they begin with shares that are all wrong.
        wrong = owning(case[0][::-1], ASSIGNORS["range"].assign(*case))
        if MAX_INLINE_COST // 2 < cost_of(*case) <= MAX_INLINE_COST:
            taken.append(cpu_s(lambda: ASSIGNORS["uniform"].assign(wrong, case[1]), 3) * 1e3)  # noqa: B023
    taken.sort()
    return (
        f"{SMALL_GROUPS} random groups of cost {MAX_INLINE_COST // 2} to {MAX_INLINE_COST} (`uniform` after `range`): "
        f"median {statistics.median(taken):.2f} ms, 99th percentile {taken[int(len(taken) * 0.99)]:.2f} ms, longest {taken[-1]:.2f} ms."
    )


def pattern_line() -> str:
    """Return a sentence about patterns."""
    names = [f"team{number % 37}.orders.v{number}" for number in range(NAMES)]
    matches = compile_pattern(r"team[0-9]+\.orders\.v.*7")
    typical = cpu_s(lambda: [matches(name) for name in names], 5)
    rng = random.Random(3)
    # Different names, because RE2 remembers the states of one.
    hard = ["".join(rng.choices("ab", k=249)) for _ in range(HARD_NAMES)]
    worst = [
        compile_pattern(each)
        for each in ("(?:a?b?){100}.*", "(?:[ab]?[ab]?){100}.*", "[ab]*a[ab]{400}", "(?:.*a){50}.*")
    ]
    costly = max(cpu_s(lambda: [each(name) for name in hard], 1) for each in worst) / HARD_NAMES  # noqa: B023
    return (
        f"A typical pattern over {NAMES:,} names: {typical * 1e3:.0f} ms. "
        f"The most expensive of some patterns that make RE2 work, on a name of 249 bytes: {costly * 1e3:.2f} ms."
    )


def main() -> None:
    """Measure, and print or write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="rounds of each computation")
    parser.add_argument("--seconds", type=float, default=12.0, help="seconds of each way of the event loop")
    parser.add_argument("--write", type=Path, help="folder of the page")
    options = parser.parse_args()
    gc.disable()
    cpu = cpu_table(options.rounds)
    gc.enable()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        loop = runner.run(loop_table(options.seconds))
    page = "\n".join(
        [
            "# Assignments",
            "",
            f"`python -m benchmarks.assignment`: {MEMBERS:,} members, {TOPICS:,} topics of {PARTITIONS_PER_TOPIC} partitions;",
            "two replicas of each partition in random racks.",
            "",
            "## Seconds of CPU for one computation",
            "",
            *cpu,
            "",
            "## What the event loop feels",
            "",
            "`uniform`, equal subscriptions, three racks, one member joins, again and again. Other programs used the machine, so that",
            f"each figure is the smallest of {LOOP_ROUNDS} rounds.",
            "",
            *loop,
            "",
            "## Small groups and patterns",
            "",
            small_line(),
            "",
            pattern_line(),
            "",
        ]
    )
    print(page)
    if options.write is not None:
        (options.write / "assignment.md").write_text(page)


if __name__ == "__main__":
    main()
