# SPDX-License-Identifier: Apache-2.0
"""Arguments of a wrong type: a typed error says what is expected, before anything is sent."""

from __future__ import annotations

from typing import Any

import pytest
from lograft import Admin, Consumer, Producer, aio
from lograft.errors import InvalidSettingError, UsageError

CLIENTS: list[Any] = [Producer, Consumer, Admin, aio.Producer, aio.Consumer, aio.Admin]


@pytest.mark.parametrize("client", CLIENTS)
def test_settings_as_a_dictionary_are_refused_with_the_way_to_pass_them(client: Any) -> None:
    """Kafka's clients take settings in this form."""
    with pytest.raises(InvalidSettingError, match=r"keyword arguments here.*bootstrap\.servers"):
        client({"bootstrap.servers": "127.0.0.1:9640"})


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("bootstrap", [b"127.0.0.1:9640", 9640, None, [b"127.0.0.1:9640"], ["127.0.0.1:9640", 1]])
def test_addresses_of_another_type_are_refused(client: Any, bootstrap: object) -> None:
    """Bytes, numbers, and lists of them are refused as addresses."""
    with pytest.raises(InvalidSettingError, match="host:port"):
        client(bootstrap)


@pytest.mark.parametrize("topic", [b"x", 5, None, ["x"]])
def test_topic_name_of_another_type_is_refused(admin: Admin, topic: Any) -> None:
    """It once ended in an error of protobuf."""
    for call in (admin.create_topic, admin.delete_topic, admin.describe_topic):
        with pytest.raises(UsageError, match="name of a topic is text"):
            call(topic)
    with pytest.raises(UsageError, match="name of a topic is text"):
        admin.create_partitions(topic, 2)


@pytest.mark.parametrize("count", [0, -1])
@pytest.mark.parametrize("name", ["partition_count", "replication_factor"])
def test_counts_below_one_are_refused(admin: Admin, name: str, count: int) -> None:
    """0 once meant 1."""
    with pytest.raises(UsageError, match=f"{name} is at least 1"):
        admin.create_topic("counts", **{name: count})
