# SPDX-License-Identifier: Apache-2.0
"""The outcome of a forwarded call when the other broker is gone, silent, stopping, or answers nonsense; and the limit of calls."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from lograft.internal.v1 import forward_pb2
from lograft.v1 import log_pb2
from lograft.wire.codes import ErrorCode
from lograft.wire.limits import MAX_GRPC_MESSAGE_BYTES

from brokerd.addresses import internal_address
from brokerd.api import forward
from brokerd.api.calls import CallContext, CallFailedError
from brokerd.api.forward import ForwardedCalls, ForwardedContext, ForwardedMethod, Forwarder
from brokerd.failure import Failure, LeaderPlace, ReadableOffsets, RefusedError
from brokerd.tests.support import WAIT_S
from metaquorum.metadata import record_codec
from metaquorum.metadata.listener import CommittedBatch
from metaquorum.metadata.loader import MetadataLoader
from metaquorum.metadata.records import BrokerRecord
from metaquorum.net.carrier import Carrier
from metaquorum.net.connection import Limits
from metaquorum.net.link import RefusedByPeerError
from metaquorum.net.methods import Method
from metaquorum.net.peers import NotSentError, Peers
from metaquorum.net.service import ServiceTable, decode_refusal
from metaquorum.tests.quorum_cluster import until

CLUSTER = "c"
LEADER = LeaderPlace(leader_id=2, leader_epoch=1, host="127.0.0.1", port=1)
LONG_MS, SHORT_MS = int(WAIT_S * 1000), 2_000
PATIENT = Limits(greeting_ms=LONG_MS, ping_after_ms=LONG_MS, liveness_ms=2 * LONG_MS, suspect_ms=LONG_MS)
"""Limits with which a slow machine does not look dead."""
Behaviour = Callable[[log_pb2.ReadRequest, ForwardedContext], Awaitable[bytes]]
"""Answers a Read at the leader, serialized."""


class Scene:
    """Broker 1, which forwards calls, and broker 2, which answers them.

    Attributes:
        observer: the metadata of broker 1.
        forwarded: the calls at broker 2.
    """

    def __init__(self, peers: Peers, observer: MetadataLoader, leader: Carrier, forwarded: ForwardedCalls) -> None:
        self.peers = peers
        self.observer = observer
        self.leader = leader
        self.forwarded = forwarded
        self._forwarder = Forwarder(peers, observer)

    @property
    def address(self) -> str:
        """Address of broker 2."""
        return str(internal_address(self.observer.image, 2))

    async def connect(self) -> None:
        """Open the connection, however long that takes on a slow machine."""
        while True:
            try:
                await self.peers.connected(self.address, timeout_ms=LONG_MS)
            except NotSentError:
                await asyncio.sleep(0.1)
            else:
                return

    async def read(
        self, *, timeout_ms: int = LONG_MS, is_read_only: bool = True, size_bytes: int = 0
    ) -> log_pb2.ReadResponse:
        """Forward a Read whose topic name has that many bytes."""
        request = log_pb2.ReadRequest(topic="t" * size_bytes)
        return await self._forwarder.call(
            LEADER, "Read", request, log_pb2.ReadResponse, timeout_ms=timeout_ms, is_read_only=is_read_only
        )

    async def code_of(self, *, timeout_ms: int = LONG_MS, is_read_only: bool = True) -> ErrorCode:
        """Return the code with which a call fails."""
        with pytest.raises(RefusedError) as caught:
            await self.read(timeout_ms=timeout_ms, is_read_only=is_read_only)
        return caught.value.failure.code


def committed(base_offset: int, *records: BrokerRecord) -> CommittedBatch:
    return CommittedBatch(
        base_offset=base_offset,
        next_offset=base_offset + 1,
        quorum_epoch=1,
        append_timestamp_ms=0,
        records=[record_codec.encode(record) for record in records],
        is_control=not records,
    )


@asynccontextmanager
async def leader_that(behaviour: Behaviour | None, *, raw: bytes | None = None) -> AsyncIterator[Scene]:
    """Run a leader with this behaviour; None: it is still starting. With `raw` it answers every call with these bytes."""

    async def read(data: bytes, context: CallContext) -> bytes:
        assert behaviour is not None
        assert isinstance(context, ForwardedContext)
        return await behaviour(log_pb2.ReadRequest.FromString(data), context)

    methods: dict[str, ForwardedMethod] = {"Read": read}
    leader = Carrier(cluster_id=CLUSTER, node_id=2, limits=PATIENT)
    forwarded = ForwardedCalls(leader.table if raw is None else ServiceTable())
    if raw is not None:
        leader.table.add(Method.FORWARDED_CALL, forward_pb2.ForwardedCall, lambda _, call: call.respond(raw))
    if behaviour is not None:
        forwarded.attach(methods)
    port = leader.bind("127.0.0.1", 0)
    await leader.start(f"127.0.0.1:{port}")
    sender = Carrier(cluster_id=CLUSTER, node_id=1, limits=PATIENT)
    await sender.start(None)
    observer = MetadataLoader()
    observer.on_commit(committed(0, registration(port)))
    scene = Scene(sender.peers, observer, leader, forwarded)
    try:
        await scene.connect()
        yield scene
    finally:
        await sender.close()
        await leader.close()


def registration(port: int) -> BrokerRecord:
    """Return the registration of broker 2, with its internal port."""
    return BrokerRecord(
        broker_id=2,
        incarnation_id=bytes(16),
        broker_epoch=None,
        host="127.0.0.1",
        port=1,
        rack=None,
        fenced=False,
        log_directory_ids=(),
        replication_port=port,
    )


async def answer(_request: log_pb2.ReadRequest, _context: ForwardedContext) -> bytes:
    return log_pb2.ReadResponse(next_offset=7).SerializeToString()


async def hang(_request: log_pb2.ReadRequest, _context: ForwardedContext) -> bytes:
    await asyncio.Event().wait()
    raise AssertionError


async def test_answer_of_the_leader_is_the_answer() -> None:
    """An answer of the maximum size arrives too."""

    async def large(_request: log_pb2.ReadRequest, _context: ForwardedContext) -> bytes:
        response = log_pb2.ReadResponse(next_offset=9, records=[log_pb2.Record(value=b"")])
        response.records[0].value = bytes(MAX_GRPC_MESSAGE_BYTES - response.ByteSize() - 10)
        assert MAX_GRPC_MESSAGE_BYTES - 20 < response.ByteSize() <= MAX_GRPC_MESSAGE_BYTES
        return response.SerializeToString()

    async with leader_that(answer) as scene:
        assert (await scene.read()).next_offset == 7
        assert (await scene.read(size_bytes=MAX_GRPC_MESSAGE_BYTES - 10)).next_offset == 7
    async with leader_that(large) as scene:
        assert (await scene.read()).next_offset == 9


async def test_refusal_of_the_leader_keeps_its_details() -> None:
    """The client gets the refusal as from the leader itself: advice, leader hint, readable range, appended ranges."""
    failure = Failure(
        code=ErrorCode.OFFSET_OUT_OF_RANGE,
        message="scripted",
        retry_after_ms=70,
        leader=LeaderPlace(leader_id=3, leader_epoch=4, host="h", port=5),
        readable_range=ReadableOffsets(log_start_offset=1, high_watermark=2),
    )
    appended = log_pb2.AppendResponse(ranges=[log_pb2.AppendedRange(partition=1, base_offset=5)])
    errors: list[RefusedError] = [RefusedError(failure), CallFailedError(failure, appended)]

    async def refuse(_request: log_pb2.ReadRequest, _context: ForwardedContext) -> bytes:
        raise errors[0]

    async with leader_that(refuse) as scene:
        while errors:
            with pytest.raises(RefusedError) as caught:
                await scene.read()
            assert caught.value.failure == failure
            detail = caught.value.extra_detail if isinstance(caught.value, CallFailedError) else None
            assert detail == (appended if isinstance(errors.pop(0), CallFailedError) else None)


async def test_leader_that_cannot_be_reached_got_nothing() -> None:
    """Without a connection nothing was sent, so a retry is safe, even for an append. The same holds for an unregistered broker."""
    async with leader_that(answer) as scene:
        await scene.leader.close()
        for is_read_only in (True, False):
            assert await scene.code_of(is_read_only=is_read_only) is ErrorCode.LEADER_NOT_AVAILABLE
        forwarder = Forwarder(scene.peers, MetadataLoader())
        with pytest.raises(RefusedError) as caught:
            await forwarder.call(
                LEADER, "Read", log_pb2.ReadRequest(), log_pb2.ReadResponse, timeout_ms=LONG_MS, is_read_only=False
            )
        assert caught.value.failure.code is ErrorCode.LEADER_NOT_AVAILABLE


async def test_leader_that_starts_or_stops_takes_nothing() -> None:
    """It says so, whatever the request is."""
    async with leader_that(None) as scene:
        assert await scene.code_of(is_read_only=False) is ErrorCode.LEADER_NOT_AVAILABLE
    async with leader_that(answer) as scene:
        await scene.forwarded.close(0)
        assert await scene.code_of(is_read_only=False) is ErrorCode.LEADER_NOT_AVAILABLE


@pytest.mark.parametrize(
    ("is_read_only", "code"), [(True, ErrorCode.TIMED_OUT), (False, ErrorCode.OUTCOME_UNKNOWN)], ids=["read", "append"]
)
async def test_silent_leader_leaves_an_append_unknown(is_read_only: bool, code: ErrorCode) -> None:
    """After the deadline a read is only late, but an append may have happened. The leader stops working on the answer."""
    ended = asyncio.Event()

    async def wait(request: log_pb2.ReadRequest, context: ForwardedContext) -> bytes:
        assert context.time_remaining() <= SHORT_MS / 1000
        try:
            return await hang(request, context)
        finally:
            ended.set()

    async with leader_that(wait) as scene:
        assert await scene.code_of(is_read_only=is_read_only, timeout_ms=SHORT_MS) is code
        async with asyncio.timeout(WAIT_S):
            await ended.wait()


@pytest.mark.parametrize(
    ("is_read_only", "code"),
    [(True, ErrorCode.LEADER_NOT_AVAILABLE), (False, ErrorCode.OUTCOME_UNKNOWN)],
    ids=["read", "append"],
)
@pytest.mark.parametrize("is_orderly", [True, False], ids=["stops", "dies"])
async def test_leader_that_ends_under_the_call_leaves_an_append_unknown(
    is_read_only: bool, code: ErrorCode, is_orderly: bool
) -> None:
    """A call that had arrived may have been carried out."""
    arrived = asyncio.Event()

    async def note(request: log_pb2.ReadRequest, context: ForwardedContext) -> bytes:
        arrived.set()
        return await hang(request, context)

    async with leader_that(note) as scene, asyncio.timeout(WAIT_S):
        call = asyncio.create_task(scene.code_of(is_read_only=is_read_only))
        await arrived.wait()
        await (scene.forwarded.close(0) if is_orderly else scene.leader.close())
        assert await call is code


async def test_leader_that_stops_answers_what_is_nearly_done() -> None:
    """Calls under way get a moment to finish."""
    arrived, leave = asyncio.Event(), asyncio.Event()

    async def wait(request: log_pb2.ReadRequest, context: ForwardedContext) -> bytes:
        arrived.set()
        await leave.wait()
        return await answer(request, context)

    async with leader_that(wait) as scene, asyncio.timeout(WAIT_S):
        call = asyncio.create_task(scene.read())
        await arrived.wait()
        closing = asyncio.create_task(scene.forwarded.close(WAIT_S))
        await asyncio.sleep(0)
        leave.set()
        assert (await call).next_offset == 7
        await closing


async def test_call_says_what_the_sender_had_applied() -> None:
    """The leader can wait for the metadata that made the sender choose it."""
    seen: list[int] = []

    async def note(_request: log_pb2.ReadRequest, context: ForwardedContext) -> bytes:
        seen.append(context.metadata_offset)
        return b""

    async with leader_that(note) as scene:
        await scene.read()
        scene.observer.on_commit(committed(1))
        await scene.read()
    assert seen == [1, 2]


async def nonsense(_request: log_pb2.ReadRequest, _context: ForwardedContext) -> bytes:
    return b"\xff\xff\xff"


@pytest.mark.parametrize(("behaviour", "raw"), [(nonsense, None), (None, b"\xff\xff\xff"), (None, b"")])
async def test_answer_of_no_use_is_internal(behaviour: Behaviour | None, raw: bytes | None) -> None:
    """Bytes that are no answer are the fault of the cluster, not of the client."""
    async with leader_that(behaviour, raw=raw) as scene:
        assert await scene.code_of() is ErrorCode.INTERNAL


async def test_fault_of_the_leader_is_internal(caplog: pytest.LogCaptureFixture) -> None:
    """Its log has the traceback; the client learns only that the broker failed."""

    async def fail(_request: log_pb2.ReadRequest, _context: ForwardedContext) -> bytes:
        raise RuntimeError("scripted")

    async with leader_that(fail) as scene:
        with caplog.at_level(logging.CRITICAL, logger="metaquorum.net.service"):
            assert await scene.code_of() is ErrorCode.INTERNAL


@pytest.mark.parametrize(
    "message",
    [
        forward_pb2.ForwardedCall(method="Produce").SerializeToString(),
        forward_pb2.ForwardedCall().SerializeToString(),
        b"\xff\xff\xff",
    ],
)
async def test_what_is_not_passed_on_is_refused(message: bytes) -> None:
    """Methods that any broker answers, streams, names that are none."""
    async with leader_that(answer) as scene:
        with pytest.raises(RefusedByPeerError) as caught:
            await scene.peers.ask(scene.address, Method.FORWARDED_CALL, message, timeout_ms=LONG_MS)
        assert decode_refusal(caught.value.failure).code is ErrorCode.INVALID_REQUEST


async def test_calls_to_one_broker_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """One more call is refused without being sent. Calls that end make room. The servers' own requests have room all the time."""
    monkeypatch.setattr(forward, "MAX_FORWARDED_CALLS", 2)
    leave = asyncio.Event()
    arrived: list[None] = []

    async def wait(request: log_pb2.ReadRequest, context: ForwardedContext) -> bytes:
        arrived.append(None)
        await leave.wait()
        return await answer(request, context)

    async with leader_that(wait) as scene, asyncio.timeout(WAIT_S):
        calls = [asyncio.create_task(scene.read()) for _ in range(2)]
        await until(lambda: len(arrived) == 2, what="two calls")
        assert await scene.code_of(is_read_only=False) is ErrorCode.OVERLOADED
        leave.set()
        for call in calls:
            assert (await call).next_offset == 7
        assert (await scene.read()).next_offset == 7


async def test_large_requests_to_one_broker_go_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each waits for the bytes of the earlier ones. A call that waits too long is refused without being sent."""
    monkeypatch.setattr(forward, "FORWARD_BYTES", 1_000)
    leave = asyncio.Semaphore(0)
    sizes: list[int] = []

    async def wait(request: log_pb2.ReadRequest, context: ForwardedContext) -> bytes:
        sizes.append(len(request.topic))
        await leave.acquire()
        return await answer(request, context)

    async with leader_that(wait) as scene, asyncio.timeout(WAIT_S):
        first = asyncio.create_task(scene.read(size_bytes=5_000))
        await until(lambda: sizes == [5_000], what="the first call")
        second = asyncio.create_task(scene.read(size_bytes=600))
        with pytest.raises(RefusedError) as caught:
            await scene.read(size_bytes=300, timeout_ms=300, is_read_only=False)
        assert caught.value.failure.code is ErrorCode.OVERLOADED
        assert sizes == [5_000]
        leave.release()
        await first
        await until(lambda: sizes == [5_000, 600], what="the second call")
        leave.release()
        await second
