# SPDX-License-Identifier: Apache-2.0
"""The clients of ingests in the world: generated stubs over the SDK's channels, as the protocol allows them to behave, and worse.

Owns what they do: single ingests with tasks and attempts, repeated ingests in rounds, some with offsets of a group; attempts that are
abandoned, calls at epochs that are fenced, calls that are repeated, late, or made twice at once, other manifests under a known id.
`IngestLaws` judges the answers. `IngestOperator` makes the topics, and deletes one of them again and again; `FedReader` reads.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol

import grpc
import grpc.aio
from lograft import TopicPartition
from lograft._client.python_channel import PythonChannel
from lograft.aio import Admin
from lograft.errors import LograftError
from lograft.settings import CONNECTION_LIVENESS_MS
from lograft.types import ElectionType
from lograft.v1 import group_pb2, group_pb2_grpc, ingest_pb2_grpc, log_pb2, log_pb2_grpc
from lograft.v1 import ingest_pb2 as pb
from lograft.wire.codes import ErrorCode
from lograft.wire.status import parse_rpc_error

from integration_tests.simulation.clients import AFTER_ERROR_S, TOPIC, until_topic
from integration_tests.simulation.ingest_laws import (
    BRIEF,
    FED,
    GROUP_PREFIX,
    PLAIN,
    AttemptName,
    Commit,
    IngestLaws,
    Key,
)
from integration_tests.simulation.options import WorldOptions
from integration_tests.simulation.process import SimProcess
from metaquorum.metadata.topic_configs import FLUSH_POLICY
from metaquorum.metadata.topic_names import staging_topic
from metaquorum.testing.scheduler import Scheduler

TTL_MS: Final = 10_000
"""Time to live of ingests in milliseconds: the shortest that there is."""
CALL_MS: Final = (300, 1_500, 6_000)
"""Milliseconds that a call has: some are given up, and repeated, while the first one is still carried out."""
TRIES_MAX: Final = 60
"""Calls after which a client gives a step up."""
SEQUENCES: Final = 2**31
FED_PARTITIONS: Final = 2
APPLICATIONS: Final = 2
"""Repeated ingests of a world, which its clients take from each other."""
OLD_MAX: Final = 12
"""Requests that a client keeps, to send one of them again much later."""
ROUNDS_MAX: Final = 4
"""Most rounds that a client commits before it leaves a repeated ingest."""


class IngestWorld(Protocol):
    """What clients of ingests need from the world."""

    scheduler: Scheduler
    options: WorldOptions
    counts: Counter[str]
    bootstrap: list[str]
    ingest_laws: IngestLaws
    orders_id: bytes
    fed_id: bytes
    is_topic_there: bool
    is_fed_there: bool
    is_healed: bool


async def until_fed(world: IngestWorld) -> None:
    """Return once the topics of ingests are there."""
    while not world.is_fed_there:  # noqa: ASYNC110 -- another process sets it
        await asyncio.sleep(AFTER_ERROR_S)


class Brokers:
    """Calls to the brokers of the world, over one channel to each.

    Args:
        addresses: public addresses.
        rng: source of chance.
    """

    def __init__(self, addresses: Sequence[str], rng: random.Random) -> None:
        self._addresses = list(addresses)
        self._rng = rng
        self._channels: dict[str, Any] = {}
        self._coordinators: dict[str, str] = {}

    async def close(self) -> None:
        """Close the channels."""
        for channel in self._channels.values():
            await channel.close()

    def _channel(self, address: str) -> Any:
        if address not in self._channels:
            self._channels[address] = PythonChannel(address, liveness_ms=CONNECTION_LIVENESS_MS)
        return self._channels[address]

    async def _drop(self, address: str) -> None:
        """Give a channel up on which a call got no answer: its connection may be dead."""
        channel = self._channels.pop(address, None)
        if channel is not None:
            await channel.close()

    async def ask(self, stub: Any, method: str, request: Any, *, address: str = "", timeout_ms: int = 0) -> Any:
        """Call a broker once, any one without an address. Return the response, or the code; None: nobody knows what became of it."""
        address = address or self._rng.choice(self._addresses)
        timeout_ms = timeout_ms or self._rng.choice(CALL_MS)
        try:
            return await getattr(stub(self._channel(address)), method)(request, timeout=timeout_ms / 1000)
        except grpc.aio.AioRpcError as error:
            status = parse_rpc_error(error)
            if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                await self._drop(address)
            return status.code

    async def ask_coordinator(self, method: str, request: Any, *, timeout_ms: int = 0) -> Any:
        """Call the coordinator of the ingest that a request names, once. Returns as `ask`."""
        ingest_id = request.ingest_id
        address = self._coordinators.get(ingest_id)
        stub = ingest_pb2_grpc.IngestServiceStub
        if address is None:
            find = pb.FindIngestCoordinatorRequest(ingest_ids=[ingest_id])
            found = await self.ask(stub, "FindIngestCoordinator", find, timeout_ms=1_500)
            if not isinstance(found, pb.FindIngestCoordinatorResponse) or found.coordinators[0].HasField("error"):
                return None
            address = self._coordinators[ingest_id] = f"{found.coordinators[0].host}:{found.coordinators[0].port}"
        answer = await self.ask(stub, method, request, address=address, timeout_ms=timeout_ms)
        if answer is None or isinstance(answer, ErrorCode):
            self._coordinators.pop(ingest_id, None)
        return answer


class Attempt:
    """An attempt that stages."""

    def __init__(self, task: int, attempt_id: bytes, producer_id: int) -> None:
        self.task = task
        self.attempt_id = attempt_id
        self.producer_id = producer_id
        self.next_sequences: dict[Key, int] = {}
        self.parts: dict[Key, pb.StagedPart] = {}
        self.values: dict[Key, list[bytes]] = {}
        self.is_sealed = False

    @property
    def entry(self) -> tuple[int, bytes, int]:
        """Its entry in a manifest."""
        return self.task, self.attempt_id, sum(part.records for part in self.parts.values())

    def next_round(self) -> None:
        """Begin what the next round stages."""
        self.parts, self.values, self.is_sealed = {}, {}, False


class OpenIngest:
    """An ingest as one client has it open."""

    def __init__(self, ingest_id: str, opened: pb.OpenIngestResponse) -> None:
        self.ingest_id = ingest_id
        self.epoch = opened.ingest_epoch
        self.round = opened.round
        self.topics = {each.topic: each for each in opened.topics}


class IngestClient:
    """Carries out ingests until the world is healed."""

    def __init__(self, world: IngestWorld, process: SimProcess) -> None:
        self._world = world
        self._laws = world.ingest_laws
        self._name = process.name
        self._rng: random.Random = world.scheduler.rng(f"client/{process.name}")
        self._brokers = Brokers(world.bootstrap, self._rng)
        self._count = 0
        self._value_count = 0
        self._old: list[tuple[str, Any]] = []
        self._known: list[Commit] = []

    async def run(self) -> None:
        """Work until the world is healed."""
        world, rng = self._world, self._rng
        await until_fed(world)
        while not world.is_healed:
            await asyncio.sleep(rng.uniform(0, 2 * world.options.ingest_every_ms) / 1000)
            kind = rng.random()
            if kind < 0.5:
                await self._single()
            elif kind < 0.9:
                await self._repeated()
            elif self._known:
                await self._disturb(rng.choice(self._known))
            if rng.random() < 0.3:
                await self._append_plain()
            if self._old and rng.random() < 0.4:
                await self._send_again()
        await self._brokers.close()

    # Single ingests.

    async def _single(self) -> None:
        rng = self._rng
        self._count += 1
        ingest_id = f"{self._name}-{self._count}"
        ingest = await self._open(ingest_id, pb.INGEST_KIND_SINGLE)
        if ingest is None:
            return
        attempts = await self._attempts(ingest)
        if rng.random() < 0.2:
            # Another client, or the next run of this one, takes it over. What the earlier one does then is late.
            stale, late = ingest, attempts
            ingest = await self._open(ingest_id, pb.INGEST_KIND_SINGLE)
            if ingest is None:
                return
            self._world.counts["ingest taken over"] += 1
            await self._work_late(stale, late)
            attempts = await self._attempts(ingest)
        if rng.random() < 0.12:
            await self._abort(ingest)
            if rng.random() < 0.5:
                await self._commit(self._commit_of(ingest, attempts))
            return
        if rng.random() < 0.15:
            boast = await self._boast(ingest)
            if boast is not None:
                await self._commit(self._commit_of(ingest, [boast]), tries_max=5)
        commit = self._commit_of(ingest, attempts)
        if rng.random() < 0.15:
            await self._race(commit, self._commit_of(ingest, attempts[:-1]))
        else:
            await self._commit(commit)
        self._known = [*self._known[-3:], commit]
        if rng.random() < 0.3:
            await self._disturb(commit)

    async def _work_late(self, stale: OpenIngest, attempts: Sequence[Attempt]) -> None:
        """Work on at an epoch that is fenced."""
        rng = self._rng
        if rng.random() < 0.6:
            late = await self._attempt(stale, rng.randrange(3), b"late-%d" % self._number())
            if late is not None:
                await self._stage(stale, late)
                await self._seal(stale, late)
        chosen = rng.choice((attempts, ()))
        await self._commit(self._commit_of(stale, chosen), tries_max=3)

    async def _disturb(self, commit: Commit) -> None:
        """Say again, or say otherwise, what was said about a single ingest."""
        rng = self._rng
        ingest_id = commit.ingest_id
        kind = rng.choice(("again", "other", "abort", "open"))
        if kind == "again":
            await self._commit(commit, tries_max=5)
        elif kind == "other":
            other = Commit(
                ingest_id=ingest_id,
                ingest_epoch=commit.ingest_epoch,
                round=commit.round,
                manifest=commit.manifest[1:] if len(commit.manifest) > 1 else (),
                group_id=commit.group_id,
                offsets=commit.offsets,
            )
            if other != commit:
                await self._commit(other, tries_max=5)
        elif kind == "abort":
            request = pb.AbortIngestRequest(ingest_id=ingest_id, ingest_epoch=commit.ingest_epoch, round=commit.round)
            await self._abort_by(request)
        elif not commit.group_id:
            await self._open(ingest_id, pb.INGEST_KIND_SINGLE)

    # Repeated ingests.

    async def _repeated(self) -> None:
        rng, world = self._rng, self._world
        application = rng.randrange(APPLICATIONS)
        ingest_id = f"application-{application}"
        ingest = await self._open(ingest_id, pb.INGEST_KIND_REPEATED)
        if ingest is None:
            return
        group_id = f"{GROUP_PREFIX}{application}" if application % 2 == 0 else ""
        kept: dict[int, Attempt] = {}
        for _ in range(rng.randint(1, ROUNDS_MAX)):
            if world.is_healed:
                return
            attempts = await self._attempts(ingest, kept)
            if rng.random() < 0.08:
                await self._abort(ingest)
                return
            commit = self._commit_of(ingest, attempts, group_id if rng.random() < 0.7 else "")
            if rng.random() < 0.1:
                await self._race(commit, self._commit_of(ingest, attempts[:-1], group_id))
                return
            if not await self._commit(commit):
                return
            world.counts["ingest round committed"] += 1
            if commit.group_id:
                await self._fetch_offsets(commit)
            if rng.random() < 0.1:
                await self._commit(commit, tries_max=5)
            ingest.round += 1

    # The end.

    async def hold(self) -> OpenIngest:
        """Open an ingest and stage records for each partition of the lasting topic."""
        while True:
            self._count += 1
            ingest = await self._open(f"{self._name}-{self._count}", pb.INGEST_KIND_SINGLE)
            attempt = None if ingest is None else await self._attempt(ingest, 0, b"held")
            if ingest is None or attempt is None:
                continue
            topic = ingest.topics[FED]
            staged = [await self._stage_batch(ingest, attempt, topic, each, 3) for each in range(FED_PARTITIONS)]
            if all(staged) and await self._seal(ingest, attempt):
                return ingest

    async def let_go(self, ingest: OpenIngest) -> None:
        """Abort it."""
        await self._abort(ingest)
        await self._brokers.close()

    # Steps.

    def _number(self) -> int:
        self._value_count += 1
        return self._value_count

    async def _call(self, method: str, request: Any, *, tries_max: int = TRIES_MAX) -> Any:
        """Call the coordinator until there is an answer that counts. Return the response, or the code; None: given up."""
        self._old = [*self._old[1 - OLD_MAX :], (method, request)]
        for _ in range(tries_max):
            answer = await self._brokers.ask_coordinator(method, request)
            if answer is not None and not (isinstance(answer, ErrorCode) and answer.retriable):
                return answer
            await asyncio.sleep(self._rng.uniform(0.02, 0.3))
        return None

    async def _open(
        self, ingest_id: str, kind: pb.IngestKind.ValueType, *, topics: Sequence[str] = ()
    ) -> OpenIngest | None:
        topics = topics or self._rng.choice(((FED,), (FED,), (FED, BRIEF)))
        request = pb.OpenIngestRequest(ingest_id=ingest_id, kind=kind, topics=topics, ttl_ms=TTL_MS)
        answer = await self._call("OpenIngest", request)
        if not isinstance(answer, pb.OpenIngestResponse):
            return None
        with self._laws.noting():
            self._laws.opened(ingest_id, answer)
        return OpenIngest(ingest_id, answer) if answer.state == pb.INGEST_STATE_OPEN else None

    async def _attempts(self, ingest: OpenIngest, kept: dict[int, Attempt] | None = None) -> list[Attempt]:
        """Carry out some tasks, each with an attempt or two, and return the sealed ones, one for each task."""
        rng = self._rng
        found: list[Attempt] = []
        tasks = rng.sample(range(4), rng.randint(1, 3))
        for task in tasks:
            if rng.random() < 0.2:
                await self._abandon(ingest, task)
            attempt = await self._attempt_again(ingest, task, kept)
            if attempt is None:
                continue
            if await self._stage(ingest, attempt) and await self._seal(ingest, attempt):
                found.append(attempt)
            elif kept is not None:
                kept.pop(task, None)
        return found

    async def _abandon(self, ingest: OpenIngest, task: int) -> None:
        """Begin an attempt that never counts; some stage, and some are sealed."""
        attempt = await self._attempt(ingest, task, b"given-up-%d" % self._number())
        if attempt is None:
            return
        self._world.counts["ingest attempt abandoned"] += 1
        if self._rng.random() < 0.7:
            await self._stage(ingest, attempt)
            if self._rng.random() < 0.4:
                await self._seal(ingest, attempt)

    async def _boast(self, ingest: OpenIngest) -> Attempt | None:
        """Return a sealed attempt that says to have staged a record more than it has."""
        attempt = await self._attempt(ingest, 9, b"boast-%d" % self._number())
        if attempt is None or not await self._stage_batch(ingest, attempt, ingest.topics[FED], 0, 2):
            return None
        ((key, part),) = attempt.parts.items()
        part.records += 1
        part.end_offset += 1
        attempt.values[key].append(b"never staged by " + attempt.attempt_id)
        return attempt if await self._seal(ingest, attempt) else None

    async def _attempt_again(self, ingest: OpenIngest, task: int, kept: dict[int, Attempt] | None) -> Attempt | None:
        """Open an attempt, in a repeated ingest the one of the last round."""
        former = None if kept is None else kept.get(task)
        attempt_id = former.attempt_id if former else f"{self._name}/{self._number()}".encode()
        attempt = await self._attempt(ingest, task, attempt_id)
        if attempt is None or kept is None:
            return attempt
        if former is not None and former.producer_id == attempt.producer_id:
            self._world.counts["ingest attempt goes on"] += 1
            former.next_round()
            attempt = former
        kept[task] = attempt
        return attempt

    async def _attempt(self, ingest: OpenIngest, task: int, attempt_id: bytes) -> Attempt | None:
        name = AttemptName(ingest.ingest_id, ingest.epoch, ingest.round, task, attempt_id)
        self._laws.opens_attempt(name)
        request = pb.OpenAttemptRequest(
            ingest_id=ingest.ingest_id, ingest_epoch=ingest.epoch, task=task, attempt_id=attempt_id
        )
        answer = await self._call("OpenAttempt", request)
        if not isinstance(answer, pb.OpenAttemptResponse):
            return None
        return Attempt(task, attempt_id, answer.producer_id)

    async def _stage(self, ingest: OpenIngest, attempt: Attempt) -> bool:
        """Stage some batches. False: the attempt is given up."""
        rng = self._rng
        for _ in range(rng.randint(1, 4)):
            topic = rng.choice(sorted(ingest.topics))
            partition = rng.randrange(FED_PARTITIONS) if topic == FED else 0
            if not await self._stage_batch(ingest, attempt, ingest.topics[topic], partition, rng.randint(1, 5)):
                return False
        return True

    async def _stage_batch(
        self, ingest: OpenIngest, attempt: Attempt, topic: pb.IngestTopic, partition: int, size: int
    ) -> bool:
        values = [f"{self._name}:{self._number()} of {ingest.ingest_id}".encode() for _ in range(size)]
        return await self._stage_values(ingest, attempt, topic, partition, values)

    async def _stage_values(
        self, ingest: OpenIngest, attempt: Attempt, topic: pb.IngestTopic, partition: int, values: Sequence[bytes]
    ) -> bool:
        """Stage one batch. False: the attempt is given up."""
        key, size = (topic.topic_id, partition), len(values)
        name = AttemptName(ingest.ingest_id, ingest.epoch, ingest.round, attempt.task, attempt.attempt_id)
        for value in values:
            self._laws.stages(name, key, value)
        sequence = attempt.next_sequences.get(key, 0)
        request = log_pb2.AppendRequest(
            topic=topic.staging_topic,
            partition=partition,
            records=[log_pb2.Record(value=value) for value in values],
            sequence=log_pb2.AppendSequence(
                producer=log_pb2.ProducerIdentity(producer_id=attempt.producer_id, producer_epoch=0),
                base_sequence=sequence,
            ),
        )
        base_offset = await self._append(request)
        if base_offset is None:
            return False
        part = attempt.parts.setdefault(
            key,
            pb.StagedPart(
                topic_id=topic.topic_id, partition=partition, first_sequence=sequence, first_offset=base_offset
            ),
        )
        part.records += size
        part.end_offset = base_offset + size
        attempt.next_sequences[key] = (sequence + size) % SEQUENCES
        attempt.values.setdefault(key, []).extend(values)
        return True

    async def _append(self, request: log_pb2.AppendRequest) -> int | None:
        """Append until it is acknowledged, and return the base offset. None: given up."""
        for _ in range(TRIES_MAX):
            answer = await self._brokers.ask(log_pb2_grpc.LogServiceStub, "Append", request)
            if isinstance(answer, log_pb2.AppendResponse):
                base_offset = answer.ranges[0].base_offset
                return base_offset if base_offset >= 0 else None
            # UNKNOWN_TOPIC: it was deleted, or this broker has not heard of it yet.
            may_pass = answer is None or answer.retriable or answer is ErrorCode.OUTCOME_UNKNOWN
            if (
                answer is not None
                and not may_pass
                and (answer is not ErrorCode.UNKNOWN_TOPIC or self._rng.random() < 0.2)
            ):
                self._world.counts[f"ingest staging refused: {answer.name}"] += 1
                return None
            await asyncio.sleep(self._rng.uniform(0.02, 0.3))
        return None

    async def _seal(self, ingest: OpenIngest, attempt: Attempt) -> bool:
        name = AttemptName(ingest.ingest_id, ingest.epoch, ingest.round, attempt.task, attempt.attempt_id)
        self._laws.seals(name, attempt.values)
        request = pb.SealAttemptRequest(
            ingest_id=ingest.ingest_id,
            ingest_epoch=ingest.epoch,
            task=attempt.task,
            attempt_id=attempt.attempt_id,
            parts=attempt.parts.values(),
            round=ingest.round,
        )
        answer = await self._call("SealAttempt", request)
        attempt.is_sealed = isinstance(answer, pb.SealAttemptResponse)
        if isinstance(answer, ErrorCode):
            self._world.counts[f"ingest seal refused: {answer.name}"] += 1
        return attempt.is_sealed

    def _commit_of(self, ingest: OpenIngest, attempts: Sequence[Attempt], group_id: str = "") -> Commit:
        topic_id = self._world.orders_id if group_id else b""
        return Commit(
            ingest_id=ingest.ingest_id,
            ingest_epoch=ingest.epoch,
            round=ingest.round,
            manifest=tuple(sorted(attempt.entry for attempt in attempts)),
            group_id=group_id,
            offsets=((topic_id, 0, self._laws.next_offset()),) if group_id else (),
        )

    async def _commit(self, commit: Commit, *, tries_max: int = TRIES_MAX) -> bool:
        """Commit; True: it counts."""
        self._laws.asks(commit)
        answer = await self._call("CommitIngest", commit_request(commit), tries_max=tries_max)
        return self._judge(commit, answer)

    def _judge(self, commit: Commit, answer: Any) -> bool:
        with self._laws.noting():
            if isinstance(answer, pb.CommitIngestResponse):
                self._laws.committed(commit, answer)
                return True
            if isinstance(answer, ErrorCode):
                self._laws.refused(commit, answer)
        return False

    async def _race(self, *commits: Commit) -> None:
        """Make several commits at once, each of them twice."""
        self._world.counts["ingest commits at once"] += 1
        await asyncio.gather(*(self._commit(each) for each in (*commits, *commits)))

    async def _abort(self, ingest: OpenIngest) -> None:
        await self._abort_by(
            pb.AbortIngestRequest(ingest_id=ingest.ingest_id, ingest_epoch=ingest.epoch, round=ingest.round)
        )

    async def _abort_by(self, request: pb.AbortIngestRequest) -> None:
        answer = await self._call("AbortIngest", request)
        self._judge_abort(request, answer)

    def _judge_abort(self, request: pb.AbortIngestRequest, answer: Any) -> None:
        with self._laws.noting():
            if isinstance(answer, pb.AbortIngestResponse):
                self._laws.aborted(request.ingest_id, request.ingest_epoch, request.round)
            elif isinstance(answer, ErrorCode):
                self._laws.refused_abort(request.ingest_id, request.round, answer)

    async def _send_again(self) -> None:
        """Send an old request again, as a late copy on the network would come."""
        method, request = self._rng.choice(self._old)
        self._world.counts["late copy of a call of an ingest"] += 1
        answer = await self._brokers.ask_coordinator(method, request)
        if isinstance(answer, ErrorCode) and answer.retriable:
            return
        if method == "CommitIngest":
            self._judge(_commit_from(request), answer)
        elif method == "AbortIngest":
            self._judge_abort(request, answer)
        elif method == "OpenIngest" and isinstance(answer, pb.OpenIngestResponse):
            with self._laws.noting():
                self._laws.opened(request.ingest_id, answer)

    async def _fetch_offsets(self, commit: Commit) -> None:
        """Look up the offsets of a commit that was answered."""
        topic_id, partition, _ = commit.offsets[0]
        request = group_pb2.FetchOffsetsRequest(
            group_id=commit.group_id,
            topics=[group_pb2.PartitionsOfTopic(topic_id=topic_id, partitions=[partition])],
        )
        for _ in range(TRIES_MAX // 4):
            answer = await self._brokers.ask(group_pb2_grpc.GroupServiceStub, "FetchOffsets", request)
            if isinstance(answer, group_pb2.FetchOffsetsResponse) and not answer.offsets[0].HasField("error"):
                found = answer.offsets[0]
                with self._laws.noting():
                    offset = found.offset if found.HasField("offset") else None
                    self._laws.fetched(commit, (topic_id, partition), offset)
                self._world.counts["ingest offsets fetched"] += 1
                return
            await asyncio.sleep(self._rng.uniform(0.02, 0.3))

    async def _append_plain(self) -> None:
        """Append a record that belongs to no ingest, so that others lie between those of a part."""
        request = log_pb2.AppendRequest(
            topic=FED,
            partition=self._rng.randrange(FED_PARTITIONS),
            records=[log_pb2.Record(value=PLAIN + f"{self._name}:{self._number()}".encode())],
        )
        await self._brokers.ask(log_pb2_grpc.LogServiceStub, "Append", request)


def commit_request(commit: Commit) -> pb.CommitIngestRequest:
    """Return the request for a commit of no member."""
    request = pb.CommitIngestRequest(
        ingest_id=commit.ingest_id,
        ingest_epoch=commit.ingest_epoch,
        round=commit.round,
        manifest=[
            pb.ManifestEntry(task=task, attempt_id=attempt_id, records=records)
            for task, attempt_id, records in commit.manifest
        ],
    )
    if commit.group_id:
        offsets = [pb.IngestOffset(topic_id=each, partition=at, offset=offset) for each, at, offset in commit.offsets]
        request.offsets.CopyFrom(pb.IngestOffsets(group_id=commit.group_id, offsets=offsets))
    return request


def _commit_from(request: pb.CommitIngestRequest) -> Commit:
    return Commit(
        ingest_id=request.ingest_id,
        ingest_epoch=request.ingest_epoch,
        round=request.round,
        manifest=tuple((each.task, each.attempt_id, each.records) for each in request.manifest),
        group_id=request.offsets.group_id,
        offsets=tuple((each.topic_id, each.partition, each.offset) for each in request.offsets.offsets),
    )


class IngestOperator:
    """Makes the topics of ingests, deletes one of them again and again, moves the other, and elects its leaders."""

    def __init__(self, world: IngestWorld, process: SimProcess, broker_ids: Sequence[int]) -> None:
        self._world = world
        self._broker_ids = list(broker_ids)
        self._rng: random.Random = world.scheduler.rng(f"client/{process.name}")

    async def run(self) -> None:
        """Work until the world is healed."""
        world, rng, options = self._world, self._rng, self._world.options
        await until_topic(world)
        works = [(options.reassign_every_ms, self._reassign), (options.elect_every_ms, self._elect)]
        works.append((options.brief_every_ms, self._delete))
        due = [(every_ms, work) for every_ms, work in works if every_ms is not None]
        async with Admin(world.bootstrap) as admin:
            while not world.is_fed_there:
                await self._look(admin)
            while due and not world.is_healed:
                mean_ms = sum(every_ms for every_ms, _ in due) / len(due) ** 2
                await asyncio.sleep(rng.uniform(0, 2 * mean_ms) / 1000)
                if world.is_healed:
                    return
                try:
                    await rng.choice(due)[1](admin)
                except LograftError as error:
                    world.counts[f"operator of ingests: {error.code.name}"] += 1

    async def _look(self, admin: Admin) -> None:
        try:
            self._world.orders_id = (await admin.describe_topic(TOPIC)).topic_id
            await self._create(admin, FED, FED_PARTITIONS)
            self._world.fed_id = (await admin.describe_topic(FED)).topic_id
            await self._create(admin, BRIEF, 1)
            self._world.is_fed_there = True
        except LograftError:
            await asyncio.sleep(AFTER_ERROR_S)

    async def _create(self, admin: Admin, topic: str, partition_count: int) -> None:
        options = self._world.options
        configs: Mapping[str, str] = {
            "min.insync.replicas": str(options.min_isr),
            FLUSH_POLICY: options.flush_policy.value,
            "segment.bytes": str(options.segment_bytes),
        }
        try:
            await admin.create_topic(
                topic, partition_count=partition_count, replication_factor=options.replication_factor, configs=configs
            )
        except LograftError as error:
            if error.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
                raise

    async def _delete(self, admin: Admin) -> None:
        """Delete the brief topic, or make it again."""
        try:
            topic_id = (await admin.describe_topic(BRIEF)).topic_id
        except LograftError as error:
            if error.code is ErrorCode.UNKNOWN_TOPIC:
                await self._create(admin, BRIEF, 1)
                return
            raise
        self._world.ingest_laws.deletes(topic_id)
        await admin.delete_topic(BRIEF)
        self._world.counts["topic of ingests deleted"] += 1
        await self._create(admin, BRIEF, 1)

    async def _reassign(self, admin: Admin) -> None:
        replicas = self._rng.sample(self._broker_ids, self._world.options.replication_factor)
        change = {TopicPartition(FED, self._rng.randrange(FED_PARTITIONS)): replicas}
        for result in await admin.alter_partition_reassignments(change):
            self._world.counts["topic of ingests moved"] += result.error is None

    async def _elect(self, admin: Admin) -> None:
        topic = FED
        if self._rng.random() < 0.5:
            topic = staging_topic((await admin.describe_topic(FED)).topic_id)
        for result in await admin.elect_leaders([topic], election=ElectionType.PREFERRED):
            self._world.counts["preferred leader of ingests elected"] += result.error is None


class FedReader:
    """Reads the lasting topic while ingests are open, until the world is healed."""

    def __init__(self, world: IngestWorld, process: SimProcess) -> None:
        self._world = world
        self._rng: random.Random = world.scheduler.rng(f"client/{process.name}")
        self._brokers = Brokers(world.bootstrap, self._rng)

    async def run(self) -> None:
        """Read records as they arrive."""
        world, rng = self._world, self._rng
        await until_fed(world)
        offsets = dict.fromkeys(range(FED_PARTITIONS), 0)
        while not world.is_healed:
            await asyncio.sleep(rng.uniform(0, 0.4))
            partition = rng.randrange(FED_PARTITIONS)
            offsets[partition] = await self.read(partition, offsets[partition])
            if rng.random() < 0.05:
                offsets[partition] = max(0, offsets[partition] - rng.randrange(20))
        await self._brokers.close()

    async def read(self, partition: int, offset: int) -> int:
        """Read once, and return the offset to read next."""
        request = log_pb2.ReadRequest(
            topic=FED, partition=partition, offset=offset, max_records=100, allow_follower=self._rng.random() < 0.5
        )
        answer = await self._brokers.ask(log_pb2_grpc.LogServiceStub, "Read", request)
        laws = self._world.ingest_laws
        if isinstance(answer, log_pb2.ReadResponse):
            with laws.noting():
                return laws.reads((self._world.fed_id, partition), offset, answer)
        return offset


class FinalFedReader(FedReader):
    """Reads the lasting topic to its end, while an ingest is open that has staged records for each of its partitions."""

    def __init__(self, world: IngestWorld, process: SimProcess) -> None:
        super().__init__(world, process)
        self._client = IngestClient(world, process)

    async def run(self) -> None:
        """Open an ingest, read everything, and abort it."""
        world = self._world
        if not world.options.ingest_count:
            return
        ingest = await self._client.hold()
        for partition in range(FED_PARTITIONS):
            end_offset = world.ingest_laws.end_of((world.fed_id, partition))
            offset = 0
            while offset < end_offset:
                offset = await self.read(partition, offset)
        await self._client.let_go(ingest)
        await self._brokers.close()
