# SPDX-License-Identifier: Apache-2.0
"""A client leaves nothing behind in its event loop."""

from __future__ import annotations

import asyncio

import pytest
from lograft._client.transport import Purpose, Transport
from lograft.errors import ClientClosedError
from lograft.v1 import metadata_pb2
from lograft.v1.metadata_pb2_grpc import MetadataServiceStub


def left_tasks() -> set[str]:
    """Return the tasks of this loop beside the one that asks."""
    return {repr(task) for task in asyncio.all_tasks() - {asyncio.current_task()}}


def test_calls_leave_no_task(bootstrap: str) -> None:
    """Neither while they run nor when they have ended: they live on the connection."""

    async def watch() -> None:
        transport = Transport()
        channel = await transport.connect(bootstrap, Purpose.CONTROL, timeout_s=20.0)
        call = MetadataServiceStub(channel).WatchCluster(metadata_pb2.WatchClusterRequest())
        assert isinstance(await call.read(), metadata_pb2.WatchClusterResponse)
        assert left_tasks() == set()
        call.cancel()
        await transport.close()
        assert left_tasks() == set()

    asyncio.run(watch())


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("turns", [0, 1, 2, 3])
def test_connection_attempt_that_is_cancelled_leaves_nothing(bootstrap: str, turns: int) -> None:
    """A client may be closed in the same turn of the loop in which it begins to connect."""

    async def start_and_cancel() -> None:
        transport = Transport()
        opening = asyncio.create_task(transport.connect(bootstrap, Purpose.CONTROL, timeout_s=20.0))
        for _ in range(turns):
            await asyncio.sleep(0)
        opening.cancel()
        await asyncio.wait([opening])
        await transport.close()
        await asyncio.sleep(0)
        assert left_tasks() == set()

    asyncio.run(start_and_cancel())


@pytest.mark.filterwarnings("error")
def test_client_that_is_left_open_closes_its_connections_with_the_loop(bootstrap: str) -> None:
    """An open socket would be reported at its collection, as a warning."""

    async def leave() -> None:
        transport = Transport()
        channel = await transport.connect(bootstrap, Purpose.CONTROL, timeout_s=20.0)
        call = MetadataServiceStub(channel).WatchCluster(metadata_pb2.WatchClusterRequest())
        await call.read()

    for _ in range(3):
        asyncio.run(leave())


async def test_closing_the_client_ends_a_call_with_a_typed_error(bootstrap: str) -> None:
    """Its caller was not cancelled, so it must not see a cancellation."""
    transport = Transport()
    channel = await transport.connect(bootstrap, Purpose.CONTROL, timeout_s=20.0)
    call = channel.unary_unary("/lograft.v1.MetadataService/GetCluster")(
        metadata_pb2.GetClusterRequest(min_metadata_offset=1 << 40).SerializeToString(), timeout=20
    )
    waiting = asyncio.create_task(transport.answer(call))
    await asyncio.sleep(0.05)
    assert not waiting.done()
    await transport.close()
    with pytest.raises(ClientClosedError):
        await waiting
