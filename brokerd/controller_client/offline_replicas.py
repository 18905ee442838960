# SPDX-License-Identifier: Apache-2.0
"""Which replicas of this broker are offline or found, and what the controller has still to be told of them. Pure.

A replica is *offline* when its log does not work in this process: its directory failed, or the log could not be opened. The controller
is asked to take it out of the in-sync and eligible replicas while the metadata has it there, because others count on it, and no other
replica can lead instead. A replica is *found* when its partition awaits the log directory in which its log lies: it may lead again, and
is claimed.

Theory of operation. What is to be done follows from the metadata alone, so that it does not matter how a replica got back among
those that count: a leader that did not know of the failure proposed it, or an election chose it. A replica is looked at when it goes
offline, when its partition changes, and when the pause after a refusal is over.

| Event | An offline replica |
|---|---|
| the metadata does not count on it, or it has no other replica | is left alone until its partition changes |
| it does | is reported, with the epochs of the metadata |
| the partition awaits the directory of a found replica | that one is claimed, with the epochs of the metadata |
| accepted | is left alone until the metadata has a later state |
| refused, or no answer | is reported again after a pause, which doubles; a later state of its partition ends the pause |

Laws
    A state of a partition that is older than an answer of the controller is not acted on.
    Between two reports for one state of a partition passes at least the shortest pause.
Source: docs/replication.md section "Lost replicas".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from metaquorum.metadata.awaited import awaited_directories
from metaquorum.metadata.state import PartitionImage


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaReport:
    """What the controller is told of an offline or found replica, and the state of its partition for which that holds.

    Attributes:
        topic_id: id of the topic, 16 bytes.
        partition: partition, from 0.
        leader_epoch: leader epoch that the metadata has.
        partition_epoch: partition epoch that it has.
        found_directory_id: the log directory in which the log lies, 16 bytes; None: the replica is offline.
    """

    topic_id: bytes
    partition: int
    leader_epoch: int
    partition_epoch: int
    found_directory_id: bytes | None = None


class _Replica:
    """What is known of one offline or found replica.

    Attributes:
        found_directory_id: where its log lies; None: it is offline.
        least_epoch: partition epoch that an answer told; an older state says nothing.
        tried_epoch: partition epoch of the last report; None without one.
        pause_ms: the next pause.
        due_ms: when it may be reported again from the state that was tried.
    """

    __slots__ = ("due_ms", "found_directory_id", "least_epoch", "pause_ms", "tried_epoch")

    def __init__(self, found_directory_id: bytes | None, pause_ms: int) -> None:
        self.found_directory_id = found_directory_id
        self.least_epoch = 0
        self.tried_epoch: int | None = None
        self.pause_ms = pause_ms
        self.due_ms = 0


States = Callable[[bytes, int], PartitionImage | None]
"""Gives a partition as the metadata has it, by topic id and number; None: there is none."""


class OfflineReplicas:
    """The offline and found replicas of one process.

    Args:
        node_id: this broker.
        most: reports that `due` gives at once at most.
        retry_min_ms: milliseconds between the first two reports for one state of a partition; doubles each time.
        retry_max_ms: most milliseconds between two of them.
    """

    def __init__(self, node_id: int, *, most: int, retry_min_ms: int, retry_max_ms: int) -> None:
        self._node_id = node_id
        self._most = most
        self._retry_min_ms = retry_min_ms
        self._retry_max_ms = retry_max_ms
        self._known: dict[bytes, dict[int, _Replica]] = {}
        # Those to be looked at, in the order in which that became so: a broker may have many offline replicas, most of them settled.
        self._open: dict[tuple[bytes, int], None] = {}

    def add(self, topic_id: bytes, partition: int) -> None:
        """Learn that the log of a replica does not work. Idempotent."""
        known = self._known.setdefault(topic_id, {})
        if partition not in known or known[partition].found_directory_id is not None:
            known[partition] = _Replica(None, self._retry_min_ms)
            self._open[topic_id, partition] = None

    def add_found(self, topic_id: bytes, partition: int, directory_id: bytes) -> None:
        """Learn that the log of a replica lies in a directory that its partition awaits. Idempotent; an offline one stays offline."""
        known = self._known.setdefault(topic_id, {})
        if partition not in known:
            known[partition] = _Replica(directory_id, self._retry_min_ms)
            self._open[topic_id, partition] = None

    def discard(self, topic_id: bytes, partition: int) -> None:
        """Learn that a replica does not belong here any more; one that comes again has another log."""
        known = self._known.get(topic_id, {})
        known.pop(partition, None)
        if not known:
            self._known.pop(topic_id, None)
        self._open.pop((topic_id, partition), None)

    def note_change(self, topic_ids: Iterable[bytes]) -> None:
        """Learn that partitions of these topics may have changed."""
        for topic_id in topic_ids:
            for partition in self._known.get(topic_id, ()):
                self._open[topic_id, partition] = None

    def due(self, states: States, now_ms: int) -> list[ReplicaReport]:
        """Return what the controller is to be told now.

        Each comes again after its pause, or once its partition has changed.

        Args:
            states: the metadata.
            now_ms: monotonic time in milliseconds.
        """
        reports: list[ReplicaReport] = []
        for topic_id, partition in tuple(self._open):
            replica, state = self._known[topic_id][partition], states(topic_id, partition)
            if state is None or state.partition_epoch < replica.least_epoch or not self._concerns(replica, state):
                del self._open[topic_id, partition]
                continue
            if state.partition_epoch == replica.tried_epoch and now_ms < replica.due_ms:
                continue
            if state.partition_epoch != replica.tried_epoch:
                replica.tried_epoch, replica.pause_ms = state.partition_epoch, self._retry_min_ms
            replica.due_ms = now_ms + replica.pause_ms
            replica.pause_ms = min(2 * replica.pause_ms, self._retry_max_ms)
            reports.append(
                ReplicaReport(
                    topic_id=topic_id,
                    partition=partition,
                    leader_epoch=state.leader_epoch,
                    partition_epoch=state.partition_epoch,
                    found_directory_id=replica.found_directory_id,
                )
            )
            if len(reports) == self._most:
                break
        return reports

    def note_accepted(self, report: ReplicaReport, partition_epoch: int) -> None:
        """Learn that the controller acted on a report, and which partition epoch holds from then on."""
        replica = self._known.get(report.topic_id, {}).get(report.partition)
        if replica is not None:
            replica.least_epoch = max(replica.least_epoch, partition_epoch)

    def deadline_ms(self) -> int | None:
        """Return when `due` has something to say if nothing happens until then; None: never.

        It may have nothing to say then, because the partition has changed meanwhile.
        """
        return min((self._known[topic_id][partition].due_ms for topic_id, partition in self._open), default=None)

    def _concerns(self, replica: _Replica, state: PartitionImage) -> bool:
        """Tell whether the controller has to hear of a replica.

        Of an offline one where others may go on without it, and count on it (the leader is always in sync); of a found one where its
        directory is awaited.
        """
        if replica.found_directory_id is not None:
            return replica.found_directory_id in awaited_directories(state.awaited, self._node_id)
        return len(state.replicas) > 1 and (self._node_id in state.isr or self._node_id in state.elr)
