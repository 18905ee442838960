# SPDX-License-Identifier: Apache-2.0
"""The handle that `send` returns: each record gets its own offset and time, and every handle gets a result."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator

import pytest
from lograft import Delivery, Durability, Producer, aio
from lograft.errors import (
    BatchRefusedError,
    DeliveryError,
    ForkedClientError,
    InvalidSettingError,
    LograftError,
    OutcomeUnknownError,
    RecordTooLargeError,
    RequestTimeoutError,
    UsageError,
)
from lograft.types import RecordReceipt
from tests.client.processes import unused_address
from tests.client.reading import read_all

MakeTopic = Callable[..., str]


def test_result_says_where_the_record_is(bootstrap: str, make_topic: MakeTopic) -> None:
    """Topic, partition, offset, time and durability are those that a consumer reads, on the fast and on the slow path."""
    topic = make_topic(3)
    with Producer(bootstrap, linger_ms=20) as producer:
        sent = [
            (b"%d" % number, producer.send(topic, b"%d" % number, key=b"%d" % (number % 40), **fields))
            for number, fields in enumerate(
                [{}, {}, {"timestamp_ms": 5}, {"headers": [("h", b"x")]}, {}, {"timestamp_ms": 6}] * 50
            )
        ]
        receipts = {value: delivery.result(20_000) for value, delivery in sent}
        assert all(delivery.done() for _, delivery in sent)
    for record in read_all(bootstrap, topic, 3):
        assert record.value is not None
        receipt = receipts.pop(record.value)
        assert (receipt.topic, receipt.partition, receipt.offset) == (topic, record.partition, record.offset)
        assert receipt.timestamp_ms == record.timestamp_ms
        assert receipt.durability >= Durability.APPENDED
        assert not receipt.duplicate
    assert not receipts
    assert {(delivery.topic, delivery.partition) for _, delivery in sent} == {(topic, number) for number in range(3)}


@pytest.fixture
def nervous() -> Iterator[None]:
    """The interpreter switches threads as often as it can."""
    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval_s)


@pytest.mark.usefixtures("nervous")
def test_threads_that_meet_in_a_batch_get_the_offsets_of_their_own_records(
    bootstrap: str, make_topic: MakeTopic
) -> None:
    """While batches are sealed under four threads, each handle names the offset at which its value is."""
    topic = make_topic()
    receipts: dict[bytes, RecordReceipt] = {}
    with Producer(bootstrap, batch_bytes=4_096, linger_ms=0) as producer:

        def work(number: int) -> None:
            sent: list[tuple[bytes, Delivery]] = []
            for index in range(3_000):
                value = b"%d-%d" % (number, index)
                sent.append((value, producer.send(topic, value)))
            receipts.update({value: delivery.result(60_000) for value, delivery in sent})

        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    records = read_all(bootstrap, topic)
    assert len(records) == 12_000
    assert [(record.value, record.offset, record.timestamp_ms) for record in records] == [
        (record.value, receipts[record.value or b""].offset, receipts[record.value or b""].timestamp_ms)
        for record in records
    ]


def test_callbacks_run_on_the_background_thread_without_a_lock(
    bootstrap: str, make_topic: MakeTopic, caplog: pytest.LogCaptureFixture
) -> None:
    """A callback may send. An exception in one is logged, and the callbacks behind it and later records are not affected."""
    topic = make_topic()
    called: list[tuple[str, int | None]] = []
    more: list[Delivery] = []
    with Producer(bootstrap, linger_ms=20) as producer:

        def on_done(delivery: Delivery) -> None:
            called.append((threading.current_thread().name, delivery.result().offset))
            more.append(producer.send(topic, b"from a callback"))

        def fail(delivery: Delivery) -> None:
            raise ZeroDivisionError(delivery)

        delivery = producer.send(topic, b"first")
        delivery.add_done_callback(fail)
        delivery.add_done_callback(on_done)
        with caplog.at_level(logging.ERROR, "lograft.delivery"):
            assert delivery.result(20_000).offset == 0
            producer.flush()
        assert "ZeroDivisionError" in caplog.text
        assert more[0].result(20_000).offset == 1
        assert called == [("lograft", 0)]
        delivery.add_done_callback(on_done)
        assert called[1:] == [(threading.current_thread().name, 0)]


def test_the_background_thread_does_not_wait_for_itself(bootstrap: str, make_topic: MakeTopic) -> None:
    """A wait in a callback would never end, so it raises."""
    topic = make_topic()
    errors: list[BaseException] = []
    with Producer(bootstrap) as producer:

        def wait(_: Delivery) -> None:
            try:
                producer.send(topic, b"2").result(10_000)
            except UsageError as error:
                errors.append(error)

        producer.send(topic, b"1").add_done_callback(wait)
        producer.flush()
        producer.flush()
    assert [type(error) for error in errors] == [UsageError]


def test_result_with_a_time_limit_leaves_the_record_on_its_way(bootstrap: str, make_topic: MakeTopic) -> None:
    """Such a wait raises within its time; the result comes later. Times of a wrong kind are refused."""
    topic = make_topic()
    with Producer(bootstrap, linger_ms=60_000) as producer:
        delivery = producer.send(topic, b"value")
        began_s = time.monotonic()
        with pytest.raises(RequestTimeoutError, match="still on its way"):
            delivery.result(50)
        assert 0.04 < time.monotonic() - began_s < 10
        assert not delivery.done()
        assert "under way" in repr(delivery)
        with pytest.raises(InvalidSettingError, match="timeout_ms"):
            delivery.result(-1)
        producer.flush()
        assert delivery.result(0).offset == 0


def test_every_handle_gets_a_result_when_a_broker_refuses_and_when_batches_are_split(
    bootstrap: str, make_topic: MakeTopic
) -> None:
    """A record over the limit fails alone; those around it, in pieces of the same batch, have their own offsets."""
    topic = make_topic(configs={"max.message.bytes": "2048"})
    with Producer(bootstrap, linger_ms=60_000) as producer:
        sent = [producer.send(topic, b"%03d" % number * 30, key=b"k") for number in range(300)]
        large = producer.send(topic, b"x" * 5_000)
        after = producer.send(topic, b"after")
        with pytest.raises(DeliveryError):
            producer.flush()
        assert [delivery.result(0).offset for delivery in sent] == list(range(300))
        assert after.result(0).offset == 300
        for _ in range(2):
            with pytest.raises(RecordTooLargeError):
                large.result(0)


def test_unacknowledged_records_have_a_result_without_an_offset(bootstrap: str, make_topic: MakeTopic) -> None:
    """With acks="none" nobody knows the offset."""
    topic = make_topic()
    with Producer(bootstrap, acks="none") as producer:
        receipt = producer.send(topic, b"value").result(20_000)
    assert (receipt.offset, receipt.durability) == (None, Durability.UNKNOWN)


def _cut_off(**settings: int) -> Producer:
    """Return a producer that knows a topic "t" and reaches no broker any more."""
    producer = Producer(unused_address(), **settings)  # pyright: ignore[reportArgumentType]
    producer._start()  # pyright: ignore[reportPrivateUsage]
    producer._deliveries.open_topic("t", 1)  # pyright: ignore[reportPrivateUsage]
    return producer


def test_close_resolves_what_could_not_be_delivered() -> None:
    """Threads that wait, and callbacks, learn of it too."""
    producer = _cut_off()
    delivery = producer.send("t", b"value")
    called = threading.Event()
    delivery.add_done_callback(lambda _: called.set())
    caught: list[LograftError] = []

    def wait() -> None:
        try:
            delivery.result()
        except LograftError as error:
            caught.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    with pytest.raises(DeliveryError):
        producer.close(timeout_ms=200)
    thread.join(10)
    assert [type(error) for error in caught] == [OutcomeUnknownError]
    assert called.is_set()


def test_delivery_time_out_resolves_the_handle() -> None:
    """A record that cannot be delivered in time fails with that error, though nobody flushes."""
    producer = _cut_off(delivery_timeout_ms=300)
    delivery = producer.send("t", b"value")
    with pytest.raises(RequestTimeoutError, match="delivery_timeout_ms"):
        delivery.result(20_000)
    with pytest.raises(DeliveryError):
        producer.close()


def test_a_handle_keeps_neither_the_record_nor_the_producer(bootstrap: str, make_topic: MakeTopic) -> None:
    """Only the outcome of its batch; and nothing stays without handles."""
    topic = make_topic()
    with Producer(bootstrap) as producer:
        delivery = producer.send(topic, b"value")
        delivery.result(20_000)
    gone = weakref.ref(producer)
    del producer
    gc.collect()
    assert gone() is None
    reachable: list[object] = [delivery]
    seen: set[int] = set()
    while reachable:
        each = reachable.pop()
        if id(each) in seen or isinstance(each, type):
            continue
        seen.add(id(each))
        assert each != b"value"
        reachable += gc.get_referents(each)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_handles_of_the_parent_are_resolved_in_a_forked_child(bootstrap: str, make_topic: MakeTopic) -> None:
    """They raise at once, and the parent's callbacks run in the parent only."""
    topic = make_topic()
    with Producer(bootstrap, linger_ms=60_000) as producer:
        delivery = producer.send(topic, b"value")
        called: list[int] = []
        delivery.add_done_callback(lambda _: called.append(os.getpid()))
        child = os.fork()
        if child == 0:
            code = 1
            try:
                delivery.result(10_000)
            except ForkedClientError:
                code = 0 if delivery.done() and not called else 2
            finally:
                os._exit(code)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        producer.flush()
        assert delivery.result(0).offset == 0
        assert called == [os.getpid()]


