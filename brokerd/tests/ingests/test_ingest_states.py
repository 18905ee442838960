# SPDX-License-Identifier: Apache-2.0
"""The table of states of `docs/ingest.md`, row by row, and what time does."""

from __future__ import annotations

import pytest

from brokerd.ingests.answers import Aborted, Committed, Decided, Opened, Outcome, Planned, Refusal, Sealed, Touched
from brokerd.ingests.commands import ManifestEntry, OpenAttempt, OpenIngest, SealAttempt, TouchIngest
from brokerd.ingests.effects import IngestCompleted, IngestExpired
from brokerd.ingests.limits import (
    ABORTED_KEEP_MS,
    COMMITTED_KEEP_MS,
    FENCED_OWNERS_MAX,
    LOADED_GRACE_MS,
    OWNER_BYTES_MAX,
    REPEATED_KEEP_MS,
    TTL_MS_DEFAULT,
)
from brokerd.ingests.records import IngestKind, IngestState, IngestTopic
from brokerd.tests.ingests.ingest_host import ATTEMPT, OFFSETS, P0, P1, TOPICS, IngestHost, code, part

SINGLE, REPEATED = IngestKind.SINGLE, IngestKind.REPEATED
OPEN_ATTEMPT = OpenAttempt(ingest_id="x", ingest_epoch=1, task=3, attempt_id=b"b")
SEAL = SealAttempt(ingest_id="x", ingest_epoch=1, task=0, attempt_id=ATTEMPT, parts=(part(),))
OTHER = ManifestEntry(task=9, attempt_id=b"other", records=1)


def decided(kind: IngestKind) -> tuple[IngestHost, ManifestEntry]:
    """Return a host with a decided ingest, and its manifest."""
    host = IngestHost()
    host.open(kind=kind)
    entry = host.sealed(part())
    assert host.decide(entry) == Decided(round=1, parts=1, was_committed=False)
    return host, entry


def committed(kind: IngestKind) -> tuple[IngestHost, ManifestEntry]:
    """Return a host with an ingest that has published its first round, and the manifest."""
    host, entry = decided(kind)
    host.publish_all()
    return host, entry


def first_answer(outcome: Outcome) -> Committed:
    """Return a commit that was made before."""
    assert isinstance(outcome, Committed), outcome
    assert outcome.was_committed
    return outcome


def test_none() -> None:
    """What nobody has opened does not exist."""
    host = IngestHost()
    entry = ManifestEntry(task=0, attempt_id=ATTEMPT, records=2)
    assert host.refusal(OPEN_ATTEMPT) is Refusal.INGEST_NOT_FOUND
    assert host.refusal(SEAL) is Refusal.INGEST_NOT_FOUND
    assert code(host.plan(entry)) is code(host.decide(entry)) is Refusal.INGEST_NOT_FOUND
    assert code(host.abort()) is Refusal.INGEST_NOT_FOUND
    assert host.refusal(TouchIngest(ingest_id="x", ingest_epoch=1)) is Refusal.INGEST_NOT_FOUND
    assert host.open() == Opened(
        ingest_epoch=1, round=1, state=IngestState.OPEN, topics=TOPICS, ttl_ms=TTL_MS_DEFAULT, result=None
    )


@pytest.mark.parametrize("kind", [SINGLE, REPEATED])
def test_open(kind: IngestKind) -> None:
    """An open fences the epoch before; at the present one everything goes."""
    host = IngestHost()
    host.open(kind=kind)
    entry = host.sealed(part())
    assert host.open(kind=kind).ingest_epoch == 2
    assert host.refusal(OPEN_ATTEMPT) is host.refusal(SEAL) is Refusal.INGEST_FENCED
    assert code(host.plan(entry)) is code(host.decide(entry)) is code(host.abort()) is Refusal.INGEST_FENCED
    assert host.refusal(TouchIngest(ingest_id="x", ingest_epoch=1)) is Refusal.INGEST_FENCED
    # Attempts of the earlier epoch have ended.
    assert code(host.decide(entry, epoch=2)) is Refusal.INGEST_INCOMPLETE
    entry = host.sealed(part(), epoch=2)
    assert isinstance(host.plan(entry, epoch=2), Planned)
    assert host.do(TouchIngest(ingest_id="x", ingest_epoch=2)) == Touched()
    assert host.abort(epoch=2) == Aborted()
    assert host.value().state is IngestState.ABORTED


def test_open_again_with_another_kind() -> None:
    """An ingest keeps its kind."""
    host = IngestHost()
    host.open()
    assert host.refusal(OpenIngest(ingest_id="x", kind=REPEATED, topics=TOPICS)) is Refusal.INGEST_CONFLICT


