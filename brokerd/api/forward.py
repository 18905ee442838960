# SPDX-License-Identifier: Apache-2.0
"""Calls of clients that the broker which got them passes on to the broker that leads: both ends of one hop, over the carrier.

    forwarder = Forwarder(peers, observer)                                        # at the broker that passes on
    response = await forwarder.call(place, "Read", request, log_pb2.ReadResponse, timeout_ms=..., is_read_only=True)

    forwarded = ForwardedCalls(table)                                             # at the broker that leads
    forwarded.attach(log_service.by_leader)

Owns what a call that broke means, how much of clients' calls a connection between two brokers carries, and the wait of a receiver that
has applied less metadata than the sender. Must not choose the broker, or look into a request.

Laws
    A call that appends is sent once; where its answer is lost, the caller is told OUTCOME_UNKNOWN.
    A call goes one hop: a receiver that does not lead what it is asked for refuses it.
    Calls of clients leave room on a connection for what the servers themselves have to say.
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
"""Advice to a client whose call could not be passed on, in milliseconds."""

ResponseT = TypeVar("ResponseT", bound=Message)


# The broker that passes on.


class _Lane:
    """The calls of clients that are on their way to one broker."""

    def __init__(self, broker_id: int) -> None:
        self.call_count = 0
        self.requests = MemoryGate(f"calls for broker {broker_id}", FORWARD_BYTES)


class Forwarder:
    """Passes calls on. One for a process; one event loop.

    Args:
        peers: connections of this process to other servers.
        observer: the metadata.
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
            request: its request.
            response_type: its response.
            timeout_ms: milliseconds for everything.
            is_read_only: True: a lost answer is no unknown outcome.

        Raises:
            RefusedError: what that broker refused; LEADER_NOT_AVAILABLE, it cannot be reached and got nothing; OVERLOADED, too much
                is on its way there; OUTCOME_UNKNOWN or TIMED_OUT, the answer did not come.
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
        """Let a call in while few enough are under way to its broker; its request waits for room in turn."""
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


# The broker that leads.


class ForwardedContext:
    """The way of a call that another broker passed on.

    Args:
        timeout_ms: milliseconds that the other broker waits from now on.
        metadata_offset: metadata that it has applied, exclusive.
    """

    def __init__(self, *, timeout_ms: int, metadata_offset: int) -> None:
        self._end_s = asyncio.get_running_loop().time() + timeout_ms / 1000
        self.metadata_offset = metadata_offset

    def time_remaining(self) -> float:
        """Return the seconds until nobody waits for the answer any more."""
        return self._end_s - asyncio.get_running_loop().time()


ForwardedMethod: TypeAlias = Callable[[bytes, CallContext], Awaitable[bytes]]
"""A method of a service that may be passed on: takes and gives serialized messages, or raises `RefusedError`."""


async def was_forwarded(context: CallContext, parts: BrokerParts, wanted: Iterable[tuple[str, int]]) -> bool:
    """Tell whether another broker passed the call on, when this broker knows what that one knew.

    A new topic, or a new leader, reaches the brokers one after the other. A receiver that does not lead what it is asked
    for waits for the metadata that the sender had applied, FORWARDED_WAIT_MS at most; then its own view counts.

    Args:
        context: the call.
        parts: this broker's metadata and replicas.
        wanted: topic name and partition of everything that the call asks for.
    """
    if not isinstance(context, ForwardedContext):
        return False
    is_behind = parts.observer.metadata_offset < context.metadata_offset
    if is_behind and not all(parts.locator.leads(topic, partition) for topic, partition in wanted):
        wait_ms = left_ms(context, at_most_ms=FORWARDED_WAIT_MS)
        await parts.observer.wait_for(context.metadata_offset, timeout_ms=wait_ms)
    return True


class ForwardedCalls:
    """Answers what other brokers pass on, by the code that answers clients. Refuses before `attach` and after `close`.

    Args:
        table: where it is added.
    """

    def __init__(self, table: ServiceTable) -> None:
        self._methods: Mapping[str, ForwardedMethod] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_closed = False
        table.add_waiting(Method.FORWARDED_CALL, pb.ForwardedCall, self._answer)

    def attach(self, methods: Mapping[str, ForwardedMethod]) -> None:
        """From here on these methods are answered, and no others."""
        self._methods = methods

    async def close(self, grace_s: float) -> None:
        """Refuse what comes, and end what is under way after `grace_s` seconds. Idempotent."""
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
                raise  # nobody waits for the answer any more
            raise RefusalError(ErrorCode.SHUTTING_DOWN, "this broker stopped before it could answer") from None
        finally:
            self._tasks.discard(task)


def _refusal(error: RefusedError) -> pb.ForwardedRefusal:
    # As in `calls.abort`: what the refusal came through must not wait for the collector.
    error.__traceback__ = error.__cause__ = error.__context__ = None
    detail = error.extra_detail if isinstance(error, CallFailedError) else None
    appended = detail if isinstance(detail, log_pb2.AppendResponse) else None
    return pb.ForwardedRefusal(error=partition_error(error.failure), appended=appended)
