# SPDX-License-Identifier: Apache-2.0
"""The blocking ingest: many appends become one.

Records of an attempt are staged by a producer of its own, in the calling threads as for `Producer`. The calls to the coordinator run on
the background event loop.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from lograft._client.forks import on_fork
from lograft._client.immortal import keep_for_ever
from lograft._client.runtime import STOP_TIMEOUT_S, acquire_runtime, on_exit, release_runtime
from lograft._client.usable import unusable_error
from lograft._ingests.arguments import check_attached_topics, check_ingest_topics, check_owner
from lograft._producer.partitioner import PartitionFunction
from lograft._producer.serializers import Serializer
from lograft._producer.staging import Staging
from lograft.aio.ingest import make_session
from lograft.errors import DeliveryError, LograftError, TransactionStateError
from lograft.producer import Producer
from lograft.settings import (
    CONNECTION_LIVENESS_MS,
    INGEST_COMMIT_TIMEOUT_MS,
    PRODUCER_DEFAULTS,
    REQUEST_TIMEOUT_MS,
    ClientSettings,
    ProducerSettings,
    parse_bootstrap,
)
from lograft.types import Headers, IngestDescription, IngestResult, IngestState, SealedAttempt

if TYPE_CHECKING:
    from lograft._client.background_loop import Runtime
    from lograft._ingests.session import IngestSession

T = TypeVar("T")


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

        self._new_sender = partial(Sender, self._client, self._deliveries, self._lock, self._on_progress, staging)
        on_exit(self, StagingProducer._leave)

    def discard(self) -> None:
        """End without delivering what is left: nobody will see it."""
        with self._lock:
            if self._is_closed or self._is_forked:
                return
        # The records are no loss: the attempt does not count.
        with suppress(DeliveryError):
            self.close(timeout_ms=0)

    def _leave(self, started_s: float) -> None:
        """End without a word: nobody was promised anything about records of an attempt that was not sealed."""
        del started_s
        with suppress(LograftError):
            self.discard()


class Attempt:
    """One try at one task of an ingest. `Ingest.attempt` makes it. Any number of threads may send.

        with ingest.attempt(task=3) as attempt:
            attempt.send_many("orders", rows)
        done = attempt.sealed

    Left without an error, the block seals the attempt. Left with one, it abandons it. Records are staged, not published: no reader sees
    them before the commit of the ingest, and then in the order of tasks, those of a task in the order of sending in each partition.

    Attributes:
        task: number of the task.
        attempt_id: name of this try.
        sealed: what `Ingest.commit` takes; None before the attempt is sealed. It can be pickled.
    """

    def __init__(
        self, ingest: Ingest, task: int, attempt_id: bytes, staging: Staging, producer: StagingProducer
    ) -> None:
        self._ingest = ingest
        self._staging = staging
        self._producer = producer
        self._is_over = False
        self.task: int = task
        self.attempt_id: bytes = attempt_id
        self.sealed: SealedAttempt | None = None

    def send(
        self,
        topic: str,
        value: Any,
        key: Any = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Headers | None = None,
    ) -> None:
        """Stage one record. It returns no delivery: the record has no offset before the ingest is published.

        Args:
            topic: one of the topics of the ingest.
            value: see `Producer.send`, as for the other arguments.
            key: key.
            partition: partition of the topic.
            timestamp_ms: create time.
            headers: headers.

        Raises:
            UsageError: the ingest does not publish to the topic, or a field is not valid.
            TransactionStateError: the attempt has ended.
            LograftError: as `Producer.send`.
        """
        self._check()
        self._producer.send(topic, value, key, partition, timestamp_ms, headers)

    def send_many(
        self,
        topic: str,
        values: Sequence[Any],
        *,
        keys: Sequence[Any] | None = None,
        partition: int | None = None,
        timestamps_ms: Sequence[int] | None = None,
    ) -> None:
        """Stage many records; see `Producer.send_many`, and `send` for errors."""
        self._check()
        self._producer.send_many(topic, values, keys=keys, partition=partition, timestamps_ms=timestamps_ms)

    def send_arrow(self, topic: str, data: Any, *, partition: int | None = None, extra_columns: str = "refuse") -> None:
        """Stage the rows of a `pyarrow.RecordBatch` or `Table`; see `Producer.send_arrow`, and `send` for errors."""
        self._check()
        self._producer.send_arrow(topic, data, partition=partition, extra_columns=extra_columns)

    def send_batch(self, topic: str, partition: int, encoded: bytearray, record_count: int) -> None:
        """Stage an encoded batch; see `Producer.send_batch`, and `send` for errors."""
        self._check()
        self._producer.send_batch(topic, partition, encoded, record_count)

    def seal(self) -> SealedAttempt:
        """Wait until everything is staged, and end the attempt. The end of a `with` block does it; again returns the same.

        Raises:
            DeliveryError: records were not staged. The attempt is over: open another one.
            IngestFencedError: the ingest has been opened again.
            IngestAbortedError: it was aborted, or nobody touched it for its time to live.
            LograftError: the coordinator did not answer within `request_timeout_ms`. The attempt is over.
        """
        if self.sealed is not None:
            return self.sealed
        self._check()
        self._is_over = True
        try:
            self._producer.flush()
            taken = self._staging.take()
            self.sealed = self._ingest.run(lambda session: session.seal(self.task, self.attempt_id, taken))
        finally:
            self._end()
        return self.sealed

    def abandon(self) -> None:
        """End the attempt. Nothing of it is ever published. Further calls do nothing."""
        self._is_over = True
        self._end()

    def _end(self) -> None:
        self._producer.discard()
        if self.sealed is None:
            # A closed ingest is not kept alive any more.
            with suppress(LograftError):
                self._ingest.attempt_ended(self.task, self.attempt_id)

    def __enter__(self) -> Attempt:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self.abandon()
        elif not self._is_over:
            self.seal()

    def _check(self) -> None:
        if self._is_over:
            raise TransactionStateError(f"the attempt at task {self.task} has ended; open another one")


class Ingest:
    """What is published as a whole, or not at all. `open` and `attach` make it. Any number of threads may use it.

        with Ingest.open("localhost:9640", "orders/2026-11-21", topics=["orders"]) as ingest:
            if ingest.state is not IngestState.COMMITTED:
                with ingest.attempt(task=0) as attempt:
                    attempt.send_many("orders", rows)
                print(ingest.commit([attempt.sealed]).records)

    The id is used up by the commit: a program that runs again with the same id finds `state` COMMITTED, and publishes nothing twice.
    The cluster remembers that for 7 days. An id that was aborted, or was left open, is opened again.

    A block that is left with an error aborts the ingest, if it was opened here. Otherwise an open ingest stays until its time is over.

    Source: docs/ingest.md.
    """

    def __init__(self, client: ClientSettings, session: IngestSession, runtime: Runtime, *, is_opener: bool) -> None:
        self._client = client
        self._session = session
        self._runtime = runtime
        self._is_opener = is_opener
        self._lock = threading.Lock()
        self._is_closed = False
        self._is_forked = False
        on_fork(self, Ingest._after_fork)
        on_exit(self, Ingest._leave)

    @classmethod
    def open(
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
        """Open an ingest, or take it over from an earlier client: that one is fenced, and its attempts count no more.

        Until it is closed, it is kept alive in the background, by a call every third of its time to live.

        Args:
            bootstrap: brokers to ask first: "host:port", several separated by commas, or a list.
            ingest_id: id of the ingest, 1 to 255 bytes in UTF-8. A job names what it publishes, so that a rerun has the same.
            topics: names of the topics that it publishes to, 1 to 100.
            ttl_ms: milliseconds without a call after which an open ingest is aborted, 10,000 to 604,800,000; 0: one hour.
            owner: 0 to 64 bytes that processes share which open the same ingest without a word between them, such as the tasks of a
                job. An open by the owner of the present epoch joins it and fences nobody; one by the owner of an earlier epoch
                fails. Empty: this open takes the ingest over.
            cluster_id: the id that the cluster must have; None accepts any cluster.
            request_timeout_ms: milliseconds that a call may take, all attempts together, 1 to 3,600,000. `commit` has its own.
            connection_liveness_ms: milliseconds without a byte from the broker after which a connection has failed, 4,000 to
                60,000.
            client_id: name of the program for operators.

        Returns:
            The ingest. If it was committed before, its `state` is COMMITTED and `result` says what was published.

        Raises:
            UnknownTopicError: a topic does not exist.
            IngestConflictError: the id belongs to transactions; or the owner has opened it with other topics.
            IngestFencedError: another owner has opened it since this one.
            UsageError: the id, the topics or a setting are not valid.
            LograftError: no coordinator answered in time, or it refused.
        """
        client = parse_bootstrap(
            bootstrap,
            cluster_id,
            connection_liveness_ms=connection_liveness_ms,
            request_timeout_ms=request_timeout_ms,
            client_id=client_id,
        )
        names, who = check_ingest_topics(topics), check_owner(owner)
        return cls._start(client, ingest_id, ttl_ms, lambda session: session.open(names, who), is_opener=True)

    @classmethod
    def attach(
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
        """Use an ingest that another process has opened, to open attempts. It is kept alive from here while one is open.

        Args:
            bootstrap: brokers to ask first.
            ingest_id: id of the ingest.
            epoch: `epoch` of the ingest where it was opened.
            topics: `topics` of the ingest where it was opened; or names, whose ids the coordinator is asked for.
            cluster_id: see `open`, as for the other arguments.
            request_timeout_ms: milliseconds that a call may take.
            connection_liveness_ms: milliseconds until a silent connection has failed.
            client_id: name of the program for operators.

        Raises:
            IngestFencedError: the ingest has been opened again. With ids, the first attempt says so.
            IngestNotFoundError: there is no such ingest.
            UsageError: the ingest does not publish to a topic, or an argument is not valid.
            LograftError: no coordinator answered in time.
        """
        client = parse_bootstrap(
            bootstrap,
            cluster_id,
            connection_liveness_ms=connection_liveness_ms,
            request_timeout_ms=request_timeout_ms,
            client_id=client_id,
        )
        names = check_attached_topics(topics)
        return cls._start(client, ingest_id, 0, lambda session: session.attach(epoch, names), is_opener=False)

    @classmethod
    def _start(
        cls,
        client: ClientSettings,
        ingest_id: object,
        ttl_ms: int,
        begin: Callable[[IngestSession], Coroutine[Any, Any, None]],
        *,
        is_opener: bool,
    ) -> Ingest:
        async def start() -> IngestSession:
            session = make_session(client, ingest_id, ttl_ms)
            try:
                await begin(session)
            except BaseException:
                await session.close()
                raise
            return session

        runtime = acquire_runtime()
        try:
            return cls(client, runtime.run(start()), runtime, is_opener=is_opener)
        except BaseException:
            release_runtime(runtime)
            raise

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

    def describe(self) -> IngestDescription:
        """Ask the coordinator how it stands, with its progress.

        Raises:
            LograftError: no coordinator answered in time.
        """
        return self.run(lambda session: session.describe())

    def attempt(
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
        """Open an attempt at a task.

        Args:
            task: number of the task, from 0. Records are published in the order of tasks.
            attempt_id: name of this try, 1 to 64 bytes, different for each try; None: a random one.
            linger_ms: see `Producer`, as for the other settings.
            batch_bytes: size at which a batch is sent.
            max_in_flight: unacknowledged batches for each partition.
            buffer_bytes: bytes of records that the attempt holds.
            codec: "none" or "zstd".
            delivery_timeout_ms: milliseconds after which an unacknowledged record, and with it the attempt, has failed.
            partitioner: how a key chooses its partition.
            key_serializer: function that returns the bytes of a key.
            value_serializer: the same for values.

        Raises:
            IngestFencedError: the ingest has been opened again.
            IngestCommittedError: it is committed.
            IngestAbortedError: it was aborted.
            InvalidSettingError: a setting is out of range.
            LograftError: no coordinator answered in time, or it refused.
        """
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
        staging = self.run(lambda session: session.open_attempt(task, name))
        producer = StagingProducer(
            self._client, settings, staging, key_serializer=key_serializer, value_serializer=value_serializer
        )
        return Attempt(self, task, name, staging, producer)

    def commit(self, sealed: Iterable[SealedAttempt], *, timeout_ms: int = INGEST_COMMIT_TIMEOUT_MS) -> IngestResult:
        """Publish attempts, one for each task, and wait until every record can be read. The same call again has the same result.

        Args:
            sealed: the attempts that count; none: nothing is published, and the id is used up all the same.
            timeout_ms: milliseconds to wait.

        Raises:
            IngestIncompleteError: an attempt is not sealed, or not all of its records are there. Nothing is published.
            IngestConflictError: the ingest was committed with other attempts.
            IngestFencedError: the ingest has been opened again. Nothing of this client is published.
            IngestAbortedError: it was aborted.
            RequestTimeoutError: no answer in time. It may be decided and still being published: call again.
            LograftError: the coordinator refused, or could not be reached in time.
        """
        wanted = list(sealed)
        return self.run(lambda session: session.commit(wanted, timeout_ms=timeout_ms))

    def abort(self) -> None:
        """End it without publishing anything. The id may be opened again.

        Raises:
            IngestCommittedError: it is committed.
            IngestFencedError: it has been opened again.
            LograftError: no coordinator answered in time.
        """
        self.run(lambda session: session.abort())

    def close(self) -> None:
        """Stop keeping it alive, and close the connections. It stays as it is until its time is over. Further calls do nothing."""
        with self._lock:
            if self._is_closed or self._is_forked:
                return
            self._is_closed = True
        try:
            self._runtime.run(self._session.close())
        finally:
            release_runtime(self._runtime)

    def run(self, call: Callable[[IngestSession], Coroutine[Any, Any, T]]) -> T:
        """Make a call to the coordinator and wait for it. Attempts use it; programs have the other methods.

        Raises:
            ClientClosedError: the ingest is closed.
            LograftError: the call failed.
        """
        with self._lock:
            if self._is_closed or self._is_forked:
                raise unusable_error("ingest", is_forked=self._is_forked)
        return self._runtime.run(call(self._session))

    def attempt_ended(self, task: int, attempt_id: bytes) -> None:
        """Note that an attempt stages nothing more. Attempts use it.

        Raises:
            ClientClosedError: the ingest is closed.
        """

        async def note(session: IngestSession) -> None:
            session.attempt_ended(task, attempt_id)

        self.run(note)

    def _leave(self, started_s: float) -> None:
        """Close the connections at the end of the process."""
        del started_s
        if not self._is_closed and not self._is_forked:
            with suppress(TimeoutError):
                self._runtime.run(self._session.close(), timeout_s=STOP_TIMEOUT_S)

    def __enter__(self) -> Ingest:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None and self._is_opener and self.state is IngestState.OPEN:
            with suppress(LograftError):
                self.abort()
        self.close()

    def _after_fork(self) -> None:
        """Make every later call raise `ForkedClientError`. Runs in the forked child."""
        self._lock = threading.Lock()
        self._is_forked = True
        keep_for_ever((self._session, self._runtime))
