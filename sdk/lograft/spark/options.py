# SPDX-License-Identifier: Apache-2.0
"""The options of `format("lograft")`, with the names of Spark's Kafka connector, parsed once into typed settings.

This module owns which options exist, what each one means, and which ones contradict each other. Pure: it takes a mapping of
strings and returns frozen settings, or raises an `OptionError` that names the option. It must not import PySpark, pyarrow or a
client.

Law: no option is silently dropped. An option is used, or it changes no record, or it is an error. `ReadOptions.ignored` and
`WriteOptions.ignored` list those that change no record, and the reader and the writer log them. So a misspelt `endingOffsets`
does not read everything, and `kafka.security.protocol=SASL_SSL` does not end in plaintext.

Names are case-insensitive, as in Spark. Every `kafka.` option also works without that prefix.

Source: Spark, "Structured Streaming + Kafka Integration Guide", tables of source and sink options.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from typing import Final, TypeVar

from lograft.errors import InvalidSettingError
from lograft.settings import (
    DEFAULT_BATCH_BYTES,
    MAX_BATCH_BYTES,
    MAX_IN_FLIGHT_BATCHES,
    MAX_RACK_CHARACTERS,
    parse_bootstrap,
)
from lograft.spark.settings import (
    COLUMNS,
    DEFAULT_BUFFER_BYTES,
    DEFAULT_CHUNK_BYTES,
    DEFAULT_CREDIT_BYTES,
    DEFAULT_DELIVERY_TIMEOUT_MS,
    DEFAULT_INGEST_TTL_MS,
    DEFAULT_LINGER_MS,
    DEFAULT_MAX_IN_FLIGHT,
    DEFAULT_POLL_TIMEOUT_MS,
    DEFAULT_STREAM_INGEST_TTL_MS,
    DEFAULT_TRIGGER_DELAY_MS,
    HEADERS_COLUMN,
    MAX_CHUNK_BYTES,
    MAX_CREDIT_BYTES,
    MAX_INGEST_ID_BYTES,
    MAX_INGEST_TOPICS,
    MAX_INGEST_TTL_MS,
    MAX_READ_TASKS,
    MAX_TIMEOUT_MS,
    MIN_BATCH_BYTES,
    MIN_FETCH_BYTES,
    MIN_INGEST_TTL_MS,
    Assign,
    AtOffsets,
    AtPosition,
    AtTimestamp,
    AtTimestamps,
    Bound,
    Connection,
    Guarantee,
    ReadOptions,
    Selection,
    StreamReadOptions,
    Subscribe,
    SubscribePattern,
    WriteOptions,
)
from lograft.spark.values import (
    MAX_OFFSET,
    OptionError,
    parse_assignment,
    parse_boolean,
    parse_choice,
    parse_duration_ms,
    parse_integer,
    parse_names,
    parse_offsets,
    parse_pattern,
    parse_timestamps,
    parse_topic,
    parse_topics,
    shown,
)
from lograft.types import Position, TopicPartition

T = TypeVar("T")

BOOTSTRAP: Final = "kafka.bootstrap.servers"
_CONNECTION: Final = (BOOTSTRAP, "kafka.cluster.id")
_SOURCE: Final = (
    "subscribe",
    "subscribePattern",
    "assign",
    "startingOffsets",
    "endingOffsets",
    "startingTimestamp",
    "endingTimestamp",
    "startingOffsetsByTimestamp",
    "endingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy",
    "failOnDataLoss",
    "minPartitions",
    "maxRecordsPerPartition",
    "includeHeaders",
    "columns",
    "pushdown",
    "kafkaConsumer.pollTimeoutMs",
    "kafka.fetch.max.bytes",
    "kafka.max.partition.fetch.bytes",
    "kafka.check.crcs",
    "kafka.client.rack",
)
# Only a streaming read uses them.
_TRIGGER: Final = (
    "maxOffsetsPerTrigger",
    "maxBytesPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
)
_SINK: Final = (
    "topic",
    "delivery.guarantee",
    "ingest.id",
    "ingest.topics",
    "ingest.ttl.ms",
    "kafka.acks",
    "kafka.enable.idempotence",
    "kafka.batch.size",
    "kafka.buffer.memory",
    "kafka.linger.ms",
    "kafka.delivery.timeout.ms",
    "kafka.compression.type",
    "kafka.max.in.flight.requests.per.connection",
)
# These options control Kafka's client. No record of a job depends on them.
_WITHOUT_EFFECT: Final = (
    "fetchOffset.numRetries",
    "fetchOffset.retryIntervalMs",
    "groupIdPrefix",
    "kafka.client.dns.lookup",
    "kafka.client.id",
    "kafka.connections.max.idle.ms",
    "kafka.fetch.max.wait.ms",
    "kafka.fetch.min.bytes",
    "kafka.group.id",
    "kafka.heartbeat.interval.ms",
    "kafka.isolation.level",
    "kafka.max.block.ms",
    "kafka.max.poll.interval.ms",
    "kafka.max.poll.records",
    "kafka.metadata.max.age.ms",
    "kafka.receive.buffer.bytes",
    "kafka.reconnect.backoff.max.ms",
    "kafka.reconnect.backoff.ms",
    "kafka.request.timeout.ms",
    "kafka.retries",
    "kafka.retry.backoff.ms",
    "kafka.send.buffer.bytes",
    "kafka.session.timeout.ms",
)
# Spark itself uses these options of a streaming query, and hands them on to the sink.
_OF_SPARK: Final = ("checkpointLocation", "queryName")
_ENDS: Final = ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp")
_SECURITY: Final = "kafka.security.protocol"
_KNOWN: Final = (*_CONNECTION, *_SOURCE, *_TRIGGER, *_SINK, *_WITHOUT_EFFECT, *_OF_SPARK, _SECURITY)
_ALIASES: Final = {"maxRecordsPerTrigger": "maxOffsetsPerTrigger", "minRecordsPerTrigger": "minOffsetsPerTrigger"}


def _spellings() -> dict[str, str]:
    canonical: dict[str, str] = {alias.lower(): name for alias, name in _ALIASES.items()}
    for name in _KNOWN:
        canonical[name.lower()] = name
        canonical[name.removeprefix("kafka.").lower()] = name
    return canonical


_CANONICAL: Final = _spellings()


class _Given:
    """The options of the caller, by canonical name."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._values: dict[str, str] = {}
        for spelling, value in options.items():
            name = _CANONICAL.get(spelling.lower())
            if name is None:
                raise OptionError(spelling, _why_unknown(spelling))
            if self._values.setdefault(name, value) != value:
                raise OptionError(name, f"is given twice with different values, once as {spelling}")
        self._check_security()

    def _check_security(self) -> None:
        protocol = self._values.get(_SECURITY)
        if protocol is not None and protocol.strip().upper() != "PLAINTEXT":
            raise OptionError(_SECURITY, f"{shown(protocol)} is not offered yet: Lograft speaks PLAINTEXT only")

    def read(self, name: str, parse: Callable[[str, str], T]) -> T | None:
        text = self._values.get(name)
        return None if text is None else parse(name, text)

    def boolean(self, name: str, default: bool) -> bool:
        found = self.read(name, parse_boolean)
        return default if found is None else found

    def integer(self, name: str, default: int, *, minimum: int, maximum: int) -> int:
        found = self.read(name, lambda option, text: parse_integer(option, text, minimum=minimum, maximum=maximum))
        return default if found is None else found

    def choice(self, name: str, default: str, *choices: str) -> str:
        found = self.read(name, lambda option, text: parse_choice(option, text, choices))
        return default if found is None else found

    def named(self, names: tuple[str, ...]) -> list[str]:
        return [name for name in names if name in self._values]

    def connection(self) -> Connection:
        bootstrap = self.read(BOOTSTRAP, _parse_bootstrap)
        if bootstrap is None:
            raise OptionError(BOOTSTRAP, "is required: the address of a broker as host:port")
        cluster_id = self.read("kafka.cluster.id", lambda _, text: text.strip())
        return Connection(bootstrap=bootstrap, cluster_id=cluster_id or None)

    def ignored(self, *others: str) -> tuple[str, ...]:
        return tuple(sorted(self.named((*_WITHOUT_EFFECT, *others))))


