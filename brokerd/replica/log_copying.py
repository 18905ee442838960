# SPDX-License-Identifier: Apache-2.0
"""The log of one replica that follows, as the stream to its leader sees it (`FollowingReplica`).

Owns what came and is not appended yet, and the cuts. Must not decide what is appended or where to cut: the core does.
Source: docs/replication.md, "The follower" and "Contract of the shells".
"""

from __future__ import annotations

import logging
from typing import Protocol

from lograft.wire.checksum import BytesLike
from lograft.wire.errors import BatchError

from brokerd.clock import monotonic_ms, wall_ms
from brokerd.partition.effects import RestartLog, SendAck, Subscribe, TruncateLog, Unsubscribe
from brokerd.partition.events import BatchAppended
from brokerd.partition.follower_events import (
    BatchesReceived,
    LeaderAdvanced,
    SubscriptionAccepted,
    SubscriptionDiverged,
    SubscriptionEnded,
)
from brokerd.partition.reconciliation import EpochEnd, SubscriptionError
from brokerd.replica.leader_link import LeaderLinks
from brokerd.replica.log_cutting import CutOwner, LogCutting
from storage.directory.space_guard import SpaceGuard
from storage.errors import DiskFailedError, OutOfOrderOffsetError, StorageError
from storage.log.partition_log import PartitionLog

logger = logging.getLogger(__name__)


class CopyOwner(CutOwner, Protocol):
    """The hosted replica; `str` names the partition."""

    @property
    def topic_id(self) -> bytes:
        """Topic id, 16 bytes."""
        ...

    @property
    def partition(self) -> int:
        """Partition, from 0."""
        ...

    @property
    def log(self) -> PartitionLog:
        """The log."""
        ...

    @property
    def space(self) -> SpaceGuard:
        """Room in the log directory."""
        ...

    @property
    def is_lent(self) -> bool:
        """True while somebody else works on the log."""
        ...


class LogCopying:
    """See the module docstring; made when the replica first follows.

    Args:
        owner: the hosted replica.
        links: streams to leaders.

    Attributes:
        cutting: the cuts of the log.
    """

    __slots__ = ("_batches", "_leader_id", "_links", "_owner", "_session", "cutting")

    def __init__(self, owner: CopyOwner, links: LeaderLinks) -> None:
        self._owner = owner
        self._links = links
        self.cutting = LogCutting(owner)
        self._batches: BytesLike = b""
        self._session = 0
        # Whom the core asked last.
        self._leader_id = -1

    @property
    def topic_id(self) -> bytes:
        """Topic id, 16 bytes."""
        return self._owner.topic_id

    @property
    def partition(self) -> int:
        """Partition, from 0."""
        return self._owner.partition

    def __str__(self) -> str:
        return str(self._owner)

    # What the stream says.

    def on_subscription_accepted(self, session: int, *, high_watermark: int, log_start_offset: int) -> None:
        """Learn that the log is a prefix of the leader's."""
        self._owner.take_event(
            SubscriptionAccepted(session=session, high_watermark=high_watermark, log_start_offset=log_start_offset)
        )

    def on_subscription_diverged(self, session: int, leader_end: EpochEnd) -> None:
        """Learn where the logs part; the subscription is over."""
        log = self._owner.log
        known = None if leader_end.epoch is None else log.end_offset_for_epoch(leader_end.epoch)
        logger.info("logs part: partition=%s leader_end=%s own_end=%s", self, leader_end, known)
        self._owner.take_event(
            SubscriptionDiverged(
                session=session,
                leader_end=leader_end,
                own_end=None if known is None else EpochEnd(known.epoch, known.end_offset),
                own_start_offset=log.log_start_offset,
            )
        )

    def on_subscription_ended(
        self, session: int, error: SubscriptionError, *, log_start_offset: int | None = None
    ) -> None:
        """Learn that the subscription is over."""
        self._owner.take_event(SubscriptionEnded(session=session, error=error, log_start_offset=log_start_offset))

    def on_leader_batches(
        self,
        session: int,
        batches: BytesLike,
        *,
        base_offset: int,
        leader_epoch: int,
        high_watermark: int,
        log_start_offset: int,
    ) -> None:
        """Take whole batches of one leader epoch, and what the leader had committed when it sent them."""
        if self._owner.is_lent:
            # In the last step of a move between directories, or in a cut, which is behind the end of the session.
            self._give_up(session, SubscriptionError.OVERLOADED)
            return
        self._batches, self._session = batches, session
        received = BatchesReceived(session=session, base_offset=base_offset, leader_epoch=leader_epoch)
        self._owner.take_event(received)
        self._batches = b""
        self.on_leader_marks(session, high_watermark=high_watermark, log_start_offset=log_start_offset)

    def on_leader_marks(self, session: int, *, high_watermark: int, log_start_offset: int) -> None:
        """Learn the leader's high watermark and log start."""
        self._owner.take_event(
            LeaderAdvanced(session=session, high_watermark=high_watermark, log_start_offset=log_start_offset)
        )

    # What the core asks for.

    def carry_out(self, effect: Subscribe | Unsubscribe | SendAck | TruncateLog | RestartLog) -> None:
        """Do what the core asks for."""
        match effect:
            case SendAck():
                self._links.send_ack(self, effect, leader_id=self._leader_id)
            case Subscribe():
                self._leader_id = effect.leader_id
                self._links.subscribe(self, effect)
            case Unsubscribe():
                self._links.unsubscribe(self, leader_id=effect.leader_id, session=effect.session)
            case TruncateLog():
                if effect.loses_committed:
                    logger.error(
                        "records that were committed are cut, as an unclean election brings about: partition=%s "
                        "from_offset=%d to_offset=%d",
                        self,
                        effect.to_offset,
                        self._owner.log.log_end_offset,
                    )
                self.cutting.begin(effect)
            case RestartLog():
                self.cutting.begin(effect)

    def append(self) -> None:
        """Append what came, and tell the core; if that fails, the subscription is over."""
        owner, log, batches, session = self._owner, self._owner.log, self._batches, self._session
        old_end_offset = log.log_end_offset
        problem: SubscriptionError | None = None
        try:
            owner.space.admit(len(batches), now_ms=monotonic_ms(), is_client=False)
            log.append_as_follower(batches, now_ms=wall_ms())
        except (BatchError, OutOfOrderOffsetError) as error:
            logger.error("batches of the leader refused: partition=%s offset=%d: %s", self, old_end_offset, error)
            problem = SubscriptionError.BAD_BATCHES
        except DiskFailedError as error:
            owner.note_disk_failure(error)
            return
        except StorageError as error:
            logger.error("batches of the leader not stored: partition=%s offset=%d: %s", self, old_end_offset, error)
            problem = SubscriptionError.STORAGE_FAILED
        if log.log_end_offset > old_end_offset:
            owner.take_event(BatchAppended(log_end_offset=log.log_end_offset))
        if problem is not None:
            self._give_up(session, problem)

    def _give_up(self, session: int, error: SubscriptionError) -> None:
        self._links.unsubscribe(self, leader_id=self._leader_id, session=session)
        self._owner.take_event(SubscriptionEnded(session=session, error=error))
