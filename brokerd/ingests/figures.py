# SPDX-License-Identifier: Apache-2.0
"""What a broker counts about its ingests: totals since the start, and figures of the last look.

`IngestTotals` is written by the coordinators alone. `IngestFigures` is replaced, never changed, so any thread may read both.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from brokerd.ingests.core import IngestCore
from brokerd.ingests.records import IngestState

FIGURES_MS: Final = 15_000
"""Milliseconds between two looks at the ingests."""

SLICE_INGESTS: Final = 500
"""Ingests that one turn of the event loop counts."""


@dataclass(slots=True)
class IngestTotals:
    """Totals since the start of the broker.

    Attributes:
        commands: commands by kind and result: `ok`, or the name of an error code.
        completed_decisions: decisions that were published in all their partitions.
        published_parts: parts that leaders have published.
        failed_parts: asks for a publication that failed, and were or will be repeated.
        ended_parts: parts that ended because their topic was deleted.
        lost_records: published records that logs have lost, as noted by the coordinators here.
        left_out_parts: asks that were left out because too many were under way.
        expired_ingests: ingests that were aborted because their time was over.
        told_groups: outcomes that groups were told.
        failed_groups: attempts to tell a group that failed.
        loads: loadings of coordinators that ended.
        load_ms: milliseconds that they took together.
        last_load_ms: milliseconds of the last one.
    """

    commands: dict[tuple[str, str], int] = field(default_factory=dict[tuple[str, str], int])
    completed_decisions: int = 0
    published_parts: int = 0
    failed_parts: int = 0
    ended_parts: int = 0
    lost_records: int = 0
    left_out_parts: int = 0
    expired_ingests: int = 0
    told_groups: int = 0
    failed_groups: int = 0
    loads: int = 0
    load_ms: int = 0
    last_load_ms: int = 0

    def count_command(self, kind: str, result: str) -> None:
        """Count a command."""
        self.commands[kind, result] = self.commands.get((kind, result), 0) + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestFigures:
    """The ingests of the active coordinators here, as of one look.

    Attributes:
        ingests: number of ingests by state, in lower case.
        attempt_count: attempts.
        coordinator_count: partitions whose coordinator is active here.
    """

    ingests: Mapping[str, int] = field(default_factory=dict[str, int])
    attempt_count: int = 0
    coordinator_count: int = 0


async def count_ingests(cores: Iterable[IngestCore]) -> IngestFigures:
    """Count the ingests of cores, in slices. A core that is dropped meanwhile still counts."""
    ingests = {state.name.lower(): 0 for state in IngestState}
    attempt_count = core_count = looked_at = 0
    for core in cores:
        core_count += 1
        attempt_count += core.state.attempt_count
        for ingest in tuple(core.state.ingests.values()):
            looked_at += 1
            if looked_at % SLICE_INGESTS == 0:
                await asyncio.sleep(0)
            if ingest.value is not None:
                ingests[ingest.value.state.name.lower()] += 1
    return IngestFigures(ingests=ingests, attempt_count=attempt_count, coordinator_count=core_count)
