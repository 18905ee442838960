# SPDX-License-Identifier: Apache-2.0
"""The bytes between a broker and its assignment process: frames of a length and a marshalled tuple.

Both ends are the same code in the same version of Python, which is what `marshal` asks for; unlike pickle it calls nothing. A request
and its answer are many small frames, one for each topic, subscription and member, so that the event loop can pause between any two.

Owns the frames. Source: the standard library's `marshal`.
"""

from __future__ import annotations

import marshal
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from brokerd.groups.assignment import specs
from brokerd.groups.assignment.specs import Assignment, AssignmentError, MemberSpec, TopicSpec

LENGTH: Final = struct.Struct("<I")
"""Number of the bytes that follow."""

MAX_FRAME_BYTES: Final = 64 * 1024 * 1024
"""Bytes of one frame; a longer one shows that the stream is damaged."""

BEGIN, TOPIC, REPLICAS, RACKS, SUBSCRIPTION, MEMBER, END = range(7)
"""What the frames of a request are: topics, each followed by the racks of its partitions, and then members."""

SHARE, DONE, REFUSED = range(7, 10)
"""What the frames of an answer are: shares of members, and the end or an error."""

PARTITIONS_PER_FRAME: Final = 2_000
"""Partitions whose racks travel in one frame."""

Frame = tuple[Any, ...]
"""The kind of a frame, and what it carries."""

_Owned = tuple[tuple[bytes, tuple[int, ...]], ...]

_ERRORS: Final[Mapping[str, type[AssignmentError]]] = {
    error.__name__: error
    for error in (
        specs.DuplicateMemberError,
        specs.InvalidTopicError,
        specs.AssignmentTooLargeError,
        specs.UnknownAssignorError,
    )
}


def pack(frame: Frame) -> bytes:
    """Return the bytes of a frame."""
    data = marshal.dumps(frame)
    return LENGTH.pack(len(data)) + data


def unpack(data: bytes) -> Frame:
    """Return the frame in the bytes after its length."""
    return marshal.loads(data)


def request_frames(assignor: str, members: Sequence[MemberSpec], topics: Mapping[bytes, TopicSpec]) -> Iterator[Frame]:
    """Yield the frames of a request. Equal sets of racks and equal subscriptions travel once."""
    yield BEGIN, assignor
    racks: dict[frozenset[str], int] = {}
    for topic_id, topic in topics.items():
        yield TOPIC, topic_id, topic.topic_id, topic.partition_count
        for start in range(0, len(topic.racks), PARTITIONS_PER_FRAME):
            some = topic.racks[start : start + PARTITIONS_PER_FRAME]
            for replicas in some:
                if replicas not in racks:
                    racks[replicas] = len(racks)
                    yield REPLICAS, tuple(sorted(replicas))
            yield RACKS, tuple([racks[replicas] for replicas in some])
    subscriptions: dict[frozenset[bytes], int] = {}
    for member in members:
        if member.topics not in subscriptions:
            subscriptions[member.topics] = len(subscriptions)
            yield SUBSCRIPTION, tuple(sorted(member.topics))
        owned: _Owned = tuple(member.owned.items())
        yield MEMBER, member.member_id, member.instance_id, member.rack, subscriptions[member.topics], owned
    yield (END,)


class Request:
    """A request as its frames come in. The process is the one writer."""

    def __init__(self) -> None:
        self.assignor = ""
        self.members: list[MemberSpec] = []
        self.topics: dict[bytes, TopicSpec] = {}
        self._replicas: list[frozenset[str]] = []
        self._subscriptions: list[frozenset[bytes]] = []
        self._topic = b""

    def add(self, frame: Frame) -> bool:
        """Take the next frame; return True after the last one."""
        kind = frame[0]
        if kind == MEMBER:
            _, member_id, instance_id, rack, _, owned = frame
            subscription: int = frame[4]
            topics = self._subscriptions[subscription]
            self.members.append(MemberSpec(member_id, instance_id, rack, topics, dict(owned)))
        elif kind == TOPIC:
            _, self._topic, topic_id, partition_count = frame
            self.topics[self._topic] = TopicSpec(topic_id, partition_count, ())
        elif kind == RACKS:
            numbers: tuple[int, ...] = frame[1]
            topic = self.topics[self._topic]
            racks = topic.racks + tuple([self._replicas[number] for number in numbers])
            self.topics[self._topic] = replace(topic, racks=racks)
        elif kind == REPLICAS:
            self._replicas.append(frozenset(frame[1]))
        elif kind == SUBSCRIPTION:
            self._subscriptions.append(frozenset(frame[1]))
        elif kind == BEGIN:
            self.assignor = frame[1]
        return kind == END


def answer_frames(members: Sequence[MemberSpec], assignment: Assignment) -> Iterator[Frame]:
    """Yield the frames of an assignment. Who keeps exactly what it has does not occur."""
    for position, member in enumerate(members):
        share = assignment[member.member_id]
        if share != member.owned:
            yield SHARE, position, tuple(share.items())
    yield (DONE,)


def refusal_frame(error: AssignmentError) -> Frame:
    """Return the frame of an assignor's refusal."""
    return REFUSED, type(error).__name__, str(error)


def refusal(frame: Frame) -> AssignmentError:
    """Return the assignor's refusal."""
    _, name, text = frame
    return _ERRORS.get(name, AssignmentError)(text)
