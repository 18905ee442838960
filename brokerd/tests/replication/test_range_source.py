# SPDX-License-Identifier: Apache-2.0
"""FetchRange: what a replica sends to another one, and what it refuses."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from lograft.internal.v1 import replication_pb2 as pb
from lograft.wire.batch import encode_batch
from lograft.wire.codes import ErrorCode
from lograft.wire.header import stamp

from brokerd.failure import RefusedError
from brokerd.replica.replica import Replica
from brokerd.replication.repair import RangeSource
from brokerd.tests.replica.broker_of_three import TOPIC_ID, BrokerOfThree, followed, send, stamped
from storage.errors import DiskReadError
from storage.log.partition_log import PartitionLog
from storage.testing.sim_disk import Refusal

COUNT = 8
COMMITTED = 6
INCARNATION_ID = bytes(15) + b"\x01"
"""Incarnation id of the registered processes."""


@pytest.fixture
async def three() -> AsyncIterator[BrokerOfThree]:
    """A follower with eight batches of one record, six of them committed."""
    made = BrokerOfThree()
    yield made
    await made.manager.stop()


async def replica_of(three: BrokerOfThree) -> Replica:
    replica = await followed(three)
    send(three, stamped(0, 0, COUNT), base_offset=0, high_watermark=COMMITTED)
    return replica


async def fetched(three: BrokerOfThree, **fields: Any) -> bytes:
    """Request a range."""
    calls = RangeSource(cluster_id="c", node_id=1, observer=three.observer, find=three.manager.find)
    asked = {"cluster_id": "c", "broker_id": 1, "topic_id": TOPIC_ID, "base_offset": 2, "end_offset": 5}
    asked |= {"replica_id": 2, "broker_epoch": 1, "incarnation_id": INCARNATION_ID} | fields
    return calls.fetch_range(pb.FetchRangeRequest(**asked)).batches


async def test_committed_batches_are_given_byte_for_byte(three: BrokerOfThree) -> None:
    """A follower answers too: exactly the range, up to the high watermark."""
    await replica_of(three)
    assert await fetched(three) == stamped(2, 0, 3)
    assert await fetched(three, base_offset=0, end_offset=COMMITTED) == stamped(0, 0, COMMITTED)


async def test_long_range_comes_in_pieces(three: BrokerOfThree, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole batches up to the limit, at least one."""
    await replica_of(three)
    monkeypatch.setattr("brokerd.replication.repair.RANGE_CHUNK_BYTES", len(stamped(0, 0, 2)) + 1)
    assert await fetched(three) == stamped(2, 0, 2)
    monkeypatch.setattr("brokerd.replication.repair.RANGE_CHUNK_BYTES", 1)
    assert await fetched(three) == stamped(2, 0)


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"cluster_id": "other"}, ErrorCode.WRONG_CLUSTER),
        ({"cluster_id": ""}, ErrorCode.WRONG_CLUSTER),
        ({"broker_id": 2}, ErrorCode.INVALID_REQUEST),
        ({"replica_id": 9}, ErrorCode.METADATA_NOT_REACHED),
        ({"broker_epoch": 2}, ErrorCode.METADATA_NOT_REACHED),
        ({"broker_epoch": 0}, ErrorCode.STALE_BROKER_EPOCH),
        ({"incarnation_id": b""}, ErrorCode.INVALID_REQUEST),
        ({"replica_id": 4}, ErrorCode.UNKNOWN_PARTITION),
        ({"base_offset": -1}, ErrorCode.INVALID_REQUEST),
        ({"base_offset": 5}, ErrorCode.INVALID_REQUEST),
        ({"partition": 1}, ErrorCode.UNKNOWN_PARTITION),
        ({"partition": -1}, ErrorCode.UNKNOWN_PARTITION),
        ({"topic_id": b"no id"}, ErrorCode.UNKNOWN_PARTITION),
        ({"end_offset": COMMITTED + 1}, ErrorCode.OFFSET_NOT_AVAILABLE),
        ({"end_offset": 2**63 - 1}, ErrorCode.OFFSET_NOT_AVAILABLE),
    ],
)
async def test_refused_requests(three: BrokerOfThree, fields: dict[str, Any], code: ErrorCode) -> None:
    """Each refusal is typed. Data that is not known to be committed is not sent, nor data for a broker without a replica."""
    await replica_of(three)
    three.commit(three.registration(4, broker_epoch=1))
    with pytest.raises(RefusedError) as caught:
        await fetched(three, **fields)
    assert caught.value.failure.code is code


async def test_range_must_begin_and_end_with_batches(three: BrokerOfThree) -> None:
    """Parts of a batch are of no use."""
    replica = await followed(three)
    first = bytearray(stamped(0, 0))
    send(three, bytes(first), base_offset=0, high_watermark=0)
    data = stamped_of_three(1)
    send(three, data, base_offset=1, high_watermark=4)
    assert replica.high_watermark == 4
    assert await fetched(three, base_offset=1, end_offset=4) == data
    for base_offset, end_offset in ((2, 4), (1, 3)):
        with pytest.raises(RefusedError) as caught:
            await fetched(three, base_offset=base_offset, end_offset=end_offset)
        assert caught.value.failure.code is ErrorCode.INVALID_REQUEST


def stamped_of_three(base_offset: int) -> bytes:
    """Return one batch of three records, as a leader has it in its log."""
    data = encode_batch([b"a", b"b", b"c"], timestamps_ms=5)
    stamp(data, base_offset=base_offset, leader_epoch=0)
    return bytes(data)


async def test_compacted_range_is_not_given(three: BrokerOfThree, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compacted batches are specific to this replica. From the first uncompacted offset on, everything is sent."""
    await replica_of(three)
    monkeypatch.setattr(PartitionLog, "dirty_offset", property(lambda _: 3))
    with pytest.raises(RefusedError) as caught:
        await fetched(three)
    assert caught.value.failure.code is ErrorCode.INVALID_REQUEST
    assert await fetched(three, base_offset=3) == stamped(3, 0, 2)


async def test_what_cannot_be_read_is_refused(three: BrokerOfThree) -> None:
    """The disk does not answer."""
    replica = await replica_of(three)
    replica.log.flush()
    three.disk.refuse("pread", ".log", Refusal.IO_ERROR)
    with pytest.raises(RefusedError) as caught:
        await fetched(three)
    assert caught.value.failure.code is DiskReadError.code
