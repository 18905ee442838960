# SPDX-License-Identifier: Apache-2.0
"""Delivery to one listener: the order of commits with the start and the end of a leadership, in slices."""

from __future__ import annotations

import asyncio

import pytest

from metaquorum.controller.image import MetadataImage
from metaquorum.raft.effects import AppendAsLeader, Proposal
from metaquorum.raft.types import Offset, QuorumEpoch
from metaquorum.runtime import delivery
from metaquorum.runtime.delivery import ListenerFeed
from metaquorum.runtime.image_store import LoadedImage
from metaquorum.runtime.listener import CommittedBatch
from metaquorum.runtime.log_store import LogStore, encode_records
from metaquorum.testing.loopback import RecordingListener
from storage.testing.sim_disk import SimDisk


class Story(RecordingListener):
    """Remembers in which order it was told of what: offsets of commits, and words."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[int | str] = []

    def on_commit(self, batch: CommittedBatch) -> None:
        """Remember the offset."""
        super().on_commit(batch)
        self.told.append(batch.base_offset)

    def on_snapshot(self, loaded: LoadedImage) -> None:
        """Take it; a leader never does."""
        assert self.active_epoch is None, "a snapshot for the active controller"
        self.applied_offset = loaded.image.metadata_offset
        self.told.append("snapshot")

    def on_activate(self, quorum_epoch: int) -> None:
        """Remember the epoch."""
        super().on_activate(quorum_epoch)
        self.told.append(f"active in {quorum_epoch}")

    def on_deactivate(self) -> None:
        """Remember the end."""
        super().on_deactivate()
        self.told.append("inactive")


class Delivery:
    """A feed of a log with some batches of one record, and its listener."""

    def __init__(self, batch_count: int) -> None:
        disk = SimDisk()
        disk.make_directory("/data")
        disk.sync_directory("/")
        self.log = LogStore.open(disk, "/data/log")
        self.append(batch_count)
        self.listener = Story()
        self.failures: list[BaseException] = []
        self.feed = ListenerFeed(self.listener, self.log, self.failures.append)

    def append(self, batch_count: int) -> None:
        """Append batches of one record each."""
        for offset in range(self.log.end_offset, self.log.end_offset + batch_count):
            effect = AppendAsLeader(
                base_offset=Offset(offset),
                next_offset=Offset(offset + 1),
                quorum_epoch=QuorumEpoch(1),
                content=Proposal(proposal_id=offset),
            )
            self.log.append_as_leader(effect, encode_records([b"record"]))

    async def lead(self, *, delivered: int) -> None:
        """Deliver so many batches to a listener that leads epoch 1."""
        self.feed.advance(delivered)
        self.feed.activate(1, delivered)
        await turns()
        assert self.listener.told == [*range(delivered), "active in 1"]
        self.listener.told.clear()


async def turns(count: int = 20) -> None:
    """Let the loop turn."""
    for _ in range(count):
        await asyncio.sleep(0)


async def test_what_was_committed_in_the_step_that_ended_the_leadership_is_delivered_first() -> None:
    """Who waits for the commit learns of it, and not of an unknown outcome."""
    one = Delivery(3)
    await one.lead(delivered=1)
    one.feed.advance(3)
    one.feed.deactivate()
    one.feed.deactivate()
    assert one.listener.told == [], "a listener is told in turns of the loop"
    await turns()
    assert one.listener.told == [1, 2, "inactive"]


async def test_delivery_under_way_is_ended_before_the_leadership_and_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """A long backlog does not hold up the loop, and nothing of it comes after the end."""
    monkeypatch.setattr(delivery, "SLICE_BYTES", 1)
    one = Delivery(8)
    await one.lead(delivered=2)
    one.feed.advance(6)
    await turns(2)
    begun = list(one.listener.told)
    assert 0 < len(begun) < 4
    one.feed.deactivate()
    one.feed.advance(8)
    await turns(1)
    assert len(one.listener.told) <= len(begun) + 1, "one slice a turn"
    await turns()
    assert one.listener.told == [2, 3, 4, 5, "inactive", 6, 7]


async def test_deactivation_with_everything_delivered_is_told_at_once() -> None:
    """Nobody waits for anything then."""
    one = Delivery(2)
    await one.lead(delivered=2)
    one.feed.deactivate()
    assert one.listener.told == ["inactive"]


async def test_next_leadership_of_the_same_node_does_not_overtake_the_end_of_the_last() -> None:
    """A listener that leads is not told to lead, and each leadership has its commits between its own two words."""
    one = Delivery(6)
    await one.lead(delivered=1)
    one.feed.advance(3)
    one.feed.deactivate()
    one.feed.activate(2, 4)
    one.feed.advance(6)
    await turns()
    assert one.listener.told == [1, 2, "inactive", 3, 4, 5, "active in 2"]
    assert one.failures == []


async def test_leadership_that_ends_before_it_was_told_is_never_told() -> None:
    """Also behind one whose end is still to be told."""
    one = Delivery(4)
    await one.lead(delivered=1)
    one.feed.advance(3)
    one.feed.deactivate()
    one.feed.activate(2, 3)
    one.feed.deactivate()
    await turns()
    assert one.listener.told == [1, 2, "inactive"]


async def test_snapshot_comes_after_the_end_of_a_leadership_that_had_commits_left() -> None:
    """The log that they were in is gone, and the image of the leader has them."""
    one = Delivery(4)
    await one.lead(delivered=1)
    one.feed.advance(3)
    one.feed.deactivate()
    image = MetadataImage()
    image.advance(9)
    one.feed.install(LoadedImage(image=image, quorum_epoch=2, voters=None))
    assert one.listener.told == ["inactive", "snapshot"]
    await turns()
    assert one.listener.told == ["inactive", "snapshot"]


async def test_orderly_stop_delivers_what_the_last_leadership_committed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop may have no turn left for it."""
    monkeypatch.setattr(delivery, "SLICE_BYTES", 1)
    one = Delivery(5)
    await one.lead(delivered=1)
    one.feed.advance(4)
    one.feed.deactivate()
    one.feed.finish_leadership()
    one.feed.close()
    assert one.listener.told == [1, 2, 3, "inactive"]


async def test_closed_feed_tells_the_end_once_and_nothing_more() -> None:
    """As after a crash: what is left is delivered by the next life."""
    one = Delivery(4)
    await one.lead(delivered=1)
    one.feed.advance(3)
    one.feed.deactivate()
    one.feed.close()
    one.feed.deactivate()
    one.feed.finish_leadership()
    await turns()
    assert one.listener.told == ["inactive"]


async def test_listener_that_fails_in_its_last_commit_is_told_nothing_more() -> None:
    """It is wrong from there on; the node stops."""
    one = Delivery(3)
    await one.lead(delivered=1)
    one.listener.failure = RuntimeError("cannot apply")
    one.feed.advance(3)
    one.feed.deactivate()
    one.feed.finish_leadership()
    await turns()
    one.feed.close()
    assert one.listener.told == []
    assert [str(error) for error in one.failures] == ["cannot apply"]
