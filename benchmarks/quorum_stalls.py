# SPDX-License-Identifier: Apache-2.0
"""`make bench-stalls`: what lost messages, kills and frozen leaders cost the metadata quorum, by its times.

The real Raft core of three voters in virtual time (`metaquorum.testing`), on a network of up to 2 ms a message and disks of up to
5 ms a flush. Each message is lost by itself, in silence, either way. A client has something to commit every 100 ms on average, and
goes on until it is committed. *Without a leader* is the time in which no node of the highest epoch leads and has committed a record of
it. The figures depend on the seeds alone.

The first row has the defaults, the second the request time of before, the others change one time of the defaults each. A row takes
less than a minute of a core that is not busy; none begins after `BUDGET_S`, and the table says which ones are missing then.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field, fields, replace
from itertools import groupby
from pathlib import Path

from metaquorum.raft.config import RaftConfig
from metaquorum.raft.effects import Send
from metaquorum.raft.events import Failure, RequestFailed
from metaquorum.raft.roles import Follower, Leader
from metaquorum.raft.types import LOG_BEGIN, Offset
from metaquorum.testing.options import calm
from metaquorum.testing.run import be_quiet
from metaquorum.testing.sim_node import SimNode
from metaquorum.testing.sim_quorum import SimulatedQuorum

MINUTE_MS = 60_000
LOSSES = (0.0, 0.01, 0.02, 0.05, 0.1, 0.15, 0.2)
BUDGET_S = 900
"""Seconds of real time after the start from which on no row begins."""
REQUEST_TIMEOUT_MS_BEFORE = 1_000
"""The earlier request timeout. It equalled the fetch timeout, so one lost fetch looked like a silent leader."""
PROPOSAL_EVERY_MS = 100
"""Mean time between two changes of the client."""
RETRY_MS = 10
"""Time between two checks of the client for a leader, to which it sends what is not under way."""
SETTLE_MS = 5_000
"""Virtual time before the measurement begins."""
STRIKE_EVERY_MS = 10_000
DOWN_MS = 4_000
"""How often a leader is killed or frozen, and for how long."""

CALM = calm(observer_count=0, proposal_every_ms=PROPOSAL_EVERY_MS)


@dataclass(slots=True, eq=False)
class Change:
    """A change that the client wants committed. `payload` is None until a leader has appended it."""

    asked_ms: int
    node: SimNode | None = None
    incarnation: int = 0
    quorum_epoch: int = 0
    next_offset: Offset = LOG_BEGIN
    payload: str | None = None


@dataclass(slots=True)
class Figures:
    """The figures of one run. Times are milliseconds of virtual time."""

    measured_ms: int = 0
    leaderships: int = 0
    leaderless_ms: int = 0
    requests: int = 0
    commit_ms: list[int] = field(default_factory=list[int])
    outage_ms: list[int] = field(default_factory=list[int])


class MeasuredQuorum(SimulatedQuorum):
    """A simulated quorum with a client that measures.

    Args:
        seed: seed of the run.
        config: times of the quorum.
        loss: probability that a message is lost.
        has_client: True if the client has changes to commit.
    """

    def __init__(self, seed: int, config: RaftConfig, *, loss: float, has_client: bool) -> None:
        super().__init__(seed, replace(CALM, loss=loss))
        self.config = config
        self.figures = Figures()
        self._has_client = has_client
        self._chance = self.scheduler.rng("client")
        self._changes: list[Change] = []
        self._is_measuring = False

    def measure(self, duration_ms: int, strike: Callable[[SimNode], None] | None = None) -> Figures:
        """Run for `duration_ms` after a time to settle. `strike` hits the leader repeatedly."""
        for node in self.nodes:
            self.start(node)
        self._run_until(SETTLE_MS)
        self._is_measuring = True
        elected = self.counts["became leader"]
        if self._has_client:
            self._ask()
            self._look()
        if strike is not None:
            self._strike_later(strike)
        self._run_until(SETTLE_MS + duration_ms)
        self.figures.leaderships = self.counts["became leader"] - elected
        self.figures.measured_ms = duration_ms
        return self.figures

    def _run_until(self, end_ms: int) -> None:
        scheduler = self.scheduler
        while scheduler.now_ms < end_ms:
            before_ms, was_led = scheduler.now_ms, self._leader() is not None
            scheduler.run_next()
            if self._is_measuring and not was_led:
                self.figures.leaderless_ms += scheduler.now_ms - before_ms

    def _leader(self) -> SimNode | None:
        """Return the leader of the highest known epoch, if it has committed a record of that epoch."""
        epochs = [node.raft.state.quorum_epoch for node in self.nodes if node.raft is not None]
        for node in self.nodes:
            if node.raft is None or node.paused_until_ms > self.scheduler.now_ms:
                continue
            role = node.raft.state.role
            if isinstance(role, Leader) and role.is_active and node.raft.state.quorum_epoch == max(epochs):
                return node
        return None

    # The client.

    def _ask(self) -> None:
        self._changes.append(Change(asked_ms=self.scheduler.now_ms))
        self._append()
        self.scheduler.after(self._chance.randint(0, 2 * PROPOSAL_EVERY_MS), self._ask)

    def _look(self) -> None:
        self._append()
        self.scheduler.after(RETRY_MS, self._look)

    def _append(self) -> None:
        """Append what is not under way at the leader. Without a leader do nothing, because there can be thousands of changes."""
        leader = self._leader()
        if leader is None or leader.raft is None:
            return
        epoch = leader.raft.state.quorum_epoch
        for change in list(self._changes):
            if change.payload is not None and self._may_come(change):
                continue
            appended = self.propose_at(leader, epoch, 1)
            if appended is None:
                change.payload = None
                continue
            change.node, change.incarnation, change.quorum_epoch = leader, leader.incarnation, epoch
            change.next_offset, change.payload = Offset(appended[0] + 1), appended[1]

    @staticmethod
    def _may_come(change: Change) -> bool:
        """Return True if the leadership that has appended a change still lasts."""
        node = change.node
        is_same = node is not None and node.is_leader and node.incarnation == change.incarnation
        return is_same and node.raft is not None and node.raft.state.quorum_epoch == change.quorum_epoch

    def on_commit(self, node: SimNode, commit_offset: Offset) -> None:
        """Note the changes that are committed now."""
        super().on_commit(node, commit_offset)
        for change in list(self._changes):
            if change.payload is not None and change.node is node and change.next_offset <= commit_offset:
                held = node.disk.batch_before(change.next_offset)
                if held is not None and held.payload == change.payload:
                    self._changes.remove(change)
                    self.figures.commit_ms.append(self.scheduler.now_ms - change.asked_ms)

    def carry_request(self, node: SimNode, send: Send) -> None:
        """Count the request and carry it."""
        self.figures.requests += self._is_measuring
        super().carry_request(node, send)

    # Faults of the leader.

    def _strike_later(self, strike: Callable[[SimNode], None]) -> None:
        def hit() -> None:
            leader = self._leader()
            if leader is None:
                self.scheduler.after(RETRY_MS, hit)
                return
            strike(leader)
            self._watch(self.scheduler.now_ms)
            self._strike_later(strike)

        self.scheduler.after(self._chance.randint(STRIKE_EVERY_MS // 2, STRIKE_EVERY_MS * 3 // 2), hit)

    def _watch(self, struck_ms: int) -> None:
        if self._leader() is None:
            self.scheduler.after(1, lambda: self._watch(struck_ms))
        else:
            self.figures.outage_ms.append(self.scheduler.now_ms - struck_ms)

    def kill(self, node: SimNode) -> None:
        """End a process as `kill -9` does, which breaks its connections. It starts again later."""
        node.stop()
        for other in self.nodes:
            role = None if other.raft is None else other.raft.state.role
            if isinstance(role, Follower) and role.leader_id == node.key.node_id and role.fetch.request_id is not None:
                self.hand_over(other, RequestFailed(request_id=role.fetch.request_id, failure=Failure.REFUSED))
        self.scheduler.after(DOWN_MS, lambda: self.start(node))

    def freeze(self, node: SimNode) -> None:
        """Stop a process for a while, as SIGSTOP does. Nothing tells the others."""
        node.paused_until_ms = self.scheduler.now_ms + DOWN_MS


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """The times of one row, in milliseconds, with the meaning of `RaftConfig`."""

    fetch_wait_ms: int
    request_timeout_ms: int
    fetch_timeout_ms: int
    election_timeout_ms: int

    def config(self) -> RaftConfig:
        """Return the times as the core's configuration."""
        return RaftConfig(
            fetch_wait_ms=self.fetch_wait_ms,
            fetch_wait_ms_max=self.fetch_wait_ms,
            request_timeout_ms=self.request_timeout_ms,
            fetch_timeout_ms=self.fetch_timeout_ms,
            election_timeout_ms=self.election_timeout_ms,
        )

    def __str__(self) -> str:
        return (
            f"{self.fetch_wait_ms} / {self.request_timeout_ms} / {self.fetch_timeout_ms} / {self.election_timeout_ms}"
        )


