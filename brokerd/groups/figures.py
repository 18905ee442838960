# SPDX-License-Identifier: Apache-2.0
"""What a broker counts about its groups: totals since the start, and figures of the last look.

`GroupTotals` is written by the coordinators alone. `GroupFigures` is replaced, never changed, so any thread may read both.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from brokerd.groups.answers import GroupState
from brokerd.groups.core import GroupCore

FIGURES_MS: Final = 15_000
"""Milliseconds between two looks at the groups."""

SLICE_GROUPS: Final = 200
"""Groups that one turn of the event loop counts."""


@dataclass(slots=True)
class GroupTotals:
    """Totals since the start of the broker.

    Attributes:
        commands: commands by kind and result: `ok`, or the name of an error code.
        removed_members: members that were removed without asking for it, by reason.
        expired_offsets: offsets that have expired.
        expired_groups: groups without members and offsets that were deleted.
        computed_assignments: target assignments that were computed.
        failed_assignments: computations that failed.
        loads: loadings of coordinators that ended.
        load_ms: milliseconds that they took together.
        last_load_ms: milliseconds of the last one.
        ended_slow_streams: streams that were ended because their clients did not read.
    """

    commands: dict[tuple[str, str], int] = field(default_factory=dict[tuple[str, str], int])
    removed_members: dict[str, int] = field(default_factory=dict[str, int])
    expired_offsets: int = 0
    expired_groups: int = 0
    computed_assignments: int = 0
    failed_assignments: int = 0
    loads: int = 0
    load_ms: int = 0
    last_load_ms: int = 0
    ended_slow_streams: int = 0

    def count_command(self, kind: str, result: str) -> None:
        """Count a command."""
        self.commands[kind, result] = self.commands.get((kind, result), 0) + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupFigures:
    """The groups of the active coordinators here, as of one look.

    Attributes:
        groups: number of groups by state.
        member_count: members, static ones that will be back included.
        offset_count: committed offsets.
        coordinator_count: partitions whose coordinator is active here.
    """

    groups: Mapping[str, int] = field(default_factory=dict[str, int])
    member_count: int = 0
    offset_count: int = 0
    coordinator_count: int = 0


async def count_groups(cores: Iterable[GroupCore]) -> GroupFigures:
    """Count the groups of cores, in slices. A core that is dropped meanwhile still counts."""
    groups = {state.value: 0 for state in GroupState}
    member_count = offset_count = core_count = looked_at = 0
    for core in cores:
        core_count += 1
        for group in tuple(core.state.groups.values()):
            looked_at += 1
            if looked_at % SLICE_GROUPS == 0:
                await asyncio.sleep(0)
            if group.value is None:
                continue
            groups[core.state.state_of(group).value] += 1
            member_count += len(group.members)
            offset_count += len(group.offsets)
    return GroupFigures(
        groups=groups, member_count=member_count, offset_count=offset_count, coordinator_count=core_count
    )
