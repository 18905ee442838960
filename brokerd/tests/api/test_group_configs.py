# SPDX-License-Identifier: Apache-2.0
"""Configs of groups over real gRPC: from AlterConfigs to what a member is told, also after a restart."""

from __future__ import annotations

import asyncio
from pathlib import Path

from lograft.v1 import admin_pb2
from lograft.v1 import group_pb2 as pb
from lograft.wire.codes import ErrorCode

from brokerd.tests.api.group_clients import Member, make_topic, served
from brokerd.tests.support import WAIT_S, Client, connected, refusal, running_broker

GROUP, TOPIC, CLUSTER = (
    admin_pb2.CONFIG_RESOURCE_TYPE_GROUP,
    admin_pb2.CONFIG_RESOURCE_TYPE_TOPIC,
    admin_pb2.CONFIG_RESOURCE_TYPE_CLUSTER,
)


def changes(
    kind: admin_pb2.ConfigResourceType.ValueType, name: str, **configs: str | None
) -> admin_pb2.AlterConfigsRequest:
    """Return a request; a double underscore in a name stands for a dot."""
    return admin_pb2.AlterConfigsRequest(
        resources=[
            admin_pb2.ResourceConfigChanges(
                resource=admin_pb2.ConfigResource(type=kind, name=name),
                changes=[
                    admin_pb2.ConfigChange(name=key.replace("__", "."), value=value) for key, value in configs.items()
                ],
            )
        ]
    )


async def told_session_ms(client: Client, group: str, member_id: str) -> int:
    """Join, and return the session that the member is told."""
    beat = Member(group, member_id, ["t"]).beat()
    state = (await served(client.groups.Heartbeat, pb.HeartbeatRequest(beat=beat))).state
    return state.session_timeout_ms


async def test_configs_of_groups_reach_members(tmp_path: Path) -> None:
    """Of the cluster, of the group, and those of the group alone after a restart."""
    async with running_broker(tmp_path) as server, connected(server) as client:
        await make_topic(client, "t", 1)
        short = {"group__session__timeout__ms": "12000", "group__heartbeat__interval__ms": "3000"}
        await client.admin.AlterConfigs(changes(CLUSTER, "", **short), timeout=WAIT_S)
        await client.admin.AlterConfigs(changes(GROUP, "g", group__session__timeout__ms="30000"), timeout=WAIT_S)
        async with asyncio.timeout(WAIT_S):
            number = 0
            while await told_session_ms(client, "g", f"m{number}") != 30_000:
                number += 1
                await asyncio.sleep(0.05)
        assert await told_session_ms(client, "h", "m") == 12_000
        await client.admin.AlterConfigs(changes(CLUSTER, "", **dict.fromkeys(short)), timeout=WAIT_S)
        request = admin_pb2.DescribeConfigsRequest(resources=[admin_pb2.ConfigResource(type=GROUP, name="g")])
        described = await client.admin.DescribeConfigs(request, timeout=WAIT_S)
        values = {each.name: (each.value, each.source) for each in described.resources[0].configs}
        assert values["group.session.timeout.ms"] == ("30000", admin_pb2.CONFIG_SOURCE_GROUP)
        assert values["group.heartbeat.interval.ms"] == ("5000", admin_pb2.CONFIG_SOURCE_DEFAULT)
    async with running_broker(tmp_path) as server, connected(server) as client:
        async with asyncio.timeout(WAIT_S):
            number = 0
            while await told_session_ms(client, "g", f"again{number}") != 30_000:
                number += 1
                await asyncio.sleep(0.05)
        assert await told_session_ms(client, "h", "again") == 45_000


async def test_topic_of_groups_is_made_so_that_it_stays_what_it_is(tmp_path: Path) -> None:
    """What its coordinators need is set for the topic itself, so that no value of the cluster holds, and cannot be changed."""
    async with running_broker(tmp_path) as server, connected(server) as client:
        await client.admin.AlterConfigs(
            changes(CLUSTER, "", max__message__bytes="2048", cleanup__policy="delete"), timeout=WAIT_S
        )
        topic_id = await make_topic(client, "t", 1)
        offsets = [pb.OffsetToCommit(topic_id=topic_id, partition=0, offset=5, metadata="x" * 4_096)]
        altered = await served(client.groups.AlterOffsets, pb.AlterOffsetsRequest(group_id="g", offsets=offsets))
        assert not altered.outcomes[0].HasField("error")
        for wrong in ({"cleanup__policy": "delete"}, {"cleanup__policy": None}, {"max__message__bytes": "2048"}):
            status = await refusal(client.admin.AlterConfigs(changes(TOPIC, "__groups", **wrong), timeout=WAIT_S))
            assert (status.code, "internal topic" in status.message) == (ErrorCode.INVALID_CONFIG, True)


async def test_look_up_of_all_offsets_names_the_topics(tmp_path: Path) -> None:
    """A client needs no metadata of its own to show them; a look-up of named partitions has no use for names."""
    async with running_broker(tmp_path) as server, connected(server) as client:
        topic_id = await make_topic(client, "t", 2)
        offsets = [pb.OffsetToCommit(topic_id=topic_id, partition=number, offset=5) for number in (0, 1)]
        await served(client.groups.AlterOffsets, pb.AlterOffsetsRequest(group_id="g", offsets=offsets))
        found = await client.groups.FetchOffsets(pb.FetchOffsetsRequest(group_id="g"), timeout=WAIT_S)
        assert [(each.topic_id, each.topic) for each in found.topics] == [(topic_id, "t")]
        named = [pb.PartitionsOfTopic(topic_id=topic_id, partitions=[0])]
        found = await client.groups.FetchOffsets(pb.FetchOffsetsRequest(group_id="g", topics=named), timeout=WAIT_S)
        assert list(found.topics) == []
