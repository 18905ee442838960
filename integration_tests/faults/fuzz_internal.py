# SPDX-License-Identifier: Apache-2.0
"""`make fuzz`, second part: mutated requests between servers, at three real servers that are voters and brokers.

Every method of `lograft.internal.v1` at the gRPC ports, the same messages on the plain connections, and methods that there are none of.
No process may end and no log may have a traceback; every answer is typed and comes within `ANSWER_S`; a producer's records are taken
meanwhile. Afterwards every server is stopped in order, and killed, and serves again, with every acknowledged record.
"""

from __future__ import annotations

import collections
import contextlib
import random
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import grpc
from brokerd.frame_stream import REPLICATE_GREETING
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass
from lograft import Admin, BatchReceipt, Consumer, Producer, TopicPartition
from lograft.errors import LograftError
from lograft.internal.v1 import controller_pb2, controller_pb2_grpc, quorum_pb2, replication_pb2
from lograft.wire.codes import ErrorCode
from lograft.wire.status import parse_rpc_error

from integration_tests.cluster.wait import wait_for
from integration_tests.faults.internal_requests import (
    ID_BYTES,
    MAKERS,
    Facts,
    Stranger,
    Voter,
    as_follower,
    gather,
    internal_methods,
    mutate,
    out_of_range,
    tame,
)
from integration_tests.faults.mutations import mutate_frame
from integration_tests.soak.nodes import CombinedNodes
from metaquorum.runtime.frames import GREETING, BadFrameError, FrameReader, frame

QUIET: Final = "fuzz-quiet"
"""The topic that requests are about: records that are there before, and nobody writes to it."""
LIVELY: Final = "fuzz-lively"
"""The topic of the producer."""
PARTITIONS: Final = 3
STRANGER_ID: Final = 77
ANSWER_S: Final = 40.0
"""Longest time of a call or a connection; a server waits 30 s at most for whatever it needs."""
STALL_S: Final = 90.0
"""Longest time in which the producer may get no acknowledgement."""
SERVE_S: Final = 120.0
"""Longest time until a cluster serves again."""
SEND_PAUSE_S: Final = 0.05
FACTS_EVERY: Final = 150
"""Inputs after which an attacker looks anew what the cluster is."""
DISTURB_EVERY: Final = 600
"""One of so many inputs may start an election, give a server another address, or take the place of a follower's stream."""
MAX_ANSWERS: Final = 1_000
"""Most messages that are read from one stream."""
MAX_ANSWER_BYTES: Final = 64 * 1024 * 1024
PLAIN_FETCH: Final = "plain connection: FetchQuorumRequest"
REPLICATION: Final = "lograft.internal.v1.ReplicationService."
"""What no gRPC server serves: its messages go over plain connections alone."""
UNKNOWN_METHOD: Final = "methods that there are none of"
BY_TRANSPORT: Final = (grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.RESOURCE_EXHAUSTED)
"""What gRPC says itself: of a method that there is none of, of a message that is too large, of too many calls."""
SNAPSHOTS: Final = ("--snapshot-interval-ms", "2000", "--kept-snapshots", "20")
"""Each server has a snapshot of the metadata soon, and keeps it for longer than an attacker believes what it knows."""
UNREAD: Final = frozenset(("INVALID_REQUEST", "WRONG_CLUSTER"))
"""Answers to requests that are refused for their form."""
FETCH_SNAPSHOT: Final = "lograft.internal.v1.QuorumService.FetchSnapshot"
"""What is not reached before a server has sent one: any refusal comes before its files are opened."""
FAULTS_IN_LOGS: Final = ("Traceback (most recent call last)", "event=quorum_node_failed", "AssertionError")


@dataclass(slots=True)
class Outcome:
    """What a run came to; to be written under `lock`.

    Attributes:
        counts: inputs by method and answer.
        reached: methods of which a server took a request.
        problems: what must not be.
        slowest_s: longest time of one input.
    """

    counts: collections.Counter[str] = field(default_factory=collections.Counter[str])
    reached: set[str] = field(default_factory=set[str])
    problems: list[str] = field(default_factory=list[str])
    slowest_s: float = 0.0
    acknowledged: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def note(self, kind: str, answer: str) -> None:
        """Count one input."""
        with self.lock:
            self.counts[f"{kind}: {answer}"] += 1

    def reach(self, kind: str) -> None:
        """Note that a request was not refused for its form."""
        with self.lock:
            self.reached.add(kind)

    def fail(self, problem: str) -> None:
        """Note what must not be."""
        with self.lock:
            self.problems.append(problem)


