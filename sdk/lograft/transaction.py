# SPDX-License-Identifier: Apache-2.0
"""Transactions of the blocking producer: records of several topics, and offsets of a group, become one.

It owns which transaction of an id is open, and the producer that stages for it. `_ingests.repeated` knows the rounds.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import TYPE_CHECKING, Any

from lograft._client.immortal import keep_for_ever
from lograft._client.runtime import acquire_runtime, release_runtime
from lograft._ingests.arguments import check_ingest_id, check_ingest_topics, check_ttl
from lograft._ingests.kept import KeptCalls, frozen, size_of
from lograft._producer.serializers import Serializers
from lograft._producer.staging import Staging
from lograft.errors import LograftError, TransactionStateError, TransactionTopicsError, UsageError
from lograft.ingest import StagingProducer
from lograft.settings import MAX_TRANSACTION_IDS, ClientSettings, ProducerSettings
from lograft.types import Acks, Headers, IngestResult, OffsetAndMetadata, TopicPartition

if TYPE_CHECKING:
    from lograft._client.background_loop import Runtime
    from lograft._consumer.collector import OffsetsToCommit
    from lograft._groups.offsets import OffsetsForDecision
    from lograft._ingests.repeated import RepeatedIngest
    from lograft.consumer import Consumer


_Call = Callable[[StagingProducer], object]


@dataclass(slots=True)
class _Slot:
    """What one id has in a producer.

    Attributes:
        ingest: its rounds.
        lock: held while records are sent that may have to be sent again, and while it is found out where a topic is staged.
        staging: where the last transaction staged; None: nowhere yet.
        producer: stages there.
        current: the open transaction; None: there is none.
    """

    ingest: RepeatedIngest
    lock: threading.Lock = field(default_factory=threading.Lock)
    staging: Staging | None = None
    producer: StagingProducer | None = None
    current: Transaction | None = None


class Transactions:
    """The transaction ids of one producer."""

    def __init__(self, client: ClientSettings, settings: ProducerSettings, serializers: Serializers | None) -> None:
        """Start without connecting.

        Args:
            client: where the cluster is.
            settings: settings of the producer.
            serializers: its serializers.
        """
        self.client: ClientSettings = client
        self.settings: ProducerSettings = replace(settings, acks=Acks.ALL, idempotent=True)
        self.serializers: Serializers | None = serializers
        self.runtime: Runtime = acquire_runtime()
        self._lock = threading.Lock()
        self._slots: dict[str, _Slot] = {}

    def begin(self, transaction_id: object, topics: Iterable[str], ttl_ms: int) -> Transaction:
        """Return a transaction that has not begun. Raises as `Producer.transaction`."""
        name = check_ingest_id(transaction_id)
        names = check_ingest_topics(topics) if topics else ()
        check_ttl(ttl_ms)
        with self._lock:
            slot = self._slots.get(name)
            if slot is None:
                if len(self._slots) >= MAX_TRANSACTION_IDS:
                    raise UsageError(f"a producer takes at most {MAX_TRANSACTION_IDS} transaction ids: use another one")
                slot = self._slots[name] = _Slot(self.runtime.run(_make(self.client, name, ttl_ms, self.settings)))
        if slot.ingest.fenced is not None:
            raise slot.ingest.fenced
        return Transaction(self, name, slot, names)

    def close(self) -> None:
        """Abort what is open, and close the connections."""
        with self._lock:
            slots, self._slots = list(self._slots.values()), {}
        try:
            for slot in slots:
                if slot.producer is not None:
                    slot.producer.discard()
                self.runtime.run(slot.ingest.close())
        finally:
            release_runtime(self.runtime)

    def after_fork(self) -> None:
        """Leave everything to the parent. Runs in the forked child."""
        keep_for_ever((self.runtime, dict(self._slots)))
        self._slots.clear()


async def _make(client: ClientSettings, name: str, ttl_ms: int, settings: ProducerSettings) -> RepeatedIngest:
    from lograft._ingests.repeated import RepeatedIngest

    return RepeatedIngest(client, name, ttl_ms=ttl_ms, commit_timeout_ms=settings.delivery_timeout_ms)


class Transaction:
    """Records that are published as a whole, or not at all. `Producer.transaction` makes it. Any number of threads may send.

        with producer.transaction("orders-app-1") as transaction:
            transaction.send("orders", b"value", key=b"key")
            transaction.send_offsets(consumer)

    Left without an error, the block commits: when it has ended, every record can be read. Left with one, it aborts, and nothing is ever
    published. No reader sees a record before.

    Attributes:
        transaction_id: id of the application.
        result: what was published; None before, and if there was nothing to publish.
    """

    def __init__(self, owner: Transactions, transaction_id: str, slot: _Slot, topics: Sequence[str]) -> None:
        self._owner = owner
        self._slot = slot
        self._named = topics
        self._producers: dict[str, StagingProducer] = {}
        self._kept: KeptCalls[_Call] = KeptCalls()
        # Why records that were sent before are lost; None: they are not.
        self._broken: LograftError | None = None
        self._consumer: Consumer | None = None
        self._wanted: Mapping[TopicPartition, OffsetAndMetadata] = {}
        self._offsets: OffsetsForDecision | None = None
        self.transaction_id: str = transaction_id
        self.result: IngestResult | None = None

    def send(
        self,
        topic: str,
        value: Any,
        key: Any = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Headers | None = None,
    ) -> None:
        """Send one record. It returns no delivery: the record has no offset before the commit.

        Args:
            topic: topic name. The first record of a topic opens the transaction for it.
            value: see `Producer.send`, as for the other arguments.
            key: key.
            partition: partition.
            timestamp_ms: create time.
            headers: headers.

        Raises:
            TransactionTopicsError: the id has not used the topic, and this transaction has sent more than 1,000 records or 1 MiB.
            TransactionStateError: the transaction has not begun, or has ended.
            IngestFencedError: another program has opened the id. Nothing of this transaction will be published.
            UnknownTopicError: the topic does not exist.
            LograftError: as `Producer.send`; no coordinator answered in time, or it refused.
        """
        if self._owner.serializers is not None:
            value, key = self._owner.serializers.one(topic, value, key)
        if not self._kept.is_complete:
            producer = self._producers.get(topic) or self._stage(topic)
            producer.send(topic, value, key, partition, timestamp_ms, headers)
            return
        value, key = frozen(value), frozen(key)
        self._send_kept(
            topic,
            lambda producer: producer.send(topic, value, key, partition, timestamp_ms, headers),
            records=1,
            size_bytes=size_of((value, key)),
        )

    def send_many(
        self,
        topic: str,
        values: Sequence[Any],
        *,
        keys: Sequence[Any] | None = None,
        partition: int | None = None,
        timestamps_ms: Sequence[int] | None = None,
    ) -> None:
        """Send many records; see `Producer.send_many`, and `send` for errors."""
        if self._owner.serializers is not None:
            values, keys = self._owner.serializers.many(topic, values, keys)
        given = list(map(frozen, values))
        given_keys = None if keys is None else list(map(frozen, keys))
        times = None if timestamps_ms is None else list(timestamps_ms)
        self._send_kept(
            topic,
            lambda producer: producer.send_many(
                topic, given, keys=given_keys, partition=partition, timestamps_ms=times
            ),
            records=len(given),
            size_bytes=size_of(given) + size_of(given_keys or ()),
        )

    def send_arrow(self, topic: str, data: Any, *, partition: int | None = None, extra_columns: str = "refuse") -> None:
        """Send the rows of a `pyarrow.RecordBatch` or `Table`; see `Producer.send_arrow`, and `send` for errors."""
        self._send_kept(
            topic,
            lambda producer: producer.send_arrow(topic, data, partition=partition, extra_columns=extra_columns),
            records=data.num_rows,
            size_bytes=data.nbytes,
        )

    def send_offsets(self, consumer: Consumer, offsets: OffsetsToCommit | None = None) -> None:
        """Commit offsets of the consumer's group with the transaction: they count if and only if the records do.

        A later call replaces what an earlier one has taken. After an abort the consumer is where it was: seek to its committed offsets
        to read the same records again.

        Args:
            consumer: a consumer with a group and `auto_commit=False`.
            offsets: see `Consumer.commit`; None: the positions of now, that is, everything that was handed out.

        Raises:
            UsageError: the consumer has no group, commits by itself, has a commit under way, or is not the one of an earlier call.
            TransactionStateError: the transaction has not begun, or has ended.
        """
        self._check()
        if self._consumer not in (None, consumer):
            raise UsageError("a transaction takes the offsets of one consumer")
        self._wanted, self._offsets = consumer._for_decision(offsets)  # pyright: ignore[reportPrivateUsage]
        self._consumer = consumer

    def __enter__(self) -> Transaction:
        slot = self._slot
        with slot.lock:
            if slot.current is not None or self.result is not None:
                raise TransactionStateError(
                    f"a transaction of id {self.transaction_id!r} is open, or this one has ended: one at a time for each id"
                )
            slot.current = self
            slot.ingest.know(self._named)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._slot.current is not self:
            return
        try:
            if error is None:
                self._commit()
            else:
                self._abort()
        finally:
            self._producers = {}
            self._slot.current = None

    # -- inside

    def _check(self) -> None:
        if self._slot.current is not self:
            raise TransactionStateError(f"transaction {self.transaction_id!r} is used outside of its block")
        if self._broken is not None:
            raise self._broken

    def _send_kept(self, topic: str, call: _Call, *, records: int, size_bytes: int) -> None:
        """Send, and keep the call as long as everything before it was kept."""
        if not self._kept.is_complete:
            call(self._producers.get(topic) or self._stage(topic))
            return
        with self._slot.lock:
            call(self._producers.get(topic) or self._stage_locked(topic))
            self._kept.add(call, records, size_bytes)

    def _stage(self, topic: str) -> StagingProducer:
        """Return the producer that stages records of a topic, from now on without asking."""
        with self._slot.lock:
            return self._stage_locked(topic)

    def _stage_locked(self, topic: str) -> StagingProducer:
        self._check()
        if type(topic) is not str or not topic:
            raise UsageError(f"topic is a name, not {topic!r}")
        slot, owner = self._slot, self._owner
        try:
            staging = owner.runtime.run(slot.ingest.stage(topic))
        except TransactionTopicsError:
            if not self._kept.is_complete:
                raise
            slot.ingest.drop_sent()
            try:
                staging = owner.runtime.run(slot.ingest.stage(topic))
                producer = self._producer_of(staging)
                for call in self._kept.calls:
                    call(producer)
            except LograftError as error:
                self._broken = error
                raise
            self._producers = dict.fromkeys(self._producers, producer)
        self._producers[topic] = self._producer_of(staging)
        return self._producers[topic]

    def _producer_of(self, staging: Staging) -> StagingProducer:
        """Return the producer that stages there: that of the last transaction, or a new one."""
        slot, owner = self._slot, self._owner
        producer = slot.producer
        if producer is None or slot.staging is not staging:
            if producer is not None:
                producer.discard()
            # The values and keys that it gets are bytes already.
            producer = StagingProducer(
                owner.client, owner.settings, staging, key_serializer=None, value_serializer=None
            )
            slot.staging, slot.producer = staging, producer
        return producer

    def _commit(self) -> None:
        slot, run = self._slot, self._owner.runtime.run
        try:
            if self._broken is not None:
                raise self._broken
            for producer in set(self._producers.values()):
                producer.flush()
            if self._consumer is not None and not slot.ingest.topics:
                # It never sent anything: an ordinary commit says the same.
                self._consumer.commit(self._wanted)
            else:
                self.result = run(slot.ingest.commit(self._offsets))
        except BaseException:
            self._abort()
            raise

    def _abort(self) -> None:
        slot = self._slot
        if self._producers and slot.producer is not None:
            producer, slot.producer, slot.staging = slot.producer, None, None
            producer.discard()
        self._owner.runtime.run(slot.ingest.abort())
