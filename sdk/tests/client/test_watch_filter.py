# SPDX-License-Identifier: Apache-2.0
"""A client's watch covers every requested topic, regardless of the time of the request."""

from __future__ import annotations

import asyncio

import grpc.aio
import pytest
from lograft import Admin
from lograft._client.cluster import Cluster
from lograft._client.transport import Purpose
from lograft.settings import parse_bootstrap

TIMEOUT_MS = 20_000
WAIT_S = 20.0


def test_a_topic_asked_for_while_the_watch_is_opened_is_watched_too(
    bootstrap: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The watch that is being opened lacks the topic, so another one is opened."""
    with Admin(bootstrap) as admin:
        for topic in ("asked-first", "asked-meanwhile"):
            admin.create_topic(topic)
    opened_with: list[frozenset[str]] = []

    async def ask() -> None:
        has_both, both = asyncio.Event(), frozenset({"asked-first", "asked-meanwhile"})
        cluster = Cluster(parse_bootstrap(bootstrap, None))
        connect, watch_once = cluster.transport.connect, cluster._watch_once
        has_asked = False

        async def connect_and_ask(address: str, purpose: Purpose, *, timeout_s: float) -> grpc.aio.Channel:
            nonlocal has_asked
            if opened_with and not has_asked:
                has_asked = True
                await cluster.topic("asked-meanwhile", timeout_ms=TIMEOUT_MS)
            return await connect(address, purpose, timeout_s=timeout_s)

        async def note_filter(address: str, watched: frozenset[str], backoff: object) -> None:
            opened_with.append(watched)
            if watched == both:
                has_both.set()
            await watch_once(address, watched, backoff)

        monkeypatch.setattr(cluster.transport, "connect", connect_and_ask)
        monkeypatch.setattr(cluster, "_watch_once", note_filter)
        await cluster.topic("asked-first", timeout_ms=TIMEOUT_MS)
        await asyncio.wait_for(has_both.wait(), WAIT_S)
        await cluster.close()

    asyncio.run(ask())
    assert opened_with[0] == frozenset({"asked-first"})
