# SPDX-License-Identifier: Apache-2.0
"""GroupService over unary calls, with a real broker: members, offsets, administration, reserved names."""

from __future__ import annotations

import asyncio
from pathlib import Path
from unittest import mock

import pytest
from lograft.v1 import admin_pb2, errors_pb2, log_pb2
from lograft.v1 import group_pb2 as pb
from lograft.wire.codes import ErrorCode

from brokerd.tests.api.group_clients import (
    Member,
    coordinator_of,
    disjoint,
    fetch_offsets,
    make_topic,
    served,
    settle,
)
from brokerd.tests.support import WAIT_S, ProduceStream, connected, refusal, running_broker


async def test_members_share_commit_and_leave(tmp_path: Path) -> None:
    """Two members share four partitions, commit only what they hold, and one takes over what the other leaves."""
    async with running_broker(tmp_path) as server, connected(server) as client:
        topic_id = await make_topic(client, "t", 4)
        found = await coordinator_of(client, "g")
        assert (found.broker_id, found.host, found.port) == (1, server.address.host, server.address.port)
        first, second = Member("g", "m1", ["t"]), Member("g", "m2", ["t"])
        await settle(client, [first], [4])
        assert await fetch_offsets(client, "g", {topic_id: (0, 3)}) == {(topic_id, 0): None, (topic_id, 3): None}
        committed = await client.groups.CommitOffsets(pb.CommitOffsetsRequest(commitment=first.commitment(100)))
        assert [each.HasField("error") for each in committed.outcomes] == [False] * 4
        await settle(client, [first, second], [2, 2])
        assert disjoint([first, second])
        assert await fetch_offsets(client, "g") == {(topic_id, number): 100 + number for number in range(4)}

        # The former owner's epoch is too old for what it has given up.
        theirs = pb.OffsetToCommit(topic_id=topic_id, partition=second.owned[topic_id][0], offset=7)
        request = first.commitment(200)
        request.offsets.append(theirs)
        committed = await client.groups.CommitOffsets(pb.CommitOffsetsRequest(commitment=request))
        assert [each.error.code for each in committed.outcomes] == [0, 0, errors_pb2.ERROR_CODE_STALE_MEMBER_EPOCH]

        described = await client.groups.DescribeGroup(pb.DescribeGroupRequest(group_id="g"))
        assert described.state == pb.GROUP_STATE_STABLE
        assert [each.member_id for each in described.members] == ["m1", "m2"]
        assert described.members[0].assigned.topics[0].topic == "t"
        assert described.members[0].client_host == "127.0.0.1"
        assert not described.members[0].is_streaming
        assert described.offset_count == 4

        left = await client.groups.Heartbeat(pb.HeartbeatRequest(beat=first.leave()))
        assert left.state.member_epoch == 0
        await settle(client, [second], [4])
        status = await refusal(client.groups.Heartbeat(pb.HeartbeatRequest(beat=first.beat())))
        assert status.code is ErrorCode.UNKNOWN_MEMBER


