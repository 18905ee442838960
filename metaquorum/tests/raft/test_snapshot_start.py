# SPDX-License-Identifier: Apache-2.0
"""Snapshots in the core: what a start finds on the disk, and which snapshots may not exist below the log start."""

from __future__ import annotations

import pytest

from metaquorum.raft.effects import AdvanceCommit
from metaquorum.raft.log_view import LogView
from metaquorum.raft.snapshots import must_restart_log
from metaquorum.raft.types import NO_EPOCH, EpochEnd, Offset, QuorumEpoch
from metaquorum.testing.scripted_node import ScriptedNode, election_state, snapshot_id


def test_what_the_disk_knows_to_be_committed_is_known_at_once() -> None:
    """High watermark and delivery begin at the snapshot or the image, whichever is further."""
    node = ScriptedNode(
        election=election_state(5), start=(10, 2), epochs=[(3, 10)], log_end_offset=30, snapshots=[(10, 2), (20, 3)]
    ).start()
    assert node.of(AdvanceCommit) == [AdvanceCommit(commit_offset=Offset(20))]
    node = ScriptedNode(
        election=election_state(5), epochs=[(3, 0)], log_end_offset=30, snapshots=[(20, 3)], committed_offset=25
    ).start()
    assert node.state.high_watermark == 25


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"snapshots": []}, "without a snapshot"),
        ({"snapshots": [(9, 2), (20, 3)]}, "before 10"),
        ({"snapshots": [(10, 2), (20, 2)]}, "not of the log"),
        ({"snapshots": [(20, 3), (10, 2)]}, "must ascend"),
        ({"snapshots": [(10, 2)], "committed_offset": 31}, "beyond"),
    ],
)
def test_a_disk_that_the_shell_should_have_healed_is_refused(changes: dict[str, object], text: str) -> None:
    """A log without the snapshot before it cannot be served, and one that contradicts it must not be."""
    with pytest.raises(AssertionError, match=text):
        ScriptedNode(
            election=election_state(5),
            start=(10, 2),
            epochs=[(3, 10)],
            log_end_offset=30,
            **changes,  # pyright: ignore[reportArgumentType]
        )


@pytest.mark.parametrize(
    ("newest", "restarts"),
    [
        (None, False),
        ((9, 2), False),  # below the log start: removed, never used again
        ((10, 2), False),
        ((10, 1), True),
        ((20, 3), False),
        ((26, 5), False),
        ((26, 3), True),
        ((30, 5), False),
        ((31, 5), True),
    ],
)
def test_an_interrupted_install_is_seen_at_the_next_start(newest: tuple[int, int] | None, restarts: bool) -> None:
    """The log begins again when it does not contain the end of the newest snapshot."""
    log = LogView(
        epochs=[(QuorumEpoch(3), Offset(10)), (QuorumEpoch(5), Offset(25))],
        log_end_offset=Offset(30),
        flushed_offset=Offset(30),
        start=snapshot_id(10, 2),
    )
    assert must_restart_log(None if newest is None else snapshot_id(*newest), log) is restarts


# The shadow of the log.


def test_a_trimmed_log_keeps_its_epochs_from_the_start_on() -> None:
    """The epoch at the log start begins there; the one that ends there is known as the previous epoch."""
    log = LogView(
        epochs=[(QuorumEpoch(1), Offset(0)), (QuorumEpoch(3), Offset(10)), (QuorumEpoch(5), Offset(25))],
        log_end_offset=Offset(30),
        flushed_offset=Offset(30),
    )
    log.truncate_prefix(snapshot_id(12, 3))
    assert log.epochs == ((3, 12), (5, 25))
    assert log.start_epoch == 3
    log.truncate_prefix(snapshot_id(25, 3))
    assert log.epochs == ((5, 25),)
    assert log.start_epoch == 3
    assert log.end_offset_for_epoch(QuorumEpoch(4)) == EpochEnd(epoch=QuorumEpoch(3), end_offset=Offset(25))
    assert log.end_offset_for_epoch(QuorumEpoch(2)) == EpochEnd(epoch=NO_EPOCH, end_offset=Offset(25))
    with pytest.raises(AssertionError, match="truncate to 24"):
        log.truncate_suffix(Offset(24))
    log.truncate_suffix(Offset(25))
    assert log.last_epoch == 3


def test_a_flush_under_way_proves_nothing_after_an_install() -> None:
    """It was about the log that the install replaced."""
    log = LogView(epochs=[(QuorumEpoch(1), Offset(0))], log_end_offset=Offset(4), flushed_offset=Offset(2))
    flush_id = log.begin_flush()
    log.truncate_fully(snapshot_id(20, 3))
    log.append(epoch=QuorumEpoch(3), next_offset=Offset(22))
    assert log.end_flush(flush_id) is False
    assert log.flushed_offset == 20
