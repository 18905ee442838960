# SPDX-License-Identifier: Apache-2.0
"""The asyncio ingest: many appends become one. `lograft.ingest` explains what an ingest is."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any

from lograft._client.forks import loading, on_fork
from lograft._client.immortal import keep_for_ever
from lograft._client.usable import unusable_error
from lograft._ingests.arguments import (
    check_attached_topics,
    check_ingest_id,
    check_ingest_topics,
    check_owner,
    check_ttl,
)
from lograft._producer.partitioner import PartitionFunction
from lograft._producer.serializers import Serializer
from lograft._producer.staging import Staging
from lograft.aio.producer import Producer
from lograft.errors import DeliveryError, LograftError, TransactionStateError
from lograft.settings import (
    CONNECTION_LIVENESS_MS,
    INGEST_COMMIT_TIMEOUT_MS,
    PRODUCER_DEFAULTS,
    REQUEST_TIMEOUT_MS,
    ClientSettings,
    ProducerSettings,
    parse_bootstrap,
)
from lograft.types import Headers, IngestDescription, IngestKind, IngestResult, IngestState, SealedAttempt

if TYPE_CHECKING:
    from lograft._ingests.session import IngestSession


class StagingProducer(Producer):
    """A producer of an attempt. Programs use `Attempt` or a transaction."""

    def __init__(
        self,
        client: ClientSettings,
        settings: ProducerSettings,
        staging: Staging,
        *,
        key_serializer: Serializer | None,
        value_serializer: Serializer | None,
    ) -> None:
        super().__init__(
            client.addresses,
            cluster_id=client.cluster_id,
            connection_liveness_ms=client.connection_liveness_ms,
            client_id=client.client_id,
            linger_ms=settings.linger_ms,
            batch_bytes=settings.batch_bytes,
            max_in_flight=settings.max_in_flight,
            buffer_bytes=settings.buffer_bytes,
            codec=settings.codec,
            delivery_timeout_ms=settings.delivery_timeout_ms,
            partitioner=settings.partitioner,
            key_serializer=key_serializer,
            value_serializer=value_serializer,
        )
        from lograft._producer.sender import Sender

        self._new_sender = partial(Sender, self._client, self._deliveries, None, self._on_progress, staging)

    async def discard(self) -> None:
        """End without delivering what is left: nobody will see it."""
        # The records are no loss: the attempt does not count.
        with suppress(DeliveryError):
            await self.close(timeout_ms=0)

    def _leave(self, started_s: float) -> None:
        """Say nothing about records of an attempt that was not sealed: nobody was promised anything."""
        del started_s
        self._is_closed = True
        for call in self._deliveries.end(unusable_error("producer", is_forked=self._is_forked)):
            call()


class Attempt:
    """One try at one task of an ingest; see `lograft.Attempt`. `Ingest.attempt` makes it."""

    def __init__(
        self, session: IngestSession, task: int, attempt_id: bytes, staging: Staging, producer: StagingProducer
    ) -> None:
        self._session = session
        self._staging = staging
        self._producer = producer
        self._is_over = False
        self.task: int = task
        self.attempt_id: bytes = attempt_id
        self.sealed: SealedAttempt | None = None

    async def send(
        self,
        topic: str,
        value: Any,
        key: Any = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Headers | None = None,
    ) -> None:
        """Stage one record; see `lograft.Attempt.send`."""
        self._check()
        await self._producer.send(topic, value, key, partition, timestamp_ms, headers)

    async def send_many(
        self,
        topic: str,
        values: Sequence[Any],
        *,
        keys: Sequence[Any] | None = None,
        partition: int | None = None,
        timestamps_ms: Sequence[int] | None = None,
    ) -> None:
        """Stage many records; see `lograft.Producer.send_many`."""
        self._check()
        await self._producer.send_many(topic, values, keys=keys, partition=partition, timestamps_ms=timestamps_ms)

    async def send_arrow(
        self, topic: str, data: Any, *, partition: int | None = None, extra_columns: str = "refuse"
    ) -> None:
        """Stage the rows of a `pyarrow.RecordBatch` or `Table`; see `lograft.Producer.send_arrow`."""
        self._check()
        await self._producer.send_arrow(topic, data, partition=partition, extra_columns=extra_columns)

    async def send_batch(self, topic: str, partition: int, encoded: bytearray, record_count: int) -> None:
        """Stage an encoded batch; see `lograft.Producer.send_batch`."""
        self._check()
        await self._producer.send_batch(topic, partition, encoded, record_count)

    async def seal(self) -> SealedAttempt:
        """Wait until everything is staged, and end the attempt; see `lograft.Attempt.seal`."""
        if self.sealed is not None:
            return self.sealed
        self._check()
        self._is_over = True
        try:
            await self._producer.flush()
            self.sealed = await self._session.seal(self.task, self.attempt_id, self._staging.take())
        finally:
            await self._end()
        return self.sealed

    async def abandon(self) -> None:
        """End the attempt. Nothing of it is ever published. Further calls do nothing."""
        self._is_over = True
        await self._end()

    async def _end(self) -> None:
        self._session.attempt_ended(self.task, self.attempt_id)
        await self._producer.discard()

    async def __aenter__(self) -> Attempt:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            await self.abandon()
        elif not self._is_over:
            await self.seal()

    def _check(self) -> None:
        if self._is_over:
            raise TransactionStateError(f"the attempt at task {self.task} has ended; open another one")


class Ingest:
    """What is published as a whole, or not at all; see `lograft.Ingest`. It belongs to one event loop. `open` and `attach` make it."""

    def __init__(self, client: ClientSettings, session: IngestSession, *, is_opener: bool) -> None:
        self._client = client
        self._session = session
        self._is_opener = is_opener
        self._is_closed = False
        self._is_forked = False
        on_fork(self, Ingest._after_fork)

    @classmethod
    async def open(
        cls,
        bootstrap: str | Sequence[str],
        ingest_id: str,
        *,
        topics: Iterable[str],
        ttl_ms: int = 0,
        owner: bytes = b"",
        cluster_id: str | None = None,
        request_timeout_ms: int = REQUEST_TIMEOUT_MS,
        connection_liveness_ms: int = CONNECTION_LIVENESS_MS,
        client_id: str | None = None,
    ) -> Ingest:
        """Open an ingest, or take it over; see `lograft.Ingest.open`."""
        client = parse_bootstrap(
            bootstrap,
            cluster_id,
            connection_liveness_ms=connection_liveness_ms,
            request_timeout_ms=request_timeout_ms,
            client_id=client_id,
        )
        names, who = check_ingest_topics(topics), check_owner(owner)
        session = make_session(client, ingest_id, ttl_ms)
        try:
            await session.open(names, who)
        except BaseException:
            await session.close()
            raise
        return cls(client, session, is_opener=True)

    @classmethod
    async def attach(
        cls,
        bootstrap: str | Sequence[str],
        ingest_id: str,
        *,
        epoch: int,
        topics: Iterable[str] | Mapping[str, bytes],
        cluster_id: str | None = None,
        request_timeout_ms: int = REQUEST_TIMEOUT_MS,
        connection_liveness_ms: int = CONNECTION_LIVENESS_MS,
        client_id: str | None = None,
    ) -> Ingest:
        """Use an ingest that another process has opened; see `lograft.Ingest.attach`."""
        client = parse_bootstrap(
            bootstrap,
            cluster_id,
            connection_liveness_ms=connection_liveness_ms,
            request_timeout_ms=request_timeout_ms,
            client_id=client_id,
        )
        names = check_attached_topics(topics)
        session = make_session(client, ingest_id, 0)
        try:
            await session.attach(epoch, names)
        except BaseException:
            await session.close()
            raise
        return cls(client, session, is_opener=False)

    @property
    def ingest_id(self) -> str:
        """Its id."""
        return self._session.ingest_id

    @property
    def epoch(self) -> int:
        """Epoch of the open, for `attach`. A later open has another one and fences this one."""
        return self._session.epoch

    @property
    def topics(self) -> dict[str, bytes]:
        """Ids of its topics (16 bytes), by name, for `attach`."""
        return dict(self._session.topic_ids)

    @property
    def state(self) -> IngestState:
        """Where it stood when the coordinator last said so. `describe` asks."""
        return self._session.state

    @property
    def result(self) -> IngestResult | None:
        """What was committed; None before."""
        return self._session.result

    async def describe(self) -> IngestDescription:
        """Ask the coordinator how it stands; see `lograft.Ingest.describe`."""
        self._check_usable()
        return await self._session.describe()

    async def attempt(
        self,
        task: int,
        *,
        attempt_id: bytes | None = None,
        linger_ms: int = PRODUCER_DEFAULTS.linger_ms,
        batch_bytes: int = PRODUCER_DEFAULTS.batch_bytes,
        max_in_flight: int = PRODUCER_DEFAULTS.max_in_flight,
        buffer_bytes: int = PRODUCER_DEFAULTS.buffer_bytes,
        codec: str = PRODUCER_DEFAULTS.codec,
        delivery_timeout_ms: int = PRODUCER_DEFAULTS.delivery_timeout_ms,
        partitioner: str | PartitionFunction = PRODUCER_DEFAULTS.partitioner,
        key_serializer: Serializer | None = None,
        value_serializer: Serializer | None = None,
    ) -> Attempt:
        """Open an attempt at a task; see `lograft.Ingest.attempt`."""
        self._check_usable()
        settings = ProducerSettings(
            linger_ms=linger_ms,
            batch_bytes=batch_bytes,
            max_in_flight=max_in_flight,
            buffer_bytes=buffer_bytes,
            codec=codec,
            delivery_timeout_ms=delivery_timeout_ms,
            partitioner=partitioner,
        )
        name = uuid.uuid4().bytes if attempt_id is None else attempt_id
        staging = await self._session.open_attempt(task, name)
        producer = StagingProducer(
            self._client, settings, staging, key_serializer=key_serializer, value_serializer=value_serializer
        )
        return Attempt(self._session, task, name, staging, producer)

    async def commit(
        self, sealed: Iterable[SealedAttempt], *, timeout_ms: int = INGEST_COMMIT_TIMEOUT_MS
    ) -> IngestResult:
        """Publish attempts, one for each task; see `lograft.Ingest.commit`."""
        self._check_usable()
        return await self._session.commit(list(sealed), timeout_ms=timeout_ms)

    async def abort(self) -> None:
        """End it without publishing anything; see `lograft.Ingest.abort`."""
        self._check_usable()
        await self._session.abort()

    async def close(self) -> None:
        """Stop keeping it alive, and close the connections. It stays as it is until its time is over. Further calls do nothing."""
        if self._is_closed or self._is_forked:
            return
        self._is_closed = True
        await self._session.close()

    async def __aenter__(self) -> Ingest:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None and self._is_opener and self.state is IngestState.OPEN:
            with suppress(LograftError):
                await self.abort()
        await self.close()

    def _check_usable(self) -> None:
        if self._is_closed or self._is_forked:
            raise unusable_error("ingest", is_forked=self._is_forked)

    def _after_fork(self) -> None:
        """Make every later call raise `ForkedClientError`. Runs in the forked child."""
        self._is_forked = True
        keep_for_ever(self._session)


def make_session(client: ClientSettings, ingest_id: object, ttl_ms: int) -> IngestSession:
    """Return the session of a single ingest, on the running loop.

    Raises:
        UsageError: the id is not 1 to 255 bytes of text.
        InvalidSettingError: the time to live is out of range.
    """
    name = check_ingest_id(ingest_id)
    check_ttl(ttl_ms)
    with loading():
        # gRPC comes with it, so that a program that only imports the class does not wait for it.
        from lograft._ingests.session import IngestSession
    return IngestSession(client, name, IngestKind.SINGLE, ttl_ms=ttl_ms)
