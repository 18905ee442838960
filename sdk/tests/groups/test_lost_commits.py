# SPDX-License-Identifier: Apache-2.0
"""Commits that wait when their partitions are lost or given up."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from lograft._groups.offsets import GroupOffsets
from lograft.errors import MembershipLostError
from lograft.types import OffsetAndMetadata
from lograft.v1 import group_pb2

PARTITION = (b"t" * 16, 0)


class SilentCarrier:
    """A way to a coordinator that does not answer before it is told to."""

    def __init__(self) -> None:
        self.cluster = self
        self.cluster_id = ""
        self.sent: list[int] = []
        self.given_up: list[int] = []
        self.is_answering = False
        self.is_asked = asyncio.Event()

    async def call(self, _group: str, _method: object, request: group_pb2.CommitOffsetsRequest, **_others: Any) -> Any:
        """Take a commit."""
        (commit,) = request.commitment.offsets
        self.sent.append(commit.offset)
        self.is_asked.set()
        if not self.is_answering:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                self.given_up.append(commit.offset)
                raise
        outcome = group_pb2.OffsetOutcome(topic_id=commit.topic_id, partition=commit.partition)
        return group_pb2.CommitOffsetsResponse(outcomes=[outcome])


def test_commit_of_a_lost_membership_is_not_repeated() -> None:
    """The world simulator saw it stored after the member had the partition again: its next commit moved the offset back (seed 0)."""

    async def run() -> None:
        carrier: Any = SilentCarrier()
        offsets = GroupOffsets(carrier, "g", lambda: ("member", 9))
        waiting = asyncio.create_task(offsets.commit({PARTITION: OffsetAndMetadata(110)}, timeout_ms=60_000))
        await carrier.is_asked.wait()
        offsets.fail(MembershipLostError("no answer for a session"))
        with pytest.raises(MembershipLostError):
            await waiting
        assert carrier.given_up == [110]
        carrier.is_answering = True
        await offsets.commit({PARTITION: OffsetAndMetadata(109)}, timeout_ms=60_000)
        assert carrier.sent == [110, 109]
        await offsets.close()

    asyncio.run(run())


def test_commit_that_was_asked_for_before_the_loss_is_not_sent_after_it() -> None:
    """A task that awaits it begins later. The world simulator saw such a commit stored after the partition had come back (seed 228)."""

    async def run() -> None:
        carrier: Any = SilentCarrier()
        carrier.is_answering = True
        offsets = GroupOffsets(carrier, "g", lambda: ("member", 9))
        waiting = offsets.commit({PARTITION: OffsetAndMetadata(188)}, timeout_ms=60_000)
        offsets.fail(MembershipLostError("the application asked for no records"))
        with pytest.raises(MembershipLostError):
            await waiting
        await asyncio.sleep(0)
        assert carrier.sent == []
        await offsets.close()

    asyncio.run(run())


def test_commit_of_a_partition_that_was_given_up_is_not_repeated() -> None:
    """Its next owner may be this member again, later and from a higher offset."""

    async def run() -> None:
        carrier: Any = SilentCarrier()
        offsets = GroupOffsets(carrier, "g", lambda: ("member", 9))
        waiting = asyncio.create_task(offsets.commit({PARTITION: OffsetAndMetadata(110)}, timeout_ms=60_000))
        await carrier.is_asked.wait()
        await offsets.give_up([PARTITION], timeout_ms=1)
        with pytest.raises(MembershipLostError, match="given up"):
            await waiting
        await offsets.close()
        assert carrier.sent == [110]

    asyncio.run(run())


def test_giving_up_waits_for_an_answer() -> None:
    """A commit in the background, asked for in the callback of a revocation, is stored before the partition goes."""

    async def run() -> None:
        carrier: Any = SilentCarrier()
        carrier.is_answering = True
        offsets = GroupOffsets(carrier, "g", lambda: ("member", 9))
        waiting = offsets.commit({PARTITION: OffsetAndMetadata(110)}, timeout_ms=60_000)
        await offsets.give_up([PARTITION], timeout_ms=60_000)
        assert carrier.sent == [110]
        await waiting
        await offsets.close()

    asyncio.run(run())
