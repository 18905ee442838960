# SPDX-License-Identifier: Apache-2.0
"""Which offline replicas are reported, for which state of their partition, and when again."""

from __future__ import annotations

import pytest

from brokerd.controller_client.offline_replicas import OfflineReplicas, ReplicaReport
from metaquorum.metadata.awaited import AwaitedReplica, pack
from metaquorum.metadata.state import PartitionImage

RETRY_MIN_MS, RETRY_MAX_MS = 100, 5_000
T, U = b"t" * 16, b"u" * 16
IN_SYNC = PartitionImage(0, (1, 2, 3), (1, 2, 3), 1, 4, 7)
OUT = PartitionImage(0, (1, 2, 3), (2, 3), 2, 5, 8)


def offline_replicas(*, most: int = 2_000) -> OfflineReplicas:
    """Return the offline replicas of broker 1."""
    return OfflineReplicas(1, most=most, retry_min_ms=RETRY_MIN_MS, retry_max_ms=RETRY_MAX_MS)


class Scene:
    """Broker 1 and its metadata."""

    def __init__(self, *, most: int = 2_000) -> None:
        self.offline = offline_replicas(most=most)
        self.metadata: dict[tuple[bytes, int], PartitionImage] = {(T, 0): IN_SYNC}

    def due(self, now_ms: int) -> list[tuple[bytes, int, int, int]]:
        """Return the reports that are due, as topic, partition and the two epochs."""
        found = self.offline.due(lambda topic_id, partition: self.metadata.get((topic_id, partition)), now_ms)
        return [(each.topic_id, each.partition, each.leader_epoch, each.partition_epoch) for each in found]

    def change(self, state: PartitionImage) -> None:
        """Give the partition another state in the metadata."""
        self.metadata[T, 0] = state
        self.offline.note_change((T, U))


@pytest.fixture
def scene() -> Scene:
    """Partition 0 of topic T is offline, which broker 1 leads."""
    made = Scene()
    made.offline.add(T, 0)
    return made


def test_offline_replica_is_reported_with_the_state_of_the_metadata(scene: Scene) -> None:
    """It is reported at once and only once, although several places may note the failure."""
    assert scene.offline.deadline_ms() == 0
    scene.offline.add(T, 0)
    assert scene.due(1_000) == [(T, 0, 4, 7)]
    assert scene.due(1_000) == []


@pytest.mark.parametrize(
    "state",
    [
        PartitionImage(0, (1, 2, 3), (2,), 2, 5, 8, (3,)),
        PartitionImage(0, (1,), (1,), 1, 4, 7),
        None,
    ],
)
def test_replica_that_nobody_counts_on_is_left_alone(scene: Scene, state: PartitionImage | None) -> None:
    """The replica is out of sync, or the only one, or its partition is gone. There is no deadline."""
    scene.metadata.clear()
    if state is not None:
        scene.metadata[T, 0] = state
    assert scene.due(0) == []
    assert scene.offline.deadline_ms() is None


@pytest.mark.parametrize(
    "state", [PartitionImage(0, (1, 2, 3), (2,), 2, 5, 9, (1,)), PartitionImage(0, (1, 2, 3), (1, 2), 2, 5, 9)]
)
def test_replica_that_comes_back_is_reported_again(scene: Scene, state: PartitionImage) -> None:
    """A leader that did not know of the failure may have brought it back, as eligible or as in sync."""
    scene.due(0)
    scene.change(OUT)
    assert scene.due(1) == []
    scene.change(state)
    assert scene.due(2) == [(T, 0, 5, 9)]


def test_refused_report_is_repeated_after_a_pause_that_doubles(scene: Scene) -> None:
    """The same holds without an answer, because the metadata does not change. The pause has an upper limit."""
    now_ms, pauses = 0, [100, 200, 400, 800, 1_600, 3_200, RETRY_MAX_MS, RETRY_MAX_MS]
    assert scene.due(now_ms) == [(T, 0, 4, 7)]
    for pause_ms in pauses:
        assert scene.offline.deadline_ms() == now_ms + pause_ms
        assert scene.due(now_ms + pause_ms - 1) == []
        now_ms += pause_ms
        assert scene.due(now_ms) == [(T, 0, 4, 7)]


