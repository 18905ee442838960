# SPDX-License-Identifier: Apache-2.0
"""The core of a connection between servers: the events of each side, and what a broken peer cannot do."""

from __future__ import annotations

import inspect
import random
import tracemalloc
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metaquorum.net.connection import (
    Abandoned,
    Answered,
    BusyError,
    Connection,
    Ended,
    Failed,
    Greeted,
    Happening,
    Leaving,
    Limits,
    Loss,
    Opened,
    Over,
    Received,
    Requested,
    Writable,
)
from metaquorum.net.frames import GREETING, MAX_BODY_BYTES, BadFrameError, FrameReader, Kind, header

LIMITS = Limits(
    open_calls=4,
    queued_bytes=1_000,
    message_bytes=5_000,
    partial_bytes=8_000,
    piece_bytes=64,
    greeting_ms=1_000,
    ping_after_ms=2_000,
    liveness_ms=8_000,
    suspect_ms=400,
)


@dataclass
class Pair:
    """Two ends and the bytes between them; bytes move only when the test carries them."""

    limits: Limits = LIMITS
    now_ms: int = 0
    told: tuple[list[Happening], list[Happening]] = field(default_factory=lambda: ([], []))

    def __post_init__(self) -> None:
        self.ends = tuple(
            Connection(is_dialler=is_dialler, hello=name, limits=self.limits, now_ms=self.now_ms)
            for is_dialler, name in ((True, b"a"), (False, b"b"))
        )

    def carry(self, *, sender: int, most_bytes: int = 1 << 30, cut: random.Random | None = None) -> int:
        """Carry one end's bytes to the other, in pieces if `cut` is given."""
        data = b"".join(self.ends[sender].output(most_bytes))
        rest = data
        while rest:
            size = len(rest) if cut is None else cut.randint(1, max(1, min(len(rest), 97)))
            self.told[1 - sender].extend(self.ends[1 - sender].receive(rest[:size], self.now_ms))
            rest = rest[size:]
        return len(data)

    def settle(self) -> None:
        """Carry everything both ways."""
        while self.carry(sender=0) + self.carry(sender=1):
            pass

    def pass_ms(self, duration_ms: int) -> None:
        """Let time pass at both ends."""
        self.now_ms += duration_ms
        for end, told in zip(self.ends, self.told, strict=True):
            told.extend(end.tick(self.now_ms))

    def taken(self, end: int) -> list[Happening]:
        """Return the events of an end since the last call."""
        told = list(self.told[end])
        self.told[end].clear()
        return told


@pytest.fixture
def pair() -> Pair:
    """Two ends that have greeted each other."""
    made = Pair()
    made.settle()
    assert made.taken(0) == [Greeted(b"b")]
    assert made.taken(1) == [Greeted(b"a")]
    return made


def test_request_is_answered_once_and_either_side_may_ask(pair: Pair) -> None:
    """Ids of the two sides differ, and answers come in any order."""
    first = pair.ends[0].request(7, b"one", timeout_ms=500, now_ms=0)
    second = pair.ends[0].request(8, b"two", timeout_ms=500, now_ms=0)
    other = pair.ends[1].request(9, b"back", timeout_ms=100, now_ms=0)
    pair.settle()
    assert pair.taken(1) == [Requested(first, 7, b"one", 500), Requested(second, 8, b"two", 500)]
    assert pair.taken(0) == [Requested(other, 9, b"back", 100)]
    assert (first % 2, second % 2, other % 2) == (1, 1, 0)
    pair.ends[1].respond(second, b"2")
    pair.ends[1].fail(first, b"no")
    pair.ends[0].respond(other, b"")
    pair.settle()
    assert sorted(pair.taken(0), key=str) == [Answered(second, b"2"), Failed(first, b"no")]
    assert pair.taken(1) == [Answered(other, b"")]
    assert [end.open_count for end in pair.ends] == [0, 0]