def parse_read_options(options: Mapping[str, str]) -> ReadOptions:
    """Parse the options of `spark.read.format("lograft")`.

    Raises:
        OptionError: an option is unknown, malformed or missing, or contradicts another.
    """
    given = _Given(options)
    start, end = _start(given, forbidden=Position.LATEST, default=Position.EARLIEST), _end(given)
    _check_order(start, end)
    return _read_options(given, start, end, ignored=given.ignored(*_TRIGGER))


def parse_stream_read_options(options: Mapping[str, str]) -> StreamReadOptions:
    """Parse the options of `spark.readStream.format("lograft")`.

    Raises:
        OptionError: an option is unknown, malformed or missing, contradicts another, or belongs to a batch read only.
    """
    given = _Given(options)
    for option in given.named(_ENDS):
        raise OptionError(option, "a streaming query has no end; leave it out, or use spark.read")
    if given.boolean("pushdown", False):
        raise OptionError("pushdown", "Spark pushes filters down in batch queries only; leave it out")
    start = _start(given, forbidden=None, default=Position.LATEST)
    end = AtPosition(option="endingOffsets", position=Position.LATEST)
    max_records = given.read("maxOffsetsPerTrigger", _parse_records)
    min_records = given.read("minOffsetsPerTrigger", _parse_records)
    if max_records is not None and min_records is not None and min_records > max_records:
        raise OptionError("minOffsetsPerTrigger", f"{min_records} is more than maxOffsetsPerTrigger {max_records}")
    delay_ms = given.read("maxTriggerDelay", parse_duration_ms)
    if delay_ms is not None and min_records is None:
        raise OptionError("maxTriggerDelay", "needs minOffsetsPerTrigger: it says how long a trigger waits for so many")
    return StreamReadOptions(
        read=_read_options(given, start, end, ignored=given.ignored()),
        max_records=max_records,
        max_bytes=given.read("maxBytesPerTrigger", _parse_records),
        min_records=min_records,
        max_delay_ms=DEFAULT_TRIGGER_DELAY_MS if delay_ms is None else delay_ms,
    )


