# SPDX-License-Identifier: Apache-2.0
"""A repeated ingest that a producer uses for one transaction after the other. Belongs to one event loop.

Theory of operation. The ingest is opened at the first send, with the topics that are known by then, and stays open between
transactions. Each transaction is a round with one attempt at task 0. The coordinator continues a sealed attempt under the same producer
id, so the engine that stages lives on as well; after an abort both are new. A topic that the ingest does not have yet needs another
open. That ends the attempt, so it is possible only while the transaction has sent nothing, or can send it again (`kept`).

A commit that gets no answer is settled by another open: it fences everything that may be under way, and says which round was committed
last. The transaction is then committed or it never will be.

Law: after `fenced`, nothing is opened again. A program that was replaced must not take over silently, so every open but the first one
looks at the epoch before. Two programs that open in the same moment fence each other; one of them stays.
Source: docs/ingest.md, KIP-98 for what a transaction is.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from typing import Final, ParamSpec, TypeVar

from lograft._groups.offsets import OffsetsForDecision
from lograft._ingests.arguments import check_ingest_topics
from lograft._ingests.session import IngestSession
from lograft._producer.staging import Staging
from lograft.errors import (
    IngestAbortedError,
    IngestCommittedError,
    IngestFencedError,
    IngestNotFoundError,
    LograftError,
    OutcomeUnknownError,
    RetriableError,
    TransactionTopicsError,
)
from lograft.settings import ClientSettings
from lograft.types import IngestKind, IngestResult, SealedAttempt

logger = logging.getLogger(__name__)

TASK: Final = 0
"""The only task of a transaction."""

P = ParamSpec("P")
T = TypeVar("T")


class RepeatedIngest:
    """The transactions of one id in one producer, one at a time.

    Attributes:
        fenced: set when another client has opened the id: nothing works any more.
    """

    def __init__(
        self,
        client: ClientSettings,
        ingest_id: str,
        *,
        ttl_ms: int,
        commit_timeout_ms: int,
        make_session: Callable[..., IngestSession] = IngestSession,
    ) -> None:
        """Start without connecting.

        Args:
            client: where the cluster is.
            ingest_id: the id.
            ttl_ms: milliseconds without a call after which a transaction is aborted; 0: one hour.
            commit_timeout_ms: milliseconds for a commit.
            make_session: makes the session.
        """
        self.fenced: LograftError | None = None
        self._ingest_id = ingest_id
        self._session = make_session(client, ingest_id, IngestKind.REPEATED, ttl_ms=ttl_ms)
        self._commit_timeout_ms = commit_timeout_ms
        self._topics: tuple[str, ...] = ()
        # The topics of the last open that succeeded.
        self._opened: tuple[str, ...] = ()
        # True while the epoch may be used: the ingest is open, and nothing has ended it as far as is known.
        self._is_open = False
        self._attempt_id = b""
        # True once the attempt is open in this round.
        self._is_attempting = False
        # True once this transaction may have sent something.
        self._is_used = False
        self._staging: Staging | None = None

    @property
    def topics(self) -> tuple[str, ...]:
        """Topics that the ingest is opened with."""
        return self._topics

    def know(self, topics: Iterable[str]) -> None:
        """Note topics to open the ingest with.

        Raises:
            UsageError: there are too many, or one is no name.
        """
        new = tuple(each for each in topics if each not in self._topics)
        if new:
            self._topics = check_ingest_topics((*self._topics, *new))

    async def stage(self, topic: str) -> Staging:
        """Return where records of a topic are staged in this transaction. Another object than before: begin with a new engine.

        Raises:
            TransactionTopicsError: the transaction has sent records, and the ingest has not got this topic.
            IngestFencedError: another client has opened the id.
            LograftError: the topic does not exist, or the coordinator did not answer.
        """
        if topic not in self._session.topic_ids or not self._is_open:
            if self._is_used:
                self.know((topic,))
                raise TransactionTopicsError(
                    f"transaction {self._ingest_id!r} has sent much, and was opened without topic {topic!r}: abort it and "
                    "begin again, or name all topics at its begin (topics=)"
                )
            self.know((topic,))
            try:
                await self._open()
            except LograftError:
                # A topic may not exist. The next transaction must not fail because of that.
                self._topics = self._opened
                raise
            self._opened = self._topics
        if not self._is_attempting or self._staging is None:
            staging = await self._guarded(self._session.open_attempt, TASK, self._attempt_id)
            self._is_attempting = True
            if self._staging is None or self._staging.producer_id != staging.producer_id:
                self._staging = staging
        self._is_used = True
        return self._staging

    def drop_sent(self) -> None:
        """Give up what the transaction has staged, so that a further topic can be added. Its caller sends it again."""
        self._is_used = False

    async def commit(self, offsets: OffsetsForDecision | None) -> IngestResult | None:
        """Seal what is staged, and commit it with offsets of a group. None: there is nothing to commit.

        Raises:
            IngestFencedError: another client has opened the id. Nothing is published.
            OutcomeUnknownError: no coordinator said in time whether it is committed.
            LograftError: it is not committed, and will not be: abort.
        """
        self._is_used = False
        ranges = self._staging.take() if self._is_attempting and self._staging is not None else {}
        if not ranges and offsets is None:
            return None
        if not self._is_open:
            await self._open()
        round_number = self._session.round
        sealed: list[SealedAttempt] = []
        if ranges:
            sealed.append(await self._guarded(self._session.seal, TASK, self._attempt_id, ranges))
        try:
            result = await self._guarded(
                self._session.commit, sealed, timeout_ms=self._commit_timeout_ms, offsets=offsets
            )
        except RetriableError as error:
            result = await self._settle(round_number, sealed, offsets, error)
        self._is_attempting = False
        return result

    async def abort(self) -> None:
        """End the transaction without publishing anything. What fails is logged: the next open fences what is left."""
        is_needed, self._is_used = self._is_attempting and self._is_open, False
        self._is_attempting, self._staging = False, None
        if not is_needed or self.fenced is not None:
            return
        self._is_open = False
        try:
            await self._guarded(self._session.abort)
        except LograftError as error:
            logger.warning("transaction %s was not aborted: %s", self._ingest_id, error)

    async def close(self) -> None:
        """Close the connections. An open transaction is aborted."""
        await self.abort()
        await self._session.close()

    # -- inside

    async def _open(self) -> None:
        self._is_open = self._is_attempting = False
        self._staging = None
        self._attempt_id = uuid.uuid4().bytes
        if self._session.epoch:
            with suppress(IngestNotFoundError):
                epoch = (await self._guarded(self._session.describe)).epoch
                if epoch != self._session.epoch:
                    self.fenced = IngestFencedError(
                        f"another program has opened transaction id {self._ingest_id!r} (epoch {epoch}, this one has "
                        f"{self._session.epoch}): end this producer"
                    )
                    raise self.fenced
        await self._guarded(self._session.open, self._topics)
        self._is_open = True

    async def _settle(
        self,
        round_number: int,
        sealed: Sequence[SealedAttempt],
        offsets: OffsetsForDecision | None,
        error: RetriableError,
    ) -> IngestResult:
        """Find out whether a round was committed whose commit got no answer. If not, it never will be after this."""
        try:
            await self._open()
        except IngestFencedError:
            # The round was decided before that, or never will be: the same commit again is answered with the one or the other.
            return await self._session.commit(sealed, timeout_ms=self._commit_timeout_ms, offsets=offsets)
        except RetriableError as cause:
            raise OutcomeUnknownError(
                f"it is unknown whether transaction {self._ingest_id!r} was committed ({error.message}): {cause.message}"
            ) from error
        last = self._session.result
        if last is None or last.round != round_number:
            raise error
        return last

    async def _guarded(self, call: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        """Make a call, and note what its failure says about the ingest.

        Raises:
            LograftError: the failure; that of the fencing again and again.
        """
        if self.fenced is not None:
            raise self.fenced
        try:
            return await call(*args, **kwargs)
        except IngestFencedError as error:
            self._is_open = False
            self.fenced = error
            raise
        except (IngestAbortedError, IngestNotFoundError, IngestCommittedError):
            self._is_open = False
            raise
