# SPDX-License-Identifier: Apache-2.0
"""A produce stream that ends hands back what was bound to it, whatever happens meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import cast

import pytest
from lograft import _produce_stream
from lograft._cluster import Cluster
from lograft._core.metadata import Leader
from lograft._core.sequencer import PartitionSequencer
from lograft._produce_sender import PartitionSender, Session
from lograft._produce_stream import ProduceStream, StreamOwner
from lograft._transport import OpenCall, finish
from lograft.errors import LograftError
from lograft.settings import STREAM_SILENCE_MS, ProducerSettings, parse_bootstrap

DEADLINE_S = 20.0
Ended = tuple[list[PartitionSender], LograftError]


class Owner:
    """Notes what comes back from a stream that never opens."""

    def __init__(self) -> None:
        self.ended: asyncio.Future[Ended] = asyncio.get_running_loop().create_future()

    def on_stream_end(self, stream: ProduceStream, senders: Sequence[PartitionSender], error: LograftError) -> None:
        """See `StreamOwner`."""
        self.ended.set_result((list(senders), error))

    def __getattr__(self, name: str) -> object:
        raise AssertionError(f"the stream never opened, and called {name}")


def test_a_reset_while_a_failed_opening_winds_up_loses_no_partition(
    bootstrap: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock of the broker's silence may run out just then: the partition comes back all the same."""

    async def lose() -> Ended:
        is_winding_up, go_on = asyncio.Event(), asyncio.Event()

        async def slow_finish(opened: OpenCall[object]) -> None:
            is_winding_up.set()
            await go_on.wait()
            await finish(opened)

        monkeypatch.setattr(_produce_stream, "finish", slow_finish)
        client = parse_bootstrap(bootstrap, "not-the-id-of-this-cluster")
        cluster, owner, settings = Cluster(client), Owner(), ProducerSettings()
        host, port = bootstrap.rsplit(":", 1)
        leader = Leader(broker_id=0, leader_epoch=0, address=f"{host}:{port}")
        stream = ProduceStream(cast("StreamOwner", owner), cluster, settings, Session(), leader=leader)
        sender = PartitionSender(
            "t", 0, sequencer=PartitionSequencer(is_numbered=True), session=stream.session, backoff=cluster.backoff()
        )
        stream.bind(sender)
        async with asyncio.timeout(DEADLINE_S):
            await is_winding_up.wait()
            stream.check_silence(2**62 + STREAM_SILENCE_MS)
            await asyncio.sleep(0)
            go_on.set()
            senders, error = await owner.ended
        assert senders == [sender]
        await cluster.close()
        return senders, error

    _, error = asyncio.run(lose())
    assert "cluster" in str(error)
