# SPDX-License-Identifier: Apache-2.0
"""The SDK's membership core against the broker's group core, in virtual time, with messages that are lost, late and doubled.

Laws: no partition is held by two members at once; no commit of a former owner moves an offset back; when faults end, every
partition is held by somebody within a bounded time.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest
from lograft._groups.membership import LEAVE, WILL_BE_BACK, Membership, Phase, Refused, Request, State, Subscription
from lograft._groups.steps import Lost, Revoked, Unassigned
from lograft.wire.codes import ErrorCode

from brokerd.groups.answers import FetchedOffsets, Left, MemberState, OffsetResults, Outcome
from brokerd.groups.answers import Refused as CoreRefused
from brokerd.groups.commands import (
    Beat,
    Command,
    CommitOffsets,
    FetchOffsets,
    Join,
    Leave,
    OffsetCommit,
    StreamClosed,
)
from brokerd.groups.effects import MemberRemoved, PushAssignment
from brokerd.groups.records import Partitions
from brokerd.groups.records import Subscription as CoreSubscription
from brokerd.tests.groups.coordinator_host import CoordinatorHost, topic

TOPICS = (topic("t", 5), topic("u", 3))
LIMIT_MS = 20_000
STEP_MS = 50
STEPS = 1_500
QUIET_MS = 120_000
SEEDS = range(12)

Key = tuple[bytes, int]


@dataclass(eq=False)
class Walker:
    """One application with a member of the SDK, and its way to the coordinator."""

    name: str
    core: Membership
    instance_id: str | None = None
    stream: int | None = None
    asked_ms: int = 0
    commit_number: int = 0
    is_stalled: bool = False
    positions: dict[Key, int] = field(default_factory=dict[Key, int])
    looked_up: dict[Key, tuple[int, int]] = field(default_factory=dict[Key, "tuple[int, int]"])


def by_topic(keys: tuple[Key, ...]) -> Partitions:
    """Return partitions by topic id."""
    found: dict[bytes, tuple[int, ...]] = {}
    for topic_id, number in sorted(keys):
        found[topic_id] = (*found.get(topic_id, ()), number)
    return found


class Walk:
    """Some walkers and one coordinator."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.host = CoordinatorHost(*TOPICS)
        self.walkers: list[Walker] = []
        self.count = 0
        self.streams = 0
        self.has_faults = True
        self.late: list[tuple[int, Walker, int, State | Refused]] = []
        self.committed: dict[Key, int] = {}
        self.told = {"assigned": 0, "revoked": 0, "lost": 0}

    def add(self, instance_id: str | None = None) -> None:
        """Start an application."""
        self.count += 1
        names = self.rng.choice((("t",), ("t", "u")))
        core = Membership(
            Subscription(names),
            rng=random.Random(self.count),
            processing_limit_ms=LIMIT_MS,
            is_static=instance_id is not None,
        )
        self.walkers.append(Walker(f"member-{self.count}", core, instance_id, asked_ms=self.host.now_ms))

    def step(self) -> None:
        """Let a moment pass, with what everybody does in it."""
        self.host.run(STEP_MS)
        now_ms = self.host.now_ms
        if self.has_faults:
            self.disturb()
        due = [each for each in self.late if each[0] <= now_ms]
        self.late = [each for each in self.late if each[0] > now_ms]
        for _, walker, number, state in due:
            walker.core.hear(number, state, now_ms)
        for walker in list(self.walkers):
            self.advance(walker, now_ms)
        self.carry_out_pushes()
        self.check_owners()

    def disturb(self) -> None:
        """Do something that happens to real systems."""
        rng = self.rng
        roll = rng.random()
        if roll < 0.01 and len(self.walkers) < 5:
            used = {each.instance_id for each in self.walkers}
            free = [name for name in ("one", "two") if name not in used]
            self.add(rng.choice([None, *free]))
        elif roll < 0.015 and len(self.walkers) > 1:
            # A crash: it holds nothing any more, and says nothing.
            gone = self.walkers.pop(rng.randrange(len(self.walkers)))
            self.close_stream(gone)
        elif roll < 0.02 and self.walkers:
            rng.choice(self.walkers).core.leave(will_be_back=rng.random() < 0.5)
        elif roll < 0.025:
            self.host.fail_over(rng.randrange(1 << 30))
            for walker in self.walkers:
                walker.stream = None
                walker.core.disconnected()
        elif roll < 0.045 and self.walkers:
            walker = rng.choice(self.walkers)
            self.close_stream(walker)
            walker.core.disconnected()
        elif roll < 0.05 and self.walkers:
            walker = rng.choice(self.walkers)
            walker.is_stalled = not walker.is_stalled
        elif roll < 0.053 and self.walkers:
            rng.choice(self.walkers).core.subscribe(Subscription(rng.choice((("t",), ("t", "u"), ("u",)))))

    def close_stream(self, walker: Walker) -> None:
        """End the stream of a member; the coordinator sees it."""
        if walker.stream is not None:
            self.host.do(StreamClosed(stream=walker.stream))
            walker.stream = None

    def advance(self, walker: Walker, now_ms: int) -> None:
        """The application polls unless it is stalled, and the member sends what is due."""
        if walker.stream is None and self.rng.random() < 0.5:
            self.streams += 1
            walker.stream = self.streams
        if not walker.is_stalled:
            walker.asked_ms = now_ms
        walker.core.tick(now_ms, now_ms - walker.asked_ms)
        if not walker.is_stalled:
            self.poll(walker)
        request = None if walker.stream is None else walker.core.request(now_ms, now_ms - walker.asked_ms)
        if request is not None:
            self.send(walker, request)
        if walker.core.phase is Phase.ENDED:
            self.walkers.remove(walker)

    def poll(self, walker: Walker) -> None:
        """What a consumer does in a poll: steps, look-ups, records, commits."""
        core = walker.core
        while (step := core.next_step()) is not None:
            if isinstance(step, Revoked):
                self.told["revoked"] += len(step.partitions)
                self.commit(walker, step.partitions)
                for key in step.partitions:
                    del walker.positions[key]
                core.gave_up(step.partitions)
            elif isinstance(step, Lost):
                self.told["lost"] += len(step.partitions)
                for key in step.partitions:
                    del walker.positions[key]
            elif isinstance(step, Unassigned):
                ready = [
                    key
                    for key in step.partitions
                    if key in walker.looked_up and core.is_fresh(key, walker.looked_up[key][0])
                ]
                for key in ready:
                    assert core.take(key)
                    self.told["assigned"] += 1
                    walker.positions[key] = walker.looked_up.pop(key)[1]
                if not ready:
                    break
            else:
                break
        self.look_up(walker)
        for key in walker.positions:
            walker.positions[key] += self.rng.randrange(3)
        if self.rng.random() < 0.2:
            self.commit(walker, tuple(walker.positions))

    def look_up(self, walker: Walker) -> None:
        """Ask for first offsets; the answer may be used much later."""
        wanted = walker.core.wanted
        if wanted and not (self.has_faults and self.rng.random() < 0.3):
            outcome = self.host.do(FetchOffsets(group_id="g", partitions=wanted))
            assert isinstance(outcome, FetchedOffsets)
            mark = walker.core.mark()
            for each in outcome.offsets:
                offset = 0 if each.value is None else each.value.offset
                walker.looked_up[each.topic_id, each.partition] = (mark, offset)

    def commit(self, walker: Walker, keys: tuple[Key, ...]) -> None:
        """Commit positions, and check that what counts never goes back."""
        if not keys or walker.core.phase is not Phase.MEMBER:
            return
        walker.commit_number += 1
        offsets = tuple(
            OffsetCommit(topic_id=key[0], partition=key[1], offset=walker.positions[key]) for key in sorted(keys)
        )
        outcome = self.host.do(
            CommitOffsets(
                group_id="g",
                member_id=walker.name,
                member_epoch=walker.core.epoch,
                commit_number=walker.commit_number,
                offsets=offsets,
            )
        )
        if isinstance(outcome, OffsetResults):
            for result, offset in zip(outcome.results, offsets, strict=True):
                if result.refused is None:
                    key = (result.topic_id, result.partition)
                    assert offset.offset >= self.committed.get(key, 0), f"{walker.name} moved {key} back"
                    self.committed[key] = offset.offset

    def send(self, walker: Walker, request: Request) -> None:
        """Bring a request to the coordinator and its answer back, or lose one of them."""
        fate = self.rng.random() if self.has_faults else 1.0
        if fate < 0.05:
            return
        outcome = self.host.do(self.command(walker, request))
        self.host.run()
        if fate < 0.1:
            return
        answer = converted(outcome)
        delay_ms = self.rng.choice((0, 0, 0, 150, 2_000)) if self.has_faults else 0
        self.late.append((self.host.now_ms + delay_ms, walker, request.beat_number, answer))
        if fate < 0.13:
            self.late.append((self.host.now_ms + 3_000, walker, request.beat_number, answer))

    def command(self, walker: Walker, request: Request) -> Command:
        """Convert a request."""
        if request.member_epoch in (LEAVE, WILL_BE_BACK):
            return Leave(
                group_id="g",
                member_id=walker.name,
                instance_id=walker.instance_id,
                will_be_back=request.member_epoch == WILL_BE_BACK,
                beat_number=request.beat_number,
            )
        wanted = None if request.subscription is None else CoreSubscription(request.subscription.topics)
        if request.member_epoch == 0:
            assert wanted is not None
            return Join(
                group_id="g",
                member_id=walker.name,
                subscription=wanted,
                instance_id=walker.instance_id,
                processing_limit_ms=LIMIT_MS,
                beat_number=request.beat_number,
                stream=walker.stream,
            )
        assert request.owned is not None
        return Beat(
            group_id="g",
            member_id=walker.name,
            member_epoch=request.member_epoch,
            instance_id=walker.instance_id,
            owned=by_topic(request.owned),
            assignment_number=request.assignment_number,
            idle_ms=request.idle_ms,
            subscription=wanted,
            beat_number=request.beat_number,
            stream=walker.stream,
        )

    def carry_out_pushes(self) -> None:
        """Deliver what the coordinator pushes over streams that are open; some of it late."""
        effects, self.host.effects = self.host.effects, []
        for effect in effects:
            if not isinstance(effect, PushAssignment | MemberRemoved):
                continue
            walker = next((each for each in self.walkers if each.stream == effect.stream), None)
            if walker is None or effect.stream is None:
                continue
            told: State | Refused = Refused(code=ErrorCode.UNKNOWN_MEMBER, message="removed")
            if isinstance(effect, PushAssignment):
                told = State(
                    member_epoch=effect.member_epoch,
                    assignment_number=effect.assignment_number,
                    assignment=keys_of(effect.assignment),
                )
            delay_ms = self.rng.choice((0, 0, 100)) if self.has_faults else 0
            self.late.append((self.host.now_ms + delay_ms, walker, 0, told))

    def check_owners(self) -> None:
        """No partition is held by two applications. One that is over its limit or its session holds nothing."""
        owners: dict[Key, str] = {}
        for walker in self.walkers:
            for key in walker.core.held:
                assert key not in owners, f"{key} is held by {owners[key]} and {walker.name}"
                owners[key] = walker.name


