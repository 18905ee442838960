# SPDX-License-Identifier: Apache-2.0
"""The model client, which is the reference of a client, against a real broker over gRPC, unary and over the stream."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc.aio
import pytest
from lograft.v1 import group_pb2 as pb
from lograft.wire.codes import ErrorCode
from lograft.wire.status import parse_rpc_error

from brokerd.clock import monotonic_ms
from brokerd.groups.answers import FetchedOffset, FetchedOffsets, Left, MemberState, Outcome, Refusal, Refused
from brokerd.groups.commands import Beat, Command, CommitOffsets, FetchOffsets, Join, Leave
from brokerd.groups.records import OffsetValue, Subscription
from brokerd.tests.api.group_clients import assignment_of, coordinator_of, make_topic, partitions_of, served
from brokerd.tests.groups.model_client import Key, ModelClient, Phase, by_topic
from brokerd.tests.support import WAIT_S, Client, connected, running_broker

HANDLE = 1
END_OFFSET = 200
"""Each partition has the offsets below; the model delivers numbers, and reads no log."""

LATE = (ErrorCode.REQUEST_SUPERSEDED, ErrorCode.UNKNOWN_MEMBER, ErrorCode.FENCED_MEMBER_EPOCH)
"""Codes of a commit that came too late, which beats explain."""


def beat_message(command: Join | Beat | Leave) -> pb.MemberBeat:
    """Return a command of the model as a client sends it."""
    beat = pb.MemberBeat(
        group_id=command.group_id,
        member_id=command.member_id,
        instance_id=command.instance_id or "",
        beat_number=command.beat_number,
        handle=HANDLE,
    )
    if isinstance(command, Leave):
        beat.member_epoch = -2 if command.will_be_back else -1
        return beat
    if command.subscription is not None:
        beat.subscription.topics.extend(command.subscription.names)
        beat.subscription.pattern = command.subscription.pattern
    if isinstance(command, Join):
        beat.processing_limit_ms = command.processing_limit_ms
        return beat
    beat.member_epoch = command.member_epoch
    beat.assignment_number = command.assignment_number
    beat.idle_ms = command.idle_ms
    if command.owned is not None:
        beat.owned.CopyFrom(assignment_of(dict(command.owned)))
    return beat


def refused(number: int, message: str, retry_after_ms: int) -> Refused | None:
    """Return a refusal of the core; None: the call as such failed, and the member comes back."""
    names = {each.value: each for each in Refusal}
    name = ErrorCode.from_number(number).name
    if name not in names or name == "COORDINATOR_LOADING":
        return None
    return Refused(code=names[name], message=message, retry_after_ms=retry_after_ms)


def state_outcome(member_id: str, state: pb.GroupMemberState) -> Outcome | None:
    """Return an answer or a push as the core gave it; None: the call as such failed."""
    if state.HasField("error"):
        return refused(state.error.code, state.error.message, state.error.retry_after_ms)
    if state.member_epoch == 0:
        return Left()
    return MemberState(
        member_id=member_id,
        member_epoch=state.member_epoch,
        heartbeat_interval_ms=state.heartbeat_interval_ms,
        session_timeout_ms=state.session_timeout_ms,
        assignment_number=state.assignment_number,
        assignment=partitions_of(state.assignment) if state.HasField("assignment") else None,
    )


@dataclass
class Driver:
    """Runs one model client over gRPC."""

    client: Client
    model: ModelClient
    delivered: list[tuple[Key, int]]
    stream: Any = None
    tasks: set[asyncio.Task[None]] = field(default_factory=set[asyncio.Task[None]])
    pushes: int = 0

    async def run(self) -> None:
        """Step until the client has left."""
        model = self.model
        model.start(monotonic_ms())
        while model.phase is not Phase.ENDED:
            if model.uses_stream and model.stream is None:
                await self._open()
            for command in model.step(monotonic_ms()):
                self._spawn(self._send(command))
            for key in sorted(model.owned):
                position = model.owned[key]
                if position is not None and position < END_OFFSET and model.phase is Phase.MEMBER:
                    offset = model.deliver(key)
                    assert offset is not None
                    self.delivered.append((key, offset))
            commit = model.commit()
            if commit is not None:
                self._spawn(self._commit(commit))
            await asyncio.sleep(0.02)
        for task in tuple(self.tasks):
            task.cancel()
        if self.tasks:
            await asyncio.wait(tuple(self.tasks))

    def _spawn(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def _open(self) -> None:
        self.stream = self.client.groups.Groups()
        await self.stream.write(pb.GroupsRequest(open=pb.GroupsOpen()))
        assert (await self.stream.read()).WhichOneof("message") == "opened"
        self.model.stream = 1
        self._spawn(self._listen(self.stream))

    async def _listen(self, stream: Any) -> None:
        while (response := await stream.read()) is not grpc.aio.EOF:
            for state in response.states.members:
                self.pushes += state.beat_number == 0
                outcome = state_outcome(self.model.member_id, state)
                if outcome is None:
                    self.model.no_answer(state.beat_number, monotonic_ms())
                else:
                    self.model.hear(state.beat_number, outcome, monotonic_ms())

    async def _send(self, command: Command) -> None:
        if isinstance(command, FetchOffsets):
            assert command.partitions is not None
            request = pb.FetchOffsetsRequest(group_id=command.group_id)
            request.topics.extend(assignment_of(dict(by_topic(command.partitions))).topics)
            response = await served(self.client.groups.FetchOffsets, request)
            found = tuple(
                FetchedOffset(
                    topic_id=each.topic_id,
                    partition=each.partition,
                    value=OffsetValue(offset=each.offset, commit_ms=each.commit_ms)
                    if each.HasField("offset")
                    else None,
                )
                for each in response.offsets
            )
            self.model.hear_offsets(command, FetchedOffsets(offsets=found))
            return
        assert isinstance(command, Join | Beat | Leave)
        beat = beat_message(command)
        if self.model.uses_stream:
            await self.stream.write(pb.GroupsRequest(beat=pb.GroupsBeat(members=[beat])))
            return
        beat.handle = 0
        try:
            state = (await self.client.groups.Heartbeat(pb.HeartbeatRequest(beat=beat), timeout=WAIT_S)).state
            outcome = state_outcome(self.model.member_id, state)
        except grpc.aio.AioRpcError as error:
            status = parse_rpc_error(error)
            outcome = refused(int(status.code), status.message, status.retry_after_ms or 0)
        if outcome is None:
            self.model.no_answer(command.beat_number, monotonic_ms())
        else:
            self.model.hear(command.beat_number, outcome, monotonic_ms())

    async def _commit(self, command: CommitOffsets) -> None:
        offsets = [
            pb.OffsetToCommit(topic_id=each.topic_id, partition=each.partition, offset=each.offset)
            for each in command.offsets
        ]
        commitment = pb.OffsetCommitment(
            group_id=command.group_id,
            member_id=command.member_id,
            member_epoch=command.member_epoch,
            commit_number=command.commit_number,
            offsets=offsets,
        )
        try:
            await self.client.groups.CommitOffsets(pb.CommitOffsetsRequest(commitment=commitment), timeout=WAIT_S)
        except grpc.aio.AioRpcError as error:
            # Another commit was faster, or the member is none any more: beats say the rest.
            if parse_rpc_error(error).code not in LATE:
                raise


@pytest.mark.slow
@pytest.mark.parametrize("uses_stream", [False, True])
async def test_model_clients_come_and_go_and_every_offset_is_delivered(tmp_path: Path, *, uses_stream: bool) -> None:
    """Three model clients come and leave one after the other: nothing is skipped, and the last one finishes what the others began."""
    async with running_broker(tmp_path) as server, connected(server) as client:
        topic_id = await make_topic(client, "t", 6)
        await coordinator_of(client, "g")
        delivered: list[tuple[Key, int]] = []
        drivers = [
            Driver(
                client,
                ModelClient("g", f"m{number}", Subscription(("t",)), uses_stream=uses_stream, callback_ms=50),
                delivered,
            )
            for number in range(3)
        ]
        running: list[asyncio.Task[None]] = []
        for driver in drivers:
            running.append(asyncio.create_task(driver.run()))
            await asyncio.sleep(1)
        async with asyncio.timeout(WAIT_S):
            while [len(each.model.owned) for each in drivers] != [2, 2, 2]:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        for driver, task in zip(drivers[:2], running[:2], strict=True):
            driver.model.leave(will_be_back=False)
            await asyncio.wait_for(task, WAIT_S)
        last = drivers[2].model
        async with asyncio.timeout(WAIT_S):
            while len(last.owned) != 6 or any(each != END_OFFSET for each in last.owned.values()):  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        last.leave(will_be_back=False)
        await asyncio.wait_for(running[2], WAIT_S)
        wanted = {((topic_id, number), offset) for number in range(6) for offset in range(END_OFFSET)}
        assert set(delivered) == wanted
        assert all(not driver.model.error for driver in drivers)
        assert [each.model.log[0][0] for each in drivers] == ["assigned"] * 3
        assert not any(name == "lost" for each in drivers for name, _ in each.model.log)
        if uses_stream:
            assert sum(each.pushes for each in drivers) > 0