async def test_bad_beats_are_refused(tmp_path: Path) -> None:
    """What is wrong with the form or the content of a beat has its own code."""
    async with running_broker(tmp_path) as server, connected(server) as client:
        await make_topic(client, "t", 1)
        beats = {
            ErrorCode.INVALID_REQUEST: [
                pb.MemberBeat(group_id="", member_id="m", subscription=pb.GroupSubscription(topics=["t"])),
                pb.MemberBeat(group_id="g" * 256, member_id="m", subscription=pb.GroupSubscription(topics=["t"])),
                pb.MemberBeat(group_id="g", member_id="m"),
                pb.MemberBeat(group_id="g", member_id="m", member_epoch=-3),
                pb.MemberBeat(group_id="g", member_id="m", subscription=pb.GroupSubscription(topics=["t", "s"])),
                pb.MemberBeat(group_id="g", member_id="m", beat_number=-1),
            ],
            ErrorCode.INVALID_PATTERN: [
                pb.MemberBeat(group_id="g", member_id="m", subscription=pb.GroupSubscription(pattern="("))
            ],
            ErrorCode.UNKNOWN_ASSIGNOR: [
                pb.MemberBeat(
                    group_id="g", member_id="m", assignor="best", subscription=pb.GroupSubscription(topics=["t"])
                )
            ],
            ErrorCode.UNKNOWN_MEMBER: [pb.MemberBeat(group_id="g", member_id="m", member_epoch=5)],
        }
        await served(client.groups.FetchOffsets, pb.FetchOffsetsRequest(group_id="g"))
        for code, wrong in beats.items():
            for beat in wrong:
                status = await refusal(client.groups.Heartbeat(pb.HeartbeatRequest(beat=beat), timeout=WAIT_S))
                assert status.code is code, beat
        status = await refusal(client.groups.FindCoordinator(pb.FindCoordinatorRequest()))
        assert status.code is ErrorCode.INVALID_REQUEST
        status = await refusal(client.groups.FetchOffsets(pb.FetchOffsetsRequest(cluster_id="other", group_id="g")))
        assert status.code is ErrorCode.WRONG_CLUSTER


async def test_pattern_follows_topics_and_never_matches_internal_ones(tmp_path: Path) -> None:
    """Topics that are created, grown and deleted reach the members; `__groups` never does, although `.*` matches its name."""
    async with running_broker(tmp_path) as server, connected(server) as client:
        first_id = await make_topic(client, "orders", 1)
        member = Member("g", "m", [])
        beat = member.beat(subscription=pb.GroupSubscription(pattern=".*"))
        member.hear((await served(client.groups.Heartbeat, pb.HeartbeatRequest(beat=beat))).state)
        await settle(client, [member], [1])
        second_id = await make_topic(client, "payments", 2)
        await settle(client, [member], [3])
        assert member.owned == {first_id: (0,), second_id: (0, 1)}
        await client.admin.CreatePartitions(admin_pb2.CreatePartitionsRequest(topic="orders", partition_count=2))
        await settle(client, [member], [4])
        await client.admin.DeleteTopic(admin_pb2.DeleteTopicRequest(topic="payments"))
        await settle(client, [member], [2])
        assert member.owned == {first_id: (0, 1)}


async def test_administration_of_groups(tmp_path: Path) -> None:
    """List in pages and by state, describe, alter, delete; what members use is protected."""
    async with running_broker(tmp_path) as server, connected(server) as client:
        topic_id = await make_topic(client, "t", 2)
        offsets = [pb.OffsetToCommit(topic_id=topic_id, partition=number, offset=5, metadata="x") for number in (0, 1)]
        names = [f"group-{number:02}" for number in range(8)]
        for name in names:
            altered = await served(client.groups.AlterOffsets, pb.AlterOffsetsRequest(group_id=name, offsets=offsets))
            assert [each.HasField("error") for each in altered.outcomes] == [False, False]
        member = Member("group-00", "m", ["t"])
        await settle(client, [member], [2])

        listed = await client.groups.ListGroups(pb.ListGroupsRequest())
        assert [each.group_id for each in listed.groups] == names
        assert {each.coordinator_id for each in listed.groups} == {1}
        assert not listed.has_more
        assert not listed.missing_coordinator_ids
        pages: list[str] = []
        while True:
            page = await client.groups.ListGroups(
                pb.ListGroupsRequest(limit=3, after_group_id=pages[-1] if pages else "")
            )
            pages += [each.group_id for each in page.groups]
            assert len(page.groups) <= 3
            if not page.has_more:
                break
        assert pages == names
        empty = await client.groups.ListGroups(pb.ListGroupsRequest(states=[pb.GROUP_STATE_EMPTY], is_local=True))
        assert [each.group_id for each in empty.groups] == names[1:]

        status = await refusal(client.groups.DeleteGroup(pb.DeleteGroupRequest(group_id="group-00")))
        assert status.code is ErrorCode.GROUP_NOT_EMPTY
        status = await refusal(client.groups.AlterOffsets(pb.AlterOffsetsRequest(group_id="group-00", offsets=offsets)))
        assert status.code is ErrorCode.GROUP_NOT_EMPTY
        gone = [pb.PartitionsOfTopic(topic_id=topic_id, partitions=[1])]
        subscribed = await client.groups.DeleteOffsets(pb.DeleteOffsetsRequest(group_id="group-00", topics=gone))
        assert subscribed.outcomes[0].error.code == errors_pb2.ERROR_CODE_GROUP_SUBSCRIBED
        deleted = await client.groups.DeleteOffsets(pb.DeleteOffsetsRequest(group_id="group-01", topics=gone))
        assert not deleted.outcomes[0].HasField("error")
        assert await fetch_offsets(client, "group-01") == {(topic_id, 0): 5}
        await client.groups.DeleteGroup(pb.DeleteGroupRequest(group_id="group-01"))
        for call in (
            client.groups.DeleteGroup(pb.DeleteGroupRequest(group_id="group-01")),
            client.groups.DescribeGroup(pb.DescribeGroupRequest(group_id="group-01")),
        ):
            assert (await refusal(call)).code is ErrorCode.GROUP_NOT_FOUND


