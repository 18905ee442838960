# SPDX-License-Identifier: Apache-2.0
"""Ties ingests to groups, which do not know each other: offsets of a group that count if and only if an ingest is committed.

Owns the questions of groups that are under way. Each is asked once at a time; what fails is asked again by the core of the group.
Source: `docs/ingest.md` section "Offsets of a group".
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Final

from brokerd.failure import RefusedError
from brokerd.groups.answers import Refused
from brokerd.groups.commands import OffsetCommit, PrepareOffsets, ResolveOffsets
from brokerd.groups.coordinators import GroupCoordinators
from brokerd.groups.effects import AskOutcome
from brokerd.groups.pending_calls import PendingOffsetsCalls
from brokerd.ingests import effects
from brokerd.ingests.coordinator_calls import IngestCalls
from brokerd.ingests.coordinators import GroupOffsetsCalls, OffsetsToPrepare
from metaquorum.net.sparse_log import SparseLog

logger = logging.getLogger(__name__)

ASKED_OUTCOMES_MAX: Final = 256
"""Outcomes that the groups of one broker ask for at the same time; further ones are left out, and their cores ask again."""


def group_offsets_calls(pending: PendingOffsetsCalls) -> GroupOffsetsCalls:
    """Return how coordinators of ingests reach groups."""

    async def prepare(asked: OffsetsToPrepare) -> None:
        await pending.prepare(
            PrepareOffsets(
                group_id=asked.group_id,
                ingest_id=asked.ingest_id,
                ingest_epoch=asked.ingest_epoch,
                round=asked.round,
                offsets=tuple(
                    OffsetCommit(
                        topic_id=each.topic_id,
                        partition=each.partition,
                        offset=each.offset,
                        leader_epoch=each.leader_epoch,
                        metadata=each.metadata,
                    )
                    for each in asked.offsets
                ),
                member_id=asked.member_id,
                member_epoch=asked.member_epoch,
                instance_id=asked.instance_id or None,
                commit_number=asked.commit_number,
                offsets_digest=asked.offsets_digest,
            )
        )

    async def resolve(asked: effects.ResolveOffsets) -> None:
        await pending.resolve(
            ResolveOffsets(
                group_id=asked.group_id,
                ingest_id=asked.ingest_id,
                ingest_epoch=asked.ingest_epoch,
                round=asked.round,
                is_committed=asked.is_committed,
                offsets_digest=asked.offsets_digest,
            )
        )

    return GroupOffsetsCalls(prepare=prepare, resolve=resolve)


class OutcomeQuestions:
    """The questions of the groups of one broker: what becomes of offsets that they have prepared. Belongs to one event loop."""

    def __init__(self) -> None:
        self._groups: GroupCoordinators | None = None
        self._ingests: IngestCalls | None = None
        self._tasks: dict[AskOutcome, asyncio.Task[None]] = {}
        self._lines = SparseLog()

    def attach(self, groups: GroupCoordinators, ingests: IngestCalls) -> None:
        """Ask from now on."""
        self._groups, self._ingests = groups, ingests

    def ask(self, effect: AskOutcome) -> None:
        """Ask, and tell the group; does not wait."""
        if self._groups is None or self._ingests is None or effect in self._tasks:
            return
        if len(self._tasks) >= ASKED_OUTCOMES_MAX:
            return
        work = self._ask(self._groups, self._ingests, effect)
        task = self._tasks[effect] = asyncio.create_task(work, name=f"outcome-{effect.ingest_id}")
        task.add_done_callback(lambda done: self._on_done(effect, done))

    async def close(self) -> None:
        """Ask nothing any more. Idempotent."""
        self._groups = None
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _ask(self, groups: GroupCoordinators, ingests: IngestCalls, effect: AskOutcome) -> None:
        try:
            is_committed = await ingests.decide_outcome(
                effect.ingest_id,
                ingest_epoch=effect.ingest_epoch,
                round_number=effect.round,
                offsets_digest=effect.offsets_digest,
            )
            command = ResolveOffsets(
                group_id=effect.group_id,
                ingest_id=effect.ingest_id,
                ingest_epoch=effect.ingest_epoch,
                round=effect.round,
                is_committed=is_committed,
                offsets_digest=effect.offsets_digest,
            )
            outcome = await groups.submit(effect.group_id, command)
        except RefusedError as error:
            count = self._lines.note(error.failure.code.name, time.monotonic())
            if count:
                logger.warning(
                    "outcome not known yet: group=%s ingest=%s count=%d: %s",
                    effect.group_id,
                    effect.ingest_id,
                    count,
                    error,
                )
            return
        if isinstance(outcome, Refused):
            logger.error("outcome refused: group=%s ingest=%s: %s", effect.group_id, effect.ingest_id, outcome.message)

    def _on_done(self, effect: AskOutcome, task: asyncio.Task[None]) -> None:
        del self._tasks[effect]
        error = None if task.cancelled() else task.exception()
        if error is not None:
            logger.error("question for an outcome failed: %s", task.get_name(), exc_info=error)