def kinds() -> list[str]:
    """Everything that is attacked, by name.

    Raises:
        RuntimeError: the protocol has a method without a maker, or a maker has no method.
    """
    methods = internal_methods()
    if methods.keys() != MAKERS.keys():
        raise RuntimeError(f"methods without a maker of requests, or the other way round: {methods.keys() ^ MAKERS}")
    return [*methods, PLAIN_FETCH, UNKNOWN_METHOD]


def identity(data: bytes) -> bytes:
    """Pass a message through unparsed."""
    return data


class Attacker:
    """Sends inputs to one server.

    Args:
        nodes: the servers.
        target: node id of the one.
        seed: names the inputs, as far as they do not depend on the cluster.
        facts: gives what the cluster is.
        outcome: gets everything.
    """

    def __init__(
        self, nodes: CombinedNodes, target: int, seed: int, facts: Callable[[], Facts], outcome: Outcome
    ) -> None:
        self._rng = random.Random(seed)
        self._methods = internal_methods()
        self._kinds = kinds()
        self._target_id = target
        self._host = nodes.hosts[target - 1]
        options = [("grpc.max_receive_message_length", MAX_ANSWER_BYTES)]
        self._quorum = grpc.insecure_channel(f"{self._host}:{nodes.quorum_port}", options=options)
        self._broker = grpc.insecure_channel(f"{self._host}:{nodes.broker_port}", options=options)
        self._gather, self._facts = facts, facts()
        self._outcome = outcome
        self._fetch_port, self._replication_port = 0, nodes.replication_port

    def attack(self, inputs: int) -> None:
        """Send so many inputs, of all kinds in turn."""
        for number in range(inputs):
            if number % FACTS_EVERY == 0:
                self._look()
            kind = self._kinds[number % len(self._kinds)]
            started_s = time.monotonic()
            try:
                self._send(kind, number)
            except Exception as error:
                self._outcome.fail(f"input {number} to server {self._target_id}, {kind}: {error!r}")
            took_s = time.monotonic() - started_s
            self._outcome.slowest_s = max(self._outcome.slowest_s, took_s)
            if took_s > ANSWER_S:
                self._outcome.fail(f"input {number} to server {self._target_id}, {kind}: {took_s:.0f} s")

    def close(self) -> None:
        """Close the channels."""
        self._quorum.close()
        self._broker.close()

    def _look(self) -> None:
        # While an election is under way, what was known before is good for more mutations.
        with contextlib.suppress(LograftError):
            self._facts = self._gather()
        target = self._target()
        if not self._fetch_port:
            answer = self._call_raw(
                self._methods["lograft.internal.v1.QuorumService.FetchQuorum"],
                [self._messages("lograft.internal.v1.QuorumService.FetchQuorum", target)[0].SerializeToString()],
            )
            self._fetch_port = quorum_pb2.FetchQuorumResponse.FromString(answer[0]).fetch_port

    def _target(self) -> Voter:
        return self._facts.voter(self._target_id)

    def _messages(self, name: str, target: Voter) -> list[Message]:
        return MAKERS[name](self._rng, self._facts, target)

    def _send(self, kind: str, number: int) -> None:
        if kind == UNKNOWN_METHOD:
            self._unknown_method()
            return
        name = "lograft.internal.v1.QuorumService.FetchQuorum" if kind == PLAIN_FETCH else kind
        may_disturb = self._rng.randrange(DISTURB_EVERY) == 0
        # Each server gets each kind once as a correct peer says it: some short run might change all of them.
        data = self._input(name, may_disturb=may_disturb, is_valid=number < len(self._kinds))
        if kind == PLAIN_FETCH:
            self._plain(kind, self._fetch_port, GREETING, data, quorum_pb2.FetchQuorumResponse)
        elif kind.startswith(REPLICATION):
            self._plain(kind, self._replication_port, REPLICATE_GREETING, data, replication_pb2.ReplicateResponse)
        else:
            self._call(self._methods[name], data)

    def _input(self, name: str, *, may_disturb: bool, is_valid: bool) -> list[bytes]:
        """Make what is sent: valid messages, one of which is changed, in most cases unless they are to be valid."""
        rng, facts = self._rng, self._facts
        messages = self._messages(name, self._target())
        if may_disturb and name.endswith(".Replicate"):
            as_follower(messages, facts, self._target())
        chosen = rng.randrange(len(messages))
        way = 0.0 if is_valid else rng.random()
        if 0.1 <= way < 0.75:
            mutate(rng, messages[chosen])
        for message in messages:
            tame(message, facts, may_disturb=may_disturb)
        data = [message.SerializeToString() for message in messages]
        if way >= 0.75:
            damage = out_of_range if way > 0.9 else mutate_frame
            data[chosen] = self._tamed(type(messages[chosen]), damage(rng, data[chosen]), may_disturb=may_disturb)
        if len(data) > 1 and not is_valid and rng.random() < 0.2:
            rng.shuffle(data)
        return data

    def _tamed(self, kind: type[Message], data: bytes, *, may_disturb: bool) -> bytes:
        try:
            message = kind.FromString(data)
        except DecodeError:
            return data
        before = message.SerializeToString()
        tame(message, self._facts, may_disturb=may_disturb)
        after = message.SerializeToString()
        return data if after == before else after

    # gRPC.

    def _call_raw(self, method: MethodDescriptor, data: list[bytes]) -> list[bytes]:
        channel = self._quorum
        path = f"/{method.full_name.rpartition('.')[0]}/{method.name}"
        if method.client_streaming:
            stream = channel.stream_stream(path, identity, identity)(iter(data), timeout=ANSWER_S)
        elif method.server_streaming:
            stream = channel.unary_stream(path, identity, identity)(data[0], timeout=ANSWER_S)
        else:
            return [channel.unary_unary(path, identity, identity)(data[0], timeout=ANSWER_S)]
        answers: list[bytes] = []
        for answer in stream:
            answers.append(answer)
            if len(answers) >= MAX_ANSWERS:
                stream.cancel()
                break
        return answers

    def _call(self, method: MethodDescriptor, data: list[bytes]) -> None:
        kind = method.full_name
        try:
            answers = self._call_raw(method, data)
        except grpc.RpcError as error:
            self._judge_status(kind, error)
            return
        self._judge_answers(kind, GetMessageClass(method.output_type), answers)

    def _judge_status(self, kind: str, error: grpc.RpcError) -> None:
        status = parse_rpc_error(error)
        if status.code is None and status.grpc_code not in BY_TRANSPORT:
            self._outcome.fail(f"{kind}: untyped {status.grpc_code.name} {status.message[:200]}")
        if status.code in (ErrorCode.INTERNAL, ErrorCode.UNSPECIFIED):
            self._outcome.fail(f"{kind}: {status.code.name} {status.message[:200]}")
        if status.code not in (None, ErrorCode.INVALID_REQUEST, ErrorCode.WRONG_CLUSTER):
            self._outcome.reach(kind)
        self._outcome.note(kind, status.grpc_code.name if status.code is None else status.code.name)

    def _judge_answers(self, kind: str, message_class: type[Message], answers: list[bytes]) -> None:
        errors: list[str] = []
        for data in answers:
            answer: Any = message_class.FromString(data)
            part: Any = answer.answer if isinstance(answer, quorum_pb2.FollowQuorumResponse) else answer
            if "error" in part.DESCRIPTOR.fields_by_name and part.error:
                known = part.error in quorum_pb2.QuorumError.values()
                if not known:
                    self._outcome.fail(f"{kind}: unknown error {part.error}")
                errors.append(quorum_pb2.QuorumError.Name(part.error).removeprefix("QUORUM_ERROR_") if known else "?")
            if isinstance(part, replication_pb2.ReplicateResponse) and part.HasField("refused"):
                code = ErrorCode(part.refused.code)
                errors.append(code.name)
                if code in (ErrorCode.INTERNAL, ErrorCode.UNSPECIFIED):
                    self._outcome.fail(f"{kind}: refused with {code.name} {part.refused.message[:200]}")
        if not errors or (kind != FETCH_SNAPSHOT and set(errors) - UNREAD):
            self._outcome.reach(kind)
        self._outcome.note(kind, errors[0] if errors else "answered" if answers else "closed")

    def _unknown_method(self) -> None:
        rng = self._rng
        service = rng.choice(["QuorumService", "ControllerService", "ReplicationService", "NoService", ""])
        path = f"/lograft.internal.v1.{service}/{rng.choice(['Vot', 'Probe2', '', 'x' * 1_000, 'Vote/Vote'])}"
        channel = rng.choice([self._quorum, self._broker])
        try:
            channel.unary_unary(path, identity, identity)(rng.randbytes(rng.randrange(100)), timeout=ANSWER_S)
        except grpc.RpcError as error:
            self._judge_status(UNKNOWN_METHOD, error)
        else:
            self._outcome.fail(f"{path} was answered")
        self._outcome.reach(UNKNOWN_METHOD)

    # Plain connections.

    def _plain(self, kind: str, port: int, greeting: bytes, data: list[bytes], message_class: type[Message]) -> None:
        rng = self._rng
        frames = [frame(message) for message in data]
        damage = rng.randrange(8)
        if damage == 0:
            frames = [mutate_frame(rng, b"".join(frames))]
        elif damage == 1:
            frames[-1] = frames[-1][: rng.randrange(len(frames[-1]))]
        elif damage == 2:
            frames.append(rng.choice([2**32 - 1, 2**31, 1024 * 1024 + 1, 64 * 1024 + 1]).to_bytes(4, "big") + b"x")
        elif damage == 3:
            frames.append(bytes(4))
        begin = (
            greeting if rng.random() < 0.9 else rng.choice([b"", greeting[:-1], b"GET / HTTP/1.1\r\n\r\n", bytes(20)])
        )
        try:
            answers = list(self._exchange(port, greeting, begin, frames))
        except (OSError, BadFrameError) as error:
            # Whoever says anything else is disconnected, perhaps before the answer was read.
            if isinstance(error, BadFrameError | TimeoutError):
                self._outcome.fail(f"{kind}: {error!r}")
            self._outcome.note(kind, "disconnected")
            return
        self._judge_answers(kind, message_class, answers)

    def _exchange(self, port: int, greeting: bytes, begin: bytes, frames: list[bytes]) -> Iterator[bytes]:
        """Say everything, one frame after the answer to the last where there is one; then read until the server closes."""
        reader = FrameReader(max_bytes=MAX_ANSWER_BYTES, greeting=greeting)
        with socket.create_connection((self._host, port), timeout=ANSWER_S) as connection:
            connection.sendall(begin)
            for data in frames:
                connection.sendall(data)
            connection.shutdown(socket.SHUT_WR)
            while received := connection.recv(1 << 16):
                reader.feed(received)
                while (message := reader.take()) is not None:
                    yield message


