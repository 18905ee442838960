# SPDX-License-Identifier: Apache-2.0
"""Which replicas of this broker are offline or found, and what the controller must still be told about them. Pure.

A replica is *offline* if its log does not work in this process: its directory failed, or the log could not be opened. If the metadata
has such a replica in the ISR or the ELR, other brokers count on it and no other replica can lead instead. So the broker asks the
controller to take it out. A replica is *found* if its partition awaits the log directory that holds its log. It may lead again, and the
broker claims it.

What to do follows from the metadata alone, so it does not matter how a replica came back into the ISR or the ELR: a leader that did not
know of the failure proposed it, or an election chose it. A replica is checked when it goes offline, when its partition changes, and
when the pause after a refusal is over.

| Event | What happens to an offline replica |
|---|---|
| the metadata does not count on it, or the partition has no other replica | nothing, until its partition changes |
| the metadata counts on it | it is reported, with the epochs of the metadata |
| the partition awaits the directory of a found replica | that replica is claimed, with the epochs of the metadata |
| the controller accepted the report | nothing, until the metadata has a later state |
| the controller refused it, or did not answer | it is reported again after a pause, which doubles; a later state ends the pause |

Laws
    A state of a partition that is older than an answer of the controller causes no report.
    Two reports for one state of a partition are at least the shortest pause apart.
Source: docs/replication.md section "Lost replicas".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from metaquorum.metadata.awaited import awaited_directories
from metaquorum.metadata.state import PartitionImage


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaReport:
    """A report of an offline or found replica, with the state of its partition to which the report applies.

    Attributes:
        topic_id: id of the topic, 16 bytes.
        partition: partition, from 0.
        leader_epoch: leader epoch in the metadata.
        partition_epoch: partition epoch in the metadata.
        found_directory_id: the log directory that holds the log, 16 bytes; None: the replica is offline.
    """

    topic_id: bytes
    partition: int
    leader_epoch: int
    partition_epoch: int
    found_directory_id: bytes | None = None


class _Replica:
    """The state of one offline or found replica.

    Attributes:
        found_directory_id: the log directory that holds its log; None: it is offline.
        least_epoch: partition epoch in the controller's last answer. Older states of the partition are ignored.
        tried_epoch: partition epoch of the last report; None before the first.
        pause_ms: the next pause.
        due_ms: when the same state may be reported again.
    """

    __slots__ = ("due_ms", "found_directory_id", "least_epoch", "pause_ms", "tried_epoch")

    def __init__(self, found_directory_id: bytes | None, pause_ms: int) -> None:
        self.found_directory_id = found_directory_id
        self.least_epoch = 0
        self.tried_epoch: int | None = None
        self.pause_ms = pause_ms
        self.due_ms = 0


States = Callable[[bytes, int], PartitionImage | None]
"""Returns the metadata's state of a partition, by topic id and number; None if the partition does not exist."""


class OfflineReplicas:
    """The offline and found replicas of one process.

    Args:
        node_id: this broker.
        most: maximum number of reports that one call of `due` returns.
        retry_min_ms: milliseconds between the first two reports for one state of a partition; doubles each time.
        retry_max_ms: maximum milliseconds between two of them.
    """

    def __init__(self, node_id: int, *, most: int, retry_min_ms: int, retry_max_ms: int) -> None:
        self._node_id = node_id
        self._most = most
        self._retry_min_ms = retry_min_ms
        self._retry_max_ms = retry_max_ms
        self._known: dict[bytes, dict[int, _Replica]] = {}
        # The replicas to check, oldest first. A broker may have many offline replicas, and most of them need no check.
        self._open: dict[tuple[bytes, int], None] = {}

    def add(self, topic_id: bytes, partition: int) -> None:
        """Note that the log of a replica does not work. Idempotent."""
        known = self._known.setdefault(topic_id, {})
        if partition not in known or known[partition].found_directory_id is not None:
            known[partition] = _Replica(None, self._retry_min_ms)
            self._open[topic_id, partition] = None

    def add_found(self, topic_id: bytes, partition: int, directory_id: bytes) -> None:
        """Note that the log of a replica is in a directory that its partition awaits. Idempotent; an offline replica stays offline."""
        known = self._known.setdefault(topic_id, {})
        if partition not in known:
            known[partition] = _Replica(directory_id, self._retry_min_ms)
            self._open[topic_id, partition] = None

    def discard(self, topic_id: bytes, partition: int) -> None:
        """Forget a replica that this broker no longer has. If it comes back, it has another log."""
        known = self._known.get(topic_id, {})
        known.pop(partition, None)
        if not known:
            self._known.pop(topic_id, None)
        self._open.pop((topic_id, partition), None)

    def note_change(self, topic_ids: Iterable[bytes]) -> None:
        """Note that partitions of these topics may have changed."""
        for topic_id in topic_ids:
            for partition in self._known.get(topic_id, ()):
                self._open[topic_id, partition] = None

    def due(self, states: States, now_ms: int) -> list[ReplicaReport]:
        """Return the reports to send now.

        A report is returned again after its pause, or once its partition has changed.

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
        """Note that the controller acted on a report, and the partition epoch that holds from then on."""
        replica = self._known.get(report.topic_id, {}).get(report.partition)
        if replica is not None:
            replica.least_epoch = max(replica.least_epoch, partition_epoch)

    def deadline_ms(self) -> int | None:
        """Return when `due` may have reports if nothing happens until then; None: never.

        `due` may have none at that time, because the partition has changed.
        """
        return min((self._known[topic_id][partition].due_ms for topic_id, partition in self._open), default=None)

    def _concerns(self, replica: _Replica, state: PartitionImage) -> bool:
        """Return True if the controller must be told about a replica.

        An offline replica is reported if the partition has other replicas and the metadata counts on this one (the leader is always
        in sync). A found replica is reported while its directory is awaited.
        """
        if replica.found_directory_id is not None:
            return replica.found_directory_id in awaited_directories(state.awaited, self._node_id)
        return len(state.replicas) > 1 and (self._node_id in state.isr or self._node_id in state.elr)
