# SPDX-License-Identifier: Apache-2.0
"""Commits on their way: order, numbers, pauses, and whose commit is done."""

from __future__ import annotations

import random

from lograft._groups.commits import COMMIT_RETRY_FLOOR_MS, COMMIT_RETRY_LIMIT_MS, MAX_OFFSETS, CommitRequest, Commits
from lograft.errors import MembershipLostError, RequestTimeoutError
from lograft.types import OffsetAndMetadata

TOPIC = b"t" * 16
A, B = (TOPIC, 0), (TOPIC, 1)


def at(offset: int) -> OffsetAndMetadata:
    """Return an offset without metadata."""
    return OffsetAndMetadata(offset)


def send(commits: Commits, now_ms: int = 0) -> CommitRequest:
    """Return the request that is sent now."""
    request = commits.request(now_ms)
    assert request is not None, "nothing is sent"
    return request


def test_commits_during_a_request_travel_together_with_the_newest_offsets() -> None:
    """One request is under way at a time; the next one has the last offset of each partition."""
    commits = Commits(random.Random(1))
    first = commits.add({A: at(1)})
    request = send(commits)
    second, third = commits.add({A: at(2), B: at(5)}), commits.add({A: at(3)})
    assert commits.request(0) is None
    assert [done.ticket for done in commits.answered(request.number, {}, 0)] == [first]
    request = send(commits)
    assert (request.number, request.offsets) == (2, {A: at(3), B: at(5)})
    assert sorted(done.ticket for done in commits.answered(request.number, {}, 0)) == [second, third]
    assert commits.is_idle


def test_unanswered_offsets_are_sent_again_after_a_pause_under_a_higher_number() -> None:
    """A newer offset that came meanwhile is sent instead, so a late copy of the first request moves nothing back."""
    commits = Commits(random.Random(1))
    commits.add({A: at(1)})
    request = send(commits)
    commits.unanswered(request.number, 1_000)
    commits.add({A: at(2)})
    wait_ms = commits.wait_ms(1_000)
    assert wait_ms is not None
    assert wait_ms >= COMMIT_RETRY_FLOOR_MS
    assert commits.request(1_000 + COMMIT_RETRY_FLOOR_MS - 1) is None
    again = send(commits, 1_000 + wait_ms)
    assert (again.number, again.offsets) == (2, {A: at(2)})
    assert commits.answered(request.number, {}, 1_200) == [], "a late answer to the first request counted"


def test_failed_partitions_are_named_and_retriable_ones_sent_again() -> None:
    """A commit ends when every partition of it has a final result."""
    commits = Commits(random.Random(1))
    ticket = commits.add({A: at(1), B: at(2)})
    lost, later = MembershipLostError("not yours"), RequestTimeoutError("later")
    assert commits.answered(send(commits).number, {A: lost, B: later}, 50) == []
    assert commits.request(50 + COMMIT_RETRY_FLOOR_MS - 1) is None
    request = send(commits, 5_000)
    assert request.offsets == {B: at(2)}
    (done,) = commits.answered(request.number, {}, 5_000)
    assert (done.ticket, dict(done.errors)) == (ticket, {A: lost})


def test_large_commit_takes_several_requests() -> None:
    """No request has more offsets than the coordinator takes, and the commit is done after the last of them."""
    commits = Commits(random.Random(1))
    ticket = commits.add({(TOPIC, number): at(number) for number in range(MAX_OFFSETS + 1)})
    first = send(commits)
    assert len(first.offsets) == MAX_OFFSETS
    assert commits.answered(first.number, {}, 0) == []
    second = send(commits)
    assert len(second.offsets) == 1
    assert [done.ticket for done in commits.answered(second.number, {}, 0)] == [ticket]