def keys_of(assignment: Partitions) -> frozenset[Key]:
    """Return partitions of an assignment."""
    return frozenset((topic_id, number) for topic_id, numbers in assignment.items() for number in numbers)


def converted(outcome: Outcome) -> State | Refused:
    """Convert an answer of the coordinator."""
    if isinstance(outcome, CoreRefused):
        code = ErrorCode[outcome.code.value]
        return Refused(code=code, message=outcome.message, retry_after_ms=outcome.retry_after_ms)
    if isinstance(outcome, Left):
        return State(member_epoch=0)
    assert isinstance(outcome, MemberState), outcome
    return State(
        member_epoch=outcome.member_epoch,
        assignment_number=outcome.assignment_number,
        assignment=None if outcome.assignment is None else keys_of(outcome.assignment),
        heartbeat_interval_ms=outcome.heartbeat_interval_ms,
        session_timeout_ms=outcome.session_timeout_ms,
    )


@pytest.mark.parametrize("seed", SEEDS)
def test_members_share_every_partition_and_never_two_one(seed: int) -> None:
    """Whatever is lost, late, doubled, crashed or stalled, the laws hold, and the group settles when it ends."""
    walk = Walk(seed)
    walk.add()
    walk.add()
    for _ in range(STEPS):
        walk.step()
    walk.has_faults = False
    for walker in walk.walkers:
        walker.is_stalled = False
        if walker.core.phase is not Phase.LEAVING:
            walker.core.subscribe(Subscription(("t", "u")))
    walk.add()
    walk.walkers[-1].core.subscribe(Subscription(("t", "u")))
    for _ in range(QUIET_MS // STEP_MS):
        walk.step()
    held = sorted(key for walker in walk.walkers for key in walker.core.held)
    everything = sorted((each.topic_id, number) for each in TOPICS for number in range(each.partition_count))
    assert held == everything
    assert walk.told["assigned"] > 10, walk.told
    assert walk.told["revoked"] > 2, walk.told


def test_walks_see_every_kind_of_end() -> None:
    """The walks together revoke and lose partitions; otherwise they would prove little."""
    lost = 0
    for seed in range(4):
        walk = Walk(seed)
        walk.add()
        walk.add()
        for _ in range(STEPS):
            walk.step()
        lost += walk.told["lost"]
    assert lost > 0
