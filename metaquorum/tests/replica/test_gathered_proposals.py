# SPDX-License-Identifier: Apache-2.0
"""Small proposals become one batch, and readers of the log see no difference."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from lograft.wire.batch import encode_batch, iter_batches

from metaquorum.raft.effects import AppendAsLeader, LeaderChange, Proposal
from metaquorum.raft.types import NodeId, Offset, QuorumEpoch
from metaquorum.replica import gathered as gathered_module
from metaquorum.replica.gathered import MAX_PROPOSAL_BYTES, MAX_PROPOSAL_RECORDS, gathered_size
from metaquorum.replica.log_store import LogStore, encode_control, encode_records
from metaquorum.testing.scripted_node import snapshot_id
from storage.testing.sim_disk import SimDisk

LOG = "/data/log"


@pytest.fixture
def disk() -> SimDisk:
    """A disk with an empty data directory."""
    made = SimDisk()
    made.make_directory("/data")
    made.sync_directory("/")
    return made


@pytest.fixture
def store(disk: SimDisk) -> LogStore:
    """An empty log."""
    return LogStore.open(disk, LOG)


def effect_at(offset: int, count: int, *, epoch: int = 1) -> AppendAsLeader:
    """Return the core's effect."""
    return AppendAsLeader(
        base_offset=Offset(offset),
        next_offset=Offset(offset + count),
        quorum_epoch=QuorumEpoch(epoch),
        content=Proposal(proposal_id=offset),
    )


def gather(store: LogStore, *values: bytes, offset: int, epoch: int = 1) -> None:
    """Propose."""
    store.gather(effect_at(offset, len(values), epoch=epoch), values)


def batches(store: LogStore) -> list[tuple[int, int, int]]:
    """Base offset, end (exclusive) and epoch of every batch."""
    data = store.read(0, 1 << 20)
    return [(header.base_offset, header.next_offset, header.leader_epoch) for _, header in iter_batches(data)]


def flush(store: LogStore) -> None:
    """Put everything on stable storage."""
    work = store.begin_flush()
    assert work is not None, "nothing to flush"
    work.run()
    store.end_flush(work)


def test_proposals_become_one_batch(store: LogStore) -> None:
    """Each record keeps its offset, value and order."""
    gather(store, b"a", offset=0)
    gather(store, b"b", b"c", offset=1)
    gather(store, b"d", offset=3)
    (batch,) = store.read_committed(0, 1 << 20, commit_offset=4)
    assert (batch.base_offset, batch.next_offset, batch.quorum_epoch) == (0, 4, 1)
    assert batch.records == [b"a", b"b", b"c", b"d"]
    gather(store, b"e", offset=4)
    assert batches(store) == [(0, 4, 1), (4, 5, 1)]


@pytest.mark.parametrize(
    "look",
    [
        lambda store: store.read(0, 100),
        lambda store: store.read_committed(0, 100, commit_offset=2),
        flush,
        lambda store: store.truncate_suffix(Offset(2)),
        lambda store: store.append_as_leader(effect_at(2, 1), encode_records([b"big"])),
        lambda store: store.close(is_clean=True),
    ],
    ids=["read", "read committed", "flush", "truncate", "append", "close"],
)
def test_whoever_looks_finds_them(disk: SimDisk, store: LogStore, look: Callable[[LogStore], object]) -> None:
    """Every read or write of the log writes them first."""
    gather(store, b"a", b"b", offset=0)
    look(store)
    store.close(is_clean=True)
    assert batches(LogStore.open(disk, LOG))[0] == (0, 2, 1)


def test_flush_covers_what_was_gathered(disk: SimDisk, store: LogStore) -> None:
    """Flushed records survive a power loss; later ones do not, and no report has promised them."""
    gather(store, b"a", offset=0)
    gather(store, b"b", offset=1)
    flush(store)
    assert store.view().flushed_offset == 2
    gather(store, b"c", offset=2)
    store.close(is_clean=False)
    assert batches(LogStore.open(disk, LOG)) == [(0, 2, 1)]


def test_log_that_begins_again_has_nothing_of_them(store: LogStore) -> None:
    """The gathered proposals are written and dropped with the rest of the log."""
    gather(store, b"a", offset=0)
    store.truncate_fully(snapshot_id(20, 3))
    assert (store.log_start_offset, store.end_offset) == (20, 20)
    gather(store, b"b", offset=20, epoch=4)
    (batch,) = store.read_committed(20, 1 << 20, commit_offset=21)
    assert (batch.base_offset, batch.records) == (20, [b"b"])


def test_batch_has_one_epoch(store: LogStore) -> None:
    """Control records and other epochs end it."""
    gather(store, b"a", offset=0)
    gather(store, b"b", offset=1, epoch=2)
    content = LeaderChange(leader_id=NodeId(1), granting_voters=(NodeId(1),))
    effect = AppendAsLeader(base_offset=Offset(2), next_offset=Offset(3), quorum_epoch=QuorumEpoch(2), content=content)
    store.append_as_leader(effect, encode_control(content))
    gather(store, b"c", offset=3, epoch=2)
    assert batches(store) == [(0, 1, 1), (1, 2, 2), (2, 3, 2), (3, 4, 2)]


def test_batch_is_bounded(store: LogStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond the limit the next one begins."""
    monkeypatch.setattr(gathered_module, "MAX_GATHERED_BYTES", 10)
    for offset in range(5):
        gather(store, b"1234", offset=offset)
    assert batches(store) == [(0, 2, 1), (2, 4, 1), (4, 5, 1)]


def test_gap_is_a_contradiction(store: LogStore) -> None:
    """The core counts as the log does."""
    gather(store, b"a", offset=0)
    with pytest.raises(AssertionError, match="does not follow"):
        gather(store, b"b", offset=2)
    with pytest.raises(AssertionError, match="2 records"):
        store.gather(effect_at(1, 1), [b"a", b"b"])


@pytest.mark.parametrize(
    "records",
    [[b""], [b"x"], [b"x" * MAX_PROPOSAL_BYTES], [b"xyz"] * MAX_PROPOSAL_RECORDS, [bytes(200), b"", bytes(7)] * 90],
    ids=["empty", "one", "largest", "most", "mixed"],
)
def test_size_is_an_upper_bound(records: list[bytes]) -> None:
    """The core bounds uncommitted bytes by this size, so it must not be too low."""
    size_bytes = gathered_size(records)
    assert size_bytes is not None
    assert len(encode_batch(records, timestamps_ms=1_700_000_000_000)) <= size_bytes


def test_big_proposals_are_batches_of_their_own() -> None:
    """The caller encodes proposals with too many bytes or records, and learns if they fit no batch."""
    assert gathered_size([b"x" * MAX_PROPOSAL_BYTES, b"y"]) is None
    assert gathered_size([b""] * (MAX_PROPOSAL_RECORDS + 1)) is None
