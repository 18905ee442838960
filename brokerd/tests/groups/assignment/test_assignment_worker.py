# SPDX-License-Identifier: Apache-2.0
"""The worker with its real process: answers, failures, limits, the newest input, and a quiet end."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress

import psutil
import pytest
import uvloop
from hypothesis import given, settings

from brokerd.assignment_worker import codec, worker
from brokerd.assignment_worker.child import COMMAND
from brokerd.assignment_worker.worker import (
    AssignmentProcessError,
    AssignmentQueueFullError,
    AssignmentSupersededError,
    AssignmentTimeoutError,
    AssignmentWorker,
    WorkerClosedError,
    cost_of,
)
from brokerd.groups.assignment.assignors import ASSIGNORS
from brokerd.groups.assignment.specs import (
    AssignmentTooLargeError,
    DuplicateMemberError,
    MemberSpec,
    TopicSpec,
    UnknownAssignorError,
)
from brokerd.tests.groups.assignment import assignment_laws as laws
from brokerd.tests.groups.assignment.groups_of_any_kind import Group, groups

TOPICS = {laws.topic_id(number): TopicSpec(laws.topic_id(number), 20, ()) for number in range(5)}
MEMBERS = [MemberSpec(f"member-{number}", None, None, frozenset(TOPICS), {}) for number in range(7)]
EXPECTED = ASSIGNORS["uniform"].assign(MEMBERS, TOPICS)
STUCK = (sys.executable, "-c", "import sys; sys.stdin.buffer.read()")
"""A process that reads everything and never answers."""


@pytest.fixture
async def real() -> AsyncIterator[AssignmentWorker]:
    """A worker that sends everything to its process."""
    started = AssignmentWorker(max_inline_cost=0)
    yield started
    await started.close()
    assert started.process_id is None


def children() -> list[int]:
    """Return the ids of the child processes, zombies included, but those that other tests of this process have left running."""
    return [child.pid for child in psutil.Process().children() if child.pid not in _OTHERS]


_OTHERS = set[int]()


@pytest.fixture(autouse=True)
def others() -> Iterator[None]:
    """Note which child processes are there before a test."""
    _OTHERS.update(child.pid for child in psutil.Process().children())
    yield
    _OTHERS.clear()


@settings(max_examples=50, deadline=None)
@given(groups())
def test_a_request_arrives_as_it_was(group: Group) -> None:
    """Frames carry members and topics unchanged, and an answer carries what differs from what members have."""
    request = codec.Request()
    frames = [
        codec.unpack(codec.pack(frame)[4:]) for frame in codec.request_frames("range", group.members, group.topics)
    ]
    assert [request.add(frame) for frame in frames] == [False] * (len(frames) - 1) + [True]
    assert (request.assignor, request.members, request.topics) == ("range", group.members, group.topics)
    assignment = ASSIGNORS["range"].assign(group.members, group.topics)
    changed = [frame[1] for frame in codec.answer_frames(group.members, assignment) if frame[0] == codec.SHARE]
    assert changed == [
        position for position, each in enumerate(group.members) if assignment[each.member_id] != each.owned
    ]


def test_racks_of_a_large_topic_travel_in_several_frames() -> None:
    """A topic whose racks need more than one frame arrives as it was."""
    racks = tuple(frozenset({f"rack-{number % 7}"}) for number in range(2 * codec.PARTITIONS_PER_FRAME + 1))
    topics = {laws.topic_id(0): TopicSpec(laws.topic_id(0), len(racks), racks)}
    request = codec.Request()
    for frame in codec.request_frames("uniform", [], topics):
        request.add(frame)
    assert request.topics == topics


async def test_the_process_answers_as_the_assignor_does(real: AssignmentWorker) -> None:
    """One process answers all computations as the assignor itself does, and starts with the first one."""
    assert real.process_id is None
    assert await real.assign("g", "uniform", MEMBERS, TOPICS) == EXPECTED
    first = real.process_id
    owning = laws.owning(MEMBERS, EXPECTED)
    assert await real.assign("g", "uniform", owning, TOPICS) == EXPECTED
    racked = [MemberSpec(f"m{n}", f"i{n}", f"r{n % 3}", frozenset(list(TOPICS)[n % 3 :]), {}) for n in range(20)]
    topics = {
        key: TopicSpec(key, 6, tuple(frozenset({f"r{(n + each) % 3}"}) for each in range(6)))
        for n, key in enumerate(TOPICS)
    }
    for name in ASSIGNORS:
        assert await real.assign("h", name, racked, topics) == ASSIGNORS[name].assign(racked, topics)
    assert real.process_id == first


async def test_a_small_group_needs_no_process() -> None:
    """A small group is computed at once; one above the limit goes to the process."""
    small = AssignmentWorker(max_inline_cost=cost_of(MEMBERS, TOPICS))
    assert await small.assign("g", "uniform", MEMBERS, TOPICS) == EXPECTED
    assert small.process_id is None
    one_more = [*MEMBERS, MemberSpec("x", None, None, frozenset(), {})]
    assert await small.assign("g", "uniform", one_more, TOPICS) == {**EXPECTED, "x": {}}
    assert small.process_id is not None
    await small.close()


@pytest.mark.parametrize("inline", [0, 10**9])
async def test_refusals_of_the_assignor_keep_their_type(inline: int) -> None:
    """An input that the assignor refuses fails with the assignor's error, and the process goes on."""
    each = AssignmentWorker(max_inline_cost=inline)
    with pytest.raises(DuplicateMemberError, match="keep the newer one"):
        await each.assign("g", "uniform", [MEMBERS[0], MEMBERS[0]], TOPICS)
    with pytest.raises(UnknownAssignorError, match="uniform, range"):
        await each.assign("g", "sticky", MEMBERS, TOPICS)
    huge = {laws.topic_id(0): TopicSpec(laws.topic_id(0), 10**9, ())}
    with pytest.raises(AssignmentTooLargeError):
        await each.assign("g", "range", MEMBERS, huge)
    assert await each.assign("g", "uniform", MEMBERS, TOPICS) == EXPECTED
    await each.close()


