# SPDX-License-Identifier: Apache-2.0
"""No reader with `isolation="committed-together"` ever sees a part of a decision while another partition lacks its part.

Several programs write transactions to the partitions of two topics, and each publication is delayed at random. Readers of every kind
note when they got what. The results of the transactions say which records belong together, and the cluster noted when each part was
published. A plain reader sees parts, which shows that there was something to see.
"""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from lograft import Admin, Consumer, Producer, TopicPartition, aio
from lograft.types import ConsumerRecord, PublishedRange
from tests.consumer.publications import Publications

PROGRAMS = 3
TRANSACTIONS = 15
PARTITIONS = 3
DELAY_S = 0.05
DEADLINE_S = 120

Seen = list[tuple[float, TopicPartition, int]]
"""When which offset was handed out."""


def _poll(consumer: Consumer) -> Iterator[list[tuple[str, int, int]]]:
    while True:
        yield [(each.topic, each.partition, each.offset) for each in consumer.poll(timeout_ms=20)]


def _poll_few(consumer: Consumer) -> Iterator[list[tuple[str, int, int]]]:
    while True:
        yield [(each.topic, each.partition, each.offset) for each in consumer.poll(2, timeout_ms=20)]


def _poll_batch(consumer: Consumer) -> Iterator[list[tuple[str, int, int]]]:
    while True:
        batch = consumer.poll_batch(20)
        yield [] if batch is None else [(batch.topic, batch.partition, each) for each in batch.offsets()]


def _consume(consumer: Consumer) -> Iterator[list[tuple[str, int, int]]]:
    while True:
        yield [(each.topic, each.partition, each.offset) for each in consumer.consume(5, timeout_ms=20)]


def _iterate(consumer: Consumer) -> Iterator[list[tuple[str, int, int]]]:
    while True:
        for each in consumer.records(20):
            yield [(each.topic, each.partition, each.offset)]
        yield []


class Run:
    """Programs and readers, and what they saw."""

    def __init__(self, bootstrap: str, topics: list[str]) -> None:
        self.bootstrap = bootstrap
        self.topics = topics
        self.tps = [TopicPartition(topic, number) for topic in topics for number in range(PARTITIONS)]
        self.results: list[tuple[PublishedRange, ...]] = []
        self.are_written = threading.Event()

    def write(self, number: int) -> None:
        """Run the transactions of a program, each to some of the partitions."""
        rng = random.Random(number)
        with Producer(self.bootstrap) as producer:
            for _ in range(TRANSACTIONS):
                with producer.transaction(f"{self.topics[0]}-{number}", topics=self.topics) as transaction:
                    for tp in rng.sample(self.tps, rng.randint(2, len(self.tps))):
                        for _ in range(rng.randint(1, 3)):
                            transaction.send(tp.topic, b"%d" % number, partition=tp.partition)
                assert transaction.result is not None
                self.results.append(transaction.result.partitions)
                producer.send(self.topics[0], b"between", partition=rng.randrange(PARTITIONS))

    def read(self, way: Callable[[Consumer], Iterator[list[tuple[str, int, int]]]], isolation: str) -> Seen:
        """Read everything, and return when what came."""
        seen: Seen = []
        with Consumer(self.bootstrap, isolation=isolation, prefetch_bytes=4_096, max_chunk_bytes=1_024) as consumer:
            consumer.assign(self.tps)
            for got in way(consumer):
                at_s = time.monotonic()
                seen += [(at_s, TopicPartition(topic, number), offset) for topic, number, offset in got]
                if not got and self._is_read(consumer.position, consumer.end_offsets):
                    return seen
        raise AssertionError("a way of reading ends by itself")

    def read_with_asyncio(self) -> Seen:
        """Read everything in an event loop."""

        async def read() -> Seen:
            seen: Seen = []
            async with aio.Consumer(self.bootstrap, isolation="committed-together") as consumer:
                await consumer.assign(self.tps)
                while True:
                    got: list[ConsumerRecord] = await consumer.poll(timeout_ms=20)
                    at_s = time.monotonic()
                    seen += [(at_s, TopicPartition(each.topic, each.partition), each.offset) for each in got]
                    if not got and self.are_written.is_set():
                        ends = await consumer.end_offsets(self.tps)
                        if all(consumer.position(tp) == end for tp, end in ends.items()):
                            return seen

        return asyncio.run(read())

    def read_as_group(self) -> Seen:
        """Read everything as two members of a group, between which partitions move."""
        seen: Seen = []
        fields = {"group": f"g-{self.topics[0]}", "isolation": "committed-together"}
        with (
            Consumer(self.bootstrap, **fields) as first,  # type: ignore[arg-type]
            Consumer(self.bootstrap, **fields) as second,  # type: ignore[arg-type]
        ):
            first.subscribe(self.topics)
            turns = 0
            while True:
                turns += 1
                if turns == 20:
                    second.subscribe(self.topics)
                got = [*first.poll(timeout_ms=10), *(second.poll(timeout_ms=10) if turns >= 20 else ())]
                at_s = time.monotonic()
                seen += [(at_s, TopicPartition(each.topic, each.partition), each.offset) for each in got]
                if not got and self.are_written.is_set():
                    ends = first.end_offsets(self.tps)
                    if {(tp, each) for _, tp, each in seen} == {
                        (tp, n) for tp, end in ends.items() for n in range(end)
                    }:
                        return seen

    def _is_read(
        self,
        position: Callable[[TopicPartition], int],
        ends: Callable[[list[TopicPartition]], dict[TopicPartition, int]],
    ) -> bool:
        return self.are_written.is_set() and all(position(tp) == end for tp, end in ends(self.tps).items())