def test_request_without_an_answer_in_time_fails_and_the_other_side_hears_that_nobody_waits(pair: Pair) -> None:
    """The late answer is dropped, and the call has no second outcome."""
    asked = pair.ends[0].request(1, b"", timeout_ms=300, now_ms=0)
    pair.settle()
    assert pair.ends[0].deadline_ms() == 300
    pair.pass_ms(299)
    assert pair.taken(0) == []
    pair.ends[1].respond(asked, b"late")
    pair.pass_ms(1)
    assert pair.taken(0) == [Failed(asked, None, Loss.TIMED_OUT)]
    pair.settle()
    assert pair.taken(0) == []
    assert pair.taken(1) == [Requested(asked, 1, b"", 300)]
    assert [end.open_count for end in pair.ends] == [0, 0]


def test_answered_request_needs_no_timer(pair: Pair) -> None:
    """Each request would wake its sender once more, long after its answer."""
    answered = pair.ends[0].request(1, b"", timeout_ms=300, now_ms=0)
    pair.settle()
    pair.ends[1].respond(answered, b"")
    pair.settle()
    assert pair.taken(0) == [Answered(answered, b"")]
    assert pair.ends[0].deadline_ms() == LIMITS.ping_after_ms
    pair.pass_ms(100)
    pair.ends[0].request(1, b"", timeout_ms=300, now_ms=100)
    assert pair.ends[0].deadline_ms() == 400


def test_work_that_nobody_waits_for_is_abandoned_and_owes_nothing(pair: Pair) -> None:
    """The final frame is sent nevertheless, so that the caller's end can forget the call."""
    asked = pair.ends[0].request(1, b"", timeout_ms=300, now_ms=0)
    pair.settle()
    pair.taken(1)
    pair.ends[0].give_up(asked)
    pair.ends[0].give_up(asked)
    pair.settle()
    assert pair.taken(1) == [Abandoned(asked)]
    pair.ends[1].respond(asked, b"too late")
    pair.settle()
    assert pair.taken(0) == []
    assert [end.open_count for end in pair.ends] == [0, 0]


def test_long_messages_go_in_pieces_and_a_small_one_does_not_wait_for_them(pair: Pair) -> None:
    """Pieces of different calls take turns."""
    large = pair.ends[0].request(1, b"x" * 900, timeout_ms=500, now_ms=0)
    small = pair.ends[0].request(2, b"y", timeout_ms=500, now_ms=0)
    pair.carry(sender=0, most_bytes=2 * LIMITS.piece_bytes)
    assert pair.taken(1) == [Requested(small, 2, b"y", 500)]
    pair.settle()
    assert pair.taken(1) == [Requested(large, 1, b"x" * 900, 500)]


def test_streams_carry_messages_both_ways_within_their_credit_and_end_each_way(pair: Pair) -> None:
    """A side without credit waits; a message that exceeds the credit is deducted from the next grant."""
    opener, taker = pair.ends
    stream = opener.open(5, b"subscribe", credit_bytes=10)
    pair.settle()
    assert pair.taken(1) == [Opened(stream, 5, b"subscribe")]
    assert opener.credit(stream) == 0
    assert not opener.send(stream, b"m")
    assert taker.send(stream, b"123456")
    assert taker.send(stream, b"1234567")
    assert not taker.send(stream, b"8"), "3 bytes are owed"
    taker.grant(stream, 4)
    pair.settle()
    assert pair.taken(0) == [Received(stream, b"123456"), Received(stream, b"1234567"), Writable(stream)]
    opener.grant(stream, 3)
    pair.settle()
    assert pair.taken(1) == [], "it owes no more, and has none"
    opener.grant(stream, 1)
    assert opener.send(stream, b"ack")
    opener.end(stream)
    pair.settle()
    assert pair.taken(1) == [Writable(stream), Received(stream, b"ack"), Ended(stream)]
    assert taker.send(stream, b"!")
    taker.end(stream)
    pair.settle()
    assert pair.taken(0) == [Received(stream, b"!"), Ended(stream)]
    assert [end.open_count for end in pair.ends] == [0, 0]


