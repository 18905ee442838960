# SPDX-License-Identifier: Apache-2.0
"""Options of `format("lograft")`: the accepted values, and the error for each bad one."""

from __future__ import annotations

import pickle
from dataclasses import replace

import pytest
from lograft.spark import options as options_module
from lograft.spark.options import (
    parse_columns,
    parse_read_options,
    parse_stream_read_options,
    parse_stream_write_options,
    parse_write_options,
)
from lograft.spark.settings import (
    COLUMNS,
    Assign,
    AtOffsets,
    AtPosition,
    AtTimestamp,
    AtTimestamps,
    Connection,
    Guarantee,
    StreamReadOptions,
    Subscribe,
    SubscribePattern,
)
from lograft.spark.values import OptionError, parse_duration_ms, shown
from lograft.types import Position, TopicPartition

HERE = {"kafka.bootstrap.servers": "127.0.0.1:9640"}
READ = {**HERE, "subscribe": "orders"}
APPEND = {"delivery.guarantee": "at-least-once"}


def test_read_defaults_are_those_of_the_kafka_connector() -> None:
    """With only the required options, everything is read, and lost data is an error."""
    options = parse_read_options(READ)
    assert options.connection == Connection(bootstrap=("127.0.0.1:9640",))
    assert options.selection == Subscribe(topics=("orders",))
    assert options.start == AtPosition(option="startingOffsets", position=Position.EARLIEST)
    assert options.end == AtPosition(option="endingOffsets", position=Position.LATEST)
    assert options.fail_on_data_loss
    assert not options.latest_if_no_match
    assert not options.include_headers
    assert options.min_partitions is None
    assert options.poll_timeout_ms == 120_000
    assert options.ignored == ()


def test_write_defaults_need_only_an_address() -> None:
    """A write is exactly once, uncompressed and takes the topic from the column."""
    options = parse_write_options(HERE)
    assert options.topic is None
    assert (options.guarantee, options.ingest_id, options.ingest_topics) == (Guarantee.EXACTLY_ONCE, None, ())
    assert (options.ingest_ttl_ms, parse_stream_write_options(HERE).ingest_ttl_ms) == (86_400_000, 3_600_000)
    assert options.idempotent
    assert options.codec == "none"
    assert options.batch_bytes == 1024 * 1024


def test_every_read_option_reaches_its_setting() -> None:
    """No option of the reader is parsed and then dropped."""
    options = parse_read_options(
        {
            "BOOTSTRAP.servers": "a:1, b:2",
            "cluster.id": " main ",
            "subscribePattern": "orders-.*",
            "startingOffsets": "earliest",
            "endingOffsets": "Latest",
            "startingOffsetsByTimestampStrategy": "LATEST",
            "failOnDataLoss": "FALSE",
            "minPartitions": "12",
            "maxRecordsPerPartition": "1000",
            "includeheaders": "true",
            "kafkaConsumer.pollTimeoutMs": "512",
            "kafka.fetch.max.bytes": "4096",
            "max.partition.fetch.bytes": "2048",
            "kafka.check.crcs": "false",
            "client.rack": " a ",
            "groupIdPrefix": "x",
            "kafka.group.id": "g",
            "kafka.security.protocol": "plaintext",
        }
    )
    assert options.connection == Connection(bootstrap=("a:1", "b:2"), cluster_id="main")
    assert options.selection == SubscribePattern(pattern="orders-.*")
    assert options.latest_if_no_match
    assert not options.fail_on_data_loss
    assert options.min_partitions == 12
    assert options.max_records_per_partition == 1000
    assert options.include_headers
    assert options.poll_timeout_ms == 512
    assert (options.credit_bytes, options.chunk_bytes) == (4096, 2048)
    assert not options.check_crcs
    assert options.client_rack == "a"
    assert options.ignored == ("groupIdPrefix", "kafka.group.id")


