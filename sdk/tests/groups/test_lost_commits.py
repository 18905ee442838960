# SPDX-License-Identifier: Apache-2.0
"""A commit that is under way when the membership is lost."""

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

    async def call(self, _group: str, _method: object, request: group_pb2.CommitOffsetsRequest, **_others: Any) -> Any:
        """Take a commit."""
        (commit,) = request.commitment.offsets
        self.sent.append(commit.offset)
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
        while not carrier.sent:  # noqa: ASYNC110
            await asyncio.sleep(0)
        offsets.fail(MembershipLostError("no answer for a session"))
        with pytest.raises(MembershipLostError):
            await waiting
        assert carrier.given_up == [110]
        carrier.is_answering = True
        await offsets.commit({PARTITION: OffsetAndMetadata(109)}, timeout_ms=60_000)
        assert carrier.sent == [110, 109]
        await offsets.close()

    asyncio.run(run())
