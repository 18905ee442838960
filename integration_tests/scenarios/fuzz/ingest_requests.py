# SPDX-License-Identifier: Apache-2.0
"""Calls of `IngestService` that hang together, some of them mutated: open, attempt, stage, seal, commit, abort, and questions.

Owns what the answers said: many requests name epochs, rounds and producer ids that exist, and reach the rules behind the first check.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from google.protobuf.message import Message
from lograft.v1 import ingest_pb2 as pb
from lograft.v1 import log_pb2

from integration_tests.scenarios.fuzz.message_mutations import mutate

TOPIC: Final = "fuzz-ingests"
INGESTS: Final = 6
MUTATED: Final = 0.6
"""Share of requests that are mutated."""
INGEST_SERVICE: Final = "/lograft.v1.IngestService/"
APPEND: Final = "/lograft.v1.LogService/Append"


@dataclass(slots=True)
class _Known:
    """What is known of one ingest."""

    epoch: int = 1
    round: int = 1
    topic_id: bytes = bytes(16)
    staging_topic: str = TOPIC
    producers: dict[int, int] = field(default_factory=dict[int, int])
    parts: dict[int, pb.StagedPart] = field(default_factory=dict[int, pb.StagedPart])


class IngestRequests:
    """Makes requests, and hears the answers.

    Args:
        rng: source of chance.
    """

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._known = [_Known() for _ in range(INGESTS)]
        self._number = 0

    def next(self) -> tuple[str, Message, type[Message], Callable[[Any], None]]:
        """Return the path of a method, a request, the type of the answer, and who hears it."""
        rng, self._number = self._rng, self._number + 1
        number = rng.randrange(INGESTS)
        make = rng.choice(
            (
                self._open,
                self._attempt,
                self._attempt,
                self._stage,
                self._stage,
                self._seal,
                self._seal,
                self._commit,
                self._commit,
                self._other,
            )
        )
        path, request, answer, hear = make(number, self._known[number])
        if rng.random() < MUTATED:
            mutate(rng, request)
        return path, request, answer, hear

    def _open(self, number: int, known: _Known) -> tuple[str, Message, type[Message], Callable[[Any], None]]:
        kind = pb.INGEST_KIND_REPEATED if number % 2 else pb.INGEST_KIND_SINGLE
        request = pb.OpenIngestRequest(ingest_id=self._id(number), kind=kind, topics=[TOPIC], ttl_ms=10_000)

        def hear(answer: pb.OpenIngestResponse) -> None:
            known.epoch, known.round = answer.ingest_epoch, answer.round
            known.producers.clear()
            known.parts.clear()
            if answer.topics:
                known.topic_id, known.staging_topic = answer.topics[0].topic_id, answer.topics[0].staging_topic

        return f"{INGEST_SERVICE}OpenIngest", request, pb.OpenIngestResponse, hear

    def _id(self, number: int) -> str:
        # Single ingests are used up; another one takes the place now and then.
        return f"fuzz-{number}" if number % 2 else f"fuzz-{number}-{self._number // 500}"

    def _attempt(self, number: int, known: _Known) -> tuple[str, Message, type[Message], Callable[[Any], None]]:
        task = self._rng.randrange(3)
        request = pb.OpenAttemptRequest(
            ingest_id=self._id(number), ingest_epoch=known.epoch, task=task, attempt_id=b"a%d" % task
        )

        def hear(answer: pb.OpenAttemptResponse) -> None:
            known.producers[task] = answer.producer_id
            known.parts.pop(task, None)

        return f"{INGEST_SERVICE}OpenAttempt", request, pb.OpenAttemptResponse, hear

    def _stage(self, _number: int, known: _Known) -> tuple[str, Message, type[Message], Callable[[Any], None]]:
        task = self._rng.choice([*known.producers, 0])
        part = known.parts.get(task)
        request = log_pb2.AppendRequest(
            topic=known.staging_topic,
            partition=0,
            records=[log_pb2.Record(value=b"x" * self._rng.randrange(100)) for _ in range(3)],
            sequence=log_pb2.AppendSequence(
                producer=log_pb2.ProducerIdentity(producer_id=known.producers.get(task, 2**61), producer_epoch=0),
                base_sequence=0 if part is None else part.first_sequence + part.records,
            ),
        )

        def hear(answer: log_pb2.AppendResponse) -> None:
            first = answer.ranges[0].base_offset if answer.ranges else -1
            count = len(request.records)
            mine = known.parts.setdefault(task, pb.StagedPart(topic_id=known.topic_id, first_offset=max(first, 0)))
            mine.records += count
            mine.end_offset = first + count

        return APPEND, request, log_pb2.AppendResponse, hear

    def _seal(self, number: int, known: _Known) -> tuple[str, Message, type[Message], Callable[[Any], None]]:
        task = self._rng.choice([*known.parts, 0])
        request = pb.SealAttemptRequest(
            ingest_id=self._id(number),
            ingest_epoch=known.epoch,
            round=known.round,
            task=task,
            attempt_id=b"a%d" % task,
            parts=[known.parts[task]] if task in known.parts else [],
        )
        return f"{INGEST_SERVICE}SealAttempt", request, pb.SealAttemptResponse, _ignore

    def _commit(self, number: int, known: _Known) -> tuple[str, Message, type[Message], Callable[[Any], None]]:
        manifest = [
            pb.ManifestEntry(task=task, attempt_id=b"a%d" % task, records=part.records)
            for task, part in known.parts.items()
            if self._rng.random() < 0.8
        ]
        request = pb.CommitIngestRequest(
            ingest_id=self._id(number), ingest_epoch=known.epoch, round=known.round, manifest=manifest
        )
        if self._rng.random() < 0.3:
            offset = pb.IngestOffset(topic_id=known.topic_id, partition=0, offset=self._rng.randrange(100))
            request.offsets.CopyFrom(pb.IngestOffsets(group_id="fuzz", member_epoch=-1, offsets=[offset]))

        def hear(_: pb.CommitIngestResponse) -> None:
            known.round += 1
            known.producers.clear()
            known.parts.clear()

        return f"{INGEST_SERVICE}CommitIngest", request, pb.CommitIngestResponse, hear

    def _other(self, number: int, known: _Known) -> tuple[str, Message, type[Message], Callable[[Any], None]]:
        ingest_id = self._id(number)
        place = pb.PublishedPartition(topic_id=known.topic_id, partition=0, producer_id=2**62 + self._rng.randrange(33))
        requests: list[tuple[str, Message, type[Message]]] = [
            ("AbortIngest", pb.AbortIngestRequest(ingest_id=ingest_id), pb.AbortIngestResponse),
            (
                "TouchIngest",
                pb.TouchIngestRequest(ingest_id=ingest_id, ingest_epoch=known.epoch),
                pb.TouchIngestResponse,
            ),
            ("DescribeIngest", pb.DescribeIngestRequest(ingest_id=ingest_id), pb.DescribeIngestResponse),
            ("ListIngests", pb.ListIngestsRequest(limit=self._rng.randrange(1_000)), pb.ListIngestsResponse),
            (
                "FindIngestCoordinator",
                pb.FindIngestCoordinatorRequest(ingest_ids=[ingest_id]),
                pb.FindIngestCoordinatorResponse,
            ),
            ("GetPublished", pb.GetPublishedRequest(partitions=[place]), pb.GetPublishedResponse),
        ]
        method, request, answer = self._rng.choice(requests)
        return f"{INGEST_SERVICE}{method}", request, answer, _ignore


def _ignore(_: object) -> None:
    """Learn nothing from an answer."""
