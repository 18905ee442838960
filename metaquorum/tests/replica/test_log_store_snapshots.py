# SPDX-License-Identifier: Apache-2.0
"""The metadata log and snapshots on a simulated disk: trims, installs, and a crash between any two writes."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from metaquorum.raft.effects import AppendAsLeader, Proposal, VotersChange
from metaquorum.raft.types import NodeId, Offset, QuorumEpoch, ReplicaKey, SnapshotId
from metaquorum.raft.voters import Voter, voter_set
from metaquorum.replica.log_store import DamagedLogError, LogBase, LogStore, encode_control, encode_records
from metaquorum.testing.scripted_node import snapshot_id
from metaquorum.tests.metadata_logs import LOG, append, flush, log_of
from storage.testing.sim_disk import Crash, SimDisk

VOTERS = voter_set([Voter(key=ReplicaKey(node_id=NodeId(1), directory_id=bytes(16)), address="n1:1")])


def base(image_offset: int, *snapshots: SnapshotId) -> LogBase:
    """Return the state of image and snapshots for a start."""
    return LogBase(image_offset=Offset(image_offset), voters=VOTERS, snapshots=snapshots)


def test_a_trimmed_log_begins_at_the_snapshot_after_a_restart() -> None:
    """The restart finds the log start, the epoch before it and the epochs of the log."""
    disk, store = log_of(10)
    append(store, 5, epoch=3)
    store.truncate_prefix(snapshot_id(8, 1))
    assert store.view().log_start_offset == 8
    store.close(is_clean=True)
    store = LogStore.open(disk, LOG, base(15, snapshot_id(8, 1)))
    view = store.view()
    assert (view.log_start_offset, view.start_epoch, view.log_end_offset) == (8, 1, 15)
    assert view.epochs == ((1, 8), (3, 10))
    assert store.read_bytes == 0
    store.close(is_clean=True)


def test_only_the_tail_above_the_image_is_read() -> None:
    """Voters below the image's offset come from the image, those above from the log."""
    disk, store = log_of(50)
    others = voter_set([Voter(key=ReplicaKey(node_id=NodeId(2), directory_id=bytes(16)), address="n2:1")])
    offset = store.end_offset
    effect = AppendAsLeader(
        base_offset=Offset(offset),
        next_offset=Offset(offset + 1),
        quorum_epoch=QuorumEpoch(1),
        content=VotersChange(voters=others),
    )
    store.append_as_leader(effect, encode_control(VotersChange(voters=others)))
    flush(store)
    store.close(is_clean=True)
    store = LogStore.open(disk, LOG, base(48))
    assert store.voters == ((47, VOTERS), (50, others))
    tail_bytes = store.read_bytes
    store.close(is_clean=True)
    store = LogStore.open(disk, LOG)
    assert store.voters == ((50, others),)
    assert 0 < tail_bytes < store.read_bytes / 5
    store.close(is_clean=True)


@pytest.mark.parametrize(("count", "epoch"), [(0, 1), (5, 1), (30, 1)])
def test_a_log_begins_again_at_a_snapshot_and_goes_on(count: int, epoch: int) -> None:
    """The old log may be empty, shorter or longer: nothing of it is left, and the next epoch may be lower."""
    disk, store = log_of(count)
    append(store, 2, epoch=9)
    store.truncate_fully(snapshot_id(20, 3))
    view = store.view()
    assert (view.log_start_offset, view.log_end_offset, view.start_epoch, view.epochs) == (20, 20, 3, ())
    append(store, 3, epoch=4)
    store.close(is_clean=False)
    store = LogStore.open(disk, LOG, base(20, snapshot_id(20, 3)))
    view = store.view()
    assert (view.log_start_offset, view.log_end_offset, view.epochs) == (20, 23, ((4, 20),))
    store.close(is_clean=True)


