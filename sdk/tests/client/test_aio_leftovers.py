# SPDX-License-Identifier: Apache-2.0
"""A finished call leaves nothing behind in its event loop."""

from __future__ import annotations

import asyncio

import pytest
from lograft._client.transport import Purpose, Transport, finish, open_call
from lograft.v1 import metadata_pb2
from lograft.v1.metadata_pb2_grpc import MetadataServiceStub
from tests.client.processes import unused_address


def test_a_finished_call_leaves_no_task_of_grpc_in_its_loop(bootstrap: str) -> None:
    """For each call, gRPC has a task that waits for its end. If it stays, its event comes after the loop is closed."""

    async def watch() -> set[str]:
        transport = Transport()
        channel = await transport.connect(bootstrap, Purpose.CONTROL, timeout_s=20.0)
        opened = await open_call(lambda: MetadataServiceStub(channel).WatchCluster(metadata_pb2.WatchClusterRequest()))
        assert len(opened.tasks) == 1
        assert isinstance(await opened.call.read(), metadata_pb2.WatchClusterResponse)
        await finish(opened)
        assert all(task.done() for task in opened.tasks)
        left = {repr(task) for task in asyncio.all_tasks() - {asyncio.current_task()}}
        await transport.close()
        return left

    assert asyncio.run(watch()) == set()


def test_calls_that_start_together_know_their_own_tasks(bootstrap: str) -> None:
    """Ending one call does not wait for the end of another."""

    async def watch_twice() -> None:
        transport = Transport()
        channel = await transport.connect(bootstrap, Purpose.CONTROL, timeout_s=20.0)
        stub = MetadataServiceStub(channel)
        first, second = await asyncio.gather(
            *[open_call(lambda: stub.WatchCluster(metadata_pb2.WatchClusterRequest())) for _ in range(2)]
        )
        assert len({*first.tasks, *second.tasks}) == 2
        for opened in (first, second):
            assert isinstance(await opened.call.read(), metadata_pb2.WatchClusterResponse)
        await finish(first)
        assert all(task.done() for task in first.tasks)
        assert not all(task.done() for task in second.tasks)
        await finish(second)
        await transport.close()

    asyncio.run(watch_twice())


@pytest.mark.parametrize("turns", [0, 1, 2])
def test_a_call_that_is_cancelled_while_it_starts_leaves_nothing_either(bootstrap: str, turns: int) -> None:
    """A client may be closed in the same turn of the loop in which a call begins."""

    async def start_and_cancel() -> tuple[bool, set[str]]:
        transport = Transport()
        channel = await transport.connect(bootstrap, Purpose.CONTROL, timeout_s=20.0)
        stub = MetadataServiceStub(channel)
        request = metadata_pb2.WatchClusterRequest()
        opening = asyncio.create_task(open_call(lambda: stub.WatchCluster(request)))
        for _ in range(turns):
            await asyncio.sleep(0)
        opening.cancel()
        await asyncio.wait([opening])
        left = {repr(task) for task in asyncio.all_tasks() - {asyncio.current_task()}}
        if not opening.cancelled():
            await finish(opening.result())
            left = set()
        await transport.close()
        return opening.cancelled(), left

    was_cancelled, left = asyncio.run(start_and_cancel())
    assert left == set()
    assert was_cancelled == (turns < 2)


async def test_a_wait_that_has_ended_is_not_waited_for_again() -> None:
    """Waiting for it would spin without letting the loop continue: the whole process once stood still."""
    transport = Transport()
    try:
        channel = transport.channel(unused_address(), Purpose.CONTROL)
        ended = asyncio.ensure_future(asyncio.sleep(0))
        await ended
        transport._pending.watches[channel] = ended
        waiting = asyncio.ensure_future(transport._wait_change(channel, channel.get_state()))
        await asyncio.sleep(0)
        assert not waiting.done()
        channel.get_state(try_to_connect=True)
        await waiting
    finally:
        await transport.close()
