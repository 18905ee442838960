# SPDX-License-Identifier: Apache-2.0
"""One client's connection to the cluster: unary calls to any broker, and metadata that brokers push.

It owns the choice of the broker for a call, the attempts of a call within its deadline, the metadata view and its watch. It
must not produce or fetch.

The first answer pins the cluster id. From then on the client refuses servers of another cluster, even when addresses change
hands. Source: docs/clients.md, "Reaching brokers" (WatchCluster pushes deltas; any broker answers).
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

import grpc
import grpc.aio

from lograft._client.backoff import Backoff
from lograft._client.clock import monotonic_ms
from lograft._client.codec import decode_cluster, decode_error, decode_watch
from lograft._client.metadata import ClusterView, Leader, TopicState
from lograft._client.probe import MAX_PROBES, Probe, end_probes, wait_seen
from lograft._client.transport import Purpose, Transport, is_connection_loss, is_unanswered, to_error
from lograft.errors import (
    FatalError,
    LograftError,
    NoBrokerError,
    OutcomeUnknownError,
    RequestTimeoutError,
    RetriableError,
    UnknownTopicError,
    WrongClusterError,
)
from lograft.settings import (
    CONNECT_TIMEOUT_MS,
    LAST_TRY_MS,
    MAX_RETRY_BACKOFF_MS,
    RETRY_BACKOFF_MS,
    UNKNOWN_TOPIC_WAIT_MS,
    ClientSettings,
)
from lograft.v1 import errors_pb2, metadata_pb2
from lograft.v1.metadata_pb2_grpc import MetadataServiceStub
from lograft.wire.codes import ErrorCode

logger = logging.getLogger(__name__)

T = TypeVar("T")
Q = TypeVar("Q")

REFRESH_SHARE: Final = 4
"""While another broker can be asked, one broker gets this fraction (1/4) of the time of a refresh."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One attempt of a unary call: the channel and the seconds that it may take."""

    address: str
    channel: grpc.aio.Channel
    timeout_s: float
    transport: Transport

    async def answer(self, call: Awaitable[T]) -> T:
        """Wait for the answer of a call on this channel; see `Transport.answer`."""
        return await self.transport.answer(call)


