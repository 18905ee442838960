# SPDX-License-Identifier: Apache-2.0
"""The soft state of the controller: when it last heard from each broker, and when the last new broker appeared.

Owns what is not worth a record. It is lost with the leadership. A new controller gives every broker a whole session of grace, because
it cannot know when the old controller last heard from it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from metaquorum.controller.commands import Heard
from metaquorum.metadata.state import BrokerImage


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerSession:
    """State of a broker's session.

    Attributes:
        age_ms: milliseconds since the last sign of life, or since this leadership began.
        metadata_offset: metadata offset (exclusive) that the broker last reported as applied; 0: it never did.
        lasts: True while the session lasts.
    """

    age_ms: int
    metadata_offset: int
    lasts: bool


@dataclass(slots=True)
class _Session:
    broker_epoch: int | None
    heard_ms: int
    metadata_offset: int
    lacks_room: bool = False


class Sessions:
    """Sessions of brokers by broker id.

    Args:
        session_timeout_ms: milliseconds without a sign of life after which a session is over.
        now_ms: monotonic time in milliseconds at which the leadership begins.

    Attributes:
        arrival_ms: when a broker was last heard for the first time; initially when the leadership began, because the earlier
            controller may just have heard from a new broker.
    """

    def __init__(self, session_timeout_ms: int, *, now_ms: int) -> None:
        self.arrival_ms = now_ms
        self._session_timeout_ms = session_timeout_ms
        self._sessions: dict[int, _Session] = {}

    def hear(self, heard: Heard, now_ms: int) -> None:
        """Store a sign of life."""
        if heard.broker_id not in self._sessions:
            self.arrival_ms = now_ms
        self._sessions[heard.broker_id] = _Session(heard.broker_epoch, now_ms, heard.metadata_offset, heard.lacks_room)

    def grace(self, brokers: Iterable[BrokerImage], now_ms: int) -> None:
        """Restart the session of every broker: after a take-over, or after this process was paused."""
        for broker in brokers:
            session = self._sessions.get(broker.broker_id)
            offset = 0 if session is None else session.metadata_offset
            lacks_room = session is not None and session.lacks_room
            self._sessions[broker.broker_id] = _Session(broker.broker_epoch, now_ms, offset, lacks_room)

    def is_live(self, broker: BrokerImage, now_ms: int) -> bool:
        """Return True while the session of this registration lasts."""
        expiry = self.expiry_ms(broker)
        return expiry is not None and now_ms < expiry

    def describe(self, broker: BrokerImage, now_ms: int) -> BrokerSession | None:
        """Return the session of this registration, or None."""
        expiry = self.expiry_ms(broker)
        if expiry is None:
            return None
        session = self._sessions[broker.broker_id]
        return BrokerSession(
            age_ms=now_ms - session.heard_ms, metadata_offset=session.metadata_offset, lasts=now_ms < expiry
        )

    def expiry_ms(self, broker: BrokerImage) -> int | None:
        """Return the time at which the session is over (inclusive), in milliseconds; None without one for this registration."""
        session = self._sessions.get(broker.broker_id)
        # An epoch of None comes from a registration whose offset was not known yet: it is the newest one.
        if session is None or session.broker_epoch not in (None, broker.broker_epoch):
            return None
        return session.heard_ms + self._session_timeout_ms

    def metadata_offset(self, broker_id: int) -> int:
        """Return the metadata offset (exclusive) that a broker last reported as applied; 0 if it never did."""
        session = self._sessions.get(broker_id)
        return 0 if session is None else session.metadata_offset

    def has_room(self, broker_id: int) -> bool:
        """Return False while a broker reports that one of its log directories has too little room for appends of clients."""
        session = self._sessions.get(broker_id)
        return session is None or not session.lacks_room
