# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: PT012 - a whole block is what must raise
"""The calls about ingests against a real broker."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from lograft import Admin, Ingest, IngestState, Producer, aio
from lograft.errors import IngestAbortedError, IngestCommittedError, IngestNotFoundError, UsageError
from lograft.types import IngestKind, IngestList

MakeTopic = Callable[..., str]


def test_an_ingest_from_its_open_to_its_commit(bootstrap: str, admin: Admin, make_topic: MakeTopic) -> None:
    """Descriptions show attempts, staged records and the result; lists leave results out."""
    topic = make_topic(1)
    with Ingest.open(bootstrap, "admin/a", topics=[topic], ttl_ms=60_000) as ingest:
        attempt = ingest.attempt(0)
        attempt.send(topic, b"x")
        found = admin.describe_ingest("admin/a")
        assert (found.kind, found.state, found.epoch, found.round) == (IngestKind.SINGLE, IngestState.OPEN, 1, 1)
        assert (found.topics, found.ttl_ms, found.open_attempts, found.result) == ((topic,), 60_000, 1, None)
        found = ingest.commit([attempt.seal()]) and admin.describe_ingest("admin/a")
    assert (found.state, found.parts, found.published_parts) == (IngestState.COMMITTED, 1, 1)
    assert found.result is not None
    assert found.result.records == 1
    with pytest.raises(IngestCommittedError):
        admin.abort_ingest("admin/a")
    (listed,) = [each for each in admin.list_ingests().ingests if each.ingest_id == "admin/a"]
    assert (listed.state, listed.result) == (IngestState.COMMITTED, None)


def test_lists_have_states_and_abort_ends_what_is_open(bootstrap: str, admin: Admin, make_topic: MakeTopic) -> None:
    """Also a transaction, whose program hears of it."""
    topic = make_topic(1)

    def ids(*states: IngestState) -> list[str]:
        return [each.ingest_id for each in admin.list_ingests(states).ingests if each.ingest_id.startswith("admin/l")]

    with Producer(bootstrap) as producer:
        transaction = producer.transaction("admin/l2")
        with pytest.raises(IngestAbortedError), transaction:
            transaction.send(topic, b"lost")
            Ingest.open(bootstrap, "admin/l1", topics=[topic]).close()
            assert ids(IngestState.OPEN) == ["admin/l1", "admin/l2"]
            admin.abort_ingest("admin/l2")
    assert ids(IngestState.OPEN) == ["admin/l1"]
    assert ids(IngestState.ABORTED, IngestState.OPEN) == ["admin/l1", "admin/l2"]
    assert admin.list_ingests([]) == IngestList(ingests=())


def test_what_is_refused(admin: Admin) -> None:
    """An id that nobody has opened, and arguments that make no sense."""
    for call in (admin.describe_ingest, admin.abort_ingest):
        with pytest.raises(IngestNotFoundError):
            call("admin/none")
        with pytest.raises(UsageError, match="1 to 255 bytes"):
            call("")
    with pytest.raises(UsageError, match="ingests are open, decided, committed, aborted"):
        admin.list_ingests([IngestState.UNKNOWN])


def test_asyncio(bootstrap: str, make_topic: MakeTopic) -> None:
    """The same calls, awaited."""
    topic = make_topic(1)

    async def run() -> None:
        async with aio.Admin(bootstrap) as admin:
            await (await aio.Ingest.open(bootstrap, "admin/b", topics=[topic])).close()
            await admin.abort_ingest("admin/b")
            assert (await admin.describe_ingest("admin/b")).state is IngestState.ABORTED
            assert "admin/b" in [each.ingest_id for each in (await admin.list_ingests()).ingests]

    asyncio.run(run())