def early(seen: Seen, complete_s: dict[tuple[TopicPartition, int], float]) -> int:
    """Return how many records came before their decision was complete."""
    return sum(at_s < complete_s.get((tp, offset), 0) for at_s, tp, offset in seen)


def test_no_reader_sees_a_part_of_a_decision(
    bootstrap: str, admin: Admin, make_topic: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """But for the plain one. All of them see everything, each partition in order."""
    publications = Publications(monkeypatch)
    publications.delay_s = DELAY_S
    run = Run(bootstrap, [make_topic(PARTITIONS), make_topic(PARTITIONS)])
    ids = {topic: admin.describe_topic(topic).topic_id for topic in run.topics}
    with ThreadPoolExecutor(16) as pool:
        plain = pool.submit(run.read, _poll, "committed")
        readers = [
            pool.submit(run.read, way, "committed-together")
            for way in (_poll, _poll_few, _poll_batch, _consume, _iterate)
        ]
        readers += [pool.submit(run.read_with_asyncio), pool.submit(run.read_as_group)]
        programs = [pool.submit(run.write, number) for number in range(PROGRAMS)]
        try:
            for program in programs:
                program.result(DEADLINE_S)
        finally:
            run.are_written.set()
        # A second time from the beginning, when all is complete.
        readers.append(pool.submit(run.read, _poll_batch, "committed-together"))
        all_seen = [reader.result(DEADLINE_S) for reader in readers]
        plain_seen = plain.result(DEADLINE_S)
    complete_s: dict[tuple[TopicPartition, int], float] = {}
    for partitions in run.results:
        places = [(each, each.first_offset or 0, each.end_offset or 0) for each in partitions]
        at_s = max(publications.time_of(ids[each.topic], each.partition, first) for each, first, _ in places)
        for each, first, end in places:
            complete_s |= dict.fromkeys(
                ((TopicPartition(each.topic, each.partition), n) for n in range(first, end)), at_s
            )
    assert len(run.results) == PROGRAMS * TRANSACTIONS
    assert early(plain_seen, complete_s) > TRANSACTIONS, "nothing was there to be seen"
    assert [early(seen, complete_s) for seen in all_seen] == [0] * len(all_seen)
    for seen in all_seen[:-3] + all_seen[-1:]:
        for tp in run.tps:
            offsets = [offset for _, where, offset in seen if where == tp]
            assert offsets == list(range(len(offsets)))
            assert len(offsets) == len([None for _, where, _ in plain_seen if where == tp])