def test_empty_messages_take_credit_too(pair: Pair) -> None:
    """Otherwise a sender of endless empty messages would fill the memory of a side that does not read."""
    opener, sender = pair.ends
    stream = opener.open(5, b"", credit_bytes=2)
    pair.settle()
    assert [sender.send(stream, b"") for _ in range(3)] == [True, True, False]
    pair.settle()
    assert pair.taken(0) == [Received(stream, b"")] * 2
    assert opener.receive(frame(Kind.MESSAGE, stream), 0)[-1] == Over(f"MESSAGE on stream {stream} without credit")


@pytest.mark.parametrize("who", [0, 1])
@pytest.mark.parametrize("is_said", [True, False])
def test_stream_may_be_reset_or_given_up_by_either_side(pair: Pair, who: int, is_said: bool) -> None:
    """Messages that are under way from the other side are dropped, and disturb no other call."""
    stream = pair.ends[0].open(5, b"", credit_bytes=100)
    pair.settle()
    pair.ends[1].grant(stream, 1_000)
    pair.settle()
    pair.taken(0)
    pair.taken(1)
    other = 1 - who
    assert pair.ends[other].send(stream, b"z" * 99)
    pair.carry(sender=other, most_bytes=1)
    if is_said:
        pair.ends[who].fail(stream, b"enough")
    else:
        pair.ends[who].give_up(stream)
    assert not pair.ends[who].send(stream, b"more")
    pair.settle()
    assert pair.taken(who) == []
    assert pair.taken(other) == [Failed(stream, b"enough") if is_said else Failed(stream, None, Loss.CANCELLED)]
    assert [end.open_count for end in pair.ends] == [0, 0]
    asked = pair.ends[0].request(1, b"still there", timeout_ms=5, now_ms=0)
    pair.settle()
    assert pair.taken(1) == [Requested(asked, 1, b"still there", 5)]


def test_limits_of_this_side_refuse_before_anything_is_sent(pair: Pair) -> None:
    """Open calls and waiting bytes are bounded; a goodbye ends new calls on both sides and no open one."""
    end = pair.ends[0]
    end.request(1, b"x" * 1_000, timeout_ms=50, now_ms=0)
    with pytest.raises(BusyError, match="bytes wait"):
        end.request(1, b"", timeout_ms=50, now_ms=0)
    pair.settle()
    for _ in range(3):
        end.open(1, b"", credit_bytes=1)
    with pytest.raises(BusyError, match="4 calls are open"):
        end.request(1, b"", timeout_ms=50, now_ms=0)
    pair.settle()
    asked = next(each.call_id for each in pair.taken(1) if isinstance(each, Requested))
    pair.ends[1].leave(b"stopping")
    pair.settle()
    assert pair.taken(0) == [Leaving(b"stopping")]
    for each in pair.ends:
        assert not each.takes_calls
        with pytest.raises(BusyError, match="no new calls"):
            each.request(1, b"", timeout_ms=50, now_ms=0)
    pair.ends[1].respond(asked, b"still")
    pair.settle()
    assert pair.taken(0) == [Answered(asked, b"still")]