async def test_offsets_of_a_deleted_topic_are_gone(tmp_path: Path) -> None:
    """A topic that is recreated under the name has no offsets of the old one."""
    async with running_broker(tmp_path) as server, connected(server) as client:
        topic_id = await make_topic(client, "t", 1)
        offsets = [pb.OffsetToCommit(topic_id=topic_id, partition=0, offset=5)]
        await served(client.groups.AlterOffsets, pb.AlterOffsetsRequest(group_id="g", offsets=offsets))
        await client.admin.DeleteTopic(admin_pb2.DeleteTopicRequest(topic="t"))
        new_id = await make_topic(client, "t", 1)
        async with asyncio.timeout(WAIT_S):
            while await fetch_offsets(client, "g"):  # noqa: ASYNC110  # a tick tells nobody
                await asyncio.sleep(0.02)
        assert await fetch_offsets(client, "g", {new_id: (0,)}) == {(new_id, 0): None}


async def test_internal_topic_is_reserved_and_hidden(tmp_path: Path) -> None:
    """Clients cannot create, grow, delete or write what begins with `__`, and see it in a list only if they ask."""
    async with running_broker(tmp_path) as server, connected(server) as client:
        await coordinator_of(client, "g")
        topic = server.observer.image.topic_by_name("__groups")
        assert topic is not None
        assert len(topic.partitions) == 32
        create = admin_pb2.CreateTopicRequest(topic="__mine")
        grow = admin_pb2.CreatePartitionsRequest(topic="__groups", partition_count=64)
        for call in (
            client.admin.CreateTopic(create),
            client.admin.CreatePartitions(grow),
            client.admin.DeleteTopic(admin_pb2.DeleteTopicRequest(topic="__groups")),
            client.append("__groups", [b"x"], partition=0),
        ):
            assert (await refusal(call)).code is ErrorCode.INVALID_TOPIC_NAME
        many = await client.admin.CreateTopics(
            admin_pb2.CreateTopicsRequest(topics=[admin_pb2.NewTopic(topic="__mine"), admin_pb2.NewTopic(topic="mine")])
        )
        codes = [each.error.code for each in many.results]
        assert codes == [errors_pb2.ERROR_CODE_INVALID_TOPIC_NAME, 0]
        records = log_pb2.DeleteRecordsRequest(
            partitions=[log_pb2.RecordsBefore(topic="__groups", partition=0, before_offset=-1)]
        )
        deleted = await client.log.DeleteRecords(records)
        assert deleted.results[0].error.code == errors_pb2.ERROR_CODE_INVALID_TOPIC_NAME
        stream = ProduceStream(client)
        await stream.open(("__groups", 0))
        assert (await stream.route_end()).error.code == errors_pb2.ERROR_CODE_INVALID_TOPIC_NAME
        stream.call.cancel()

        listed = await client.admin.ListTopics(admin_pb2.ListTopicsRequest())
        assert [each.topic for each in listed.topics] == ["mine"]
        listed = await client.admin.ListTopics(admin_pb2.ListTopicsRequest(include_internal=True))
        assert [(each.topic, each.is_internal) for each in listed.topics] == [("__groups", True), ("mine", False)]


