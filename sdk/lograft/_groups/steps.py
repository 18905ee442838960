# SPDX-License-Identifier: Apache-2.0
"""What a member tells its application, one step at a time. Values only."""

from __future__ import annotations

from dataclasses import dataclass

from lograft.wire.codes import ErrorCode

Partition = tuple[bytes, int]
"""Topic id and number of a partition."""


@dataclass(frozen=True, slots=True)
class Revoked:
    """Stop these partitions, commit, call the application, then say `gave_up`."""

    partitions: tuple[Partition, ...]


@dataclass(frozen=True, slots=True)
class Lost:
    """These partitions are another member's by now, perhaps. Stop them and call the application; commit nothing.

    Attributes:
        partitions: the partitions.
        code: why.
        message: why, for people.
    """

    partitions: tuple[Partition, ...]
    code: ErrorCode | None
    message: str


@dataclass(frozen=True, slots=True)
class Unassigned:
    """These partitions are assigned. Find their first offsets, take them, and call the application."""

    partitions: tuple[Partition, ...]


@dataclass(frozen=True, slots=True)
class Left:
    """The member has left."""


@dataclass(frozen=True, slots=True)
class Ended:
    """The coordinator has refused the member for good."""

    code: ErrorCode
    message: str


Step = Revoked | Lost | Unassigned | Left | Ended
"""Anything that the application must be told."""