def test_every_write_option_reaches_its_setting() -> None:
    """No option of the writer is parsed and then dropped."""
    options = parse_write_options(
        {
            **HERE,
            "topic": "orders",
            "kafka.acks": "-1",
            "delivery.guarantee": "EXACTLY-ONCE",
            "ingest.id": "orders/2026-11-27",
            "ingest.ttl.ms": "20000",
            "kafka.enable.idempotence": "true",
            "kafka.batch.size": "1048576",
            "kafka.buffer.memory": "33554432",
            "kafka.linger.ms": "0",
            "kafka.delivery.timeout.ms": "30000",
            "kafka.compression.type": "zstd",
            "kafka.max.in.flight.requests.per.connection": "5",
            "kafka.client.id": "job",
        }
    )
    assert options.topic == "orders"
    assert (options.guarantee, options.idempotent) == (Guarantee.EXACTLY_ONCE, True)
    assert (options.ingest_id, options.ingest_ttl_ms) == ("orders/2026-11-27", 20_000)
    assert (options.batch_bytes, options.buffer_bytes) == (1024 * 1024, 32 * 1024 * 1024)
    assert (options.linger_ms, options.delivery_timeout_ms, options.max_in_flight) == (0, 30_000, 5)
    assert options.codec == "zstd"
    assert options.ignored == ("kafka.client.id",)
    by_column = parse_write_options({**HERE, "ingest.topics": "b, a"})
    assert (by_column.topic, by_column.ingest_topics) == (None, ("a", "b"))
    appended = parse_write_options({**HERE, **APPEND, "kafka.enable.idempotence": "false"})
    assert (appended.guarantee, appended.idempotent) == (Guarantee.AT_LEAST_ONCE, False)


def test_columns_are_those_asked_for_in_their_order() -> None:
    """Names are case-insensitive; headers need no second option."""
    assert parse_read_options(READ).columns == COLUMNS
    assert parse_read_options({**READ, "includeHeaders": "true"}).columns == (*COLUMNS, "headers")
    options = parse_read_options({**READ, "columns": "OFFSET, key,timestamptype,headers"})
    assert options.columns == ("offset", "key", "timestampType", "headers")
    assert options.include_headers


def test_every_trigger_option_reaches_its_setting() -> None:
    """A streaming read begins at the latest offset, and has limits for its micro-batches."""
    assert parse_stream_read_options(READ) == StreamReadOptions(
        read=replace(parse_read_options(READ), start=AtPosition(option="startingOffsets", position=Position.LATEST))
    )
    options = parse_stream_read_options(
        {
            **READ,
            "startingOffsets": '{"orders": {"0": -1, "1": -2}}',
            "maxRecordsPerTrigger": "100",
            "maxBytesPerTrigger": "5000",
            "minOffsetsPerTrigger": "10",
            "maxTriggerDelay": "2m",
            "columns": "key",
        }
    )
    assert (options.max_records, options.max_bytes, options.min_records, options.max_delay_ms) == (
        100,
        5_000,
        10,
        120_000,
    )
    assert options.read.columns == ("key",)
    assert options.read.ignored == ()
    assert isinstance(options.read.start, AtOffsets)


def test_trigger_options_change_nothing_in_a_batch_read() -> None:
    """As with the Kafka connector; the reader warns."""
    options = parse_read_options({**READ, "maxOffsetsPerTrigger": "5", "maxTriggerDelay": "1s"})
    assert options.ignored == ("maxOffsetsPerTrigger", "maxTriggerDelay")


