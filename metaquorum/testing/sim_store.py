# SPDX-License-Identifier: Apache-2.0
"""The disk of a simulated machine with the real log and vote file on it: `LogStore`, `ElectionStore`, storage's recovery.

Owns the files (`storage.testing.sim_disk`: torn sectors, lost names, refused calls), power losses in the middle of a call, and the
place of damage. The lists of `SimDisk` stay beside the files and say what must be there. Laws, checked at every start: the vote file
holds the old or the new state; no flushed data is lost; what remains of the rest is a prefix, byte for byte as written; the core's
view equals that of the lists. And whenever batches are read: they are byte for byte what was written.
Fault budget: only `damage` destroys flushed data; its machine counts as lost from then on.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

from lograft.wire.batch import encode_batch

from metaquorum.raft.effects import AppendAsFollower, AppendAsLeader, Proposal
from metaquorum.raft.types import LOG_BEGIN, ElectionState, Offset, ReplicaKey, SnapshotId
from metaquorum.raft_codec.control_codec import encode_control_record
from metaquorum.raft_codec.quorum_codec import decode_batches
from metaquorum.raft_codec.wire_fields import InvalidMessageError
from metaquorum.replica.election_store import COPY_NAME, FILE_NAME, ElectionStore, VoteFileLostError
from metaquorum.replica.log_store import DamagedLogError, LogBase, LogOptions, LogStore
from metaquorum.testing.invariants import require
from metaquorum.testing.sim_log import (
    DamagedDiskError,
    PowerLostError,
    Recovered,
    SimBatch,
    SimDisk,
    SimFetchedBatches,
    SimSnapshot,
)
from metaquorum.testing.sim_trouble import (
    APPEND_CALLS,
    CALLS_BEFORE_POWER_LOSS,
    CRASHES,
    CUT_CALLS,
    EPOCH_BYTES,
    FLUSH_CALLS,
    OFTEN_SHARE,
    VOTE_CALLS,
    Damage,
    Trouble,
)
from storage.errors import DataLossError, StorageError
from storage.files.names import LOG_SUFFIX
from storage.log.flush import FlushWork
from storage.segment.damage import DamagedRanges
from storage.testing.sim_disk import Crash, Refusal, SimCall
from storage.testing.sim_disk import SimDisk as SimFiles

DIRECTORY: Final = "/metadata"
LOG_DIRECTORY: Final = f"{DIRECTORY}/log"

SEGMENT_BYTES: Final = 4 * 1024
"""Bytes of a segment: a few dozen batches, so that logs roll, and that a log opens fast."""


class StoredDisk(SimDisk):
    """Disk of one node, with real files.

    Args:
        key: replica whose disk it is.
        rng: its random stream.
        trouble: how often it fails.
        clock: returns milliseconds since 1970.
    """

    def __init__(self, key: ReplicaKey, rng: random.Random, *, trouble: Trouble, clock: Callable[[], int]) -> None:
        super().__init__()
        self.files = SimFiles()
        self.trouble = trouble
        self._key = key
        self._rng = rng
        self._options = LogOptions(segment_bytes=SEGMENT_BYTES, clock=clock)
        self._clock = clock
        self.files.make_directory(DIRECTORY)
        self.files.sync_directory("/")
        self._elections = ElectionStore(self.files, DIRECTORY, key)
        self._elections.create()
        self._store: LogStore | None = None
        self._work: FlushWork | None = None
        self._has_power = True
        self._is_damage_fresh = False

    # Work of a running process.

    @property
    def _log(self) -> LogStore:
        assert self._store is not None, "the process runs"
        return self._store

    def encode(self, effect: AppendAsLeader, payload: str) -> bytes:
        """Return the bytes of a batch, as the leader stamps them."""
        content, count = effect.content, effect.next_offset - effect.base_offset
        is_proposal = isinstance(content, Proposal)
        values = [payload.encode()] * count if is_proposal else [encode_control_record(content)]
        return bytes(
            encode_batch(
                values,
                timestamps_ms=self._clock(),
                control=not is_proposal,
                base_offset=effect.base_offset,
                leader_epoch=effect.quorum_epoch,
            )
        )

    def append_as_leader(self, effect: AppendAsLeader, proposed: str) -> SimBatch:
        """See `SimDisk`."""
        batch = super().append_as_leader(effect, proposed)
        self._try(lambda: self._log.append_as_leader(effect, bytearray(batch.data)), APPEND_CALLS, OFTEN_SHARE)
        return batch

    def append_as_follower(self, effect: AppendAsFollower) -> list[SimBatch]:
        """See `SimDisk`."""
        batches = super().append_as_follower(effect)
        self._try(lambda: self._log.append_as_follower(effect), APPEND_CALLS, OFTEN_SHARE)
        return batches

    def read(self, offset: Offset, limit: int) -> SimFetchedBatches:
        """See `SimDisk`. Also check that the bytes read are those written, or that damage is found.

        Raises:
            storage.errors.DataLossError: the batch is damaged; the next start notices it, too.
            DamagedDiskError: the batch is damaged, and no start would notice it.
        """
        wanted = super().read(offset, limit).batches
        try:
            data = self._log.read(offset, sum(len(batch.data) for batch in wanted))
        except DamagedLogError as error:
            raise DamagedDiskError(str(error)) from error
        count = self._require_bytes(data, wanted)
        decoded = decode_batches(data)
        return SimFetchedBatches(data=data, spans=decoded.spans, voters=decoded.voters, batches=wanted[:count])

    def _require_bytes(self, data: bytes, written: Sequence[SimBatch]) -> int:
        """Check that bytes are those of the first of the written batches. Return how many batches they are."""
        position = count = 0
        while position < len(data) and count < len(written):
            batch = written[count]
            require(
                data[position : position + len(batch.data)] == batch.data,
                "what is read is what was written",
                (self._key, batch),
            )
            position += len(batch.data)
            count += 1
        require(position == len(data) and count > 0, "reads are of whole batches", (self._key, len(data), position))
        return count

    def truncate_suffix(self, to_offset: Offset) -> int:
        """See `SimDisk`. A power loss on the way leaves any part of what must be removed."""
        kept = sum(batch.next_offset <= to_offset for batch in self.batches)
        self.durable_count = min(self.durable_count, kept)
        self._try(lambda: self._log.truncate_suffix(to_offset), CUT_CALLS)
        return super().truncate_suffix(to_offset)

    def truncate_prefix(self, to: SnapshotId) -> None:
        """See `SimDisk`."""
        self._try(lambda: self._log.truncate_prefix(to), CUT_CALLS)
        super().truncate_prefix(to)

    def truncate_fully(self, snapshot: SimSnapshot) -> None:
        """See `SimDisk`. A power loss on the way leaves the old log, a part of it, or the new one."""
        self._settle()
        self.durable_count = 0
        self._try(lambda: self._log.truncate_fully(snapshot.id), CUT_CALLS)
        super().truncate_fully(snapshot)

    def begin_flush(self) -> None:
        """See `SimDisk`. One flush is under way at a time, as in the shell."""
        if self._work is None:
            self._work = self._log.begin_flush()

    def flushed(self, batch: SimBatch) -> None:
        """See `SimDisk`."""
        self._try(lambda: self._flush_to(batch), FLUSH_CALLS, OFTEN_SHARE)
        super().flushed(batch)
        require(
            self._log.flushed_offset >= self.durable_end_offset,
            "a flush covers what was written before it began",
            (self._key, self._log.flushed_offset, self.durable_end_offset),
        )

    def _flush_to(self, batch: SimBatch) -> None:
        self._settle()
        is_there = self.batch_before(batch.next_offset) is batch
        if is_there and self._log.flushed_offset < batch.next_offset:
            # A truncation made the core forget the flush under way and request this one, which had to wait for the first.
            self._work = self._log.begin_flush()
            self._settle()

    def _settle(self) -> None:
        """End the flush under way, if there is one."""
        work, self._work = self._work, None
        if work is not None:
            work.run()
            self._log.end_flush(work)

    def save_vote(self) -> None:
        """See `SimDisk`."""
        electing = self.electing
        assert electing is not None, "nothing was being written"
        self._try(lambda: self._elections.save(electing), VOTE_CALLS, OFTEN_SHARE)
        super().save_vote()

    # Faults.

    def _try(self, action: Callable[[], object], calls: Sequence[str], share: float = 1.0) -> None:
        """Do something on the disk, perhaps with a fault.

        Raises:
            PowerLostError: the power was lost in the middle of it.
            storage.errors.StorageError: a call was refused.
        """
        trouble, chance = self.trouble, self._rng.random()
        if chance < trouble.power_loss * share:
            self._cut_short(action)
        elif chance > 1.0 - trouble.refusal * share:
            self.files.refuse(self._rng.choice(calls), "/", self._rng.choice(list(Refusal)))
            try:
                action()
            finally:
                self.files.forgive()
        else:
            action()

    def _cut_short(self, action: Callable[[], object]) -> None:
        """Do something, and lose the power after a few calls of the disk.

        Raises:
            PowerLostError: the power was lost before the end.
        """
        calls_left = self._rng.randrange(CALLS_BEFORE_POWER_LOSS)

        def count(call: SimCall) -> None:
            nonlocal calls_left
            calls_left -= 1
            if calls_left < 0:
                self._has_power = False
                raise PowerLostError

        self.files.on_call = count
        try:
            action()
        finally:
            self.files.on_call = None

    def crash(self, rng: random.Random) -> None:
        """Lose the process, and mostly the power. The next start finds what survived."""
        if self._has_power:
            self._interrupt(rng)
        self._end_process(rng.choice(CRASHES))
        if rng.random() < 0.5:
            self._age_image(rng)

    def _interrupt(self, rng: random.Random) -> None:
        """Do a part of the work that runs in the disk thread at this moment."""
        work, electing = self._work, self.electing
        with suppress(PowerLostError, StorageError):
            if electing is not None and rng.random() < 0.5:
                self._cut_short(lambda: self._elections.save(electing))
            if work is not None and rng.random() < 0.5:
                self._cut_short(work.run)

    def _end_process(self, how: Crash) -> None:
        self.files.crash(how, self._rng)
        self.files.calls.clear()
        self._has_power = True
        self._store = self._work = None

    def _age_image(self, rng: random.Random) -> None:
        """Make the image on disk older than what was applied, but not older than the newest snapshot."""
        oldest = max((one.id.end_offset for one in self.snapshots), default=LOG_BEGIN)
        ends = [b.next_offset for b in self.batches if oldest <= b.next_offset <= self.applied_offset]
        self.applied_offset = rng.choice([oldest, *ends[-1:], rng.choice(ends or [oldest])])

    def damage(self, kind: Damage, rng: random.Random) -> bool:
        """End the process and flip a bit on the disk. Return whether there was anything to hit.

        The power stays: together with a power failure, damage at the very end of a log looks like a torn write, and nothing could
        tell them apart (`docs/quorum.md`, "Simulation").
        """
        written = self.batches[: self.durable_count]
        self._end_process(Crash.KEEP_ALL)
        match kind:
            case Damage.BATCH | Damage.EPOCH:
                part = EPOCH_BYTES if kind is Damage.EPOCH else None
                return bool(written) and self._flip_batch(rng.choice(written), rng, part)
            case Damage.VOTE_COPY:
                self._flip(f"{DIRECTORY}/{rng.choice((FILE_NAME, COPY_NAME))}", rng)
            case Damage.VOTES:
                self._flip(f"{DIRECTORY}/{FILE_NAME}", rng)
                self._flip(f"{DIRECTORY}/{COPY_NAME}", rng)
            case Damage.OTHER_FILE:
                names = [name for name in self.files.list_directory(LOG_DIRECTORY) if not name.endswith(LOG_SUFFIX)]
                paths = [f"{LOG_DIRECTORY}/{name}" for name in names]
                filled = [path for path in paths if self.files.size_bytes(path) > 0]
                self._flip(rng.choice(filled), rng)
        self._is_damage_fresh = True
        return True

    def _flip_batch(self, batch: SimBatch, rng: random.Random, part: range | None) -> bool:
        part = part or range(len(batch.data))
        for name in self.files.list_directory(LOG_DIRECTORY):
            path = f"{LOG_DIRECTORY}/{name}"
            if name.endswith(LOG_SUFFIX) and (start := self.files.read_file(path).find(batch.data)) >= 0:
                self._flip(path, rng, start + part.start, len(part))
                self._is_damage_fresh = True
                return True
        return False

    def _flip(self, path: str, rng: random.Random, start: int = 0, size_bytes: int | None = None) -> None:
        content = self.files.read_file(path)
        position = start + rng.randrange(len(content) if size_bytes is None else size_bytes)
        self.files.corrupt(path, position, bytes([content[position] ^ 1 << rng.randrange(8)]))

    # Start.

    def recover(self) -> Recovered:
        """See `SimDisk`. The power may be lost on the way, several times.

        Raises:
            DamagedDiskError: vote file or log are damaged.
        """
        while True:
            try:
                self._open_files()
                break
            except PowerLostError:
                self._end_process(self._rng.choice(list(Crash)))
            except (VoteFileLostError, DamagedLogError, InvalidMessageError, StorageError) as error:
                raise DamagedDiskError(f"{type(error).__name__}: {error}") from error
        self._is_damage_fresh = False
        try:
            return self._compare()
        except (DamagedLogError, DataLossError) as error:
            # A flip in the last batch, below the recovery point: no start reads it, but the comparison does.
            raise DamagedDiskError(f"{type(error).__name__}: {error}") from error

    def recover_after(self, how: Crash) -> Recovered:
        """End the process in one way and start it again."""
        self._end_process(how)
        return self.recover()

    def _open_files(self) -> None:
        self._elections = ElectionStore(self.files, DIRECTORY, self._key)
        snapshots = tuple(one.id for one in self.snapshots)
        newest = max(self.snapshots, key=lambda one: one.id.end_offset, default=None)
        image, last = self.applied_offset, self.batch_before(self.applied_offset)
        if newest is not None and newest.id.end_offset >= image:
            image, last = newest.id.end_offset, newest.last
        base = LogBase(image_offset=image, voters=None if last is None else last.voters_after, snapshots=snapshots)
        loaded: list[ElectionState] = []

        def open_both() -> None:
            loaded.append(self._elections.load())
            self._store = LogStore.open(self.files, LOG_DIRECTORY, base, options=self._options)

        # Until new damage has been found, a power failure would turn it into a torn tail.
        loses_power = not self._is_damage_fresh and self._rng.random() < self.trouble.power_loss
        if loses_power:
            self._cut_short(open_both)
        else:
            open_both()
        found = loaded[0]
        require(
            found in (self.election, self.electing), "a vote file holds the old or the new vote", (found, self._key)
        )
        self.election, self.electing = found, None

    def _compare(self) -> Recovered:
        """Update the lists to what was found, as far as the laws allow it."""
        log = self._log
        start, end, is_restarted = Offset(log.log_start_offset), Offset(log.end_offset), False
        if start > self.log_start_offset:
            is_restarted = self._move_start(start, end)
        durable_end = self.durable_end_offset
        require(end >= durable_end, "what was flushed is there after a crash", (self._key, end, durable_end))
        found = end in (self.log_end_offset, start) or self._find(end) is not None
        require(found, "what is left is a prefix of what was written", (self._key, end))
        known = [one for one in DamagedRanges.load(self.files, LOG_DIRECTORY).all() if one.end_offset > start]
        require(not known, "no node starts on a log with known damage", (self._key, known))
        before = len(self.batches)
        self.batches = [batch for batch in self.batches if batch.next_offset <= end]
        self._require_tail(durable_end)
        self.durable_count = len(self.batches)
        self.remove_old_snapshots()
        view, shadow = log.view(), self.view()
        require(
            (view.epochs, view.log_end_offset, view.log_start_offset, view.start_epoch, view.flushed_offset)
            == (shadow.epochs, end, shadow.log_start_offset, shadow.start_epoch, end),
            "epochs of a log that was opened",
            (self._key, view.epochs, shadow.epochs),
        )
        return Recovered(
            log=view,
            voters=log.voters,
            snapshots=log.kept_snapshots,
            committed_offset=log.committed_offset,
            lost_count=before - len(self.batches),
            cut_bytes=log.cut_bytes,
            is_restarted=is_restarted,
        )

    def _move_start(self, start: Offset, end: Offset) -> bool:
        """Finish a trim or an install that was nearly complete. Return whether it was an install."""
        snapshot = next((one for one in self.snapshots if one.id.end_offset == start), None)
        require(snapshot is not None, "a log begins at a snapshot [SnapshotAtLogStart]", (self._key, start))
        assert snapshot is not None, "required above"
        held = self.batch_before(start)
        if held is not None and held == snapshot.last and (end > start or self.log_end_offset == start):
            super().truncate_prefix(snapshot.id)
            return False
        super().truncate_fully(snapshot)
        return True

    def _require_tail(self, from_offset: Offset) -> None:
        """Check that surviving unflushed batches are those written, and the last batch, too."""
        tail = [batch for batch in self.batches if batch.next_offset > from_offset] or self.batches[-1:]
        self._require_batches(tail)

    def _require_batches(self, written: Sequence[SimBatch]) -> None:
        while written:
            data = self._log.read(written[0].base_offset, sum(len(batch.data) for batch in written))
            written = written[self._require_bytes(data, written) :]

    def require_all(self) -> None:
        """Check that the whole log is byte for byte what was written.

        Raises:
            storage.errors.DataLossError: damage was found.
        """
        self._require_batches(self.batches)
