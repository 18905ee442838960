# SPDX-License-Identifier: Apache-2.0
"""The Groups stream: beats and commits of a process with all its groups at this coordinator, and what is pushed to it.

Owns the two loops of one stream, its handles, its requests under way, and what waits to be written. A stream that ends is no leave: its
members live until their sessions end, and go on elsewhere.

Laws
    Requests of a member are submitted in the order in which they came, and answered in the order in which they were decided.
    What waits for a slow reader is bounded: the stream ends then, and its members live on.
    After the end of a stream nothing more is submitted for it.
Source: `docs/groups.md` section "Service".
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Coroutine, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import grpc.aio
from google.protobuf.message import DecodeError
from lograft.v1 import group_pb2 as pb
from lograft.wire.codes import ErrorCode

from brokerd.api.calls import ServicerContext, check_cluster, undecodable
from brokerd.api.group_service import messages
from brokerd.api.group_service.calls import GroupCalls, check_group_id, client_host
from brokerd.api.group_service.limits import (
    CLIENT_SILENCE_MS,
    CLOSING_MS,
    GROUP_CALL_MS,
    MAX_BEAT_MEMBERS,
    MAX_GROUP_STREAMS_PER_CONNECTION,
    MAX_STREAM_HANDLES,
    MAX_STREAM_OUTBOX_BYTES,
    MAX_STREAM_REQUEST_BYTES,
    MAX_STREAM_REQUESTS,
    SERVER_BEAT_MS,
    STATES_MESSAGE_BYTES,
)
from brokerd.api.parts import BrokerParts
from brokerd.api.status import partition_error
from brokerd.coordinator.internal_topics import GROUPS
from brokerd.failure import Failure, RefusedError, refused
from brokerd.groups.answers import MemberState, OffsetResults, Refused
from brokerd.groups.commands import Beat, CommitOffsets, Join, Leave
from brokerd.groups.coordinators import GroupCoordinators
from brokerd.groups.effects import MemberRemoved, PushAssignment, Removal
from brokerd.stream_register import GOING_AWAY
from brokerd.wake import Wake

_SIGN_OF_LIFE: Final = pb.GroupsResponse(states=pb.GroupsStates()).SerializeToString()

_REMOVALS: Final = {
    Removal.SESSION_ENDED: ErrorCode.UNKNOWN_MEMBER,
    Removal.REVOCATION_LIMIT: ErrorCode.PROCESSING_LIMIT_EXCEEDED,
}


class StreamCounts:
    """Counts the Groups streams of each connection; only `entry` writes it."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}

    @contextmanager
    def entry(self, peer: str) -> Generator[None]:
        """Count a stream while the context runs.

        Args:
            peer: name of the connection, as gRPC gives it.

        Raises:
            RefusedError: LIMIT_EXCEEDED.
        """
        count = self._counts.get(peer, 0)
        if count >= MAX_GROUP_STREAMS_PER_CONNECTION:
            message = f"the connection has {count} Groups streams open, which is its limit: one carries all groups of a process"
            raise refused(ErrorCode.LIMIT_EXCEEDED, message)
        self._counts[peer] = count + 1
        try:
            yield
        finally:
            self._counts[peer] -= 1
            if not self._counts[peer]:
                del self._counts[peer]


@dataclass(slots=True)
class _Bound:
    """The member of a handle, and the intervals that it was told last."""

    handle: int
    group_id: str
    member_id: str
    partition: int
    heartbeat_interval_ms: int = 0
    session_timeout_ms: int = 0


