# SPDX-License-Identifier: Apache-2.0
"""The invariants inside the brokers of the world, checked after every event of every replica.

Owns what was ever committed, and who led when. `integration_tests.harness.history.checker` judges the history of the clients.

Laws
    agreement: below both high watermarks, any two replicas have the same bytes at the same offsets.
    completeness: a replica that begins to lead has everything that was committed in earlier leader epochs.
    one leader: at most one process ever leads a partition in a leader epoch (with several replicas, over the life of a broker).
    order: while a process follows or leads in one epoch, its high watermark never goes back and is never above the log end.
    followers: a follower never shows readers uncommitted data.
    awaited: a partition that awaits a log directory has no leader.

Source: Raft's safety properties, section 5.4; docs/replication.md "Invariants"; KIP-966.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from typing import Any, Final
from unittest import mock

from lograft.wire.header import read_header

from brokerd.api.log_service import readers
from brokerd.api.log_service.readers import ServingReplica
from brokerd.controller_client.offline_replicas import OfflineReplicas, ReplicaReport
from brokerd.controller_client.partition_requests import ResignReason
from brokerd.coordinator.core import Record
from brokerd.coordinator.internal_topics import GROUPS, INGESTS
from brokerd.coordinator.log_pieces import read_pieces
from brokerd.partition.effects import BeginLeaderEpoch, Effect, PublishHighWatermark, Resign, RestartLog, TruncateLog
from brokerd.partition.events import Event, PartitionChanged
from brokerd.replica.locator import Locator
from brokerd.replica.replica import Replica
from integration_tests.simulation.group_laws import GroupLaws
from integration_tests.simulation.ingest_laws import BRIEF, FED, IngestLaws
from integration_tests.simulation.process import current_process
from metaquorum.metadata.state import PartitionImage
from metaquorum.raft.effects import DiscardSnapshot, DownloadSnapshot, InstallSnapshot, TrimLog
from metaquorum.replica.snapshot_shell import SnapshotShell
from metaquorum.testing.invariants import InvariantViolation, require
from metaquorum.testing.scheduler import Scheduler
from storage.errors import DataLossError
from storage.log.epochs import EpochStart
from storage.log.swap import CleanedGroup
from storage.maintenance.repair import LogRepair

READ_BYTES: Final = 1 << 24

SnapshotEffect = DownloadSnapshot | DiscardSnapshot | InstallSnapshot | TrimLog

Key = tuple[bytes, int]
"""Topic id and partition."""


class Oracle:
    """Checks every replica after each of its events, and knows what was ever committed."""

    def __init__(self, scheduler: Scheduler, counts: Counter[str], groups: GroupLaws, ingests: IngestLaws) -> None:
        self._scheduler = scheduler
        self._groups = groups
        self._ingests = ingests
        # Committed records of `__groups` and `__ingests`, which are compacted, by partition and offset; and the end of what is known.
        self._records: dict[Key, dict[int, Record]] = {}
        self._record_ends: dict[Key, int] = {}
        self._counts = counts
        # Committed batches of each partition: base offset -> (bytes, next offset).
        self._batches: dict[Key, dict[int, tuple[bytes, int]]] = {}
        # End of the committed data of each partition, by the leader epoch in which that was known.
        self._ends: dict[Key, dict[int, int]] = {}
        self._leaders: dict[tuple[Key, int], str] = {}
        self._known: dict[Key, PartitionImage] = {}
        self._deleted: set[bytes] = set()
        # Offset up to which the replica of a process was compared.
        self._compared: dict[Replica, int] = {}
        self._marks: dict[Replica, tuple[int, int]] = {}
        # Leaderships that were resigned for lack of disk space: topic id, partition, leader epoch.
        self._without_room: set[tuple[bytes, int, int]] = set()
        self.violation: InvariantViolation | None = None

    def committed_end(self, key: Key) -> int:
        """Return the end (exclusive) of everything ever committed in a partition."""
        return max(self._ends.get(key, {}).values(), default=0)

    def is_spare(self, node_id: int, *, in_sync_min: int) -> bool:
        """Return True if each partition has at least `in_sync_min` other replicas in sync, as far as the brokers know."""
        return all(len(set(each.isr) - {node_id}) >= in_sync_min for each in self._known.values())

    def forget(self, topic_ids: Iterable[bytes]) -> None:
        """Note topics that a broker knows as deleted."""
        fresh = set(topic_ids) - self._deleted
        if fresh:
            self._deleted |= fresh
            self._known = {key: each for key, each in self._known.items() if key[0] not in fresh}

    @property
    def are_all_in_sync(self) -> bool:
        """True if there are partitions and all their replicas are in sync, as far as the brokers know."""
        return bool(self._known) and all(set(each.isr) == set(each.replicas) for each in self._known.values())

    def throw_away(self) -> None:
        """Release all replicas, and the frames of a violation, which hold the server in which it was found."""
        self._compared.clear()
        self._marks.clear()
        self.violation = None

    @contextmanager
    def watching(self) -> Generator[None]:
        """Check every effect of every replica."""
        carry_out: Callable[[Any, Effect], None] = Replica._carry_out  # pyright: ignore[reportPrivateUsage]
        after_step: Callable[[Any, Event], None] = Replica._after_step  # pyright: ignore[reportPrivateUsage]
        take_partition, resign = Replica.take_partition, Replica.resign
        end_repair, note_accepted = LogRepair.end, OfflineReplicas.note_accepted
        find_follower = readers.find_follower
        execute = SnapshotShell.execute

        def watched_carry_out(replica: Replica, effect: Effect) -> None:
            # An exception here would look to the server like a fault of its own.
            with self._noting():
                if isinstance(effect, BeginLeaderEpoch):
                    self._on_leader(replica, effect.leader_epoch)
                elif isinstance(effect, TruncateLog | RestartLog):
                    self._on_cut(replica, effect)
                elif isinstance(effect, Resign):
                    self._counts["leader resigns"] += 1
            carry_out(replica, effect)
            if isinstance(effect, PublishHighWatermark):
                with self._noting():
                    self._on_high_watermark(replica, effect.high_watermark)

        def watched_after_step(replica: Replica, event: Event) -> None:
            after_step(replica, event)
            with self._noting():
                self._on_followed(replica)
            self._scheduler.trace(
                f"{self._scheduler.now_ms} {current_process().name} {replica} {type(event).__name__}"
                f" end={replica.log.log_end_offset} hw={replica.high_watermark}"
            )

        def watched_take_partition(replica: Replica, event: PartitionChanged) -> None:
            with self._noting():
                self._on_partition((replica.topic_id, replica.partition), event.partition)
            take_partition(replica, event)

        def watched_resign(replica: Replica, reason: ResignReason) -> None:
            if reason is ResignReason.NO_ROOM:
                self._without_room.add((replica.topic_id, replica.partition, replica.leader_epoch))
            resign(replica, reason)

        def watched_end(
            owner: LogRepair, repaired: CleanedGroup, *, found_epochs: Sequence[EpochStart] = (), now_ms: int
        ) -> bool:
            is_done = end_repair(owner, repaired, found_epochs=found_epochs, now_ms=now_ms)
            self._counts["segment repaired"] += is_done
            self._counts["beginning of an epoch repaired"] += is_done and bool(found_epochs)
            return is_done

        def watched_find(locator: Locator, topic: str, partition: int) -> ServingReplica | None:
            found = find_follower(locator, topic, partition)
            self._counts["reader at a follower"] += found is not None
            return found

        def watched_accepted(offline: OfflineReplicas, report: ReplicaReport, partition_epoch: int) -> None:
            note_accepted(offline, report, partition_epoch)
            self._counts["lost replica withdrawn"] += 1

        def watched_execute(shell: SnapshotShell, effect: SnapshotEffect) -> None:
            execute(shell, effect)
            if isinstance(effect, InstallSnapshot):
                self._counts["snapshot install"] += 1
                self._counts[f"snapshot install of a {current_process().machine.partition('-')[0]}"] += 1
            self._counts["metadata log trimmed"] += isinstance(effect, TrimLog)

        with (
            mock.patch.object(SnapshotShell, "execute", watched_execute),
            mock.patch.object(readers, "find_follower", watched_find),
            mock.patch.object(OfflineReplicas, "note_accepted", watched_accepted),
            mock.patch.object(LogRepair, "end", watched_end),
            mock.patch.object(Replica, "_carry_out", watched_carry_out),
            mock.patch.object(Replica, "_after_step", watched_after_step),
            mock.patch.object(Replica, "take_partition", watched_take_partition),
            mock.patch.object(Replica, "resign", watched_resign),
        ):
            yield

    @contextmanager
    def _noting(self) -> Generator[None]:
        try:
            yield
        except InvariantViolation as violation:
            self.violation = self.violation or violation

    def _on_leader(self, replica: Replica, leader_epoch: int) -> None:
        key = (replica.topic_id, replica.partition)
        name = current_process().name
        leader = self._leaders.setdefault((key, leader_epoch), name)
        require(leader == name, "one leader of an epoch", (str(replica), leader_epoch, name, leader))
        # A leader that was paused may begin long after others took over. It has what was committed before its own epoch.
        ends = self._ends.get(key, {})
        end_offset = max((end for epoch, end in ends.items() if epoch < leader_epoch), default=0)
        log_end_offset = replica.log.log_end_offset
        require(
            log_end_offset >= end_offset,
            "a leader has what was committed",
            (str(replica), name, leader_epoch, log_end_offset, end_offset),
        )
        self._compare(replica, end_offset, "a leader has what was committed", epoch=leader_epoch - 1)
        self._counts["leadership begun"] += 1

    def _on_cut(self, replica: Replica, effect: TruncateLog | RestartLog) -> None:
        if isinstance(effect, RestartLog):
            self._counts["log restarted"] += 1
            self._compared.pop(replica, None)
            return
        require(not effect.loses_committed, "what is committed is not cut", (str(replica), effect))
        if effect.to_offset < replica.log.log_end_offset:
            self._counts["truncation"] += 1
        self._compared[replica] = min(self._compared.get(replica, 0), effect.to_offset)

    def _on_high_watermark(self, replica: Replica, high_watermark: int) -> None:
        epoch = replica.leader_epoch
        known_epoch, known = self._marks.get(replica, (epoch, 0))
        if known_epoch == epoch:
            require(high_watermark >= known, "a high watermark never goes back", (str(replica), high_watermark, known))
        self._marks[replica] = epoch, high_watermark
        end_offset = replica.log.log_end_offset
        require(high_watermark <= end_offset, "a high watermark is in the log", (str(replica), high_watermark))
        self._compare(replica, high_watermark, "replicas agree on what is committed", epoch=epoch)

    def _on_followed(self, replica: Replica) -> None:
        followed_end = replica.followed_end
        if followed_end is not None:
            end_offset = self.committed_end((replica.topic_id, replica.partition))
            law = "followers give what is committed"
            require(followed_end <= end_offset, law, (str(replica), current_process().name, followed_end, end_offset))

    def _compare(self, replica: Replica, to_offset: int, law: str, *, epoch: int) -> None:
        """Compare a replica's data below an offset with what was committed, and remember what is committed now."""
        key = (replica.topic_id, replica.partition)
        offset = max(self._compared.get(replica, 0), replica.log.log_start_offset)
        batches = self._batches.setdefault(key, {})
        while offset < to_offset:
            try:
                found = replica.log.read(offset, READ_BYTES, end_offset=to_offset)
            except DataLossError as loss:
                # A reader would report the loss. The data is compared after everything is healed and repaired.
                replica._report_damage(loss)  # pyright: ignore[reportPrivateUsage]
                self._counts["quarantine"] += 1
                offset = loss.end_offset
                continue
            view, position = memoryview(found.data), 0
            while position < len(view):
                header = read_header(view, position)
                data = bytes(view[position : position + header.size_bytes])
                if replica.topic in (GROUPS.name, INGESTS.name):
                    self._compare_records(replica, data, law)
                    position += header.size_bytes
                    continue
                is_new = header.base_offset not in batches
                there = batches.setdefault(header.base_offset, (data, header.next_offset))
                if is_new and replica.topic in (FED, BRIEF):
                    self._ingests.on_topic_committed(key, data)
                require(
                    there[0] == data,
                    law,
                    (str(replica), _where(), header.base_offset, header.leader_epoch, to_offset),
                )
                position += header.size_bytes
            if found.next_offset <= offset and replica.is_compacted:
                # A high watermark after a restart may lie inside a stretch that compaction has made one batch.
                to_offset = offset
                break
            # If the committed data ends inside a batch of this replica, another replica has a batch that ends there: they differ.
            require(found.next_offset > offset, law, (str(replica), _where(), offset, epoch, to_offset))
            offset = found.next_offset
        self._compared[replica] = max(offset, to_offset)
        ends = self._ends.setdefault(key, {})
        ends[epoch] = max(ends.get(epoch, 0), to_offset)

    def _compare_records(self, replica: Replica, data: bytes, law: str) -> None:
        """Compare a batch of a compacted log record by record, and pass it on if nobody has shown it before."""
        key = (replica.topic_id, replica.partition)
        known = self._records.setdefault(key, {})
        for piece in read_pieces(data):
            if piece.base_offset >= self._record_ends.get(key, 0):
                self._record_ends[key] = piece.next_offset
                known.update(zip(piece.offsets, piece.records, strict=True))
                laws = self._groups if replica.topic == GROUPS.name else self._ingests
                laws.on_committed(piece.records)
                continue
            for offset, record in zip(piece.offsets, piece.records, strict=True):
                there = known.get(offset)
                require(there == record, law, (str(replica), _where(), offset, there, record))

    def look(self, replica: Replica) -> None:
        """Compare a leader's data below its high watermark, of which it may have told nobody."""
        if replica.is_leader:
            epoch = replica.leader_epoch
            self._compare(replica, replica.high_watermark, "replicas agree on what is committed", epoch=epoch)

    def replica_count(self, key: Key) -> int:
        """Return the number of replicas that a partition has, as far as the brokers know."""
        return len(self._known[key].replicas) if key in self._known else 0

    def live_records(self, key: Key) -> dict[bytes, bytes]:
        """Return the last committed record of each key of a compacted partition."""
        return _fold(self._records.get(key, {}).values())

    def live_records_of(self, replica: Replica) -> dict[bytes, bytes]:
        """Return what a replica of a compacted partition has of them."""
        records: list[Record] = []
        offset = replica.log.log_start_offset
        while offset < replica.high_watermark:
            found = replica.log.read(offset, READ_BYTES, end_offset=replica.high_watermark)
            records += [record for piece in read_pieces(found.data) for record in piece.records]
            offset = found.next_offset
        return _fold(records)

    def _on_partition(self, key: Key, partition: PartitionImage) -> None:
        """Check and count each decision of the controller, once."""
        require(not partition.awaited or partition.leader_id is None, "what is awaited is not led", (key, partition))
        if key[0] in self._deleted:
            return
        known = self._known.get(key)
        if known is not None and partition.partition_epoch <= known.partition_epoch:
            return
        self._known[key] = partition
        if known is None:
            return
        counts = self._counts
        if partition.leader_id != known.leader_id and partition.leader_id is not None:
            counts["partition leader change"] += 1
            counts["leader moved by wish"] += known.leader_id in partition.isr
            is_next = partition.leader_epoch == known.leader_epoch + 1
            is_handed_over = (
                is_next and (*key, known.leader_epoch) in self._without_room and known.leader_id in partition.isr
            )
            counts["leadership of a full disk handed over"] += is_handed_over
        counts["ISR shrink"] += len(set(known.isr) - set(partition.isr)) > 0
        counts["ISR growth"] += len(set(partition.isr) - set(known.isr)) > 0
        counts["partition without a leader"] += partition.leader_id is None
        counts["replicas changed"] += partition.replicas != known.replicas


def _where() -> str:
    """Return the name of the process that runs; outside of all, the world looks."""
    try:
        return current_process().name
    except RuntimeError:
        return "world"


def _fold(records: Iterable[Record]) -> dict[bytes, bytes]:
    """Return the last value of each key, without tombstones."""
    last = {record.key: record.value for record in records}
    return {key: value for key, value in last.items() if value is not None}
