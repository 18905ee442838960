# SPDX-License-Identifier: Apache-2.0
"""Consumer groups by the admin clients, against a real broker."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta, timezone

import pytest
from lograft import Admin, ConfigResource, Consumer, OffsetAndMetadata, Producer, TopicPartition, aio
from lograft._admin import committed_offsets, groups
from lograft.errors import (
    GroupNotEmptyError,
    GroupNotFoundError,
    InvalidRequestError,
    NoBrokerError,
    UnknownPartitionError,
    UnknownTopicError,
    UsageError,
)
from lograft.types import ConfigSource, GroupState, MemberProgress, OffsetChange, ResetTo
from tests.client.processes import unused_address

MakeTopic = Callable[..., str]

_numbers = itertools.count()
_CONSUME_MS = 60_000


@pytest.fixture
def group() -> str:
    """A group id of its own."""
    return f"group-{next(_numbers)}"


@pytest.fixture
def orders(bootstrap: str, make_topic: MakeTopic) -> str:
    """A topic with 10 records in each of 3 partitions, one each second from 1,000,000 ms on."""
    topic = make_topic(partition_count=3)
    with Producer(bootstrap) as producer:
        for number in range(30):
            producer.send(topic, b"v", partition=number % 3, timestamp_ms=1_000_000 + number // 3 * 1_000)
        producer.flush()
    return topic


@pytest.fixture
def member(bootstrap: str, group: str, orders: str) -> Iterator[Consumer]:
    """A consumer that holds all partitions and has committed what it read."""
    with Consumer(bootstrap, group=group, instance_id="first") as consumer:
        consumer.subscribe([orders])
        assert sum(len(consumer.consume(10, timeout_ms=_CONSUME_MS)) for _ in range(3)) == 30
        consumer.commit()
        yield consumer
        consumer.unsubscribe()


def offsets_of(admin: Admin, group: str) -> dict[int, int]:
    """Return the committed offsets of a group with one topic, by partition."""
    (found,) = admin.group_offsets([group], with_lag=False)
    assert found.error is None
    return {each.partition: each.committed.offset for each in found.offsets if each.committed is not None}


def test_group_with_a_member_is_listed_and_described(admin: Admin, group: str, orders: str, member: Consumer) -> None:
    """The list filters by state. The description says who reads what; an unknown group does not hide it."""
    assert [(each.group, each.state, each.member_count, each.coordinator_id) for each in _listed(admin, group)] == [
        (group, GroupState.STABLE, 1, 1)
    ]
    assert _listed(admin, group, [GroupState.EMPTY]) == []
    assert len(_listed(admin, group, [GroupState.EMPTY, GroupState.STABLE])) == 1
    assert admin.list_groups([]).groups == ()
    missing, found = admin.describe_groups(["no such group", group])
    assert isinstance(missing.error, GroupNotFoundError)
    assert (found.error, found.state, found.assignor, found.offset_count) == (None, GroupState.STABLE, "uniform", 3)
    assert found.epoch == found.target_epoch >= 1
    assert found.empty_since_ms is None
    (one,) = found.members
    everything = tuple(TopicPartition(orders, number) for number in range(3))
    assert (one.member_id, one.instance_id, one.topics, one.pattern) == (
        member.membership.member_id,
        "first",
        (orders,),
        "",
    )
    assert (one.assigned, one.target, one.revoking, one.progress) == (everything, everything, (), MemberProgress.STABLE)
    assert (one.host, one.is_streaming, one.epoch) == ("127.0.0.1", True, found.epoch)
    assert one.client_id


def _listed(admin: Admin, group: str, states: list[GroupState] | None = None) -> list[object]:
    found = admin.list_groups(states)
    assert found.missing_coordinator_ids == ()
    return [each for each in found.groups if each.group == group]


@pytest.mark.usefixtures("member")
def test_group_with_a_member_keeps_its_offsets(admin: Admin, group: str, orders: str) -> None:
    """Setting, resetting, deleting and deletion of the group are refused with a typed error; a dry run is not."""
    before = offsets_of(admin, group)
    with pytest.raises(GroupNotEmptyError, match="1 member"):
        admin.alter_group_offsets(group, {TopicPartition(orders, 0): 0})
    with pytest.raises(GroupNotEmptyError):
        admin.reset_group_offsets(group, ResetTo.earliest())
    assert {type(each.error) for each in admin.delete_group_offsets(group, [orders])} == {GroupNotEmptyError}
    deleted, missing = admin.delete_groups([group, "no such group"])
    assert (type(deleted.error), type(missing.error)) == (GroupNotEmptyError, GroupNotFoundError)
    plan = admin.reset_group_offsets(group, ResetTo.earliest(), validate_only=True)
    assert [(each.before, each.after, each.error) for each in plan] == [(10, 0, None)] * 3
    assert offsets_of(admin, group) == before == {0: 10, 1: 10, 2: 10}


def test_offsets_are_set_with_metadata_and_show_the_lag(admin: Admin, group: str, orders: str) -> None:
    """A refused partition does not stop the others, and makes no offset."""
    wanted = {
        TopicPartition(orders, 0): 4,
        TopicPartition(orders, 1): OffsetAndMetadata(7, "checkpoint 12", leader_epoch=0),
        TopicPartition(orders, 9): 1,
        TopicPartition("no-such-topic", 0): 1,
    }
    results = admin.alter_group_offsets(group, wanted)
    assert [(each.after, type(each.error)) for each in results] == [
        (4, type(None)),
        (7, type(None)),
        (None, UnknownPartitionError),
        (None, UnknownTopicError),
    ]
    (found,) = admin.group_offsets([group])
    assert [
        (each.topic, each.partition, each.log_start_offset, each.end_offset, each.lag) for each in found.offsets
    ] == [
        (orders, 0, 0, 10, 6),
        (orders, 1, 0, 10, 3),
    ]
    committed = found.offsets[1].committed
    assert committed is not None
    assert (committed.metadata, committed.leader_epoch) == ("checkpoint 12", 0)
    assert committed.commit_ms > 1_700_000_000_000


def test_offsets_are_looked_up_by_topic_and_partition(admin: Admin, group: str, orders: str) -> None:
    """A topic stands for its partitions. Without an offset the lag is everything; what does not exist has its own error."""
    admin.alter_group_offsets(group, {TopicPartition(orders, 2): 1})
    (found,) = admin.group_offsets([group], [orders, TopicPartition("no-such-topic", 0), TopicPartition(orders, 3)])
    assert [(each.partition, each.committed is None, each.lag) for each in found.offsets if each.topic == orders] == [
        (0, True, 10),
        (1, True, 10),
        (2, False, 9),
        (3, True, None),
    ]
    errors = {(each.topic, each.partition): type(each.error) for each in found.offsets if each.error}
    assert errors == {("no-such-topic", 0): UnknownTopicError, (orders, 3): UnknownPartitionError}
    nothing, one = admin.group_offsets(["no such group", group], with_lag=False)
    assert (nothing.offsets, nothing.error) == ((), None)
    assert [(each.partition, each.lag, each.end_offset) for each in one.offsets] == [(2, None, None)]
    with pytest.raises(UnknownTopicError):
        admin.group_offsets([group], ["no-such-topic"])


def test_deleted_records_are_no_lag(admin: Admin, group: str, orders: str) -> None:
    """What can no longer be read is not behind, and a reset to the earliest begins after it."""
    where = TopicPartition(orders, 0)
    admin.alter_group_offsets(group, {where: 2})
    admin.delete_records({where: 6})
    (found,) = admin.group_offsets([group])
    assert [(each.log_start_offset, each.lag) for each in found.offsets] == [(6, 4)]
    (moved,) = admin.reset_group_offsets(group, ResetTo.offset(0))
    assert (moved.before, moved.after) == (2, 6)


@pytest.mark.parametrize(
    ("to", "after"),
    [
        (ResetTo.earliest(), 0),
        (ResetTo.latest(), 10),
        (ResetTo.offset(7), 7),
        (ResetTo.offset(2**40), 10),
        (ResetTo.shift(3), 8),
        (ResetTo.shift(-2), 3),
        (ResetTo.shift(-100), 0),
        (ResetTo.shift(100), 10),
        (ResetTo.time(1_003_500), 4),
        (ResetTo.time(datetime.fromtimestamp(1_003, tz=UTC)), 3),
        (ResetTo.time(2**40), 10),
        (ResetTo.ago(timedelta(milliseconds=1)), 10),
        (ResetTo.ago(timedelta(days=365 * 100)), 0),
    ],
    ids=str,
)
def test_reset(admin: Admin, group: str, orders: str, to: ResetTo, after: int) -> None:
    """Each place, within what can be read. A dry run says the same and changes nothing."""
    admin.alter_group_offsets(group, {TopicPartition(orders, 1): 5})
    change = OffsetChange(topic=orders, partition=1, before=5, after=after)
    assert admin.reset_group_offsets(group, to, validate_only=True) == [change]
    assert offsets_of(admin, group) == {1: 5}
    assert admin.reset_group_offsets(group, to) == [change]
    assert offsets_of(admin, group) == {1: after}


def test_reset_of_named_partitions(admin: Admin, group: str, orders: str) -> None:
    """A group that does not exist comes into being; what has no offset is not shifted; given offsets move only their partitions."""
    with pytest.raises(UsageError, match="name the topics"):
        admin.reset_group_offsets(group, ResetTo.earliest())
    nothing = admin.reset_group_offsets(group, ResetTo.shift(1), [TopicPartition(orders, 0)])
    assert [(each.before, each.after, each.error) for each in nothing] == [(None, None, None)]
    made = admin.reset_group_offsets(group, ResetTo.latest(), [orders, TopicPartition(orders, 7)])
    assert [(each.before, each.after, type(each.error)) for each in made] == [
        *[(None, 10, type(None))] * 3,
        (None, None, UnknownPartitionError),
    ]
    assert [each.group for each in _listed(admin, group)] == [group]  # type: ignore[attr-defined]
    moved = admin.reset_group_offsets(group, {TopicPartition(orders, 2): 1, TopicPartition(orders, 0): 99})
    assert [(each.partition, each.before, each.after) for each in moved] == [(0, 10, 10), (2, 10, 1)]
    assert offsets_of(admin, group) == {0: 10, 1: 10, 2: 1}


def test_consumer_goes_on_where_a_reset_put_it(bootstrap: str, admin: Admin, group: str, orders: str) -> None:
    """The purpose of it all."""
    admin.reset_group_offsets(group, ResetTo.time(1_008_000), [orders])
    with Consumer(bootstrap, group=group) as consumer:
        consumer.subscribe([orders])
        records = consumer.consume(6, timeout_ms=_CONSUME_MS)
    assert sorted((each.partition, each.offset) for each in records) == [
        (number, offset) for number in range(3) for offset in (8, 9)
    ]


def test_many_offsets_go_in_several_requests(
    admin: Admin, group: str, orders: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pages are limited in number and in bytes, and nothing is lost between them."""
    monkeypatch.setattr(committed_offsets, "PAGE_PARTITIONS", 2)
    everything = {TopicPartition(orders, number): OffsetAndMetadata(number, "x" * 400) for number in range(3)}
    assert all(each.error is None for each in admin.alter_group_offsets(group, everything))
    monkeypatch.setattr(committed_offsets, "PAGE_BYTES", 500)
    assert all(each.error is None for each in admin.alter_group_offsets(group, everything))
    (found,) = admin.group_offsets([group], [orders])
    assert [each.committed and each.committed.offset for each in found.offsets] == [0, 1, 2]
    assert [each.error for each in admin.delete_group_offsets(group, [orders])] == [None] * 3
    assert offsets_of(admin, group) == {}


