# SPDX-License-Identifier: Apache-2.0
"""The way from the members of this process to their coordinators.

It owns who coordinates which group, one stream to each coordinator, and the pauses between attempts. All consumers of one event
loop with the same settings share a carrier; the blocking consumers of a process share one loop. It does not know what a member is.

Laws: two attempts for one group are at least `RETRY_FLOOR_MS` apart, unless a broker names the coordinator. A member is on at most
one stream.
"""

from __future__ import annotations

import asyncio
import logging
import random
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

import grpc
import grpc.aio

from lograft._client.backoff import Backoff
from lograft._client.clock import monotonic_ms
from lograft._client.cluster import Cluster
from lograft._client.codec import decode_error
from lograft._client.forks import on_fork
from lograft._client.immortal import keep_for_ever
from lograft._client.transport import Purpose, is_unanswered, to_error
from lograft._groups.membership import RETRY_FLOOR_MS, RETRY_LIMIT_MS
from lograft._groups.messages import address_of, hinted_address
from lograft._groups.stream import CarriedMember, GroupsStream
from lograft.errors import (
    CoordinatorNotAvailableError,
    FatalError,
    LograftError,
    NoBrokerError,
    RequestTimeoutError,
    RetriableError,
)
from lograft.settings import CONNECT_TIMEOUT_MS, DEFAULT_CLIENT_ID, ClientSettings
from lograft.v1 import group_pb2
from lograft.v1.group_pb2_grpc import GroupServiceStub
from lograft.wire.codes import ErrorCode
from lograft.wire.status import parse_rpc_error

logger = logging.getLogger(__name__)

T = TypeVar("T")
Q = TypeVar("Q")

FIND_TIMEOUT_MS: Final = 5_000
"""Milliseconds for one search for a coordinator, over all brokers."""

ATTEMPT_TIMEOUT_MS: Final = 5_000
"""Milliseconds that a coordinator may take for one call. Then the client looks whether there is another coordinator."""

MAX_COORDINATORS: Final = 10_000
"""Groups whose coordinators are remembered."""


@dataclass(slots=True)
class _Place:
    """Where a member is: on a stream, or on the way to one. The carrier writes it."""

    backoff: Backoff
    stream: GroupsStream | None = None
    search: asyncio.Task[None] | None = None


