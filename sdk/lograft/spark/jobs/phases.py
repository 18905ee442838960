# SPDX-License-Identifier: Apache-2.0
"""Where the time of an ingest went: what Spark took, and what Lograft took. Pure.

The coordinator of the ingest sees when it was opened, when the first task opened an attempt, when the last one sealed its own, and
when everything was published. So the times say nothing that Spark could hide, and cost nothing in the tasks. They are as exact as
the status is asked often.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from lograft.types import IngestDescription, IngestState


@dataclass(frozen=True, slots=True, kw_only=True)
class Moments:
    """When something was seen first, in seconds of one clock; None: not seen.

    Attributes:
        asked: Spark was asked to start.
        ready: its session was there.
        opened: the ingest was open.
        staging: a task had opened an attempt.
        sealed: the last attempt that was seen to be sealed was sealed.
        committed: everything was published.
        ended: Spark said that the job has ended.
    """

    asked: float
    ready: float
    opened: float | None = None
    staging: float | None = None
    sealed: float | None = None
    committed: float | None = None
    ended: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """A part of the time.

    Attributes:
        what: what happened in it.
        is_ours: True: Lograft works. False: Spark starts, plans, or reads.
        seconds: how long it took.
    """

    what: str
    is_ours: bool
    seconds: float


def noted(moments: Moments, seen: IngestDescription, sealed_before: int, now: float) -> Moments:
    """Return the moments after a look at the status.

    Args:
        moments: what is known.
        seen: the status.
        sealed_before: sealed attempts at the look before.
        now: time of the look, in seconds.
    """
    found = moments
    if found.opened is None:
        found = replace(found, opened=now)
    is_over = seen.state in (IngestState.DECIDED, IngestState.COMMITTED)
    if found.staging is None and (seen.open_attempts or seen.sealed_attempts or is_over):
        found = replace(found, staging=now)
    if seen.sealed_attempts > sealed_before or (is_over and found.sealed is None):
        found = replace(found, sealed=now)
    if seen.state is IngestState.COMMITTED and found.committed is None:
        found = replace(found, committed=now)
    return found


def phases(moments: Moments) -> list[Phase]:
    """Return the parts of the time, in order; together they are all of it. What was not seen belongs to the next part."""
    named = (
        ("start Spark", False, moments.ready),
        ("look at the files, plan", False, moments.opened),
        ("start the Python workers, read, sort", False, moments.staging),
        ("stage the records, while Spark reads on", True, moments.sealed),
        ("decide and publish", True, moments.committed),
        ("end the job", False, moments.ended),
    )
    found: list[Phase] = []
    before = moments.asked
    for what, is_ours, at in named:
        if at is not None:
            found.append(Phase(what=what, is_ours=is_ours, seconds=max(0.0, at - before)))
            before = max(before, at)
    return found


def shares(found: list[Phase]) -> tuple[float, float]:
    """Return the seconds of Spark alone, and ours."""
    ours = sum(each.seconds for each in found if each.is_ours)
    return sum(each.seconds for each in found) - ours, ours
