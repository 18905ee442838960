# SPDX-License-Identifier: Apache-2.0
"""Recently read or appended bytes of the log are not read from the disk again, and are dropped when the log changes."""

from __future__ import annotations

import pytest
from lograft.wire.batch import RecordBatch

from metaquorum.metadata.listener import CommittedBatch
from metaquorum.raft.effects import AppendAsFollower, AppendAsLeader, Proposal
from metaquorum.raft.messages import BatchSpan, FetchedBatches
from metaquorum.raft.types import Offset, QuorumEpoch
from metaquorum.replica import recent_batches
from metaquorum.replica.log_store import LogStore
from storage.testing.sim_disk import SimDisk

LIMIT = 1 << 20


def new_store() -> LogStore:
    """An empty log."""
    disk = SimDisk()
    disk.make_directory("/data")
    disk.sync_directory("/")
    return LogStore.open(disk, "/data/log")


def append(store: LogStore, *values: bytes, epoch: int = 1) -> None:
    """Append one batch as leader."""
    offset = store.end_offset
    effect = AppendAsLeader(
        base_offset=Offset(offset),
        next_offset=Offset(offset + len(values)),
        quorum_epoch=QuorumEpoch(epoch),
        content=Proposal(proposal_id=offset),
    )
    store.gather(effect, values)
    store._write_gathered()


def values(data: bytes) -> list[bytes | None]:
    """Values of the one batch in the data."""
    return RecordBatch(data).values()


def test_second_follower_of_a_round_and_the_own_image_cost_no_read() -> None:
    """All want the same bytes, one after the other."""
    store = new_store()
    append(store, b"first")
    append(store, b"second")
    data = store.read(1, LIMIT)
    assert store.read(1, LIMIT) == data
    assert [batch.records for batch in store.read_committed(1, LIMIT, commit_offset=2)] == [[b"second"]]
    assert store.read_bytes == 0
    assert values(data) == [b"second"]


def test_what_a_leader_appended_is_sent_and_told_from_memory_as_the_disk_has_it() -> None:
    """The first follower of a round costs no read either; offset, epoch and time included."""
    store = new_store()
    append(store, b"first")
    append(store, b"second", b"third", epoch=3)
    data = store.read(1, LIMIT)
    assert store.read_bytes == 0
    kept = store.read_committed(0, LIMIT, commit_offset=3)
    store._recent.clear()
    assert store.read(1, LIMIT) == data
    assert store.read_bytes == len(data)
    assert store.read_committed(0, LIMIT, commit_offset=3) == kept


def test_what_a_follower_appended_is_delivered_as_it_came() -> None:
    """The leader's bytes are still in memory when they are committed."""
    leader = new_store()
    append(leader, b"one", b"two", epoch=3)
    data = leader.read(0, LIMIT)
    store = new_store()
    span = BatchSpan(base_offset=Offset(0), next_offset=Offset(2), epoch=QuorumEpoch(3))
    store.append_as_follower(AppendAsFollower(batches=FetchedBatches(data=data, spans=(span,))))
    delivered = store.read_committed(0, LIMIT, commit_offset=2)
    assert [(batch.records, batch.quorum_epoch, batch.next_offset) for batch in delivered] == [([b"one", b"two"], 3, 2)]
    assert store.read(0, LIMIT) == data


def test_bytes_beyond_the_commit_are_not_delivered() -> None:
    """Bytes that were read for a follower reach to the end of the log, beyond the commit."""
    store = new_store()
    append(store, b"committed")
    append(store, b"not yet")
    assert store.read(0, LIMIT)
    assert [batch.records for batch in store.read_committed(0, LIMIT, commit_offset=1)] == [[b"committed"]]


def test_read_after_another_append_has_everything() -> None:
    """Remembered bytes of a shorter log do not hide later records."""
    store = new_store()
    append(store, b"first")
    assert values(store.read(0, LIMIT)) == [b"first"]
    append(store, b"second")
    assert len(store.read(0, LIMIT)) > len(store.read(1, LIMIT))
    assert values(store.read(1, LIMIT)) == [b"second"]


def test_truncated_records_are_forgotten() -> None:
    """A log of the same length with other records is read from the disk again."""
    store = new_store()
    append(store, b"first")
    append(store, b"lost", epoch=1)
    assert values(store.read(1, LIMIT)) == [b"lost"]
    store.truncate_suffix(Offset(1))
    append(store, b"kept", epoch=2)
    assert values(store.read(1, LIMIT)) == [b"kept"]
    assert [batch.records for batch in store.read_committed(1, LIMIT, commit_offset=2)] == [[b"kept"]]


def test_small_limit_is_kept() -> None:
    """A caller with a small limit gets fewer bytes, but at least one batch."""
    store = new_store()
    append(store, b"a" * 100)
    size_bytes = len(store.read(0, LIMIT))
    append(store, b"b" * 100)
    append(store, b"c" * 100)
    assert values(store.read(0, 10)) == [b"a" * 100]
    assert len(store.read(0, 3 * size_bytes - 1)) == 2 * size_bytes
    assert len(store.read(0, 3 * size_bytes)) == 3 * size_bytes
    assert len(store.read_committed(0, 1, commit_offset=3)) == 1
    assert len(store.read_committed(0, size_bytes + 1, commit_offset=3)) == 2
    assert len(store.read_committed(0, LIMIT, commit_offset=2)) == 2


def test_memory_is_bounded_and_older_batches_come_from_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest appends go first. One that is too large for itself is not kept, and nothing before it."""
    store = new_store()
    append(store, b"a" * 100)
    size_bytes = len(store.read(0, LIMIT))
    monkeypatch.setattr(recent_batches, "RECENT_BYTES", 2 * size_bytes)
    append(store, b"b" * 100)
    append(store, b"c" * 100)
    assert store.read(1, LIMIT)
    assert store.read_bytes == 0
    assert len(store.read(0, LIMIT)) == store.read_bytes == 3 * size_bytes
    append(store, b"d" * 1_000)
    assert values(store.read(3, LIMIT)) == [b"d" * 1_000]
    assert store.read_bytes > 4 * size_bytes
    append(store, b"e" * 100)
    before = store.read_bytes
    assert values(store.read(4, LIMIT)) == [b"e" * 100]
    assert [each.records for each in store.read_committed(4, LIMIT, commit_offset=5)] == [[b"e" * 100]]
    assert store.read_bytes == before


def test_what_listeners_have_is_kept_as_bytes_only() -> None:
    """Decoded records take several times the memory of their bytes. A listener that is behind gets them all the same."""
    decoded: list[bytes] = []

    def decode(data: bytes) -> list[CommittedBatch]:
        decoded.append(data)
        return [
            CommittedBatch(
                base_offset=0, next_offset=1, quorum_epoch=1, append_timestamp_ms=0, records=[data], is_control=False
            )
        ]

    recent = recent_batches.RecentBatches(decode)
    for number, data in enumerate((b"a", b"b", b"c")):
        recent.add(number, number + 1, data)
    for number in (0, 0, 1, 1, 2, 2):
        assert recent.batches_from(number, LIMIT, end_offset=number + 1)
    assert decoded == [b"a", b"b", b"c"]
    found = recent.batches_from(0, LIMIT, end_offset=1)
    assert found is not None
    assert found[0].records == [b"a"]
    assert decoded == [b"a", b"b", b"c", b"a"]
