# SPDX-License-Identifier: Apache-2.0
"""Client calls that a broker forwards to the leading broker over the carrier: both ends of the hop.

    forwarder = Forwarder(peers, observer)                                        # at the forwarding broker
    response = await forwarder.call(place, "Read", request, log_pb2.ReadResponse, timeout_ms=..., is_read_only=True)

    forwarded = ForwardedCalls(table)                                             # at the leading broker
    forwarded.attach(log_service.by_leader)

Owns three things: the meaning of a broken call, the share of a connection that client calls may use, and the wait of a receiver whose
metadata is behind the sender's. Does not choose the broker and does not look into requests.

Laws
    A call that appends is sent once. If its answer is lost, the caller gets OUTCOME_UNKNOWN.
    A call makes one hop: a receiver that does not lead the partition refuses.
    Client calls leave room on a connection for the servers' own requests.
Source: docs/net.md section "Calls of clients".
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Final, TypeAlias, TypeVar

from google.protobuf.message import DecodeError, Message
from lograft.internal.v1 import forward_pb2 as pb
from lograft.v1 import log_pb2
from lograft.wire.codes import ErrorCode

from brokerd.addresses import internal_address
from brokerd.api.calls import CallContext, CallFailedError, left_ms
from brokerd.api.parts import BrokerParts
from brokerd.api.status import partition_error, remote_failure
from brokerd.failure import LeaderPlace, RefusedError, refused
from brokerd.limits import FORWARD_BYTES, FORWARD_CONNECT_MS, FORWARDED_WAIT_MS, MAX_FORWARDED_CALLS
from brokerd.memory.budget import MemoryGate
from metaquorum.metadata.loader import MetadataLoader
from metaquorum.net.connection import BusyError, Loss
from metaquorum.net.link import Link, RefusedByPeerError, ServedCall, UnansweredError
from metaquorum.net.methods import Method
from metaquorum.net.peers import NotSentError, Peers
from metaquorum.net.service import RefusalError, ServiceTable, decode_refusal

BUSY_RETRY_MS: Final = 250
"""`retry_after_ms` for a client whose call could not be forwarded."""

ResponseT = TypeVar("ResponseT", bound=Message)


# The forwarding broker.


class _Lane:
    """The client calls that are under way to one broker."""

    def __init__(self, broker_id: int) -> None:
        self.call_count = 0
        self.requests = MemoryGate(f"calls for broker {broker_id}", FORWARD_BYTES)


class Forwarder:
    """Forwards calls. One for a process; belongs to one event loop.

    Args:
        peers: connections of this process to other servers.
        observer: the metadata of this broker.
    """

    def __init__(self, peers: Peers, observer: MetadataLoader) -> None:
        self._peers = peers
        self._observer = observer
        self._lanes: dict[int, _Lane] = {}

    async def call(
        self,
        place: LeaderPlace,
        method: str,
        request: Message,
        response_type: type[ResponseT],
        *,
        timeout_ms: int,
        is_read_only: bool,
    ) -> ResponseT:
        """Send a request to the broker at `place` and return its answer.

        Args:
            place: the broker.
            method: name of the method of `LogService`.
            request: request of that method.
            response_type: type of its response.
            timeout_ms: milliseconds for the whole call.
            is_read_only: True if a lost answer leaves no unknown outcome.

        Raises:
            RefusedError: that broker's refusal; LEADER_NOT_AVAILABLE, that broker is unreachable, or a read-only call lost its
                answer; OVERLOADED, too many calls are under way to it; OUTCOME_UNKNOWN or TIMED_OUT, its answer did not come.
        """
        end_s = asyncio.get_running_loop().time() + timeout_ms / 1000

        def remaining_ms() -> int:
            return max(0, int((end_s - asyncio.get_running_loop().time()) * 1000))

        data = request.SerializeToString()
        async with self._admitted(place, len(data), timeout_ms):
            link = await self._connected(place, remaining_ms())
            call = pb.ForwardedCall(method=method, request=data, metadata_offset=self._observer.metadata_offset)
            try:
                answer = await link.ask(Method.FORWARDED_CALL, call.SerializeToString(), timeout_ms=remaining_ms())
            except BusyError as error:
                message = f"too much is on its way to broker {place.leader_id}: {error}"
                raise refused(ErrorCode.OVERLOADED, message, retry_after_ms=BUSY_RETRY_MS) from error
            except RefusedByPeerError as error:
                refusal = decode_refusal(error.failure)
                if refusal.code is ErrorCode.SHUTTING_DOWN:
                    raise _unanswered(place, is_late=False, is_read_only=is_read_only) from error
                raise refused(refusal.code, refusal.message, retry_after_ms=refusal.retry_after_ms) from error
            except UnansweredError as error:
                is_late = error.loss is Loss.TIMED_OUT
                raise _unanswered(place, is_late=is_late, is_read_only=is_read_only) from error
        return _response(answer, response_type, place)

    @asynccontextmanager
    async def _admitted(self, place: LeaderPlace, size_bytes: int, timeout_ms: int) -> AsyncGenerator[None]:
        """Admit a call while fewer than the limit are under way to its broker; its request queues for memory."""
        broker_id = place.leader_id
        lane = self._lanes.get(broker_id)
        if lane is None:
            lane = self._lanes[broker_id] = _Lane(broker_id)
        if lane.call_count >= MAX_FORWARDED_CALLS:
            message = f"{lane.call_count} calls wait for broker {broker_id}, which is the limit: ask it directly"
            raise refused(ErrorCode.OVERLOADED, message, retry_after_ms=1_000)
        lane.call_count += 1
        try:
            grant = await lane.requests.take(size_bytes, timeout_ms=timeout_ms)
            try:
                yield
            finally:
                lane.requests.give_back(grant)
        finally:
            lane.call_count -= 1
            if lane.call_count == 0:
                del self._lanes[broker_id]

    async def _connected(self, place: LeaderPlace, timeout_ms: int) -> Link:
        address = internal_address(self._observer.image, place.leader_id)
        if address is None:
            raise _not_reached(place)
        try:
            return await self._peers.connected(
                str(address), timeout_ms=min(FORWARD_CONNECT_MS, timeout_ms), node_id=place.leader_id
            )
        except NotSentError as error:
            raise _not_reached(place) from error


def _response(answer: bytes, response_type: type[ResponseT], place: LeaderPlace) -> ResponseT:
    try:
        outcome = pb.ForwardedAnswer.FromString(answer)
        if outcome.HasField("response"):
            return response_type.FromString(outcome.response)
    except DecodeError as error:
        raise _no_answer(place) from error
    if not outcome.HasField("refusal"):
        raise _no_answer(place)
    refusal = outcome.refusal
    failure = remote_failure(refusal.error)
    raise CallFailedError(failure, refusal.appended) if refusal.HasField("appended") else RefusedError(failure)


def _no_answer(place: LeaderPlace) -> RefusedError:
    return refused(ErrorCode.INTERNAL, f"broker {place.leader_id} answered with bytes of no use")


def _unanswered(place: LeaderPlace, *, is_late: bool, is_read_only: bool) -> RefusedError:
    if not is_read_only:
        message = f"the answer of broker {place.leader_id} was lost: the records may or may not have been appended"
        return refused(ErrorCode.OUTCOME_UNKNOWN, message)
    if is_late:
        return refused(ErrorCode.TIMED_OUT, f"broker {place.leader_id} did not answer in time")
    return _not_reached(place)


def _not_reached(place: LeaderPlace) -> RefusedError:
    message = f"broker {place.leader_id} leads the partition and cannot be reached from here"
    return refused(ErrorCode.LEADER_NOT_AVAILABLE, message, retry_after_ms=BUSY_RETRY_MS)


# The leading broker.


class ForwardedContext:
    """Context of a call that another broker forwarded.

    Args:
        timeout_ms: milliseconds from now on that the other broker waits for the answer.
        metadata_offset: metadata offset of the other broker, exclusive.
    """

    def __init__(self, *, timeout_ms: int, metadata_offset: int) -> None:
        self._end_s = asyncio.get_running_loop().time() + timeout_ms / 1000
        self.metadata_offset = metadata_offset

    def time_remaining(self) -> float:
        """Return the seconds until the forwarding broker stops waiting."""
        return self._end_s - asyncio.get_running_loop().time()


ForwardedMethod: TypeAlias = Callable[[bytes, CallContext], Awaitable[bytes]]
"""A service method that brokers may forward: takes and returns serialized messages, or raises `RefusedError`."""


async def was_forwarded(context: CallContext, parts: BrokerParts, wanted: Iterable[tuple[str, int]]) -> bool:
    """Return True if another broker forwarded the call, after this broker's metadata has caught up with it where that matters.

    A new topic or a new leader reaches the brokers one after the other. A receiver that does not lead all wanted partitions
    waits for the sender's metadata offset, at most FORWARDED_WAIT_MS. Then it decides by its own metadata.

    Args:
        context: the call.
        parts: this broker's metadata and replicas.
        wanted: topic name and partition of everything in the call.
    """
    if not isinstance(context, ForwardedContext):
        return False
    is_behind = parts.observer.metadata_offset < context.metadata_offset
    if is_behind and not all(parts.locator.leads(topic, partition) for topic, partition in wanted):
        wait_ms = left_ms(context, at_most_ms=FORWARDED_WAIT_MS)
        await parts.observer.wait_for(context.metadata_offset, timeout_ms=wait_ms)
    return True


class ForwardedCalls:
    """Answers forwarded calls with the code that answers clients. Refuses before `attach` and after `close`.

    Args:
        table: the table of carrier methods to which it adds itself.
    """

    def __init__(self, table: ServiceTable) -> None:
        self._methods: Mapping[str, ForwardedMethod] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_closed = False
        table.add_waiting(Method.FORWARDED_CALL, pb.ForwardedCall, self._answer)

    def attach(self, methods: Mapping[str, ForwardedMethod]) -> None:
        """Answer these methods from now on, and no others."""
        self._methods = methods

    async def close(self, grace_s: float) -> None:
        """Refuse new calls, and cancel those under way after `grace_s` seconds. Idempotent."""
        self._is_closed = True
        if self._tasks:
            _, late = await asyncio.wait(tuple(self._tasks), timeout=grace_s)
            for task in late:
                task.cancel()
            if late:
                await asyncio.wait(late)

    async def _answer(self, call: pb.ForwardedCall, served: ServedCall) -> pb.ForwardedAnswer:
        if self._methods is None or self._is_closed:
            message = "this broker is starting or stopping"
            raise RefusalError(ErrorCode.LEADER_NOT_AVAILABLE, message, retry_after_ms=BUSY_RETRY_MS)
        method = self._methods.get(call.method)
        if method is None:
            message = f"{call.method[:100]!r} is no method that a broker passes on"
            raise RefusalError(ErrorCode.INVALID_REQUEST, message)
        context = ForwardedContext(timeout_ms=served.timeout_ms, metadata_offset=call.metadata_offset)
        task = asyncio.current_task()
        assert task is not None, "calls are answered by tasks"
        self._tasks.add(task)
        try:
            return pb.ForwardedAnswer(response=await method(call.request, context))
        except RefusedError as error:
            return pb.ForwardedAnswer(refusal=_refusal(error))
        except asyncio.CancelledError:
            if not self._is_closed:
                raise  # the forwarding broker no longer waits
            raise RefusalError(ErrorCode.SHUTTING_DOWN, "this broker stopped before it could answer") from None
        finally:
            self._tasks.discard(task)


def _refusal(error: RefusedError) -> pb.ForwardedRefusal:
    # For the reason in `calls.abort`: the frames of the refusal must not wait for the garbage collector.
    error.__traceback__ = error.__cause__ = error.__context__ = None
    detail = error.extra_detail if isinstance(error, CallFailedError) else None
    appended = detail if isinstance(detail, log_pb2.AppendResponse) else None
    return pb.ForwardedRefusal(error=partition_error(error.failure), appended=appended)