def test_a_flush_that_was_under_way_is_taken_back() -> None:
    """The flush ends later, and was of a log that no longer exists."""
    disk, store = log_of(3)
    offset = store.end_offset
    effect = AppendAsLeader(
        base_offset=Offset(offset),
        next_offset=Offset(offset + 1),
        quorum_epoch=QuorumEpoch(1),
        content=Proposal(proposal_id=1),
    )
    store.append_as_leader(effect, encode_records([b"x"]))
    work = store.begin_flush()
    assert work is not None
    work.run()
    store.truncate_fully(snapshot_id(20, 3))
    store.end_flush(work)
    append(store, 1, epoch=3)
    assert store.view().flushed_offset == 21
    store.close(is_clean=True)
    assert disk.exists(LOG)


def crash_points(disk: SimDisk, action: Callable[[], None]) -> list[SimDisk]:
    """Copies of the disk before each modifying call of an action, and after the last."""
    points: list[SimDisk] = []
    disk.on_call = lambda call: points.append(disk.fork())
    action()
    disk.on_call = None
    return [*points, disk.fork()]


@pytest.mark.parametrize("count", [9, 30])
def test_every_crash_point_of_an_install_is_healed(count: int) -> None:
    """Whatever part of the install reached the disk, the next start has the log at the snapshot, empty and usable."""
    disk, store = log_of(count)
    store.truncate_prefix(snapshot_id(8, 1))
    append(store, 1, epoch=2)
    points = crash_points(disk, lambda: store.truncate_fully(snapshot_id(20, 3)))
    assert len(points) > 8
    for number, point in enumerate(points):
        for how in Crash:
            crashed = point.fork()
            crashed.crash(how, random.Random(number))
            opened = LogStore.open(crashed, LOG, base(20, snapshot_id(8, 1), snapshot_id(20, 3)))
            view = opened.view()
            assert (view.log_start_offset, view.log_end_offset, view.start_epoch) == (20, 20, 3), (number, how)
            append(opened, 1, epoch=3)
            opened.close(is_clean=True)


def test_every_crash_point_of_a_trim_leaves_a_log_at_a_snapshot() -> None:
    """The log begins at the old or at the new snapshot, with every record from there on."""
    disk, store = log_of(30)
    store.truncate_prefix(snapshot_id(10, 1))
    points = crash_points(disk, lambda: store.truncate_prefix(snapshot_id(20, 1)))
    starts: set[int] = set()
    for number, point in enumerate(points):
        for how in Crash:
            crashed = point.fork()
            crashed.crash(how, random.Random(number))
            opened = LogStore.open(crashed, LOG, base(25, snapshot_id(10, 1), snapshot_id(20, 1)))
            view = opened.view()
            starts.add(view.log_start_offset)
            assert (view.log_end_offset, view.start_epoch) == (30, 1), (number, how)
            batches = opened.read_committed(view.log_start_offset, 1 << 20, commit_offset=30)
            assert [batch.base_offset for batch in batches] == list(range(view.log_start_offset, 30))
            opened.close(is_clean=True)
    assert starts == {10, 20}


@pytest.mark.parametrize("how", list(Crash))
@pytest.mark.parametrize("count", [5, 30])
def test_a_crash_after_the_snapshot_got_its_name_is_healed(how: Crash, count: int) -> None:
    """The log is unchanged: the start begins it again at the snapshot, even if it is shorter or diverges."""
    disk, store = log_of(count)
    store.close(is_clean=False)
    disk.crash(how, random.Random(1))
    store = LogStore.open(disk, LOG, base(20, snapshot_id(20, 3)))
    view = store.view()
    assert (view.log_start_offset, view.log_end_offset, view.start_epoch) == (20, 20, 3)
    assert store.kept_snapshots == (snapshot_id(20, 3),)
    append(store, 1, epoch=3)
    store.close(is_clean=True)


def test_a_log_that_has_the_end_of_the_newest_snapshot_stays() -> None:
    """The snapshot is the node's own, or the install was finished."""
    disk, store = log_of(30)
    store.close(is_clean=False)
    store = LogStore.open(disk, LOG, base(25, snapshot_id(20, 1)))
    assert store.view().log_end_offset == 30
    store.close(is_clean=True)


