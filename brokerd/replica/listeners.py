# SPDX-License-Identifier: Apache-2.0
"""Who uses a replica: produce routes, fetch routes, waiting reads.

Law: inside `on_high_watermark` a listener may read offsets, but not add or remove listeners.
"""

from __future__ import annotations

from typing import Protocol

from brokerd.failure import Failure


class ServiceListener(Protocol):
    """Somebody who uses a replica: a produce route."""

    def on_service_end(self, failure: Failure) -> None:
        """Learn that the replica serves no more; the subscription is over."""
        ...


class ReadListener(ServiceListener, Protocol):
    """Somebody who reads a replica: a fetch route, a waiting read."""

    def on_high_watermark(self, high_watermark: int) -> None:
        """Learn that records below `high_watermark` (exclusive) are readable."""
        ...


class ReplicaListeners:
    """The listeners of one replica; the methods here alone write the lists."""

    __slots__ = ("_readers", "_users")

    def __init__(self) -> None:
        # Dictionaries for their order: who came first is told first.
        self._users: dict[ServiceListener, None] = {}
        self._readers: dict[ServiceListener, ReadListener] = {}

    def __len__(self) -> int:
        return len(self._users)

    def add_service(self, listener: ServiceListener) -> None:
        """Tell the listener when the service ends."""
        self._users[listener] = None

    def add_read(self, listener: ReadListener) -> None:
        """Tell the listener when the high watermark moves and when the service ends."""
        self._users[listener] = None
        self._readers[listener] = listener

    def remove(self, listener: ServiceListener) -> None:
        """Stop to tell the listener; nothing happens when it was not added."""
        self._users.pop(listener, None)
        self._readers.pop(listener, None)

    def tell_high_watermark(self, high_watermark: int) -> None:
        """Tell the readers what they may read now."""
        for reader in self._readers.values():
            reader.on_high_watermark(high_watermark)

    def end_service(self, failure: Failure) -> None:
        """Tell every listener that the service is over, and forget them."""
        users = tuple(self._users)
        self._users.clear()
        self._readers.clear()
        for user in users:
            user.on_service_end(failure)
