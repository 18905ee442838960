# SPDX-License-Identifier: Apache-2.0
"""A seeded world of coordinators: brokers with logs, snapshots and machines, under faults. The laws are checked after every step.

Replication is reduced to its guarantees: followers copy the leader's batches, those in sync have everything that is committed, only
they are elected, and a follower truncates what its leader does not have. Logs are compacted at any time and to any degree that the
cleaner may reach. Beside each log stands its history: every record that was ever appended at an offset, whatever compaction has
removed since.

The machines, the folds, the choice of snapshots and their bytes are those of production.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Final

from lograft.wire.codes import ErrorCode
from lograft.wire.header import read_header

from brokerd.coordinator import machine, snapshot_format
from brokerd.coordinator.core import Record
from brokerd.coordinator.machine import PartitionMachine, State
from brokerd.coordinator.prefix import LogPiece, PrefixFold, SnapshotId, why_unusable
from brokerd.coordinator.snapshot_format import (
    END_BYTES,
    HEAD_BYTES,
    DamagedSnapshotError,
    SnapshotEnd,
    decode_chunk,
    decode_end,
    decode_head,
    encode_chunks,
    encode_end,
    encode_head,
)
from brokerd.coordinator.unserved import UnservedReason, moved_to
from brokerd.failure import Failure, LeaderPlace
from brokerd.tests.coordinator.register_core import (
    Increment,
    Read,
    Register,
    RegisterCodec,
    RegisterCommand,
    RegisterCore,
    Remove,
    register_of,
)

NODES: Final = (1, 2, 3)
MIN_ISR: Final = 2
NAMES: Final = tuple("abcde")
TOPIC_ID: Final = bytes(16)
MAX_QUEUED: Final = 12
MAX_WAITING: Final = 10
"""Limits of the machines in the model."""


def use_small_limits(set_limit: Callable[[ModuleType, str, int], None]) -> None:
    """Set limits that a run reaches."""
    set_limit(machine, "MAX_QUEUED_COMMANDS", MAX_QUEUED)
    set_limit(machine, "MAX_WAITING_ANSWERS", MAX_WAITING)
    set_limit(machine, "MAX_TURN_COMMANDS", 4)
    set_limit(snapshot_format, "SNAPSHOT_CHUNK_RECORDS", 2)


CODEC: Final = RegisterCodec()
REFUSED: Final = Failure(code=ErrorCode.NOT_ENOUGH_REPLICAS, message="too few in sync")
Entry = tuple[int, Record]
"""Leader epoch and record."""


@dataclass(slots=True)
class Batch:
    """A batch of a log: what it covers, its epoch, and the records that are left."""

    base_offset: int
    next_offset: int
    epoch: int
    offsets: list[int]
    records: list[Record]

    def piece(self) -> LogPiece:
        return LogPiece(self.base_offset, self.next_offset, self.offsets, self.records)

    def copy(self) -> Batch:
        return Batch(self.base_offset, self.next_offset, self.epoch, list(self.offsets), list(self.records))


class ModelLog:
    """A log and its history."""

    def __init__(self) -> None:
        self.batches: list[Batch] = []
        self.history: list[Entry] = []
        self.lone: set[int] = set()

    @property
    def end(self) -> int:
        return len(self.history)

    def append(self, epoch: int, records: Sequence[Record]) -> int:
        base = self.end
        self.batches.append(
            Batch(base, base + len(records), epoch, list(range(base, base + len(records))), list(records))
        )
        self.history += [(epoch, record) for record in records]
        return base

    def take(self, batch: Batch, history: Sequence[Entry]) -> None:
        """Append a batch of the leader, compacted as it may be."""
        assert batch.base_offset == self.end
        self.batches.append(batch.copy())
        self.history += history

    def truncate(self, end: int) -> None:
        self.batches = [batch for batch in self.batches if batch.next_offset <= end]
        del self.history[end:]
        self.lone = {offset for offset in self.lone if offset < end}
        assert not self.batches or self.batches[-1].next_offset == end, "batches are truncated as a whole"

    def epoch_at(self, offset: int) -> int | None:
        return self.history[offset][0] if 0 <= offset < self.end else None

    def pieces_from(self, offset: int, end: int) -> list[LogPiece]:
        return [each.piece() for each in self.batches if offset < each.next_offset <= end]

    def compact(self, end: int, chance: float, rng: random.Random, *, passed: int | None) -> int:
        """Remove records that newer ones replace, and tombstones below `passed` that an earlier pass found alone."""
        newest: dict[bytes, int] = {}
        for batch in self.batches:
            if batch.next_offset <= end:
                newest.update((record.key, offset) for offset, record in zip(batch.offsets, batch.records, strict=True))
        removed = 0
        left: set[bytes] = set()
        found_alone: set[int] = set()
        for batch in self.batches:
            if batch.next_offset > end:
                break
            kept: list[tuple[int, Record]] = []
            for offset, record in zip(batch.offsets, batch.records, strict=True):
                is_old = newest[record.key] > offset
                is_alone = not is_old and record.value is None and record.key not in left
                goes = is_old and rng.random() < chance
                if is_alone:
                    found_alone.add(offset)
                    goes = offset in self.lone and passed is not None and offset < passed and rng.random() < chance
                if goes:
                    removed += 1
                    continue
                left.add(record.key)
                kept.append((offset, record))
            batch.offsets, batch.records = [each[0] for each in kept], [each[1] for each in kept]
        self.lone = found_alone
        return removed


@dataclass(slots=True)
class Loading:
    """A loading under way: what is left to replay."""

    chunks: list[list[Record]]
    has_snapshot: bool
    is_damaged: bool = False


@dataclass(slots=True)
class Node:
    """A broker."""

    node_id: int
    log: ModelLog = field(default_factory=ModelLog)
    high_watermark: int = 0
    snapshot: bytes | None = None
    snapshots: list[bytes] = field(default_factory=list)
    loading: Loading | None = None
    machine: PartitionMachine[RegisterCommand, int, Register] = field(
        default_factory=lambda: PartitionMachine("m-0", new_core=RegisterCore, codec=CODEC, scope_of=register_of)
    )


@dataclass(slots=True)
class Asked:
    """A submitted command."""

    command: RegisterCommand
    committed_before: int
    got: int | UnservedReason | None = None


def fold(entries: Sequence[Entry]) -> dict[str, tuple[int, str]]:
    """Return the registers after these records."""
    core = RegisterCore()
    for _, record in entries:
        core.replay(CODEC.decode(record))
    return core.registers


class CoordinatorModel:
    """The world of one seed.

    Attributes:
        counts: how often what happened.
        committed: every committed record, by offset.
    """

    def __init__(self, seed: int) -> None:
        self.has_foreign_writer = seed % 4 == 0
        self.rng = random.Random(seed)
        self.nodes = {node_id: Node(node_id) for node_id in NODES}
        self.isr = set(NODES)
        self.asleep: set[int] = set()
        self.leader_id: int | None = None
        self.epoch = 0
        self.committed: list[Entry] = []
        self.asked: dict[int, Asked] = {}
        self.pending: set[int] = set()
        self.counts: Counter[str] = Counter()
        self.now_ms = 0
        self._folds: dict[int, dict[str, tuple[int, str]]] = {}

    # Steps.

    def run(self, steps: int) -> None:
        """Take random steps."""
        actions = (
            (self.submit, 30),
            (self.turn, 30),
            (self.replicate, 40),
            (self.advance, 25),
            (self.load, 90),
            (self.give_up, 2),
            (self.elect, 3),
            (self.change_isr, 3),
            (self.sleep, 1),
            (self.compact, 6),
            (self.take_snapshot, 5),
            (self.spoil_snapshot, 3),
            (self.pass_time, 6),
            (self.retry, 4),
            (self.write_foreign, 1),
        )
        names, weights = [each[0] for each in actions], [each[1] for each in actions]
        for _ in range(steps):
            self.rng.choices(names, weights)[0]()
            self.check()

    def heal(self) -> None:
        """Let everything work: the coordinator becomes active, every command is answered, and all agree."""
        self.asleep.clear()
        if self.leader_id is None:
            self.elect()
        for _ in range(400):
            for node_id in NODES:
                if node_id not in self.isr:
                    self.change_isr()
            self.retry()
            for action in (self.load, self.replicate, self.advance):
                for _ in range(10):
                    action()
            self.turn(is_calm=True)
            self.check()
            leader = self.leader
            if (
                leader is not None
                and leader.machine.state is State.ACTIVE
                and not self.pending
                and leader.high_watermark == leader.log.end
                and all(node.log.end == leader.log.end for node in self.nodes.values())
            ):
                break
        else:
            raise AssertionError(f"the coordinator does not recover: {self.leader and self.leader.machine.state}")
        self.check_end()

    @property
    def leader(self) -> Node | None:
        return None if self.leader_id is None else self.nodes[self.leader_id]

    def submit(self) -> None:
        """Submit one to three commands to some broker, mostly the leader."""
        node = self.leader if self.rng.random() < 0.9 else self.rng.choice(list(self.nodes.values()))
        if node is None:
            return
        for _ in range(self.rng.randint(1, 3)):
            token = len(self.asked) + 1
            name = self.rng.choice(NAMES)
            lease_ms = self.rng.choice((0, 0, 0, 50))
            command: RegisterCommand = self.rng.choices(
                (Increment(name, by=f"c{token}", lease_ms=lease_ms), Remove(name), Read(name)), (6, 3, 3)
            )[0]
            self.asked[token] = Asked(command, len(self.committed))
            unserved = node.machine.submit(token, command)
            if unserved is None:
                self.pending.add(token)
            else:
                self.note(token, unserved.reason)

    def turn(self, *, is_calm: bool = False) -> None:
        """Take a turn of the leader; its append may be refused, or end the leadership half-way."""
        node = self.leader
        if node is None:
            return
        records = list(node.machine.begin_turn(self.now_ms))
        if records:
            luck = 1.0 if is_calm else self.rng.random()
            if len(self.isr) < MIN_ISR or luck < 0.1:
                self.counts["refused append"] += 1
                node.machine.refuse_turn(REFUSED, self.now_ms)
            elif luck < 0.13:
                # The log fails during the write: the records may be there or not, and the leader is gone.
                is_written = self.rng.random() < 0.5
                if is_written:
                    node.log.append(self.epoch, records)
                self.counts["end during an append"] += 1
                self.end_leadership()
                node.machine.refuse_turn(REFUSED, self.now_ms)
            else:
                self.counts["append"] += 1
                self.counts["shared append"] += len({record.key for record in records}) > 1
                base = node.log.append(self.epoch, records)
                if self.rng.random() < 0.2:
                    self.settle_high_watermark(node)
                node.machine.accept_turn(base)
        self.take(node)

    def replicate(self) -> None:
        """Let a follower truncate what the leader does not have, or copy one batch."""
        leader = self.leader
        if leader is None:
            return
        node = self.rng.choice([each for each in self.nodes.values() if each is not leader])
        if node.node_id in self.asleep:
            return
        common = min(node.log.end, leader.log.end)
        while common and node.log.history[common - 1] != leader.log.history[common - 1]:
            common -= 1
        if common < node.log.end:
            starts = [each.next_offset for each in node.log.batches if each.next_offset <= common]
            to_offset = max(starts, default=0)
            assert to_offset >= node.high_watermark, "committed records are truncated"
            self.counts["truncation"] += 1
            node.log.truncate(to_offset)
            return
        for batch in leader.log.batches:
            if batch.base_offset == node.log.end:
                node.log.take(batch, leader.log.history[batch.base_offset : batch.next_offset])
                self.counts["copy with gaps"] += len(batch.offsets) < batch.next_offset - batch.base_offset
                return

    def settle_high_watermark(self, leader: Node) -> None:
        """Commit what all in-sync replicas have, if they are enough, and tell the machine."""
        if len(self.isr) < MIN_ISR:
            return
        end = min(self.nodes[node_id].log.end for node_id in self.isr)
        end = min(end, leader.log.end)
        if any(self.nodes[each].log.history[:end] != leader.log.history[:end] for each in self.isr):
            return
        for offset in range(len(self.committed), end):
            self.committed.append(leader.log.history[offset])
        leader.high_watermark = max(leader.high_watermark, end)
        assert leader.log.history[: leader.high_watermark] == self.committed[: leader.high_watermark]
        leader.machine.advance(leader.high_watermark)

    def advance(self) -> None:
        """Move the high watermark of the leader, or tell it to a follower."""
        leader = self.leader
        if leader is None:
            return
        node = self.rng.choice(list(self.nodes.values()))
        if node is leader:
            self.settle_high_watermark(leader)
            self.take(leader)
        elif node.log.history == leader.log.history[: node.log.end]:
            node.high_watermark = max(node.high_watermark, min(leader.high_watermark, node.log.end))

    def end_leadership(self) -> None:
        """Take the leadership away."""
        node = self.leader
        self.leader_id = None
        if node is None:
            return
        node.loading = None
        place = LeaderPlace(leader_id=9, leader_epoch=self.epoch + 1, host="h", port=9)
        node.machine.resign(moved_to("m-0", place))
        self.take(node)

    def elect(self) -> None:
        """End the leadership, and elect an in-sync replica, perhaps the same."""
        self.end_leadership()
        self.epoch += 1
        candidates = sorted(self.isr)
        # Only one that has everything committed may lead; those in sync do.
        for node_id in candidates:
            assert self.nodes[node_id].log.history[: len(self.committed)] == self.committed
        node = self.nodes[self.rng.choice(candidates)]
        self.leader_id = node.node_id
        self.counts["election"] += 1
        node.machine.lead(leader_epoch=self.epoch, log_end_offset=node.log.end, high_watermark=node.high_watermark)
        self.begin_load(node)

    def change_isr(self) -> None:
        """Let a follower leave the in-sync replicas, or come back once it has everything."""
        leader = self.leader
        if leader is None:
            return
        node_id = self.rng.choice([each for each in NODES if each != leader.node_id])
        if node_id in self.isr:
            if self.rng.random() < 0.5:
                self.isr.discard(node_id)
        elif self.nodes[node_id].log.history == leader.log.history:
            self.isr.add(node_id)
        self.settle_isr(leader)

    def settle_isr(self, leader: Node) -> None:
        self.isr.add(leader.node_id)

    def sleep(self) -> None:
        """Let a follower fall behind, or wake it."""
        node_id = self.rng.choice(NODES)
        if node_id in self.asleep:
            self.asleep.discard(node_id)
        elif self.leader_id not in (None, node_id):
            self.asleep.add(node_id)
            self.isr.discard(node_id)

    def give_up(self) -> None:
        """Let the caller of a command give up."""
        if not self.pending or self.leader is None:
            return
        token = self.rng.choice(sorted(self.pending))
        unserved = self.leader.machine.drop(token)
        if unserved is not None:
            self.counts["given up"] += 1
            self.pending.discard(token)
            self.note(token, unserved.reason)

    def pass_time(self) -> None:
        self.now_ms += self.rng.choice((1, 20, 60))

    def retry(self) -> None:
        """Load again after a failure."""
        node = self.leader
        if node is not None and node.machine.state is State.FAILED:
            node.machine.reload(log_end_offset=node.log.end, high_watermark=node.high_watermark)
            self.begin_load(node)

    def write_foreign(self) -> None:
        """Append a record that the coordinator did not decide, as a user could who may produce to the topic."""
        node = self.leader if self.has_foreign_writer else None
        if node is not None and len(self.isr) >= MIN_ISR and node.machine.state is State.ACTIVE:
            name = self.rng.choice(NAMES)
            number = fold(node.log.history).get(name, (0, ""))[0] + 1
            node.log.append(self.epoch, [CODEC.encode(Register(name, number, "foreign"))])
            self.counts["foreign append"] += 1

    def compact(self) -> None:
        """Compact some log below its high watermark; no follower lags longer than a tombstone lives."""
        node = self.rng.choice(list(self.nodes.values()))
        passed = min(each.log.end for each in self.nodes.values()) if node.loading is None else None
        end = self.rng.randint(0, node.high_watermark)
        for _ in range(self.rng.choice((1, 2))):
            removed = node.log.compact(end, self.rng.choice((0.3, 1.0)), self.rng, passed=passed)
            self.counts["compacted records"] += removed

    # Loading, as the shell does it.

    def begin_load(self, node: Node, *, with_snapshot: bool = True) -> None:
        snapshot, chunks, is_damaged = None, list[list[Record]](), False
        if with_snapshot and node.snapshot is not None:
            try:
                snapshot = decode_head(node.snapshot[:HEAD_BYTES], topic_id=TOPIC_ID, partition=0)
                decode_end(node.snapshot[-END_BYTES:])
            except DamagedSnapshotError:
                self.counts["damaged snapshot"] += 1
                snapshot = None
        if snapshot is not None and self.why_unusable(node, snapshot, node.machine.load_end) is not None:
            self.counts["unusable snapshot"] += 1
            snapshot = None
        if snapshot is not None:
            assert node.snapshot is not None
            chunks, is_damaged = chunks_of(node.snapshot)
        node.loading = Loading(chunks, snapshot is not None, is_damaged)
        start = 0 if snapshot is None else snapshot.end_offset
        node.machine.begin_load(start, is_snapshot=snapshot is not None)

    def why_unusable(self, node: Node, snapshot: SnapshotId, end: int) -> str | None:
        return why_unusable(
            snapshot,
            log_start_offset=0,
            log_end_offset=end,
            epoch_before_end=node.log.epoch_at(snapshot.end_offset - 1),
        )

    def load(self) -> None:
        """Load one chunk of the snapshot, or one piece of the log."""
        node = self.leader
        if node is None or node.loading is None:
            return
        machine, loading = node.machine, node.loading
        if loading.chunks:
            machine.load(loading.chunks.pop(0))
        elif loading.is_damaged:
            self.counts["damage while loading"] += 1
            self.begin_load(node, with_snapshot=False)
        elif machine.replayed_end >= machine.load_end:
            machine.note_loaded(machine.replayed_end)
            self.counts["load with a snapshot" if loading.has_snapshot else "load of the log"] += 1
            node.loading = None
        else:
            piece = node.log.pieces_from(machine.replayed_end, machine.load_end)[0]
            if not machine.takes(piece):
                self.counts["gap above a snapshot"] += 1
                self.begin_load(node, with_snapshot=False)
                return
            self.counts["gap while loading"] += len(piece.offsets) < piece.next_offset - piece.base_offset
            machine.load(piece.records[piece.count_below(machine.replayed_end) :])
            machine.note_loaded(piece.next_offset)
            if machine.replayed_end >= machine.load_end:
                self.counts["load with a snapshot" if loading.has_snapshot else "load of the log"] += 1
                node.loading = None
        self.take(node)

    # Snapshots, as `PartitionSnapshots` makes them.

    def take_snapshot(self) -> None:
        """Make a snapshot of some replica; sometimes above its high watermark, as after a later unclean election."""
        node = self.rng.choice(list(self.nodes.values()))
        is_bold = self.rng.random() < 0.5
        if is_bold:
            node = max(self.nodes.values(), key=lambda each: each.log.end - each.high_watermark)
        end = node.log.end if is_bold else node.high_watermark
        ends = [batch.next_offset for batch in node.log.batches if batch.next_offset <= end]
        if not ends:
            return
        end = ends[-1] if self.rng.random() < 0.5 else self.rng.choice(ends)
        older = self.usable(node, end)
        made = None if older is None else self.make(node, older[0], older[1], end, may_have_gaps=False)
        if older is not None:
            self.counts["snapshot from a snapshot" if made is not None else "snapshot refused for a gap"] += 1
        if made is None:
            made = self.make(node, None, [], end, may_have_gaps=True)
        assert made is not None
        node.snapshot = made
        node.snapshots.append(made)
        self.counts["bold snapshot" if is_bold and end > node.high_watermark else "snapshot"] += 1

    def usable(self, node: Node, end: int) -> tuple[SnapshotId, list[Record]] | None:
        if node.snapshot is None:
            return None
        try:
            snapshot = decode_head(node.snapshot[:HEAD_BYTES], topic_id=TOPIC_ID, partition=0)
        except DamagedSnapshotError:
            return None
        chunks, is_damaged = chunks_of(node.snapshot)
        if is_damaged or self.why_unusable(node, snapshot, end) is not None:
            return None
        return snapshot, [record for chunk in chunks for record in chunk]

    def make(
        self, node: Node, older: SnapshotId | None, records: list[Record], end: int, *, may_have_gaps: bool
    ) -> bytes | None:
        start = 0 if older is None else older.end_offset
        folded = PrefixFold(start, may_have_gaps=may_have_gaps)
        for piece in node.log.pieces_from(start, end):
            if not folded.add(piece):
                return None
        assert folded.next_offset == max(start, end)
        epoch = node.log.epoch_at(folded.next_offset - 1)
        assert epoch is not None
        head = encode_head(SnapshotId(folded.next_offset, epoch), topic_id=TOPIC_ID, partition=0)
        chunks = list(encode_chunks(folded.over(records)))
        tail = encode_end(SnapshotEnd(sum(count for _, count in chunks), len(chunks)))
        return b"".join((head, *(bytes(chunk) for chunk, _ in chunks), tail))

    def spoil_snapshot(self) -> None:
        """Damage a snapshot, lose it, or bring an older one back."""
        node = self.rng.choice(list(self.nodes.values()))
        if node.snapshot is None:
            return
        what = self.rng.choice(("damage", "damage", "lose", "older", "older", "other"))
        self.counts[f"snapshot: {what}"] += 1
        if what == "lose":
            node.snapshot = None
        elif what == "older":
            node.snapshot = self.rng.choice(node.snapshots)
        elif what == "other":
            node.snapshot = self.rng.choice(list(self.nodes.values())).snapshot
        else:
            at = self.rng.randrange(len(node.snapshot))
            changed = bytearray(node.snapshot)
            changed[at] ^= 1 << self.rng.randrange(8)
            node.snapshot = bytes(changed)

    # Answers and laws.

    def take(self, node: Node) -> None:
        """Take the answers of a machine, and check each."""
        for fault in node.machine.take_faults():
            self.counts["fault"] += 1
            assert "another writer" in fault.what, fault
        for token, response, unserved in node.machine.take_answers():
            if token is not None:
                self.pending.discard(token)
                got = response if unserved is None else unserved.reason
                assert got is not None
                self.note(token, got)
            else:
                self.counts["tick"] += 1

    def note(self, token: int, got: int | UnservedReason) -> None:
        asked = self.asked[token]
        assert asked.got is None, f"command {token} has two answers: {asked.got} and {got}"
        asked.got = got
        self.counts[got.name if isinstance(got, UnservedReason) else "answer"] += 1
        if isinstance(got, UnservedReason):
            return
        match asked.command:
            case Increment(register=name, by=by):
                numbers = [number for number in map(self.number_of(name, by), self.committed) if number is not None]
                assert numbers == [got], f"answered {got} for {by}, committed are {numbers}"
            case Read(register=name) | Remove(register=name):
                seen = {
                    self.fold_at(end).get(name, (0, ""))[0]
                    for end in range(asked.committed_before, len(self.committed) + 1)
                }
                assert got in seen, f"{asked.command} got {got}, between its submission and its answer it was {seen}"
            case _:
                raise AssertionError(asked.command)

    @staticmethod
    def number_of(name: str, by: str) -> Callable[[Entry], int | None]:
        """Return a function from an entry to the number that this command wrote in it."""

        def number(entry: Entry) -> int | None:
            if entry[1].value is None or entry[1].key != name.encode():
                return None
            found = CODEC.decode(entry[1])
            return found.number if found.by == by else None

        return number

    def fold_at(self, end: int) -> dict[str, tuple[int, str]]:
        """Return the registers after the committed records below an offset."""
        found = self._folds.get(end)
        if found is None:
            found = self._folds[end] = fold(self.committed[:end])
        return found

    def check(self) -> None:
        """Check the laws that hold after every step."""
        for node in self.nodes.values():
            machine = node.machine
            self.take(node)
            assert machine.queued_count <= MAX_QUEUED
            assert machine.waiting_count <= MAX_WAITING
            core = machine.core
            if core is None:
                continue
            assert isinstance(core, RegisterCore)
            assert node is self.leader
            assert machine.leader_epoch == self.epoch
            if machine.replayed_end == node.log.end:
                assert core.registers == fold(node.log.history), "the state is not the fold of the log"
            else:
                # Another writer has appended; the next append will show it.
                assert core.registers == fold(node.log.history[: machine.replayed_end])
            assert len(self.committed) >= machine.load_end, "serves what may still be lost"

    def check_end(self) -> None:
        """Check at the end: every command has one answer, and only those that may be in the log are."""
        counts: Counter[str] = Counter()
        numbers: dict[bytes, int] = {}
        for _, record in self.committed:
            number = 0 if record.value is None else CODEC.decode(record).number
            before = numbers.get(record.key, 0)
            # A decision on a state without what was appended before it counts from there once more.
            assert self.has_foreign_writer or number in (0, before + 1), f"{record} after number {before}"
            numbers[record.key] = number
            if record.value is not None:
                counts[CODEC.decode(record).by] += 1
        for token, asked in self.asked.items():
            assert asked.got is not None, f"command {token} has no answer"
            if isinstance(asked.command, Increment):
                times = counts[asked.command.by]
                if not isinstance(asked.got, UnservedReason):
                    assert times == 1, f"answered command {token} is in the log {times} times"
                elif asked.got is UnservedReason.OUTCOME_UNKNOWN:
                    assert times <= 1
                    self.counts["unknown, and there" if times else "unknown, and lost"] += 1
                else:
                    assert times == 0, f"command {token} got {asked.got} and is in the log"


def chunks_of(snapshot: bytes) -> tuple[list[list[Record]], bool]:
    """Return the chunks of a snapshot before the first damaged one, and whether there is one."""
    chunks: list[list[Record]] = []
    try:
        end = decode_end(snapshot[-END_BYTES:])
        position = HEAD_BYTES
        count = 0
        while position < len(snapshot) - END_BYTES:
            size_bytes = read_header(snapshot, position).size_bytes
            if not 61 <= size_bytes <= len(snapshot) - END_BYTES - position:
                return chunks, True
            chunks.append(decode_chunk(snapshot[position : position + size_bytes], base=count))
            count += len(chunks[-1])
            position += size_bytes
        return chunks, SnapshotEnd(count, len(chunks)) != end
    except DamagedSnapshotError:
        return chunks, True
