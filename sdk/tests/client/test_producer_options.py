# SPDX-License-Identifier: Apache-2.0
"""Partitioners, serializers, extra columns of Arrow tables, and the client id, through both producers."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import grpc
import pytest
from lograft import Admin, Consumer, ConsumerRecord, Producer, aio
from lograft._client.transport import Purpose, Transport
from lograft._producer.partitioner import murmur2
from lograft.errors import InvalidSettingError, UsageError
from tests.client.reading import read_all

MakeTopic = Callable[..., str]

KEYS = [b"key-%d" % number for number in range(40)]


def _partitions(records: list[ConsumerRecord]) -> dict[bytes | None, set[int]]:
    found: dict[bytes | None, set[int]] = {}
    for record in records:
        found.setdefault(record.key, set()).add(record.partition)
    return found


def _java_partition(key: bytes, partition_count: int) -> int:
    return (murmur2(key) & 0x7FFF_FFFF) % partition_count


def _send_all_ways(producer: Producer, topic: str) -> int:
    """Send each key by every verb, and return how often."""
    pa: Any = pytest.importorskip("pyarrow")
    for key in KEYS * 2:
        producer.send(topic, b"v", key=key)
    for key in KEYS:
        producer.send(topic, b"v", key=key, headers=[("h", b"")])
    producer.send_many(topic, [b"v"] * len(KEYS), keys=KEYS)
    producer.send_many(topic, [b"v" * 5_000] * 4 * len(KEYS), keys=KEYS * 4)
    producer.send_arrow(topic, pa.table({"key": KEYS, "value": [b"v"] * len(KEYS)}))
    return 9


def test_murmur2_by_every_verb(bootstrap: str, make_topic: MakeTopic) -> None:
    """All verbs put a key where Kafka's Java client does."""
    topic = make_topic(5)
    with Producer(bootstrap, partitioner="murmur2") as producer:
        times = _send_all_ways(producer, topic)
    records = read_all(bootstrap, topic, 5)
    assert len(records) == times * len(KEYS)
    assert _partitions(records) == {key: {_java_partition(key, 5)} for key in KEYS}


def test_function_by_every_verb(bootstrap: str, make_topic: MakeTopic) -> None:
    """It is asked once for each record with a key, without a lock, so it may use the producer. `partition=` comes before it."""
    topic, other = make_topic(5), make_topic()

    def function(name: str, key: bytes, partition_count: int) -> int:
        if name == other:
            return 0
        producer.send(other, b"asked", key=b"any")
        return int(key.removeprefix(b"key-")) % partition_count

    with Producer(bootstrap, partitioner=function) as producer:
        times = _send_all_ways(producer, topic)
        producer.send(topic, b"v", key=b"fixed", partition=3)
        producer.send(topic, b"v", partition=2)
    found = _partitions(read_all(bootstrap, topic, 5))
    assert found.pop(b"fixed") == {3}
    assert found.pop(None) == {2}
    assert found == {key: {number % 5} for number, key in enumerate(KEYS)}
    assert len(read_all(bootstrap, other)) == times * len(KEYS)


def test_sticky_keeps_keys_and_order_and_spreads_batches(bootstrap: str, make_topic: MakeTopic) -> None:
    """Keys arrive with their records, and one key may be in several partitions."""
    topic = make_topic(3)
    with Producer(bootstrap, partitioner="sticky", batch_bytes=1_024, linger_ms=0) as producer:
        times = _send_all_ways(producer, topic)
    records = read_all(bootstrap, topic, 3)
    assert len(records) == times * len(KEYS)
    found = _partitions(records)
    assert set(found) == set(KEYS)
    assert max(map(len, found.values())) > 1
    assert {record.partition for record in records} == {0, 1, 2}


