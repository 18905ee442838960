# SPDX-License-Identifier: Apache-2.0
"""A process that was stopped for longer than its session (SIGSTOP, a suspended machine) hands out nothing that it had before."""

from __future__ import annotations

import asyncio

import pytest
from lograft._client.clock import monotonic_ms
from lograft._consumer import shared as shared_module
from lograft._consumer.shared import SharedConsumer
from lograft._groups import member as member_module
from lograft._groups.membership import Phase
from lograft.settings import ConsumerSettings, parse_bootstrap, parse_group
from lograft.v1 import group_pb2

SESSION_MS = 6_000
NOBODY = "127.0.0.1:1"


async def a_member() -> SharedConsumer:
    """Return a consumer that has joined. As with the blocking one, what it calls on the loop runs later."""
    group = parse_group(
        "g",
        instance_id=None,
        auto_commit=False,
        auto_commit_interval_ms=1_000,
        reset="earliest",
        assignor=None,
        processing_limit_ms=300_000,
    )
    client = parse_bootstrap(NOBODY, None, connection_liveness_ms=30_000, request_timeout_ms=1_000)
    shared = SharedConsumer(client, ConsumerSettings(), group)
    shared.on_loop = asyncio.get_running_loop().call_soon
    await shared.subscribe("t", None, None)
    member = shared._member
    assert member is not None
    join = member.take_beat()
    assert join is not None
    member.hear(
        group_pb2.GroupMemberState(
            beat_number=join.beat_number, member_epoch=1, heartbeat_interval_ms=1_000, session_timeout_ms=SESSION_MS
        )
    )
    shared.begin_poll()
    shared.end_poll(None)
    assert member.phase is Phase.MEMBER
    return shared


@pytest.mark.parametrize("stopped_ms", [1_500, 60_000])
def test_first_poll_after_a_stop_looks_at_the_session_first(stopped_ms: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The poll does not wait for the loop's thread to notice; within the session nothing is held up."""

    async def run() -> None:
        shared = await a_member()
        member = shared._member
        assert member is not None
        late_ms = monotonic_ms() + stopped_ms
        for module in (shared_module, member_module):
            monkeypatch.setattr(module, "monotonic_ms", lambda: late_ms)
        is_over = stopped_ms > SESSION_MS
        assert shared.step() is None, "an iteration takes the slow way after a second"
        shared.begin_poll()
        assert shared.has_news is is_over
        assert shared.take_record() is None
        await asyncio.sleep(0)
        assert (member.phase is Phase.JOINING) is is_over
        monkeypatch.undo()
        await shared._stop_member()
        await shared._stop()

    asyncio.run(run())