def test_decided_single() -> None:
    """It takes nothing more, and the commits and opens wait for one answer."""
    host, entry = decided(SINGLE)
    assert host.open().state is IngestState.DECIDED
    assert host.refusal(OPEN_ATTEMPT) is host.refusal(SEAL) is Refusal.INGEST_COMMITTED
    assert host.plan(entry) == host.decide(entry) == Decided(round=1, parts=1, was_committed=True)
    assert code(host.plan(entry, OTHER)) is code(host.decide()) is Refusal.INGEST_CONFLICT
    assert code(host.abort()) is Refusal.INGEST_COMMITTED
    host.publish_all()
    (completed,) = [each for each in host.effects if isinstance(each, IngestCompleted)]
    assert completed.result == first_answer(host.plan(entry)).result


def test_decided_repeated() -> None:
    """What belongs to the next round comes again when this one is published."""
    host, entry = decided(REPEATED)
    again = OpenIngest(ingest_id="x", kind=REPEATED, topics=TOPICS)
    assert host.refusal(again) is Refusal.INGEST_PUBLISHING
    assert host.refusal(OPEN_ATTEMPT) is host.refusal(SEAL) is Refusal.INGEST_PUBLISHING
    assert host.plan(entry) == Decided(round=1, parts=1, was_committed=True)
    assert code(host.plan(number=2)) is Refusal.INGEST_PUBLISHING
    assert code(host.decide(OTHER)) is Refusal.INGEST_CONFLICT
    assert code(host.abort()) is Refusal.INGEST_COMMITTED


def test_committed_single() -> None:
    """It says so for as long as it is kept, at any epoch; nothing can be added."""
    host, entry = committed(SINGLE)
    result = first_answer(host.plan(entry)).result
    assert (result.records, [each.first_offset for each in result.parts]) == (2, [100])
    assert first_answer(host.decide(entry, epoch=7)).result == result
    opened = host.open()
    assert (opened.state, opened.result) == (IngestState.COMMITTED, result)
    assert host.refusal(OPEN_ATTEMPT) is host.refusal(SEAL) is Refusal.INGEST_COMMITTED
    assert code(host.plan(entry, OTHER)) is Refusal.INGEST_CONFLICT
    assert code(host.plan(entry, offsets=OFFSETS)) is Refusal.INGEST_CONFLICT
    assert code(host.abort()) is Refusal.INGEST_COMMITTED
    assert code(host.plan(number=2)) is Refusal.INVALID_REQUEST


def test_committed_round_of_a_repeated_ingest() -> None:
    """The next round is open, and the last one keeps its answer."""
    host, entry = committed(REPEATED)
    assert (host.value().state, host.value().round) == (IngestState.OPEN, 2)
    result = first_answer(host.plan(entry)).result
    assert code(host.plan(OTHER)) is Refusal.INGEST_CONFLICT
    assert code(host.abort(number=1)) is Refusal.INGEST_COMMITTED
    assert code(host.plan(number=3)) is Refusal.INVALID_REQUEST
    opened = host.open(kind=REPEATED)
    assert (opened.ingest_epoch, opened.round, opened.result) == (2, 2, result)
    # A client that lost the answer hears it although it is fenced.
    assert first_answer(host.plan(entry)).result == result
    assert isinstance(host.decide(epoch=2, number=2), Committed)
    assert code(host.plan(entry)) is code(host.abort(number=1)) is Refusal.INVALID_REQUEST


@pytest.mark.parametrize("kind", [SINGLE, REPEATED])
def test_aborted(kind: IngestKind) -> None:
    """It takes nothing until it is opened again, and that begins a new epoch."""
    host = IngestHost()
    host.open(kind=kind)
    entry = host.sealed(part())
    host.abort()
    assert host.abort() == Aborted()
    assert host.refusal(OPEN_ATTEMPT) is host.refusal(SEAL) is Refusal.INGEST_ABORTED
    assert code(host.plan(entry)) is code(host.decide(entry)) is Refusal.INGEST_ABORTED
    assert host.refusal(TouchIngest(ingest_id="x", ingest_epoch=1)) is Refusal.INGEST_ABORTED
    opened = host.open(kind=kind)
    assert (opened.ingest_epoch, opened.round, opened.state) == (2, 1, IngestState.OPEN)
    assert code(host.decide(entry, epoch=2)) is Refusal.INGEST_INCOMPLETE


