# SPDX-License-Identifier: Apache-2.0
"""What `lograft doctor` finds in the facts of a cluster."""

from __future__ import annotations

import pytest
from lograft.cluster_checks import (
    MAX_CLOCK_DIFFERENCE_MS,
    MAX_FETCH_AGE_MS,
    BrokerProbe,
    address_findings,
    clock_findings,
    disk_findings,
    internal_topic_findings,
    quorum_findings,
    version_findings,
)
from lograft.types import (
    BrokerState,
    BrokerStatus,
    FeatureLevelDescription,
    LogDirectories,
    LogDirectory,
    LogDirectoryState,
    QuorumDescription,
    QuorumReplicaDescription,
    TopicSummary,
)


def broker(broker_id: int, state: BrokerState = BrokerState.ACTIVE) -> BrokerStatus:
    return BrokerStatus(
        broker_id=broker_id,
        state=state,
        host="10.0.0.1",
        port=9640 + broker_id,
        rack=None,
        broker_epoch=1,
        incarnation_id=bytes(16),
        log_directory_ids=(),
        offline_log_directory_ids=(),
        min_feature_level=0,
        max_feature_level=1,
        replica_count=0,
        leader_count=0,
        unclean=False,
        last_heard_age_ms=12_000,
        metadata_offset=None,
    )


def probe(
    broker_id: int,
    *,
    answers: int | None = None,
    clock_ms: int | None = 1_000_000,
    version: str = "1",
    **directory: object,
) -> BrokerProbe:
    fields: dict[str, object] = {
        "directory_id": bytes(16),
        "path": "/data",
        "state": LogDirectoryState.FREE,
        "free_bytes": 10**9,
        "replica_count": 0,
        "replicas": (),
        "problem": "",
        **directory,
    }
    return BrokerProbe(
        broker_id=broker_id,
        address=f"10.0.0.1:{9640 + broker_id}",
        asked_ms=999_900,
        answered_ms=1_000_100,
        directories=LogDirectories(
            broker_id=broker_id if answers is None else answers,
            directories=(LogDirectory(**fields),),  # pyright: ignore[reportArgumentType]
            moves=(),
            wall_clock_ms=clock_ms,
            software_version=version,
        ),
    )


def voter(node_id: int, age_ms: int | None) -> QuorumReplicaDescription:
    return QuorumReplicaDescription(
        node_id=node_id,
        directory_id=None,
        address=None,
        log_end_offset=1,
        last_fetch_age_ms=age_ms,
        last_caught_up_age_ms=None,
    )


def quorum(leader_id: int | None, *voters: QuorumReplicaDescription) -> QuorumDescription:
    return QuorumDescription(
        cluster_id="c", leader_id=leader_id, quorum_epoch=1, high_watermark=1, voters=voters, observers=()
    )


def test_brokers_away_or_hidden_or_mixed_up_are_found() -> None:
    """A fenced broker is told once. One that only this machine cannot reach, and one at a wrong address, too."""
    refused = BrokerProbe(broker_id=2, address="10.0.0.1:9642", failure="Connection refused")
    fenced = BrokerProbe(broker_id=3, address="10.0.0.1:9643", failure="Connection refused")
    found = address_findings(
        [broker(1), broker(2), broker(3, BrokerState.FENCED), broker(4)],
        [probe(1), refused, fenced, probe(4, answers=1)],
    )
    assert [each.what for each in found] == [
        "broker 3 is fenced",
        "broker 2 cannot be reached at 10.0.0.1:9642",
        "broker 1 answers at the address of broker 4",
    ]
    assert "12 s ago" in found[0].reason
    assert "--advertise" in found[1].advice
    assert not address_findings([broker(1)], [probe(1)])
    # Without the controller's word only the probes speak.
    (only,) = address_findings([], [probe(1), refused])
    assert "the controller hears" not in only.reason


