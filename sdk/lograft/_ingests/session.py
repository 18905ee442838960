# SPDX-License-Identifier: Apache-2.0
"""One ingest as its client has it: the epoch, the calls to its coordinator, and the touches that keep it alive.

Every call may be repeated with the same arguments after any failure, so it is, within its time. A session that has opened the ingest
touches it every third of its time to live until it is closed; one that was attached does so while it has an open attempt.
Source: docs/ingest.md.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, TypeVar

import grpc.aio

from lograft._client.clock import monotonic_ms
from lograft._client.cluster import Cluster
from lograft._client.stubs import ingest_service
from lograft._groups.coordinators import ATTEMPT_TIMEOUT_MS
from lograft._groups.offsets import OffsetsForDecision
from lograft._ingests.coordinators import IngestCoordinators
from lograft._ingests.messages import (
    KIND_NUMBERS,
    STATES,
    decode_description,
    decode_result,
    encode_manifest,
    encode_offsets,
    encode_parts,
)
from lograft._producer.staging import StagedRange, Staging
from lograft.errors import (
    IngestAbortedError,
    IngestCommittedError,
    IngestFencedError,
    IngestNotFoundError,
    LograftError,
    RetriableError,
    UsageError,
)
from lograft.settings import ClientSettings
from lograft.types import IngestDescription, IngestKind, IngestResult, IngestState, SealedAttempt
from lograft.v1 import ingest_pb2 as pb

if TYPE_CHECKING:
    # Only the stubs for type checkers have this class.
    from lograft.v1.ingest_pb2_grpc import IngestServiceAsyncStub

logger = logging.getLogger(__name__)

COMMIT_ATTEMPT_MS: Final = 120_000
"""Milliseconds that a coordinator may take for a commit, or for an open that waits for one, before the client looks for another."""

OPEN_ATTEMPT_MS: Final = 15_000
"""Milliseconds that a coordinator may take for an open, which makes staging topics."""

TOUCH_RETRY_MS: Final = 1_000
"""Milliseconds between two touches when the first one failed."""

Q = TypeVar("Q")
T = TypeVar("T")

_ENDED: Final = (IngestFencedError, IngestNotFoundError, IngestAbortedError, IngestCommittedError)


class IngestSession:
    """One ingest of one client.

    Attributes:
        ingest_id: its id.
        kind: how often it is committed.
        epoch: epoch of the open; 0 before.
        round: round to commit next.
        state: where it stood when the coordinator last said so.
        topic_ids: ids of its topics, by name.
        result: what was committed last; None: nothing.
    """

    def __init__(self, client: ClientSettings, ingest_id: str, kind: IngestKind, *, ttl_ms: int = 0) -> None:
        """Start without connecting.

        Args:
            client: where the cluster is. Its `request_timeout_ms` limits each call except for commits.
            ingest_id: the id.
            kind: how often it is committed.
            ttl_ms: milliseconds without a call after which it is aborted; 0: one hour.
        """
        self.ingest_id: str = ingest_id
        self.kind: IngestKind = kind
        self.epoch: int = 0
        self.round: int = 1
        self.state: IngestState = IngestState.UNKNOWN
        self.topic_ids: Mapping[str, bytes] = {}
        self.result: IngestResult | None = None
        self._ttl_ms = ttl_ms
        self._timeout_ms = client.request_timeout_ms
        self._cluster = Cluster(client)
        self._coordinators = IngestCoordinators(self._cluster)
        self._touches: asyncio.Task[None] | None = None
        self._is_opener = False
        self._open_attempts: set[tuple[int, bytes]] = set()

    async def open(self, topics: Sequence[str], owner: bytes = b"") -> None:
        """Open the ingest, or take it over: other clients are fenced by that. Keep it alive from now on.

        Args:
            topics: names of its topics.
            owner: owner; the one of the present epoch joins it, and fences nobody.

        Raises:
            UnknownTopicError: a topic does not exist.
            IngestFencedError: another owner has opened it since this one.
            IngestConflictError: the ingest is of another kind.
            LograftError: the coordinator refused, or did not answer within `request_timeout_ms`.
        """
        request = pb.OpenIngestRequest(
            cluster_id=self._cluster.cluster_id,
            ingest_id=self.ingest_id,
            kind=KIND_NUMBERS[self.kind],
            topics=topics,
            ttl_ms=self._ttl_ms,
            owner=owner,
        )
        opened = await self._call(lambda stub: stub.OpenIngest, request, attempt_timeout_ms=OPEN_ATTEMPT_MS)
        self.epoch = opened.ingest_epoch
        self.round = opened.round
        self.state = STATES.get(opened.state, IngestState.UNKNOWN)
        self.topic_ids = {each.topic: each.topic_id for each in opened.topics}
        self.result = decode_result(opened.result, was_committed=True) if opened.HasField("result") else None
        self._is_opener = True
        self._stop_touching()
        if self.state is IngestState.OPEN:
            self._start_touching(opened.touch_interval_ms)

    async def attach(self, epoch: int, topics: Sequence[str] | dict[str, bytes]) -> None:
        """Use an ingest that another process has opened; with names alone, its coordinator is asked for the ids.

        Raises:
            IngestFencedError: it has been opened again.
            UsageError: the ingest does not publish to a topic.
            LograftError: the coordinator did not answer, or knows no such ingest.
        """
        self.epoch = epoch
        self.state = IngestState.OPEN
        if isinstance(topics, dict):
            self.topic_ids = topics
            return
        found = await self._describe()
        if found.ingest_epoch != epoch:
            raise IngestFencedError(f"ingest {self.ingest_id!r} has epoch {found.ingest_epoch}, not {epoch}")
        known = {each.topic: each.topic_id for each in found.topics}
        missing = [each for each in topics if each not in known]
        if missing:
            raise UsageError(
                f"ingest {self.ingest_id!r} publishes to {', '.join(sorted(known))}, not to {missing[0]!r}"
            )
        self.topic_ids = known
        self.round = found.round

    async def describe(self) -> IngestDescription:
        """Ask the coordinator how the ingest stands."""
        found = decode_description(await self._describe())
        if found.epoch == self.epoch:
            self.state = found.state
        return found

    async def open_attempt(self, task: int, attempt_id: bytes) -> Staging:
        """Open an attempt at a task, and return where it stages. Until it is sealed or `attempt_ended`, the ingest is kept alive.

        Raises:
            IngestFencedError: the ingest has been opened again.
            IngestCommittedError: it is committed.
            IngestAbortedError: it was aborted.
            LograftError: the coordinator did not answer in time, or refused.
        """
        request = pb.OpenAttemptRequest(
            ingest_id=self.ingest_id, ingest_epoch=self.epoch, task=task, attempt_id=attempt_id
        )
        opened = await self._call(lambda stub: stub.OpenAttempt, request)
        if not self._is_opener:
            self._open_attempts.add((task, attempt_id))
            if self._touches is None:
                self._start_touching(opened.touch_interval_ms)
        return Staging(opened.producer_id, self.topic_ids)

    async def seal(self, task: int, attempt_id: bytes, ranges: Mapping[tuple[str, int], StagedRange]) -> SealedAttempt:
        """End an attempt that has staged everything. Raises as `open_attempt`."""
        is_repeated = self.kind is IngestKind.REPEATED
        request = pb.SealAttemptRequest(
            ingest_id=self.ingest_id,
            ingest_epoch=self.epoch,
            task=task,
            attempt_id=attempt_id,
            parts=encode_parts(ranges, self.topic_ids),
            round=self.round if is_repeated else 0,
        )
        await self._call(lambda stub: stub.SealAttempt, request)
        self.attempt_ended(task, attempt_id)
        return SealedAttempt(task, attempt_id, sum(each.records for each in ranges.values()))

    def attempt_ended(self, task: int, attempt_id: bytes) -> None:
        """Note that an attempt stages nothing more."""
        self._open_attempts.discard((task, attempt_id))
        if not self._open_attempts and not self._is_opener:
            self._stop_touching()

    async def commit(
        self, sealed: Iterable[SealedAttempt], *, timeout_ms: int, offsets: OffsetsForDecision | None = None
    ) -> IngestResult:
        """Publish the attempts, and return when every record can be read.

        Raises:
            IngestIncompleteError: an attempt is not sealed, or not all of it is staged. Nothing is published.
            IngestConflictError: it was committed with other attempts.
            IngestFencedError, IngestAbortedError: as they say. Nothing of this client is published.
            RetriableError: no answer in time; it may be decided. The same commit again gets the answer.
        """
        request = pb.CommitIngestRequest(
            ingest_id=self.ingest_id,
            ingest_epoch=self.epoch,
            round=self.round if self.kind is IngestKind.REPEATED else 1,
            manifest=encode_manifest(sealed),
            offsets=None if offsets is None else encode_offsets(offsets),
        )
        committed = await self._call(
            lambda stub: stub.CommitIngest, request, timeout_ms=timeout_ms, attempt_timeout_ms=COMMIT_ATTEMPT_MS
        )
        self.result = decode_result(committed.result, was_committed=committed.was_committed)
        if self.kind is IngestKind.SINGLE:
            self.state = IngestState.COMMITTED
            self._stop_touching()
        else:
            self.round = self.result.round + 1
        return self.result

    async def abort(self) -> None:
        """End the ingest, or the round of a repeated one, without publishing anything.

        Raises:
            IngestCommittedError: it is committed.
            IngestFencedError: it has been opened again.
            LograftError: the coordinator did not answer in time.
        """
        self._stop_touching()
        request = pb.AbortIngestRequest(ingest_id=self.ingest_id, ingest_epoch=self.epoch, round=self.round)
        await self._call(lambda stub: stub.AbortIngest, request)
        self.state = IngestState.ABORTED

    async def close(self) -> None:
        """Stop touching, and close the connections. The ingest stays as it is."""
        touches = self._touches
        self._stop_touching()
        if touches is not None:
            await asyncio.gather(touches, return_exceptions=True)
        await self._cluster.close()

    # -- inside

    async def _describe(self) -> pb.IngestDescription:
        request = pb.DescribeIngestRequest(cluster_id=self._cluster.cluster_id, ingest_id=self.ingest_id)
        return (await self._call(lambda stub: stub.DescribeIngest, request)).ingest

    async def _call(
        self,
        method: Callable[[IngestServiceAsyncStub], grpc.aio.UnaryUnaryMultiCallable[Q, T]],
        request: Q,
        *,
        timeout_ms: int | None = None,
        attempt_timeout_ms: int = ATTEMPT_TIMEOUT_MS,
    ) -> T:
        try:
            return await self._coordinators.call(
                self.ingest_id,
                lambda channel: method(ingest_service(channel)),
                request,
                timeout_ms=self._timeout_ms if timeout_ms is None else timeout_ms,
                attempt_timeout_ms=attempt_timeout_ms,
            )
        except IngestAbortedError:
            self.state = IngestState.ABORTED
            raise
        except IngestCommittedError:
            self.state = IngestState.COMMITTED
            raise

    def _start_touching(self, interval_ms: int) -> None:
        self._touches = asyncio.get_running_loop().create_task(self._touch(max(TOUCH_RETRY_MS, interval_ms)))

    def _stop_touching(self) -> None:
        touches, self._touches = self._touches, None
        if touches is not None:
            touches.cancel()

    async def _touch(self, interval_ms: int) -> None:
        """Touch the ingest until it has ended. What fails is tried again: it lives for two more intervals."""
        wait_ms = interval_ms
        while True:
            await asyncio.sleep(wait_ms / 1000)
            began_ms = monotonic_ms()
            request = pb.TouchIngestRequest(ingest_id=self.ingest_id, ingest_epoch=self.epoch)
            try:
                await self._call(lambda stub: stub.TouchIngest, request)
            except _ENDED as error:
                logger.warning("ingest %s has ended: %s", self.ingest_id, error)
                return
            except RetriableError as error:
                logger.warning("ingest %s was not touched: %s", self.ingest_id, error)
                wait_ms = TOUCH_RETRY_MS
            except LograftError:
                logger.exception("ingest %s cannot be touched", self.ingest_id)
                return
            else:
                wait_ms = max(0, interval_ms - (monotonic_ms() - began_ms))