def test_abort_for_an_administrator() -> None:
    """Epoch 0 ends whatever is open."""
    host = IngestHost()
    host.open()
    host.open()
    assert host.abort(epoch=0) == Aborted()


def test_abort_of_a_round_that_is_not_the_present_one() -> None:
    """A client whose commit was lost must not abort what came after it."""
    host = IngestHost()
    host.open(kind=REPEATED)
    assert code(host.abort(number=2)) is Refusal.INVALID_REQUEST
    assert host.abort(number=1) == Aborted()


@pytest.mark.parametrize("kind", [SINGLE, REPEATED])
def test_empty_manifest_is_complete_at_once(kind: IngestKind) -> None:
    """An empty data frame commits, and there is nothing to publish."""
    host = IngestHost()
    host.open(kind=kind)
    host.sealed(part())
    outcome = host.decide()
    assert isinstance(outcome, Committed)
    assert (outcome.result.records, outcome.result.parts, outcome.result.dropped_attempts) == (0, (), 1)
    assert first_answer(host.plan()).result == outcome.result


def test_open_ingest_is_aborted_when_nobody_touches_it() -> None:
    """Each call of its client gives it a whole time to live."""
    host = IngestHost()
    host.open(ttl_ms=10_000)
    calls = [
        OPEN_ATTEMPT,
        SealAttempt(ingest_id="x", ingest_epoch=1, task=3, attempt_id=b"b", parts=()),
        TouchIngest(ingest_id="x", ingest_epoch=1),
    ]
    for command in calls:
        host.run(9_999)
        assert host.refusal(command) is None
    host.run(9_999)
    host.plan()
    host.run(9_999)
    assert host.value().state is IngestState.OPEN
    host.run(1)
    assert host.value().state is IngestState.ABORTED
    assert IngestExpired(ingest_id="x", ingest_epoch=1, round=1) in host.effects


def test_refused_call_is_no_sign_of_life() -> None:
    """A fenced client does not keep the ingest alive."""
    host = IngestHost()
    host.open(ttl_ms=10_000)
    host.open(ttl_ms=10_000)
    host.run(9_999)
    assert host.refusal(OPEN_ATTEMPT) is Refusal.INGEST_FENCED
    host.run(1)
    assert host.value().state is IngestState.ABORTED


def test_touch_is_on_record_when_the_last_one_is_a_tenth_old() -> None:
    """So a coordinator that loads knows it within a tenth of the time to live."""
    host = IngestHost()
    host.open(ttl_ms=10_000)
    host.now_ms += 999
    before = len(host.log)
    host.do(TouchIngest(ingest_id="x", ingest_epoch=1))
    assert len(host.log) == before
    host.now_ms += 1
    host.do(TouchIngest(ingest_id="x", ingest_epoch=1))
    assert len(host.log) == before + 1


@pytest.mark.parametrize(
    ("ttl_ms", "grace_ms"), [(10_000, 10_000), (TTL_MS_DEFAULT, TTL_MS_DEFAULT), (86_400_000, LOADED_GRACE_MS)]
)
def test_clients_that_could_not_reach_a_coordinator_get_time_after_loading(ttl_ms: int, grace_ms: int) -> None:
    """The whole time to live, or an hour if that is longer."""
    host = IngestHost()
    host.open(ttl_ms=ttl_ms)
    host.now_ms += 10 * ttl_ms
    host.fail_over()
    host.run(grace_ms - 1)
    assert host.value().state is IngestState.OPEN
    host.run(1)
    assert host.value().state is IngestState.ABORTED


def test_clock_that_was_ahead_does_not_keep_an_ingest() -> None:
    """A date in the future counts as that of loading."""
    host = IngestHost()
    host.now_ms += 400 * 86_400_000
    host.open(ttl_ms=10_000)
    host.now_ms -= 400 * 86_400_000
    host.fail_over()
    host.run(10_000)
    assert host.value().state is IngestState.ABORTED