class GroupCarrier:
    """Carries members to their coordinators, and makes unary calls to coordinators. Belongs to one event loop."""

    def __init__(self, settings: ClientSettings) -> None:
        self.cluster = Cluster(settings)
        self._client_id = settings.client_id or DEFAULT_CLIENT_ID
        self._rng = random.Random()
        self._coordinators: dict[str, str] = {}
        self._streams: dict[str, GroupsStream] = {}
        self._places: dict[CarriedMember, _Place] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop = asyncio.get_running_loop()
        self._is_closed = False

    def coordinator(self, group_id: str) -> str | None:
        """Return host:port of the last known coordinator of a group."""
        return self._coordinators.get(group_id)

    # -- members

    def add(self, member: CarriedMember) -> None:
        """Carry a member from now on."""
        self._places[member] = _Place(self._backoff())
        self._search(member, delay_ms=0)

    def remove(self, member: CarriedMember) -> None:
        """Carry a member no longer."""
        place = self._places.pop(member, None)
        if place is None:
            return
        if place.search is not None:
            place.search.cancel()
        if place.stream is not None:
            place.stream.detach(member)
            self._close_if_idle(place.stream)

    def wake(self, member: CarriedMember) -> None:
        """Look whether a member has something to send."""
        place = self._places.get(member)
        if place is not None and place.stream is not None:
            place.stream.wake()

    async def close(self) -> None:
        """Close all streams and connections. Members are not told."""
        self._is_closed = True
        for member in list(self._places):
            self.remove(member)
        streams = list(self._streams.values())
        self._streams.clear()
        await asyncio.gather(*(stream.close() for stream in streams), *self._tasks, return_exceptions=True)
        await self.cluster.close()

    # -- calls

    async def call(
        self,
        group_id: str,
        method: Callable[[grpc.aio.Channel], grpc.aio.UnaryUnaryMultiCallable[Q, T]],
        request: Q,
        *,
        timeout_ms: int,
    ) -> T:
        """Make a unary call to the coordinator of a group. Find it again and repeat the call until the time is up.

        Args:
            group_id: the group.
            method: returns the method to call on a channel.
            request: a request that may be carried out twice.
            timeout_ms: milliseconds for all attempts together.

        Raises:
            RetriableError: the time is up, and this was the last failure.
            FatalError: the coordinator refused the request.
        """
        deadline_ms = monotonic_ms() + timeout_ms
        backoff = self._backoff()
        while True:
            left_ms = deadline_ms - monotonic_ms()
            try:
                address = self._coordinators.get(group_id)
                if address is None:
                    address = await self.find(group_id, timeout_ms=max(1, min(left_ms, FIND_TIMEOUT_MS)))
                return await self._attempt(group_id, address, method, request, max(1, min(left_ms, ATTEMPT_TIMEOUT_MS)))
            except RetriableError as error:
                left_ms = deadline_ms - monotonic_ms()
                if left_ms <= 0:
                    raise
                is_hinted = error.code is ErrorCode.NOT_COORDINATOR and group_id in self._coordinators
                advice_ms = error.retry_after_ms or 0
                delay_ms = RETRY_FLOOR_MS if is_hinted else backoff.next_delay_ms(at_least_ms=advice_ms)
                await asyncio.sleep(min(delay_ms, left_ms) / 1000)

    async def find(self, group_id: str, *, timeout_ms: int) -> str:
        """Ask any broker for the coordinator of a group, and return its host:port.

        Raises:
            LograftError: no broker knows it now.
        """
        request = group_pb2.FindCoordinatorRequest(cluster_id=self.cluster.cluster_id, group_ids=[group_id])
        response = await self.cluster.ask(
            lambda channel: GroupServiceStub(channel).FindCoordinator, request, timeout_ms=timeout_ms
        )
        if len(response.coordinators) != 1:
            raise CoordinatorNotAvailableError(f"a broker named {len(response.coordinators)} coordinators, not one")
        found = response.coordinators[0]
        if found.HasField("error"):
            raise decode_error(found.error)
        address = address_of(found)
        self._remember(group_id, address)
        return address

    async def _attempt(
        self,
        group_id: str,
        address: str,
        method: Callable[[grpc.aio.Channel], grpc.aio.UnaryUnaryMultiCallable[Q, T]],
        request: Q,
        timeout_ms: int,
    ) -> T:
        transport = self.cluster.transport
        try:
            connect_s = min(CONNECT_TIMEOUT_MS, timeout_ms) / 1000
            channel = await transport.connect(address, Purpose.CONTROL, timeout_s=connect_s)
            with transport.using(channel):
                try:
                    return await transport.answer(method(channel)(request, timeout=timeout_ms / 1000))
                except grpc.RpcError as error:
                    if is_unanswered(error):
                        transport.give_up(channel)
                    failure = to_error(error, address)
                    self._learn(group_id, failure, error)
                    raise failure from error
        except NoBrokerError:
            self._forget(group_id, address)
            raise

    def _learn(self, group_id: str, failure: LograftError, error: grpc.RpcError) -> None:
        """Note what a failed call says about the coordinator."""
        if failure.code is ErrorCode.NOT_COORDINATOR or isinstance(failure, RequestTimeoutError):
            self._coordinators.pop(group_id, None)
        if failure.code is ErrorCode.NOT_COORDINATOR and isinstance(error, grpc.aio.AioRpcError):
            hint = parse_rpc_error(error).leader
            address = None if hint is None else hinted_address(hint)
            if address is not None:
                self._remember(group_id, address)

    # -- what streams report

    def on_heard(self, member: CarriedMember) -> None:
        """See `GroupsOwner`."""
        place = self._places.get(member)
        if place is not None:
            place.backoff.reset()

    def on_moved(self, members: Sequence[CarriedMember], address: str | None) -> None:
        """See `GroupsOwner`."""
        for member in members:
            place = self._places.get(member)
            if place is None:
                continue
            old = place.stream
            if address is None:
                self._coordinators.pop(member.group_id, None)
            else:
                self._remember(member.group_id, address)
            member.disconnected()
            # A wrong hint must not make the two brokers send the member to and fro without a pause.
            self._search(member, delay_ms=max(RETRY_FLOOR_MS, place.backoff.next_delay_ms()))
            if old is not None:
                self._close_if_idle(old)

    def on_groups_end(self, stream: GroupsStream, members: Sequence[CarriedMember], error: LograftError) -> None:
        """See `GroupsOwner`."""
        if self._streams.get(stream.address) is stream:
            del self._streams[stream.address]
        if members:
            logger.info("the stream of groups to %s ended: %s", stream.address, error)
        for member in members:
            place = self._places.get(member)
            if place is None:
                continue
            self._forget(member.group_id, stream.address)
            member.disconnected()
            if isinstance(error, FatalError):
                member.fail(error)
            else:
                advice_ms = error.retry_after_ms or 0
                self._search(member, delay_ms=max(RETRY_FLOOR_MS, place.backoff.next_delay_ms(at_least_ms=advice_ms)))

    # -- inside

    def _backoff(self) -> Backoff:
        """Return a backoff whose delays lie between the floor and the limit."""
        return Backoff(base_ms=2 * RETRY_FLOOR_MS, limit_ms=RETRY_LIMIT_MS, rng=self._rng)

    def _search(self, member: CarriedMember, *, delay_ms: int) -> None:
        place = self._places[member]
        place.stream = None
        if place.search is None and not self._is_closed and not self.cluster.is_leaving:
            place.search = task = self._loop.create_task(self._attach(member, place, delay_ms))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _attach(self, member: CarriedMember, place: _Place, delay_ms: int) -> None:
        """Find the coordinator of a member's group and put the member on the stream to it."""
        try:
            while True:
                await asyncio.sleep(delay_ms / 1000)
                try:
                    address = self._coordinators.get(member.group_id)
                    if address is None:
                        address = await self.find(member.group_id, timeout_ms=FIND_TIMEOUT_MS)
                    break
                except RetriableError as error:
                    logger.info("no coordinator of group %s: %s", member.group_id, error)
                    delay_ms = place.backoff.next_delay_ms(at_least_ms=error.retry_after_ms or 0)
        except asyncio.CancelledError:
            self.cluster.note_cancelled()
            raise
        except LograftError as error:
            place.search = None
            member.fail(error)
            return
        place.search = None
        if self._places.get(member) is not place:
            return
        stream = self._streams.get(address)
        if stream is None or stream.is_closed:
            stream = self._streams[address] = GroupsStream(self, self.cluster, address, self._client_id)
        place.stream = stream
        stream.attach(member)

    def _close_if_idle(self, stream: GroupsStream) -> None:
        if stream.is_idle and self._streams.get(stream.address) is stream:
            del self._streams[stream.address]
            task = self._loop.create_task(stream.close())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def _remember(self, group_id: str, address: str) -> None:
        if group_id not in self._coordinators and len(self._coordinators) >= MAX_COORDINATORS:
            del self._coordinators[next(iter(self._coordinators))]
        self._coordinators[group_id] = address

    def _forget(self, group_id: str, address: str) -> None:
        if self._coordinators.get(group_id) == address:
            del self._coordinators[group_id]


