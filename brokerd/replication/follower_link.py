# SPDX-License-Identifier: Apache-2.0
"""The `Replicate` stream of this broker to one other that leads: opened when needed, opened again when it breaks.

Owns the subscriptions that wait for a stream, and the exchange over it. Must not decide what is said: `FollowerSession` does;
nor what becomes of a partition: its core does. Everything runs on the event loop.

Laws: a replica is told of the end of every subscription that a stream had, once; what it asks for meanwhile waits for the
next stream. Nothing blocks the loop for more than `REPLICA_SLICE` partitions.
Source: docs/replication.md section "The stream".
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from lograft.internal.v1 import replication_pb2 as pb

from brokerd.clock import monotonic_ms
from brokerd.limits import (
    REPLICA_SLICE,
    REPLICATE_IDLE_MS,
)
from brokerd.partition.effects import SendAck, Subscribe
from brokerd.partition.follower_stream import FollowerSession
from brokerd.partition.reconciliation import SubscriptionError
from brokerd.replica.replication_border import FollowingReplica
from brokerd.replication import follower_codec as codec
from brokerd.replication.after_failure import AfterFailure, after_failure
from brokerd.replication.batches_frame import BatchesFrame
from brokerd.replication.connecting import (
    LeaderStream,
    StreamError,
    StreamRefusedError,
    decode,
    opened_stream,
)
from brokerd.replication.stream_retry import StreamRetry
from brokerd.wake import Wake
from metaquorum.net.peers import Peers
from metaquorum.process.settings import Address

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkIdentity:
    """Who opens the streams, and what it knows of others.

    Attributes:
        peers: connections of this process to other servers.
        cluster_id: the cluster.
        node_id: this broker.
        incarnation_id: of this process.
        broker_epoch: gives the epoch of its registration; None while there is none.
        address_of: gives the internal port of a broker; None for one that is not known.
    """

    peers: Peers
    cluster_id: str
    node_id: int
    incarnation_id: bytes
    broker_epoch: Callable[[], int | None]
    address_of: Callable[[int], Address | None]


class LeaderLink:
    """See the module docstring.

    Args:
        leader_id: the broker that leads.
        identity: who opens the streams.
    """

    def __init__(self, leader_id: int, identity: LinkIdentity) -> None:
        self._leader_id = leader_id
        self._identity = identity
        self._waiting: dict[FollowingReplica, Subscribe] = {}
        self._session: FollowerSession[FollowingReplica] | None = None
        self._wake = Wake()
        self._retry = StreamRetry(monotonic_ms())
        # True while the replicas hear of the end of a stream, and ask for the next one: that is no news of the leader.
        self._is_losing = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_due_ms = 0
        self._task = asyncio.create_task(self._run(), name=f"replicate-from-{leader_id}")

    def subscribe(self, replica: FollowingReplica, request: Subscribe) -> None:
        """Ask the leader, now or when there is a stream."""
        if self._session is None:
            self._waiting[replica] = request
            if not self._is_losing:
                self._retry.hear(monotonic_ms())
            self._wake.set()
            return
        self._session.subscribe(replica, request)
        self._schedule(self._session)

    def unsubscribe(self, replica: FollowingReplica, session: int) -> None:
        """End a subscription; nothing happens when it is over."""
        waiting = self._waiting.get(replica)
        if waiting is not None and waiting.session == session:
            del self._waiting[replica]
        if self._session is not None:
            self._session.unsubscribe(replica, session)
            self._schedule(self._session)

    def send_ack(self, replica: FollowingReplica, ack: SendAck) -> None:
        """Tell the leader what the replica holds."""
        if self._session is not None:
            self._session.ack(replica, ack)
            self._schedule(self._session)

    def note_registration(self) -> None:
        """Learn that this broker's own registration may have changed."""
        self._wake.set()

    async def close(self) -> None:
        """End the stream; nobody is told anything any more. Idempotent."""
        self._waiting.clear()
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            while not self._waiting:
                await self._wake.wait()
            self._retry.begin(monotonic_ms())
            after = AfterFailure.RETRY
            try:
                await self._serve()
                reason: object = "nothing to follow"
            except StreamRefusedError as error:
                reason, after = error, after_failure(error.code)
            except (StreamError, TimeoutError) as error:
                reason = repr(error)
            await self._lose_all()
            is_hopeless = after is AfterFailure.STOP
            level = logging.ERROR if is_hopeless else logging.INFO
            logger.log(level, "replication stream ended: leader_id=%d reason=%s", self._leader_id, reason)
            self._retry.end(monotonic_ms(), is_hopeless=is_hopeless, jitter=random.random())
            await self._pause()

    async def _pause(self) -> None:
        """Wait until the next attempt is due; news of the leader bring it forward."""
        while (left_ms := self._retry.due_ms - monotonic_ms()) > 0:
            with suppress(TimeoutError):
                async with asyncio.timeout(left_ms / 1000):
                    await self._wake.wait()

    async def _serve(self) -> None:
        identity = self._identity
        broker_epoch, address = identity.broker_epoch(), identity.address_of(self._leader_id)
        if broker_epoch is None or address is None:
            raise StreamError("not registered" if broker_epoch is None else "the leader's address is not known")
        message = codec.encode_open(
            cluster_id=identity.cluster_id,
            follower_id=identity.node_id,
            broker_epoch=broker_epoch,
            incarnation_id=identity.incarnation_id,
            leader_id=self._leader_id,
        )
        async with opened_stream(identity.peers, address, message, leader_id=self._leader_id) as stream:
            logger.info(
                "replication stream open: leader_id=%d leader_broker_epoch=%d own_broker_epoch=%d",
                self._leader_id,
                stream.opened.broker_epoch,
                broker_epoch,
            )
            await self._exchange(stream, broker_epoch)

    async def _exchange(self, stream: LeaderStream, broker_epoch: int) -> None:
        self._session = session = FollowerSession[FollowingReplica](monotonic_ms())
        for replica, request in self._waiting.items():
            session.subscribe(replica, request)
        self._waiting.clear()
        reader = asyncio.create_task(self._read(stream, session), name="replicate-reader")
        reader.add_done_callback(lambda _: self._wake.set())
        watch = asyncio.create_task(self._watch_silence(stream, session), name="replicate-silence")
        try:
            await self._write(stream, session, reader, broker_epoch)
        finally:
            reader.cancel()
            watch.cancel()
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            await asyncio.wait((reader, watch))

    async def _write(
        self,
        stream: LeaderStream,
        session: FollowerSession[FollowingReplica],
        reader: asyncio.Task[None],
        broker_epoch: int,
    ) -> None:
        idle_since_ms: int | None = None
        while True:
            for part in session.take(monotonic_ms()):
                await stream.write(codec.encode(part))
            if reader.cancelled():
                raise StreamError("the leader said nothing any more")
            if reader.done():
                reader.result()
                raise StreamError("the leader ended it")
            if self._identity.broker_epoch() != broker_epoch:
                raise StreamError("this broker has another registration")
            if not session.is_idle:
                idle_since_ms = None
            elif idle_since_ms is None:
                idle_since_ms = monotonic_ms()
            elif monotonic_ms() - idle_since_ms >= REPLICATE_IDLE_MS:
                return
            if session.is_used_up:
                raise StreamError("it has had as many subscriptions as one stream takes")
            self._schedule(session)
            await self._wake.wait()

    async def _read(self, stream: LeaderStream, session: FollowerSession[FollowingReplica]) -> None:
        while True:
            data = await stream.read()
            if data is None:
                return
            session.hear(monotonic_ms())
            message = decode(data)
            if isinstance(message, BatchesFrame):
                self._on_batches(session, message)
            else:
                _on_message(session, message)
            self._schedule(session)

    def _on_batches(self, session: FollowerSession[FollowingReplica], frame: BatchesFrame) -> None:
        found = session.find(frame.route)
        if found is not None:
            replica, number = found
            replica.on_leader_batches(
                number,
                frame.body,
                base_offset=frame.base_offset,
                leader_epoch=frame.leader_epoch,
                high_watermark=frame.high_watermark,
                log_start_offset=frame.log_start_offset,
            )
        session.use_credit(len(frame.body), is_in_sync=frame.is_in_sync)

    async def _watch_silence(self, stream: LeaderStream, session: FollowerSession[FollowingReplica]) -> None:
        """Break a stream whose leader says nothing any more; a task of its own, as the writer may wait for that leader."""
        left_ms = session.silence_left_ms(monotonic_ms())
        while left_ms > 0:
            await asyncio.sleep(left_ms / 1000)
            left_ms = session.silence_left_ms(monotonic_ms())
        logger.warning("the leader says nothing any more: leader_id=%d", self._leader_id)
        stream.cancel()

    async def _lose_all(self) -> None:
        """Tell every replica that had a subscription that the stream is lost; they subscribe again, and wait here."""
        session, self._session = self._session, None
        if session is None:
            return
        for count, (replica, number) in enumerate(session.subscriptions(), start=1):
            self._is_losing = True
            replica.on_subscription_ended(number, SubscriptionError.STREAM_LOST)
            self._is_losing = False
            if count % REPLICA_SLICE == 0:
                await asyncio.sleep(0)

    def _schedule(self, session: FollowerSession[FollowingReplica]) -> None:
        """See to it that the writer looks again when there is something to say."""
        due_ms, now_ms = session.deadline_ms(), monotonic_ms()
        if session.has_urgent or due_ms <= now_ms:
            self._wake.set()
            return
        if self._timer is not None:
            if self._timer_due_ms <= due_ms:
                return
            self._timer.cancel()
        self._timer_due_ms = due_ms
        self._timer = asyncio.get_running_loop().call_later((due_ms - now_ms) / 1000, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self._wake.set()


def _on_message(session: FollowerSession[FollowingReplica], message: pb.ReplicateResponse) -> None:
    match message.WhichOneof("part"):
        case "marks":
            for mark in message.marks.marks:
                found = session.find(mark.route)
                if found is not None:
                    found[0].on_leader_marks(
                        found[1], high_watermark=mark.high_watermark, log_start_offset=mark.log_start_offset
                    )
        case "accepted":
            accepted = message.accepted
            found = session.find(accepted.route)
            if found is not None:
                found[0].on_subscription_accepted(
                    found[1], high_watermark=accepted.high_watermark, log_start_offset=accepted.log_start_offset
                )
        case "diverged":
            found = session.end(message.diverged.route)
            if found is not None:
                found[0].on_subscription_diverged(found[1], codec.read_leader_end(message.diverged))
        case "ended":
            ended = message.ended
            found = session.end(ended.route)
            if found is not None:
                error = codec.read_error(ended.error)
                logger.info("subscription ended: partition=%s error=%s message=%s", found[0], error.name, ended.message)
                found[0].on_subscription_ended(found[1], error, log_start_offset=ended.log_start_offset)
        case "opened":
            raise StreamError("`opened` came twice")
        case _:
            pass  # a heartbeat, the news of an orderly stop, or what a newer leader says besides
