# SPDX-License-Identifier: Apache-2.0
"""A client of ingests with nothing but the stubs that protoc makes of proto/lograft/v1, as docs/clients.md explains it.

A program in any other language looks like this one. It uses gRPC, the generated messages, and the messages of google.rpc.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from threading import Event
from typing import Any, TypeVar

import grpc
from google.rpc import error_details_pb2, status_pb2
from lograft.v1 import (
    errors_pb2,
    group_pb2,
    group_pb2_grpc,
    ingest_pb2,
    ingest_pb2_grpc,
    log_pb2,
    log_pb2_grpc,
    metadata_pb2,
    metadata_pb2_grpc,
)

CALL_S = 15
COMMIT_S = 60
DEADLINE_S = 90
PAUSE_S = 0.1
AGAIN = frozenset(
    {"NOT_COORDINATOR", "COORDINATOR_LOADING", "TIMED_OUT", "OVERLOADED", "SHUTTING_DOWN", "INGEST_PUBLISHING", ""}
)
"""Reasons to make the same call again. The empty one: the call has failed without a reason of Lograft's."""

T = TypeVar("T")


@dataclass(frozen=True)
class Refusal:
    """What the status of a failed call says: the reason, and who is responsible, if the server knows."""

    reason: str
    hint: errors_pb2.LeaderHint | None = None


def refusal_of(error: grpc.RpcError) -> Refusal:
    """Decode `grpc-status-details-bin`."""
    call: Any = error
    reason, hint = "", None
    for key, value in call.trailing_metadata() or ():
        if key != "grpc-status-details-bin":
            continue
        for detail in status_pb2.Status.FromString(value).details:
            if detail.Is(error_details_pb2.ErrorInfo.DESCRIPTOR):
                info = error_details_pb2.ErrorInfo()
                detail.Unpack(info)
                reason = info.reason if info.domain == "lograft" else ""
            elif detail.Is(errors_pb2.LeaderHint.DESCRIPTOR):
                hint = errors_pb2.LeaderHint()
                detail.Unpack(hint)
    return Refusal(reason, hint)


@dataclass
class Staged:
    """What an attempt has staged for one partition."""

    first_sequence: int
    next_sequence: int
    first_offset: int = -1
    end_offset: int = -1

    @property
    def records(self) -> int:
        """Number of records."""
        return self.next_sequence - self.first_sequence


@dataclass
class Attempt:
    """One try at one task. `staged` is by topic name and partition; `sequences` go on over the rounds of a repeated ingest."""

    task: int
    attempt_id: bytes
    producer_id: int
    staged: dict[tuple[str, int], Staged] = field(default_factory=dict[tuple[str, int], Staged])
    sequences: dict[tuple[str, int], int] = field(default_factory=dict[tuple[str, int], int])


