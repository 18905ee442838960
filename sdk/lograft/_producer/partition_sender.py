# SPDX-License-Identifier: Apache-2.0
"""What the produce engine and its streams share: one partition on its way to its leader, and one producer identity.

Owns state only; the engine and the streams change it.
"""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING

from lograft._client.backoff import Backoff
from lograft._client.metadata import Leader
from lograft._producer.sequencer import PartitionSequencer
from lograft.errors import LograftError

if TYPE_CHECKING:
    from lograft._producer.stream import ProduceStream


class Session:
    """One producer identity and the streams that use it."""

    def __init__(self) -> None:
        self.identity: tuple[int, int] | None = None
        # Held by the handshake that brings the identity.
        self.handshake: AbstractAsyncContextManager[None] = asyncio.Lock()
        self.streams: dict[int, ProduceStream] = {}
        self.sender_count = 0


class PartitionSender:
    """One partition on its way to its leader.

    Attributes:
        sequencer: order and identity of its batches.
        session: the identity that its batches carry.
        stream: stream that it is bound or being bound to; None: it waits for a leader.
        route: its route number there.
        is_ready: True while it stands in the stream's line of partitions with something to send.
        topic_id: id of the topic that it was bound to last.
        max_batch_bytes: largest batch that the topic takes; None: not bound yet.
        unknown_since_ms: since when brokers say that they do not know the partition.
        retry: timer of the next try to find a leader.
        last_error: why the partition was last without a route.
        avoided: leader that could not be used; the same one is tried again only after a pause.
        leaving: timer after which it leaves the stream to a broker that leads it no more, if that has not ended it by then.
    """

    __slots__ = (
        "avoided",
        "backoff",
        "is_ready",
        "last_error",
        "leaving",
        "max_batch_bytes",
        "partition",
        "retry",
        "route",
        "sequencer",
        "session",
        "stream",
        "topic",
        "topic_id",
        "unknown_since_ms",
    )

    def __init__(
        self, topic: str, partition: int, *, sequencer: PartitionSequencer, session: Session, backoff: Backoff
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.sequencer = sequencer
        self.session = session
        self.backoff = backoff
        self.stream: ProduceStream | None = None
        self.route = 0
        self.is_ready = False
        self.topic_id: bytes | None = None
        self.max_batch_bytes: int | None = None
        self.unknown_since_ms: int | None = None
        self.retry: asyncio.TimerHandle | None = None
        self.last_error: LograftError | None = None
        self.avoided: Leader | None = None
        self.leaving: asyncio.TimerHandle | None = None
