# SPDX-License-Identifier: Apache-2.0
"""Effects of one step, and the gate that holds back every message until the election state that it depends on is on disk.

Owns the order of effects, the single write of the election state that may be under way, and the messages that wait for it. Law: a
message that depends on election state X leaves only after X, or a later state, is on stable storage. A later state suffices because
it remembers at least as much (the epoch never falls, and a vote never changes within an epoch).
Source: Raft section 5.2 (votes are persistent); `docs/quorum.md` section "Replication".
"""

from __future__ import annotations

from collections import deque

from metaquorum.raft.effects import Effect, PersistElectionState, Reply, ReplyWithBatches, Send
from metaquorum.raft.types import ElectionState


class Outbox:
    """Collects effects. `drain` returns them at the end of the step.

    Args:
        persisted: election state that is on disk.
        max_held_messages: as in `RaftConfig`.
    """

    __slots__ = ("_effects", "_held", "_in_flight", "_max_held_messages", "_persisted", "_wanted", "_wanted_state")

    def __init__(self, persisted: ElectionState, *, max_held_messages: int) -> None:
        self._max_held_messages = max_held_messages
        self._effects: list[Effect] = []
        self._held: deque[tuple[int, Send | Reply | ReplyWithBatches]] = deque()
        self._wanted_state = persisted
        # Versions count changes of the wanted state; equal versions mean that nothing waits for the disk.
        self._wanted = 0
        self._persisted = 0
        self._in_flight: int | None = None

    @property
    def is_persisted(self) -> bool:
        """True if the latest election state is on stable storage."""
        return self._persisted == self._wanted

    @property
    def held_count(self) -> int:
        """Number of messages that wait for the disk."""
        return len(self._held)

    def emit(self, effect: Effect) -> None:
        """Add an effect that sends nothing to a peer."""
        self._effects.append(effect)

    def say(self, effect: Send | Reply | ReplyWithBatches) -> None:
        """Add a message. It leaves now, or once the current election state is on disk."""
        if self.is_persisted:
            self._effects.append(effect)
            return
        if len(self._held) >= self._max_held_messages:
            self._held.popleft()
        self._held.append((self._wanted, effect))

    def record(self, state: ElectionState) -> None:
        """Note a new election state. It is written as soon as the write under way, if any, is done."""
        if state != self._wanted_state:
            self._wanted_state = state
            self._wanted += 1

    def persisted(self, sequence: int) -> None:
        """Note that the write with this sequence number is on disk; release the messages that waited for it."""
        assert sequence == self._in_flight, f"write {sequence} reported, {self._in_flight} is under way"
        self._in_flight = None
        self._persisted = sequence
        while self._held and self._held[0][0] <= sequence:
            self._effects.append(self._held.popleft()[1])

    def drain(self) -> list[Effect]:
        """Return the effects of this step in order."""
        if self._in_flight is None and not self.is_persisted:
            self._in_flight = self._wanted
            self._effects.append(PersistElectionState(sequence=self._wanted, state=self._wanted_state))
        effects, self._effects = self._effects, []
        return effects
