# SPDX-License-Identifier: Apache-2.0
"""Errors of a producer, and what continues in spite of them."""

from __future__ import annotations

import copy
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable

import pytest
from lograft import Admin, BatchReceipt, Consumer, DeliveryError, ErrorCode, Producer
from lograft.errors import (
    BatchFailure,
    BatchRefusedError,
    BufferTimeoutError,
    ClientClosedError,
    ForkedClientError,
    InvalidAcksError,
    InvalidSettingError,
    LograftError,
    NoBrokerError,
    RecordTooLargeError,
    RequestTimeoutError,
    UnknownPartitionError,
    UnknownTopicError,
    UsageError,
    WrongClusterError,
)
from lograft.wire.batch import encode_batch
from tests.client.processes import unused_address
from tests.client.reading import read_all

MakeTopic = Callable[..., str]


@pytest.mark.parametrize("acks", [3, "3", "ALL", None, 1.0])
def test_bad_acks_are_refused_at_construction(acks: object) -> None:
    """Only "all", "leader" and "none" are acks."""
    with pytest.raises(InvalidAcksError) as caught:
        Producer("127.0.0.1:1", acks=acks)  # pyright: ignore[reportArgumentType]
    assert caught.value.code is ErrorCode.INVALID_ACKS


@pytest.mark.parametrize(
    "settings",
    [
        {"linger_ms": -1},
        {"linger_ms": 1.5},
        {"batch_bytes": 10},
        {"max_in_flight": 17},
        {"buffer_bytes": 1_000},
        {"codec": "gzip"},
        {"delivery_timeout_ms": 0},
        {"delivery_timeout_ms": 10, "linger_ms": 20},
        {"max_in_flight": True},
        {"cluster_id": ""},
    ],
    ids=str,
)
def test_settings_out_of_range_are_refused(settings: dict[str, object]) -> None:
    """The constructor checks every setting, and the error names it."""
    with pytest.raises(InvalidSettingError) as caught:
        Producer("127.0.0.1:1", **settings)  # pyright: ignore[reportArgumentType]
    assert next(iter(settings)) in str(caught.value)


@pytest.mark.parametrize("bootstrap", ["", ",", [], "host:", "host:0", "host:99999", "host:x", ":9640", "::1", "a:b:1"])
def test_bad_addresses_are_refused(bootstrap: str | list[str]) -> None:
    """An address is host:port. The error shows a malformed one."""
    with pytest.raises(InvalidSettingError):
        Producer(bootstrap)


def test_nobody_there_is_said_with_the_address() -> None:
    """Without a broker the error names the addresses, within the delivery timeout."""
    address = unused_address()
    with (
        Producer(address, delivery_timeout_ms=400) as producer,
        pytest.raises(NoBrokerError, match="is it running") as e,
    ):
        producer.send("topic", b"value")
    assert address in str(e.value)


def test_unknown_topic_and_partition_are_said_at_send(bootstrap: str, make_topic: MakeTopic) -> None:
    """An unknown topic or partition is an error of that call. Other topics are not affected."""
    topic = make_topic(2)
    with Producer(bootstrap) as producer:
        with pytest.raises(UnknownTopicError, match="no-such-topic"):
            producer.send("no-such-topic", b"value")
        with pytest.raises(UnknownPartitionError, match="0 to 1"):
            producer.send(topic, b"value", partition=2)
        producer.send(topic, b"value", partition=1)
    assert len(read_all(bootstrap, topic, 2)) == 1


def test_wrong_cluster_is_refused(bootstrap: str) -> None:
    """A producer that names another cluster sends nothing."""
    with Producer(bootstrap, cluster_id="another") as producer, pytest.raises(WrongClusterError):
        producer.send("topic", b"value")


