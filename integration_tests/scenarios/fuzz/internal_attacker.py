# SPDX-License-Identifier: Apache-2.0
"""Sends one server what no correct server sends, and judges the answers.

    attacker = Attacker(nodes, 1, seed, facts, outcome)
    attacker.attack(1_000)

Every other input calls a carrier method with valid, changed or damaged messages in valid frames. The rest are invalid frames and
prefaces, methods that do not exist, and requests that servers of older versions sent over gRPC.
"""

from __future__ import annotations

import collections
import contextlib
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

import grpc
from google.protobuf.message import DecodeError, Message
from lograft.errors import LograftError
from lograft.internal.v1 import controller_pb2, forward_pb2, net_pb2, quorum_pb2
from lograft.wire.codes import ErrorCode

from integration_tests.harness.cluster import CombinedCluster
from integration_tests.scenarios.fuzz import forwarded_requests
from integration_tests.scenarios.fuzz.admin_requests import ADMIN_MAKERS
from integration_tests.scenarios.fuzz.carrier_client import ANSWER_S, Call, CarrierClient, credit, frames
from integration_tests.scenarios.fuzz.carrier_damage import DAMAGES, GREETINGS, Then, hello_of
from integration_tests.scenarios.fuzz.cluster_facts import ID_BYTES, Facts, Voter
from integration_tests.scenarios.fuzz.internal_requests import CALLS, as_follower, tame
from integration_tests.scenarios.fuzz.message_mutations import mutate, out_of_range
from integration_tests.scenarios.fuzz.mutations import mutate_frame
from metaquorum.controller_service.admin_operations import REQUEST_TYPES
from metaquorum.net.connection import Limits
from metaquorum.net.frames import Kind
from metaquorum.net.hello import Identity
from metaquorum.net.methods import Method
from metaquorum.net.service import decode_refusal

FACTS_EVERY: Final = 50
"""Inputs after which an attacker asks for the state of the cluster again."""
DISTURB_EVERY: Final = 600
"""One in this many inputs may start an election, give a server another address, or replace a follower's stream."""
TIMEOUTS_MS: Final = (0, 1, 100, 2**31, 2**32 - 1)
PATIENT_METHODS: Final = (Method.ADMIN, Method.FORWARDED_CALL)
PATIENT_TIMEOUT_MS: Final = 2_000
"""Time limit of a request that waits for metadata or records that no client writes."""
CREDITS_BYTES: Final = (0, 1, 1_000, 2**31, 2**32 - 1)
LIVENESS_S: Final = Limits().liveness_ms / 1_000
UNKNOWN_METHOD: Final = "methods that there are none of"
GRPC: Final = "gRPC of older versions, at the public port"
FRAMES: Final = "frames: "
GREETING: Final = "greeting: "
OLD_SERVICES: Final = ("QuorumService", "ControllerService", "ReplicationService", "NoService", "")
UNREAD: Final = frozenset(("INVALID_REQUEST", "WRONG_CLUSTER"))
"""Refusals of requests that are malformed."""


@dataclass(slots=True)
class Outcome:
    """The result of a run; written under `lock`.

    Attributes:
        counts: inputs by kind and answer.
        reached: kinds of which a server accepted an input as well-formed.
        problems: everything that is wrong.
        slowest_s: longest time of one input.
        acknowledged: records of the producer that were acknowledged during the run.
    """

    counts: collections.Counter[tuple[str, str]] = field(default_factory=collections.Counter[tuple[str, str]])
    reached: set[str] = field(default_factory=set[str])
    problems: list[str] = field(default_factory=list[str])
    slowest_s: float = 0.0
    acknowledged: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def note(self, kind: str, answer: str) -> None:
        """Count one input."""
        with self.lock:
            self.counts[kind, answer] += 1

    def reach(self, kind: str) -> None:
        """Note that a request was not refused as malformed."""
        with self.lock:
            self.reached.add(kind)

    def fail(self, problem: str) -> None:
        """Note a problem."""
        with self.lock:
            self.problems.append(problem)

    def took(self, seconds: float) -> None:
        """Note the time of one input."""
        with self.lock:
            self.slowest_s = max(self.slowest_s, seconds)


def methods() -> list[str]:
    """Return the names of all carrier methods.

    Raises:
        RuntimeError: a method has no maker of requests.
    """
    missing = [method.name for method in Method if method not in CALLS]
    missing += [f"ADMIN {name}" for name in REQUEST_TYPES.keys() ^ ADMIN_MAKERS.keys()]
    if missing:
        raise RuntimeError(f"methods without a maker of requests: {missing}")
    return [method.name for method in Method]


