# SPDX-License-Identifier: Apache-2.0
"""Replica fetchers: the `Replicate` streams from this broker to the brokers that lead partitions which it follows.

`ReplicaFetcher` owns the stream to one leader. It opens the stream when needed and again after a break, holds the subscriptions that
wait for a stream, and exchanges the messages. `ReplicaFetchers` owns one fetcher for each leader that was ever needed. The core
`brokerd.partition.follower_stream` decides what to send, and when to try a broken stream again. The core of each replica decides about
its partition. Everything runs on the event loop.

Laws: each replica hears once of the end of each subscription that a stream had. What it asks for in the meantime waits for the next
stream. Nothing blocks the event loop for more than `REPLICA_SLICE` partitions.
Source: docs/replication.md section "The stream"; docs/net.md.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from google.protobuf.message import DecodeError

from brokerd.clock import monotonic_ms
from brokerd.limits import REPLICA_SLICE, REPLICATE_WINDOW_BYTES
from brokerd.partition.effects import SendAck, Subscribe
from brokerd.partition.follower_stream import FollowerSession, StreamRetry, is_hopeless
from brokerd.partition.reconciliation import SubscriptionError
from brokerd.partition.stream_limits import StreamLimits
from brokerd.partition.stream_messages import (
    Accepted,
    Batches,
    Credit,
    Diverged,
    Ended,
    LeaderMessage,
    Marks,
    Open,
    Opened,
)
from brokerd.replica.replication_border import FollowingReplica
from brokerd.replication.peer_errors import PeerError, peer_error
from brokerd.replication.stream_codec import decode_response, encode_request
from brokerd.wake import Wake
from metaquorum.net.link import CallError, Stream
from metaquorum.net.methods import Method
from metaquorum.net.peers import Peers
from metaquorum.process.settings import Address

FORMATS: Final = (16,)
"""Batch formats that this broker can store."""

logger = logging.getLogger(__name__)

_Session = FollowerSession[FollowingReplica]


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowerIdentity:
    """The broker that opens the streams, and how it finds others.

    Attributes:
        peers: connections of this process to other servers.
        cluster_id: id of the cluster.
        node_id: id of this broker.
        incarnation_id: random id of this process.
        broker_epoch: returns the epoch of the broker's registration; None before the first.
        address_of: returns the internal port of a broker; None if it is not known.
        limits: limits of the streams.
    """

    peers: Peers
    cluster_id: str
    node_id: int
    incarnation_id: bytes
    broker_epoch: Callable[[], int | None]
    address_of: Callable[[int], Address | None]
    limits: StreamLimits = field(default_factory=StreamLimits)


class ReplicaFetchers:
    """The streams to all leaders. The replicas use it as their `LeaderStreams`."""

    def __init__(self, identity: FollowerIdentity) -> None:
        self._identity = identity
        self._fetchers: dict[int, ReplicaFetcher] = {}
        self._is_closed = False

    def subscribe(self, replica: FollowingReplica, request: Subscribe) -> None:
        """Subscribe at the leader. This replaces an earlier subscription of the replica there."""
        if self._is_closed:
            return
        fetcher = self._fetchers.get(request.leader_id)
        if fetcher is None:
            fetcher = self._fetchers[request.leader_id] = ReplicaFetcher(request.leader_id, self._identity)
        fetcher.subscribe(replica, request)

    def unsubscribe(self, replica: FollowingReplica, *, leader_id: int, session: int) -> None:
        """End a subscription. Does nothing if it has already ended."""
        fetcher = self._fetchers.get(leader_id)
        if fetcher is not None:
            fetcher.unsubscribe(replica, session)

    def send_ack(self, replica: FollowingReplica, ack: SendAck, *, leader_id: int) -> None:
        """Send the leader an acknowledgement."""
        fetcher = self._fetchers.get(leader_id)
        if fetcher is not None:
            fetcher.send_ack(replica, ack)

    def note_registration(self) -> None:
        """Note that this broker's own registration may have changed."""
        for fetcher in self._fetchers.values():
            fetcher.note_registration()

    async def close(self) -> None:
        """End every stream. Idempotent."""
        self._is_closed = True
        fetchers = tuple(self._fetchers.values())
        self._fetchers.clear()
        await asyncio.gather(*(fetcher.close() for fetcher in fetchers))