# A client that means well.


class Sender:
    """Sends numbered records to `LIVELY`, one after the other, in a thread of its own.

    Attributes:
        acknowledged: number and place of each record that was.
        stalled_s: longest time without an acknowledgement.
    """

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sender", daemon=True)
        self.acknowledged: dict[int, tuple[int, int]] = {}
        self.stalled_s = 0.0
        self.error: Exception | None = None

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End when the last record is acknowledged."""
        self._stop.set()
        self._thread.join(2 * STALL_S)
        if self._thread.is_alive():
            self.error = TimeoutError("the producer did not end")

    def _run(self) -> None:
        try:
            receipts: list[BatchReceipt] = []
            timeout_ms = int(STALL_S * 1_000)
            with Producer(
                self._bootstrap, acks="all", delivery_timeout_ms=timeout_ms, on_batch=receipts.append
            ) as producer:
                number = 0
                last_s = time.monotonic()
                while not self._stop.wait(SEND_PAUSE_S):
                    producer.send(LIVELY, b"%d" % number, partition=number % PARTITIONS)
                    producer.flush(timeout_ms=timeout_ms)
                    offset = receipts[-1].base_offset
                    assert offset is not None, f"flushed, and not acknowledged: {receipts[-1]}"
                    self.acknowledged[number] = (number % PARTITIONS, offset)
                    number += 1
                    self.stalled_s = max(self.stalled_s, time.monotonic() - last_s)
                    last_s = time.monotonic()
        except (LograftError, TimeoutError) as error:
            self.error = error


def read_all(bootstrap: str, topic: str) -> dict[tuple[int, int], bytes]:
    """Values of a topic by partition and offset.

    Raises:
        TimeoutError: a reader got nothing for too long.
    """
    found: dict[tuple[int, int], bytes] = {}
    places = [TopicPartition(topic, partition) for partition in range(PARTITIONS)]
    with Consumer(bootstrap) as consumer:
        ends = consumer.end_offsets(places)
        consumer.assign(places)
        deadline_s = time.monotonic() + SERVE_S
        while any(consumer.position(place) < ends[place] for place in places):
            batch = consumer.poll_batch(1_000)
            if batch is not None:
                for offset, value in zip(batch.offsets(), batch.values(), strict=True):
                    found[batch.partition, offset] = value or b""
            elif time.monotonic() > deadline_s:
                raise TimeoutError(f"{topic}: {len(found)} records read, the ends are {ends}")
    return found


# A run.


def run(directory: Path, inputs: int, seed: int) -> Outcome:
    """Attack three servers, restart them, and read everything.

    Args:
        directory: for their data and logs.
        inputs: over all servers.
        seed: names the inputs.
    """
    outcome = Outcome()
    with CombinedNodes(directory, count=3, arguments=SNAPSHOTS) as nodes, Admin(nodes.bootstrap) as admin:
        for topic in (QUIET, LIVELY):
            admin.create_topic(
                topic, partition_count=PARTITIONS, replication_factor=3, configs={"min.insync.replicas": "2"}
            )
        quiet = _fill(nodes.bootstrap)
        ends = [sum(partition == each for partition, _ in quiet) for each in range(PARTITIONS)]
        stranger = register_stranger(nodes, admin)
        wait_for(
            lambda: admin.describe_quorum().latest_snapshot,
            timeout_s=SERVE_S,
            what="a snapshot of the metadata",
            interval_s=0.2,
        )
        sender = Sender(nodes.bootstrap)
        sender.start()
        _attack_all(nodes, inputs, seed, lambda: gather(admin, topic=QUIET, ends=ends, stranger=stranger), outcome)
        sender.stop()
        if sender.error is not None:
            outcome.fail(f"the producer ended: {sender.error!r}")
        if sender.stalled_s > STALL_S:
            outcome.fail(f"the producer got no acknowledgement for {sender.stalled_s:.0f} s")
        outcome.acknowledged = len(sender.acknowledged)
        for process in nodes.processes.values():
            if not process.running:
                outcome.fail(f"{process.name} ended: {process.log_tail()}")
        outcome.problems += _log_problems(nodes)
        if outcome.problems:
            return outcome
        _compare(nodes, quiet, sender, outcome, "after the attack")
        for process in nodes.processes.values():
            _restart(nodes, process.stop, outcome)
            process.start()
            _wait_until_serving(nodes, admin)
            _restart(nodes, process.kill, outcome)
            process.start()
            _wait_until_serving(nodes, admin)
        _compare(nodes, quiet, sender, outcome, "after the restarts")
        outcome.problems += [f"after the restarts: {problem}" for problem in _log_problems(nodes)]
    return outcome


def _restart(nodes: CombinedNodes, end: Callable[[], int | None], outcome: Outcome) -> None:
    status = end()
    if status:
        outcome.fail(f"a server ended with {status}: {nodes.logs()}")


def _fill(bootstrap: str) -> dict[tuple[int, int], bytes]:
    with Producer(bootstrap, acks="all") as producer:
        for number in range(100):
            producer.send(QUIET, b"quiet-%d" % number, partition=number % PARTITIONS)
        producer.flush()
    return read_all(bootstrap, QUIET)


def register_stranger(nodes: CombinedNodes, admin: Admin) -> Stranger:
    """Register a broker that has no process.

    Raises:
        TimeoutError: no controller took it.
    """
    incarnation_id, directory_id = bytes(range(ID_BYTES)), bytes(range(1, ID_BYTES + 1))

    def register() -> Stranger | None:
        for host in nodes.hosts:
            request = controller_pb2.RegisterBrokerRequest(
                cluster_id=admin.describe_quorum().cluster_id,
                broker_id=STRANGER_ID,
                incarnation_id=incarnation_id,
                host="127.0.0.1",
                port=1,
                log_directory_ids=[directory_id],
                feature_level=controller_pb2.FeatureRange(min_level=1, max_level=100),
            )
            with grpc.insecure_channel(f"{host}:{nodes.quorum_port}") as channel:
                try:
                    answer = controller_pb2_grpc.ControllerServiceStub(channel).RegisterBroker(request, timeout=10)
                except grpc.RpcError:
                    continue
                return Stranger(
                    broker_id=STRANGER_ID,
                    incarnation_id=incarnation_id,
                    directory_id=directory_id,
                    broker_epoch=answer.broker_epoch,
                )
        return None

    return wait_for(register, timeout_s=SERVE_S, what="a controller", interval_s=0.5)


def _attack_all(nodes: CombinedNodes, inputs: int, seed: int, facts: Callable[[], Facts], outcome: Outcome) -> None:
    attackers = [Attacker(nodes, 1 + number, seed * 10 + number, facts, outcome) for number in range(3)]
    threads = [
        threading.Thread(target=attacker.attack, args=(inputs // 3 + (number < inputs % 3),), daemon=True)
        for number, attacker in enumerate(attackers)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for attacker in attackers:
        attacker.close()


def _log_problems(nodes: CombinedNodes) -> list[str]:
    problems: list[str] = []
    for process in nodes.processes.values():
        text = process.log_path.read_text(errors="replace")
        for fault in FAULTS_IN_LOGS:
            if fault in text:
                position = text.index(fault)
                excerpt = text[max(0, position - 500) : position + 3_000]
                problems.append(f"{process.name} logs {fault!r} {text.count(fault)} times: {excerpt}")
                break
    return problems


def _wait_until_serving(nodes: CombinedNodes, admin: Admin) -> None:
    """Until every replica is in sync again: one more server may then be taken away.

    Raises:
        TimeoutError: not within `SERVE_S`.
    """

    def is_serving() -> bool:
        try:
            cluster = admin.describe_cluster()
            fenced = {broker.broker_id for broker in cluster.brokers if broker.fenced}
            topics = [admin.describe_topic(topic) for topic in (QUIET, LIVELY)]
        except LograftError:
            return False
        partitions = [partition for topic in topics for partition in topic.partitions]
        # Some of the requests registered brokers that have no process.
        return not fenced & set(range(1, len(nodes.hosts) + 1)) and all(
            len(partition.isr) == 3 for partition in partitions
        )

    try:
        wait_for(is_serving, timeout_s=SERVE_S, what="all replicas to be in sync", interval_s=0.2)
    except TimeoutError as error:
        raise TimeoutError(f"{error}\n{nodes.logs()}") from None


def _compare(
    nodes: CombinedNodes, quiet: dict[tuple[int, int], bytes], sender: Sender, outcome: Outcome, when: str
) -> None:
    if (found := read_all(nodes.bootstrap, QUIET)) != quiet:
        outcome.fail(f"{when}: {QUIET} has {len(found)} records, and had {len(quiet)}")
    lively = read_all(nodes.bootstrap, LIVELY)
    for number, place in sender.acknowledged.items():
        if lively.get(place) != b"%d" % number:
            outcome.fail(f"{when}: record {number} is not at {place}, where it was acknowledged")
    repeated = [value for value, count in collections.Counter(lively.values()).items() if count > 1]
    if repeated:
        outcome.fail(f"{when}: {len(repeated)} records are there more than once, as {repeated[0]!r}")


def report(outcome: Outcome, inputs: int, seed: int) -> int:
    """Print what a run came to; returns the exit status."""
    missing = [kind for kind in kinds() if kind not in outcome.reached]
    for kind in kinds():
        found = {
            name.removeprefix(f"{kind}: "): count for name, count in outcome.counts.items() if name.startswith(kind)
        }
        answers = ", ".join(f"{name} {count}" for name, count in sorted(found.items(), key=lambda item: -item[1]))
        print(f"{sum(found.values()):7d}  {kind}: {answers}")
    for problem in outcome.problems[:20]:
        print(f"PROBLEM {problem}")
    for kind in missing:
        print(f"NOT REACHED {kind}: no request was looked into")
    print(
        f"{sum(outcome.counts.values())} of {inputs} inputs of seed {seed} to three servers; {outcome.acknowledged} records taken "
        f"meanwhile; slowest answer {outcome.slowest_s:.1f} s (bound {ANSWER_S:.0f} s); {len(outcome.problems)} problems"
    )
    return 1 if outcome.problems or missing else 0