class StubIngest:
    """An ingest at a cluster of which one address is known."""

    def __init__(self, address: str, ingest_id: str, topics: Sequence[str], *, is_repeated: bool = False) -> None:
        self.ingest_id = ingest_id
        self.topics = list(topics)
        self.kind = ingest_pb2.INGEST_KIND_REPEATED if is_repeated else ingest_pb2.INGEST_KIND_SINGLE
        self.epoch = 0
        self.round = 1
        self.opened = ingest_pb2.OpenIngestResponse()
        self._address = address
        self._channels: dict[str, grpc.Channel] = {}
        self._coordinator: str | None = None

    def close(self) -> None:
        """Close the connections."""
        for channel in self._channels.values():
            channel.close()

    # Every call of IngestService: the same request to whoever coordinates, until it is answered or refused for good.

    def call(self, method: Callable[[ingest_pb2_grpc.IngestServiceStub], Callable[..., T]], request: Any) -> T:
        """Make a call at the coordinator, as often as it takes."""
        end_s = time.monotonic() + DEADLINE_S
        timeout_s = COMMIT_S if isinstance(request, ingest_pb2.CommitIngestRequest) else CALL_S
        while True:
            try:
                stub = ingest_pb2_grpc.IngestServiceStub(self._channel(self._find()))
                return method(stub)(request, timeout=timeout_s)
            except grpc.RpcError as error:
                refusal = refusal_of(error)
                if refusal.reason not in AGAIN or time.monotonic() >= end_s:
                    raise
                hint = refusal.hint
                self._coordinator = None if hint is None else f"{hint.host}:{hint.port}"
                Event().wait(PAUSE_S)

    def _find(self) -> str:
        if self._coordinator is None:
            request = ingest_pb2.FindIngestCoordinatorRequest(ingest_ids=[self.ingest_id])
            stub = ingest_pb2_grpc.IngestServiceStub(self._channel(self._address))
            end_s = time.monotonic() + DEADLINE_S
            while True:
                (found,) = stub.FindIngestCoordinator(request, timeout=CALL_S).coordinators
                if not found.HasField("error"):
                    break
                assert time.monotonic() < end_s, found.error
                Event().wait(PAUSE_S)
            self._coordinator = f"{found.host}:{found.port}"
        return self._coordinator

    def _channel(self, address: str) -> grpc.Channel:
        if address not in self._channels:
            self._channels[address] = grpc.insecure_channel(address)
        return self._channels[address]

    # The steps.

    def open(self) -> ingest_pb2.OpenIngestResponse:
        """Open the ingest, or take it over."""
        request = ingest_pb2.OpenIngestRequest(ingest_id=self.ingest_id, kind=self.kind, topics=self.topics)
        self.opened = self.call(lambda stub: stub.OpenIngest, request)
        self.epoch, self.round = self.opened.ingest_epoch, self.opened.round
        if self.opened.state == ingest_pb2.INGEST_STATE_OPEN:
            # The broker that is asked to append must know the staging topics.
            metadata = metadata_pb2_grpc.MetadataServiceStub(self._channel(self._address))
            known = metadata_pb2.GetClusterRequest(topics=self.topics, min_metadata_offset=self.opened.metadata_offset)
            metadata.GetCluster(known, timeout=CALL_S)
        return self.opened

    def open_attempt(self, task: int, before: Attempt | None = None) -> Attempt:
        """Open an attempt at a task; in a further round the same one again."""
        attempt_id = uuid.uuid4().bytes if before is None else before.attempt_id
        request = ingest_pb2.OpenAttemptRequest(
            ingest_id=self.ingest_id, ingest_epoch=self.epoch, task=task, attempt_id=attempt_id
        )
        producer_id = self.call(lambda stub: stub.OpenAttempt, request).producer_id
        goes_on = before is not None and before.producer_id == producer_id
        return Attempt(task, attempt_id, producer_id, sequences=dict(before.sequences) if before and goes_on else {})

    def append(self, attempt: Attempt, topic: str, partition: int, values: Sequence[bytes]) -> bool:
        """Stage records for a partition; return True if a repeated call found them there."""
        (place,) = [each for each in self.opened.topics if each.topic == topic]
        key = (topic, partition)
        sequence = attempt.sequences.get(key, 0)
        request = log_pb2.AppendRequest(
            topic=place.staging_topic,
            partition=partition,
            records=[log_pb2.Record(value=value) for value in values],
            sequence=log_pb2.AppendSequence(
                producer=log_pb2.ProducerIdentity(producer_id=attempt.producer_id, producer_epoch=0),
                base_sequence=sequence % 2**31,
            ),
        )
        (done,) = self._append(request).ranges
        staged = attempt.staged.setdefault(key, Staged(sequence, sequence, first_offset=done.base_offset))
        staged.next_sequence = attempt.sequences[key] = sequence + len(values)
        staged.end_offset = done.base_offset + len(values)
        return done.duplicate

    def _append(self, request: log_pb2.AppendRequest) -> log_pb2.AppendResponse:
        stub = log_pb2_grpc.LogServiceStub(self._channel(self._address))
        end_s = time.monotonic() + DEADLINE_S
        while True:
            try:
                return stub.Append(request, timeout=CALL_S)
            except grpc.RpcError as error:
                # With a sequence, whatever may have been appended is not appended again.
                again = {*AGAIN, "OUTCOME_UNKNOWN", "NOT_LEADER", "LEADER_NOT_AVAILABLE", "UNKNOWN_TOPIC"}
                again |= {"NOT_ENOUGH_REPLICAS", "NOT_ENOUGH_REPLICAS_AFTER_APPEND"}
                if refusal_of(error).reason not in again or time.monotonic() >= end_s:
                    raise
                Event().wait(PAUSE_S)

    def seal(self, attempt: Attempt) -> ingest_pb2.ManifestEntry:
        """End an attempt, and return its entry of the manifest."""
        ids = {each.topic: each.topic_id for each in self.opened.topics}
        request = ingest_pb2.SealAttemptRequest(
            ingest_id=self.ingest_id,
            ingest_epoch=self.epoch,
            round=self.round,
            task=attempt.task,
            attempt_id=attempt.attempt_id,
            parts=[
                ingest_pb2.StagedPart(
                    topic_id=ids[topic],
                    partition=partition,
                    first_sequence=staged.first_sequence % 2**31,
                    records=staged.records,
                    first_offset=staged.first_offset,
                    end_offset=staged.end_offset,
                )
                for (topic, partition), staged in attempt.staged.items()
            ],
        )
        self.call(lambda stub: stub.SealAttempt, request)
        records = sum(each.records for each in attempt.staged.values())
        return ingest_pb2.ManifestEntry(task=attempt.task, attempt_id=attempt.attempt_id, records=records)

    def commit(
        self, manifest: Sequence[ingest_pb2.ManifestEntry], offsets: ingest_pb2.IngestOffsets | None = None
    ) -> ingest_pb2.CommitIngestResponse:
        """Publish the attempts of a manifest."""
        request = ingest_pb2.CommitIngestRequest(
            ingest_id=self.ingest_id, ingest_epoch=self.epoch, round=self.round, manifest=manifest, offsets=offsets
        )
        done = self.call(lambda stub: stub.CommitIngest, request)
        if self.kind == ingest_pb2.INGEST_KIND_REPEATED:
            self.round = done.result.round + 1
        return done

    def touch(self) -> None:
        """Keep the ingest alive."""
        request = ingest_pb2.TouchIngestRequest(ingest_id=self.ingest_id, ingest_epoch=self.epoch)
        self.call(lambda stub: stub.TouchIngest, request)

    def abort(self) -> None:
        """End the present round without publishing anything."""
        request = ingest_pb2.AbortIngestRequest(ingest_id=self.ingest_id, ingest_epoch=self.epoch, round=self.round)
        self.call(lambda stub: stub.AbortIngest, request)