def parse_columns(options: Mapping[str, str]) -> tuple[str, ...]:
    """Return the columns of a read, of which it is not known yet whether it is a batch or a streaming read.

    Raises:
        OptionError: the options fit neither.
    """
    try:
        return parse_read_options(options).columns
    except OptionError as batch_error:
        try:
            return parse_stream_read_options(options).read.columns
        except OptionError as stream_error:
            # Options that only a batch read takes say which of the two it is.
            is_batch = stream_error.option in (*_ENDS, "pushdown")
            raise (batch_error if is_batch else stream_error) from None


def _read_options(given: _Given, start: Bound, end: Bound, *, ignored: tuple[str, ...]) -> ReadOptions:
    strategy = given.choice("startingOffsetsByTimestampStrategy", "error", "error", "latest")
    return ReadOptions(
        connection=given.connection(),
        selection=_selection(given),
        start=start,
        end=end,
        latest_if_no_match=strategy == "latest",
        fail_on_data_loss=given.boolean("failOnDataLoss", True),
        min_partitions=given.read("minPartitions", _parse_count),
        max_records_per_partition=given.read("maxRecordsPerPartition", _parse_records),
        columns=_columns(given),
        pushdown=given.read("pushdown", parse_boolean),
        poll_timeout_ms=given.integer(
            "kafkaConsumer.pollTimeoutMs", DEFAULT_POLL_TIMEOUT_MS, minimum=1, maximum=MAX_TIMEOUT_MS
        ),
        credit_bytes=given.integer(
            "kafka.fetch.max.bytes", DEFAULT_CREDIT_BYTES, minimum=MIN_FETCH_BYTES, maximum=MAX_CREDIT_BYTES
        ),
        chunk_bytes=given.integer(
            "kafka.max.partition.fetch.bytes", DEFAULT_CHUNK_BYTES, minimum=MIN_FETCH_BYTES, maximum=MAX_CHUNK_BYTES
        ),
        check_crcs=given.boolean("kafka.check.crcs", True),
        client_rack=given.read("kafka.client.rack", _parse_rack),
        ignored=ignored,
    )


def parse_write_options(options: Mapping[str, str]) -> WriteOptions:
    """Parse the options of `df.write.format("lograft")`.

    Raises:
        OptionError: an option is unknown, malformed or missing, or contradicts another.
    """
    given = _Given(options)
    guarantee = _guarantee(given)
    if guarantee is Guarantee.AT_LEAST_ONCE:
        for name in given.named(("ingest.id", "ingest.topics", "ingest.ttl.ms")):
            raise OptionError(
                name, "has no meaning with delivery.guarantee=at-least-once: no ingest is opened; remove one"
            )
    ignored = tuple(sorted((*given.ignored(), *given.named(_OF_SPARK))))
    return _write_options(given, guarantee, default_ttl_ms=DEFAULT_INGEST_TTL_MS, ignored=ignored)