def test_fields_of_a_record_are_checked(bootstrap: str, make_topic: MakeTopic) -> None:
    """Values, keys, timestamps and headers of a wrong type raise errors that say what is expected. Nothing is sent."""
    topic = make_topic()
    bad: list[tuple[str, dict[str, object]]] = [
        ("encode it first", {"value": "text"}),
        ("key is bytes", {"key": 5}),
        ("timestamp_ms", {"timestamp_ms": "now"}),
        ("timestamp_ms", {"timestamp_ms": -1}),
        ("timestamp_ms", {"timestamp_ms": 2**62}),
        ("headers is a list", {"headers": "a=b"}),
        ("header is a", {"headers": [("a", b"1", b"2")]}),
        ("name of a header", {"headers": [(b"a", b"1")]}),
        ("Unicode", {"headers": [("\ud800", b"1")]}),
        ("value of header", {"headers": [("a", "1")]}),
        ("partition", {"partition": "1"}),
    ]
    with Producer(bootstrap) as producer:
        for text, fields in bad:
            with pytest.raises(UsageError, match=text):
                producer.send(topic, **{"value": b"v", **fields})  # pyright: ignore[reportArgumentType]
        with pytest.raises(UsageError, match="topic is a name"):
            producer.send("", b"v")
        with pytest.raises(UsageError, match="keys for"):
            producer.send_many(topic, [b"v"], keys=[])
        with pytest.raises(UsageError, match="encode it first"):
            producer.send_many(topic, [b"good", "bad"])  # pyright: ignore[reportArgumentType]
        with pytest.raises(UsageError, match="timestamp_ms"):
            producer.send_many(topic, [b"v"], timestamps_ms=[-1])
        with pytest.raises(UsageError, match="not a batch"):
            producer.send_batch(topic, 0, bytearray(10), 1)
        with pytest.raises(UsageError, match="not one batch of 2"):
            producer.send_batch(topic, 0, encode_batch([b"v"]), 2)
        with pytest.raises(UsageError, match="bytearray"):
            producer.send_batch(topic, 0, bytes(100), 2)  # pyright: ignore[reportArgumentType]
        with pytest.raises(UsageError, match="pyarrow"):
            producer.send_arrow(topic, [1, 2])
    assert [record.value for record in read_all(bootstrap, topic)] == [b"good"]


def test_record_over_the_topic_limit_fails_alone(bootstrap: str, make_topic: MakeTopic) -> None:
    """A record over the topic's limit fails with a typed error. Records before and after it arrive in order."""
    topic = make_topic(configs={"max.message.bytes": "4096"})
    with Producer(bootstrap) as producer:
        producer.send(topic, b"before")
        producer.send(topic, b"x" * 5_000)
        producer.send(topic, b"after")
        with pytest.raises(DeliveryError) as caught:
            producer.flush()
        assert caught.value.failed_record_count == 1
        assert isinstance(caught.value.failures[0].error, RecordTooLargeError)
        assert caught.value.code is ErrorCode.MESSAGE_TOO_LARGE
        # From now on the client knows the limit, so the call itself raises the error.
        with pytest.raises(RecordTooLargeError):
            producer.send(topic, b"x" * 5_000)
        producer.send_many(topic, [b"y" * 1_000] * 100)
    values = [record.value for record in read_all(bootstrap, topic)]
    assert values == [b"before", b"after", *([b"y" * 1_000] * 100)]


def test_batches_sealed_before_the_limit_is_known_are_split(bootstrap: str, make_topic: MakeTopic) -> None:
    """A topic with a small limit gets all records in order, with keys, headers and times."""
    topic = make_topic(configs={"max.message.bytes": "2048"})
    receipts: list[BatchReceipt] = []
    with Producer(bootstrap, on_batch=receipts.append, linger_ms=1_000) as producer:
        for number in range(300):
            producer.send(topic, b"%03d" % number * 30, key=b"k", timestamp_ms=number, headers=[("n", b"%d" % number)])
    records = read_all(bootstrap, topic)
    assert [record.value for record in records] == [b"%03d" % number * 30 for number in range(300)]
    assert [(record.key, record.timestamp_ms, tuple(record.headers)) for record in records] == [
        (b"k", number, (("n", b"%d" % number),)) for number in range(300)
    ]
    assert sum(receipt.record_count for receipt in receipts) == 300


