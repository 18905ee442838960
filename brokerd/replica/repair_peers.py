# SPDX-License-Identifier: Apache-2.0
"""What a repair needs of the rest of the cluster. Types only."""

from __future__ import annotations

from typing import Protocol

from brokerd.replica.damage_news import DamageNews


class RepairCallError(Exception):
    """A call did not give what it was made for; the text says why."""


class RepairPeers(Protocol):
    """The other replicas.

    Attributes:
        news: what reads met, and what could not be repaired.
    """

    news: DamageNews

    def sources(self, topic_id: bytes, partition: int) -> list[int]:
        """Return the other brokers that have a replica, the best one first."""
        ...

    async def fetch(self, broker_id: int, topic_id: bytes, partition: int, wanted: range) -> bytes:
        """Return the first batches of a range as another replica has them; raises RepairCallError."""
        ...
