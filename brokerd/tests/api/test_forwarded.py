# SPDX-License-Identifier: Apache-2.0
"""How a broker handles a forwarded call whose sender had newer metadata."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from lograft.v1 import errors_pb2, log_pb2
from lograft.wire.codes import ErrorCode

from brokerd.api.forward import ForwardedContext, Forwarder
from brokerd.api.log_service.append import AppendCalls
from brokerd.api.log_service.delete_records import DeleteRecordsCalls
from brokerd.api.log_service.list_offsets import ListOffsetsCalls
from brokerd.api.log_service.read import ReadCalls
from brokerd.failure import RefusedError
from brokerd.tests.replica.lone_broker import TOPIC_ID, LoneBroker
from brokerd.tests.support import WAIT_S, offline_parts
from metaquorum.metadata.records import LeaderChange, PartitionChangeRecord
from storage.testing.sim_disk import SimDisk


def forwarded(metadata_offset: int, *, timeout_ms: int = 20_000) -> ForwardedContext:
    """Return the context of a call whose sender had applied metadata up to this offset."""
    return ForwardedContext(timeout_ms=timeout_ms, metadata_offset=metadata_offset)


class Receiver:
    """The calls of one broker over metadata that the test commits."""

    def __init__(self, lone: LoneBroker) -> None:
        parts = offline_parts(lone.observer, lone.manager)
        forwarder = Forwarder(parts.peers, parts.observer)
        self._append = AppendCalls(parts, forwarder)
        self._read = ReadCalls(parts, forwarder)
        self._list_offsets = ListOffsetsCalls(parts, forwarder)
        self._delete = DeleteRecordsCalls(parts, forwarder)

    async def append(self, context: ForwardedContext) -> int:
        records = [log_pb2.Record(value=b"v")]
        request = log_pb2.AppendRequest(topic="t", partition=0, records=records)
        return (await self._append.append(request, context)).ranges[0].base_offset

    async def read(self, context: ForwardedContext) -> int:
        request = log_pb2.ReadRequest(topic="t", partition=0)
        return (await self._read.read(request, context)).high_watermark

    async def list_offsets(self, context: ForwardedContext) -> int:
        query = log_pb2.OffsetQuery(topic="t", partition=0, position=log_pb2.OFFSET_POSITION_LATEST)
        request = log_pb2.ListOffsetsRequest(queries=[query])
        result = (await self._list_offsets.list_offsets(request, context)).results[0]
        return _offset_or_raise(result.error, result.offset)

    async def delete_records(self, context: ForwardedContext) -> int:
        asked = log_pb2.RecordsBefore(topic="t", partition=0, before_offset=0)
        request = log_pb2.DeleteRecordsRequest(partitions=[asked])
        result = (await self._delete.delete_records(request, context)).results[0]
        return _offset_or_raise(result.error, result.log_start_offset)


Call = Callable[[Receiver, ForwardedContext], Awaitable[int]]
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
    """The forwarder knew the topic. The leader does not deny that it exists, but waits until it has the same metadata."""
    seen = lone.observer.metadata_offset + 1
    task = await begun(call(Receiver(lone), forwarded(seen)))
    lone.create_topic()
    assert await task == 0


@pytest.mark.parametrize("call", CALLS)
async def test_new_leader_that_has_not_heard_of_it_waits(lone: LoneBroker, call: Call) -> None:
    """The forwarder knew that the leadership has moved here."""
    lone.create_topic()
    await lone.replica()
    lone.commit(_led_by(None))
    seen = lone.observer.metadata_offset + 1
    task = await begun(call(Receiver(lone), forwarded(seen)))
    lone.commit(_led_by(1))
    assert await task == 0


async def test_metadata_that_does_not_come_ends_the_wait(lone: LoneBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the limit, or at the deadline, the receiver's own view counts."""
    receiver = Receiver(lone)
    with pytest.raises(RefusedError) as caught:
        await receiver.append(forwarded(10**9, timeout_ms=100))
    assert caught.value.failure.code in {ErrorCode.UNKNOWN_TOPIC, ErrorCode.TIMED_OUT}
    monkeypatch.setattr("brokerd.api.forward.FORWARDED_WAIT_MS", 20)
    with pytest.raises(RefusedError) as caught:
        await receiver.read(forwarded(10**9))
    assert caught.value.failure.code is ErrorCode.UNKNOWN_TOPIC


@pytest.mark.parametrize("seen", [0, 1, -5])
async def test_earlier_offset_is_not_waited_for(lone: LoneBroker, seen: int) -> None:
    """The call is not forwarded again, and is answered at once."""
    with pytest.raises(RefusedError) as caught:
        await Receiver(lone).read(forwarded(seen))
    assert caught.value.failure.code is ErrorCode.UNKNOWN_TOPIC
    lone.create_topic()
    lone.commit(_led_by(None))
    with pytest.raises(RefusedError) as caught:
        await Receiver(lone).read(forwarded(seen))
    assert caught.value.failure.code is ErrorCode.LEADER_NOT_AVAILABLE


async def test_leader_that_is_behind_answers_what_it_leads_at_once(
    lone: LoneBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker that gets no new metadata keeps serving the partitions that it leads."""
    monkeypatch.setattr("brokerd.api.forward.FORWARDED_WAIT_MS", 3_600_000)
    lone.create_topic()
    await lone.replica()
    async with asyncio.timeout(WAIT_S):
        assert await Receiver(lone).read(forwarded(10**9, timeout_ms=3_600_000)) == 0


def _led_by(leader_id: int | None) -> PartitionChangeRecord:
    return PartitionChangeRecord(topic_id=TOPIC_ID, partition=0, leader=LeaderChange(leader_id=leader_id))
