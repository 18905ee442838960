# SPDX-License-Identifier: Apache-2.0
"""What an assignor takes and returns: members, topics, the assignment, and why an input is refused.

Pure. Owns the limits of one computation. Source: KIP-848 (server-side assignors), KIP-881 (racks).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

MAX_MEMBERS: Final = 5_000
"""Members of one computation. A group with more is refused with `AssignmentTooLargeError`."""

MAX_PARTITIONS: Final = 200_000
"""Partitions of all topics that somebody subscribes to. More are refused with `AssignmentTooLargeError`."""

MAX_SUBSCRIPTIONS: Final = 5_000_000
"""Pairs of a member and a topic that it subscribes to. More are refused with `AssignmentTooLargeError`."""

MAX_RACK_LOOKUPS: Final = 1_000_000
"""Steps in which one computation looks for a better rack. When they are spent, the rest stays where it is, balanced as before."""


class AssignmentError(Exception):
    """There is no assignment for this input; the text says what to do."""


class DuplicateMemberError(AssignmentError):
    """Two members have the same member id or the same instance id."""


class InvalidTopicError(AssignmentError):
    """A topic has another id than its key, a negative partition count, or racks for another number of partitions."""


class AssignmentTooLargeError(AssignmentError):
    """The group is larger than one of the limits of this module."""


class UnknownAssignorError(AssignmentError):
    """No assignor has this name."""


@dataclass(frozen=True, slots=True)
class MemberSpec:
    """A member as an assignor sees it.

    Attributes:
        member_id: unique in the group.
        instance_id: identity of a static member, which survives its restart (KIP-345); None for a dynamic member.
        rack: rack of the client; None if it did not say.
        topics: ids of the topics that it subscribes to. An id that the topics of the computation lack is a topic that does not
            exist, and nobody owns any of it.
        owned: its present target by topic id. What it no longer subscribes to, and what no longer exists, is ignored. If two
            members claim a partition, the first in the order of members counts as its owner.
    """

    member_id: str
    instance_id: str | None
    rack: str | None
    topics: frozenset[bytes]
    owned: Mapping[bytes, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class TopicSpec:
    """A topic as an assignor sees it.

    Attributes:
        topic_id: its id.
        partition_count: its partitions are 0 to `partition_count` - 1.
        racks: racks of the replicas, by partition; empty if they are unknown.
    """

    topic_id: bytes
    partition_count: int
    racks: tuple[frozenset[str], ...]


Assignment = Mapping[str, Mapping[bytes, tuple[int, ...]]]
"""Partitions in ascending order, by member id and topic id. Every member has an entry; a topic of which it owns nothing has none."""


class Assignor(Protocol):
    """A rule that shares partitions among members (the border between a group and its assignors)."""

    @property
    def name(self) -> str:
        """Name by which a group asks for it."""
        ...

    def assign(self, members: Sequence[MemberSpec], topics: Mapping[bytes, TopicSpec]) -> Assignment:
        """Return the assignment. It depends on no order: neither of members, nor of topics, nor of sets.

        Raises:
            AssignmentError: the input contradicts itself or is too large.
        """
        ...