def test_failing_function_loses_nothing(bootstrap: str, make_topic: MakeTopic) -> None:
    """The call raises, and records before and after it arrive."""
    topic = make_topic(2)

    def function(topic: str, key: bytes, partition_count: int) -> int:
        return {b"good": 1, b"high": 2}[key]

    with Producer(bootstrap, partitioner=function) as producer:
        producer.send(topic, b"1", key=b"good")
        for key, text in ((b"bad", "KeyError"), (b"high", "from 0 to 1")):
            with pytest.raises(UsageError, match=text):
                producer.send(topic, b"x", key=key)
            with pytest.raises(UsageError, match=text):
                producer.send(topic, b"x", key=key, timestamp_ms=1)
            with pytest.raises(UsageError, match=text):
                producer.send_many(topic, [b"x"], keys=[key])
        producer.send(topic, b"2", key=b"good")
    assert [(record.value, record.partition) for record in read_all(bootstrap, topic, 2)] == [(b"1", 1), (b"2", 1)]


def _to_json(value: object) -> bytes:
    return json.dumps(value).encode()


def test_serializers_by_send_and_send_many(bootstrap: str, make_topic: MakeTopic) -> None:
    """They see every key and value but None, bytes too, and exactly once."""
    topic = make_topic()
    with Producer(bootstrap, key_serializer=str.encode, value_serializer=_to_json) as producer:
        producer.send(topic, {"a": 1}, key="k")
        assert producer.send(topic, None, key="k").result(20_000).offset == 1
        producer.send(topic, 5)
        producer.send(topic, "text", timestamp_ms=7)
        producer.send_many(topic, [[1], None, "x"], keys=["k", None, "l"])
    found = [(record.key, record.value) for record in read_all(bootstrap, topic)]
    assert found[:4] == [(b"k", b'{"a": 1}'), (b"k", None), (None, b"5"), (None, b'"text"')]
    # Records without a key are a group of their own.
    assert sorted(found[4:], key=str) == [(None, None), (b"k", b"[1]"), (b"l", b'"x"')]


def test_failing_serializers_name_topic_and_cause_and_lose_nothing(bootstrap: str, make_topic: MakeTopic) -> None:
    """The producer has not taken any record of the call that failed."""
    topic = make_topic()

    def as_text(value: str) -> bytes:
        return value.upper() if value == "bad" else value.encode()  # pyright: ignore[reportReturnType]

    with Producer(bootstrap, key_serializer=as_text, value_serializer=_to_json) as producer:
        producer.send(topic, 1)
        with pytest.raises(UsageError, match=f"value_serializer failed for a set for topic '{topic}': TypeError") as e:
            producer.send(topic, {1})
        assert isinstance(e.value.__cause__, TypeError)
        with pytest.raises(UsageError, match=f"key_serializer returned str for a str for topic '{topic}'"):
            producer.send(topic, 1, key="bad")
        with pytest.raises(UsageError, match="value_serializer failed"):
            producer.send_many(topic, [2, {1}])
        producer.send(topic, 3)
    assert [record.value for record in read_all(bootstrap, topic)] == [b"1", b"3"]


async def test_aio_producer_has_the_same_options(bootstrap: str, make_topic: MakeTopic) -> None:
    """Partitioner, serializers and extra columns."""
    pa: Any = pytest.importorskip("pyarrow")
    topic = make_topic(5)
    async with aio.Producer(
        bootstrap, partitioner="murmur2", key_serializer=str.encode, value_serializer=_to_json, client_id="app"
    ) as producer:
        receipt = await producer.send_and_wait(topic, 1, "key-1")
        assert receipt.partition == _java_partition(b"key-1", 5)
        await producer.send_many(topic, [2, 3], keys=["key-2", "key-3"])
        rows = pa.table({"key": [b"key-4"], "value": [b"4"], "extra": [b"e"]})
        await producer.send_arrow(topic, rows, extra_columns="ignore")
    found = {record.value: record.partition for record in read_all(bootstrap, topic, 5)}
    assert found == {b"%d" % number: _java_partition(b"key-%d" % number, 5) for number in range(1, 5)}


