# SPDX-License-Identifier: Apache-2.0
"""Who coordinates which group, and unary calls to coordinators.

Owns what is known about coordinators, and the attempts of a call within its time: whoever answers "not me" names another, or the client
asks any broker. The carrier of members and the admin client use it. Ingests have coordinators too: `_ingests.coordinators` finds them.

Law: two attempts of a call are at least `RETRY_FLOOR_MS` apart.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

import grpc
import grpc.aio

from lograft._client.backoff import Backoff
from lograft._client.clock import monotonic_ms
from lograft._client.cluster import Cluster
from lograft._client.codec import decode_error
from lograft._client.transport import Purpose, is_unanswered, to_error
from lograft._groups.membership import RETRY_FLOOR_MS, RETRY_LIMIT_MS
from lograft._groups.messages import address_of, hinted_address
from lograft.errors import (
    CoordinatorNotAvailableError,
    LograftError,
    NoBrokerError,
    RequestTimeoutError,
    RetriableError,
)
from lograft.settings import CONNECT_TIMEOUT_MS
from lograft.v1 import group_pb2, ingest_pb2
from lograft.v1.group_pb2_grpc import GroupServiceStub
from lograft.wire.codes import ErrorCode
from lograft.wire.status import parse_rpc_error

T = TypeVar("T")
Q = TypeVar("Q")

FIND_TIMEOUT_MS: Final = 5_000
"""Milliseconds for one search for coordinators, over all brokers."""

ATTEMPT_TIMEOUT_MS: Final = 5_000
"""Milliseconds that a coordinator may take for one call. Then the client looks whether there is another coordinator."""

MAX_COORDINATORS: Final = 10_000
"""Groups whose coordinators are remembered."""

MAX_FOUND_GROUPS: Final = 1_000
"""Groups in one FindCoordinator request."""


@dataclass(frozen=True, slots=True)
class Found:
    """What a broker says about a coordinator: its host:port, or why it names none."""

    address: str
    error: LograftError | None = None


class Coordinators:
    """The coordinators of groups, as far as they are known. Belongs to one event loop.

    Args:
        cluster: the connection to the cluster.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._addresses: dict[str, str] = {}

    def known(self, group_id: str) -> str | None:
        """Return host:port of the last known coordinator of a group."""
        return self._addresses.get(group_id)

    def remember(self, group_id: str, address: str | None) -> None:
        """Note the coordinator of a group; None: it is not known (any more)."""
        if address is None:
            self._addresses.pop(group_id, None)
            return
        if group_id not in self._addresses and len(self._addresses) >= MAX_COORDINATORS:
            del self._addresses[next(iter(self._addresses))]
        self._addresses[group_id] = address

    def forget(self, group_id: str, address: str) -> None:
        """Note that a broker is not the coordinator of a group, or does not answer."""
        if self._addresses.get(group_id) == address:
            del self._addresses[group_id]

    def backoff(self) -> Backoff:
        """Return a backoff whose delays lie between the floor and the limit."""
        return Backoff(base_ms=2 * RETRY_FLOOR_MS, limit_ms=RETRY_LIMIT_MS, rng=self._cluster.rng)

    async def find(self, group_id: str, *, timeout_ms: int) -> str:
        """Ask any broker for the coordinator of a group, and return its host:port.

        Raises:
            LograftError: no broker knows it now.
        """
        (found,) = await self._find((group_id,), timeout_ms=timeout_ms)
        if found.error is not None:
            raise found.error
        self.remember(group_id, found.address)
        return found.address

    async def find_all(self, group_ids: Sequence[str], *, timeout_ms: int) -> None:
        """Ask for the coordinators of many groups at once. Those that no broker knows now are found later, one by one.

        Raises:
            LograftError: no broker answered.
        """
        deadline_ms = monotonic_ms() + timeout_ms
        wanted = [each for each in group_ids if each not in self._addresses]
        for start in range(0, len(wanted), MAX_FOUND_GROUPS):
            page = wanted[start : start + MAX_FOUND_GROUPS]
            answers = await self._find(page, timeout_ms=max(1, deadline_ms - monotonic_ms()))
            for group_id, found in zip(page, answers, strict=True):
                if found.error is None:
                    self.remember(group_id, found.address)

    async def call(
        self,
        group_id: str,
        method: Callable[[grpc.aio.Channel], grpc.aio.UnaryUnaryMultiCallable[Q, T]],
        request: Q,
        *,
        timeout_ms: int,
        attempt_timeout_ms: int = ATTEMPT_TIMEOUT_MS,
    ) -> T:
        """Make a unary call to the coordinator of a group. Find it again and repeat the call until the time is up.

        Args:
            group_id: the group.
            method: returns the method to call on a channel.
            request: a request that may be carried out twice.
            timeout_ms: milliseconds for all attempts together.
            attempt_timeout_ms: milliseconds that a coordinator may take. Then the client looks whether there is another one.

        Raises:
            RetriableError: the time is up, and this was the last failure.
            FatalError: the coordinator refused the request.
        """
        deadline_ms = monotonic_ms() + timeout_ms
        backoff = self.backoff()
        while True:
            left_ms = deadline_ms - monotonic_ms()
            try:
                address = self._addresses.get(group_id)
                if address is None:
                    address = await self.find(group_id, timeout_ms=max(1, min(left_ms, FIND_TIMEOUT_MS)))
                return await self._attempt(group_id, address, method, request, max(1, min(left_ms, attempt_timeout_ms)))
            except RetriableError as error:
                left_ms = deadline_ms - monotonic_ms()
                if left_ms <= 0:
                    raise
                is_hinted = error.code is ErrorCode.NOT_COORDINATOR and group_id in self._addresses
                advice_ms = error.retry_after_ms or 0
                delay_ms = RETRY_FLOOR_MS if is_hinted else backoff.next_delay_ms(at_least_ms=advice_ms)
                await asyncio.sleep(min(delay_ms, left_ms) / 1000)

    async def _find(self, group_ids: Sequence[str], *, timeout_ms: int) -> list[Found]:
        """Ask any broker for coordinators, and return what it says about each."""
        request = group_pb2.FindCoordinatorRequest(cluster_id=self._cluster.cluster_id, group_ids=group_ids)
        response = await self._cluster.ask(
            lambda channel: GroupServiceStub(channel).FindCoordinator, request, timeout_ms=timeout_ms
        )
        return checked(group_ids, [found_in(each) for each in response.coordinators])

    async def _attempt(
        self,
        group_id: str,
        address: str,
        method: Callable[[grpc.aio.Channel], grpc.aio.UnaryUnaryMultiCallable[Q, T]],
        request: Q,
        timeout_ms: int,
    ) -> T:
        transport = self._cluster.transport
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
            self.forget(group_id, address)
            raise

    def _learn(self, group_id: str, failure: LograftError, error: grpc.RpcError) -> None:
        """Note what a failed call says about the coordinator."""
        if failure.code is ErrorCode.NOT_COORDINATOR or isinstance(failure, RequestTimeoutError):
            self.remember(group_id, None)
        if failure.code is ErrorCode.NOT_COORDINATOR and isinstance(error, grpc.aio.AioRpcError):
            hint = parse_rpc_error(error).leader
            address = None if hint is None else hinted_address(hint)
            if address is not None:
                self.remember(group_id, address)


def found_in(message: group_pb2.GroupCoordinator | ingest_pb2.IngestCoordinator) -> Found:
    """Convert what a broker says about a coordinator."""
    return Found(address_of(message), decode_error(message.error) if message.HasField("error") else None)


def checked(asked: Sequence[str], found: list[Found]) -> list[Found]:
    """Return answers if there is one for each question.

    Raises:
        CoordinatorNotAvailableError: there is not.
    """
    if len(found) != len(asked):
        raise CoordinatorNotAvailableError(f"a broker named {len(found)} coordinators, not {len(asked)}")
    return found
