# SPDX-License-Identifier: Apache-2.0
"""What a broker makes of a call that another one passed on, when that one had seen more of the metadata."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from lograft.v1 import errors_pb2, log_pb2
from lograft.wire.codes import ErrorCode

from brokerd.api.append import AppendCalls
from brokerd.api.calls import ServicerContext
from brokerd.api.delete_records import DeleteRecordsCalls
from brokerd.api.forward import Forwarder
from brokerd.api.forwarded import FORWARDED_KEY
from brokerd.api.list_offsets import ListOffsetsCalls
from brokerd.api.read import ReadCalls
from brokerd.failure import RefusedError
from brokerd.tests.call_context import call_context
from brokerd.tests.replica.lone_broker import TOPIC_ID, LoneBroker
from brokerd.tests.support import WAIT_S, offline_parts
from metaquorum.metadata.records import LeaderChange, PartitionChangeRecord
from storage.testing.sim_disk import SimDisk


def forwarded(mark: str, *, seconds: float = 20.0) -> ServicerContext:
    """The context of a call with the mark of a forwarder."""
    return call_context(seconds=seconds, metadata=(("user-agent", "x"), (FORWARDED_KEY, mark)))


class Receiver:
    """The calls of one broker over metadata that the test commits."""

    def __init__(self, lone: LoneBroker) -> None:
        parts = offline_parts(lone.observer, lone.manager)
        forwarder = Forwarder(parts.peers, parts.observer)
        self._append = AppendCalls(parts, forwarder)
        self._read = ReadCalls(parts, forwarder)
        self._list_offsets = ListOffsetsCalls(parts, forwarder)
        self._delete = DeleteRecordsCalls(parts, forwarder)

    async def append(self, context: ServicerContext) -> int:
        records = [log_pb2.Record(value=b"v")]
        request = log_pb2.AppendRequest(topic="t", partition=0, records=records)
        return (await self._append.append(request, context)).ranges[0].base_offset

    async def read(self, context: ServicerContext) -> int:
        request = log_pb2.ReadRequest(topic="t", partition=0)
        return (await self._read.read(request, context)).high_watermark

    async def list_offsets(self, context: ServicerContext) -> int:
        query = log_pb2.OffsetQuery(topic="t", partition=0, position=log_pb2.OFFSET_POSITION_LATEST)
        request = log_pb2.ListOffsetsRequest(queries=[query])
        result = (await self._list_offsets.list_offsets(request, context)).results[0]
        return _offset_or_raise(result.error, result.offset)

    async def delete_records(self, context: ServicerContext) -> int:
        asked = log_pb2.RecordsBefore(topic="t", partition=0, before_offset=0)
        request = log_pb2.DeleteRecordsRequest(partitions=[asked])
        result = (await self._delete.delete_records(request, context)).results[0]
        return _offset_or_raise(result.error, result.log_start_offset)


Call = Callable[[Receiver, ServicerContext], Awaitable[int]]
CALLS: list[Call] = [Receiver.append, Receiver.read, Receiver.list_offsets, Receiver.delete_records]


def _offset_or_raise(error: errors_pb2.PartitionError, offset: int) -> int:
    if error.code:
        raise AssertionError(ErrorCode.from_number(error.code))
    return offset


@pytest.fixture
async def lone() -> AsyncIterator[LoneBroker]:
    """A broker that is registered and knows no topic."""
    disk = SimDisk()
    disk.make_directory("/data")
    disk.make_directory("/data/partitions")
    made = LoneBroker(disk)
    await made.manager.start()
    made.register()
    yield made
    await made.manager.stop()


async def begun(call: Awaitable[int]) -> asyncio.Task[int]:
    task = asyncio.ensure_future(call)
    for _ in range(10):
        await asyncio.sleep(0)
    assert not task.done()
    assert isinstance(task, asyncio.Task)
    return task


@pytest.mark.parametrize("call", CALLS)
async def test_leader_that_has_not_heard_of_a_new_topic_waits_for_it(lone: LoneBroker, call: Call) -> None:
    """The forwarder knew the topic: the leader does not say that there is none, it waits until it knows as much."""
    seen = lone.observer.metadata_offset + 1
    task = await begun(call(Receiver(lone), forwarded(str(seen))))
    lone.create_topic()
    assert await task == 0


@pytest.mark.parametrize("call", CALLS)
async def test_new_leader_that_has_not_heard_of_it_waits(lone: LoneBroker, call: Call) -> None:
    """The forwarder knew that the leadership has moved here."""
    lone.create_topic()
    await lone.replica()
    lone.commit(_led_by(None))
    seen = lone.observer.metadata_offset + 1
    task = await begun(call(Receiver(lone), forwarded(str(seen))))
    lone.commit(_led_by(1))
    assert await task == 0


async def test_metadata_that_does_not_come_ends_the_wait(lone: LoneBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the limit, or at the deadline, the receiver's own view counts."""
    receiver = Receiver(lone)
    with pytest.raises(RefusedError) as caught:
        await receiver.append(forwarded(str(10**9), seconds=0.1))
    assert caught.value.failure.code in {ErrorCode.UNKNOWN_TOPIC, ErrorCode.TIMED_OUT}
    monkeypatch.setattr("brokerd.api.forwarded.FORWARDED_WAIT_MS", 20)
    with pytest.raises(RefusedError) as caught:
        await receiver.read(forwarded(str(10**9)))
    assert caught.value.failure.code is ErrorCode.UNKNOWN_TOPIC


@pytest.mark.parametrize("mark", ["0", "1", "-5", "", "x", "9" * 4_000])
async def test_mark_without_a_later_offset_is_not_waited_for(lone: LoneBroker, mark: str) -> None:
    """A call with any other mark was forwarded too: it goes no further and is answered at once."""
    with pytest.raises(RefusedError) as caught:
        await Receiver(lone).read(forwarded(mark))
    assert caught.value.failure.code is ErrorCode.UNKNOWN_TOPIC
    lone.create_topic()
    lone.commit(_led_by(None))
    with pytest.raises(RefusedError) as caught:
        await Receiver(lone).read(forwarded(mark))
    assert caught.value.failure.code is ErrorCode.LEADER_NOT_AVAILABLE


async def test_leader_that_is_behind_answers_what_it_leads_at_once(
    lone: LoneBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker that hears nothing new goes on serving what it leads."""
    monkeypatch.setattr("brokerd.api.forwarded.FORWARDED_WAIT_MS", 3_600_000)
    lone.create_topic()
    await lone.replica()
    async with asyncio.timeout(WAIT_S):
        assert await Receiver(lone).read(forwarded(str(10**9), seconds=3_600.0)) == 0


def _led_by(leader_id: int | None) -> PartitionChangeRecord:
    return PartitionChangeRecord(topic_id=TOPIC_ID, partition=0, leader=LeaderChange(leader_id=leader_id))
