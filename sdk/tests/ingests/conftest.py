# SPDX-License-Identifier: Apache-2.0
"""Ids that no other test uses, and what readers see."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator

import pytest
from lograft import Admin, Consumer, ConsumerRecord, TopicPartition

DEADLINE_S = 30
_numbers = itertools.count()


@pytest.fixture
def ingest_id() -> str:
    """Id of an ingest, or of transactions."""
    return f"ingest/{next(_numbers)}"


@pytest.fixture
def group() -> str:
    """Id of a group."""
    return f"ingest-group-{next(_numbers)}"


Read = Callable[[str], list[ConsumerRecord]]


@pytest.fixture
def read(bootstrap: str, admin: Admin) -> Iterator[Read]:
    """A function that reads all of a topic, by partition and offset."""
    with Consumer(bootstrap) as consumer:

        def read_all(topic: str) -> list[ConsumerRecord]:
            tps = [TopicPartition(topic, number) for number in range(admin.describe_topic(topic).partition_count)]
            consumer.assign(tps)
            ends = consumer.end_offsets(tps)
            got: list[ConsumerRecord] = []
            deadline_s = time.monotonic() + DEADLINE_S
            while any(consumer.position(tp) < ends[tp] for tp in tps):
                assert time.monotonic() < deadline_s, "not everything can be read"
                got += consumer.poll(timeout_ms=100)
            return sorted(got, key=lambda each: (each.partition, each.offset))

        yield read_all
