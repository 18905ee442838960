# SPDX-License-Identifier: Apache-2.0
"""Delivery to one listener: the order of commits with the start and the end of a leadership, in slices."""

from __future__ import annotations

import asyncio

import pytest

from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.image_format import LoadedImage
from metaquorum.metadata.listener import CommittedBatch, joined
from metaquorum.raft.effects import AppendAsLeader, Proposal
from metaquorum.raft.types import Offset, QuorumEpoch
from metaquorum.replica import delivery
from metaquorum.replica.delivery import ListenerFeed
from metaquorum.replica.log_store import LogStore, encode_records
from metaquorum.testing.loopback import RecordingListener
from metaquorum.tests.quorum_cluster import until
from storage.testing.sim_disk import SimDisk


class Story(RecordingListener):
    """Records its calls in order: the offset of a commit, or a text."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[int | str] = []
        self.settled: list[int] = []

    def on_commit(self, batch: CommittedBatch) -> None:
        """Remember the offset."""
        super().on_commit(batch)
        self.told.append(batch.base_offset)

    def settle(self) -> None:
        """Count it."""
        self.settled.append(self.applied_offset)

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
        """Deliver some batches to a listener that leads epoch 1."""
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
    """A caller that waits for the commit sees it, and not an unknown outcome."""
    one = Delivery(3)
    await one.lead(delivered=1)
    one.feed.advance(3)
    one.feed.deactivate()
    one.feed.deactivate()
    assert one.listener.told == [], "a listener is told in turns of the loop"
    await turns()
    assert one.listener.told == [1, 2, "inactive"]


async def test_delivery_under_way_is_ended_before_the_leadership_and_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """A long backlog does not block the loop, and none of it is delivered after the end."""
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
    """No commit is left to deliver first."""
    one = Delivery(2)
    await one.lead(delivered=2)
    one.feed.deactivate()
    assert one.listener.told == ["inactive"]


async def test_next_leadership_of_the_same_node_does_not_overtake_the_end_of_the_last() -> None:
    """The listener hears the end of one leadership before the next one begins, with the commits of each in between."""
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
    """This holds also if the end of an earlier leadership is still to be delivered."""
    one = Delivery(4)
    await one.lead(delivered=1)
    one.feed.advance(3)
    one.feed.deactivate()
    one.feed.activate(2, 3)
    one.feed.deactivate()
    await turns()
    assert one.listener.told == [1, 2, "inactive"]


async def test_snapshot_comes_after_the_end_of_a_leadership_that_had_commits_left() -> None:
    """The log with these commits is gone, and the leader's image has them."""
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
    """As after a crash: the next start delivers the rest."""
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
    """The listener may be wrong from then on; the node stops."""
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


async def test_listener_that_may_lag_is_told_of_several_commits_at_once() -> None:
    """A standby image is written once for many commits; the first of them waits at most for the lag."""
    one = Delivery(6)
    one.listener.may_lag = True
    one.feed.advance(2)
    await turns()
    assert one.listener.told == []
    one.feed.advance(5)
    await until(lambda: one.listener.told, what="the lag to pass")
    assert one.listener.told == [0]
    assert [(batch.next_offset, len(batch.records)) for batch in one.listener.batches] == [(5, 5)]
    one.feed.advance(6)
    await until(lambda: len(one.listener.told) > 1, what="the next one")
    assert one.listener.told == [0, 5]


async def test_leadership_and_whoever_waits_end_the_lag() -> None:
    """No caller that waits for a commit waits for the lag of a standby."""
    one = Delivery(6)
    one.listener.may_lag = True
    one.feed.hurry()
    one.feed.advance(2)
    one.feed.hurry()
    await turns()
    assert one.listener.told == [0]
    one.feed.advance(3)
    one.feed.activate(1, 3)
    await turns()
    assert one.listener.told == [0, 2, "active in 1"]
    one.feed.advance(4)
    await turns()
    one.listener.may_lag = False
    one.feed.deactivate()
    one.feed.advance(5)
    await turns()
    assert one.listener.told == [0, 2, "active in 1", 3, "inactive", 4]
    one.listener.may_lag = True
    one.feed.advance(6)
    one.feed.close()
    await asyncio.sleep(2 * delivery.STANDBY_LAG_MS / 1_000)
    assert one.listener.told[-1] == 4


async def test_listener_settles_a_little_later_once_for_all_commits_until_then() -> None:
    """No caller waits for postponed work, so one call serves several commits."""
    one = Delivery(5)
    await one.lead(delivered=1)
    one.feed.advance(2)
    await turns()
    one.feed.advance(3)
    await turns()
    assert (one.listener.told, one.listener.settled) == ([1, 2], [])
    await asyncio.sleep(2 * delivery.SETTLE_MS / 1_000)
    assert one.listener.settled == [3]
    one.feed.advance(5)
    await turns()
    one.feed.close()
    assert one.listener.settled == [3, 5]
    await asyncio.sleep(2 * delivery.SETTLE_MS / 1_000)
    assert (one.listener.settled, one.failures) == ([3, 5], [])


async def test_listener_that_failed_does_not_settle() -> None:
    """Its state may be in the middle of a batch."""
    one = Delivery(2)
    one.feed.advance(1)
    await turns()
    one.listener.failure = ValueError("a contradiction")
    one.feed.advance(2)
    await turns()
    one.feed.close()
    await asyncio.sleep(2 * delivery.SETTLE_MS / 1_000)
    assert (one.listener.settled, one.failures) == ([], [one.listener.failure])


async def test_listeners_of_a_node_share_what_was_read_and_decoded() -> None:
    """The second one costs no read."""
    one = Delivery(3)
    other = Story()
    second = ListenerFeed(other, one.log, one.failures.append)
    one.log._recent.clear()
    for feed in (one.feed, second):
        feed.advance(3)
    read = one.log.read_bytes
    await turns()
    assert one.listener.told == other.told == [0, 1, 2]
    assert all(mine is theirs for mine, theirs in zip(one.listener.batches, other.batches, strict=True))
    assert 0 < one.log.read_bytes - read < 3 * 200


def batch(base_offset: int, next_offset: int, *, epoch: int = 1, is_control: bool = False) -> CommittedBatch:
    """A batch of as many records as it has offsets."""
    return CommittedBatch(
        base_offset=base_offset,
        next_offset=next_offset,
        quorum_epoch=epoch,
        append_timestamp_ms=base_offset,
        records=[b"%d" % offset for offset in range(base_offset, next_offset)],
        is_control=is_control,
        size_bytes=10,
    )


def test_only_neighbours_of_one_epoch_with_records_of_users_are_joined() -> None:
    """A control batch stays alone, and a batch has one epoch."""
    made = joined([batch(0, 1, is_control=True), batch(1, 3), batch(3, 4), batch(4, 5, epoch=2), batch(5, 6, epoch=2)])
    assert [(one.base_offset, one.next_offset, one.quorum_epoch, one.size_bytes) for one in made] == [
        (0, 1, 1, 10),
        (1, 4, 1, 20),
        (4, 6, 2, 20),
    ]
    assert [one.records for one in made] == [[b"0"], [b"1", b"2", b"3"], [b"4", b"5"]]
    assert joined([batch(0, 1), batch(1, 2, is_control=True), batch(2, 3)])[1].is_control
