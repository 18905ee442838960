# SPDX-License-Identifier: Apache-2.0
"""How long the clients of a load hear nothing after connections died silently.

Owns the definition of "heard". A producer is heard when, in every partition, a value that it was given after the fault is acknowledged.
A consumer is heard when it has read such a value from every partition. The client that asks for ends is heard when a question from
after the fault is answered. The time runs from the fault, when the last connection has died, to the last of these. It is judged only
without other faults, because a partition without a leader is silent for other reasons.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from integration_tests.harness.load.record_load import RecordLoad

SILENCE_S_MAX = 20.0
"""Maximum seconds for which a client may hear nothing: its liveness bound of 12 s, and 8 s to open streams again, for clients and
between brokers, and to unfence a broker that the voters had lost, until it leads again."""


class Silence:
    """Which clients were heard since a fault, and after how long.

    Args:
        load: load with the clients.
        partitions: all of its partitions.
        since_s: monotonic time of the fault.

    Attributes:
        heard_s: seconds from the fault, by the name of a client that was heard.
    """

    def __init__(self, load: RecordLoad, partitions: Sequence[int], since_s: float) -> None:
        self.heard_s: dict[str, float] = {}
        self._load = load
        self._partitions = partitions
        self._since_s = since_s
        # For each partition, the offset of a value that was sent after the fault.
        self._fresh: dict[int, int] = {}

    @property
    def silent(self) -> list[str]:
        """Return the names of the clients that were not heard yet."""
        clients = (*self._load.senders, *self._load.pollers, self._load.end_reader)
        return [client.name for client in clients if client.name not in self.heard_s]

    def look(self) -> bool:
        """Note which clients are heard by now. Return whether all are."""
        load = self._load
        for sender in load.senders:
            # The SDK's thread writes the dictionary.
            latest = dict(sender.latest)
            fresh = {each: value.offset for each, value in latest.items() if value.sent_s > self._since_s}
            self._fresh = {**fresh, **self._fresh}
            if len(fresh) == len(self._partitions):
                self._note(sender.name)
        for poller in load.pollers:
            if len(self._fresh) == len(self._partitions) and all(
                poller.reached[each] > offset for each, offset in self._fresh.items()
            ):
                self._note(poller.name)
        if load.end_reader.asked_s > self._since_s:
            self._note(load.end_reader.name)
        return not self.silent

    def _note(self, name: str) -> None:
        self.heard_s.setdefault(name, time.monotonic() - self._since_s)
