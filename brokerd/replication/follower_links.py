# SPDX-License-Identifier: Apache-2.0
"""The streams of this broker to all others that lead partitions which it follows.

Owns one `LeaderLink` for each leader that was ever asked. Must not know what is said over them.
"""

from __future__ import annotations

import asyncio

from brokerd.partition.effects import SendAck, Subscribe
from brokerd.replica.replication_border import FollowingReplica
from brokerd.replication.follower_link import LeaderLink, LinkIdentity


class Links:
    """See the module docstring; the replicas use it as their `LeaderLinks`."""

    def __init__(self, identity: LinkIdentity) -> None:
        self._identity = identity
        self._links: dict[int, LeaderLink] = {}
        self._is_closed = False

    def subscribe(self, replica: FollowingReplica, request: Subscribe) -> None:
        """Ask the leader; takes the place of an earlier subscription of the replica there."""
        if self._is_closed:
            return
        link = self._links.get(request.leader_id)
        if link is None:
            link = self._links[request.leader_id] = LeaderLink(request.leader_id, self._identity)
        link.subscribe(replica, request)

    def unsubscribe(self, replica: FollowingReplica, *, leader_id: int, session: int) -> None:
        """End a subscription; nothing happens when it is over."""
        link = self._links.get(leader_id)
        if link is not None:
            link.unsubscribe(replica, session)

    def send_ack(self, replica: FollowingReplica, ack: SendAck, *, leader_id: int) -> None:
        """Tell the leader what the replica holds."""
        link = self._links.get(leader_id)
        if link is not None:
            link.send_ack(replica, ack)

    def note_registration(self) -> None:
        """Learn that this broker's own registration may have changed."""
        for link in self._links.values():
            link.note_registration()

    async def close(self) -> None:
        """End every stream. Idempotent."""
        self._is_closed = True
        links = tuple(self._links.values())
        self._links.clear()
        await asyncio.gather(*(link.close() for link in links))