@pytest.mark.parametrize(
    ("text", "duration_ms"),
    [
        ("500", 500),
        ("500ms", 500),
        ("30s", 30_000),
        ("15m", 900_000),
        ("15 min", 900_000),
        ("2H", 7_200_000),
        ("1d", 86_400_000),
    ],
)
def test_durations_are_those_of_spark(text: str, duration_ms: int) -> None:
    """A bare number is milliseconds."""
    assert parse_duration_ms("o", text) == duration_ms


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"endingOffsets": "latest"}, "endingOffsets: a streaming query has no end"),
        ({"endingTimestamp": "5"}, "endingTimestamp: a streaming query has no end"),
        ({"pushdown": "true"}, "pushdown: Spark pushes filters down in batch queries only"),
        ({"minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "8"}, "9 is more than maxOffsetsPerTrigger 8"),
        ({"maxTriggerDelay": "5s"}, "maxTriggerDelay: needs minOffsetsPerTrigger"),
        ({"minOffsetsPerTrigger": "9", "maxTriggerDelay": "5 years"}, "maxTriggerDelay: takes a duration such as"),
        ({"maxRecordsPerTrigger": "0"}, "maxOffsetsPerTrigger: takes an integer from 1"),
        ({"maxRecordsPerTrigger": "7", "maxOffsetsPerTrigger": "8"}, "maxOffsetsPerTrigger: is given twice"),
        ({"maxBytesPerTrigger": "5m"}, "maxBytesPerTrigger: takes an integer from 1"),
        ({"columns": "key,size"}, "columns: 'size' is none of key, value, topic"),
        ({"columns": "key,KEY"}, "columns: names key twice"),
        ({"columns": ""}, "columns: '' is none of"),
        ({"columns": "key,headers", "includeHeaders": "false"}, "includeHeaders: contradicts columns=key,headers"),
        ({"columns": "key", "includeHeaders": "true"}, "includeHeaders: contradicts columns=key"),
    ],
)
def test_wrong_options_of_a_streaming_read_are_refused(options: dict[str, str], problem: str) -> None:
    """Each error names the option and says what is wrong."""
    with pytest.raises(OptionError, match=problem):
        parse_stream_read_options({**READ, **options})


def test_columns_of_load_fit_a_batch_or_a_streaming_read() -> None:
    """Spark asks for the schema before it says which of the two it is. An error is that of the one that was meant."""
    assert parse_columns({**READ, "startingOffsets": "latest", "columns": "key"}) == ("key",)
    assert parse_columns({**READ, "endingOffsets": "latest", "columns": "value"}) == ("value",)
    with pytest.raises(OptionError, match="columns: 'x' is none of"):
        parse_columns({**READ, "startingOffsets": "latest", "columns": "x"})
    with pytest.raises(OptionError, match="columns: 'x' is none of"):
        parse_columns({**READ, "endingOffsets": "latest", "columns": "x"})
    with pytest.raises(OptionError, match="startingOffsets: latest is not allowed here in a batch query"):
        parse_columns({**READ, "startingOffsets": "latest", "endingOffsets": "latest"})


def test_options_of_the_other_direction_are_let_pass() -> None:
    """One dictionary of options can serve a read and a write, as with the Kafka connector."""
    both = {**READ, "topic": "copies", "failOnDataLoss": "false"}
    assert parse_read_options(both).selection == Subscribe(topics=("orders",))
    assert parse_write_options(both).topic == "copies"


def test_default_port_may_be_left_out() -> None:
    """An address without a port means the broker's default port."""
    assert parse_read_options({**READ, "kafka.bootstrap.servers": "localhost"}).connection.bootstrap == (
        "localhost:9640",
    )


def test_settings_survive_the_way_to_the_tasks() -> None:
    """Spark pickles the settings and the errors."""
    options = parse_read_options({**READ, "startingOffsetsByTimestamp": '{"orders": {"0": 5}}'})
    assert pickle.loads(pickle.dumps(options)) == options  # noqa: S301 - our own bytes
    error = pickle.loads(pickle.dumps(OptionError("topic", "is bad")))  # noqa: S301 - our own bytes
    assert (error.option, str(error)) == ("topic", "option topic: is bad")


def test_subscribe_takes_each_topic_once() -> None:
    """A list with blanks and repeats gives each name once."""
    assert parse_read_options({**HERE, "subscribe": " b, a,,b "}).selection == Subscribe(topics=("a", "b"))


def test_assign_takes_exactly_these_partitions() -> None:
    """`assign` is sorted, so that planning does not depend on how the JSON was written."""
    options = parse_read_options({**HERE, "assign": '{"b": [1, 0], "a": [7]}'})
    assert options.selection == Assign(
        partitions=(TopicPartition("a", 7), TopicPartition("b", 0), TopicPartition("b", 1))
    )