def test_silence_is_asked_about_and_ends_the_connection(pair: Pair) -> None:
    """A ping after a while, the end after the bound; an answer, or anything else, is a sign of life."""
    pair.pass_ms(LIMITS.ping_after_ms)
    pair.settle()
    pair.pass_ms(LIMITS.ping_after_ms)
    end = pair.ends[0]
    asked = end.request(1, b"", timeout_ms=60_000, now_ms=pair.now_ms)
    served = pair.ends[1].request(2, b"", timeout_ms=60_000, now_ms=pair.now_ms)
    pair.carry(sender=1)
    assert pair.taken(0) == [Requested(served, 2, b"", 60_000)]
    # From here on nothing arrives at the first end.
    pair.pass_ms(LIMITS.liveness_ms - 1)
    assert pair.taken(0) == []
    assert end.deadline_ms() == pair.now_ms + 1
    pair.pass_ms(1)
    assert pair.taken(0) == [
        Failed(asked, None, Loss.SILENT),
        Abandoned(served),
        Over(f"no sign of life for {LIMITS.liveness_ms} ms"),
    ]
    assert end.deadline_ms() is None
    assert end.lose("again") == []
    assert not end.takes_calls
    end.respond(served, b"")
    assert end.output(1_000_000) == [] or not end.takes_calls


def test_request_without_an_answer_and_no_other_byte_makes_the_connection_suspect(pair: Pair) -> None:
    """A slow handler does no harm: its process answers the ping. A dead path ends the connection soon."""
    pair.pass_ms(10)
    end = pair.ends[0]
    end.request(1, b"", timeout_ms=300, now_ms=pair.now_ms)
    pair.settle()
    pair.pass_ms(300)
    pair.taken(0)
    assert end.deadline_ms() == pair.now_ms + LIMITS.suspect_ms
    pair.settle()
    pair.pass_ms(LIMITS.suspect_ms)
    assert pair.taken(0) == [], "it was slow"
    asked = end.request(1, b"", timeout_ms=300, now_ms=pair.now_ms)
    pair.pass_ms(300)
    other = end.request(1, b"", timeout_ms=10_000, now_ms=pair.now_ms)
    pair.pass_ms(LIMITS.suspect_ms - 1)
    assert pair.taken(0) == [Failed(asked, None, Loss.TIMED_OUT)]
    pair.pass_ms(1)
    assert pair.taken(0) == [Failed(other, None, Loss.SILENT), Over("no sign of life for 1100 ms")]


def test_who_says_nothing_or_something_else_first_is_left() -> None:
    """The greeting has a time of its own."""
    end = Connection(is_dialler=True, hello=b"a", limits=LIMITS, now_ms=0)
    assert b"".join(end.output(1_000)) == GREETING + header(Kind.HELLO, 0, 1) + b"a"
    with pytest.raises(BusyError):
        end.request(1, b"", timeout_ms=5, now_ms=0)
    assert end.deadline_ms() == LIMITS.greeting_ms
    assert end.tick(LIMITS.greeting_ms) == [Over("the other side did not say who it is")]
    other = Connection(is_dialler=True, hello=b"a", limits=LIMITS, now_ms=0)
    assert other.receive(b"HTTP/1.1 400 Bad Request\r\n", 0) == [Over("no greeting")]


def frame(kind: int, call_id: int = 0, body: bytes = b"", *, goes_on: bool = False) -> bytes:
    """Return a frame."""
    return header(kind, call_id, len(body), goes_on=goes_on) + body  # pyright: ignore[reportArgumentType]


REQUEST = b"\0\1\0\0\0\5"