def test_cancelled_commit_is_not_sent_again() -> None:
    """What nobody waits for is forgotten, and its answer disturbs nothing."""
    commits = Commits(random.Random(1))
    ticket = commits.add({A: at(1)})
    request = send(commits)
    commits.cancel(ticket)
    assert commits.answered(request.number, {}, 0) == []
    assert commits.wait_ms(0) is None


def test_lost_membership_ends_every_commit() -> None:
    """Those under way too: they can never be stored."""
    commits = Commits(random.Random(1))
    first = commits.add({A: at(1)})
    request = send(commits)
    second = commits.add({B: at(1)})
    error = MembershipLostError("gone")
    ended = {done.ticket: dict(done.errors) for done in commits.fail(error)}
    assert ended == {first: {A: error}, second: {B: error}}
    assert commits.answered(request.number, {}, 0) == []


def test_dropped_partition_ends_its_commits_and_leaves_the_others() -> None:
    """The rest of a commit waits on; what is said about the dropped partition afterwards changes nothing."""
    commits = Commits(random.Random(1))
    both, alone = commits.add({A: at(1), B: at(2)}), commits.add({A: at(3)})
    request = send(commits)
    assert commits.waiting_for([A]) == [both, alone]
    assert commits.waiting_for([B]) == [both]
    error = MembershipLostError("given up")
    assert [(done.ticket, dict(done.errors)) for done in commits.drop([A], error)] == [(alone, {A: error})]
    commits.unanswered(request.number, 0)
    request = send(commits, COMMIT_RETRY_LIMIT_MS)
    assert request.offsets == {B: at(2)}
    assert [(done.ticket, dict(done.errors)) for done in commits.answered(request.number, {}, 0)] == [
        (both, {A: error})
    ]
    assert commits.is_idle


def test_answer_about_a_dropped_partition_is_ignored() -> None:
    """It was under way when the member gave it up. A commit from after that gets a result of its own."""
    commits = Commits(random.Random(1))
    commits.add({A: at(3)})
    request = send(commits)
    commits.drop([A], MembershipLostError("given up"))
    later = commits.add({A: at(2)})
    assert commits.answered(request.number, {}, 0) == []
    request = send(commits)
    assert request.offsets == {A: at(2)}
    assert [done.ticket for done in commits.answered(request.number, {}, 0)] == [later]


def test_an_older_offset_never_follows_a_newer_one_whose_commit_was_given_up() -> None:
    """The newer one may be stored although nobody heard so. It follows from what seed 0 of the world showed."""
    commits = Commits(random.Random(1))
    older, newer = commits.add({A: at(109)}), commits.add({A: at(110)})
    request = send(commits)
    assert request.offsets == {A: at(110)}
    commits.unanswered(request.number, 0)
    commits.cancel(newer)
    request = send(commits, 10_000)
    assert request.offsets == {A: at(110)}
    assert [done.ticket for done in commits.answered(request.number, {}, 10_000)] == [older]


def test_the_order_is_that_of_the_calls_and_not_of_the_tasks() -> None:
    """A commit in the background is added later than one that was asked for after it, and even after that has been stored."""
    commits = Commits(random.Random(1))
    background = commits.order()
    commits.add({A: at(2)})
    request = send(commits)
    assert request.offsets == {A: at(2)}
    commits.answered(request.number, {}, 0)
    commits.add({A: at(1)}, background)
    assert send(commits).offsets == {A: at(2)}
    commits = Commits(random.Random(1))
    commits.add({A: at(9)})
    commits.answered(send(commits).number, {}, 0)
    commits.add({A: at(3)})
    assert send(commits).offsets == {A: at(3)}, "an offset that is lower on purpose counts"


def test_a_newer_offset_that_was_refused_for_good_replaces_nothing() -> None:
    """It is not stored, so the older one may be."""
    commits = Commits(random.Random(1))
    background = commits.order()
    commits.add({A: at(2)})
    commits.answered(send(commits).number, {A: MembershipLostError("no")}, 0)
    commits.add({A: at(1)}, background)
    assert send(commits).offsets == {A: at(1)}