class ReplicaFetcher:
    """The stream to one leader. It is opened again after a break while a replica wants to follow that leader.

    Args:
        leader_id: id of the leading broker.
        identity: the broker that opens the stream.
    """

    def __init__(self, leader_id: int, identity: FollowerIdentity) -> None:
        self._leader_id = leader_id
        self._identity = identity
        self._waiting: dict[FollowingReplica, Subscribe] = {}
        self._session: _Session | None = None
        self._wake = Wake()
        self._retry = StreamRetry(identity.limits, monotonic_ms())
        # True while the replicas hear of the end of a stream and subscribe again. Such a subscription is no news of the leader.
        self._is_losing = False
        # True while the replicas hear messages of the leader. What they ask for is sent after that, together.
        self._is_hearing = False
        # Messages that wait for credit of the leader. Only the writer sends them.
        self._unsent: deque[bytes] = deque()
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_due_ms = 0
        self._silence_timer: asyncio.TimerHandle | None = None
        self._task = asyncio.create_task(self._run(), name=f"replicate-from-{leader_id}")

    def subscribe(self, replica: FollowingReplica, request: Subscribe) -> None:
        """Subscribe at the leader, now or as soon as there is a stream."""
        if self._session is None:
            self._waiting[replica] = request
            if not self._is_losing:
                self._retry.hear(monotonic_ms())
            self._wake.set()
            return
        self._session.subscribe(replica, request)
        self._schedule(self._session)

    def unsubscribe(self, replica: FollowingReplica, session: int) -> None:
        """End a subscription. Does nothing if it has already ended."""
        waiting = self._waiting.get(replica)
        if waiting is not None and waiting.session == session:
            del self._waiting[replica]
        if self._session is not None:
            self._session.unsubscribe(replica, session)
            self._schedule(self._session)

    def send_ack(self, replica: FollowingReplica, ack: SendAck) -> None:
        """Send the leader an acknowledgement."""
        if self._session is not None:
            self._session.ack(replica, ack)
            self._schedule(self._session)

    def note_registration(self) -> None:
        """Note that this broker's own registration may have changed."""
        self._wake.set()

    async def close(self) -> None:
        """End the stream. No replica hears of its end. Idempotent."""
        self._waiting.clear()
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            while not self._waiting:
                await self._wake.wait()
            self._retry.begin(monotonic_ms())
            needs_operator = False
            try:
                reason = await self._serve()
            except PeerError as error:
                reason, needs_operator = str(error), is_hopeless(error.code)
            await self._lose_all()
            level = logging.ERROR if needs_operator else logging.INFO
            logger.log(level, "replication stream ended: leader_id=%d reason=%s", self._leader_id, reason)
            self._retry.end(monotonic_ms(), is_hopeless=needs_operator, jitter=random.random())
            await self._pause()

    async def _pause(self) -> None:
        """Wait until the next attempt is due. News of the leader makes it due earlier."""
        while (left_ms := self._retry.due_ms - monotonic_ms()) > 0:
            with suppress(TimeoutError):
                async with asyncio.timeout(left_ms / 1000):
                    await self._wake.wait()

    async def _serve(self) -> str:
        """Open a stream, exchange messages over it until it ends, and return the reason of its end.

        Raises:
            PeerError: the leader refuses, or is no longer reachable.
        """
        identity = self._identity
        broker_epoch, address = identity.broker_epoch(), identity.address_of(self._leader_id)
        if broker_epoch is None:
            return "this broker is not registered"
        if address is None:
            return "the leader's address is not known"
        limits = identity.limits
        opening = Open(
            cluster_id=identity.cluster_id,
            follower_id=identity.node_id,
            broker_epoch=broker_epoch,
            incarnation_id=identity.incarnation_id,
            leader_id=self._leader_id,
            formats=FORMATS,
            credit=Credit(limits.in_sync_credit_bytes, limits.catch_up_credit_bytes),
        )
        stream, opened = await open_stream(identity.peers, address, opening, limits)
        try:
            logger.info(
                "replication stream open: leader_id=%d leader_broker_epoch=%d own_broker_epoch=%d",
                self._leader_id,
                opened.broker_epoch,
                broker_epoch,
            )
            return await self._exchange(stream, broker_epoch)
        except CallError as error:
            raise peer_error(error) from error
        finally:
            stream.give_up()

    async def _exchange(self, stream: Stream, broker_epoch: int) -> str:
        self._session = session = _Session(self._identity.limits, monotonic_ms())
        self._unsent.clear()
        for replica, request in self._waiting.items():
            session.subscribe(replica, request)
        self._waiting.clear()
        ended: asyncio.Future[str] = self._loop.create_future()
        ended.add_done_callback(lambda _: self._wake.set())

        def on_messages(messages: list[bytes]) -> None:
            if not ended.done():
                try:
                    self._hear(stream, session, messages)
                except PeerError as error:
                    ended.set_exception(error)

        def on_end(error: CallError | None) -> None:
            if ended.done():
                return
            if error is None:
                ended.set_result("the leader ended it")
            else:
                ended.set_exception(error)

        stream.listen(on_messages, on_end)
        self._watch_silence(stream, session)
        try:
            return await self._write(stream, session, ended, broker_epoch)
        finally:
            for timer in (self._timer, self._silence_timer):
                if timer is not None:
                    timer.cancel()
            self._timer = self._silence_timer = None
            if not ended.cancel() and not ended.cancelled():
                ended.exception()  # retrieved only: the writer has met the same end of the stream, or an earlier one

    async def _write(self, stream: Stream, session: _Session, ended: asyncio.Future[str], broker_epoch: int) -> str:
        """Send messages until the stream is no longer of use, and return the reason."""
        idle_since_ms: int | None = None
        while True:
            while self._unsent:
                await stream.write(self._unsent[0])
                self._unsent.popleft()
            self._send(stream, session)
            if ended.done():
                return ended.result()
            if self._identity.broker_epoch() != broker_epoch:
                return "this broker has another registration"
            if not session.is_idle:
                idle_since_ms = None
            elif idle_since_ms is None:
                idle_since_ms = monotonic_ms()
            elif monotonic_ms() - idle_since_ms >= self._identity.limits.idle_ms:
                return "nothing to follow"
            if session.is_used_up:
                return "it has had as many subscriptions as one stream takes"
            self._schedule(session)
            await self._wake.wait()

    def _send(self, stream: Stream, session: _Session) -> None:
        """Send what is due. What the leader has no credit for waits for the writer."""
        for message in session.take_messages(monotonic_ms()):
            data = encode_request(message)
            if self._unsent or not stream.try_write(data):
                self._unsent.append(data)
                self._wake.set()

    def _hear(self, stream: Stream, session: _Session, messages: list[bytes]) -> None:
        """Pass messages of the leader to the replicas, and send what they ask for at once."""
        self._is_hearing = True
        try:
            session.hear(monotonic_ms())
            for data in messages:
                message = _decoded(data)
                if isinstance(message, Batches):
                    found = session.find(message.route)
                    if found is not None:
                        found[0].on_leader_batches(
                            found[1],
                            message.body,
                            base_offset=message.base_offset,
                            leader_epoch=message.leader_epoch,
                            high_watermark=message.high_watermark,
                            log_start_offset=message.log_start_offset,
                        )
                    session.use_credit(len(message.body), is_in_sync=message.is_in_sync)
                else:
                    _on_message(session, message)
        finally:
            self._is_hearing = False
        if not self._unsent:
            self._send(stream, session)
        self._schedule(session)

    def _watch_silence(self, stream: Stream, session: _Session) -> None:
        """Break a stream whose leader is silent for too long. A timer does this, because the writer may be waiting for that leader."""
        left_ms = session.silence_left_ms(monotonic_ms())
        if left_ms > 0:
            self._silence_timer = self._loop.call_later(left_ms / 1000, self._watch_silence, stream, session)
            return
        logger.warning("the leader says nothing any more: leader_id=%d", self._leader_id)
        stream.give_up()

    async def _lose_all(self) -> None:
        """Tell every replica with a subscription that the stream is lost. They subscribe again, and wait here."""
        session, self._session = self._session, None
        if session is None:
            return
        for count, (replica, number) in enumerate(session.subscriptions(), start=1):
            self._is_losing = True
            replica.on_subscription_ended(number, SubscriptionError.STREAM_LOST)
            self._is_losing = False
            if count % REPLICA_SLICE == 0:
                await asyncio.sleep(0)

    def _schedule(self, session: _Session) -> None:
        """Wake the writer when there is something to send, now or at the session's deadline."""
        if self._is_hearing:
            return
        due_ms, now_ms = session.deadline_ms(), monotonic_ms()
        if session.has_urgent or due_ms <= now_ms:
            self._wake.set()
            return
        if self._timer is not None:
            if self._timer_due_ms <= due_ms:
                return
            self._timer.cancel()
        self._timer_due_ms = due_ms
        self._timer = self._loop.call_later((due_ms - now_ms) / 1000, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self._wake.set()


async def open_stream(peers: Peers, address: Address, opening: Open, limits: StreamLimits) -> tuple[Stream, Opened]:
    """Open a stream. The caller must give it up in the end.

    Args:
        peers: connections of this process.
        address: internal port of the leader.
        opening: the first message. The leader that it names must answer at the address.
        limits: limits of the attempt.

    Raises:
        PeerError: the leader refuses, is unreachable, does not answer in time, or answers with an invalid message.
    """
    try:
        stream = await peers.open(
            str(address),
            Method.REPLICATE,
            encode_request(opening),
            window_bytes=REPLICATE_WINDOW_BYTES,
            timeout_ms=limits.connect_ms,
            node_id=opening.leader_id,
        )
    except CallError as error:
        raise peer_error(error) from error
    try:
        try:
            async with asyncio.timeout(limits.open_ms / 1000):
                data = await stream.read()
        except CallError as error:
            raise peer_error(error) from error
        except TimeoutError as error:
            raise PeerError(f"the opening was not answered within {limits.open_ms} ms") from error
        opened = None if data is None else _decoded(data)
        if not isinstance(opened, Opened):
            raise PeerError("the first answer was not `opened`")
    except BaseException:
        stream.give_up()
        raise
    return stream, opened


def _decoded(data: bytes) -> LeaderMessage | Batches | None:
    try:
        return decode_response(data)
    except DecodeError as error:
        raise PeerError("a message cannot be decoded") from error


def _on_message(session: _Session, message: LeaderMessage | None) -> None:
    """Pass a leader's message other than batches to the session and its replicas."""
    match message:
        case Marks():
            for route, high_watermark, log_start_offset in message.marks:
                found = session.find(route)
                if found is not None:
                    found[0].on_leader_marks(found[1], high_watermark=high_watermark, log_start_offset=log_start_offset)
        case Accepted():
            found = session.find(message.route)
            if found is not None:
                found[0].on_subscription_accepted(
                    found[1], high_watermark=message.high_watermark, log_start_offset=message.log_start_offset
                )
        case Diverged():
            found = session.end(message.route)
            if found is not None:
                found[0].on_subscription_diverged(found[1], message.leader_end)
        case Ended():
            found = session.end(message.route)
            if found is not None:
                replica, number = found
                name = message.error.name
                logger.info("subscription ended: partition=%s error=%s message=%s", replica, name, message.message)
                replica.on_subscription_ended(number, message.error, log_start_offset=message.log_start_offset)
        case Opened():
            raise PeerError("`opened` came twice")
        case _:
            pass  # a heartbeat, a GoAway, or a message that only a newer version knows