async def test_a_process_that_dies_is_replaced(real: AssignmentWorker) -> None:
    """A process that is killed between computations is replaced without a failure to anybody, or with a typed one."""
    await real.assign("g", "uniform", MEMBERS, TOPICS)
    first = real.process_id
    assert first is not None
    os.kill(first, signal.SIGKILL)
    with suppress(AssignmentProcessError):
        assert await real.assign("g", "uniform", MEMBERS, TOPICS) == EXPECTED
    assert await real.assign("g", "uniform", MEMBERS, TOPICS) == EXPECTED
    assert real.process_id != first
    assert children() == [real.process_id]


async def test_a_process_that_dies_at_work_fails_its_computation_alone() -> None:
    """The computation under way fails with how the process ended; the next one has another process."""
    each = AssignmentWorker(max_inline_cost=0, command=(sys.executable, "-c", "import sys; sys.exit(3)"))
    with pytest.raises(AssignmentProcessError, match="exit code 3"):
        await each.assign("g", "uniform", MEMBERS, TOPICS)
    assert children() == []
    each._command = COMMAND
    assert await each.assign("g", "uniform", MEMBERS, TOPICS) == EXPECTED
    await each.close()


async def test_a_program_that_is_missing_is_a_typed_failure() -> None:
    """A process that cannot start is a failure of the computation, not of the caller's task."""
    each = AssignmentWorker(max_inline_cost=0, command=("/nowhere/python",))
    with pytest.raises(AssignmentProcessError, match="No such file"):
        await each.assign("g", "uniform", MEMBERS, TOPICS)
    await each.close()


