# SPDX-License-Identifier: Apache-2.0
"""What no correct server sends on a carrier connection: damaged or misplaced frames, and invalid connection prefaces.

    then = DAMAGES["unknown kind"](rng, client, probe)       # after a valid preface; `probe` is a ProbeRequest
    then = GREETINGS["other cluster"](rng, client, facts)    # instead of a valid preface

Owns what is sent, and what must happen to the connection. Source: docs/net.md sections "Invariants" and "Bytes".
"""

from __future__ import annotations

import random
from collections.abc import Callable
from enum import Enum, auto
from typing import Final

from lograft.internal.v1 import controller_pb2, net_pb2
from lograft.v1 import admin_pb2

from integration_tests.scenarios.fuzz.carrier_client import CarrierClient, credit, frames, opening, request
from integration_tests.scenarios.fuzz.cluster_facts import ID_BYTES, Facts
from integration_tests.scenarios.fuzz.mutations import mutate_frame
from metaquorum.controller_service.admin_service import REQUEST_WINDOW_BYTES
from metaquorum.net.connection import Limits
from metaquorum.net.frames import GREETING, MAX_BODY_BYTES, MORE, Kind, header
from metaquorum.net.hello import VERSION, Identity
from metaquorum.net.methods import Method

FORBIDDEN: Final = "fuzz-forbidden"
"""Topic that requests behind invalid prefaces try to create. It must never exist."""
MAX_CALL_ID: Final = 2**32 - 1
LENGTH_BYTES: Final = 4
REST_BYTES: Final = 6
"""Bytes of kind, flags and id, which the length of a frame includes."""
LIMITS: Final = Limits()
"""Limits of a server's connections."""
OPEN_CALLS_MAX: Final = 2 * LIMITS.open_calls
"""Maximum calls of one side that the other side accepts."""
PINGS: Final = 10_000


class Then(Enum):
    """What must happen to the connection."""

    ENDS = auto()
    STAYS = auto()
    EITHER = auto()


Damage = Callable[[random.Random, CarrierClient, bytes], Then]
"""Sends something, and returns what must happen to the connection."""

Greeting = Callable[[random.Random, CarrierClient, Facts], Then]
"""The same, instead of a valid preface."""


def _cut(rng: random.Random, client: CarrierClient, probe: bytes) -> Then:
    data = request(1, Method.PROBE, probe)
    client.say(data[: rng.randrange(1, len(data))])
    return Then.ENDS


def _mutated(rng: random.Random, client: CarrierClient, probe: bytes) -> Then:
    client.say(mutate_frame(rng, request(1, Method.PROBE, probe) + request(3, Method.PROBE, probe)))
    return Then.EITHER


def _garbage(rng: random.Random, client: CarrierClient, _probe: bytes) -> Then:
    client.say(rng.randbytes(rng.randint(10, 1_000)))
    return Then.ENDS


def _wrong_length(rng: random.Random, client: CarrierClient, probe: bytes) -> Then:
    data = request(1, Method.PROBE, probe)
    size = len(data) - LENGTH_BYTES + rng.choice([-20, -1, 1, 20, 1_000])
    client.say(size.to_bytes(LENGTH_BYTES, "big") + data[LENGTH_BYTES:])
    return Then.EITHER


def _absurd_length(rng: random.Random, client: CarrierClient, probe: bytes) -> Then:
    size = rng.choice([0, 1, REST_BYTES - 1, REST_BYTES + MAX_BODY_BYTES + 1, 2**31, 2**32 - 1])
    client.say(size.to_bytes(LENGTH_BYTES, "big") + request(1, Method.PROBE, probe)[LENGTH_BYTES:])
    return Then.ENDS


def _unknown_kind(rng: random.Random, client: CarrierClient, probe: bytes) -> Then:
    kind = rng.choice([0, max(Kind) + 1, 127, 255])
    data = bytearray(request(1, Method.PROBE, probe))
    data[LENGTH_BYTES] = kind
    client.say(bytes(data))
    return Then.ENDS


def _unknown_flags(rng: random.Random, client: CarrierClient, probe: bytes) -> Then:
    data = bytearray(request(1, Method.PROBE, probe))
    data[LENGTH_BYTES + 1] = rng.choice([MORE | 2, 2, 128, 255])
    client.say(bytes(data))
    return Then.ENDS


def _id_of_the_other_side(rng: random.Random, client: CarrierClient, probe: bytes) -> Then:
    client.say(rng.choice([request, opening])(rng.choice([0, 2, 1_000, MAX_CALL_ID - 1]), Method.PROBE, probe))
    return Then.ENDS


