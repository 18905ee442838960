# SPDX-License-Identifier: Apache-2.0
"""Since when partitions give nothing, and when an outage of all of them begins."""

from __future__ import annotations

from lograft._consumer.troubles import Troubles
from lograft.errors import NoBrokerError
from lograft.types import TopicPartition

A, B = TopicPartition("t", 0), TopicPartition("t", 1)


def test_further_tries_do_not_begin_the_time_anew() -> None:
    """The last failure is kept, and so is the first time."""
    troubles = Troubles()
    troubles.begin(A, 10)
    troubles.begin(A, 20, NoBrokerError("first"))
    troubles.begin(A, 30, NoBrokerError("second"))
    troubles.begin(A, 40)
    found = troubles.of(A)
    assert found is not None
    assert (found.since_ms, str(found.error)) == (10, "second")


def test_nothing_comes_since_the_last_partition_fell_into_trouble() -> None:
    """One flowing partition prevents an outage. A partition that is no longer fetched does not count."""
    troubles = Troubles()
    assert troubles.all_since_ms is None
    troubles.begin(A, 10)
    troubles.begin(B, 20)
    assert (troubles.oldest_since_ms, troubles.all_since_ms, len(troubles)) == (10, 20, 2)
    assert troubles.end(B)
    assert not troubles.end(B)
    assert (troubles.oldest_since_ms, troubles.all_since_ms) == (10, None)
    troubles.begin(B, 50)
    assert troubles.partitions() == [A, B]
    assert troubles.all_since_ms == 50
    assert troubles.end(A)
    assert troubles.all_since_ms is None
    troubles.forget(A)
    assert troubles.all_since_ms == 50
    assert troubles.forget(B) is not None
    assert (troubles.oldest_since_ms, troubles.all_since_ms) == (None, None)