def others() -> list[str]:
    """Return the names of all other kinds of input."""
    return [*(FRAMES + name for name in DAMAGES), *(GREETING + name for name in GREETINGS), UNKNOWN_METHOD, GRPC]


class Attacker:
    """Attacks one server, through its internal port and its public port.

    Args:
        nodes: the servers.
        target: node id of the attacked one.
        seed: determines the inputs, as far as they do not depend on the cluster.
        facts: returns the state of the cluster.
        outcome: gets all results.
    """

    def __init__(
        self, nodes: CombinedCluster, target: int, seed: int, facts: Callable[[], Facts], outcome: Outcome
    ) -> None:
        self._rng = random.Random(seed)
        self._methods, self._others = methods(), others()
        self._target_id = target
        self._host, self._port = nodes.hosts[target - 1], nodes.quorum_port
        self._public = grpc.insecure_channel(
            f"{self._host}:{nodes.broker_port}", options=(("grpc.enable_http_proxy", 0),)
        )
        self._gather, self._facts = facts, facts()
        self._outcome = outcome

    def attack(self, inputs: int) -> None:
        """Send that many inputs, of all kinds in turn."""
        for number in range(inputs):
            if number % FACTS_EVERY == 0:
                # During an election, what was known before serves for more mutations.
                with contextlib.suppress(LograftError):
                    self._facts = self._gather()
            turn, is_other = divmod(number, 2)
            kinds = self._others if is_other else self._methods
            kind = kinds[turn % len(kinds)]
            started_s = time.monotonic()
            try:
                # Each server gets each method once in valid form, because a short run might change all of them.
                answer = self._say(kind, is_valid=turn < len(kinds))
            except Exception as error:
                answer = "failed"
                self._outcome.fail(f"input {number} to server {self._target_id}, {kind}: {error!r}")
            self._outcome.note(kind, answer)
            took_s = time.monotonic() - started_s
            self._outcome.took(took_s)
            if took_s > ANSWER_S:
                self._outcome.fail(f"input {number} to server {self._target_id}, {kind}: {took_s:.0f} s")

    def close(self) -> None:
        """Close the channel."""
        self._public.close()

    def _say(self, kind: str, *, is_valid: bool) -> str:
        """Send one input, and return its result in a word."""
        if kind in self._methods:
            return self._call(Method[kind], is_valid=is_valid)
        self._outcome.reach(kind)
        if kind == UNKNOWN_METHOD:
            return self._unknown_method()
        if kind == GRPC:
            return self._ask_as_before()
        if kind.startswith(GREETING):
            return self._greet(kind)
        return self._damage(kind)

    @property
    def _target(self) -> Voter:
        return self._facts.voter(self._target_id)

    # Methods.

    def _call(self, method: Method, *, is_valid: bool) -> str:
        rng, shape = self._rng, CALLS[method]
        may_disturb = rng.randrange(DISTURB_EVERY) == 0
        data = self._input(method, may_disturb=may_disturb, is_valid=is_valid)
        with CarrierClient(self._host, self._port) as client:
            client.greet(self._hello(may_disturb=may_disturb))
            if shape.is_stream:
                self._use_stream(client, method, data, is_valid=is_valid)
            else:
                self._ask(client, method, data, is_valid=is_valid)
            if not is_valid and rng.random() < 0.05:
                return "left"
            stays = client.settle()
        if not stays and not may_disturb:
            self._judge_end(method.name, client)
        return self._judge(method, list(client.calls.values()))

    def _ask(self, client: CarrierClient, method: Method, data: list[bytes], *, is_valid: bool) -> None:
        rng = self._rng
        timeout_ms = PATIENT_TIMEOUT_MS if method in PATIENT_METHODS else int(ANSWER_S * 1_000)
        for message in data:
            if not is_valid and method not in PATIENT_METHODS and rng.random() < 0.1:
                timeout_ms = rng.choice(TIMEOUTS_MS)
            call_id = client.request(method, message, timeout_ms=timeout_ms, piece_bytes=self._piece_bytes(message))
            if not is_valid and rng.random() < 0.1:
                client.say(frames(Kind.CANCEL, call_id, b""))

    def _use_stream(self, client: CarrierClient, method: Method, data: list[bytes], *, is_valid: bool) -> None:
        rng = self._rng
        credit_bytes = rng.choice(CREDITS_BYTES)
        call_id = client.open(method, data[0], credit_bytes=credit_bytes, piece_bytes=self._piece_bytes(data[0]))
        client.say(credit(call_id, 1_000_000))
        for message in data[1:]:
            client.send(call_id, message)
        end = Kind.END if is_valid else rng.choice([Kind.END, Kind.END, Kind.END, Kind.CANCEL, Kind.RESET])
        client.say(frames(end, call_id, b""))

    def _piece_bytes(self, message: bytes) -> int:
        return self._rng.choice([7, 100] if len(message) < 5_000 else [1_000, 64 * 1024, 256 * 1024])

    def _hello(self, *, may_disturb: bool) -> bytes:
        if not may_disturb:
            return hello_of(self._rng, self._facts)
        # The server cannot know that this is another process, and may send requests over this connection.
        other = self._rng.choice(self._facts.voters)
        return Identity(
            cluster_id=self._facts.cluster_id,
            node_id=other.node_id,
            incarnation_id=self._rng.randbytes(ID_BYTES),
            address=other.address,
        ).encode()

    def _input(self, method: Method, *, may_disturb: bool, is_valid: bool) -> list[bytes]:
        """Return the messages to send. Unless they are to be valid, one of them is changed in most cases."""
        rng, facts = self._rng, self._facts
        messages = CALLS[method].make(rng, facts, self._target)
        if may_disturb and method is Method.REPLICATE:
            as_follower(messages, facts, self._target)
        chosen = rng.randrange(len(messages))
        way = 0.0 if is_valid else rng.random()
        if 0.1 <= way < 0.75:
            self._mutate(messages[chosen])
        for message in messages:
            tame(message, facts, may_disturb=may_disturb)
        data = [message.SerializeToString() for message in messages]
        if way >= 0.75:
            damage = out_of_range if way > 0.9 or not data[chosen] else mutate_frame
            data[chosen] = self._tamed(type(messages[chosen]), damage(rng, data[chosen]), may_disturb=may_disturb)
        if len(data) > 1 and not is_valid and rng.random() < 0.2:
            rng.shuffle(data)
        return data

    def _mutate(self, message: Message) -> None:
        if not isinstance(message, controller_pb2.AdminCall | forward_pb2.ForwardedCall) or self._rng.random() < 0.1:
            mutate(self._rng, message)
            return
        types = REQUEST_TYPES if isinstance(message, controller_pb2.AdminCall) else forwarded_requests.REQUEST_TYPES
        request = types[message.method].FromString(message.request)
        mutate(self._rng, request)
        message.request = request.SerializeToString()

    def _tamed(self, kind: type[Message], data: bytes, *, may_disturb: bool) -> bytes:
        try:
            message = kind.FromString(data)
        except DecodeError:
            return data
        before = message.SerializeToString()
        tame(message, self._facts, may_disturb=may_disturb)
        after = message.SerializeToString()
        return data if after == before else after

    # Judging the answers.

    def _judge(self, method: Method, calls: list[Call]) -> str:
        found = [self._judge_call(method, call) for call in calls]
        errors = {error for errors in found for error in errors}
        # The server opens a snapshot's files only after all checks, so any refusal may come first.
        looked_into = set() if method is Method.FETCH_SNAPSHOT else errors - UNREAD - {"CANCELLED"}
        is_answered = any(call.answers and not errors for call, errors in zip(calls, found, strict=True))
        if is_answered or looked_into:
            self._outcome.reach(method.name)
        return min(errors) if errors else "answered" if is_answered else "closed"

    def _judge_call(self, method: Method, call: Call) -> list[str]:
        """Return the codes of the server's refusals."""
        errors: list[str] = []
        if call.failure is not None and not (call.is_given_up and not call.failure):
            errors.append(self._judge_refusal(method.name, call.failure))
        elif call.is_given_up:
            errors.append("CANCELLED")
        for data in call.answers:
            answer: Any = CALLS[method].answer_type.FromString(data)
            if isinstance(answer, forward_pb2.ForwardedAnswer) and answer.HasField("refusal"):
                errors.append(
                    self._judge_code(method.name, ErrorCode(answer.refusal.error.code), answer.refusal.error.message)
                )
            if "error" in answer.DESCRIPTOR.fields_by_name and answer.error:
                is_known = answer.error in quorum_pb2.QuorumError.values()
                if not is_known:
                    self._outcome.fail(f"{method.name}: unknown error {answer.error}")
                name = quorum_pb2.QuorumError.Name(answer.error) if is_known else "?"
                errors.append(name.removeprefix("QUORUM_ERROR_"))
        return errors

    def _judge_refusal(self, kind: str, failure: bytes) -> str:
        refusal = decode_refusal(failure)
        return self._judge_code(kind, refusal.code, refusal.message)

    def _judge_code(self, kind: str, code: ErrorCode, message: str) -> str:
        if code is ErrorCode.INTERNAL:
            self._outcome.fail(f"{kind}: refused with INTERNAL {message[:200]}")
        return code.name

    # The other kinds.

    def _unknown_method(self) -> str:
        rng = self._rng
        message = rng.randbytes(rng.randrange(100))
        streams = [method for method in Method if CALLS[method].is_stream]
        requests = [method for method in Method if not CALLS[method].is_stream]
        with CarrierClient(self._host, self._port) as client:
            client.greet(self._hello(may_disturb=False))
            for _ in range(rng.randint(1, 5)):
                number = rng.choice([0, max(Method) + 1, 2**15, 2**16 - 1])
                if rng.random() < 0.5:
                    client.request(rng.choice([number, *streams]), message)
                else:
                    client.open(rng.choice([number, *requests]), message)
            if not client.settle():
                self._judge_end(UNKNOWN_METHOD, client)
        refusals: set[str] = set()
        for call in client.calls.values():
            if call.failure is None:
                self._outcome.fail(f"method {call.method} was answered: {call.answers}")
            else:
                refusals.add(self._judge_refusal(UNKNOWN_METHOD, call.failure))
        if refusals != {"INVALID_REQUEST"}:
            self._outcome.fail(f"{UNKNOWN_METHOD}: refused with {refusals}")
        return min(refusals, default="closed")

    def _ask_as_before(self) -> str:
        rng = self._rng
        name = rng.choice(
            ["", "Vote/Vote", "FollowQuorum", *(method.name.title().replace("_", "") for method in Method)]
        )
        path = f"/lograft.internal.v1.{rng.choice(OLD_SERVICES)}/{name}"
        try:
            self._public.unary_unary(path)(rng.randbytes(rng.randrange(100)), timeout=ANSWER_S)
        except grpc.RpcError as error:
            status: Any = error
            if status.code() is not grpc.StatusCode.UNIMPLEMENTED:
                self._outcome.fail(f"{path}: {status.code().name} {status.details()}")
            return status.code().name
        self._outcome.fail(f"{path} was answered")
        return "answered"

    def _greet(self, kind: str) -> str:
        with CarrierClient(self._host, self._port) as client:
            GREETINGS[kind.removeprefix(GREETING)](self._rng, client, self._facts)
            client.hear_out()
        if any(call.answers or call.failure is not None for call in client.calls.values()):
            self._outcome.fail(f"{kind}: a request was answered")
        return self._judge_goodbye(kind, client)

    def _damage(self, kind: str) -> str:
        probe = CALLS[Method.PROBE].make(self._rng, self._facts, self._target)[0].SerializeToString()
        with CarrierClient(self._host, self._port) as client:
            client.greet(self._hello(may_disturb=False))
            then = DAMAGES[kind.removeprefix(FRAMES)](self._rng, client, probe)
            if then is Then.ENDS:
                client.hear_out()
                stays = False
            else:
                stays = client.settle()
        if then is Then.STAYS and not stays:
            self._judge_end(kind, client)
        for call in client.calls.values():
            if call.failure:
                self._judge_refusal(kind, call.failure)
            elif call.failure is not None and not call.is_given_up:
                self._outcome.fail(f"{kind}: a failure without a reason")
        return "goes on" if stays else self._judge_goodbye(kind, client)

    def _judge_end(self, kind: str, client: CarrierClient) -> None:
        """Judge an end of the connection for which the input gave no reason. A server that was paused too long may end it as dead."""
        if client.age_s < LIVENESS_S:
            self._outcome.fail(f"{kind}: the connection ended, with GOODBYE {client.goodbye!r}")

    def _judge_goodbye(self, kind: str, client: CarrierClient) -> str:
        if client.goodbye is None:
            return "ended"
        code = ErrorCode(net_pb2.Goodbye.FromString(client.goodbye).code)
        if code in (ErrorCode.INTERNAL, ErrorCode.UNSPECIFIED):
            self._outcome.fail(f"{kind}: GOODBYE with {code.name}")
        return f"GOODBYE {code.name}"