def read_all(address: str, topic: str, partition: int) -> list[bytes]:
    """Read a partition from its beginning to its end."""
    with grpc.insecure_channel(address) as channel:
        log = log_pb2_grpc.LogServiceStub(channel)
        values: list[bytes] = []
        offset = 0
        while True:
            request = log_pb2.ReadRequest(topic=topic, partition=partition, offset=offset)
            answer = log.Read(request, timeout=CALL_S)
            values += [each.value for each in answer.records]
            offset = answer.next_offset
            if offset == answer.high_watermark:
                return values


def committed_offset(address: str, group_id: str, topic_id: bytes, partition: int) -> int | None:
    """Ask the coordinator of a group for a committed offset."""
    with grpc.insecure_channel(address) as channel:
        groups = group_pb2_grpc.GroupServiceStub(channel)
        wanted = group_pb2.FetchOffsetsRequest(
            group_id=group_id,
            topics=[group_pb2.PartitionsOfTopic(topic_id=topic_id, partitions=[partition])],
        )
        end_s = time.monotonic() + DEADLINE_S
        while True:
            (found,) = groups.FetchOffsets(wanted, timeout=CALL_S).offsets
            if not found.HasField("error"):
                return found.offset if found.HasField("offset") else None
            assert time.monotonic() < end_s, found.error
            Event().wait(PAUSE_S)