def test_offsets_in_json_know_earliest_and_latest() -> None:
    """-2 and -1 mean what they mean in the Kafka connector."""
    options = parse_read_options(
        {**READ, "startingOffsets": '{"orders": {"0": 23, "1": -2}}', "endingOffsets": '{"orders": {"0": 30, "1": -1}}'}
    )
    zero, one = TopicPartition("orders", 0), TopicPartition("orders", 1)
    assert options.start == AtOffsets(option="startingOffsets", offsets={zero: 23, one: Position.EARLIEST})
    assert options.end == AtOffsets(option="endingOffsets", offsets={zero: 30, one: Position.LATEST})


def test_timestamps_win_over_timestamps_by_partition_and_those_over_offsets() -> None:
    """The precedence is the Kafka connector's, on both sides."""
    by_partition = '{"orders": {"0": 5}}'
    all_three = {
        **READ,
        "startingOffsets": "earliest",
        "startingOffsetsByTimestamp": by_partition,
        "startingTimestamp": "1",
        "endingOffsets": "latest",
        "endingOffsetsByTimestamp": by_partition,
        "endingTimestamp": "9",
    }
    options = parse_read_options(all_three)
    assert options.start == AtTimestamp(option="startingTimestamp", timestamp_ms=1)
    assert options.end == AtTimestamp(option="endingTimestamp", timestamp_ms=9)
    del all_three["startingTimestamp"], all_three["endingTimestamp"]
    options = parse_read_options(all_three)
    where = {TopicPartition("orders", 0): 5}
    assert options.start == AtTimestamps(option="startingOffsetsByTimestamp", timestamps_ms=where)
    assert options.end == AtTimestamps(option="endingOffsetsByTimestamp", timestamps_ms=where)