def test_later_state_of_the_partition_ends_the_pause(scene: Scene) -> None:
    """A refusal because of an old epoch costs only the time until the metadata arrives."""
    for now_ms in (0, 100, 300):
        scene.due(now_ms)
    scene.change(PartitionImage(0, (1, 2, 3), (1, 2), 1, 4, 8))
    assert scene.due(301) == [(T, 0, 4, 8)]
    assert scene.offline.deadline_ms() == 301 + RETRY_MIN_MS


def test_state_from_before_the_answer_is_not_acted_on(scene: Scene) -> None:
    """The metadata comes after the answer. Another change of the topic in between repeats nothing."""
    scene.due(0)
    scene.offline.note_accepted(ReplicaReport(topic_id=T, partition=0, leader_epoch=4, partition_epoch=7), 8)
    assert scene.due(10_000) == []
    scene.change(IN_SYNC)
    assert scene.due(10_001) == []
    scene.change(PartitionImage(0, (1, 2, 3), (1, 2), 1, 4, 8))
    assert scene.due(10_002) == [(T, 0, 4, 8)]


def test_replica_that_is_removed_is_offline_no_more(scene: Scene) -> None:
    """If it comes back, it has another log. A late answer is ignored."""
    scene.metadata[T, 1] = IN_SYNC
    scene.offline.add(T, 1)
    scene.offline.discard(T, 0)
    scene.offline.discard(U, 0)
    assert scene.due(0) == [(T, 1, 4, 7)]
    scene.offline.discard(T, 1)
    for partition in (0, 1):
        report = ReplicaReport(topic_id=T, partition=partition, leader_epoch=4, partition_epoch=7)
        scene.offline.note_accepted(report, 8)
    scene.change(IN_SYNC)
    assert scene.due(1) == []
    assert scene.offline.deadline_ms() is None


def test_many_are_reported_in_calls_of_a_bounded_size() -> None:
    """Each is returned once, in the order in which the replicas went offline."""
    scene = Scene(most=2)
    for partition in range(5):
        scene.metadata[T, partition] = IN_SYNC
        scene.offline.add(T, partition)
    assert [[each[1] for each in scene.due(0)] for _ in range(4)] == [[0, 1], [2, 3], [4], []]


def test_found_replica_is_claimed_while_its_directory_is_awaited() -> None:
    """It is claimed with the epochs of the metadata, again after the pause, and no more when the partition awaits no or another one."""
    mine, other = bytes(15) + b"\x01", bytes(15) + b"\x02"
    awaiting = PartitionImage(0, (1,), (1,), None, 4, 6, awaited=pack([AwaitedReplica(1, (mine,))]))
    offline = offline_replicas()
    state = awaiting
    offline.add_found(T, 0, mine)
    offline.add_found(T, 0, mine)
    (claim,) = offline.due(lambda *_: state, 0)
    assert (claim.found_directory_id, claim.leader_epoch, claim.partition_epoch) == (mine, 4, 6)
    assert offline.due(lambda *_: state, 1) == []
    assert len(offline.due(lambda *_: state, RETRY_MIN_MS)) == 1
    state = PartitionImage(0, (1,), (1,), None, 4, 7, awaited=pack([AwaitedReplica(1, (other,))]))
    assert offline.due(lambda *_: state, 10_000) == []
    offline.note_change([T])
    state = PartitionImage(0, (1,), (1,), 1, 5, 8)
    assert offline.due(lambda *_: state, 20_000) == []


def test_found_replica_whose_log_fails_is_offline() -> None:
    """It was found but does not work, so other replicas take over."""
    offline = offline_replicas()
    offline.add_found(T, 0, bytes(16))
    offline.add(T, 0)
    offline.add_found(T, 0, bytes(16))
    (report,) = offline.due(lambda *_: PartitionImage(0, (1, 2), (1, 2), 1, 4, 6), 0)
    assert report.found_directory_id is None
