# SPDX-License-Identifier: Apache-2.0
"""Commits and look-ups of the offsets of one group, on the event loop.

It owns the attempts. `commits` decides what is sent. The group's coordinator stores offsets by topic id, so that those of a deleted
topic never apply to its successor.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from lograft._client.backoff import Backoff
from lograft._client.clock import monotonic_ms
from lograft._client.codec import decode_error
from lograft._groups.carrier import GroupCarrier
from lograft._groups.commits import CommitDone, CommitRequest, Commits
from lograft._groups.look_ups import LookUp, look_up, look_up_backoff
from lograft._groups.messages import encode_offsets
from lograft._groups.steps import Partition
from lograft.errors import LograftError, MembershipLostError, RequestTimeoutError, RetriableError, UsageError, error_for
from lograft.types import OffsetAndMetadata
from lograft.v1 import group_pb2
from lograft.v1.group_pb2_grpc import GroupServiceStub
from lograft.wire.codes import ErrorCode

logger = logging.getLogger(__name__)

COMMIT_ATTEMPT_MS: Final = 10_000
"""Milliseconds for one commit request with its retries, before the newest offsets are collected again."""

NO_MEMBER: Final = ("", -1)
"""Member id and epoch of a consumer that is no member."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetsForDecision:
    """Offsets that count if and only if an ingest is committed.

    Attributes:
        group_id: the group.
        member_id: member that commits; empty: the consumer is no member.
        member_epoch: its epoch.
        instance_id: name of a static member; None for others.
        commit_number: number among the commits of the member; 0 without one.
        offsets: the offsets.
    """

    group_id: str
    member_id: str
    member_epoch: int
    instance_id: str | None
    commit_number: int
    offsets: Mapping[Partition, OffsetAndMetadata]