BAD_READS: list[tuple[str, dict[str, str], str]] = [
    ("kafka.bootstrap.servers", {"subscribe": "t"}, "is required"),
    ("kafka.bootstrap.servers", {"kafka.bootstrap.servers": " , ", "subscribe": "t"}, "names no address"),
    ("kafka.bootstrap.servers", {"kafka.bootstrap.servers": "host:port", "subscribe": "t"}, "host:port"),
    ("kafka.bootstrap.servers", {**READ, "bootstrap.servers": "127.0.0.1:1"}, "given twice"),
    ("subscribe", HERE, "exactly one of subscribe, subscribePattern, assign; given: none"),
    ("subscribe", {**READ, "assign": "{}"}, "given: subscribe, assign"),
    ("subscribe", {**HERE, "subscribe": ", "}, "names no topic"),
    ("subscribe", {**HERE, "subscribe": "a/b"}, "is not a topic name"),
    ("subscribe", {**HERE, "subscribe": ".."}, "is not a topic name"),
    ("subscribe", {**HERE, "subscribe": "a" * 250}, "is not a topic name"),
    ("subscribe", {**HERE, "subscribe": "a\0"}, "is not a topic name"),
    ("subscribePattern", {**HERE, "subscribePattern": "("}, "not a regular expression"),
    ("subscribePattern", {**HERE, "subscribePattern": ""}, "is empty"),
    ("subscribePattern", {**HERE, "subscribePattern": r"\p{Alpha}+"}, "not a regular expression"),
    ("assign", {**HERE, "assign": "{}"}, "names no partition"),
    ("assign", {**HERE, "assign": "[1]"}, "takes a JSON object"),
    ("assign", {**HERE, "assign": "{"}, "is not JSON"),
    ("assign", {**HERE, "assign": "[" * 100_000}, "is not JSON"),
    ("assign", {**HERE, "assign": '{"t": 0}'}, "takes a list"),
    ("assign", {**HERE, "assign": '{"t": []}'}, "takes a list"),
    ("assign", {**HERE, "assign": '{"t": [-1]}'}, "partitions count from 0"),
    ("assign", {**HERE, "assign": '{"t": [true]}'}, "partitions count from 0"),
    ("assign", {**HERE, "assign": '{"t": ["0"]}'}, "partitions count from 0"),
    ("assign", {**HERE, "assign": '{"t": [2147483648]}'}, "partitions count from 0"),
    ("assign", {**HERE, "assign": '{"t": [0, 0]}'}, "twice"),
    ("assign", {**HERE, "assign": '{"t": [0], "t": [1]}'}, "name twice"),
    ("startingOffsets", {**READ, "startingOffsets": "latest"}, "not allowed"),
    ("startingOffsets", {**READ, "startingOffsets": "newest"}, "is not JSON"),
    ("startingOffsets", {**READ, "startingOffsets": '{"orders": {"0": -1}}'}, "not allowed"),
    ("startingOffsets", {**READ, "startingOffsets": '{"orders": {"0": -3}}'}, "is no offset"),
    ("startingOffsets", {**READ, "startingOffsets": '{"orders": {"0": 1.5}}'}, "takes an integer"),
    ("startingOffsets", {**READ, "startingOffsets": '{"orders": {"0": 9223372036854775808}}'}, "takes an integer"),
    ("startingOffsets", {**READ, "startingOffsets": '{"orders": {"00": 1}}'}, "partitions count from 0"),
    ("startingOffsets", {**READ, "startingOffsets": '{"orders": {"x": 1}}'}, "partitions count from 0"),
    ("startingOffsets", {**READ, "startingOffsets": '{"orders": [1]}'}, "takes an object by partition"),
    ("startingOffsets", {**READ, "startingOffsets": "{}"}, "names no partition"),
    ("endingOffsets", {**READ, "endingOffsets": "earliest"}, "not allowed"),
    ("endingOffsets", {**READ, "endingOffsets": '{"orders": {"0": -2}}'}, "not allowed"),
    ("startingTimestamp", {**READ, "startingTimestamp": "2026-01-01"}, "takes an integer"),
    ("startingTimestamp", {**READ, "startingTimestamp": "-1"}, "takes an integer"),
    ("endingTimestamp", {**READ, "startingTimestamp": "5", "endingTimestamp": "4"}, "lies before"),
    ("startingOffsetsByTimestamp", {**READ, "startingOffsetsByTimestamp": '{"orders": {"0": -1}}'}, "not a timestamp"),
    ("startingOffsetsByTimestampStrategy", {**READ, "startingOffsetsByTimestampStrategy": "skip"}, "error or latest"),
    ("failOnDataLoss", {**READ, "failOnDataLoss": "yes"}, "true or false"),
    ("minPartitions", {**READ, "minPartitions": "0"}, "from 1 to 100000"),
    ("minPartitions", {**READ, "minPartitions": "1_0"}, "takes an integer"),
    ("kafka.fetch.max.bytes", {**READ, "kafka.fetch.max.bytes": "9" * 30}, "takes an integer"),
    ("kafka.security.protocol", {**READ, "kafka.security.protocol": "SASL_SSL"}, "PLAINTEXT only"),
    ("startingOfsets", {**READ, "startingOfsets": "earliest"}, "did you mean startingOffsets?"),
    ("kafka.sasl.jaas.config", {**READ, "kafka.sasl.jaas.config": "x"}, "has no meaning in Lograft"),
    ("zzz", {**READ, "zzz": "x"}, "is unknown"),
    ("path", {**READ, "path": "orders"}, "no path"),
]


@pytest.mark.parametrize(("option", "given", "problem"), BAD_READS)
def test_bad_read_option_is_named(option: str, given: dict[str, str], problem: str) -> None:
    """Every bad value is an error that names the option and says what is wrong."""
    with pytest.raises(OptionError) as caught:
        parse_read_options(given)
    assert caught.value.option == option
    assert problem in str(caught.value)
    assert len(str(caught.value)) < 500