async def test_a_computation_beyond_its_time_is_killed() -> None:
    """A process that does not answer within the limit is killed and gone, and the next computation starts another one."""
    each = AssignmentWorker(max_inline_cost=0, max_compute_s=0.2, command=STUCK)
    with pytest.raises(AssignmentTimeoutError, match=r"within 0\.2 s"):
        await each.assign("g", "uniform", MEMBERS, TOPICS)
    assert each.process_id is None
    assert children() == []
    await each.close()


async def until(condition: Callable[[], bool]) -> None:
    """Wait until the condition holds."""
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110 -- the worker has no event for its inside
            await asyncio.sleep(0.001)


async def test_the_newest_input_wins() -> None:
    """A newer input ends the older one, running or waiting, and keeps its place in the queue."""
    each = AssignmentWorker(max_inline_cost=0, max_compute_s=0.5, command=STUCK)
    running = asyncio.create_task(each.assign("g", "uniform", MEMBERS, TOPICS))
    await until(lambda: each.process_id is not None and each.queued_groups == 0)
    waiting = asyncio.create_task(each.assign("g", "uniform", MEMBERS[1:], TOPICS))
    with pytest.raises(AssignmentSupersededError, match="newer input"):
        await running
    other = asyncio.create_task(each.assign("h", "uniform", MEMBERS, TOPICS))
    await until(lambda: each.queued_groups == 2)
    each._command = COMMAND  # The stuck process is killed after its time.
    newest = asyncio.create_task(each.assign("g", "uniform", MEMBERS[2:], TOPICS))
    with pytest.raises(AssignmentSupersededError):
        await waiting
    done: list[str] = []
    newest.add_done_callback(lambda _: done.append("g"))
    other.add_done_callback(lambda _: done.append("h"))
    each._max_compute_s = 20.0
    assert await other == EXPECTED
    assert await newest == ASSIGNORS["uniform"].assign(MEMBERS[2:], TOPICS)
    assert done == ["g", "h"]
    await each.close()


async def test_a_small_input_supersedes_a_large_one() -> None:
    """A group that has shrunk is computed at once, and what it asked for before ends."""
    each = AssignmentWorker(max_inline_cost=cost_of(MEMBERS[:1], TOPICS), command=STUCK)
    for is_running in (True, False):
        older = asyncio.create_task(each.assign("g" if is_running else "h", "uniform", MEMBERS, TOPICS))
        await until(lambda: each.queued_groups == (0 if is_running else 1) and each.process_id is not None)  # noqa: B023
        assert await each.assign("g" if is_running else "h", "uniform", MEMBERS[:1], TOPICS)
        with pytest.raises(AssignmentSupersededError):
            await older
    assert each.queued_groups == 0
    await each.close()


async def test_the_queue_is_bounded_and_cancelled_callers_leave_it() -> None:
    """One group too many is refused. A caller that is cancelled leaves room for another one."""
    each = AssignmentWorker(max_inline_cost=0, max_queued_groups=1, command=STUCK)
    tasks = [asyncio.create_task(each.assign("a", "uniform", MEMBERS, TOPICS))]
    await until(lambda: each.process_id is not None)
    tasks.append(asyncio.create_task(each.assign("b", "uniform", MEMBERS, TOPICS)))
    await until(lambda: each.queued_groups == 1)
    with pytest.raises(AssignmentQueueFullError, match="try again"):
        await each.assign("c", "uniform", MEMBERS, TOPICS)
    tasks[1].cancel()
    await until(lambda: each.queued_groups == 0)
    tasks[1] = asyncio.create_task(each.assign("c", "uniform", MEMBERS, TOPICS))
    await until(lambda: each.queued_groups == 1)
    await each.close()
    for task in tasks:
        with pytest.raises((WorkerClosedError, asyncio.CancelledError)):
            await task
    with pytest.raises(WorkerClosedError):
        await each.assign("a", "uniform", MEMBERS, TOPICS)
    await each.close()
    assert children() == []