def parse_stream_write_options(options: Mapping[str, str]) -> WriteOptions:
    """Parse the options of `df.writeStream.format("lograft")`. A streaming query writes exactly once.

    Raises:
        OptionError: an option is unknown, malformed or missing, or contradicts another.
    """
    given = _Given(options)
    if _guarantee(given) is Guarantee.AT_LEAST_ONCE:
        raise OptionError(
            "delivery.guarantee",
            "a streaming query writes exactly once; df.write inside foreachBatch takes at-least-once",
        )
    if given.named(("ingest.id",)):
        raise OptionError(
            "ingest.id", "is for batch writes: in a streaming query, query id and batch id name the ingest"
        )
    return _write_options(
        given, Guarantee.EXACTLY_ONCE, default_ttl_ms=DEFAULT_STREAM_INGEST_TTL_MS, ignored=given.ignored()
    )


def _guarantee(given: _Given) -> Guarantee:
    return Guarantee(given.choice("delivery.guarantee", "exactly-once", *(each.value for each in Guarantee)))


def _write_options(
    given: _Given, guarantee: Guarantee, *, default_ttl_ms: int, ignored: tuple[str, ...]
) -> WriteOptions:
    given.read("kafka.acks", _require_acks_all)
    topic, ingest_topics = given.read("topic", parse_topic), given.read("ingest.topics", _parse_ingest_topics) or ()
    if topic is not None and ingest_topics:
        raise OptionError("ingest.topics", "is for a column topic, and the option topic overrides that; remove one")
    idempotent = given.boolean("kafka.enable.idempotence", True)
    if guarantee is Guarantee.EXACTLY_ONCE and not idempotent:
        raise OptionError(
            "kafka.enable.idempotence",
            "false contradicts delivery.guarantee=exactly-once; remove it, or choose at-least-once",
        )
    linger_ms = given.integer("kafka.linger.ms", DEFAULT_LINGER_MS, minimum=0, maximum=60_000)
    return WriteOptions(
        connection=given.connection(),
        topic=topic,
        guarantee=guarantee,
        ingest_id=given.read("ingest.id", _parse_ingest_id),
        ingest_topics=ingest_topics,
        ingest_ttl_ms=given.integer(
            "ingest.ttl.ms", default_ttl_ms, minimum=MIN_INGEST_TTL_MS, maximum=MAX_INGEST_TTL_MS
        ),
        idempotent=idempotent,
        batch_bytes=given.integer(
            "kafka.batch.size", DEFAULT_BATCH_BYTES, minimum=MIN_BATCH_BYTES, maximum=MAX_BATCH_BYTES
        ),
        buffer_bytes=given.integer(
            "kafka.buffer.memory", DEFAULT_BUFFER_BYTES, minimum=MAX_BATCH_BYTES, maximum=MAX_CREDIT_BYTES
        ),
        linger_ms=linger_ms,
        delivery_timeout_ms=given.integer(
            "kafka.delivery.timeout.ms", DEFAULT_DELIVERY_TIMEOUT_MS, minimum=max(1, linger_ms), maximum=MAX_TIMEOUT_MS
        ),
        codec=given.choice("kafka.compression.type", "none", "none", "zstd"),
        max_in_flight=given.integer(
            "kafka.max.in.flight.requests.per.connection",
            DEFAULT_MAX_IN_FLIGHT,
            minimum=1,
            maximum=MAX_IN_FLIGHT_BATCHES,
        ),
        ignored=ignored,
    )


def _selection(given: _Given) -> Selection:
    ways = ("subscribe", "subscribePattern", "assign")
    chosen = given.named(ways)
    if len(chosen) != 1:
        raise OptionError(
            "subscribe", f"give exactly one of {', '.join(ways)}; given: {', '.join(chosen) if chosen else 'none'}"
        )
    topics = given.read("subscribe", parse_topics)
    if topics is not None:
        return Subscribe(topics=topics)
    pattern = given.read("subscribePattern", parse_pattern)
    if pattern is not None:
        return SubscribePattern(pattern=pattern)
    return Assign(partitions=given.read("assign", parse_assignment) or ())


def _columns(given: _Given) -> tuple[str, ...]:
    headers = given.read("includeHeaders", parse_boolean)
    columns = given.read("columns", lambda option, text: parse_names(option, text, (*COLUMNS, HEADERS_COLUMN)))
    if columns is None:
        return (*COLUMNS, HEADERS_COLUMN) if headers else COLUMNS
    if headers is not None and headers != (HEADERS_COLUMN in columns):
        raise OptionError("includeHeaders", f"contradicts columns={','.join(columns)}; leave includeHeaders out")
    return columns


