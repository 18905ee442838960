# SPDX-License-Identifier: Apache-2.0
"""`make fuzz`, first part: mutated batches, frames, names and calls of ingests, through the public port of a real broker process.

The broker must survive every input. After every thousand inputs a good client must still work. At the end the broker's memory must have
grown by less than RSS_GROWTH_BYTES_MAX, and everything stored must be readable: every batch of the topic decodes in every way that
readers use, and Read and Fetch return the same. The second part is `internal_port`.
"""

from __future__ import annotations

import collections
import random
from pathlib import Path

import grpc
from lograft import Admin, Consumer, TopicPartition
from lograft.v1 import admin_pb2, log_pb2
from lograft.wire.batch import RecordBatch, encode_batch
from lograft.wire.compression import Codec

from integration_tests.harness.cluster import BROKER_ID_FIRST, Cluster
from integration_tests.harness.wait import wait_for
from integration_tests.scenarios.fuzz.ingest_requests import TOPIC as INGEST_TOPIC
from integration_tests.scenarios.fuzz.ingest_requests import IngestRequests
from integration_tests.scenarios.fuzz.mutations import BATCH_MUTATIONS, mutate_frame, odd_name, zstd_bomb

TOPIC = "fuzz"
RSS_GROWTH_BYTES_MAX = 256 * 1024 * 1024
CALL_TIMEOUT_S = 10.0
INGEST_TIMEOUT_S = 2.0
"""A commit of what cannot be checked now waits as long as it may."""
WARM_UP_INPUTS = 1_000
BOMBS = 20
POLL_TIMEOUT_MS = 10_000
SERVICE = "/lograft.v1.LogService/"


def valid_batches(rng: random.Random) -> list[bytes]:
    """Return valid batches of several forms to start from."""
    values: list[bytes | None] = [rng.randbytes(rng.randrange(50)) for _ in range(20)]
    with_nulls = [None if index % 5 == 0 else value for index, value in enumerate(values)]
    keys: list[bytes | None] = [b"k%d" % index if index % 3 else None for index in range(20)]
    headers = [[("h", b"x"), ("n", None)] if index % 2 else [] for index in range(20)]
    return [
        bytes(encode_batch([b"one"], timestamps_ms=1)),
        bytes(encode_batch(values, timestamps_ms=list(range(20)))),
        bytes(encode_batch(with_nulls, keys=keys, headers=headers, timestamps_ms=5)),
        bytes(encode_batch(values, keys=keys, timestamps_ms=1, codec=Codec.ZSTD)),
        bytes(encode_batch(values, timestamps_ms=1, producer_id=77, producer_epoch=0, base_sequence=0)),
    ]