@pytest.mark.parametrize(
    "sent",
    [
        frame(Kind.HELLO, 0, b"again"),
        frame(Kind.RESPONSE, 1),
        frame(Kind.FAILURE, 1),
        frame(Kind.RESPONSE, 3),
        frame(Kind.MESSAGE, 2),
        frame(Kind.REQUEST, 2, b"short"),
        frame(Kind.REQUEST, 3, REQUEST),
        frame(Kind.REQUEST, 2, REQUEST) * 2,
        frame(Kind.REQUEST, 4, REQUEST) + frame(Kind.REQUEST, 2, REQUEST),
        frame(Kind.REQUEST, 2, REQUEST) + frame(Kind.MESSAGE, 2, b"x"),
        frame(Kind.REQUEST, 2, REQUEST, goes_on=True) + frame(Kind.CANCEL, 2),
        frame(Kind.OPEN, 2, REQUEST) + frame(Kind.MESSAGE, 2, b"without credit"),
        frame(Kind.OPEN, 2, REQUEST) + frame(Kind.END, 2) * 2,
        frame(Kind.OPEN, 2, REQUEST) + frame(Kind.CREDIT, 2, b"1"),
        frame(Kind.OPEN, 2, REQUEST) + frame(Kind.RESPONSE, 2),
        b"".join(frame(Kind.OPEN, 2 * number, REQUEST) for number in range(1, 10)),
        frame(Kind.PONG, 0, bytes(8)),
        frame(Kind.PING, 0, b"1"),
        frame(Kind.PING, 0, bytes(8), goes_on=True),
        frame(Kind.REQUEST, 2, bytes(3_000), goes_on=True) * 2,
        frame(99, 2),
        header(Kind.REQUEST, 2, MAX_BODY_BYTES + 1),
        b"\0\0\0\5xxxxx",
        b"\0\0\0\6\5\x02\0\0\0\2",
    ],
    ids=range(24),
)
def test_whoever_breaks_the_rules_is_disconnected_and_open_calls_are_told(pair: Pair, sent: bytes) -> None:
    """A second answer, an unknown id, bytes beyond a bound: each ends the connection, and none raises."""
    answered = pair.ends[0].request(1, b"", timeout_ms=50, now_ms=0)
    assert answered == 1
    pair.settle()
    pair.ends[1].respond(answered, b"")
    pair.settle()
    pair.taken(0)
    open_call = pair.ends[0].open(1, b"", credit_bytes=5)
    told = pair.ends[0].receive(sent, 0)
    assert isinstance(told[-1], Over)
    assert Failed(open_call, None, Loss.LOST) in told
    assert pair.ends[0].receive(frame(Kind.PING, 0, bytes(8)), 0) == []
    assert pair.ends[0].open_count == 0


def test_partial_messages_of_all_calls_are_bounded(pair: Pair) -> None:
    """Many calls begin a message each and never end it."""
    told: list[Happening] = []
    for number in range(1, 5):
        told += pair.ends[0].receive(frame(Kind.REQUEST, 2 * number, bytes(4_000), goes_on=True), 0)
    assert told == [Over("more than 8000 bytes of messages in parts")]


@pytest.mark.parametrize("is_first_cancelled", [False, True])
def test_long_answers_together_never_exceed_what_the_asker_may_hold_in_parts(
    pair: Pair, is_first_cancelled: bool
) -> None:
    """Long answers take turns only while few have begun; a small one waits for none of them, and all arrive."""
    asker, answerer = pair.ends
    calls = [asker.request(1, b"", timeout_ms=500, now_ms=0) for _ in range(4)]
    pair.settle()
    pair.taken(1)
    for call_id in calls[:3]:
        answerer.respond(call_id, b"x" * 3_500)
    pair.carry(sender=1, most_bytes=10 * LIMITS.piece_bytes)
    answerer.respond(calls[3], b"small")
    pair.carry(sender=1, most_bytes=2 * LIMITS.piece_bytes)
    assert pair.taken(0) == [Answered(calls[3], b"small")]
    if is_first_cancelled:
        asker.give_up(calls[0])
    pair.settle()
    rest = calls[1:3] if is_first_cancelled else calls[:3]
    assert pair.taken(0) == [Answered(call_id, b"x" * 3_500) for call_id in rest]
    assert [end.open_count for end in pair.ends] == [0, 0]
    assert answerer.queued_bytes == 0