async def test_await_in_asyncio(bootstrap: str, make_topic: MakeTopic) -> None:
    """`send` returns the handle, `send_and_wait` the receipt; a handle of a blocking producer can be awaited as well."""
    topic = make_topic()
    async with aio.Producer(bootstrap) as producer:
        deliveries = [await producer.send(topic, b"%d" % number) for number in range(500)]
        receipts = await asyncio.gather(*deliveries)
        assert [receipt.offset for receipt in receipts] == list(range(500))
        assert (await deliveries[7]).offset == 7
        receipt = await producer.send_and_wait(topic, b"value", b"key", timestamp_ms=9)
        assert (receipt.offset, receipt.timestamp_ms) == (500, 9)
        together = await asyncio.gather(*(producer.send_and_wait(topic, b"x") for _ in range(50)))
        assert [receipt.offset for receipt in together] == list(range(501, 551))
        with pytest.raises(UsageError, match="await"):
            (await producer.send(topic, b"value")).result()
    with Producer(bootstrap) as blocking:
        assert (await blocking.send(topic, b"value")).offset == 552


async def test_cancelled_await_leaves_the_record_on_its_way(bootstrap: str, make_topic: MakeTopic) -> None:
    """A wait with a time limit of asyncio ends, and the next one gets the result."""
    topic = make_topic()
    async with aio.Producer(bootstrap, linger_ms=200) as producer:
        delivery = await producer.send(topic, b"value")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(delivery, 0.01)
        assert (await delivery).offset == 0


async def test_failures_are_raised_where_they_are_awaited(bootstrap: str, make_topic: MakeTopic) -> None:
    """A refused record raises its own error."""
    topic = make_topic(configs={"cleanup.policy": "compact"})
    producer = aio.Producer(bootstrap)
    with pytest.raises(BatchRefusedError):
        await producer.send_and_wait(topic, b"a record without a key")
    with pytest.raises(DeliveryError):
        await producer.close()


def test_threads_learn_that_the_event_loop_of_an_aio_producer_is_gone(bootstrap: str, make_topic: MakeTopic) -> None:
    """A handle that a coroutine gave to a thread gets an error when the producer is dropped with its loop."""
    topic = make_topic()

    async def send() -> tuple[aio.Producer, Delivery]:
        producer = aio.Producer(bootstrap, linger_ms=60_000)
        return producer, await producer.send(topic, b"value")

    producer, delivery = asyncio.run(send())
    with pytest.warns(ResourceWarning, match="not delivered"):
        producer._leave(0.0)  # as the end of the process does
    with pytest.raises(LograftError, match="closed"):
        delivery.result(0)
