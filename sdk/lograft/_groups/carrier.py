# SPDX-License-Identifier: Apache-2.0
"""The way from the members of this process to their coordinators.

It owns one stream to each coordinator, and the pauses between attempts; `coordinators` knows who coordinates which group. All consumers
of one event loop with the same settings share a carrier; the blocking consumers of a process share one loop. It does not know what a
member is.

Laws: two attempts for one group are at least `RETRY_FLOOR_MS` apart, unless a broker names the coordinator. A member is on at most
one stream.
"""

from __future__ import annotations

import asyncio
import logging
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

import grpc
import grpc.aio

from lograft._client.backoff import Backoff
from lograft._client.cluster import Cluster
from lograft._client.forks import on_fork
from lograft._client.immortal import keep_for_ever
from lograft._groups.coordinators import FIND_TIMEOUT_MS, Coordinators
from lograft._groups.membership import RETRY_FLOOR_MS
from lograft._groups.stream import CarriedMember, GroupsStream
from lograft.errors import FatalError, LograftError, RetriableError
from lograft.settings import DEFAULT_CLIENT_ID, ClientSettings

logger = logging.getLogger(__name__)

T = TypeVar("T")
Q = TypeVar("Q")


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
        self._coordinators = Coordinators(self.cluster)
        self._streams: dict[str, GroupsStream] = {}
        self._places: dict[CarriedMember, _Place] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop = asyncio.get_running_loop()
        self._is_closed = False

    def coordinator(self, group_id: str) -> str | None:
        """Return host:port of the last known coordinator of a group."""
        return self._coordinators.known(group_id)

    # -- members

    def add(self, member: CarriedMember) -> None:
        """Carry a member from now on."""
        self._places[member] = _Place(self._coordinators.backoff())
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
        """Make a unary call to the coordinator of a group; see `Coordinators.call`."""
        return await self._coordinators.call(group_id, method, request, timeout_ms=timeout_ms)

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
            self._coordinators.remember(member.group_id, address)
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
            self._coordinators.forget(member.group_id, stream.address)
            member.disconnected()
            if isinstance(error, FatalError):
                member.fail(error)
            else:
                advice_ms = error.retry_after_ms or 0
                self._search(member, delay_ms=max(RETRY_FLOOR_MS, place.backoff.next_delay_ms(at_least_ms=advice_ms)))

    # -- inside

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
                    address = self._coordinators.known(member.group_id)
                    if address is None:
                        address = await self._coordinators.find(member.group_id, timeout_ms=FIND_TIMEOUT_MS)
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