async def test_restarted_broker_has_the_same_group(tmp_path: Path) -> None:
    """Members, epochs, assignments and offsets are in the log."""
    member = Member("g", "m", ["t"])
    async with running_broker(tmp_path) as server, connected(server) as client:
        topic_id = await make_topic(client, "t", 2)
        await settle(client, [member], [2])
        await client.groups.CommitOffsets(pb.CommitOffsetsRequest(commitment=member.commitment(10)))
    epoch = member.epoch
    async with running_broker(tmp_path) as server, connected(server) as client:
        await member.call(client)
        assert (member.epoch, member.owned) == (epoch, {topic_id: (0, 1)})
        assert await fetch_offsets(client, "g") == {(topic_id, 0): 10, (topic_id, 1): 11}


@pytest.mark.parametrize("group_id", ["g", "gruppe-ü"])
async def test_static_member_is_replaced_at_once_after_it_said_that_it_will_be_back(
    tmp_path: Path, group_id: str
) -> None:
    """The new process gets the assignment, before that INSTANCE_IN_USE, and the old one is fenced."""
    async with running_broker(tmp_path) as server, connected(server) as client:
        topic_id = await make_topic(client, "t", 2)
        old = Member(group_id, "m1", ["t"], instance_id="i")
        await settle(client, [old], [2])
        new = Member(group_id, "m2", ["t"], instance_id="i")
        status = await refusal(client.groups.Heartbeat(pb.HeartbeatRequest(beat=new.beat())))
        assert status.code is ErrorCode.INSTANCE_IN_USE
        assert 0 < (status.retry_after_ms or 0) <= 45_000
        await client.groups.Heartbeat(pb.HeartbeatRequest(beat=old.leave(epoch=-2)))
        await new.call(client)
        assert new.owned == {topic_id: (0, 1)}
        status = await refusal(client.groups.Heartbeat(pb.HeartbeatRequest(beat=old.beat())))
        assert status.code is ErrorCode.INSTANCE_FENCED


async def test_broker_out_of_touch_says_nothing_about_offsets(tmp_path: Path) -> None:
    """Another broker may coordinate the group by then: "no offset" would be a lie. Beats go on."""
    async with running_broker(tmp_path) as server, connected(server) as client:
        await make_topic(client, "t", 1)
        await coordinator_of(client, "g")
        member = Member("g", "m", ["t"])
        await settle(client, [member], [1])
        assert server.lifecycle is not None
        session = server.lifecycle.session
        with mock.patch.object(type(session), "is_lost", new_callable=mock.PropertyMock, return_value=True):
            status = await refusal(client.groups.FetchOffsets(pb.FetchOffsetsRequest(group_id="g")))
            assert status.code is ErrorCode.NOT_COORDINATOR
            assert status.leader is None
            await member.call(client)
            for call in (
                client.groups.DescribeGroup(pb.DescribeGroupRequest(group_id="g")),
                client.groups.Heartbeat(pb.HeartbeatRequest(beat=Member("g", "unknown", ["t"]).leave())),
                client.groups.DeleteGroup(pb.DeleteGroupRequest(group_id="g")),
            ):
                assert (await refusal(call)).code is ErrorCode.NOT_COORDINATOR
            listed = await client.groups.ListGroups(pb.ListGroupsRequest())
            assert list(listed.missing_coordinator_ids) == [1]
            request = pb.CommitOffsetsRequest(commitment=member.commitment(5))
            assert not any(each.HasField("error") for each in (await client.groups.CommitOffsets(request)).outcomes)
        assert list((await fetch_offsets(client, "g")).values()) == [5]