def default_times() -> Times:
    """Return the default times."""
    config = RaftConfig()
    return Times(
        fetch_wait_ms=config.fetch_wait_ms,
        request_timeout_ms=config.request_timeout_ms,
        fetch_timeout_ms=config.fetch_timeout_ms,
        election_timeout_ms=config.election_timeout_ms,
    )


def grid() -> list[Times]:
    """Return the defaults, the earlier times, and the defaults with each time changed by itself."""
    base = default_times()
    return [
        base,
        replace(base, request_timeout_ms=REQUEST_TIMEOUT_MS_BEFORE),
        replace(base, fetch_wait_ms=200),
        replace(base, request_timeout_ms=300),
        replace(base, request_timeout_ms=600),
        replace(base, fetch_timeout_ms=1_500),
        replace(base, election_timeout_ms=250),
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One run of one seed."""

    kind: str
    times: Times
    loss: float
    seed: int
    duration_ms: int


def run_task(task: Task) -> Figures:
    """Run a task."""
    quorum = MeasuredQuorum(task.seed, task.times.config(), loss=task.loss, has_client=task.kind != "idle")
    strikes = {"kill": quorum.kill, "freeze": quorum.freeze}
    return quorum.measure(task.duration_ms, strikes.get(task.kind))


Row = dict[str, float | int | str]


def percentile(values: Sequence[int], share: float) -> int:
    """Return the value below which a share of the values lies; 0 without values."""
    return sorted(values)[min(len(values) - 1, int(len(values) * share))] if values else 0


def summary(task: Task, runs: Sequence[Figures]) -> Row:
    """Return the figures of all seeds of one row."""
    measured_ms = sum(each.measured_ms for each in runs)
    commit_ms = [value for each in runs for value in each.commit_ms]
    outage_ms = [value for each in runs for value in each.outage_ms]
    return {
        "kind": task.kind,
        **asdict(task.times),
        "loss_percent": round(task.loss * 100),
        "leaderships_per_minute": round(sum(each.leaderships for each in runs) * MINUTE_MS / measured_ms, 2),
        "leaderless_percent": round(sum(each.leaderless_ms for each in runs) * 100 / measured_ms, 3),
        "commit_p50_ms": round(statistics.median(commit_ms)) if commit_ms else 0,
        "commit_p99_ms": percentile(commit_ms, 0.99),
        "commit_max_ms": max(commit_ms, default=0),
        "requests_per_s": round(sum(each.requests for each in runs) * 1_000 / measured_ms, 1),
        "strikes": len(outage_ms),
        "outage_p50_ms": round(statistics.median(outage_ms)) if outage_ms else 0,
        "outage_p99_ms": percentile(outage_ms, 0.99),
        "outage_max_ms": max(outage_ms, default=0),
    }


def run_rows(rows: Sequence[Task], *, seeds: int, jobs: int) -> list[Row]:
    """Run every row with each seed in `jobs` processes, and print each row when it is complete. No row begins after `BUDGET_S`."""
    started_s = time.monotonic()
    context = multiprocessing.get_context("spawn")
    found: list[Row] = []
    with ProcessPoolExecutor(jobs, mp_context=context, initializer=be_quiet) as pool:
        for times, of_times in groupby(rows, key=lambda row: row.times):
            if time.monotonic() - started_s > BUDGET_S:
                print(f"{times}: not begun, {BUDGET_S} s have passed", flush=True)
                continue
            tasks = [replace(row, seed=seed) for row in of_times for seed in range(seeds)]
            runs = list(pool.map(run_task, tasks))
            for first in range(0, len(tasks), seeds):
                found.append(summary(tasks[first], runs[first : first + seeds]))
                print(json.dumps(found[-1]), flush=True)
    return found


def rows_of(times: Sequence[Times], *, minutes: int, losses: Sequence[float]) -> list[Task]:
    """Return the tasks for each of these times: all losses, an idle quorum, kills and frozen leaders."""
    duration_ms = minutes * MINUTE_MS
    rows: list[Task] = []
    for each in times:
        rows += [Task(kind="loss", times=each, loss=loss, seed=0, duration_ms=duration_ms) for loss in losses]
        rows += [
            Task(kind=kind, times=each, loss=0.0, seed=0, duration_ms=duration_ms)
            for kind in ("idle", "kill", "freeze")
        ]
    return rows


def markdown(rows: Sequence[Row], *, asked: Sequence[Times], seeds: int, minutes: int) -> str:
    """Return the table: a row for each set of times, with the losses side by side. It names the requested times without a row."""
    losses = sorted({row["loss_percent"] for row in rows if row["kind"] == "loss"})
    head = ["wait / request / fetch / election, ms", *(f"{loss} % lost" for loss in losses)]
    present = {_times_of(row) for row in rows}
    missing = [str(times) for times in asked if times not in present]
    lines = [
        "# Stalls of the metadata quorum",
        "",
        f"`make bench-stalls`: three voters in virtual time, {seeds} seeds of {minutes} minutes for each cell. *Now* are the",
        "defaults, *before* is the request time of before; the others change one time of the defaults each.",
        *([f"Not begun within {BUDGET_S} s: {', '.join(missing)}."] if missing else []),
    ]
    by_times: dict[str, dict[tuple[object, object], Row]] = {}
    for row in rows:
        by_times.setdefault(_name(_times_of(row)), {})[row["kind"], row["loss_percent"]] = row
    for title, cell in (
        ("Leaderships a minute", lambda row: f"{row['leaderships_per_minute']}"),
        ("Share of the time without a leader, %", lambda row: f"{row['leaderless_percent']}"),
        (
            "Time to commit, ms: median / 99th percentile / longest",
            lambda row: f"{row['commit_p50_ms']} / {row['commit_p99_ms']} / {row['commit_max_ms']}",
        ),
    ):
        lines += ["", f"## {title}", "", _line(head), "|---|" + "---:|" * len(losses)]
        for name, of in by_times.items():
            lines.append(_line([name, *(cell(of["loss", loss]) for loss in losses)]))
    lines += ["", "## Without loss", ""]
    lines.append(
        _line(
            [head[0], "requests/s, idle", "without a leader after a kill, ms: median / p99 / longest", "after a freeze"]
        )
    )
    lines.append("|---|---:|---:|---:|")
    for name, of in by_times.items():
        cells = [
            f"{row['outage_p50_ms']} / {row['outage_p99_ms']} / {row['outage_max_ms']}"
            for row in (of["kill", 0], of["freeze", 0])
        ]
        lines.append(_line([name, f"{of['idle', 0]['requests_per_s']}", *cells]))
    return "\n".join([*lines, ""])


def _times_of(row: Row) -> Times:
    return Times(**{each.name: int(row[each.name]) for each in fields(Times)})


def _name(times: Times) -> str:
    base = default_times()
    if times == base:
        return f"{times} (now)"
    return f"{times} (before)" if times == replace(base, request_timeout_ms=REQUEST_TIMEOUT_MS_BEFORE) else str(times)


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def main() -> int:
    """Run the grid, or only the defaults; print the table and optionally store it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--minutes", type=int, default=3, help="of virtual time for each seed")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--times", nargs="*", help="fetch wait,request,fetch,election in ms; none: the grid")
    parser.add_argument("--write", type=Path, help="directory for the table")
    arguments = parser.parse_args()
    times = [_parse(text) for text in arguments.times] if arguments.times else grid()
    rows = run_rows(
        rows_of(times, minutes=arguments.minutes, losses=LOSSES), seeds=arguments.seeds, jobs=arguments.jobs
    )
    table = markdown(rows, asked=times, seeds=arguments.seeds, minutes=arguments.minutes)
    if arguments.write is not None:
        (arguments.write / "stalls.md").write_text(table)
        (arguments.write / "stalls.json").write_text(json.dumps(rows, indent=1) + "\n")
    print(table)
    return 0


def _parse(text: str) -> Times:
    wait_ms, request_ms, fetch_ms, election_ms = map(int, text.split(","))
    return Times(
        fetch_wait_ms=wait_ms,
        request_timeout_ms=request_ms,
        fetch_timeout_ms=fetch_ms,
        election_timeout_ms=election_ms,
    )


if __name__ == "__main__":
    sys.exit(main())
