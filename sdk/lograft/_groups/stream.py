# SPDX-License-Identifier: Apache-2.0
"""One `Groups` stream to one coordinator, for all members of this process whose groups it coordinates.

It owns the handshake, the handles, and the deadlines of both directions. It must not find coordinators or retry, and it does not
know what a beat means.

Both sides show signs of life. The client sends at least an empty message in every third of the time after which the server would
end the stream. If the server is silent for three times its own interval, the client gives up the stream and its connection.
Source: docs/groups.md; proto/lograft/v1/group.proto.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Final, Protocol

import grpc
import grpc.aio

from lograft._client.clock import monotonic_ms
from lograft._client.cluster import Cluster
from lograft._client.transport import WRITER_TIMEOUT_S, Purpose, to_error, write_first
from lograft._groups.messages import address_of, hinted_address
from lograft.errors import LograftError, NoBrokerError, ProtocolError, RequestTimeoutError
from lograft.settings import CONNECT_TIMEOUT_MS
from lograft.v1 import group_pb2
from lograft.v1.group_pb2_grpc import GroupServiceStub
from lograft.wire.codes import ErrorCode

logger = logging.getLogger(__name__)

OPEN_TIMEOUT_MS: Final = 5_000
"""Milliseconds that the coordinator may take to open the stream."""

SILENT_INTERVALS: Final = 3
"""Intervals of the other side without a message after which the stream counts as dead."""

LEAST_INTERVAL_MS: Final = 100
"""Least milliseconds between two signs of life, whatever the other side asks for."""

MOST_INTERVAL_MS: Final = 10_000
"""Most milliseconds between two signs of life."""

MAX_BEATS: Final = 64
"""Members in one message: with 10,000 topic names each, a message could become too large otherwise."""

_Call = grpc.aio.StreamStreamCall[group_pb2.GroupsRequest, group_pb2.GroupsResponse]


class CarriedMember(Protocol):
    """A member as a stream sees it: the border between the carrier and the membership."""

    @property
    def group_id(self) -> str:
        """Its group."""
        ...

    def take_beat(self) -> group_pb2.MemberBeat | None:
        """Return what must be sent now; None: nothing."""
        ...

    def hear(self, state: group_pb2.GroupMemberState) -> None:
        """Take an answer, or what the coordinator pushes."""
        ...

    def disconnected(self) -> None:
        """The stream is gone. What was under way gets no answer."""
        ...

    def fail(self, error: LograftError) -> None:
        """No coordinator will ever serve this client."""
        ...


class GroupsOwner(Protocol):
    """What a stream reports to the carrier."""

    def on_heard(self, member: CarriedMember) -> None:
        """The coordinator serves the member."""
        ...

    def on_moved(self, members: Sequence[CarriedMember], address: str | None) -> None:
        """Another broker coordinates the groups of these members; None: not known which."""
        ...

    def on_groups_end(self, stream: GroupsStream, members: Sequence[CarriedMember], error: LograftError) -> None:
        """The stream has ended, with these members on it."""
        ...


class GroupsStream:
    """Carries beats of members to one coordinator, and its states back. Belongs to one event loop."""

    def __init__(self, owner: GroupsOwner, cluster: Cluster, address: str, client_id: str) -> None:
        self.address = address
        self.is_closed = False
        self._owner = owner
        self._cluster = cluster
        self._client_id = client_id
        self._last_handle = 0
        self._members: dict[int, CarriedMember] = {}
        self._handles: dict[CarriedMember, int] = {}
        self._wakeup: asyncio.Future[None] | None = None
        self._heard_ms = self._sent_ms = monotonic_ms()
        self._server_silence_ms = SILENT_INTERVALS * MOST_INTERVAL_MS
        self._own_interval_ms = MOST_INTERVAL_MS
        self._reset_reason: LograftError | None = None
        self._call: _Call | None = None
        self._is_ending = False
        self._loop = asyncio.get_running_loop()
        self._task = self._loop.create_task(self._run())

    @property
    def is_idle(self) -> bool:
        """True when no member uses the stream."""
        return not self._members

    def attach(self, member: CarriedMember) -> None:
        """Carry a member."""
        self._last_handle += 1
        self._members[self._last_handle] = member
        self._handles[member] = self._last_handle
        self.wake()

    def detach(self, member: CarriedMember) -> None:
        """Carry a member no longer. The stream reports nothing more about it."""
        handle = self._handles.pop(member, None)
        if handle is not None:
            del self._members[handle]

    def wake(self) -> None:
        """Look for beats that must be sent now."""
        if self._wakeup is not None and not self._wakeup.done():
            self._wakeup.set_result(None)

    async def close(self) -> None:
        """End the stream without calling the owner."""
        self.is_closed = True
        self._stop()
        await asyncio.gather(self._task, return_exceptions=True)

    def _reset(self, reason: LograftError) -> None:
        self._reset_reason = reason
        self._stop()

    def _stop(self) -> None:
        """End the task. Cancel its call if it has one, so that gRPC can end the read under way."""
        if self._call is not None:
            self._call.cancel()
        elif not self._is_ending:
            self._task.cancel()

    async def _run(self) -> None:
        with ExitStack() as uses:
            error = await self._carry(uses)
        if not self.is_closed:
            self.is_closed = True
            members = list(self._handles)
            self._members.clear()
            self._handles.clear()
            self._owner.on_groups_end(self, members, error)

    async def _carry(self, uses: ExitStack) -> LograftError:
        """Connect, open the stream, carry it to its end and return why it ended. `uses` keeps the channel open until then."""
        error: LograftError
        channel: grpc.aio.Channel | None = None
        call: _Call | None = None
        writer: asyncio.Task[None] | None = None
        transport = self._cluster.transport
        try:
            channel = await transport.connect(self.address, Purpose.CONTROL, timeout_s=CONNECT_TIMEOUT_MS / 1000)
            uses.enter_context(transport.using(channel))
            stub = GroupServiceStub(channel)
            call = stub.Groups()
            await self._open(call)
            self._call = call
            writer = self._loop.create_task(self._write(call))
            await self._read(call)
            error = NoBrokerError(f"{self.address} closed the stream of groups")
        except grpc.RpcError as cause:
            error = to_error(cause, self.address)
        except LograftError as cause:
            error = cause
        except TimeoutError:
            error = self._reset_reason = RequestTimeoutError(
                f"{self.address} did not open the stream of groups in time"
            )
        except asyncio.CancelledError:
            if self.is_closed:
                raise
            if self._reset_reason is None:
                self._cluster.note_cancelled()
            error = NoBrokerError(f"the stream of groups to {self.address} was cancelled")
        except Exception as cause:
            logger.exception("the stream of groups to %s failed", self.address)
            error = ProtocolError(f"the stream of groups to {self.address} failed: {cause!r}")
        finally:
            # From here on no caller cancels this task: it must return the members.
            self._is_ending = True
            if call is not None:
                call.cancel()
            if writer is not None:
                self.wake()
                await asyncio.wait((writer,), timeout=WRITER_TIMEOUT_S)
                writer.cancel()
            if channel is not None and isinstance(self._reset_reason, RequestTimeoutError):
                # The connection may have died without a sign. Further streams over it would fail in the same way.
                transport.give_up(channel)
        return self._reset_reason or error

    async def _open(self, call: _Call) -> None:
        async with asyncio.timeout(OPEN_TIMEOUT_MS / 1000):
            request = group_pb2.GroupsOpen(cluster_id=self._cluster.cluster_id, client_id=self._client_id)
            await write_first(call, group_pb2.GroupsRequest(open=request))
            response = await call.read()
        if not isinstance(response, group_pb2.GroupsResponse):
            raise NoBrokerError(f"{self.address} closed the stream of groups before it was open")
        if response.WhichOneof("message") != "opened":
            raise ProtocolError(f"{self.address} answered the opening of a stream of groups with something else")
        opened = response.opened
        self._heard_ms = self._sent_ms = monotonic_ms()
        self._server_silence_ms = SILENT_INTERVALS * _bounded(opened.server_beat_interval_ms)
        self._own_interval_ms = _bounded(opened.client_silence_limit_ms // SILENT_INTERVALS)

    async def _write(self, call: _Call) -> None:
        try:
            while not self._is_ending:
                beats = self._take_beats()
                at_ms = monotonic_ms()
                if beats or at_ms - self._sent_ms >= self._own_interval_ms:
                    self._sent_ms = at_ms
                    await call.write(group_pb2.GroupsRequest(beat=group_pb2.GroupsBeat(members=beats)))
                elif at_ms - self._heard_ms >= self._server_silence_ms:
                    self._reset(RequestTimeoutError(f"{self.address} sent nothing for {self._server_silence_ms} ms"))
                    return
                else:
                    due_ms = min(self._sent_ms + self._own_interval_ms, self._heard_ms + self._server_silence_ms)
                    await self._sleep(max(1, due_ms - at_ms))
        except (grpc.RpcError, asyncio.InvalidStateError) as error:
            # The reader sees the same end of the stream, with its reason.
            logger.debug("writing to %s ended: %s", self.address, error)
        except Exception as error:
            logger.exception("writing to %s failed", self.address)
            self._reset(ProtocolError(f"writing to {self.address} failed: {error!r}"))

    def _take_beats(self) -> list[group_pb2.MemberBeat]:
        beats: list[group_pb2.MemberBeat] = []
        for handle, member in list(self._members.items()):
            if len(beats) == MAX_BEATS:
                break
            beat = member.take_beat()
            if beat is not None:
                beat.handle = handle
                beats.append(beat)
        return beats

    async def _sleep(self, delay_ms: int) -> None:
        """Wait until a member wakes the stream, at most `delay_ms`."""
        self._wakeup = wakeup = self._loop.create_future()
        timer = self._loop.call_later(delay_ms / 1000, self.wake)
        try:
            await wakeup
        finally:
            timer.cancel()
            self._wakeup = None

    async def _read(self, call: _Call) -> None:
        while True:
            response = await call.read()
            if not isinstance(response, group_pb2.GroupsResponse):
                return
            self._heard_ms = monotonic_ms()
            match response.WhichOneof("message"):
                case "states":
                    for state in response.states.members:
                        self._on_state(state)
                case "moved":
                    self._on_moved(response.moved)
                case "committed":
                    logger.debug("%s sent a result that nobody asked for", self.address)
                case _:
                    raise ProtocolError(f"{self.address} sent a message that this version does not know")

    def _on_state(self, state: group_pb2.GroupMemberState) -> None:
        member = self._members.get(state.handle)
        if member is None:
            return
        if state.HasField("error") and state.error.code == ErrorCode.NOT_COORDINATOR:
            hint = hinted_address(state.error.leader) if state.error.HasField("leader") else None
            self._hand_back([member], hint)
            return
        self._owner.on_heard(member)
        member.hear(state)

    def _on_moved(self, moved: group_pb2.GroupsMoved) -> None:
        members = [self._members[handle] for handle in moved.handles or list(self._members) if handle in self._members]
        address = address_of(moved.coordinator) if moved.HasField("coordinator") and moved.coordinator.host else None
        logger.info("%s: groups move to %s: %s", self.address, address or "another broker", moved.message)
        self._hand_back(members, address)

    def _hand_back(self, members: Sequence[CarriedMember], address: str | None) -> None:
        for member in members:
            self.detach(member)
        self._owner.on_moved(members, address)


def _bounded(interval_ms: int) -> int:
    return min(max(interval_ms, LEAST_INTERVAL_MS), MOST_INTERVAL_MS)
