# SPDX-License-Identifier: Apache-2.0
"""Computes target assignments without holding up the event loop.

Small groups are computed at once, in less than 2 ms: most groups are small, and a process costs more than that. Others go to one
process, which starts with the first of them. A thread would not do: pure Python holds the interpreter lock, so that each turn of the
event loop waits for a whole switch interval (`benchmarks/assignment.py` measures it).

For each group the newest input wins: what waits is replaced in its place in the queue, what is being computed is discarded. Requests
are written and answers read in pieces of at most `TURN_S`.

Owns the queue and the process. Belongs to one event loop.
"""

from __future__ import annotations

import asyncio
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from brokerd.assignment_worker import codec
from brokerd.assignment_worker.child import COMMAND
from brokerd.groups.assignment.assignors import assignor_named
from brokerd.groups.assignment.specs import Assignment, MemberSpec, TopicSpec

MAX_INLINE_COST: Final = 500
"""Cost (`cost_of`) up to which an assignment is computed on the event loop; it takes less than 2 ms."""

MAX_COMPUTE_S: Final = 20.0
"""Seconds from the start of a computation in the process to its answer. Then the process is killed: `AssignmentTimeoutError`."""

MAX_QUEUED_GROUPS: Final = 1_000
"""Groups whose computation may wait for the process. More are refused with `AssignmentQueueFullError`."""

TURN_S: Final = 0.000_5
"""Seconds of work on a request or an answer before the event loop has another turn."""

WRITE_BYTES: Final = 16 * 1024
"""Bytes of a request that are collected before they are written."""

STOP_WAIT_S: Final = 2.0
"""Seconds that the process has to end by itself when one of its pipes is closed; then it is killed."""


class AssignmentFailedError(Exception):
    """An assignment was not computed, through no fault of the input; the text says why and what to do."""


class AssignmentSupersededError(AssignmentFailedError):
    """A newer input of the same group has taken the place of this one: wait for its result."""


class AssignmentQueueFullError(AssignmentFailedError):
    """Too many groups wait for the process: try again."""


class AssignmentTimeoutError(AssignmentFailedError):
    """The computation took longer than its limit."""


class AssignmentProcessError(AssignmentFailedError):
    """The process could not start, or it died. The next computation starts another one."""


class WorkerClosedError(AssignmentFailedError):
    """The worker is closed."""


@dataclass(slots=True, eq=False)
class _Job:
    group_id: str
    assignor: str
    members: Sequence[MemberSpec]
    topics: Mapping[bytes, TopicSpec]
    result: asyncio.Future[Assignment]

    def fail(self, error: Exception) -> None:
        if not self.result.done():
            self.result.set_exception(error)


def cost_of(members: Sequence[MemberSpec], topics: Mapping[bytes, TopicSpec]) -> int:
    """Return the cost of an assignment: members, subscriptions and partitions together."""
    subscriptions = sum(len(member.topics) for member in members)
    return len(members) + subscriptions + sum(topic.partition_count for topic in topics.values())


