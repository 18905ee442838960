# SPDX-License-Identifier: Apache-2.0
"""Configs of topics, brokers and the cluster by the admin clients and the command, against a real broker."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable, Iterator

import pytest
from lograft import Admin, ConfigResource, DeliveryError, ErrorCode, Producer, aio
from lograft.cli import main
from lograft.errors import InvalidRequestError, UnknownTopicError, UsageError
from lograft.types import ConfigSource

from brokerd.embedded import EmbeddedCluster


@pytest.fixture
def address() -> Iterator[str]:
    """Address of a separate cluster, so that cluster configs do not reach other tests."""
    with EmbeddedCluster() as cluster:
        yield cluster.bootstrap


@pytest.fixture
def own(address: str) -> Iterator[Admin]:
    """An admin client of the separate cluster, with a topic."""
    with Admin(address) as client:
        client.create_topic("t", configs={"segment.ms": "60000"})
        yield client


def test_configs_are_set_described_and_removed_at_every_level(own: Admin) -> None:
    """A new value shows at once with its source. After its removal, the inherited value is in force."""
    (broker,) = own.describe_cluster().brokers
    topic = ConfigResource.topic("t")
    of_broker, of_cluster = ConfigResource.broker(broker.broker_id), ConfigResource.cluster()
    text = "orders of the shop, " * 12 + "256 characters!!"
    own.alter_configs(
        {
            topic: {"description": text, "segment.ms": None},
            of_broker: {"flush.policy": "interval"},
            of_cluster: {"flush.policy": "none", "retention.ms": "1000"},
        }
    )
    found = own.describe_configs([topic, of_broker, of_cluster])
    assert (found[topic]["description"].value, found[topic]["description"].source) == (text, ConfigSource.TOPIC)
    assert found[topic]["segment.ms"].source is ConfigSource.DEFAULT
    assert (found[topic]["flush.policy"].value, found[topic]["flush.policy"].source) == ("none", ConfigSource.CLUSTER)
    assert found[of_broker]["flush.policy"].source is ConfigSource.BROKER
    assert found[of_cluster]["retention.ms"].value == "1000"
    assert found[topic]["flush.policy"].default == "ack"
    assert "interval" in found[topic]["flush.policy"].allowed
    assert "stored" in found[topic]["flush.policy"].meaning
    assert "description" not in found[of_cluster]
    there = own.describe_configs([topic], broker_id=broker.broker_id)[topic]
    assert (there["flush.policy"].value, there["flush.policy"].source) == ("interval", ConfigSource.BROKER)
    described = own.describe_topic("t")
    assert (described.configs["retention.ms"], described.overridden) == ("1000", {"description"})
    own.alter_configs({of_cluster: {"flush.policy": None}, of_broker: {"flush.policy": None}})
    assert own.describe_configs([topic])[topic]["flush.policy"].source is ConfigSource.DEFAULT


def test_changed_config_holds_for_the_next_record(address: str, own: Admin) -> None:
    """An open log takes over a smaller message limit of the topic, and then of the cluster."""
    for resource in (ConfigResource.topic("t"), ConfigResource.cluster()):
        own.alter_configs({resource: {"max.message.bytes": "2048"}})
        with Producer(address) as producer:
            producer.send("t", bytes(5_000))
            with pytest.raises(DeliveryError) as caught:
                producer.flush()
        assert caught.value.code is ErrorCode.MESSAGE_TOO_LARGE
        own.alter_configs({resource: {"max.message.bytes": None}})
        with Producer(address) as producer:
            producer.send("t", bytes(5_000))
            producer.flush()


def test_bad_changes_are_typed_errors_and_change_nothing(own: Admin) -> None:
    """The message names the config and what is allowed. A validation that passes also changes nothing."""
    topic = ConfigResource.topic("t")
    with pytest.raises(InvalidRequestError, match=r"flush\.policy must be one of ack, interval, none") as caught:
        own.alter_configs({topic: {"description": "x", "flush.policy": "sometimes"}})
    assert caught.value.code is ErrorCode.INVALID_CONFIG
    with pytest.raises(UnknownTopicError):
        own.alter_configs({ConfigResource.topic("none"): {"description": "x"}})
    with pytest.raises(UnknownTopicError):
        own.describe_configs([ConfigResource.topic("none")])
    with pytest.raises(InvalidRequestError, match="in decimal"):
        own.alter_configs({ConfigResource.broker(77): {"flush.policy": "ack"}})
    with pytest.raises(InvalidRequestError, match="1 to 1000"):
        own.describe_configs([])
    with pytest.raises(UsageError, match="ConfigResource"):
        own.alter_configs({"t": {"flush.policy": "ack"}})  # pyright: ignore[reportArgumentType]
    with pytest.raises(UsageError, match="text"):
        own.alter_configs({topic: {"segment.ms": 5}})  # pyright: ignore[reportArgumentType]
    own.alter_configs({topic: {"description": "x"}}, validate_only=True)
    assert own.describe_topic("t").overridden == {"segment.ms"}


async def test_asyncio_client_does_the_same(bootstrap: str, make_topic: Callable[..., str]) -> None:
    """Configs are set and described through `lograft.aio`."""
    topic = ConfigResource.topic(make_topic())
    async with aio.Admin(bootstrap) as admin:
        await admin.alter_configs({topic: {"description": "by asyncio"}})
        assert (await admin.describe_configs([topic]))[topic]["description"].value == "by asyncio"


def test_command_sets_describes_and_unsets(
    bootstrap: str,
    make_topic: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """`lograft configs` as tables and JSON, and its exit codes."""
    monkeypatch.setenv("LOGRAFT_BOOTSTRAP", bootstrap)
    monkeypatch.setenv("COLUMNS", "300")
    monkeypatch.setattr(sys, "stdin", io.StringIO())

    def run(*arguments: str) -> tuple[int, str]:
        with pytest.raises(SystemExit) as end:
            main(arguments)
        assert isinstance(end.value.code, int)
        captured = capsys.readouterr()
        return end.value.code, captured.out + captured.err

    topic = make_topic()
    assert run("configs", "set", "retention.ms=5", "description=a = b", "--topic", topic) == (
        0,
        f"2 configs of topic {topic} changed: retention.ms, description\n",
    )
    code, out = run("configs", "describe", "--topic", topic)
    assert code == 0
    assert "a = b" in out
    assert "flush.policy" not in out
    code, out = run("configs", "describe", "--topic", topic, "--all", "--json")
    shown = json.loads(out)
    assert (shown["retention.ms"]["value"], shown["retention.ms"]["source"]) == ("5", "topic")
    assert shown["flush.policy"]["source"] == "default"
    assert run("configs", "set", "retention.ms=x", "--topic", topic)[0] == 1
    assert run("configs", "set", "retention.ms=6", "--topic", topic, "--validate-only")[1].endswith(
        "could be changed: retention.ms\n"
    )
    code, out = run("configs", "unset", "retention.ms", "description", "--topic", topic, "--json")
    assert json.loads(out)["changes"] == {"retention.ms": None, "description": None}
    assert json.loads(run("configs", "describe", "--topic", topic, "--json")[1]) == {}
    assert run("configs", "describe", "--cluster")[0] == 0
    assert run("configs", "describe", "--broker", "1")[0] == 0
    assert run("configs", "describe", "--topic", topic, "--broker", "1")[0] == 0
    assert run("configs", "set", "retention.ms=6", "--cluster", "--broker", "1")[0] == 2
    assert run("configs", "describe")[0] == 2
