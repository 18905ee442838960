# SPDX-License-Identifier: Apache-2.0
"""The users of a replica: produce routes, fetch routes, waiting reads.

Law: inside `on_high_watermark` a listener may read offsets, but must not add or remove listeners.
"""

from __future__ import annotations

from typing import Protocol

from brokerd.failure import Failure


class ServiceListener(Protocol):
    """A user of a replica, such as a produce route."""

    def on_service_end(self, failure: Failure) -> None:
        """Note that the replica no longer serves; the listener has been removed."""
        ...


class ReadListener(ServiceListener, Protocol):
    """A reader of a replica: a fetch route or a waiting read."""

    def on_high_watermark(self, high_watermark: int) -> None:
        """Note that records below `high_watermark` (exclusive) are readable."""
        ...


class ReplicaListeners:
    """The listeners of one replica; only the methods here change the lists."""

    __slots__ = ("_readers", "_users")

    def __init__(self) -> None:
        # Dictionaries for their order: the first listener is told first.
        self._users: dict[ServiceListener, None] = {}
        self._readers: dict[ServiceListener, ReadListener] = {}

    def __len__(self) -> int:
        return len(self._users)

    def add_service(self, listener: ServiceListener) -> None:
        """Add a listener for the end of the service."""
        self._users[listener] = None

    def add_read(self, listener: ReadListener) -> None:
        """Add a listener for the high watermark and the end of the service."""
        self._users[listener] = None
        self._readers[listener] = listener

    def remove(self, listener: ServiceListener) -> None:
        """Remove a listener; does nothing if it was not added."""
        self._users.pop(listener, None)
        self._readers.pop(listener, None)

    def tell_high_watermark(self, high_watermark: int) -> None:
        """Tell the readers the new high watermark."""
        for reader in self._readers.values():
            reader.on_high_watermark(high_watermark)

    def end_service(self, failure: Failure) -> None:
        """Tell every listener that the service is over, and remove all of them."""
        users = tuple(self._users)
        self._users.clear()
        self._readers.clear()
        for user in users:
            user.on_service_end(failure)