def test_snapshots_below_the_log_start_are_not_kept() -> None:
    """The node crashed between the new log start and their removal."""
    disk, store = log_of(30)
    store.truncate_prefix(snapshot_id(20, 1))
    store.close(is_clean=False)
    store = LogStore.open(disk, LOG, base(30, snapshot_id(10, 1), snapshot_id(20, 1)))
    assert store.kept_snapshots == (snapshot_id(20, 1),)
    store.close(is_clean=True)


@pytest.mark.parametrize("snapshots", [(), (snapshot_id(10, 1),)])
def test_a_trimmed_log_without_its_snapshot_refuses_to_start(snapshots: tuple[SnapshotId, ...]) -> None:
    """The records below its start exist nowhere."""
    disk, store = log_of(30)
    store.truncate_prefix(snapshot_id(20, 1))
    store.close(is_clean=True)
    with pytest.raises(DamagedLogError, match="no snapshot ends there"):
        LogStore.open(disk, LOG, base(30, *snapshots))


def test_a_log_that_is_shorter_than_its_image_refuses_to_start() -> None:
    """The image has records that this log had flushed: the log has lost them."""
    disk, store = log_of(10)
    store.close(is_clean=True)
    with pytest.raises(DamagedLogError, match="its image at 11"):
        LogStore.open(disk, LOG, base(11))


def test_a_damaged_snapshot_is_covered_by_a_log_that_has_its_end() -> None:
    """The log begins at an older snapshot, or at 0; the records of the damaged snapshot are known to be committed."""
    for start in (0, 8):
        disk, store = log_of(30)
        if start:
            store.truncate_prefix(snapshot_id(start, 1))
        store.close(is_clean=False)
        older = (snapshot_id(start, 1),) if start else ()
        damaged = (snapshot_id(4, 1), snapshot_id(20, 1))
        found = LogBase(image_offset=Offset(start), voters=VOTERS, snapshots=older, damaged=damaged)
        store = LogStore.open(disk, LOG, found)
        assert (store.committed_offset, store.end_offset, store.kept_snapshots) == (20, 30, older)
        store.close(is_clean=True)


@pytest.mark.parametrize("damaged", [snapshot_id(31, 1), snapshot_id(20, 2)])
def test_a_damaged_snapshot_that_the_log_does_not_have_keeps_the_node_from_starting(damaged: SnapshotId) -> None:
    """An install was interrupted; it is unknown whether the log still has the records that this voter acknowledged."""
    disk, store = log_of(30)
    store.close(is_clean=True)
    found = LogBase(image_offset=Offset(0), voters=VOTERS, damaged=(damaged,))
    with pytest.raises(DamagedLogError, match="Wipe the data directory"):
        LogStore.open(disk, LOG, found)
    store = LogStore.open(disk, LOG, base(0))
    assert store.end_offset == 30, "nothing was cut"
    store.close(is_clean=True)


@pytest.mark.parametrize("count", [9, 30])
def test_no_crash_point_of_an_install_is_taken_for_a_whole_log_when_the_new_snapshot_is_damaged(count: int) -> None:
    """Whatever part of the install reached the disk: without the snapshot the start refuses, and never votes with an empty log."""
    disk, store = log_of(count)
    store.truncate_prefix(snapshot_id(8, 1))
    append(store, 1, epoch=2)
    for number, point in enumerate(crash_points(disk, lambda: store.truncate_fully(snapshot_id(20, 3)))):
        for how in Crash:
            crashed = point.fork()
            crashed.crash(how, random.Random(number))
            older, new = snapshot_id(8, 1), snapshot_id(20, 3)
            found = LogBase(image_offset=Offset(8), voters=VOTERS, snapshots=(older,), damaged=(new,))
            with pytest.raises(DamagedLogError):
                LogStore.open(crashed, LOG, found)
