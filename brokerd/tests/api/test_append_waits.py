# SPDX-License-Identifier: Apache-2.0
"""Answers of Append when the disk is slow, the deadline is short, or the broker loses the partition."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest
from lograft.v1 import log_pb2
from lograft.wire.codes import ErrorCode

from brokerd.api.forward import Forwarder
from brokerd.api.log_service.append import THREAD_RECORDS, AppendCalls
from brokerd.api.log_service.read import ReadCalls
from brokerd.failure import RefusedError
from brokerd.tests.api.call_context import GivenContext
from brokerd.tests.replica.lone_broker import TOPIC_ID, LoneBroker
from brokerd.tests.support import WAIT_S, offline_parts
from metaquorum.metadata.records import LeaderChange, PartitionChangeRecord, RemoveTopicRecord
from storage.testing.sim_disk import SimCall, SimDisk


class SlowDisk(SimDisk):
    """A disk whose syncs of record files wait until the test releases them."""

    def __init__(self) -> None:
        super().__init__()
        self.may_sync = threading.Event()
        self.may_sync.set()
        self.on_call = self._wait

    def _wait(self, call: SimCall) -> None:
        if call.operation == "sync" and call.path.endswith(".log"):
            assert self.may_sync.wait(WAIT_S)


@pytest.fixture
def disk() -> Iterator[SlowDisk]:
    """A disk that is released at the end, whatever happens."""
    made = SlowDisk()
    yield made
    made.may_sync.set()


async def calls_over(lone: LoneBroker) -> tuple[AppendCalls, ReadCalls]:
    lone.disk.make_directory("/data")
    lone.disk.make_directory("/data/partitions")
    await lone.manager.start()
    lone.register()
    lone.create_topic()
    parts = offline_parts(lone.observer, lone.manager)
    forwarder = Forwarder(parts.peers, parts.observer)
    return AppendCalls(parts, forwarder), ReadCalls(parts, forwarder)


def request(count: int = 1) -> log_pb2.AppendRequest:
    return log_pb2.AppendRequest(topic="t", partition=0, records=[log_pb2.Record(value=b"v")] * count)


async def code_of(calls: AppendCalls, deadline_s: float) -> ErrorCode:
    with pytest.raises(RefusedError) as caught:
        await calls.append(request(), GivenContext(seconds=deadline_s))
    return caught.value.failure.code


async def test_append_without_ack_in_time_is_unknown(disk: SlowDisk) -> None:
    """The record is in the log but not flushed, so its outcome is unknown. The next append is not delayed by the wait."""
    lone = LoneBroker(disk)
    calls, _ = await calls_over(lone)
    disk.may_sync.clear()
    assert await code_of(calls, 0.2) is ErrorCode.OUTCOME_UNKNOWN
    replica = await lone.replica()
    assert (replica.log_end_offset, replica.high_watermark) == (1, 0)
    disk.may_sync.set()
    response = await calls.append(request(), GivenContext(seconds=None))
    assert response.ranges[0].base_offset == 1
    await lone.manager.stop()


async def test_append_after_its_deadline_is_timed_out_and_not_appended(disk: SlowDisk) -> None:
    """If the deadline passes before the append, nothing is done, and the answer says so."""
    lone = LoneBroker(disk)
    calls, _ = await calls_over(lone)
    assert await code_of(calls, 0.0) is ErrorCode.TIMED_OUT
    assert (await lone.replica()).log_end_offset == 0
    await lone.manager.stop()


async def test_partition_lost_under_an_append_leaves_it_unknown(disk: SlowDisk) -> None:
    """A leadership that ends before the flush leaves the outcome of the record unknown."""
    lone = LoneBroker(disk)
    calls, _ = await calls_over(lone)
    disk.may_sync.clear()
    append = asyncio.create_task(code_of(calls, WAIT_S))
    replica = await lone.replica()
    async with asyncio.timeout(WAIT_S):
        while replica.log_end_offset == 0:
            await asyncio.to_thread(lambda: None)
    lone.commit(PartitionChangeRecord(topic_id=TOPIC_ID, partition=0, leader=LeaderChange(leader_id=None)))
    assert await append is ErrorCode.OUTCOME_UNKNOWN
    disk.may_sync.set()
    await lone.manager.stop()


async def test_read_waiting_on_a_deleted_topic_is_refused(disk: SlowDisk) -> None:
    """A long poll ends at once with UNKNOWN_TOPIC when its topic is deleted."""
    lone = LoneBroker(disk)
    _, reads = await calls_over(lone)
    replica = await lone.replica()
    read = log_pb2.ReadRequest(topic="t", max_wait_ms=30_000)
    waiting = asyncio.create_task(reads.read(read, GivenContext(seconds=None)))
    async with asyncio.timeout(WAIT_S):
        while not len(replica.listeners):
            await asyncio.to_thread(lambda: None)
    lone.commit(RemoveTopicRecord(topic_id=TOPIC_ID))
    with pytest.raises(RefusedError) as caught:
        await waiting
    assert caught.value.failure.code is ErrorCode.UNKNOWN_TOPIC
    await lone.manager.stop()


async def test_large_append_is_encoded_aside_and_read_back(disk: SlowDisk) -> None:
    """Many records take the way over a thread and come back whole."""
    lone = LoneBroker(disk)
    calls, reads = await calls_over(lone)
    response = await calls.append(request(THREAD_RECORDS * 8), GivenContext(seconds=None))
    assert len(response.ranges[0].record_indexes) == THREAD_RECORDS * 8
    read = log_pb2.ReadRequest(topic="t", max_records=100_000)
    found = await reads.read(read, GivenContext(seconds=None))
    assert len(found.records) == THREAD_RECORDS * 8
    await lone.manager.stop()
