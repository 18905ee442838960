# SPDX-License-Identifier: Apache-2.0
"""Brokers by the admin clients and by the command, against a real broker: described, and not removed while alive."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from lograft import Admin, aio
from lograft._admin import brokers as broker_calls
from lograft.cli import main
from lograft.errors import InvalidRequestError, UsageError
from lograft.types import BrokerState

MakeTopic = Callable[..., str]


def test_the_broker_is_described(admin: Admin, make_topic: MakeTopic) -> None:
    """The broker has state, address, identity and leaderships. Unknown ids are left out."""
    make_topic(2)
    (known,) = admin.describe_cluster().brokers
    (broker,) = admin.describe_brokers()
    assert (broker.broker_id, broker.host, broker.port) == (known.broker_id, known.host, known.port)
    assert (broker.state, broker.unclean) == (BrokerState.ACTIVE, False)
    assert broker.leader_count == broker.replica_count >= 2
    assert (len(broker.incarnation_id), [len(each) for each in broker.log_directory_ids]) == (16, [16])
    assert broker.last_heard_age_ms is not None
    assert broker.metadata_offset is not None
    assert broker.metadata_offset > broker.broker_epoch
    assert [each.broker_id for each in admin.describe_brokers([known.broker_id, known.broker_id + 70])] == [
        known.broker_id
    ]
    assert admin.describe_brokers([]) == []


def test_pages_together_are_all_brokers(admin: Admin, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page may be smaller than the cluster; the client asks for all pages."""
    monkeypatch.setattr(broker_calls, "PAGE_BROKERS", 1)
    assert len(admin.describe_brokers()) == 1


def test_removal_of_a_living_broker_is_refused(admin: Admin) -> None:
    """The refusal says what to do. Wrong arguments are found before anything is sent."""
    (broker,) = admin.describe_brokers()
    with pytest.raises(InvalidRequestError, match="stop it first"):
        admin.remove_broker(broker.broker_id)
    with pytest.raises(InvalidRequestError, match="is registered"):
        admin.remove_broker(broker.broker_id + 70, validate_only=True)
    for bad in (-1, True, "1", None, 2**31):
        with pytest.raises(UsageError):
            admin.remove_broker(bad)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        with pytest.raises(UsageError):
            admin.describe_brokers([bad])  # type: ignore[list-item]  # pyright: ignore[reportArgumentType]
    with pytest.raises(UsageError):
        admin.describe_brokers([1] * 1_001)


async def test_asyncio_client_asks_the_same(bootstrap: str) -> None:
    """Both clients share the calls."""
    async with aio.Admin(bootstrap) as admin:
        (broker,) = await admin.describe_brokers()
        with pytest.raises(InvalidRequestError):
            await admin.remove_broker(broker.broker_id, validate_only=True)


def test_command_lists_describes_and_removes(
    bootstrap: str, admin: Admin, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`lograft brokers`: tables, JSON, exit codes."""
    monkeypatch.setenv("LOGRAFT_BOOTSTRAP", bootstrap)
    monkeypatch.setenv("COLUMNS", "200")

    def run(*arguments: str) -> tuple[int, str]:
        with pytest.raises(SystemExit) as end:
            main(("brokers", *arguments))
        assert isinstance(end.value.code, int)
        return end.value.code, capsys.readouterr().out

    (broker,) = admin.describe_brokers()
    number = str(broker.broker_id)
    code, out = run("list")
    assert (code, "1 broker\n" in out, "active" in out) == (0, True, True)
    code, out = run("list", "--json")
    (listed,) = json.loads(out)
    assert (listed["broker_id"], listed["state"]) == (broker.broker_id, "active")
    code, out = run("describe", number)
    assert (code, broker.incarnation_id.hex() in out, "online" in out) == (0, True, True)
    code, out = run("describe", number, "--json")
    assert json.loads(out)["log_directory_ids"] == [each.hex() for each in broker.log_directory_ids]
    assert run("describe", "70")[0] == 1
    assert run("remove", number)[0] == 1
    assert run("remove", "x")[0] == 2
