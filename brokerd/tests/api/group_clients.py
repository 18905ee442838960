# SPDX-License-Identifier: Apache-2.0
"""Clients of GroupService made of generated code only: members over unary calls, and a Groups stream."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any

import grpc.aio
from lograft.v1 import admin_pb2, errors_pb2, metadata_pb2
from lograft.v1 import group_pb2 as pb
from lograft.wire.status import parse_rpc_error

from brokerd.tests.support import WAIT_S, Client

RETRIED = {
    errors_pb2.ERROR_CODE_COORDINATOR_LOADING,
    errors_pb2.ERROR_CODE_NOT_COORDINATOR,
    errors_pb2.ERROR_CODE_LEADER_NOT_AVAILABLE,
    errors_pb2.ERROR_CODE_NOT_ENOUGH_REPLICAS,
    errors_pb2.ERROR_CODE_OUTCOME_UNKNOWN,
}
"""Codes after which a client asks for the coordinator and comes back."""

Partitions = dict[bytes, tuple[int, ...]]


async def make_topic(client: Client, topic: str, partition_count: int, replication_factor: int = 1) -> bytes:
    """Create a topic, and return its id."""
    request = admin_pb2.CreateTopicRequest(
        topic=topic, partition_count=partition_count, replication_factor=replication_factor
    )
    created = await client.admin.CreateTopic(request, timeout=WAIT_S)
    await client.metadata.GetCluster(
        metadata_pb2.GetClusterRequest(min_metadata_offset=created.metadata_offset), timeout=WAIT_S
    )
    return created.topic.topic_id


async def coordinator_of(client: Client, group_id: str) -> pb.GroupCoordinator:
    """Ask until the coordinator of a group is known."""
    async with asyncio.timeout(WAIT_S):
        while True:
            request = pb.FindCoordinatorRequest(group_ids=[group_id])
            found = (await client.groups.FindCoordinator(request, timeout=WAIT_S)).coordinators[0]
            if not found.HasField("error"):
                return found
            assert found.error.code == errors_pb2.ERROR_CODE_COORDINATOR_LOADING, found
            await asyncio.sleep(0.05)


async def served(call: Any, request: Any) -> Any:
    """Call until the coordinator has loaded; any other refusal fails the test."""
    async with asyncio.timeout(WAIT_S):
        while True:
            try:
                return await call(request, timeout=WAIT_S)
            except grpc.aio.AioRpcError as error:
                if int(parse_rpc_error(error).code) not in RETRIED:
                    raise
            await asyncio.sleep(0.05)


def partitions_of(assignment: pb.GroupAssignment) -> Partitions:
    """Return an assignment by topic id."""
    return {topic.topic_id: tuple(topic.partitions) for topic in assignment.topics}


def assignment_of(partitions: Partitions) -> pb.GroupAssignment:
    """Return partitions as a message."""
    topics = [pb.PartitionsOfTopic(topic_id=each, partitions=numbers) for each, numbers in sorted(partitions.items())]
    return pb.GroupAssignment(topics=topics)


class Member:
    """One member that behaves: it echoes what it was sent, and gives up at once what it loses.

    Attributes:
        epoch: its member epoch.
        owned: what it uses.
    """

    def __init__(self, group_id: str, member_id: str, topics: Sequence[str], *, instance_id: str = "") -> None:
        self.group_id = group_id
        self.member_id = member_id
        self.topics = sorted(topics)
        self.instance_id = instance_id
        self.epoch = 0
        self.owned: Partitions = {}
        self.assignment_number = 0
        self.beat_number = 0
        self.commit_number = 0

    @property
    def count(self) -> int:
        """Number of its partitions."""
        return sum(map(len, self.owned.values()))

    def beat(self, handle: int = 0, **fields: Any) -> pb.MemberBeat:
        """Return the next join or beat."""
        self.beat_number += 1
        beat = pb.MemberBeat(
            group_id=self.group_id,
            member_id=self.member_id,
            instance_id=self.instance_id,
            member_epoch=self.epoch,
            beat_number=self.beat_number,
            handle=handle,
            client_id="tests",
        )
        if self.epoch == 0:
            beat.subscription.topics.extend(self.topics)
        else:
            beat.assignment_number = self.assignment_number
            beat.owned.CopyFrom(assignment_of(self.owned))
        beat.MergeFrom(pb.MemberBeat(**fields))
        return beat

    def leave(self, epoch: int = -1, handle: int = 0) -> pb.MemberBeat:
        """Return its leave."""
        self.beat_number += 1
        return pb.MemberBeat(
            group_id=self.group_id,
            member_id=self.member_id,
            instance_id=self.instance_id,
            member_epoch=epoch,
            beat_number=self.beat_number,
            handle=handle,
        )

    def hear(self, state: pb.GroupMemberState) -> bool:
        """Take over an answer or a push; return True if it has an assignment, so that the next beat is due at once."""
        assert not state.HasField("error"), state
        joined, self.epoch = self.epoch == 0, state.member_epoch
        if state.HasField("assignment") and (joined or state.assignment_number > self.assignment_number):
            self.assignment_number = state.assignment_number
            self.owned = partitions_of(state.assignment)
            return True
        return False

    def commitment(self, offset: int, **fields: Any) -> pb.OffsetCommitment:
        """Return a commit of one offset for everything that it owns."""
        self.commit_number += 1
        offsets = [
            pb.OffsetToCommit(topic_id=topic_id, partition=number, offset=offset + number)
            for topic_id, numbers in sorted(self.owned.items())
            for number in numbers
        ]
        return pb.OffsetCommitment(
            group_id=self.group_id,
            member_id=self.member_id,
            member_epoch=self.epoch,
            commit_number=self.commit_number,
            offsets=offsets,
            **fields,
        )

    # Over unary calls.

    async def call(self, client: Client) -> pb.GroupMemberState:
        """Beat once, and take over the answer."""
        state = (await served(client.groups.Heartbeat, pb.HeartbeatRequest(beat=self.beat()))).state
        self.hear(state)
        return state


async def settle(client: Client, members: Sequence[Member], shares: Sequence[int]) -> None:
    """Let members beat over unary calls until each has its number of partitions."""
    async with asyncio.timeout(WAIT_S):
        while [each.count for each in members] != list(shares):
            for member in members:
                await member.call(client)
            await asyncio.sleep(0.02)


async def fetch_offsets(
    client: Client, group_id: str, partitions: Partitions | None = None
) -> dict[tuple[bytes, int], int | None]:
    """Return committed offsets; None: positively none."""
    topics = [] if partitions is None else assignment_of(partitions).topics
    request = pb.FetchOffsetsRequest(group_id=group_id, topics=topics)
    response = await served(client.groups.FetchOffsets, request)
    return {
        (each.topic_id, each.partition): each.offset if each.HasField("offset") else None for each in response.offsets
    }


class GroupsStream:
    """A Groups stream with its members by handle, which beat at once after each assignment.

    Attributes:
        members: members by handle.
        moved: what it heard of moves.
        errors: states with errors, by handle.
    """

    def __init__(self, client: Client) -> None:
        self.call: Any = client.groups.Groups()
        self.members: dict[int, Member] = {}
        self.moved: list[pb.GroupsMoved] = []
        self.errors: dict[int, errors_pb2.PartitionError] = {}
        self.committed: dict[int, pb.GroupsCommitted] = {}
        self.pushes = 0

    async def send(self, **fields: Any) -> None:
        await self.call.write(pb.GroupsRequest(**fields))

    async def receive(self) -> pb.GroupsResponse | None:
        """Return the next message; None at the end."""
        async with asyncio.timeout(WAIT_S):
            message = await self.call.read()
        return None if message is grpc.aio.EOF else message

    async def open(self) -> pb.GroupsOpened:
        await self.send(open=pb.GroupsOpen(client_id="tests"))
        response = await self.receive()
        assert response is not None
        assert response.WhichOneof("message") == "opened", response
        return response.opened

    async def add(self, member: Member) -> None:
        """Let a member join or go on here."""
        handle = len(self.members) + 1
        self.members[handle] = member
        await self.beat(handle)

    async def beat(self, *handles: int) -> None:
        beats = [self.members[handle].beat(handle) for handle in handles]
        await self.send(beat=pb.GroupsBeat(members=beats))

    async def step(self) -> pb.GroupsResponse | None:
        """Hear one message, and beat after an assignment."""
        response = await self.receive()
        if response is None:
            return None
        match response.WhichOneof("message"):
            case "states":
                due: list[int] = []
                for state in response.states.members:
                    if state.HasField("error"):
                        self.errors[state.handle] = state.error
                        continue
                    self.pushes += state.beat_number == 0
                    if state.member_epoch and self.members[state.handle].hear(state):
                        due.append(state.handle)
                if due:
                    await self.beat(*due)
            case "committed":
                self.committed[response.committed.request_id] = response.committed
            case "moved":
                self.moved.append(response.moved)
            case other:
                raise AssertionError(f"unexpected {other}")
        return response

    async def until(self, condition: Any) -> None:
        """Go on until a condition holds. Loading is answered by another beat."""
        async with asyncio.timeout(WAIT_S):
            while not condition():
                assert await self.step() is not None, "the stream has ended"
                retried = [handle for handle, error in self.errors.items() if error.code in RETRIED]
                if retried:
                    await asyncio.sleep(0.05)
                    for handle in retried:
                        del self.errors[handle]
                    await self.beat(*retried)

    async def shares(self, *shares: int) -> None:
        """Go on until the members have these numbers of partitions."""
        await self.until(lambda: [each.count for each in self.members.values()] == list(shares))


def disjoint(members: Iterable[Member]) -> bool:
    """Return True if no partition has two owners."""
    keys = [(topic, number) for each in members for topic, numbers in each.owned.items() for number in numbers]
    return len(keys) == len(set(keys))