def _start(given: _Given, *, forbidden: Position | None, default: Position) -> Bound:
    # All three are parsed, even if another one takes precedence: a malformed option is always an error.
    offsets = given.read("startingOffsets", lambda o, text: _parse_bound(o, text, forbidden=forbidden))
    by_partition = given.read("startingOffsetsByTimestamp", parse_timestamps)
    timestamp_ms = given.read("startingTimestamp", _parse_timestamp)
    return _bound("starting", timestamp_ms, by_partition, offsets, default=default)


def _end(given: _Given) -> Bound:
    offsets = given.read("endingOffsets", lambda o, text: _parse_bound(o, text, forbidden=Position.EARLIEST))
    by_partition = given.read("endingOffsetsByTimestamp", parse_timestamps)
    timestamp_ms = given.read("endingTimestamp", _parse_timestamp)
    return _bound("ending", timestamp_ms, by_partition, offsets, default=Position.LATEST)


def _bound(
    side: str,
    timestamp_ms: int | None,
    by_partition: Mapping[TopicPartition, int] | None,
    offsets: Bound | None,
    *,
    default: Position,
) -> Bound:
    # The precedence of the Kafka connector: Timestamp, then OffsetsByTimestamp, then Offsets.
    if timestamp_ms is not None:
        return AtTimestamp(option=f"{side}Timestamp", timestamp_ms=timestamp_ms)
    if by_partition is not None:
        return AtTimestamps(option=f"{side}OffsetsByTimestamp", timestamps_ms=by_partition)
    return AtPosition(option=f"{side}Offsets", position=default) if offsets is None else offsets


def _parse_bound(option: str, text: str, *, forbidden: Position | None) -> Bound:
    word = text.strip().lower()
    if forbidden is not None and word == forbidden.value:
        raise OptionError(option, f"{word} is not allowed here in a batch query")
    if word in {position.value for position in Position}:
        return AtPosition(option=option, position=Position(word))
    return AtOffsets(option=option, offsets=parse_offsets(option, text, forbidden=forbidden))


def _check_order(start: Bound, end: Bound) -> None:
    match start, end:
        case AtTimestamp(timestamp_ms=first), AtTimestamp(timestamp_ms=last) if first > last:
            raise OptionError(end.option, f"{last} lies before {start.option} {first}")
        case _:
            return


def _parse_bootstrap(option: str, text: str) -> tuple[str, ...]:
    try:
        return parse_bootstrap(text, None).addresses
    except InvalidSettingError as error:
        raise OptionError(option, error.message) from error


def _parse_rack(option: str, text: str) -> str | None:
    rack = text.strip()
    if len(rack) > MAX_RACK_CHARACTERS:
        raise OptionError(option, f"has {len(rack)} characters; a rack has at most {MAX_RACK_CHARACTERS}")
    return rack or None  # Kafka's default is the empty string: no rack


def _parse_timestamp(option: str, text: str) -> int:
    return parse_integer(option, text, minimum=0, maximum=MAX_OFFSET)


def _parse_count(option: str, text: str) -> int:
    return parse_integer(option, text, minimum=1, maximum=MAX_READ_TASKS)


def _parse_records(option: str, text: str) -> int:
    return parse_integer(option, text, minimum=1, maximum=MAX_OFFSET)


def _parse_ingest_id(option: str, text: str) -> str:
    size_bytes = len(text.encode())
    if not text.strip() or size_bytes > MAX_INGEST_ID_BYTES:
        raise OptionError(
            option, f"takes 1 to {MAX_INGEST_ID_BYTES} bytes that name what the job publishes, not {shown(text)}"
        )
    return text


def _parse_ingest_topics(option: str, text: str) -> tuple[str, ...]:
    topics = parse_topics(option, text)
    if len(topics) > MAX_INGEST_TOPICS:
        raise OptionError(option, f"names {len(topics)} topics; one job writes to at most {MAX_INGEST_TOPICS}")
    return topics


def _require_acks_all(option: str, text: str) -> None:
    if text.strip().lower() not in {"all", "-1"}:
        raise OptionError(option, f"{shown(text)} is not offered: exactly-once and at-least-once both need acks=all")


def _why_unknown(spelling: str) -> str:
    if spelling.lower() in {"path", "paths"}:
        return "there is no path to load or save; name topics with subscribe, subscribePattern, assign or topic"
    near = difflib.get_close_matches(spelling.lower(), _CANONICAL, n=1)
    if near:
        return f"is unknown; did you mean {_CANONICAL[near[0]]}?"
    if spelling.lower().startswith("kafka."):
        return "has no meaning in Lograft; remove it (docs/spark.md lists the options)"
    return "is unknown (docs/spark.md lists the options)"