@pytest.mark.parametrize(
    ("kind", "is_committed", "keep_ms"),
    [(SINGLE, True, COMMITTED_KEEP_MS), (SINGLE, False, ABORTED_KEEP_MS), (REPEATED, False, REPEATED_KEEP_MS)],
)
@pytest.mark.parametrize("with_failover", [False, True])
def test_id_is_free_again_after_its_time(
    kind: IngestKind, is_committed: bool, keep_ms: int, with_failover: bool
) -> None:
    """By dates in records, so that a failover neither shortens nor lengthens it."""
    host = IngestHost()
    host.open(kind=kind)
    entry = host.sealed(part(), part(P1))
    host.decide(entry) if is_committed else host.abort()
    host.publish_all()
    host.run(keep_ms // 2)
    if with_failover:
        host.fail_over()
    host.run(keep_ms - keep_ms // 2 - 1)
    assert host.core.state.value_of("x") is not None
    host.run(1)
    assert not host.core.state.ingests
    # But no epoch comes again: a client of the former ingest is fenced.
    host.fail_over()
    assert host.open(kind=kind).ingest_epoch == 2
    assert host.refusal(OPEN_ATTEMPT) is Refusal.INGEST_FENCED


def test_decided_ingest_has_no_end_by_time() -> None:
    """The decision stands, however long the publication takes."""
    host, _ = decided(SINGLE)
    for _ in range(3):
        host.now_ms += COMMITTED_KEEP_MS
        host.tick()
    assert host.value().state is IngestState.DECIDED
    host.publish_all()
    assert host.value().state is IngestState.COMMITTED


def test_seal_again() -> None:
    """The same parts get the same answer, in any order; others are a conflict."""
    host = IngestHost()
    host.open()
    host.sealed(part(P0), part(P1))
    again = SealAttempt(ingest_id="x", ingest_epoch=1, task=0, attempt_id=ATTEMPT, parts=(part(P1), part(P0)))
    assert host.do(again) == Sealed()
    assert host.refusal(SEAL) is Refusal.INGEST_CONFLICT


def opened_as(host: IngestHost, owner: bytes, topics: tuple[IngestTopic, ...] = TOPICS) -> int | Refusal:
    """Open as an owner. Return the epoch, or why that is refused."""
    outcome = host.do(OpenIngest(ingest_id="x", kind=SINGLE, topics=topics, owner=owner))
    return outcome.ingest_epoch if isinstance(outcome, Opened) else code(outcome)


def test_owner_of_the_present_epoch_joins_it() -> None:
    """Processes of one owner open the same ingest, in any order and again, and none of them fences another; also after a failover."""
    host = IngestHost()
    assert opened_as(host, b"a") == 1
    entry = host.sealed(part())
    assert opened_as(host, b"a") == 1
    host.fail_over()
    assert opened_as(host, b"a") == 1
    # The first one has said what it publishes to.
    assert opened_as(host, b"a", TOPICS[:1]) is Refusal.INGEST_CONFLICT
    assert host.value().topics == TOPICS
    assert isinstance(host.decide(entry), Decided)
    host.publish_all()
    assert opened_as(host, b"a") == 1
    assert host.value().state is IngestState.COMMITTED


def test_owner_that_was_fenced_does_not_take_the_ingest_back() -> None:
    """Tasks of an earlier start of a job open the ingest late, after the later start has opened it."""
    host = IngestHost()
    assert opened_as(host, b"a") == 1
    assert opened_as(host, b"b") == 2
    assert opened_as(host, b"a") is Refusal.INGEST_FENCED
    host.fail_over()
    assert opened_as(host, b"a") is Refusal.INGEST_FENCED
    assert opened_as(host, b"b") == 2
    host.abort(epoch=2)
    assert opened_as(host, b"a") is Refusal.INGEST_FENCED
    # Nobody in particular takes it over, and an owner may come back to what it has aborted itself.
    assert opened_as(host, b"b") == 3
    assert host.open().ingest_epoch == 4
    assert opened_as(host, b"b") is Refusal.INGEST_FENCED
    assert host.open().ingest_epoch == 5
    assert opened_as(host, b"c") == 6


def test_owners_are_bounded() -> None:
    """The last ones are remembered."""
    host = IngestHost()
    assert opened_as(host, b"o" * (OWNER_BYTES_MAX + 1)) is Refusal.INVALID_REQUEST
    for number in range(FENCED_OWNERS_MAX + 2):
        assert opened_as(host, b"%d" % number) == number + 1
    assert host.value().fenced_owners == tuple(b"%d" % number for number in range(1, FENCED_OWNERS_MAX + 1))
    assert opened_as(host, b"1") is Refusal.INGEST_FENCED
    assert opened_as(host, b"0") == FENCED_OWNERS_MAX + 3


def test_join_is_a_touch() -> None:
    """Whoever joins keeps the ingest alive."""
    host = IngestHost()
    command = OpenIngest(ingest_id="x", kind=SINGLE, topics=TOPICS, ttl_ms=10_000, owner=b"a")
    host.do(command)
    for _ in range(3):
        host.run(9_999)
        assert isinstance(host.do(command), Opened)
    assert host.value().ingest_epoch == 1
    host.run(10_001)
    assert host.value().state is IngestState.ABORTED