def _id_out_of_turn(rng: random.Random, client: CarrierClient, probe: bytes) -> Then:
    first, second = rng.choice([(1, 1), (5, 3), (MAX_CALL_ID, 1), (MAX_CALL_ID, MAX_CALL_ID)])
    client.say(request(first, Method.PROBE, probe) + request(second, Method.PROBE, probe))
    return Then.ENDS


def _last_id(_rng: random.Random, client: CarrierClient, probe: bytes) -> Then:
    client.say(request(MAX_CALL_ID, Method.PROBE, probe))
    return Then.STAYS


def _call_that_there_is_none_of(rng: random.Random, client: CarrierClient, _probe: bytes) -> Then:
    kind = rng.choice([Kind.MESSAGE, Kind.CREDIT, Kind.END, Kind.CANCEL, Kind.RESET])
    client.say(frames(kind, rng.choice([1, 2, 77, MAX_CALL_ID]), bytes(4)))
    return Then.ENDS


def _answer_to_nothing(rng: random.Random, client: CarrierClient, probe: bytes) -> Then:
    kind = rng.choice([Kind.RESPONSE, Kind.FAILURE])
    client.say(request(1, Method.PROBE, probe) + frames(kind, rng.choice([0, 1, 2, 77]), probe))
    return Then.ENDS


def _late_frames(rng: random.Random, client: CarrierClient, probe: bytes) -> Then:
    call_id = client.open(rng.choice([9_999, Method.PROBE]), probe)
    # The call is over, because the method is not one of a stream. What the server sends until it knows is on the way.
    client.await_credit(call_id)
    for kind in rng.sample([Kind.MESSAGE, Kind.END, Kind.CREDIT, Kind.RESET, Kind.CANCEL], 5):
        client.say(frames(kind, call_id, bytes(4)))
    return Then.STAYS


def _frame_of_a_stream_for_a_request(rng: random.Random, client: CarrierClient, probe: bytes) -> Then:
    # If the request was answered before the second frame arrived, this frame is late.
    kind = rng.choice([Kind.MESSAGE, Kind.CREDIT, Kind.END, Kind.RESET])
    client.say(request(1, Method.PROBE, probe) + frames(kind, 1, bytes(4)))
    return Then.EITHER


def _never_finished(rng: random.Random, client: CarrierClient, probe: bytes) -> Then:
    kind = rng.choice([Kind.REQUEST, Kind.OPEN])
    piece = bytes(rng.choice([0, 1, 1_000, MAX_BODY_BYTES]))
    client.say((header(kind, 1, len(piece), goes_on=True) + piece) * rng.randint(1, 10))
    client.say(request(3, Method.PROBE, probe))
    return Then.STAYS


def _another_message_in_between(rng: random.Random, client: CarrierClient, probe: bytes) -> Then:
    kind = rng.choice([kind for kind in Kind if kind >= Kind.OPEN])
    client.say(header(Kind.REQUEST, 1, len(probe), goes_on=True) + probe + frames(kind, 1, probe))
    return Then.ENDS


def _too_long(rng: random.Random, client: CarrierClient, _probe: bytes) -> Then:
    kind = rng.choice([Kind.REQUEST, Kind.OPEN])
    client.say(frames(kind, 1, bytes(LIMITS.message_bytes + MAX_BODY_BYTES), piece_bytes=MAX_BODY_BYTES))
    return Then.ENDS


def _too_many_calls(rng: random.Random, client: CarrierClient, _probe: bytes) -> Then:
    kind = rng.choice([Kind.REQUEST, Kind.OPEN])
    client.say(b"".join(header(kind, 1 + 2 * number, 1, goes_on=True) + b"x" for number in range(OPEN_CALLS_MAX + 1)))
    return Then.ENDS


def _too_short(rng: random.Random, client: CarrierClient, _probe: bytes) -> Then:
    client.say(frames(rng.choice([Kind.REQUEST, Kind.OPEN]), 1, bytes(rng.randrange(REST_BYTES))))
    return Then.ENDS


def _credit_overflow(rng: random.Random, client: CarrierClient, _probe: bytes) -> Then:
    call_id = client.open(Method.EXPORT_METADATA, b"", credit_bytes=rng.choice([0, 2**32 - 1]))
    client.say(credit(call_id, 2**32 - 1) * 1_000)
    client.say(frames(Kind.END, call_id, b""))
    return Then.STAYS