def test_extra_columns_of_arrow_tables(bootstrap: str, make_topic: MakeTopic) -> None:
    """Refused unless the caller says what becomes of them: left out, or headers after those of the column `headers`."""
    pa: Any = pytest.importorskip("pyarrow")
    topic = make_topic()
    rows = pa.table(
        {
            "name": pa.array(["a", None, "c"]).dictionary_encode(),
            "value": [b"1", b"2", b"3"],
            "number": [10, 20, None],
            "raw": [b"\xff", b"", b"x"],
        }
    )
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    given = rows.append_column("headers", pa.array([[("h", b"0")], None, []], kind))
    with Producer(bootstrap) as producer:
        with pytest.raises(UsageError, match="unknown column 'name'"):
            producer.send_arrow(topic, rows)
        with pytest.raises(UsageError, match='"ignore" or "headers"'):
            producer.send_arrow(topic, rows, extra_columns="keep")
        nested = rows.append_column("nested", pa.array([[1], [2], [3]]))
        with pytest.raises(UsageError, match="column 'nested' of type list"):
            producer.send_arrow(topic, nested, extra_columns="headers")
        producer.send_arrow(topic, rows, extra_columns="ignore")
        producer.send_arrow(topic, rows.slice(1), extra_columns="headers")
        producer.send_arrow(topic, given, extra_columns="headers")
        producer.send_arrow(topic, given, extra_columns="ignore")
    records = read_all(bootstrap, topic)
    second = (("name", None), ("number", b"20"), ("raw", b""))
    third = (("name", b"c"), ("number", None), ("raw", b"x"))
    first = (("h", b"0"), ("name", b"a"), ("number", b"10"), ("raw", b"\xff"))
    assert [(record.value, tuple(record.headers)) for record in records] == [
        *((value, ()) for value in (b"1", b"2", b"3")),
        (b"2", second),
        (b"3", third),
        (b"1", first),
        (b"2", second),
        (b"3", third),
        (b"1", (("h", b"0"),)),
        (b"2", ()),
        (b"3", ()),
    ]


@pytest.mark.parametrize(
    "settings",
    [
        {"partitioner": "murmur3"},
        {"partitioner": None},
        {"partitioner": 5},
        {"key_serializer": "json"},
        {"value_serializer": 1},
        {"client_id": ""},
        {"client_id": "a b"},
        {"client_id": "x" * 250},
        {"client_id": "line\n"},
        {"client_id": 7},
    ],
    ids=str,
)
@pytest.mark.parametrize("client", [Producer, aio.Producer])
def test_wrong_options_are_refused(client: Any, settings: dict[str, object]) -> None:
    """The error names the setting."""
    with pytest.raises(InvalidSettingError, match=next(iter(settings))):
        client("127.0.0.1:1", **settings)


@pytest.mark.parametrize("client_id", ["my-app", None])
async def test_brokers_get_the_client_id_in_the_user_agent(client_id: str | None) -> None:
    """It comes first, and the library behind it."""
    agents: list[str] = []

    async def answer(request: bytes, context: grpc.aio.ServicerContext[bytes, bytes]) -> bytes:
        agents.extend(str(value) for name, value in context.invocation_metadata() or () if name == "user-agent")
        return request

    server = grpc.aio.server()
    handler = grpc.unary_unary_rpc_method_handler(answer)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test.Service", {"Call": handler}),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    transport = Transport(client_id=client_id)
    channel = await transport.connect(f"127.0.0.1:{port}", Purpose.CONTROL, timeout_s=10)
    assert await channel.unary_unary("/test.Service/Call")(b"x") == b"x"
    await transport.close()
    await server.stop(0)
    assert agents == ["my-app lograft-python" if client_id else "lograft-python"]


@pytest.mark.parametrize("client", [Producer, aio.Producer, Consumer, aio.Consumer, Admin, aio.Admin])
def test_every_client_takes_a_client_id(client: Any) -> None:
    """It is a setting of the connection of all clients, and checked in each."""
    made = client("127.0.0.1:1", client_id="my-app")
    inner = made._shared if hasattr(made, "_shared") else getattr(made, "_admin", made)
    assert inner._client.client_id == "my-app"
    with pytest.raises(InvalidSettingError, match="client_id"):
        client("127.0.0.1:1", client_id="a b")
