# SPDX-License-Identifier: Apache-2.0
"""Recently read or appended bytes of the log are not read from the disk again, and are dropped when the log changes."""

from __future__ import annotations

import pytest
from lograft.wire.batch import RecordBatch

from metaquorum.raft.effects import AppendAsFollower, AppendAsLeader, Proposal
from metaquorum.raft.messages import BatchSpan, FetchedBatches
from metaquorum.raft.types import Offset, QuorumEpoch
from metaquorum.replica import log_store as log_store_module
from metaquorum.replica.log_store import LogStore, encode_records
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
    store.append_as_leader(effect, encode_records(list(values)))


def values(data: bytes) -> list[bytes | None]:
    """Values of the one batch in the data."""
    return RecordBatch(data).values()


def test_second_follower_of_a_round_and_the_own_image_cost_no_read() -> None:
    """All want the same bytes, one after the other."""
    store = new_store()
    append(store, b"first")
    append(store, b"second")
    data = store.read(1, LIMIT)
    read_once = store.read_bytes
    assert store.read(1, LIMIT) is data
    assert store.read_bytes == read_once
    assert [batch.records for batch in store.read_committed(1, LIMIT, commit_offset=2)] == [[b"second"]]
    assert values(data) == [b"second"]


def test_what_a_leader_appended_is_sent_from_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first follower of a round costs no read either, and gets what the disk has, offset and epoch included."""
    store = new_store()
    append(store, b"first")
    append(store, b"second", b"third", epoch=3)
    data = store.read(1, LIMIT)
    assert store.read_bytes == 0
    monkeypatch.setattr(store, "_recent", None)
    assert store.read(1, LIMIT) == data
    assert store.read_bytes == len(data)


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


def test_small_limit_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """A caller with a small limit gets fewer bytes; a read that is too large is not remembered."""
    store = new_store()
    append(store, b"a" * 100)
    append(store, b"b" * 100)
    whole = store.read(0, LIMIT)
    assert values(store.read(0, 10)) == [b"a" * 100]
    monkeypatch.setattr(log_store_module, "RECENT_BYTES", len(whole) - 1)
    before = store.read_bytes
    assert store.read(0, LIMIT) == whole
    assert store.read(0, LIMIT) == whole
    assert store.read_bytes == before + 2 * len(whole)