class Attacker:
    """Sends inputs to one broker and counts the results."""

    def __init__(self, address: str, seed: int) -> None:
        self._rng = random.Random(seed)
        self._channel = grpc.insecure_channel(address)
        self._batches = valid_batches(self._rng)
        self._ingests = IngestRequests(self._rng)
        self.outcomes: collections.Counter[str] = collections.Counter()

    def _exchange(self, method: str, messages: list[bytes]) -> list[bytes]:
        """Send all messages, close, and return all answers."""
        call = self._channel.stream_stream(SERVICE + method)(iter(messages), timeout=CALL_TIMEOUT_S)
        return list(call)

    def _attempt(self, kind: str, method: str, messages: list[bytes]) -> None:
        try:
            answers = self._exchange(method, messages)
        except grpc.RpcError as error:
            if error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.UNKNOWN, grpc.StatusCode.INTERNAL):
                self.outcomes[f"{kind}: {error.code().name} {str(error.details())[:80]}"] += 1
            else:
                self.outcomes[f"{kind}: {error.code().name}"] += 1
            return
        ended = sum(1 for answer in answers if log_pb2.ProduceResponse.FromString(answer).HasField("route_end"))
        receipts = sum(1 for answer in answers if log_pb2.ProduceResponse.FromString(answer).HasField("receipt"))
        self.outcomes[f"{kind}: {'refused' if ended else 'stored' if receipts else 'no answer'}"] += 1

    def _produce_open(self, *, topic: str = TOPIC) -> bytes:
        route = log_pb2.ProduceRoute(route=1, topic=topic, partition=0)
        opening = log_pb2.ProduceOpen(without_idempotence=True, routes=[route])
        return log_pb2.ProduceRequest(open=opening).SerializeToString()

    def mutated_batch(self, *, bomb: bool = False) -> None:
        """Send one mutated batch on a well-behaved stream."""
        mutate = zstd_bomb if bomb else self._rng.choice(BATCH_MUTATIONS)
        body = bytes(mutate(self._rng, self._rng.choice(self._batches)))
        batch = log_pb2.ProduceRequest(batch=log_pb2.ProduceBatch(route=1, batch_number=1, body=body))
        self._attempt("zstd bomb" if bomb else "batch", "Produce", [self._produce_open(), batch.SerializeToString()])

    def mutated_frame(self) -> None:
        """Send a damaged message of a produce or fetch stream."""
        rng = self._rng
        if rng.random() < 0.5:
            batch = log_pb2.ProduceBatch(
                route=rng.choice([1, 1, 2, -1, 2**31 - 1]),
                batch_number=rng.choice([1, 1, 0, -5, 2**62]),
                body=rng.choice(self._batches),
            )
            messages = [self._produce_open(), log_pb2.ProduceRequest(batch=batch).SerializeToString()]
            self._attempt("produce frame", "Produce", self._damage(messages))
            return
        offset = rng.choice([0, -1, 2**62, -(2**63)])
        route = log_pb2.FetchRoute(
            route=rng.choice([1, -1]), topic=TOPIC, partition=rng.choice([0, -1, 9]), offset=offset
        )
        opening = log_pb2.FetchOpen(routes=[route] * rng.choice([1, 2]), credit_bytes=rng.choice([0, -1, 1000, 2**62]))
        bad_credit = log_pb2.FetchRequest(credit=log_pb2.FetchCredit(bytes=rng.choice([0, -1, 2**63 - 1])))
        messages = [log_pb2.FetchRequest(open=opening).SerializeToString(), bad_credit.SerializeToString()]
        self._attempt("fetch frame", "Fetch", self._damage(messages))

    def _damage(self, messages: list[bytes]) -> list[bytes]:
        index = self._rng.randrange(len(messages))
        if self._rng.random() < 0.7:
            messages[index] = mutate_frame(self._rng, messages[index])
        return messages

    def odd_names(self) -> None:
        """Send an odd topic name in every call that has one."""
        name = odd_name(self._rng)
        kind = self._rng.randrange(4)
        try:
            if kind == 0:
                call = self._channel.unary_unary(
                    "/lograft.v1.AdminService/CreateTopic",
                    admin_pb2.CreateTopicRequest.SerializeToString,
                    admin_pb2.CreateTopicResponse.FromString,
                )
                call(admin_pb2.CreateTopicRequest(topic=name, validate_only=True), timeout=CALL_TIMEOUT_S)
            elif kind == 1:
                append = self._channel.unary_unary(
                    SERVICE + "Append", log_pb2.AppendRequest.SerializeToString, log_pb2.AppendResponse.FromString
                )
                append(log_pb2.AppendRequest(topic=name, records=[log_pb2.Record(value=b"x")]), timeout=CALL_TIMEOUT_S)
            elif kind == 2:
                read = self._channel.unary_unary(
                    SERVICE + "Read", log_pb2.ReadRequest.SerializeToString, log_pb2.ReadResponse.FromString
                )
                request = log_pb2.ReadRequest(topic=name, offset=self._rng.choice([-1, 0, 2**62]), max_bytes=-1)
                read(request, timeout=CALL_TIMEOUT_S)
            else:
                self._exchange("Produce", [self._produce_open(topic=name)])
        except grpc.RpcError as error:
            self.outcomes[f"name: {error.code().name}"] += 1
        else:
            self.outcomes["name: answered"] += 1

    def ingest_call(self) -> None:
        """Send a call about an ingest, which may be mutated."""
        path, request, answer, hear = self._ingests.next()
        name = f"ingest {path.rpartition('/')[2]}"
        call = self._channel.unary_unary(path, type(request).SerializeToString, answer.FromString)
        try:
            hear(call(request, timeout=INGEST_TIMEOUT_S))
        except grpc.RpcError as error:
            self.outcomes[f"{name}: {error.code().name}"] += 1
        else:
            self.outcomes[f"{name}: answered"] += 1

    def attack(self, inputs: int) -> None:
        """Send `inputs` inputs: half of them batches, the rest frames, names and calls of ingests, and a few bombs."""
        for index in range(inputs):
            if index % (max(1, inputs // BOMBS)) == 0:
                self.mutated_batch(bomb=True)
            elif index % 4 in (0, 1):
                self.mutated_batch()
            elif index % 4 == 2:
                self.mutated_frame()
            elif index % 8 == 3:
                self.odd_names()
            else:
                self.ingest_call()

    def close(self) -> None:
        """Close the channel."""
        self._channel.close()


def read_everything(address: str) -> int:
    """Decode every stored batch in every way, and return the number of records."""
    tp = TopicPartition(TOPIC, 0)
    count = 0
    with Consumer(address) as consumer:
        end = consumer.end_offsets([tp])[tp]
        consumer.assign([tp])
        while consumer.position(tp) < end:
            fetched = consumer.poll_batch(POLL_TIMEOUT_MS)
            if fetched is None:
                raise RuntimeError(f"reader is stuck at offset {consumer.position(tp)} of {end}")
            batch: RecordBatch = fetched.batch
            columns = (
                batch.values(),
                batch.keys(),
                batch.timestamps_ms(),
                batch.offsets(),
                batch.headers(),
                batch.records(),
            )
            if (
                any(len(column) != batch.record_count for column in columns)
                or batch.to_arrow().num_rows != batch.record_count
            ):
                raise RuntimeError(f"batch at offset {batch.base_offset} decodes to different counts")
            count += batch.record_count
    if count != end:
        raise RuntimeError(f"{count} records read, {end} offsets")
    return count


def run(directory: Path, inputs: int, seed: int) -> tuple[collections.Counter[str], int, int]:
    """Attack one broker. Return outcomes, stored records, and memory growth in bytes."""
    with Cluster(directory, voter_count=1, broker_count=1) as cluster:
        with Admin(cluster.bootstrap) as admin:
            # Batches with times of any age are kept until they have been read back.
            admin.create_topic(TOPIC, configs={"flush.policy": "none", "retention.ms": "-1"})
            # Of its own: a decision goes on publishing while the other one is read.
            admin.create_topic(INGEST_TOPIC)
        broker = cluster.brokers[BROKER_ID_FIRST]
        outcomes: collections.Counter[str] = collections.Counter()
        attack(cluster.bootstrap, min(inputs, WARM_UP_INPUTS), seed, outcomes)
        before = broker.rss_bytes
        attack(cluster.bootstrap, inputs - min(inputs, WARM_UP_INPUTS), seed + 1, outcomes)
        if not broker.running:
            raise RuntimeError(f"the broker died: {broker.log_tail()}")
        growth = broker.rss_bytes - before
        stored = read_everything(cluster.bootstrap)
        broker.kill()
        broker.start()
        if read_everything_after_restart(cluster) != stored:
            raise RuntimeError("a restart changed what is stored")
        return outcomes, stored, growth


def read_everything_after_restart(cluster: Cluster) -> int:
    """Wait until the broker serves again, and read everything once more."""
    wait_for(cluster.is_serving, timeout_s=30.0, what="the broker to serve again")
    return read_everything(cluster.bootstrap)


def attack(address: str, inputs: int, seed: int, outcomes: collections.Counter[str]) -> None:
    """Run one attacker for `inputs` inputs."""
    attacker = Attacker(address, seed)
    attacker.attack(inputs)
    attacker.close()
    outcomes.update(attacker.outcomes)


def report(outcomes: collections.Counter[str], stored: int, growth: int) -> int:
    """Print the result of a run. Return exit status 1 if memory grew beyond the bound or an answer was not typed."""
    for outcome, count in sorted(outcomes.items()):
        print(f"{count:7d}  {outcome}")
    print(
        f"{sum(outcomes.values())} inputs, broker alive, {stored} records stored and readable, before and after a restart; "
        f"memory grew by {growth / 1e6:.0f} MB (bound {RSS_GROWTH_BYTES_MAX / 1e6:.0f} MB)"
    )
    crashes = [outcome for outcome in outcomes if ": UNKNOWN" in outcome or ": INTERNAL" in outcome]
    for outcome in crashes:
        print(f"UNTYPED {outcome}")
    return 1 if growth > RSS_GROWTH_BYTES_MAX or crashes else 0