class GroupStream:
    """One Groups stream of one client."""

    def __init__(
        self,
        parts: BrokerParts,
        coordinators: GroupCoordinators,
        calls: GroupCalls,
        counts: StreamCounts,
        context: ServicerContext,
    ) -> None:
        self._parts = parts
        self._coordinators = coordinators
        self._topic_name = calls.topic_name
        self._counts = counts
        self._context = context
        self._client_id = ""
        self._client_host = client_host(context.peer())
        self._number: int | None = None
        self._handles: dict[int, _Bound] = {}
        self._members: dict[tuple[str, str], _Bound] = {}
        # Partitions of `__groups` to which joins and beats went.
        self._partitions: set[int] = set()
        self._requests: set[asyncio.Task[None]] = set()
        self._request_bytes = 0
        self._outbox: deque[pb.GroupMemberState | bytes] = deque()
        self._outbox_bytes = 0
        self._wake = Wake()
        self._resume = Wake()
        # Set when the stream must end although its client has not closed it.
        self._ending: asyncio.Future[RefusedError | None] = asyncio.get_running_loop().create_future()
        self._is_closing = False

    # The stream.

    async def run(self) -> None:
        """Serve the stream until the client has closed it, or the broker ends it."""
        with self._counts.entry(self._context.peer()), self._parts.group_streams.entry(self):
            reader = asyncio.create_task(self._read(), name="groups-reader")
            writer = asyncio.create_task(self._write(), name="groups-writer")
            try:
                await self._serve(reader, writer)
            finally:
                tasks = (reader, writer, *self._requests)
                for task in tasks:
                    task.cancel()
                # Before the coordinators hear of the end, so that no beat comes after it.
                await asyncio.wait(tasks)
                if self._number is not None:
                    self._coordinators.close_stream(self._number, sorted(self._partitions))

    async def _serve(self, reader: asyncio.Task[None], writer: asyncio.Task[None]) -> None:
        await asyncio.wait((reader, writer, self._ending), return_when=asyncio.FIRST_COMPLETED)
        self._raise_end(writer)
        # The client has closed its side, its message is wrong, or the broker stops: what is under way is answered first.
        if self._ending.done():
            reader.cancel()
        if self._requests:
            await asyncio.wait(tuple(self._requests), timeout=CLOSING_MS / 1000)
        self._is_closing = True
        self._wake.set()
        await asyncio.wait((writer,), timeout=CLOSING_MS / 1000)
        self._raise_end(writer)
        if reader.done() and not reader.cancelled():
            reader.result()

    def _raise_end(self, writer: asyncio.Task[None]) -> None:
        """Raise why the stream ends at once, if it does: its client does not read, or has gone."""
        error = self._ending.result() if self._ending.done() else None
        if error is not None:
            raise error
        if writer.done():
            writer.result()

    def _end(self, error: RefusedError | None) -> None:
        if not self._ending.done():
            self._ending.set_result(error)

    def go_away(self, message: str, drain_ms: int) -> None:
        """Tell the client that the broker stops; the stream ends once what is under way is answered."""
        if self._number is None:
            self._end(refused(ErrorCode.SHUTTING_DOWN, GOING_AWAY))
            return
        moved = pb.GroupsMoved(message=message, drain_ms=min(drain_ms, CLOSING_MS))
        self._put(pb.GroupsResponse(moved=moved).SerializeToString())
        self._end(None)

    # What coordinators tell (`MemberStream`).

    def push_assignment(self, push: PushAssignment) -> None:
        """Send a member its assignment."""
        bound = self._members.get((push.group_id, push.member_id))
        if bound is None:
            return
        state = pb.GroupMemberState(
            handle=bound.handle,
            member_epoch=push.member_epoch,
            assignment_number=push.assignment_number,
            assignment=messages.assignment_message(push.assignment, self._topic_name),
            heartbeat_interval_ms=bound.heartbeat_interval_ms,
            session_timeout_ms=bound.session_timeout_ms,
        )
        self._put(state)

    def tell_removed(self, removed: MemberRemoved) -> None:
        """Tell a member that it was removed."""
        bound = self._members.get((removed.group_id, removed.member_id))
        if bound is not None:
            message = f"the member was removed: {removed.reason.value}; its partitions are lost, join with epoch 0"
            self._put(_failed_state(bound.handle, 0, Failure(code=_REMOVALS[removed.reason], message=message)))

    def tell_moved(self, partition: int) -> None:
        """Tell the members of groups in a partition that this broker does not coordinate them any more."""
        handles = [bound.handle for bound in self._handles.values() if bound.partition == partition]
        place = self._coordinators.leader_place(partition)
        if not handles or (place is not None and place.leader_id == self._parts.node_id):
            # Their coordinator here loads again, and says so to their next beats.
            return
        moved = pb.GroupsMoved(handles=handles, message="another broker coordinates these groups, or will soon")
        if place is not None:
            moved.coordinator.CopyFrom(messages.coordinator_message("", place))
        self._put(pb.GroupsResponse(moved=moved).SerializeToString())

    # Writing.

    def _put(self, message: pb.GroupMemberState | bytes) -> None:
        self._outbox.append(message)
        self._outbox_bytes += _size_bytes(message)
        if self._outbox_bytes > MAX_STREAM_OUTBOX_BYTES and len(self._outbox) > 1 and not self._ending.done():
            text = f"{self._outbox_bytes} bytes wait for a client that does not read: open another stream, the members live on"
            self._outbox.clear()
            self._outbox_bytes = 0
            self._coordinators.totals.ended_slow_streams += 1
            self._end(refused(ErrorCode.OVERLOADED, text))
        self._wake.set()

    def _next_message(self) -> bytes:
        """Take the next message from the outbox; states that follow each other go together."""
        states = pb.GroupsStates()
        size_bytes = 0
        while self._outbox:
            first = self._outbox[0]
            is_state = isinstance(first, pb.GroupMemberState)
            if size_bytes and (not is_state or size_bytes >= STATES_MESSAGE_BYTES):
                break
            self._outbox.popleft()
            self._outbox_bytes -= _size_bytes(first)
            if not isinstance(first, pb.GroupMemberState):
                return first
            states.members.append(first)
            size_bytes += _size_bytes(first)
        return pb.GroupsResponse(states=states).SerializeToString()

    async def _write(self) -> None:
        while True:
            while self._outbox:
                await self._context.write(self._next_message())
            if self._is_closing:
                return
            try:
                async with asyncio.timeout(SERVER_BEAT_MS / 1000):
                    await self._wake.wait()
            except TimeoutError:
                if self._number is not None and not self._outbox:
                    await self._context.write(_SIGN_OF_LIFE)

    # Reading.

    async def _read(self) -> None:
        while True:
            while len(self._requests) >= MAX_STREAM_REQUESTS or self._request_bytes >= MAX_STREAM_REQUEST_BYTES:
                await self._resume.wait()
            try:
                async with asyncio.timeout(CLIENT_SILENCE_MS / 1000):
                    data = await self._context.read()
            except TimeoutError:
                message = f"nothing was heard for {CLIENT_SILENCE_MS} ms: send a beat, an empty one if need be, three times as often"
                raise refused(ErrorCode.TIMED_OUT, message) from None
            if data is grpc.aio.EOF:
                return
            try:
                request = pb.GroupsRequest.FromString(data)
            except DecodeError:
                raise undecodable() from None
            self._on_request(request)

    def _on_request(self, request: pb.GroupsRequest) -> None:
        kind = request.WhichOneof("message")
        if (kind == "open") == (self._number is not None):
            message = "`open` is the first message of a Groups stream, and comes once"
            raise refused(ErrorCode.INVALID_REQUEST, message)
        match kind:
            case "open":
                self._on_open(request.open)
            case "beat":
                self._on_beat(request.beat)
            case "commit":
                self._on_commit(request.commit)
            case _:
                raise refused(ErrorCode.INVALID_REQUEST, "a message of a Groups stream must be open, beat or commit")

    def _on_open(self, request: pb.GroupsOpen) -> None:
        check_cluster(request.cluster_id, self._parts.cluster_id)
        self._client_id = request.client_id
        self._number = self._coordinators.open_stream(self)
        opened = pb.GroupsOpened(
            cluster_id=self._parts.cluster_id,
            node_id=self._parts.node_id,
            server_beat_interval_ms=SERVER_BEAT_MS,
            client_silence_limit_ms=CLIENT_SILENCE_MS,
        )
        self._put(pb.GroupsResponse(opened=opened).SerializeToString())

    def _on_beat(self, request: pb.GroupsBeat) -> None:
        if len(request.members) > MAX_BEAT_MEMBERS:
            message = f"{len(request.members)} members in one beat are more than {MAX_BEAT_MEMBERS}"
            raise refused(ErrorCode.INVALID_REQUEST, message)
        for beat in request.members:
            try:
                bound = self._bind(beat)
                command = messages.member_command(
                    beat,
                    group_id=bound.group_id,
                    member_id=bound.member_id,
                    client_id=beat.client_id or self._client_id,
                    client_host=self._client_host,
                    stream=self._number,
                )
            except RefusedError as error:
                self._put(_failed_state(beat.handle, beat.beat_number, error.failure))
                continue
            self._partitions.add(bound.partition)
            size_bytes = beat.ByteSize()
            self._begin(self._beat(bound, beat.beat_number, command, size_bytes), size_bytes)

    def _bind(self, beat: pb.MemberBeat) -> _Bound:
        """Return the member of a handle; the first beat with both ids binds it.

        Raises:
            RefusedError: INVALID_REQUEST, LIMIT_EXCEEDED.
        """
        bound = self._handles.get(beat.handle)
        if bound is not None:
            if (beat.group_id or bound.group_id, beat.member_id or bound.member_id) != (
                bound.group_id,
                bound.member_id,
            ):
                message = (
                    f"handle {beat.handle} stands for member {bound.member_id} of group {bound.group_id!r}: use another"
                )
                raise refused(ErrorCode.INVALID_REQUEST, message)
            return bound
        if beat.handle < 1 or not beat.member_id:
            message = "the first beat of a member on a stream has its handle, from 1, its group id and its member id"
            raise refused(ErrorCode.INVALID_REQUEST, message)
        check_group_id(beat.group_id)
        key = (beat.group_id, beat.member_id)
        if key in self._members:
            message = f"the member has handle {self._members[key].handle} on this stream already: use that"
            raise refused(ErrorCode.INVALID_REQUEST, message)
        if len(self._handles) >= MAX_STREAM_HANDLES:
            message = f"a stream takes {MAX_STREAM_HANDLES} handles over its life: open another stream"
            raise refused(ErrorCode.LIMIT_EXCEEDED, message)
        bound = _Bound(beat.handle, beat.group_id, beat.member_id, GROUPS.partition_of(beat.group_id))
        self._handles[beat.handle] = self._members[key] = bound
        return bound

    def _on_commit(self, request: pb.GroupsCommit) -> None:
        commitment = request.commitment
        group_id, member_id = commitment.group_id, commitment.member_id
        try:
            if commitment.handle:
                bound = self._handles.get(commitment.handle)
                if bound is None or group_id not in ("", bound.group_id) or member_id not in ("", bound.member_id):
                    message = f"handle {commitment.handle} does not stand for this member: beat first, or name both ids"
                    raise refused(ErrorCode.INVALID_REQUEST, message)
                group_id, member_id = bound.group_id, bound.member_id
            check_group_id(group_id)
        except RefusedError as error:
            self._put_committed(pb.GroupsCommitted(request_id=request.request_id, error=partition_error(error.failure)))
            return
        command = messages.commit_command(commitment, group_id=group_id, member_id=member_id)
        size_bytes = commitment.ByteSize()
        self._begin(self._commit(request.request_id, command, size_bytes), size_bytes)

    # Requests.

    def _begin(self, work: Coroutine[None, None, None], size_bytes: int) -> None:
        """Carry out a request. Tasks begin in the order of their creation, and submit in their first step."""
        task = asyncio.create_task(work, name="groups-request")
        self._requests.add(task)
        self._request_bytes += size_bytes

        def on_done(done: asyncio.Task[None]) -> None:
            self._requests.discard(done)
            self._request_bytes -= size_bytes
            self._resume.set()
            error = None if done.cancelled() else done.exception()
            if error is not None:
                asyncio.get_running_loop().call_exception_handler(
                    {"message": "a request on a Groups stream failed", "exception": error, "task": done}
                )
                self._end(refused(ErrorCode.INTERNAL, "a fault of the broker; its log says more"))

        task.add_done_callback(on_done)

    async def _beat(self, bound: _Bound, beat_number: int, command: Join | Beat | Leave, size_bytes: int) -> None:
        try:
            outcome = await self._coordinators.submit(
                bound.group_id, command, size_bytes=size_bytes, timeout_ms=GROUP_CALL_MS
            )
        except RefusedError as error:
            self._put(_failed_state(bound.handle, beat_number, error.failure))
            return
        if isinstance(outcome, MemberState):
            bound.heartbeat_interval_ms = outcome.heartbeat_interval_ms
            bound.session_timeout_ms = outcome.session_timeout_ms
        self._put(messages.member_message(outcome, self._topic_name, handle=bound.handle, beat_number=beat_number))

    async def _commit(self, request_id: int, command: CommitOffsets, size_bytes: int) -> None:
        committed = pb.GroupsCommitted(request_id=request_id)
        try:
            outcome = await self._coordinators.submit(
                command.group_id, command, size_bytes=size_bytes, timeout_ms=GROUP_CALL_MS
            )
        except RefusedError as error:
            committed.error.CopyFrom(partition_error(error.failure))
        else:
            match outcome:
                case Refused():
                    committed.error.CopyFrom(partition_error(messages.failure_of(outcome)))
                case OffsetResults():
                    committed.outcomes.extend(messages.outcome_messages(outcome.results))
                case _:
                    raise messages.unexpected(outcome)
        self._put_committed(committed)

    def _put_committed(self, committed: pb.GroupsCommitted) -> None:
        self._put(pb.GroupsResponse(committed=committed).SerializeToString())


def _failed_state(handle: int, beat_number: int, failure: Failure) -> pb.GroupMemberState:
    return pb.GroupMemberState(handle=handle, beat_number=beat_number, error=partition_error(failure))


def _size_bytes(message: pb.GroupMemberState | bytes) -> int:
    return len(message) if isinstance(message, bytes) else message.ByteSize() + 8