def test_batch_that_the_broker_refuses_fails_alone(bootstrap: str, make_topic: MakeTopic) -> None:
    """A damaged batch that the caller encoded fails. The batches around it are delivered once and in order."""
    topic = make_topic()
    bad = encode_batch([b"bad"], timestamps_ms=1)
    # The record count differs from the columns. The CRC is computed again when the identity is written.
    bad[57:61] = (7).to_bytes(4, "big")
    bad[23:27] = (6).to_bytes(4, "big")
    with Producer(bootstrap) as producer:
        for number in range(20):
            producer.send_batch(topic, 0, encode_batch([b"%d" % number], timestamps_ms=1), 1)
            if number == 9:
                producer.send_batch(topic, 0, bad, 7)
        with pytest.raises(DeliveryError) as caught:
            producer.flush()
    assert [failure.record_count for failure in caught.value.failures] == [7]
    assert isinstance(caught.value.failures[0].error, BatchRefusedError)
    assert [record.value for record in read_all(bootstrap, topic)] == [b"%d" % number for number in range(20)]


def test_topic_deleted_under_a_producer_fails_its_records(bootstrap: str, admin: Admin, make_topic: MakeTopic) -> None:
    """Records for a deleted topic fail with its error. Other topics are not affected."""
    gone, alive = make_topic(), make_topic()
    with Producer(bootstrap, delivery_timeout_ms=20_000) as producer:
        producer.send(gone, b"1")
        producer.send(alive, b"1")
        producer.flush()
        admin.delete_topic(gone)
        producer.send(gone, b"2")
        producer.send(alive, b"2")
        with pytest.raises(DeliveryError) as caught:
            producer.flush()
        assert [failure.topic for failure in caught.value.failures] == [gone]
        assert isinstance(caught.value.failures[0].error, UnknownTopicError)
    assert len(read_all(bootstrap, alive)) == 2


def test_failures_of_callbacks_do_no_harm(
    bootstrap: str, make_topic: MakeTopic, caplog: pytest.LogCaptureFixture
) -> None:
    """Exceptions of on_batch are logged, and delivery continues."""

    def fail(receipt: BatchReceipt) -> None:
        raise RuntimeError(f"no thanks, {receipt.topic}")

    topic = make_topic()
    with Producer(bootstrap, on_batch=fail) as producer:
        producer.send(topic, b"value")
    assert len(read_all(bootstrap, topic)) == 1
    assert "on_batch failed" in caplog.text


def test_blocking_calls_in_a_callback_are_refused(bootstrap: str, make_topic: MakeTopic) -> None:
    """A flush inside on_batch would wait for itself, so it raises an error."""
    topic = make_topic()
    caught: list[Exception] = []

    def flush(receipt: BatchReceipt) -> None:
        if caught:
            return
        try:
            producer.send(receipt.topic, b"more")
            producer.flush()
        except UsageError as error:
            caught.append(error)

    producer = Producer(bootstrap, on_batch=flush)
    producer.send(topic, b"value")
    producer.flush()
    producer.close()
    assert caught


def test_closed_producer_refuses_everything(bootstrap: str, make_topic: MakeTopic) -> None:
    """After close, which may be called twice, every call raises the error of a closed producer."""
    topic = make_topic()
    producer = Producer(bootstrap)
    producer.send(topic, b"value", key=b"k")
    producer.close()
    producer.close()
    for call in (
        lambda: producer.send(topic, b"value", key=b"k"),
        lambda: producer.send(topic, b"value"),
        lambda: producer.send_many(topic, [b"value"]),
        producer.flush,
    ):
        with pytest.raises(ClientClosedError):
            call()
    assert len(read_all(bootstrap, topic)) == 1


def test_full_buffer_makes_send_wait_and_not_fail(bootstrap: str, make_topic: MakeTopic) -> None:
    """Several threads send far more than the small buffer holds, and nothing is lost."""
    topic = make_topic(3)
    with Producer(bootstrap, batch_bytes=4_096, buffer_bytes=16_384) as producer:

        def work(number: int) -> None:
            for index in range(2_000):
                producer.send(topic, b"%d-%d" % (number, index), key=b"%d" % number)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    records = read_all(bootstrap, topic, 3)
    for number in range(4):
        mine = [record.value for record in records if record.key == b"%d" % number]
        assert mine == [b"%d-%d" % (number, index) for index in range(2_000)]