BAD_WRITES: list[tuple[str, dict[str, str], str]] = [
    ("topic", {**HERE, "topic": ""}, "is not a topic name"),
    ("kafka.acks", {**HERE, "kafka.acks": "1"}, "at-least-once"),
    ("delivery.guarantee", {**HERE, "delivery.guarantee": "at-most-once"}, "exactly-once or at-least-once"),
    ("ingest.id", {**HERE, "ingest.id": " "}, "1 to 255 bytes"),
    ("ingest.id", {**HERE, "ingest.id": "\N{EURO SIGN}" * 86}, "1 to 255 bytes"),
    ("ingest.id", {**HERE, **APPEND, "ingest.id": "a"}, "no ingest is opened"),
    ("ingest.ttl.ms", {**HERE, **APPEND, "ingest.ttl.ms": "10000"}, "no ingest is opened"),
    ("ingest.topics", {**HERE, **APPEND, "ingest.topics": "t"}, "no ingest is opened"),
    ("ingest.topics", {**HERE, "topic": "t", "ingest.topics": "t"}, "option topic overrides that"),
    ("ingest.topics", {**HERE, "ingest.topics": ","}, "names no topic"),
    ("ingest.topics", {**HERE, "ingest.topics": ",".join(map(str, range(101)))}, "at most 100"),
    ("ingest.ttl.ms", {**HERE, "ingest.ttl.ms": "9999"}, "from 10000 to 604800000"),
    ("ingest.ttl.ms", {**HERE, "ingest.ttl.ms": "604800001"}, "from 10000 to 604800000"),
    ("kafka.enable.idempotence", {**HERE, "enable.idempotence": "false"}, "contradicts"),
    ("kafka.compression.type", {**HERE, "kafka.compression.type": "gzip"}, "none or zstd"),
    ("kafka.batch.size", {**HERE, "kafka.batch.size": "1"}, "from 1024"),
    ("kafka.delivery.timeout.ms", {**HERE, "linger.ms": "50", "kafka.delivery.timeout.ms": "49"}, "from 50"),
    ("kafka.max.in.flight.requests.per.connection", {**HERE, "max.in.flight.requests.per.connection": "17"}, "to 16"),
]


@pytest.mark.parametrize(("option", "given", "problem"), BAD_WRITES)
def test_bad_write_option_is_named(option: str, given: dict[str, str], problem: str) -> None:
    """Every bad value is an error that names the option and says what is wrong."""
    with pytest.raises(OptionError) as caught:
        parse_write_options(given)
    assert caught.value.option == option
    assert problem in str(caught.value)


BAD_STREAM_WRITES: list[tuple[str, dict[str, str], str]] = [
    ("delivery.guarantee", {**HERE, **APPEND}, "a streaming query writes exactly once"),
    ("ingest.id", {**HERE, "ingest.id": "a"}, "query id and batch id name the ingest"),
    ("kafka.enable.idempotence", {**HERE, "enable.idempotence": "false"}, "contradicts"),
]


@pytest.mark.parametrize(("option", "given", "problem"), BAD_STREAM_WRITES)
def test_bad_option_of_a_streaming_write_is_named(option: str, given: dict[str, str], problem: str) -> None:
    """A streaming query has one guarantee, and ids of its own."""
    with pytest.raises(OptionError) as caught:
        parse_stream_write_options(given)
    assert caught.value.option == option
    assert problem in str(caught.value)


def test_options_of_spark_are_known() -> None:
    """Spark hands on its own options of a streaming query. In a batch write they mean nothing, and that is said."""
    given = {**HERE, "topic": "t", "checkpointLocation": "/c", "queryName": "q"}
    assert parse_stream_write_options(given).ignored == ()
    assert parse_write_options(given).ignored == ("checkpointLocation", "queryName")


def test_same_option_twice_with_one_value_is_taken() -> None:
    """An option and its alias may agree."""
    assert parse_read_options({**READ, "bootstrap.servers": READ["kafka.bootstrap.servers"]}).connection.bootstrap


def test_names_do_not_collide_without_their_prefix() -> None:
    """Each name stands for one option, with and without `kafka.`."""
    known = options_module._KNOWN
    spellings = [name.lower() for name in known]
    assert len(set(spellings)) == len(spellings)
    bare = {name.removeprefix("kafka.") for name in spellings if name.startswith("kafka.")}
    assert not bare & set(spellings)


def test_long_values_are_cut_in_messages() -> None:
    """A megabyte of bad JSON does not end in a megabyte of message."""
    assert len(shown("x" * 10_000)) < 100