class Cluster:
    """Makes a client's unary calls, keeps its view of the cluster up to date and owns its `Transport`. Belongs to one event loop."""

    def __init__(self, settings: ClientSettings) -> None:
        self.view = ClusterView()
        self.transport = Transport(liveness_ms=settings.connection_liveness_ms, client_id=settings.client_id)
        self.rng = random.Random()
        self._settings = settings
        self._preferred: str | None = None
        self._listeners: list[Callable[[], None]] = []
        self._topics: set[str] = set()
        self._watch: asyncio.Task[None] | None = None
        self._watch_call: (
            grpc.aio.UnaryStreamCall[metadata_pb2.WatchClusterRequest, metadata_pb2.WatchClusterResponse] | None
        ) = None
        self._refresh: asyncio.Task[None] | None = None
        self._is_closed = False
        self._is_loop_ending = False

    @property
    def cluster_id(self) -> str:
        """Cluster id for requests: the configured one, else the first one seen, else empty (any)."""
        return self._settings.cluster_id or self.view.cluster_id or ""

    def backoff(self) -> Backoff:
        """Return a backoff with the client's standard bounds."""
        return Backoff(base_ms=RETRY_BACKOFF_MS, limit_ms=MAX_RETRY_BACKOFF_MS, rng=self.rng)

    def add_listener(self, listener: Callable[[], None]) -> None:
        """Call `listener` on the loop after every change of the view."""
        self._listeners.append(listener)

    async def close(self) -> None:
        """End the watch and close the channels."""
        self._is_closed = True
        tasks = [task for task in (self._watch, self._refresh) if task is not None]
        if self._watch_call is not None:
            # Cancel the call and not the task, so that gRPC can end the read under way.
            self._watch_call.cancel()
        elif self._watch is not None:
            self._watch.cancel()
        if self._refresh is not None:
            self._refresh.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.transport.close()

    # -- unary calls

    async def call(
        self,
        work: Callable[[Attempt], Awaitable[T]],
        *,
        timeout_ms: int,
        may_repeat: bool = True,
        address: str | None = None,
        attempt_ms: int | None = None,
        avoid: str | None = None,
    ) -> T:
        """Make a unary call to any broker. Try other brokers, and all of them again, until the time is up.

        Args:
            work: makes the call with a channel and a timeout.
            timeout_ms: milliseconds for all attempts together.
            may_repeat: False when a second execution would do harm. A lost answer then raises instead of a new attempt.
            address: "host:port" of the only broker to ask; None asks any broker.
            attempt_ms: most milliseconds for one broker while another can be asked; None sets no such limit.
            avoid: "host:port" of a broker to ask last.

        Raises:
            NoBrokerError: no broker answered.
            RequestTimeoutError: the time is up.
            OutcomeUnknownError: the answer was lost and `may_repeat` is false.
            LograftError: a server refused the request.
        """
        probes: dict[str, Probe] = {}
        try:
            return await self._call(
                work,
                probes,
                timeout_ms=timeout_ms,
                may_repeat=may_repeat,
                address=address,
                attempt_ms=attempt_ms,
                avoid=avoid,
            )
        finally:
            await end_probes(probes.values())

    async def ask(
        self,
        method: Callable[[grpc.aio.Channel], grpc.aio.UnaryUnaryMultiCallable[Q, T]],
        request: Q,
        *,
        timeout_ms: int,
        may_repeat: bool = True,
        address: str | None = None,
        attempt_ms: int | None = None,
        avoid: str | None = None,
    ) -> T:
        """Make a unary call of one request; see `call`.

        Args:
            method: returns the method to call on a channel.
            request: the request.
            timeout_ms: see `call`.
            may_repeat: see `call`.
            address: see `call`.
            attempt_ms: see `call`.
            avoid: see `call`.
        """

        async def work(attempt: Attempt) -> T:
            return await attempt.answer(method(attempt.channel)(request, timeout=attempt.timeout_s))

        return await self.call(
            work,
            timeout_ms=timeout_ms,
            may_repeat=may_repeat,
            address=address,
            attempt_ms=attempt_ms,
            avoid=avoid,
        )

    async def _call(
        self,
        work: Callable[[Attempt], Awaitable[T]],
        probes: dict[str, Probe],
        *,
        timeout_ms: int,
        may_repeat: bool,
        address: str | None,
        attempt_ms: int | None,
        avoid: str | None,
    ) -> T:
        """Do what `call` says, and add a probe for each address that does not answer to `probes`."""
        deadline_ms = monotonic_ms() + timeout_ms
        backoff = self.backoff()
        failure: LograftError | None = None
        while True:
            candidates = [address] if address is not None else self._candidates(avoid)
            for candidate in candidates:
                left_ms = deadline_ms - monotonic_ms()
                if left_ms <= 0:
                    break
                if attempt_ms is not None and candidate != candidates[-1]:
                    left_ms = min(left_ms, attempt_ms)
                try:
                    return await self._try(work, candidate, left_ms, may_repeat)
                except RetriableError as error:
                    failure = _worse(failure, error)
                    # A refresh in the background needs no probe: no caller sees its error.
                    is_silent = isinstance(error, NoBrokerError) and attempt_ms is None
                    if is_silent and candidate not in probes and len(probes) < MAX_PROBES:
                        probes[candidate] = Probe(candidate)
            left_ms = deadline_ms - monotonic_ms()
            delay_ms = 0 if failure is None else backoff.next_delay_ms(at_least_ms=failure.retry_after_ms or 0)
            is_refused = not may_repeat and not isinstance(failure, NoBrokerError)
            # An attempt that runs out of time would leave the outcome unknown and hide the reason of the last refusal.
            if failure is None or left_ms <= 0 or (is_refused and left_ms - delay_ms < LAST_TRY_MS):
                await wait_seen(probes.values())
                raise self._give_up(failure, timeout_ms, candidates, probes)
            await asyncio.sleep(min(delay_ms, left_ms) / 1000)

    async def _try(self, work: Callable[[Attempt], Awaitable[T]], address: str, left_ms: int, may_repeat: bool) -> T:
        connect_s = min(CONNECT_TIMEOUT_MS, left_ms) / 1000
        channel = await self.transport.connect(address, Purpose.CONTROL, timeout_s=connect_s)
        try:
            with self.transport.using(channel):
                result = await work(
                    Attempt(address=address, channel=channel, timeout_s=left_ms / 1000, transport=self.transport)
                )
        except grpc.RpcError as error:
            if is_unanswered(error):
                self.transport.give_up(channel)
            if not may_repeat and is_connection_loss(error):
                raise OutcomeUnknownError(
                    f"the connection to {address} broke before its answer came: the request may have been carried out"
                ) from error
            failure = to_error(error, address)
            if not may_repeat and failure.code is ErrorCode.TIMED_OUT and not isinstance(failure, NoBrokerError):
                raise OutcomeUnknownError(f"{failure.message}: the request may have been carried out") from error
            raise failure from error
        self._preferred = address
        return result

    def _candidates(self, avoid: str | None = None) -> list[str]:
        """Addresses to try: the last one that answered, the configured ones, all known brokers; those that just failed come last."""
        known = [broker.address for broker in self.view.brokers() if not broker.fenced]
        ordered = ([self._preferred] if self._preferred else []) + list(self._settings.addresses) + known
        is_failing = self.transport.is_failing
        return sorted(
            dict.fromkeys(ordered), key=lambda address: (is_failing(address, Purpose.CONTROL), address == avoid)
        )

    def _give_up(
        self,
        failure: LograftError | None,
        timeout_ms: int,
        candidates: Sequence[str],
        probes: Mapping[str, Probe],
    ) -> LograftError:
        if isinstance(failure, NoBrokerError):
            addresses = ", ".join(candidates)
            seen = "; ".join(str(probe) for address, probe in probes.items() if address in candidates)
            why = f": {seen}" if seen else "; is it running?"
            return NoBrokerError(f"no broker answered at {addresses} within {timeout_ms} ms{why}")
        if failure is None:
            return RequestTimeoutError(f"no time was left for a call ({timeout_ms} ms)")
        return failure

    # -- metadata

    async def fetch(
        self,
        topics: frozenset[str],
        *,
        timeout_ms: int,
        min_metadata_offset: int | None = None,
        attempt_ms: int | None = None,
        avoid: str | None = None,
    ) -> None:
        """Ask a broker for the state of the cluster and of some topics, and merge the answer into the view; see `call`."""
        request = metadata_pb2.GetClusterRequest(cluster_id=self.cluster_id, topics=sorted(topics))
        if min_metadata_offset is not None:
            request.min_metadata_offset = min_metadata_offset
        response = await self.ask(
            lambda channel: MetadataServiceStub(channel).GetCluster,
            request,
            timeout_ms=timeout_ms,
            attempt_ms=attempt_ms,
            avoid=avoid,
        )
        self._check_cluster(response.cluster_id)
        self.view.apply(decode_cluster(response, asked=topics))
        self._notify()

    async def fetch_brokers(self, *, timeout_ms: int) -> None:
        """Ask a broker for the brokers of the cluster, and merge the answer into the view."""
        # Every answer contains the brokers. An impossible topic name keeps the rest of it small.
        await self.fetch(frozenset(("-",)), timeout_ms=timeout_ms)

    async def topic(self, topic: str, *, timeout_ms: int) -> TopicState:
        """Return a topic, ask a broker for it if the view lacks it, and watch it from now on.

        Raises:
            UnknownTopicError: the topic does not exist, and did not appear within `UNKNOWN_TOPIC_WAIT_MS`.
        """
        deadline_ms = monotonic_ms() + timeout_ms
        give_up_ms = monotonic_ms() + min(UNKNOWN_TOPIC_WAIT_MS, timeout_ms)
        backoff = self.backoff()
        while True:
            state = self.view.topic(topic)
            if state is not None:
                self._watch_topic(topic)
                return state
            await self.fetch(frozenset((topic,)), timeout_ms=max(1, deadline_ms - monotonic_ms()))
            if self.view.topic(topic) is None:
                if monotonic_ms() >= give_up_ms:
                    raise UnknownTopicError(f"topic {topic!r} does not exist; create it first")
                await asyncio.sleep(backoff.next_delay_ms() / 1000)

    def watch(self, topics: Iterable[str]) -> None:
        """Watch topics from now on, and ask soon for those that the view lacks. It does not wait for them."""
        for topic in topics:
            self._watch_topic(topic)
            if self.view.topic(topic) is None:
                self.request_refresh()

    def leader(self, topic: str, partition: int) -> Leader | None:
        """Return the last known leader of a partition; None if no leader is known."""
        return self.view.leader(topic, partition)

    def is_missing(self, topic: str, partition: int) -> bool:
        """True when the view has no such partition."""
        state = self.view.topic(topic)
        return state is None or partition >= len(state.partitions)

    def take_hint(self, topic: str, partition: int, hint: errors_pb2.LeaderHint) -> bool:
        """Take a leader hint. Return False if it is not newer than the view."""
        is_news = self.view.take_hint(
            topic,
            partition,
            leader_id=hint.leader_id,
            leader_epoch=hint.leader_epoch,
            host=hint.host,
            port=hint.port,
        )
        if is_news:
            self._notify()
        return is_news

    @property
    def is_leaving(self) -> bool:
        """True when the client must start nothing more: it is closed, or its event loop ends."""
        return self._is_closed or self._is_loop_ending

    def note_cancelled(self) -> None:
        """Note that a task was cancelled. If the client did not cancel it, the event loop ends, as at the end of `asyncio.run`."""
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            self._is_loop_ending = True

    def request_refresh(self, *, avoid: str | None = None) -> None:
        """Fetch the watched topics soon, preferably not from `avoid`. Several requests become one fetch."""
        if self._refresh is None and not self.is_leaving and self._topics:
            self._refresh = asyncio.get_running_loop().create_task(self._refresh_once(avoid))

    async def _refresh_once(self, avoid: str | None) -> None:
        try:
            await asyncio.sleep(self.backoff().next_delay_ms() / 1000)
            # A frozen broker must leave time for the brokers that would answer.
            await self.fetch(
                frozenset(self._topics),
                timeout_ms=CONNECT_TIMEOUT_MS,
                attempt_ms=CONNECT_TIMEOUT_MS // REFRESH_SHARE,
                avoid=avoid,
            )
        except LograftError as error:
            logger.info("metadata refresh failed: %s", error)
        finally:
            self._refresh = None

    def _watch_topic(self, topic: str) -> None:
        if topic in self._topics or self._is_closed:
            return
        self._topics.add(topic)
        if self._watch is None:
            self._watch = asyncio.get_running_loop().create_task(self._watch_loop())
        elif self._watch_call is not None:
            # The filter of a watch is fixed. The loop opens another watch that includes the new topic.
            self._watch_call.cancel()

    async def _watch_loop(self) -> None:
        backoff = self.backoff()
        while not self._is_closed:
            watched = frozenset(self._topics)
            for address in self._candidates():
                try:
                    await self._watch_once(address, watched, backoff)
                except FatalError as error:
                    logger.warning("watch at %s refused: %s", address, error)
                except LograftError as error:
                    logger.info("watch at %s ended: %s", address, error)
                if self._is_closed or watched != frozenset(self._topics):
                    break
            else:
                await asyncio.sleep(backoff.next_delay_ms() / 1000)

    async def _watch_once(self, address: str, watched: frozenset[str], backoff: Backoff) -> None:
        channel = await self.transport.connect(address, Purpose.CONTROL, timeout_s=CONNECT_TIMEOUT_MS / 1000)
        with self.transport.using(channel):
            await self._watch_over(channel, address, watched, backoff)

    async def _watch_over(
        self, channel: grpc.aio.Channel, address: str, watched: frozenset[str], backoff: Backoff
    ) -> None:
        request = metadata_pb2.WatchClusterRequest(cluster_id=self.cluster_id, topics=sorted(watched))
        self._watch_call = call = MetadataServiceStub(channel).WatchCluster(request)
        if watched != frozenset(self._topics):
            # More topics have come during the connection attempt, and this watch lacks them.
            call.cancel()
        try:
            async for response in call:
                if response.HasField("error"):
                    raise decode_error(response.error)
                self._check_cluster(response.cluster_id)
                backoff.reset()
                self.view.apply(decode_watch(response, watched=watched))
                self._notify()
        except grpc.RpcError as error:
            raise to_error(error, address) from error
        except asyncio.CancelledError:
            # Either this task was cancelled, or only the call, to open a watch with more topics.
            task = asyncio.current_task()
            if task is None or task.cancelling() or not call.cancelled():
                self.note_cancelled()
                raise
        finally:
            self._watch_call = None
            call.cancel()

    def _check_cluster(self, cluster_id: str) -> None:
        if self.cluster_id and cluster_id and cluster_id != self.cluster_id:
            raise WrongClusterError(f"the broker belongs to cluster {cluster_id!r}, not to {self.cluster_id!r}")

    def _notify(self) -> None:
        for listener in self._listeners:
            listener()


def _worse(old: LograftError | None, new: LograftError) -> LograftError:
    """Keep the failure that says more: a server's answer counts more than no answer."""
    if old is None or isinstance(old, NoBrokerError) or not isinstance(new, NoBrokerError):
        return new
    return old