def test_small_pieces_take_no_more_memory_than_their_bytes(pair: Pair) -> None:
    """A message in pieces of two bytes, or none, that is never finished."""
    pieces = frame(Kind.REQUEST, 2, b"xy", goes_on=True) * 2_000 + frame(Kind.REQUEST, 2, b"", goes_on=True) * 20_000
    # Only what this package allocates counts: threads that other tests left behind allocate meanwhile, too.
    own = tracemalloc.Filter(inclusive=True, filename_pattern=f"{Path(inspect.getfile(Connection)).parent}/*")
    tracemalloc.start()
    try:
        assert pair.ends[0].receive(pieces, 0) == []
        kept = tracemalloc.take_snapshot().filter_traces([own]).traces
    finally:
        tracemalloc.stop()
    assert 4_000 < sum(trace.size for trace in kept) < 4 * 4_000


@pytest.mark.parametrize("is_cancelled", [True, False])
def test_answers_that_were_not_sent_count_as_open_calls(pair: Pair, is_cancelled: bool) -> None:
    """A peer that asks or cancels, and does not read: the number of frames that wait for it is bounded."""
    end, told = pair.ends[0], list[Happening]()
    for number in range(1, 100):
        told += end.receive(frame(Kind.REQUEST, 2 * number, REQUEST), 0)
        if is_cancelled:
            told += end.receive(frame(Kind.CANCEL, 2 * number), 0)
        else:
            end.respond(2 * number, b"")
        if end.deadline_ms() is None:
            break
    assert told[-1] == Over("more than 8 calls are open")


def test_answers_that_were_sent_do_not_count(pair: Pair) -> None:
    """A peer that reads may ask for ever, and a finished stream does not count."""
    for number in range(100):
        asked = pair.ends[0].request(1, b"", timeout_ms=50, now_ms=0)
        stream = pair.ends[0].open(2, b"", credit_bytes=1)
        pair.settle()
        pair.ends[1].respond(asked, b"x" * 300)
        if number % 2:
            pair.ends[1].fail(stream, b"no")
        else:
            pair.ends[0].give_up(stream)
        pair.settle()
    assert [each for each in pair.told[0] if isinstance(each, Over)] == []
    assert len([each for each in pair.taken(0) if isinstance(each, Answered)]) == 100


def test_pings_of_one_who_does_not_read_take_one_answer(pair: Pair) -> None:
    """Only the last ping is answered."""
    pair.ends[0].receive(b"".join(frame(Kind.PING, 0, bytes([0] * 7 + [n])) for n in range(200)), 0)
    assert b"".join(pair.ends[0].output(1_000_000)) == frame(Kind.PONG, 0, bytes([0] * 7 + [199]))


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=400), st.integers(0, 3))
def test_any_bytes_are_taken_without_an_exception(data: bytes, prefix: int) -> None:
    """After no, half or a whole greeting."""
    begin = (b"", GREETING[:5], GREETING, GREETING + frame(Kind.HELLO, 0, b"b"))[prefix]
    end = Connection(is_dialler=True, hello=b"a", limits=LIMITS, now_ms=0)
    end.receive(begin + data, 0)
    end.output(1_000_000)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.binary(min_size=1, max_size=50), max_size=20), st.randoms(use_true_random=False))