@dataclass(slots=True)
class _Shared:
    carrier: GroupCarrier
    user_count: int = 0


class _Carriers:
    """The carriers of this process, by event loop and settings."""

    def __init__(self) -> None:
        self._by_loop: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, dict[ClientSettings, _Shared]]
        self._by_loop = weakref.WeakKeyDictionary()

    def borrow(self, settings: ClientSettings) -> GroupCarrier:
        found = self._by_loop.setdefault(asyncio.get_running_loop(), {})
        shared = found.get(settings)
        if shared is None:
            shared = found[settings] = _Shared(GroupCarrier(settings))
        shared.user_count += 1
        return shared.carrier

    async def give_back(self, settings: ClientSettings, carrier: GroupCarrier) -> None:
        found = self._by_loop.get(asyncio.get_running_loop(), {})
        shared = found.get(settings)
        if shared is None or shared.carrier is not carrier:
            return
        shared.user_count -= 1
        if shared.user_count == 0:
            del found[settings]
            await carrier.close()

    def after_fork(self) -> None:
        """Leave everything that belongs to the parent untouched. Runs in the forked child."""
        keep_for_ever(self._by_loop)
        self._by_loop = weakref.WeakKeyDictionary()


_carriers: Final = _Carriers()
on_fork(_carriers, _Carriers.after_fork)


def borrow_carrier(settings: ClientSettings) -> GroupCarrier:
    """Return the carrier of the running event loop for these settings. The caller gives it to `return_carrier` once."""
    return _carriers.borrow(settings)


async def return_carrier(settings: ClientSettings, carrier: GroupCarrier) -> None:
    """Return a carrier that a consumer no longer needs. The last one closes it."""
    await _carriers.give_back(settings, carrier)