def test_list_goes_over_pages(admin: Admin, group: str, orders: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every group comes once, in the order of the ids."""
    monkeypatch.setattr(groups, "PAGE_GROUPS", 2)
    names = [f"{group}-{number}" for number in range(5)]
    for name in names:
        admin.alter_group_offsets(name, {TopicPartition(orders, 0): 1})
    listed = [each.group for each in admin.list_groups().groups]
    assert listed == sorted(set(listed))
    assert [each for each in listed if each.startswith(f"{group}-")] == names
    assert [each.error for each in admin.delete_groups(names)] == [None] * 5
    assert not [each for each in admin.list_groups().groups if each.group in names]


def test_configs_of_a_group(admin: Admin, group: str) -> None:
    """They are set, described with their source, and removed; what contradicts is refused."""
    resource = ConfigResource.group(group)
    admin.alter_configs({resource: {"group.offsets.retention.ms": "-1"}})
    found = admin.describe_configs([resource])[resource]["group.offsets.retention.ms"]
    assert (found.value, found.source, found.default) == ("-1", ConfigSource.GROUP, "604800000")
    assert found.meaning
    with pytest.raises(InvalidRequestError, match="a third"):
        admin.alter_configs({resource: {"group.session.timeout.ms": "6000"}})
    with pytest.raises(InvalidRequestError, match="stays compact"):
        admin.alter_configs({ConfigResource.topic("__groups"): {"cleanup.policy": "delete"}})
    admin.alter_configs({resource: {"group.offsets.retention.ms": None}})
    assert admin.describe_configs([resource])[resource]["group.offsets.retention.ms"].source is ConfigSource.DEFAULT


async def test_asyncio_client_has_the_same_calls(bootstrap: str, group: str, orders: str) -> None:
    """From no offset to a deleted group."""
    async with aio.Admin(bootstrap) as admin:
        (result,) = await admin.alter_group_offsets(group, {TopicPartition(orders, 0): 1})
        assert result.error is None
        (moved,) = await admin.reset_group_offsets(group, ResetTo.latest())
        assert (moved.before, moved.after) == (1, 10)
        ((found,), listed, (described,)) = (
            await admin.group_offsets([group]),
            await admin.list_groups([GroupState.EMPTY]),
            await admin.describe_groups([group]),
        )
        assert [each.lag for each in found.offsets] == [0]
        assert group in [each.group for each in listed.groups]
        assert described.empty_since_ms is not None
        assert [each.error for each in await admin.delete_group_offsets(group, [orders])] == [None] * 3
        assert [each.error for each in await admin.delete_groups([group])] == [None]


@pytest.mark.parametrize(
    "call",
    [
        lambda admin: admin.describe_groups("billing"),
        lambda admin: admin.describe_groups([""]),
        lambda admin: admin.delete_groups(["x" * 256]),
        lambda admin: admin.group_offsets([7]),
        lambda admin: admin.group_offsets(["g"], "orders"),
        lambda admin: admin.group_offsets(["g"], [("orders", -1)]),
        lambda admin: admin.group_offsets(["g"], [("orders", True)]),
        lambda admin: admin.alter_group_offsets("g", {TopicPartition("orders", 0): -1}),
        lambda admin: admin.alter_group_offsets("g", {TopicPartition("orders", 0): None}),
        lambda admin: admin.reset_group_offsets("g", {TopicPartition("orders", 0): "1"}),
        lambda admin: admin.delete_group_offsets("", ["orders"]),
        lambda admin: admin.list_groups([GroupState.UNKNOWN]),
    ],
)
def test_wrong_use_is_found_here(admin: Admin, call: Callable[[Admin], object]) -> None:
    """Before anything is sent."""
    with pytest.raises(UsageError):
        call(admin)


@pytest.mark.parametrize(
    "make",
    [
        lambda: ResetTo.offset(-1),
        lambda: ResetTo.ago(timedelta(seconds=-1)),
        lambda: ResetTo.time(datetime(2026, 1, 1)),  # noqa: DTZ001
        lambda: ResetTo.time(datetime(1969, 1, 1, tzinfo=timezone.utc)),  # noqa: UP017
    ],
)
def test_places_that_make_no_sense(make: Callable[[], ResetTo]) -> None:
    """A time needs a zone, and nothing is negative but a shift."""
    with pytest.raises(ValueError, match=r"not|no time zone"):
        make()


def test_nobody_there_fails_the_whole_call_in_its_time() -> None:
    """Not one failure for each group."""
    with Admin(unused_address(), request_timeout_ms=500) as admin:
        started_s = time.monotonic()
        with pytest.raises(NoBrokerError):
            admin.describe_groups([f"g{number}" for number in range(100)])
        assert time.monotonic() - started_s < 10
