# SPDX-License-Identifier: Apache-2.0
"""How long the clients of a load hear nothing after connections died without a word.

Owns what counts as heard. A producer: a value that it was given after the blow is acknowledged, in every partition. A consumer: such a
value was read, of every partition. The one that asks for ends: such a question was answered. The time counts from the blow, when the
last connection has died, to the last of these. It is judged only while nothing else is hurt: a partition without a leader is silent for
other reasons.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from integration_tests.harness.load.record_load import RecordLoad

SILENCE_S_MAX = 20.0
"""Most seconds that a client may hear nothing: its liveness bound of 12 s, and 8 s in which streams are opened again, here and
between brokers, and a broker that voters had lost sight of is let in and leads again."""


class Silence:
    """Who was heard since a blow, and after how long.

    Args:
        load: whose clients.
        partitions: all of its partitions.
        since_s: when the blow fell, on the monotonic clock.

    Attributes:
        heard_s: seconds from the blow, by the name of a client that was heard.
    """

    def __init__(self, load: RecordLoad, partitions: Sequence[int], since_s: float) -> None:
        self.heard_s: dict[str, float] = {}
        self._load = load
        self._partitions = partitions
        self._since_s = since_s
        # By partition, the offset of a value that was sent after the blow.
        self._fresh: dict[int, int] = {}

    @property
    def silent(self) -> list[str]:
        """Names of the clients that were not heard yet."""
        clients = (*self._load.senders, *self._load.pollers, self._load.end_reader)
        return [client.name for client in clients if client.name not in self.heard_s]

    def look(self) -> bool:
        """Note who is heard by now; returns whether all are."""
        load = self._load
        for sender in load.senders:
            # The thread of the SDK writes it.
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
