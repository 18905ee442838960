# SPDX-License-Identifier: Apache-2.0
"""Which replicas of this broker are lost or found, and what the controller has still to be told of them. Pure.

A replica is *lost* when its log does not work in this process: its directory failed, or the log could not be opened. It is to be
*withdrawn* while the metadata has it in sync, eligible or leading, because others count on it, and nobody can lead in its place.
A replica is *found* when its partition awaits the log directory in which its log lies: it may lead again, and is *claimed*.

Theory of operation. What is to be done follows from the metadata alone, so that it does not matter how a replica got back among
those that count: a leader that did not know of the loss proposed it, or an election chose it. A replica is looked at when it is
lost, when its partition changes, and when the pause after a refusal is over.

| Event | A lost replica |
|---|---|
| the metadata does not count on it, or it has no other replica | is left alone until its partition changes |
| it does | is withdrawn, with the epochs of the metadata |
| the partition awaits the directory of a found replica | that one is claimed, with the epochs of the metadata |
| accepted | is left alone until the metadata has a later state |
| refused, or no answer | is withdrawn again after a pause, which doubles; a later state of its partition ends the pause |

Laws
    A state of a partition that is older than an answer of the controller is not acted on.
    Between two withdrawals for one state of a partition passes at least `WITHDRAWAL_RETRY_MIN_MS`.
Source: docs/replication.md section "Lost replicas".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from brokerd.limits import MAX_CALL_WITHDRAWALS, WITHDRAWAL_RETRY_MAX_MS, WITHDRAWAL_RETRY_MIN_MS
from metaquorum.metadata.awaited import awaited_directories
from metaquorum.metadata.state import PartitionImage


@dataclass(frozen=True, slots=True, kw_only=True)
class Withdrawal:
    """A lost or found replica, and the state of its partition that it is withdrawn from, or claimed for.

    Attributes:
        topic_id: id of the topic, 16 bytes.
        partition: partition, from 0.
        leader_epoch: leader epoch that the metadata has.
        partition_epoch: partition epoch that it has.
        found_directory_id: the log directory in which the log lies, 16 bytes; None: the log is lost.
    """

    topic_id: bytes
    partition: int
    leader_epoch: int
    partition_epoch: int
    found_directory_id: bytes | None = None


class _Lost:
    """What is known of one lost or found replica.

    Attributes:
        found_directory_id: where its log lies; None: it is lost.
        least_epoch: partition epoch that an answer told; an older state says nothing.
        tried_epoch: partition epoch of the last withdrawal; None without one.
        pause_ms: the next pause.
        due_ms: when it may be withdrawn again from the state that was tried.
    """

    __slots__ = ("due_ms", "found_directory_id", "least_epoch", "pause_ms", "tried_epoch")

    def __init__(self, found_directory_id: bytes | None = None) -> None:
        self.found_directory_id = found_directory_id
        self.least_epoch = 0
        self.tried_epoch: int | None = None
        self.pause_ms = WITHDRAWAL_RETRY_MIN_MS
        self.due_ms = 0


States = Callable[[bytes, int], PartitionImage | None]
"""Gives a partition as the metadata has it, by topic id and number; None: there is none."""


class FailedReplicas:
    """See the module docstring.

    Args:
        node_id: this broker.
    """

    def __init__(self, node_id: int) -> None:
        self._node_id = node_id
        self._lost: dict[bytes, dict[int, _Lost]] = {}
        # Those to be looked at, in the order in which that became so: a broker may have lost many, and most of them are settled.
        self._open: dict[tuple[bytes, int], None] = {}

    def add(self, topic_id: bytes, partition: int) -> None:
        """Learn that the log of a replica does not work. Idempotent."""
        known = self._lost.setdefault(topic_id, {})
        if partition not in known or known[partition].found_directory_id is not None:
            known[partition] = _Lost()
            self._open[topic_id, partition] = None

    def add_found(self, topic_id: bytes, partition: int, directory_id: bytes) -> None:
        """Learn that the log of a replica lies in a directory that its partition awaits. Idempotent; a lost one stays lost."""
        known = self._lost.setdefault(topic_id, {})
        if partition not in known:
            known[partition] = _Lost(directory_id)
            self._open[topic_id, partition] = None

    def discard(self, topic_id: bytes, partition: int) -> None:
        """Learn that a replica does not belong here any more; one that comes again has another log."""
        known = self._lost.get(topic_id, {})
        known.pop(partition, None)
        if not known:
            self._lost.pop(topic_id, None)
        self._open.pop((topic_id, partition), None)

    def note_change(self, topic_ids: Iterable[bytes]) -> None:
        """Learn that partitions of these topics may have changed."""
        for topic_id in topic_ids:
            for partition in self._lost.get(topic_id, ()):
                self._open[topic_id, partition] = None

    def due(self, states: States, now_ms: int) -> tuple[Withdrawal, ...]:
        """Return what is to be withdrawn now, at most `MAX_CALL_WITHDRAWALS`.

        Each comes again after its pause, or once its partition has changed.

        Args:
            states: the metadata.
            now_ms: monotonic time in milliseconds.
        """
        found: list[Withdrawal] = []
        for topic_id, partition in tuple(self._open):
            lost, state = self._lost[topic_id][partition], states(topic_id, partition)
            if state is None or state.partition_epoch < lost.least_epoch or not self._concerns(lost, state):
                del self._open[topic_id, partition]
                continue
            if state.partition_epoch == lost.tried_epoch and now_ms < lost.due_ms:
                continue
            if state.partition_epoch != lost.tried_epoch:
                lost.tried_epoch, lost.pause_ms = state.partition_epoch, WITHDRAWAL_RETRY_MIN_MS
            lost.due_ms = now_ms + lost.pause_ms
            lost.pause_ms = min(2 * lost.pause_ms, WITHDRAWAL_RETRY_MAX_MS)
            found.append(
                Withdrawal(
                    topic_id=topic_id,
                    partition=partition,
                    leader_epoch=state.leader_epoch,
                    partition_epoch=state.partition_epoch,
                    found_directory_id=lost.found_directory_id,
                )
            )
            if len(found) == MAX_CALL_WITHDRAWALS:
                break
        return tuple(found)

    def note_accepted(self, withdrawal: Withdrawal, partition_epoch: int) -> None:
        """Learn that the controller carried a withdrawal out, and which partition epoch holds from then on."""
        lost = self._lost.get(withdrawal.topic_id, {}).get(withdrawal.partition)
        if lost is not None:
            lost.least_epoch = max(lost.least_epoch, partition_epoch)

    def deadline_ms(self) -> int | None:
        """Return when `due` has something to say if nothing happens until then; None: never.

        It may have nothing to say then, because the partition has changed meanwhile.
        """
        return min((self._lost[topic_id][partition].due_ms for topic_id, partition in self._open), default=None)

    def _concerns(self, lost: _Lost, state: PartitionImage) -> bool:
        """Tell whether the controller has to hear of a replica.

        Of a lost one where others may go on without it, and count on it (the leader is always in sync); of a found one where its
        directory is awaited.
        """
        if lost.found_directory_id is not None:
            return lost.found_directory_id in awaited_directories(state.awaited, self._node_id)
        return len(state.replicas) > 1 and (self._node_id in state.isr or self._node_id in state.elr)
