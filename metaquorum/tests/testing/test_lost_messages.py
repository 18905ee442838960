# SPDX-License-Identifier: Apache-2.0
"""A few lost messages in a row cost the quorum no leadership, whichever they are: each case is simulated."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from metaquorum.testing import sim_quorum
from metaquorum.testing.options import calm
from metaquorum.testing.sim_network import SimNetwork
from metaquorum.testing.sim_quorum import SimulatedQuorum

CALM = calm(observer_count=1, proposal_every_ms=1_000)
MESSAGES = 80
"""Messages of a new quorum among which some are lost: its election, the announcements, fetches with and without news."""
SEED = 1
WATCHED_MS = 8_000
"""Virtual time of one run; messages beyond `MESSAGES` are sent in it."""


class LosingNetwork(SimNetwork):
    """Loses some messages, by their numbers."""

    lost = range(0)
    sent_count = 0

    def send(self, source: str, target: str, deliver: Callable[[], None]) -> None:
        """Carry a message, except for the lost ones."""
        self.sent_count += 1
        if self.sent_count - 1 not in self.lost:
            super().send(source, target, deliver)


def leaderships(seed: int, lost: range) -> int:
    """Leaderships of a calm quorum within the watched time, with some messages lost."""
    networks: list[LosingNetwork] = []

    def network(*arguments: object) -> LosingNetwork:
        networks.append(LosingNetwork(*arguments))  # pyright: ignore[reportArgumentType]
        networks[0].lost = lost
        return networks[0]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sim_quorum, "SimNetwork", network)
        quorum = SimulatedQuorum(seed, CALM)
    for node in quorum.nodes:
        quorum.start(node)
    propose(quorum)
    while quorum.scheduler.now_ms < WATCHED_MS:
        quorum.scheduler.run_next()
    assert networks[0].sent_count > MESSAGES
    assert any(node.is_leader for node in quorum.nodes)
    return quorum.counts["became leader"]


def propose(quorum: SimulatedQuorum) -> None:
    """Have something appended now and then."""
    for node in quorum.nodes:
        if node.is_leader and node.raft is not None:
            quorum.propose_at(node, node.raft.state.quorum_epoch, 1)
    quorum.scheduler.after(700, lambda: propose(quorum))


@pytest.mark.parametrize("lost_count", [1, 4])
def test_messages_lost_in_a_row_cost_no_leadership(lost_count: int) -> None:
    """Fetch, answer, vote or announcement: the run has one leadership, with and without the loss.

    Four are what both followers send, or are sent, at one time.
    """
    assert leaderships(SEED, range(0)) == 1
    firsts = range(MESSAGES)
    assert [first for first in firsts if leaderships(SEED, range(first, first + lost_count)) != 1] == []