class GroupOffsets:
    """Commits and looks up offsets of one group for one consumer. Belongs to one event loop."""

    def __init__(self, carrier: GroupCarrier, group_id: str, identity: Callable[[], tuple[str, int]]) -> None:
        """Start without commits.

        Args:
            carrier: the way to the coordinator.
            group_id: the group.
            identity: returns member id and epoch at the moment; `NO_MEMBER` for a consumer without a membership.
        """
        self._carrier = carrier
        self._group_id = group_id
        self._identity = identity
        self._commits = Commits(random.Random())
        self._results: dict[int, asyncio.Future[CommitDone]] = {}
        self._pump: asyncio.Task[None] | None = None

    def order(self) -> int:
        """Return the place of a commit that the application asks for now (see `Commits.order`)."""
        return self._commits.order()

    def commit(
        self, offsets: Mapping[Partition, OffsetAndMetadata], *, timeout_ms: int, order: int | None = None
    ) -> Coroutine[Any, Any, None]:
        """Take offsets to store at once. The coroutine ends when the coordinator has answered, or the time is up.

        What the caller awaits later, in a task of its own, is taken now all the same. So `fail` and `drop` reach every commit that the
        application asked for before.

        Args:
            offsets: the offsets, at least one.
            timeout_ms: milliseconds to wait for the answer.
            order: place of the commit; None: the application asks for it now.

        Raises:
            MembershipLostError: a partition is not this member's any more.
            RequestTimeoutError: no answer came in time; the offsets may be stored all the same.
            LograftError: the coordinator refused.
        """
        ticket = self._commits.add(offsets, order)
        result: asyncio.Future[CommitDone] = asyncio.get_running_loop().create_future()
        self._results[ticket] = result
        self._start()
        return self._ended(ticket, result, timeout_ms)

    async def _ended(self, ticket: int, result: asyncio.Future[CommitDone], timeout_ms: int) -> None:
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                done = await result
        except TimeoutError:
            raise RequestTimeoutError(
                f"the coordinator of group {self._group_id!r} did not answer a commit within {timeout_ms} ms"
            ) from None
        finally:
            self._commits.cancel(ticket)
            self._results.pop(ticket, None)
        for error in done.errors.values():
            raise error

    async def give_up(self, partitions: Sequence[Partition], *, timeout_ms: int) -> None:
        """Wait for the commits of partitions that the member gives up, and end those that have no answer in time.

        Afterwards no commit of these partitions is sent that was asked for before.
        """
        results = [self._results[each] for each in self._commits.waiting_for(partitions) if each in self._results]
        try:
            if results:
                await asyncio.wait(results, timeout=timeout_ms / 1000)
        finally:
            self._drop(partitions)

    def _drop(self, partitions: Sequence[Partition]) -> None:
        text = "the partition was given up before the coordinator answered; its next owner may process records again"
        self._resolve(self._commits.drop(partitions, MembershipLostError(text, code=ErrorCode.STALE_MEMBER_EPOCH)))

    def for_decision(
        self, offsets: Mapping[Partition, OffsetAndMetadata], *, instance_id: str | None
    ) -> OffsetsForDecision:
        """Return offsets that go with the decision of an ingest instead of a commit of their own.

        Raises:
            UsageError: commits are under way. A later attempt of theirs would move the group back.
        """
        if not self._commits.is_idle:
            raise UsageError(
                "commits of this consumer are under way: wait for them before a transaction takes its offsets"
            )
        member_id, epoch = self._identity()
        return OffsetsForDecision(
            group_id=self._group_id,
            member_id=member_id,
            member_epoch=epoch,
            instance_id=instance_id,
            commit_number=self._commits.take_number() if member_id else 0,
            offsets=dict(offsets),
        )

    async def fetch(
        self, partitions: Sequence[Partition] | None, *, timeout_ms: int
    ) -> dict[Partition, OffsetAndMetadata | None]:
        """Look up committed offsets, of all partitions that have one or of some. None: positively no offset is stored.

        While an offset waits for the decision of an ingest, it is asked for again until the time is up.

        Raises:
            LograftError: no coordinator answered in time, or it refused; OFFSETS_PENDING if there was no decision in time.
        """
        backoff = look_up_backoff(self._carrier.cluster.rng)
        found = await self._look_up(partitions, timeout_ms=timeout_ms, backoff=backoff)
        for error in found.errors.values():
            raise error
        return dict(found.offsets)

    async def fetch_known(self, partitions: Sequence[Partition], *, timeout_ms: int) -> LookUp:
        """Look up committed offsets once, also if an offset waits for the decision of an ingest: that partition has an error.

        Raises:
            LograftError: no coordinator answered in time, or it refused.
        """
        return await self._look_up(partitions, timeout_ms=timeout_ms, backoff=None)

    async def _look_up(
        self, partitions: Sequence[Partition] | None, *, timeout_ms: int, backoff: Backoff | None
    ) -> LookUp:
        return await look_up(
            self._carrier,
            self._group_id,
            partitions,
            cluster_id=self._carrier.cluster.cluster_id,
            timeout_ms=timeout_ms,
            backoff=backoff,
        )

    def fail(self, error: LograftError) -> None:
        """End all commits with an error: the membership is lost.

        The request under way is given up too. If it were repeated, it could be stored after the member has got the partition again, and
        has looked up where to begin.
        """
        pump, self._pump = self._pump, None
        if pump is not None:
            pump.cancel()
        self._resolve(self._commits.fail(error))

    async def close(self) -> None:
        """End all commits."""
        pump = self._pump
        self.fail(RequestTimeoutError("the consumer was closed before the coordinator answered"))
        if pump is not None:
            await asyncio.gather(pump, return_exceptions=True)

    def _start(self) -> None:
        if self._pump is None or self._pump.done():
            self._pump = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        while (wait_ms := self._commits.wait_ms(monotonic_ms())) is not None:
            await asyncio.sleep(wait_ms / 1000)
            request = self._commits.request(monotonic_ms())
            if request is not None:
                await self._send(request)

    async def _send(self, request: CommitRequest) -> None:
        member_id, epoch = self._identity()
        message = group_pb2.CommitOffsetsRequest(
            cluster_id=self._carrier.cluster.cluster_id,
            commitment=group_pb2.OffsetCommitment(
                group_id=self._group_id,
                member_id=member_id,
                member_epoch=epoch,
                commit_number=request.number if member_id else 0,
                offsets=encode_offsets(request.offsets),
            ),
        )
        try:
            response = await self._carrier.call(
                self._group_id,
                lambda channel: GroupServiceStub(channel).CommitOffsets,
                message,
                timeout_ms=COMMIT_ATTEMPT_MS,
            )
        except RetriableError as error:
            logger.info("group %s: a commit got no answer: %s", self._group_id, error)
            self._commits.unanswered(request.number, monotonic_ms(), error.retry_after_ms or 0)
        except LograftError as error:
            if error.code is ErrorCode.REQUEST_SUPERSEDED:
                # An attempt of the same member that was sent later has been handled: send what is newest now.
                self._commits.unanswered(request.number, monotonic_ms())
                return
            self._answer(request.number, dict.fromkeys(request.offsets, error))
        else:
            errors: dict[Partition, LograftError] = {
                (each.topic_id, each.partition): decode_error(each.error)
                for each in response.outcomes
                if each.HasField("error")
            }
            answered = {(each.topic_id, each.partition) for each in response.outcomes}
            missing = error_for(ErrorCode.TIMED_OUT, "the coordinator said nothing about this partition")
            errors |= {each: missing for each in request.offsets if each not in answered}
            self._answer(request.number, errors)

    def _answer(self, number: int, errors: Mapping[Partition, LograftError]) -> None:
        self._resolve(self._commits.answered(number, errors, monotonic_ms()))

    def _resolve(self, ended: Sequence[CommitDone]) -> None:
        for done in ended:
            result = self._results.get(done.ticket)
            if result is not None and not result.done():
                result.set_result(done)