async def test_a_cancelled_caller_at_work_does_not_disturb_the_next(real: AssignmentWorker) -> None:
    """The answer to a caller that is gone is read and dropped; the next caller gets its own."""
    await real.assign("g", "uniform", MEMBERS, TOPICS)
    first = real.process_id
    for _ in range(20):
        gone = asyncio.create_task(real.assign("g", "range", MEMBERS, TOPICS))
        await asyncio.sleep(0)
        gone.cancel()
        assert await real.assign("h", "uniform", MEMBERS, TOPICS) == EXPECTED
    assert real.process_id == first


def test_uvloop_runs_it_as_well() -> None:
    """On the broker's own kind of event loop: an answer, a killed process, a refusal, the end."""

    async def check() -> None:
        each = AssignmentWorker(max_inline_cost=0)
        assert await each.assign("g", "uniform", MEMBERS, TOPICS) == EXPECTED
        for _ in range(5):
            assert each.process_id is not None
            os.kill(each.process_id, signal.SIGKILL)
            try:
                await each.assign("g", "uniform", MEMBERS, TOPICS)
            except AssignmentProcessError:
                assert await each.assign("g", "uniform", MEMBERS, TOPICS) == EXPECTED
        with pytest.raises(DuplicateMemberError):
            await each.assign("g", "uniform", [MEMBERS[0]] * 2, TOPICS)
        await each.close()
        assert children() == []

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(check())


OWNER = """
import asyncio, signal, sys
from brokerd.assignment_worker.worker import AssignmentWorker
from brokerd.groups.assignment.specs import MemberSpec, TopicSpec

async def main():
    worker = AssignmentWorker(max_inline_cost=0)
    topic = TopicSpec(b"t", 3, ())
    await worker.assign("g", "uniform", [MemberSpec("m", None, None, frozenset({b"t"}), {})], {b"t": topic})
    print(worker.process_id, flush=True)
    try:
        if sys.argv[1] != "close":
            await asyncio.Event().wait()
    finally:
        # A broker that is interrupted closes its worker, too. One that is killed cannot.
        await worker.close()

# A test run in the background may ignore SIGINT and hand that down: the broker gets Python's own handler back.
signal.signal(signal.SIGINT, signal.default_int_handler)
asyncio.run(main())
"""


@pytest.mark.parametrize("end", ["close", "kill", "interrupt"])
def test_the_process_ends_with_its_broker_and_in_silence(end: str) -> None:
    """Closed, killed or interrupted: the broker leaves no process behind, and the process writes nothing."""
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, end],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert owner.stdout is not None
    try:
        child = psutil.Process(int(owner.stdout.readline()))
        if end == "kill":
            owner.kill()
        elif end == "interrupt":
            # As Ctrl-C does: everybody in the foreground group is interrupted.
            os.killpg(owner.pid, signal.SIGINT)
        _, errors = owner.communicate(timeout=30)
    finally:
        owner.kill()
        owner.wait()
    psutil.wait_procs([child], timeout=30)
    assert not child.is_running()
    if end == "interrupt":
        assert errors.rstrip().endswith("KeyboardInterrupt")
        assert "child" not in errors
    else:
        assert errors == ""


async def test_turns_of_the_event_loop_are_short() -> None:
    """Requests and answers are cut into pieces: others have many turns while a large group is on its way."""
    topics = {laws.topic_id(number): TopicSpec(laws.topic_id(number), 50, ()) for number in range(200)}
    members = [MemberSpec(f"member-{number:04}", None, None, frozenset(topics), {}) for number in range(500)]
    each = AssignmentWorker()
    assert cost_of(members, topics) > worker.MAX_INLINE_COST
    computing = asyncio.create_task(each.assign("g", "uniform", members, topics))
    turns = 0
    while not computing.done():
        await asyncio.sleep(0)
        turns += 1
    laws.check_owners(members, topics, await computing)
    assert turns > 20
    await each.close()