class AssignmentWorker:
    """Computes assignments, at once or in its process.

    Args:
        max_compute_s: as `MAX_COMPUTE_S`.
        max_inline_cost: as `MAX_INLINE_COST`; 0 sends everything to the process.
        max_queued_groups: as `MAX_QUEUED_GROUPS`.
        command: command of the process.
    """

    def __init__(
        self,
        *,
        max_compute_s: float = MAX_COMPUTE_S,
        max_inline_cost: int = MAX_INLINE_COST,
        max_queued_groups: int = MAX_QUEUED_GROUPS,
        command: Sequence[str] = COMMAND,
    ) -> None:
        self._max_compute_s = max_compute_s
        self._max_inline_cost = max_inline_cost
        self._max_queued_groups = max_queued_groups
        self._command = command
        self._waiting: dict[str, _Job] = {}
        self._running: _Job | None = None
        self._task: asyncio.Task[None] | None = None
        self._process: Process | None = None
        self._is_closed = False

    @property
    def process_id(self) -> int | None:
        """Id of the process; None before it is needed, and after it has ended."""
        return self._process.pid if self._process is not None else None

    @property
    def queued_groups(self) -> int:
        """Groups whose computation waits for the process."""
        return len(self._waiting)

    async def assign(
        self, group_id: str, assignor: str, members: Sequence[MemberSpec], topics: Mapping[bytes, TopicSpec]
    ) -> Assignment:
        """Return the assignment. An older computation of the group that has not ended fails with `AssignmentSupersededError`.

        A cancelled caller leaves the queue. The arguments must not change after the call.

        Raises:
            AssignmentError: the assignor refuses the input; the next try would fail as well.
            AssignmentFailedError: it was not computed.
        """
        if self._is_closed:
            raise WorkerClosedError("the broker stops: ask the next coordinator")
        superseded = AssignmentSupersededError(f"group {group_id} has a newer input: wait for its result")
        if self._running is not None and self._running.group_id == group_id:
            self._running.fail(superseded)
        if cost_of(members, topics) <= self._max_inline_cost:
            if group_id in self._waiting:
                self._waiting.pop(group_id).fail(superseded)
            return assignor_named(assignor).assign(members, topics)
        if group_id in self._waiting:
            self._waiting[group_id].fail(superseded)
        elif len(self._waiting) >= self._max_queued_groups:
            raise AssignmentQueueFullError(f"{len(self._waiting)} groups wait for an assignment: try again in a second")
        job = _Job(group_id, assignor, members, topics, asyncio.get_running_loop().create_future())
        self._waiting[group_id] = job
        if self._task is None:
            self._task = asyncio.create_task(self._run())
        try:
            return await job.result
        finally:
            if self._waiting.get(group_id) is job:
                del self._waiting[group_id]

    async def close(self) -> None:
        """End the process. Every waiting caller gets `WorkerClosedError`. A second call does nothing."""
        self._is_closed = True
        for job in (*self._waiting.values(), *([self._running] if self._running is not None else [])):
            job.fail(WorkerClosedError("the broker stops: ask the next coordinator"))
        self._waiting.clear()
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
        await self._end_process(wait_s=STOP_WAIT_S)

    # The process

    async def _run(self) -> None:
        """Compute what waits, oldest group first, until nothing does."""
        try:
            while self._waiting:
                job = self._waiting.pop(next(iter(self._waiting)))
                self._running = job
                try:
                    assignment = await self._compute(job)
                except Exception as error:
                    job.fail(error)
                else:
                    if not job.result.done():
                        job.result.set_result(assignment)
                self._running = None
        finally:
            self._running = None
            self._task = None

    async def _compute(self, job: _Job) -> Assignment:
        """Let the process compute.

        The process lives on after an answer alone. In every other case it may be amid something, and is killed.
        """
        is_answered = False
        try:
            async with asyncio.timeout(self._max_compute_s):
                process = await self._started()
                await _send(process, job)
                answer = await _receive(process, job)
                is_answered = True
        except TimeoutError:
            raise AssignmentTimeoutError(
                f"group {job.group_id}: no assignment of {len(job.members)} members within {self._max_compute_s} s: "
                "the next change of the group tries again; split the group if that fails, too"
            ) from None
        except (OSError, EOFError) as error:
            ended = await self._end_process(wait_s=STOP_WAIT_S)
            raise AssignmentProcessError(
                f"group {job.group_id}: the assignment process has ended ({ended if ended is not None else error}): "
                "the next change of the group starts another one"
            ) from error
        finally:
            if not is_answered:
                await self._end_process()
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def _started(self) -> Process:
        if self._process is not None and self._process.returncode is not None:
            await self._end_process()
        if self._process is None:
            # A session of its own, so that Ctrl-C in a terminal reaches the broker alone.
            self._process = await asyncio.create_subprocess_exec(
                *self._command, stdin=PIPE, stdout=PIPE, start_new_session=True
            )
        return self._process

    async def _end_process(self, wait_s: float = 0.0) -> str | None:
        """End the process, and wait for its end, so that no zombie stays. Return how it ended.

        Args:
            wait_s: seconds that it has to end by itself: it sees the end of its input, or is dying already. (A signal to a process
                that has just died makes asyncio lose its exit code.)
        """
        process, self._process = self._process, None
        if process is None:
            return None
        assert process.stdin is not None
        process.stdin.close()
        if wait_s:
            with suppress(TimeoutError):
                await asyncio.wait_for(process.wait(), wait_s)
        if process.returncode is None:
            with suppress(ProcessLookupError):
                process.kill()
        code = await process.wait()
        return f"signal {-code}" if code < 0 else f"exit code {code}"


class _Turn:
    """Work in pieces of `TURN_S`."""

    def __init__(self) -> None:
        self._started_s = time.perf_counter()

    async def pause(self) -> None:
        """Give the event loop a turn if this one has been long."""
        if time.perf_counter() - self._started_s > TURN_S:
            await asyncio.sleep(0)
            self._started_s = time.perf_counter()


async def _send(process: Process, job: _Job) -> None:
    sink = process.stdin
    assert sink is not None
    turn = _Turn()
    collected = bytearray()
    for frame in codec.request_frames(job.assignor, job.members, job.topics):
        collected += codec.pack(frame)
        if len(collected) >= WRITE_BYTES:
            sink.write(bytes(collected))
            collected.clear()
            await sink.drain()
        await turn.pause()
    sink.write(bytes(collected))
    await sink.drain()


async def _receive(process: Process, job: _Job) -> Assignment | Exception:
    source = process.stdout
    assert source is not None
    turn = _Turn()
    changed: dict[int, Mapping[bytes, tuple[int, ...]]] = {}
    while True:
        (length,) = codec.LENGTH.unpack(await source.readexactly(codec.LENGTH.size))
        if length > codec.MAX_FRAME_BYTES:
            raise EOFError(f"a frame of {length} bytes")
        frame = codec.unpack(await source.readexactly(length))
        kind = frame[0]
        if kind == codec.REFUSED:
            return codec.refusal(frame)
        if kind == codec.DONE:
            break
        _, position, share = frame
        changed[position] = dict(share)
        await turn.pause()
    return {member.member_id: changed.get(position, member.owned) for position, member in enumerate(job.members)}