@pytest.mark.parametrize(("ahead_ms", "is_wrong"), [(0, False), (1_100, False), (1_101, True), (-1_101, True)])
def test_a_clock_may_differ_by_a_second_and_the_uncertainty(ahead_ms: int, is_wrong: bool) -> None:
    """The question took 200 ms, so the difference is known to 100 ms."""
    assert MAX_CLOCK_DIFFERENCE_MS == 1_000
    found = clock_findings([probe(1, clock_ms=1_000_000 + ahead_ms), probe(2, clock_ms=None)])
    assert bool(found) is is_wrong
    if is_wrong:
        assert ("ahead" if ahead_ms > 0 else "behind") in found[0].what


def test_versions_are_notes() -> None:
    """Different versions, another client, a level that could be raised."""
    at_one = FeatureLevelDescription(level=1, controller_max_level=2, brokers={1: (0, 1), 2: (0, 2)})
    assert not version_findings("1", at_one, [probe(1), probe(2)])
    (mixed,) = version_findings("1", at_one, [probe(1), probe(2, version="2")])
    assert (mixed.is_note, mixed.reason) == (True, "1: 1; 2: 2")
    (other,) = version_findings("3", at_one, [probe(1), probe(2)])
    assert "client 3, brokers 1" in other.reason
    assert not version_findings("3", at_one, [probe(1, version="")])
    higher = FeatureLevelDescription(level=1, controller_max_level=3, brokers={1: (0, 2), 2: (0, 3)})
    (level,) = version_findings("1", higher, [probe(1)])
    assert "lograft features upgrade 2" in level.advice


def test_voters_that_do_not_fetch_are_found() -> None:
    """With how many more the quorum can lose."""
    assert not quorum_findings(quorum(1, voter(1, None), voter(2, 0), voter(3, MAX_FETCH_AGE_MS)))
    (away,) = quorum_findings(quorum(1, voter(1, None), voter(2, 0), voter(3, MAX_FETCH_AGE_MS + 1)))
    assert "voter 3" in away.what
    assert "stops when 1 more" in away.reason
    found = quorum_findings(quorum(1, *(voter(each, 0 if each < 5 else None) for each in range(1, 6))))
    assert ["stops when 2 more" in each.reason for each in found] == [True]
    assert "no leader" in quorum_findings(quorum(None, voter(1, None)))[0].what


def test_disks_that_fail_or_fill_are_found() -> None:
    """Failed, tight and full are problems; stray directories are a note."""
    assert not disk_findings([probe(1), BrokerProbe(broker_id=2, address="", failure="x")])
    (failed,) = disk_findings([probe(1, state=LogDirectoryState.FAILED, problem="EIO")])
    assert (failed.reason, failed.is_note) == ("EIO", False)
    (tight,) = disk_findings([probe(1, state=LogDirectoryState.TIGHT, free_bytes=5)])
    assert "5 bytes are free" in tight.reason
    (stray,) = disk_findings([probe(1, unknown_partition_count=2, unknown_partition_bytes=9)])
    assert (stray.is_note, "delete-unknown --broker 1" in stray.advice) == (True, True)


@pytest.mark.parametrize(
    ("factor", "broker_count", "wanted"), [(1, 1, None), (1, 2, "ID,ID,"), (1, 3, "ID,ID,ID,"), (3, 5, None)]
)
def test_internal_topic_that_could_have_more_replicas_is_a_note(
    factor: int, broker_count: int, wanted: str | None
) -> None:
    """It was made when fewer brokers were registered, and keeps its factor until somebody changes it."""
    groups = TopicSummary(
        topic="__groups", topic_id=bytes(16), partition_count=32, replication_factor=factor, is_internal=True
    )
    own = TopicSummary(topic="orders", topic_id=bytes(16), partition_count=1, replication_factor=1)
    found = internal_topic_findings([groups, own], broker_count)
    assert [(each.what, each.is_note) for each in found] == (
        [] if wanted is None else [("internal topic __groups could have more replicas", True)]
    )
    assert all(f"reassign __groups --to {wanted} then" in each.advice for each in found)


def test_staging_topic_has_the_replicas_of_its_topic() -> None:
    """It could not have more of them by itself, so that is no note."""
    staging = TopicSummary(
        topic="__staging-" + "0" * 32, topic_id=bytes(16), partition_count=1, replication_factor=1, is_internal=True
    )
    assert internal_topic_findings([staging], 3) == []