def test_frames_come_out_as_they_went_in_however_they_are_cut(bodies: list[bytes], rng: random.Random) -> None:
    """One byte at a time, or all at once."""
    data = GREETING + b"".join(frame(Kind.MESSAGE, 1 + n, body) for n, body in enumerate(bodies))
    reader, found = FrameReader(), list[bytes]()
    while data:
        size = rng.randint(1, len(data))
        reader.feed(data[:size])
        data = data[size:]
        while (each := reader.take()) is not None:
            found.append(each.body)
    assert found == bodies
    with pytest.raises(BadFrameError):
        FrameReader().feed(b"x")


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**32))
def test_random_histories_tell_everybody_exactly_once(seed: int) -> None:
    """Random calls, answers, credits, ends, cancels and deadlines between two ends, cut anywhere; all arrives or the connection breaks.

    Law: each request has one outcome; messages of a stream arrive whole, in order and without a gap; finished calls are forgotten.
    """
    rng = random.Random(seed)
    pair = Pair(limits=replace(LIMITS, open_calls=50, queued_bytes=100_000, liveness_ms=10**6, suspect_ms=10**6))
    pair.settle()
    asked: tuple[set[int], set[int]] = (set(), set())
    outcomes: tuple[list[int], list[int]] = ([], [])
    owed: tuple[set[int], set[int]] = (set(), set())
    streams: tuple[set[int], set[int]] = (set(), set())
    sent: dict[tuple[int, int], list[bytes]] = {}
    got: dict[tuple[int, int], list[bytes]] = {}
    given_up: set[int] = set()

    def look(end: int) -> None:
        for each in pair.taken(end):
            match each:
                case Requested(call_id=call_id):
                    owed[end].add(call_id)
                case Abandoned(call_id=call_id):
                    owed[end].remove(call_id)
                case Opened(call_id=call_id):
                    streams[end].add(call_id)
                case Answered(call_id=call_id):
                    outcomes[end].append(call_id)
                case Failed(call_id=call_id):
                    if call_id in streams[end]:
                        streams[end].remove(call_id)
                    else:
                        outcomes[end].append(call_id)
                case Received(call_id=call_id, message=message):
                    got.setdefault((end, call_id), []).append(message)
                    pair.ends[end].grant(call_id, len(message))
                case Over(reason=reason):
                    assert reason == "cut", reason
                case _:
                    pass

    for _ in range(rng.randint(1, 80)):
        end = rng.randrange(2)
        connection = pair.ends[end]
        match rng.randrange(9):
            case 0:
                size = rng.choice((0, 10, 500))
                asked[end].add(connection.request(1, bytes(size), timeout_ms=rng.randint(1, 500), now_ms=pair.now_ms))
            case 1:
                streams[end].add(connection.open(2, b"s", credit_bytes=rng.randint(1, 300)))
            case 2 if owed[end]:
                call_id = rng.choice(sorted(owed[end]))
                owed[end].remove(call_id)
                (connection.respond if rng.random() < 0.7 else connection.fail)(call_id, bytes(rng.choice((0, 400))))
            case 3 | 4 if streams[end]:
                call_id = rng.choice(sorted(streams[end]))
                message = rng.randbytes(rng.choice((1, 30, 300)))
                if connection.send(call_id, message):
                    sent.setdefault((1 - end, call_id), []).append(message)
            case 5 if streams[end]:
                connection.grant(rng.choice(sorted(streams[end])), rng.randint(1, 200))
            case 6 if streams[end]:
                call_id = rng.choice(sorted(streams[end]))
                if rng.random() < 0.5:
                    connection.end(call_id)
                else:
                    streams[end].remove(call_id)
                    given_up.add(call_id)
                    if rng.random() < 0.5:
                        connection.give_up(call_id)
                    else:
                        connection.fail(call_id, b"why")
            case 7:
                pair.pass_ms(rng.randint(0, 100))
            case _:
                pair.carry(sender=end, most_bytes=rng.choice((1, 100, 10_000)), cut=rng)
        look(0)
        look(1)
    if rng.random() < 0.3:
        for end in (0, 1):
            pair.told[end].extend(pair.ends[end].lose("cut"))
            look(end)
    else:
        for _ in range(50):
            pair.settle()
            look(0)
            look(1)
        for end in (0, 1):
            for call_id in sorted(owed[end]):
                pair.ends[end].respond(call_id, b"at last")
        pair.settle()
        look(0)
        look(1)
        for key, messages in sent.items():
            if key[1] not in given_up:
                assert got.get(key, []) == messages
    for end in (0, 1):
        assert sorted(outcomes[end]) == sorted(asked[end])
        assert pair.ends[end].queued_bytes == 0
    for key, messages in got.items():
        assert messages == sent[key][: len(messages)]