def _credit_of_another_size(rng: random.Random, client: CarrierClient, _probe: bytes) -> Then:
    wrong = frames(Kind.CREDIT, 1, bytes(rng.choice([0, 3, 5, 8])))
    client.say(opening(1, Method.EXPORT_METADATA, b"", credit_bytes=0) + wrong)
    return Then.ENDS


def _message_without_credit(_rng: random.Random, client: CarrierClient, _probe: bytes) -> Then:
    client.say(opening(1, Method.EXPORT_METADATA, b"", credit_bytes=0) + frames(Kind.MESSAGE, 1, b""))
    return Then.ENDS


def _messages_beyond_the_credit(rng: random.Random, client: CarrierClient, _probe: bytes) -> Then:
    call_id = client.open(Method.EXPORT_METADATA, b"", credit_bytes=0)
    if client.await_credit(call_id):
        size = rng.choice([0, 1, 1_000, REQUEST_WINDOW_BYTES])
        # The last message may exceed the credit, and one more follows it.
        client.say(frames(Kind.MESSAGE, call_id, bytes(size)) * (REQUEST_WINDOW_BYTES // max(1, size) + 2))
        client.settle()
    # A server that does not lead ends the stream, and accepts what was under way.
    return Then.STAYS if client.calls[call_id].is_over else Then.ENDS


def _end_twice(_rng: random.Random, client: CarrierClient, _probe: bytes) -> Then:
    client.say(opening(1, Method.EXPORT_METADATA, b"", credit_bytes=0) + frames(Kind.END, 1, b"") * 2)
    return Then.ENDS


def _hello_twice(_rng: random.Random, client: CarrierClient, _probe: bytes) -> Then:
    client.say(frames(Kind.HELLO, 0, client.hello or b""))
    return Then.ENDS


def _calls_behind_goodbye(_rng: random.Random, client: CarrierClient, probe: bytes) -> Then:
    client.say(frames(Kind.GOODBYE, 0, b"") + request(1, Method.PROBE, probe))
    return Then.STAYS


def _damaged_goodbye(rng: random.Random, client: CarrierClient, probe: bytes) -> Then:
    client.say(frames(Kind.GOODBYE, 0, rng.randbytes(rng.randrange(1_000))) + request(1, Method.PROBE, probe))
    return Then.STAYS


def _ping_out_of_form(rng: random.Random, client: CarrierClient, _probe: bytes) -> Then:
    data = [frames(Kind.PING, 0, bytes(7)), frames(Kind.PONG, 0, b"unasked!"), frames(Kind.PONG, 0, b"")]
    client.say(rng.choice([*data, header(Kind.PING, 0, 8, goes_on=True) + bytes(8)]))
    return Then.ENDS


def _many_pings(_rng: random.Random, client: CarrierClient, probe: bytes) -> Then:
    client.say(frames(Kind.PING, 0, bytes(8)) * PINGS + request(1, Method.PROBE, probe))
    return Then.STAYS


def _cancelled(rng: random.Random, client: CarrierClient, probe: bytes) -> Then:
    for _ in range(rng.choice([1, 500])):
        call_id = client.request(rng.choice([Method.PROBE, Method.ADMIN]), probe)
        client.say(frames(Kind.CANCEL, call_id, b"") * rng.randint(1, 2))
    return Then.STAYS


DAMAGES: Final[dict[str, Damage]] = {
    "cut": _cut,
    "changed bytes": _mutated,
    "garbage": _garbage,
    "wrong length": _wrong_length,
    "absurd length": _absurd_length,
    "unknown kind": _unknown_kind,
    "unknown flags": _unknown_flags,
    "id of the other side": _id_of_the_other_side,
    "id out of turn": _id_out_of_turn,
    "last id": _last_id,
    "call that there is none of": _call_that_there_is_none_of,
    "answer to nothing": _answer_to_nothing,
    "late frames": _late_frames,
    "frame of a stream for a request": _frame_of_a_stream_for_a_request,
    "message never finished": _never_finished,
    "another message in between": _another_message_in_between,
    "message too long": _too_long,
    "too many calls": _too_many_calls,
    "call without a method": _too_short,
    "credit beyond all numbers": _credit_overflow,
    "credit of another size": _credit_of_another_size,
    "message without credit": _message_without_credit,
    "messages beyond the credit": _messages_beyond_the_credit,
    "end twice": _end_twice,
    "HELLO twice": _hello_twice,
    "calls behind GOODBYE": _calls_behind_goodbye,
    "damaged GOODBYE": _damaged_goodbye,
    "PING out of form": _ping_out_of_form,
    "many PINGs": _many_pings,
    "cancelled at once": _cancelled,
}


def _hello(rng: random.Random, facts: Facts) -> net_pb2.Hello:
    """Return a valid HELLO."""
    identity = Identity(
        cluster_id=facts.cluster_id,
        node_id=rng.randrange(900, 910),
        incarnation_id=rng.randbytes(ID_BYTES),
        address=None,
    )
    return net_pb2.Hello.FromString(identity.encode())


def _creation() -> bytes:
    """Return a request that must not be carried out."""
    creation = admin_pb2.CreateTopicRequest(topic=FORBIDDEN, partition_count=1, replication_factor=1)
    call = controller_pb2.AdminCall(method="CreateTopic", request=creation.SerializeToString())
    return request(1, Method.ADMIN, call.SerializeToString())


def _greet(client: CarrierClient, hello: net_pb2.Hello) -> None:
    """Send preface and request in one piece."""
    client.say(GREETING + frames(Kind.HELLO, 0, hello.SerializeToString()) + _creation())


def _http(rng: random.Random, client: CarrierClient, _facts: Facts) -> Then:
    begin = rng.choice(
        [b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"\x16\x03\x01\x02\x00"]
    )
    client.say(begin + rng.randbytes(rng.randrange(100)))
    return Then.ENDS


def _no_greeting(rng: random.Random, client: CarrierClient, facts: Facts) -> Then:
    client.say(frames(Kind.HELLO, 0, _hello(rng, facts).SerializeToString()) + _creation())
    return Then.ENDS


def _damaged_greeting(rng: random.Random, client: CarrierClient, facts: Facts) -> Then:
    begin = bytearray(GREETING)
    begin[rng.randrange(len(begin))] ^= 1 << rng.randrange(8)
    client.say(bytes(begin) + frames(Kind.HELLO, 0, _hello(rng, facts).SerializeToString()) + _creation())
    return Then.ENDS


def _cut_greeting(rng: random.Random, client: CarrierClient, facts: Facts) -> Then:
    data = GREETING + frames(Kind.HELLO, 0, _hello(rng, facts).SerializeToString())
    client.say(data[: rng.randrange(len(data))])
    return Then.ENDS


def _no_hello(rng: random.Random, client: CarrierClient, _facts: Facts) -> Then:
    first = rng.choice([b"", frames(Kind.PING, 0, bytes(8)), frames(Kind.GOODBYE, 0, b"")])
    client.say(GREETING + first + _creation())
    return Then.ENDS


def _silence(_rng: random.Random, client: CarrierClient, _facts: Facts) -> Then:
    client.say(GREETING)
    return Then.ENDS


def _other_cluster(rng: random.Random, client: CarrierClient, facts: Facts) -> Then:
    hello = _hello(rng, facts)
    hello.cluster_id = rng.choice(["", "another", facts.cluster_id + "x", facts.cluster_id[:-1], "x" * 100_000])
    _greet(client, hello)
    return Then.ENDS


def _other_version(rng: random.Random, client: CarrierClient, facts: Facts) -> Then:
    hello = _hello(rng, facts)
    hello.min_version, hello.max_version = rng.choice(
        [(0, 0), (VERSION + 1, VERSION + 1), (VERSION, VERSION - 1), (-(2**31), 0), (2**31 - 1, 2**31 - 1)]
    )
    _greet(client, hello)
    return Then.ENDS


def _nobody(rng: random.Random, client: CarrierClient, facts: Facts) -> Then:
    hello = _hello(rng, facts)
    if rng.random() < 0.5:
        hello.node_id = rng.choice([-1, -(2**31)])
    else:
        hello.incarnation_id = rng.choice([b"", bytes(ID_BYTES - 1), bytes(ID_BYTES + 1), bytes(100_000)])
    _greet(client, hello)
    return Then.ENDS


def _damaged_hello(rng: random.Random, client: CarrierClient, _facts: Facts) -> Then:
    client.say(GREETING + frames(Kind.HELLO, 0, b"\xff" + rng.randbytes(rng.randrange(100))) + _creation())
    return Then.ENDS


GREETINGS: Final[dict[str, Greeting]] = {
    "another protocol": _http,
    "no greeting": _no_greeting,
    "damaged greeting": _damaged_greeting,
    "cut greeting": _cut_greeting,
    "no HELLO": _no_hello,
    "silence": _silence,
    "other cluster": _other_cluster,
    "other version": _other_version,
    "nobody": _nobody,
    "damaged HELLO": _damaged_hello,
}


def hello_of(rng: random.Random, facts: Facts) -> bytes:
    """Return a valid HELLO of a server that cannot be reached."""
    return _hello(rng, facts).SerializeToString()