def test_delivery_timeout_bounds_everything_while_nobody_answers() -> None:
    """Without a leader records fail in time, a full buffer is a typed error, and close fails the rest."""
    address = unused_address()
    receipts: list[BatchReceipt] = []
    producer = Producer(
        address, delivery_timeout_ms=500, batch_bytes=1_024, buffer_bytes=2_048, on_batch=receipts.append
    )
    # Pretend that the topic was known before its broker went away.
    producer._start()  # pyright: ignore[reportPrivateUsage]
    producer._deliveries.open_topic("topic", 1)  # pyright: ignore[reportPrivateUsage]
    started = time.monotonic()

    def fill() -> None:
        for _ in range(100):
            producer.send("topic", b"x" * 500)
            if len(receipts) > 4:
                producer.flush()

    with pytest.raises(LograftError) as caught:
        fill()
    assert isinstance(caught.value, DeliveryError | BufferTimeoutError)
    producer.send("topic", b"x")
    with pytest.raises((DeliveryError, RequestTimeoutError)):
        producer.flush(timeout_ms=1)
    with pytest.raises(DeliveryError) as closing:
        producer.close(timeout_ms=2_000)
    assert time.monotonic() - started < 20
    assert all(isinstance(failure.error, LograftError) for failure in closing.value.failures)
    assert all(receipt.error is not None for receipt in receipts)


def test_errors_survive_a_pickle() -> None:
    """Errors cross process borders (PySpark) with their fields. `copy` uses the pickle protocol."""
    twin = copy.copy(RecordTooLargeError("too large", retry_after_ms=5))
    assert isinstance(twin, RecordTooLargeError)
    assert (twin.message, twin.code, twin.retry_after_ms) == ("too large", ErrorCode.MESSAGE_TOO_LARGE, 5)
    failure = BatchFailure(topic="t", partition=0, record_count=3, error=twin)
    report = copy.copy(DeliveryError([failure], failed_record_count=3))
    assert (report.failures, report.failed_record_count, report.code) == ((failure,), 3, ErrorCode.MESSAGE_TOO_LARGE)


def in_forked_child(work: Callable[[], None]) -> int:
    """Run something in a forked child and return the child's exit code: 0 when it returned."""
    child = os.fork()
    if child == 0:
        try:
            work()
        except BaseException as error:
            os.write(2, repr(error).encode())
            os._exit(1)
        os._exit(0)
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        threading.Event().wait(0.01)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    raise AssertionError("the child hangs")


def test_forked_child_is_told_instead_of_hanging(bootstrap: str, make_topic: MakeTopic) -> None:
    """In a forked child the parent's clients refuse at once and new ones work. The parent's own clients continue there."""
    topic = make_topic()
    with Producer(bootstrap) as producer, Consumer(bootstrap) as consumer:
        producer.send(topic, b"1", key=b"k")
        producer.flush()
        consumer.assign([])

        def work() -> None:
            with Admin(bootstrap) as fresh:
                for call in (
                    lambda: producer.send(topic, b"2", key=b"k"),
                    producer.flush,
                    consumer.poll,
                ):
                    with pytest.raises(ForkedClientError):
                        call()
                assert fresh.list_topics()
            producer.close()
            consumer.close()

        assert in_forked_child(work) == 0
        producer.send(topic, b"3", key=b"k")
    assert [record.value for record in read_all(bootstrap, topic)] == [b"1", b"3"]


def test_child_of_a_process_that_only_imported_may_use_clients(bootstrap: str, make_topic: MakeTopic) -> None:
    """Importing the clients, or making one without using it, does not break a later fork."""
    program = f"""
import os, sys
from lograft import Admin, Consumer, Producer
unused = Producer({bootstrap!r})
child = os.fork()
if child == 0:
    with Producer({bootstrap!r}) as producer:
        producer.send({make_topic()!r}, b"from the child")
    os._exit(0)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    subprocess.run([sys.executable, "-c", program], timeout=60, check=True)
